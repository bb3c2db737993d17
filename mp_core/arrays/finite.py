"""Check arrays for infinities and NaN."""

from typing import Any

import numpy as np

from mp_core.arrays import dtypes
from mp_core.arrays.conversion import FORMATS
from mp_core.arrays.received import Array, asarray
from mp_core.core import pointwise
from mp_core.utilities.tree import leaves

__all__ = ["all_finite", "are_finite"]


def all_finite(tree: Any) -> bool:
    """Return whether a tree of arrays has no infinity and no NaN.

    The search stops soon after the first such number, except in float64 arrays.

    Parameters
    ----------
    tree : array-like, None, or a nested tuple, list or dict of these
        None is skipped; a tree of None alone is finite.

    Examples
    --------
    >>> all_finite({"kernel": np.ones(3), "bias": None})
    True
    >>> all_finite([np.ones(3), np.array([1.0, np.nan], np.float16)])
    False
    """
    return are_finite(tree, "tree")


def are_finite(tree: Any, argument: str) -> bool:
    """Return :func:`all_finite` of `tree`, which errors call `argument`."""
    if (
        type(tree) is np.ndarray and tree.dtype in FORMATS
    ):  # the common case; skipping `leaves` takes a tenth of the time
        return _is_finite(tree)
    return all(leaf is None or _is_finite(asarray(leaf, argument)) for leaf in leaves(tree))


def _is_finite(x: Array) -> bool:
    if not dtypes.is_float(x.dtype):
        return True
    if x.dtype == np.float64:
        return bool(np.isfinite(x).all())
    gapless = x.flags.c_contiguous or x.flags.f_contiguous
    finite: bool = pointwise.all_finite(FORMATS[x.dtype], x if gapless else np.ascontiguousarray(x))
    return finite
