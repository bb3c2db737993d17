"""Layers that convert numbers to categories, and categories to vectors."""

from collections.abc import Sequence
from itertools import islice, pairwise
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, dtypes
from mp_core.layers.layer import Layer
from mp_core.layers.shapes import WithSpecRule
from mp_core.layers.statistics import batches_in
from mp_core.ops.lookup import check_indices
from mp_core.ops.specs import Spec
from mp_core.utilities.arguments import number, positive_integer
from mp_core.utilities.docstrings import shown

__all__ = ["CategoryEncoding", "Discretization"]

_MODES = ("multi_hot", "one_hot", "count")


@shown("{}(4)(np.array([[3, 1, 1]]))", "array([[0., 1., 0., 1.]], dtype=float32)")
class CategoryEncoding(Layer):
    """Encode integers as vectors with one element per category.

    Parameters
    ----------
    num_tokens : int
        The number of categories. Integers must be from 0 to ``num_tokens - 1``.
    output_mode : {"multi_hot", "one_hot", "count"}
        "one_hot": one vector for each integer. The other modes return one vector for all integers along the last axis:
        "multi_hot" has 1 for each integer that occurs, "count" the number of its occurrences.
    sparse : bool
        An argument of Keras; it must be False.
    **kwargs : those of :class:`Layer`
    """

    _arrays = ("inputs",)
    _options = _repr_arguments = ("num_tokens", "output_mode")
    _lacking = MappingProxyType({"sparse": False})

    def __init__(self, num_tokens: int, output_mode: str = "multi_hot", **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.num_tokens = positive_integer(num_tokens, "num_tokens")
        self.output_mode = _mode(output_mode, _MODES)

    def call(self, inputs: Array, count_weights: Array | None = None) -> Array:
        """Return the vectors in the dtype of the variables, as Keras does.

        Parameters
        ----------
        inputs : ndarray
        count_weights : ndarray, optional
            In mode "count": the weight of each integer, in the shape of `inputs`.
        """
        if count_weights is not None and (self.output_mode != "count" or count_weights.shape != inputs.shape):
            raise ValueError(
                f"`count_weights` of '{self.name}' must have the shape {inputs.shape} of `inputs`, in mode 'count'; "
                f"received shape {count_weights.shape}, in mode {self.output_mode!r}"
            )
        indices = inputs.astype(np.int64) if inputs.dtype.kind not in "iu" else inputs
        check_indices(indices, self.num_tokens, f"`inputs` of '{self.name}'", ValueError)
        return encode_categories(indices, self.num_tokens, self.output_mode, self.variable_dtype, count_weights)


@shown("{}([0.0, 1.0])(np.array([-3.0, 0.0, 0.5, 7.0]))", "array([0, 1, 1, 2], dtype=int32)")
class Discretization(WithSpecRule, Layer):
    """Replace each number by the number of the interval (bin) that contains it.

    Parameters
    ----------
    bin_boundaries : sequence of float, optional
        The ascending boundaries between intervals. Numbers below the first boundary are in interval 0.
    num_bins : int, optional
        Instead of `bin_boundaries`: :meth:`adapt` computes boundaries of this many intervals, with about the same
        number of elements in each.
    epsilon : float
        Ignored: :meth:`adapt` computes exact quantiles. Keras has this argument.
    output_mode : {"int", "multi_hot", "one_hot", "count"}
        "int" returns interval numbers; the other modes encode them as :class:`CategoryEncoding` does.
    sparse : bool
        An argument of Keras; it must be False.
    **kwargs : those of :class:`Layer`
    """

    _arrays = ("inputs",)
    _repr_arguments = ("bin_boundaries",)
    _options = ("bin_boundaries", "num_bins", "epsilon", "output_mode")
    _lacking = MappingProxyType({"sparse": False})

    def __init__(
        self,
        bin_boundaries: Sequence[float] | None = None,
        num_bins: int | None = None,
        epsilon: float = 0.01,
        output_mode: str = "int",
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        if (bin_boundaries is None) == (num_bins is None):
            raise ValueError(
                "give `bin_boundaries`, or `num_bins` for `adapt`; received "
                f"bin_boundaries={bin_boundaries!r}, num_bins={num_bins!r}"
            )
        self.bin_boundaries = None if bin_boundaries is None else self._ascending(bin_boundaries)
        self.num_bins = None if num_bins is None else positive_integer(num_bins, "num_bins")
        self.epsilon = number(epsilon, "epsilon", 0.0)
        self.output_mode = _mode(output_mode, ("int", *_MODES))

    @staticmethod
    def _ascending(given: Any) -> list[float]:
        if not isinstance(given, Sequence | np.ndarray):
            raise TypeError(f"`bin_boundaries` must be numbers; received {given!r}")
        boundaries = [number(n, "bin_boundaries") for n in given]
        if any(after < before for before, after in pairwise(boundaries)):
            raise ValueError(f"`bin_boundaries` must ascend; received {given!r}")
        return boundaries

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments without ``trainable``, which Keras' layer does not accept."""
        config = super().get_config()
        del config["trainable"]
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the layer of a configuration. After :meth:`adapt` it has boundaries in addition to `num_bins`."""
        found = config.get("bin_boundaries") if isinstance(config, dict) and config.get("num_bins") else None
        layer: Self = super().from_config(config if found is None else {**config, "bin_boundaries": None})
        if found is not None:
            layer.bin_boundaries = layer._ascending(found)
        return layer

    def adapt(self, data: Any, steps: int | None = None) -> None:
        """Set the boundaries to quantiles of data, interpolated linearly (method "interpolated_inverted_cdf" of NumPy).

        There are at most as many intervals as numbers.

        Parameters
        ----------
        data : array-like, PyDataset, or iterable of batches
            As in :meth:`Normalization.adapt`. All numbers are held in memory at once, in float32.
        steps : int, optional
            The maximum number of batches to read; default: all.

        Raises
        ------
        ValueError
            The layer was made with `bin_boundaries`; `data` is empty or has numbers that are not finite. Nothing has
            changed.

        Examples
        --------
        >>> layer = Discretization(num_bins=4)
        >>> layer.adapt([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
        >>> layer.bin_boundaries
        [1.0, 3.0, 5.0]
        """
        if self.num_bins is None:
            raise ValueError(f"layer '{self.name}' has `bin_boundaries` as an argument: give `num_bins` for `adapt`")
        most = None if steps is None else positive_integer(steps, "steps")
        with np.errstate(over="ignore"):  # overflow to infinity raises below
            parts = [x.astype(np.float32).ravel() for x in islice(batches_in(data), most)]
        values = np.concatenate(parts) if parts else np.empty(0, np.float32)
        if not values.size or not np.isfinite(values).all():
            what = "none" if not values.size else "some that are not"
            raise ValueError(f"`data` must have numbers that are finite in float32; received {what}")
        bins = min(self.num_bins, values.size)
        shares = np.arange(1, bins) / bins
        found = np.quantile(values.astype(np.float64), shares, method="interpolated_inverted_cdf")
        self.bin_boundaries = found.astype(np.float32).tolist()

    def call(self, inputs: Array) -> Array:
        """Return interval numbers in int32, or vectors in the compute dtype, once there are boundaries."""
        if self.bin_boundaries is None:
            raise ValueError(f"layer '{self.name}' has no boundaries yet: call `adapt` first, or give `bin_boundaries`")
        x = ops.cast(inputs, F32) if dtypes.is_float(inputs.dtype) else inputs
        numbers: Array = np.asarray(np.digitize(x, np.asarray(self.bin_boundaries, F32))).astype(np.int32)
        if self.output_mode == "int":
            return numbers
        return encode_categories(numbers, len(self.bin_boundaries) + 1, self.output_mode, self.compute_dtype)

    def specs_after(self, inputs: Spec) -> Spec:
        """Return the spec of the outputs; before :meth:`adapt`, as if there were `num_bins` intervals."""
        if self.output_mode == "int":
            return Spec(inputs.shape, dtypes.parse("int32"))
        depth = self.num_bins if self.bin_boundaries is None else len(self.bin_boundaries) + 1
        shape = inputs.shape or (1,)
        if self.output_mode != "one_hot":
            return Spec((*shape[:1], *shape[2:], depth) if len(shape) > 1 else (depth,), self._compute)
        return Spec((*(shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape), depth), self._compute)


def _mode(value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"`output_mode` must be one of {', '.join(allowed)}; received {value!r}")
    return str(value)


def encode_categories(indices: Array, depth: int, mode: str, dtype: str, weights: Array | None = None) -> Array:
    """Encode indices below `depth` as vectors of length `depth`; `weights` are the weights of the indices."""
    if mode == "one_hot" and indices.ndim > 1 and indices.shape[-1] == 1:
        indices = indices[..., 0]
    each = ops.take_rows(np.eye(depth, dtype=F32), np.atleast_1d(indices), F32)
    if weights is not None:
        each = ops.multiply(each, ops.cast(np.atleast_1d(weights), F32)[..., np.newaxis])
    if mode != "one_hot":
        axis = 1 if each.ndim > 2 else 0
        each = ops.sum(each, axis=axis)
        each = ops.minimum(each, 1.0) if mode == "multi_hot" else each
    return ops.cast(each, dtype)
