"""Pooling into a given number of windows per axis."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from mp_core import ops
from mp_core.arrays import Array
from mp_core.layers.spatial import Spatial, with_example
from mp_core.ops.elementwise import concatenated, floating, rounded
from mp_core.ops.spatial import data_format_of, sizes_of

__all__ = [
    "AdaptiveAveragePooling1D", "AdaptiveAveragePooling2D", "AdaptiveAveragePooling3D", "AdaptiveMaxPooling1D",
    "AdaptiveMaxPooling2D", "AdaptiveMaxPooling3D",
]  # fmt: skip

_PARAMETERS = """

    Parameters
    ----------
    output_size : int or sequence of int
        The number of windows along each axis.
    data_format : {"channels_last", "channels_first"}, optional
    **kwargs : those of :class:`Layer`
    """


class _Adaptive(Spatial):
    """The base of adaptive pooling: window i of n spans ``[i * length // n, ceil((i + 1) * length / n))``."""

    _sample_independence = "always"
    _arrays = ("inputs",)
    _repr_arguments = ("output_size",)
    _options = ("output_size", "data_format")
    _function: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__doc__ = with_example(cls, _PARAMETERS, "2", 6, 2)

    def __init__(self, output_size: int | Sequence[int], data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.output_size = sizes_of(output_size, "output_size", self._rank)
        self.data_format = data_format_of(data_format)

    def call(self, inputs: Array) -> Array:
        """Return the outputs, with the axes of the inputs."""
        self._check_rank(inputs)
        first = 2 if self.data_format == "channels_first" else 1
        if 0 in inputs.shape[first : first + self._rank]:
            raise ValueError(f"The inputs of layer '{self.name}' have an empty spatial axis: shape {inputs.shape}")
        return rounded(lambda x: self._pooled(x, first), floating(inputs, self._compute))

    def _pooled(self, x: Array, first: int) -> Array:
        """Pool one axis after the other. Windows are boxes, so a mean of means is the mean of the window."""
        for axis, size in enumerate(self.output_size, first):
            length = x.shape[axis]
            spans = [slice(i * length // size, -(-(i + 1) * length // size)) for i in range(size)]
            windows = (x[(slice(None),) * axis + (span,)] for span in spans)
            x = concatenated(*(type(self)._function(window, axis, keepdims=True) for window in windows), axis=axis)
        return x


class _Max(_Adaptive):
    _function = staticmethod(ops.max)


class _Average(_Adaptive):
    _function = staticmethod(ops.mean)


class AdaptiveMaxPooling1D(_Max):
    """The maximum of each window of sequences (batch, steps, channels)."""

    _rank = 1


class AdaptiveMaxPooling2D(_Max):
    """The maximum of each window of images (batch, height, width, channels)."""

    _rank = 2


class AdaptiveMaxPooling3D(_Max):
    """The maximum of each window of volumes (batch, depth, height, width, channels)."""

    _rank = 3


class AdaptiveAveragePooling1D(_Average):
    """The mean of each window of sequences (batch, steps, channels), accumulated in float32."""

    _rank = 1


class AdaptiveAveragePooling2D(_Average):
    """The mean of each window of images (batch, height, width, channels), accumulated in float32."""

    _rank = 2


class AdaptiveAveragePooling3D(_Average):
    """The mean of each window of volumes (batch, depth, height, width, channels), accumulated in float32."""

    _rank = 3
