"""The scope that sets the dtype in which variables are read."""

from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mp_core.arrays import dtypes
from mp_core.core.scopes import Scope, Scopes, innermost
from mp_core.policies.dtype_policies import standardize_dtype

__all__ = ["autocast_scope", "enable_auto_cast_variables", "read_dtype", "scope_dtype"]

scope_dtype: ContextVar[Any] = ContextVar("mp_core.autocast")
"""The dtype in which variables are read in this thread or task. Unset: outside of every scope. None: variables are not
cast. Calls of layers set a dtype; ``with`` blocks set a :class:`mp_core.core.scopes.Scopes`."""


def autocast_scope(dtype: DTypeLike | None) -> Scope[None]:
    """Read every autocast variable as `dtype` inside a ``with`` block, in this thread or task.

    Parameters
    ----------
    dtype : dtype or None
        A floating-point dtype; None reads the stored values.

    Examples
    --------
    >>> from mp_core.autocast import AutoCastVariable
    >>> variable = AutoCastVariable([1.0, 2.0])
    >>> with autocast_scope("float16"):
    ...     variable * 3
    array([3., 6.], dtype=float16)
    """
    target = None if dtype is None else dtypes.parse(standardize_dtype(dtype))
    if target is not None and not dtypes.is_float(target):
        raise ValueError(f"`autocast_scope` can only be used with a floating-point target dtype. Received: {dtype}")
    return Scope(scope_dtype, target)


def read_dtype() -> np.dtype[Any] | None:
    """Return the dtype in which variables are read here; None if they are not cast.

    >>> with autocast_scope("bfloat16"):
    ...     read_dtype()
    dtype(bfloat16)
    """
    found = scope_dtype.get(None)
    return innermost(found, None) if type(found) is Scopes else found  # type: ignore[no-any-return]


def enable_auto_cast_variables(dtype: DTypeLike | None) -> Scope[None]:
    """Return :func:`autocast_scope` with tf.keras' rule: a dtype that is not floating-point means no cast.

    >>> with enable_auto_cast_variables("float16"):
    ...     read_dtype()
    dtype('float16')
    >>> with enable_auto_cast_variables("int32"):  # for which :func:`autocast_scope` raises
    ...     read_dtype()
    """
    floating = dtype is not None and dtypes.is_float(dtypes.parse(dtype))
    return autocast_scope(dtype if floating else None)
