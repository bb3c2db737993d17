"""Layers that shift and scale each element: by numbers, by statistics, to unit length."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core import ops
from mp_core.arrays import F32, F64, Array, asarray
from mp_core.layers.elementwise import floating, rounded
from mp_core.layers.layer import Layer
from mp_core.layers.shapes import kept
from mp_core.utilities.arguments import axes_of, axis_or_axes, boolean

__all__ = ["Normalization", "Rescaling", "UnitNormalization"]


class Rescaling(Layer):
    """``inputs * scale + offset`` in the compute dtype, integers too.

    Parameters
    ----------
    scale, offset : float or array-like
        An array has a number for each channel, the last axis.
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> Rescaling(1 / 255)(np.array([0, 255], np.uint8))
    array([0., 1.], dtype=float32)
    """

    _arrays = ("inputs",)
    supports_masking = True
    _options = _told = ("scale", "offset")

    def __init__(self, scale: ArrayLike, offset: ArrayLike = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale, self.offset = _plain(scale, "scale"), _plain(offset, "offset")

    def call(self, inputs: Array) -> Array:
        """Return the function of the inputs, in float32 rounded once."""

        def scaled(x: Array) -> Any:
            return x * np.asarray(self.scale, x.dtype) + np.asarray(self.offset, x.dtype)

        return rounded(scaled, inputs, dtype=self._compute)


class Normalization(Layer):
    """``(inputs - mean) / sqrt(variance)`` in the compute dtype, by statistics of data.

    Parameters
    ----------
    axis : int, sequence of int or None
        The axes whose places have statistics each; None: all inputs share one.
    mean, variance : float or array-like, optional
        The statistics; without them they are variables, as Keras' ``adapt`` leaves them in files.
    invert : bool
        Return ``inputs * sqrt(variance) + mean``.
    **kwargs
        Those of :class:`Layer`.

    Raises
    ------
    ValueError
        One of `mean` and `variance` is there alone, or has another shape than the other, or more axes than `axis`
        names.

    Examples
    --------
    >>> Normalization(mean=3.0, variance=4.0)(np.array([[3.0], [7.0]]))
    array([[0.],
           [2.]], dtype=float32)
    """

    _arrays = ("inputs",)
    supports_masking = True
    _options = ("axis", "mean", "variance", "invert")
    _told = ("axis",)
    _LEAST = 1e-7  # of a standard deviation: Keras' epsilon

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
        self.mean = None if mean is None else _plain(mean, "mean")
        self.variance = None if variance is None else _plain(variance, "variance")
        shapes = [() if given is None else np.shape(given) for given in (self.mean, self.variance)]
        if (mean is None) != (variance is None) or shapes[0] != shapes[1] or len(shapes[0]) > len(self.axis):
            raise ValueError(
                f"`mean` and `variance` must be both None, or have one shape with at most {len(self.axis)} axes; "
                f"received mean={mean!r} and variance={variance!r}"
            )

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the statistics, unless they are arguments."""
        rank = len(input_shape)
        kept = sorted(axis % rank for axis in self.axis if -rank <= axis < rank)
        if len(set(kept)) < len(self.axis) or any(input_shape[axis] is None for axis in kept):
            raise ValueError(
                f"`axis` must name different axes with lengths; received axis={self.axis}, input_shape={input_shape}"
            )
        self._broadcast = tuple(input_shape[axis] if axis in kept else 1 for axis in range(rank))
        if self.mean is None:
            shape = tuple(input_shape[axis] for axis in kept)
            self.adapt_mean = self._statistic("mean", shape, "zeros")
            self.adapt_variance = self._statistic("variance", shape, "ones")
            self.count = self.add_weight((), initializer="zeros", dtype="int32", trainable=False, name="count")
        elif not self._fits(np.shape(self.mean), [input_shape[axis] for axis in kept]):
            raise ValueError(f"statistics of shape {np.shape(self.mean)} do not fit inputs of shape {input_shape}")

    def adapt(self, data: ArrayLike) -> None:
        """Take the mean and the variance of data, computed in float64, in the place of those of before.

        Parameters
        ----------
        data : array-like
            The first axis is that of samples.

        Raises
        ------
        ValueError
            The layer has its statistics as arguments, or there are no data.

        Examples
        --------
        >>> layer = Normalization()
        >>> layer.adapt([[1.0], [3.0]])
        >>> layer(np.array([[3.0]]))
        array([[1.]], dtype=float32)
        """
        if self.mean is not None:
            raise ValueError(
                f"layer '{self.name}' has `mean` and `variance` as arguments: `adapt` would change nothing"
            )
        x = np.asarray(data, np.float64)
        if not x.size:
            raise ValueError("`data` must have at least one sample; received none")
        if not self.built:
            self.build((None, *x.shape[1:]))
        kept = {axis % x.ndim for axis in self.axis}
        others = tuple(axis for axis in range(x.ndim) if axis not in kept)
        mean, variance = x.mean(axis=others), x.var(axis=others)
        self.adapt_mean.assign(mean.reshape(self.adapt_mean.shape))
        self.adapt_variance.assign(variance.reshape(self.adapt_variance.shape))

    @staticmethod
    def _fits(shape: Sequence[int], lengths: Sequence[Any]) -> bool:
        """Whether statistics, from their last axis on, are those of the axes with these lengths."""
        return all(n in (1, length) for n, length in zip(reversed(shape), reversed(lengths), strict=False))

    def _statistic(self, name: str, shape: tuple[Any, ...], initializer: str) -> Any:
        return self.add_weight(shape, initializer=initializer, trainable=False, autocast=False, name=name)

    def call(self, inputs: Array) -> Array:
        """Return the function of the inputs, in float32 rounded once."""
        if inputs.ndim != len(self._broadcast) or any(
            wanted not in (1, n) for n, wanted in zip(inputs.shape, self._broadcast, strict=True)
        ):
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: statistics have shape '
                f"{self._broadcast}, but received input with shape {inputs.shape}"
            )
        wide = F64 if inputs.dtype == F64 else F32
        mean = self._read(self.mean, wide, "adapt_mean")
        deviation = np.maximum(np.sqrt(self._read(self.variance, wide, "adapt_variance")), wide.type(self._LEAST))

        def normalized(x: Array) -> Any:
            return x * deviation + mean if self.invert else (x - mean) / deviation

        return rounded(normalized, inputs, dtype=self._compute)

    def _read(self, given: Any, wide: Any, variable: str) -> Array:
        """Return a statistic with the axes of the inputs."""
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


class UnitNormalization(Layer):
    """The inputs divided by their Euclidean norm along some axes.

    Parameters
    ----------
    axis : int or sequence of int
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> UnitNormalization()(np.array([[3.0, 4.0]]))
    array([[0.6, 0.8]], dtype=float32)
    """

    _arrays = ("inputs",)
    supports_masking = True
    _shape_after = kept
    _options = _told = ("axis",)
    _LEAST = 1e-12  # of a norm, as in Keras

    def __init__(self, axis: int | Sequence[int] = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = axis_or_axes(axis)

    def call(self, inputs: Array) -> Array:
        """Return the function of the inputs, in float32 rounded once."""
        axes = axes_of(self.axis)
        return rounded(lambda x: unit(x, axes, self._LEAST), floating(inputs, self._compute))


def unit(x: Array, axes: Any, least: float) -> Any:
    """Return `x` divided by its norm along `axes`, or by `least` if that is larger."""
    return x / np.maximum(np.sqrt(ops.sum(x * x, axes, keepdims=True)), x.dtype.type(least))


def _plain(value: Any, argument: str) -> Any:
    """Return a number as a float, and an array, or Keras' serialized one, as lists of them."""
    if isinstance(value, dict) and value.get("class_name") == "__numpy__":
        value = (value.get("config") or {}).get("value")
    array = asarray(value, argument)
    if array.size == 0 or not all(math.isfinite(n) for n in array.astype(np.float64).ravel()):
        raise ValueError(f"`{argument}` must be finite numbers; received {value!r}")
    return array.astype(np.float64).tolist()
