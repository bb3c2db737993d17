"""Pooling: the maximum or the mean of each window, or of all positions."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from mp_core import ops
from mp_core.arrays import Array
from mp_core.layers.masks import as_keep
from mp_core.layers.shapes import Shape, windowed_shape
from mp_core.layers.spatial import Spatial, with_example
from mp_core.ops.elementwise import floating, rounded
from mp_core.ops.spatial import data_format_of, sizes_of
from mp_core.utilities.arguments import boolean

__all__ = [
    "AveragePooling1D", "AveragePooling2D", "AveragePooling3D", "GlobalAveragePooling1D", "GlobalAveragePooling2D",
    "GlobalAveragePooling3D", "GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D", "MaxPooling1D",
    "MaxPooling2D", "MaxPooling3D",
]  # fmt: skip

_PARAMETERS = """

    Parameters
    ----------
    pool_size, strides : int or sequence of int
        The size of a window, and the distance between windows. `strides` default to `pool_size`.
    padding : {"valid", "same"}
        With "same", windows may exceed the inputs; only elements within the inputs count.
    data_format : {"channels_last", "channels_first"}, optional
    **kwargs : those of :class:`Layer`
    """
_GLOBAL_PARAMETERS = """

    Parameters
    ----------
    data_format : {"channels_last", "channels_first"}, optional
    keepdims : bool
        Whether to keep the spatial axes with length 1.
    **kwargs : those of :class:`Layer`
    """


class _Pooling(Spatial):
    _builds_nothing = True
    _sample_independence = "always"
    _arrays = ("inputs",)
    _repr_arguments = ("pool_size",)
    _options = ("pool_size", "strides", "padding", "data_format")
    _function: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__doc__ = with_example(cls, _PARAMETERS, "2", 4, 2)

    def __init__(
        self,
        pool_size: int | Sequence[int] = 2,
        strides: int | Sequence[int] | None = None,
        padding: str = "valid",
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if padding not in ("valid", "same"):
            raise ValueError(f"`padding` must be 'valid' or 'same'; received {padding!r}")
        self.pool_size = sizes_of(pool_size, "pool_size", self._rank)
        self.strides = self.pool_size if strides is None else sizes_of(strides, "strides", self._rank)
        self.padding = padding
        self.data_format = data_format_of(data_format)

    def call(self, inputs: Array) -> Array:
        """Return the outputs, with the axes of the inputs."""
        self._check_rank(inputs)
        places = self._channels_last(inputs).shape[1:-1]
        if self.padding == "valid" and any(n < size for n, size in zip(places, self.pool_size, strict=True)):
            raise ValueError(f"The inputs of layer '{self.name}', {inputs.shape}, are smaller than {self.pool_size}")
        x = floating(inputs, self._compute)
        outputs: Array = type(self)._function(x, self.pool_size, self.strides, self.padding, self.data_format)
        return outputs

    def _shape_after(self, shape: Shape) -> Shape | None:
        if len(shape) != self._rank + 2:
            return None
        channels = self._length_of_channels(shape)
        return windowed_shape(shape, self.pool_size, self.strides, self.padding, self.data_format, channels)


class _Max(_Pooling):
    _function = staticmethod(ops.max_pool)


class _Average(_Pooling):
    _function = staticmethod(ops.average_pool)


class MaxPooling1D(_Max):
    """The maximum of each window of sequences (batch, steps, channels)."""

    _rank = 1


class MaxPooling2D(_Max):
    """The maximum of each window of images (batch, height, width, channels)."""

    _rank = 2


class MaxPooling3D(_Max):
    """The maximum of each window of volumes (batch, depth, height, width, channels)."""

    _rank = 3


class AveragePooling1D(_Average):
    """The mean of each window of sequences (batch, steps, channels), accumulated in float32."""

    _rank = 1


class AveragePooling2D(_Average):
    """The mean of each window of images (batch, height, width, channels), accumulated in float32."""

    _rank = 2


class AveragePooling3D(_Average):
    """The mean of each window of volumes (batch, depth, height, width, channels), accumulated in float32."""

    _rank = 3


class _Global(Spatial):
    _builds_nothing = True
    _sample_independence = "always"
    _arrays = ("inputs",)
    _options = ("data_format", "keepdims")
    _function: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__doc__ = with_example(cls, _GLOBAL_PARAMETERS, "", 4, None)

    def __init__(self, data_format: str | None = None, keepdims: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format = data_format_of(data_format)
        self.keepdims = boolean(keepdims, "keepdims")

    @property
    def _spatial_axes(self) -> tuple[int, ...]:
        first = 1 if self.data_format == "channels_last" else 2
        return tuple(range(first, first + self._rank))

    def _shape_after(self, shape: Shape) -> Shape | None:
        if len(shape) != self._rank + 2 or 0 in [shape[axis] for axis in self._spatial_axes]:
            return None
        kept = ((axis, 1 if axis in self._spatial_axes else length) for axis, length in enumerate(shape))
        return tuple(length for axis, length in kept if self.keepdims or axis not in self._spatial_axes)

    def call(self, inputs: Array) -> Array:
        """Return the outputs, shape (batch, channels), or with spatial axes of length 1 if `keepdims`."""
        self._check_rank(inputs)
        if 0 in [inputs.shape[axis] for axis in self._spatial_axes]:
            raise ValueError(f"The inputs of layer '{self.name}' have an empty spatial axis: shape {inputs.shape}")
        x = floating(inputs, self._compute)
        outputs: Array = type(self)._function(x, self._spatial_axes, keepdims=self.keepdims)
        return outputs


class GlobalMaxPooling1D(_Global):
    """The maximum over all steps of sequences (batch, steps, channels)."""

    _rank = 1
    _function = staticmethod(ops.max)


class GlobalMaxPooling2D(_Global):
    """The maximum over all positions of images (batch, height, width, channels)."""

    _rank = 2
    _function = staticmethod(ops.max)


class GlobalMaxPooling3D(_Global):
    """The maximum over all positions of volumes (batch, depth, height, width, channels)."""

    _rank = 3
    _function = staticmethod(ops.max)


class GlobalAveragePooling2D(_Global):
    """The mean over all positions of images (batch, height, width, channels), accumulated in float32."""

    _rank = 2
    _function = staticmethod(ops.mean)


class GlobalAveragePooling3D(_Global):
    """The mean over all positions of volumes (batch, depth, height, width, channels), accumulated in float32."""

    _rank = 3
    _function = staticmethod(ops.mean)


class GlobalAveragePooling1D(_Global):
    """The mean over all steps of sequences (batch, steps, channels), accumulated in float32."""

    _rank = 1
    _sample_independence = "always"
    _arrays = ("inputs",)
    _function = staticmethod(ops.mean)
    supports_masking = True

    def call(self, inputs: Array, mask: ArrayLike | None = None) -> Array:
        """Return the outputs, shape (batch, channels): the mean over the steps where `mask`, (batch, steps), is True.

        If a row of the mask has no True, its outputs are NaN, as in Keras.
        """
        if mask is None:
            return super().call(inputs)
        self._check_rank(inputs)
        keep = as_keep(mask)
        (axis,) = self._spatial_axes
        if keep.shape != (inputs.shape[0], inputs.shape[axis]):
            raise ValueError(f"`mask` must have shape {(inputs.shape[0], inputs.shape[axis])}; received {keep.shape}")
        there = np.expand_dims(keep, 3 - axis)

        def mean_there(x: Array) -> Any:
            total, count = (
                ops.sum(np.where(there, part, 0), axis, keepdims=self.keepdims) for part in (x, x.dtype.type(1))
            )
            return total / count

        return rounded(mean_there, floating(inputs, self._compute))

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """Return None: the outputs have no steps to mask."""
        return None
