"""Layers that shift and scale their inputs: by constants, by statistics of data, or to unit length."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core import ops
from mp_core.arrays import F32, F64, Array, asarray
from mp_core.layers.layer import Layer
from mp_core.layers.shapes import same_shape_along
from mp_core.layers.statistics import batches_in, moments_of
from mp_core.ops.elementwise import floating, rounded
from mp_core.ops.norms import over_length
from mp_core.policies.autocast.variable import assign_each
from mp_core.utilities.arguments import axes_of, axis_or_axes, boolean
from mp_core.utilities.docstrings import shown

__all__ = ["Normalization", "Rescaling", "UnitNormalization"]


@shown("{}(1 / 255)(np.array([0, 255], np.uint8))", "array([0., 1.], dtype=float32)")
class Rescaling(Layer):
    """``inputs * scale + offset`` in the compute dtype; integers are cast to it.

    Parameters
    ----------
    scale, offset : float or array-like
        An array has one number for each channel (last axis).
    **kwargs : those of :class:`Layer`
    """

    _sample_independence = "always"
    _arrays = ("inputs",)
    supports_masking = True
    _options = _repr_arguments = ("scale", "offset")

    def __init__(self, scale: ArrayLike, offset: ArrayLike = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale, self.offset = _as_lists(scale, "scale"), _as_lists(offset, "offset")

    def call(self, inputs: Array) -> Array:
        """Return the outputs, computed in float32 and rounded once."""

        def scaled(x: Array) -> Any:
            return x * np.asarray(self.scale, x.dtype) + np.asarray(self.offset, x.dtype)

        return rounded(scaled, inputs, dtype=self._compute)


@shown("{}(mean=3.0, variance=4.0)(np.array([[3.0], [7.0]]))", "array([[0.],\n       [2.]], dtype=float32)")
class Normalization(Layer):
    """``(inputs - mean) / sqrt(variance)`` in the compute dtype, with the mean and variance of a data set.

    Parameters
    ----------
    axis : int, sequence of int or None
        The axes along which statistics vary. None: one mean and one variance for all elements.
    mean, variance : float or array-like, optional
        The statistics. Without them, they are variables that :meth:`adapt` or a file sets.
    invert : bool
        Whether to return ``inputs * sqrt(variance) + mean`` instead.
    **kwargs : those of :class:`Layer`
    """

    _arrays = ("inputs",)
    supports_masking = True
    _options = ("axis", "mean", "variance", "invert")
    _repr_arguments = ("axis",)
    _LEAST = 1e-7  # smallest standard deviation: Keras' epsilon

    def __init__(
        self,
        axis: int | Sequence[int] | None = -1,
        mean: ArrayLike | None = None,
        variance: ArrayLike | None = None,
        invert: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.axis = () if axis is None else axes_of(axis, "an int, a sequence of int or None")
        self.invert = boolean(invert, "invert")
        self.input_mean = None if mean is None else _as_lists(mean, "mean")
        self.input_variance = None if variance is None else _as_lists(variance, "variance")
        shapes = [() if given is None else np.shape(given) for given in (self.input_mean, self.input_variance)]
        if (mean is None) != (variance is None) or shapes[0] != shapes[1] or len(shapes[0]) > len(self.axis):
            raise ValueError(
                f"`mean` and `variance` must be both None, or have one shape with at most {len(self.axis)} axes; "
                f"received mean={mean!r} and variance={variance!r}"
            )

    @property
    def mean(self) -> Array | None:
        """The means in a shape that broadcasts to the inputs, in the compute dtype; None before the layer is built."""
        return self._broadcast_statistic(self.input_mean, "adapt_mean")

    @property
    def variance(self) -> Array | None:
        """The variances in a shape that broadcasts to the inputs; None before the layer is built."""
        return self._broadcast_statistic(self.input_variance, "adapt_variance")

    def _broadcast_statistic(self, given: Any, variable: str) -> Array | None:
        if not self.built:
            return None
        return ops.cast(np.broadcast_to(self._read(given, F32, variable), self._broadcast), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"mean": self.input_mean, "variance": self.input_variance}

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the statistics, unless the constructor got them."""
        rank = len(input_shape)
        kept = sorted(axis % rank for axis in self.axis if -rank <= axis < rank)
        if len(set(kept)) < len(self.axis) or any(input_shape[axis] is None for axis in kept):
            raise ValueError(
                "`axis` must name different axes with known lengths; received "
                f"axis={self.axis}, input_shape={input_shape}"
            )
        self._broadcast: Any = tuple(input_shape[axis] if axis in kept else 1 for axis in range(rank))
        if self.input_mean is None:
            shape = tuple(input_shape[axis] for axis in kept)
            self.adapt_mean = self._statistic("mean", shape, "zeros")
            self.adapt_variance = self._statistic("variance", shape, "ones")
            self.count = self.add_weight((), initializer="zeros", dtype="int32", trainable=False, name="count")
        elif not self._fits(np.shape(self.input_mean), [input_shape[axis] for axis in kept]):
            raise ValueError(
                f"statistics of shape {np.shape(self.input_mean)} do not fit inputs of shape {input_shape}"
            )

    def adapt(self, data: Any) -> None:
        """Replace the statistics by the mean and variance of data, computed in float64.

        Parameters
        ----------
        data : array-like, PyDataset, or iterable of batches
            The first axis of an array is the batch axis. Each item of a list of arrays, a generator or a
            :class:`~mp_core.utils.PyDataset` is a batch: an array, or a tuple whose first item is an array.
            Batches may have different lengths.

        Raises
        ------
        ValueError
            The layer was made with `mean` and `variance`; there are no data; the shape of a batch does not fit the
            first batch or the layer. Nothing has changed.

        Examples
        --------
        >>> layer = Normalization()
        >>> layer.adapt([[1.0], [3.0]])
        >>> layer(np.array([[3.0]]))
        array([[1.]], dtype=float32)
        >>> layer.adapt(np.full((2, 1), number) for number in (1.0, 5.0))
        >>> layer.adapt_mean.numpy(), layer.adapt_variance.numpy()
        (array([3.], dtype=float32), array([4.], dtype=float32))
        """
        if self.input_mean is not None:
            raise ValueError(
                f"layer '{self.name}' has `mean` and `variance` as arguments: `adapt` would change nothing"
            )
        batches = batches_in(data)
        first = next(batches, None)
        if first is None:
            raise ValueError("`data` must have at least one batch; received none")
        rank = first.ndim
        others = tuple(axis for axis in range(rank) if axis not in {axis % rank for axis in self.axis})
        wanted = [None if axis in others else n for axis, n in enumerate(first.shape)]
        if self.built:
            wanted = [None if n == 1 and axis in others else n for axis, n in enumerate(self._broadcast)]
        found = moments_of((_checked_batch(x, wanted) for x in itertools.chain([first], batches)), others)
        if not self.built:
            self.build((None, *first.shape[1:]))
        shape = self.adapt_mean.shape
        assign_each(
            [self.adapt_mean, self.adapt_variance],
            [ops.cast(x.reshape(shape), self.adapt_mean.true_dtype) for x in (found.mean, found.variance)],
        )

    @staticmethod
    def _fits(shape: Sequence[int], lengths: Sequence[Any]) -> bool:
        """Return whether statistics of a shape broadcast to axes with these lengths."""
        return all(n in (1, length) for n, length in zip(reversed(shape), reversed(lengths), strict=False))

    def _statistic(self, name: str, shape: tuple[Any, ...], initializer: str) -> Any:
        return self.add_weight(shape, initializer=initializer, trainable=False, autocast=False, name=name)

    def call(self, inputs: Array) -> Array:
        """Return the outputs, computed in float32 and rounded once."""
        if inputs.ndim != len(self._broadcast) or any(
            wanted not in (1, n) for n, wanted in zip(inputs.shape, self._broadcast, strict=True)
        ):
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: statistics have shape '
                f"{self._broadcast}, but received input with shape {inputs.shape}"
            )
        wide = F64 if inputs.dtype == F64 else F32
        mean = self._read(self.input_mean, wide, "adapt_mean")
        deviation = np.maximum(np.sqrt(self._read(self.input_variance, wide, "adapt_variance")), wide.type(self._LEAST))

        def normalized(x: Array) -> Any:
            return x * deviation + mean if self.invert else (x - mean) / deviation

        return rounded(normalized, inputs, dtype=self._compute)

    def _read(self, given: Any, wide: Any, variable: str) -> Array:
        """Return a statistic in a shape that broadcasts to the inputs."""
        if given is None:
            return ops.cast(getattr(self, variable).numpy(), wide).reshape(self._broadcast)
        value = np.asarray(given, wide)
        rank = len(self._broadcast)
        shape = [1] * rank
        for axis, length in zip(
            sorted((axis % rank for axis in self.axis), reverse=True), value.shape[::-1], strict=False
        ):
            shape[axis] = length
        return value.reshape(shape)


@shown("{}()(np.array([[3.0, 4.0]]))", "array([[0.6, 0.8]], dtype=float32)")
class UnitNormalization(Layer):
    """The inputs divided by their Euclidean norm along `axis`.

    Parameters
    ----------
    axis : int or sequence of int
    **kwargs : those of :class:`Layer`
    """

    _builds_nothing = True
    _sample_independence = "always"
    _arrays = ("inputs",)
    supports_masking = True
    _shape_after = same_shape_along
    _options = _repr_arguments = ("axis",)
    _LEAST = 1e-12  # smallest norm, as in Keras

    def __init__(self, axis: int | Sequence[int] = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = axis_or_axes(axis)

    def call(self, inputs: Array) -> Array:
        """Return the outputs, computed in float32 and rounded once."""
        axes = axes_of(self.axis)
        return rounded(lambda x: over_length(x, axes, self._LEAST), floating(inputs, self._compute))


def _as_lists(value: Any, argument: str) -> Any:
    """Return a number as a float, and an array (or Keras' serialized one) as lists of floats."""
    if isinstance(value, dict) and value.get("class_name") == "__numpy__":
        value = (value.get("config") or {}).get("value")
    array = asarray(value, argument)
    if array.size == 0 or not all(math.isfinite(n) for n in array.astype(np.float64).ravel()):
        raise ValueError(f"`{argument}` must be finite numbers; received {value!r}")
    return array.astype(np.float64).tolist()


def _checked_batch(x: Array, lengths: Sequence[int | None]) -> Array:
    """Return a batch; raise ValueError unless it has these lengths. None means any length."""
    if x.ndim != len(lengths) or any(length not in (None, n) for n, length in zip(x.shape, lengths, strict=True)):
        raise ValueError(f"each batch of `data` must have shape {tuple(lengths)}; received shape {x.shape}")
    return x
