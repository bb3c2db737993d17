"""Layers that crop the borders, pad them with zeros, or repeat each position."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.layers.shapes import Shape
from mp_core.layers.spatial import Spatial, with_example
from mp_core.ops.spatial import data_format_of, sizes_of
from mp_core.utilities.arguments import integer

__all__ = [
    "Cropping1D", "Cropping2D", "Cropping3D", "UpSampling1D", "UpSampling2D", "UpSampling3D", "ZeroPadding1D",
    "ZeroPadding2D", "ZeroPadding3D",
]  # fmt: skip

_WIDTHS = """

    Parameters
    ----------
    {name} : int, or sequence of (int or pair of int)
        Widths (before, after) for each spatial axis; one number is used for both. With one spatial axis, a single pair.
    data_format : {{"channels_last", "channels_first"}}, optional
    **kwargs : those of :class:`Layer`
    """
_SIZES = """

    Parameters
    ----------
    size : int or sequence of int
        How often to repeat each position along each spatial axis.
    data_format : {"channels_last", "channels_first"}, optional
    interpolation : {"nearest"}
        mp_core has none of Keras' other values.
    **kwargs : those of :class:`Layer`
    """


class _AtBorders(Spatial):
    """The base of cropping and padding: a width before and after each spatial axis."""

    _arrays = ("inputs",)
    _width: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._options = cls._repr_arguments = (cls._width,)
        if cls._rank > 1 or cls._width == "padding":  # as in Keras' configurations
            cls._options += ("data_format",)
        before, after = {"cropping": (4, 2), "padding": (2, 4)}[cls._width]
        cls.__doc__ = with_example(cls, _WIDTHS.format(name=cls._width), "1", before, after)

    def _set_widths(self, value: Any, data_format: str | None) -> None:
        self.data_format = data_format_of(data_format)
        setattr(self, self._width, _widths_of(value, self._width, self._rank))

    def _all_widths(self) -> list[tuple[int, int]]:
        """Return the widths of all axes, including (0, 0) for batch and channels."""
        widths = getattr(self, self._width)
        spatial = [widths] if self._rank == 1 else list(widths)
        none = (0, 0)
        return [none, none, *spatial] if self.data_format == "channels_first" else [none, *spatial, none]

    def _shape_after(self, shape: Shape) -> Shape | None:
        if len(shape) != self._rank + 2:
            return None
        sign, widths = 1 if self._width == "padding" else -1, self._all_widths()
        found = tuple(n if n is None else n + sign * sum(pair) for n, pair in zip(shape, widths, strict=True))
        cut = (pair for pair in zip(found, widths, strict=True) if sign < 0 and any(pair[1]))
        return None if any(n is not None and n <= 0 for n, _ in cut) else found


def _widths_of(value: Any, argument: str, rank: int) -> Any:
    """Return a pair of widths for each spatial axis; with one axis, the pair itself."""
    each = value if rank > 1 and isinstance(value, Sequence) else (value,) * rank
    pairs = [tuple(pair) if isinstance(pair, Sequence) else (pair, pair) for pair in each]
    widths = tuple(tuple(integer(n, argument) for n in pair) for pair in pairs)
    if any(len(pair) != 2 or min(pair) < 0 for pair in widths) or len(widths) != rank:
        raise ValueError(f"`{argument}` must be integers from 0 on, one or two for each axis; received {value!r}")
    return widths[0] if rank == 1 else widths


class _Cropping(_AtBorders):
    _width = "cropping"

    _sample_independence = "always"

    def __init__(self, cropping: Any = 1, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._set_widths(cropping, data_format)

    def call(self, inputs: Array) -> Array:
        """Return a view of the inputs."""
        self._check_rank(inputs)
        widths = self._all_widths()
        if any(sum(pair) >= n for n, pair in zip(inputs.shape, widths, strict=True) if sum(pair)):
            raise ValueError(
                f"The inputs of layer '{self.name}' must be larger than cropping={self.cropping}; "  # type: ignore[attr-defined]
                f"received shape {inputs.shape}"
            )
        return inputs[tuple(slice(a, n - b) for n, (a, b) in zip(inputs.shape, widths, strict=True))]


class _ZeroPadding(_AtBorders):
    _width = "padding"

    _sample_independence = "always"

    def __init__(self, padding: Any = 1, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._set_widths(padding, data_format)

    def call(self, inputs: Array) -> Array:
        """Return a new array."""
        self._check_rank(inputs)
        return ops.pad_zeros(inputs, self._all_widths())


class _UpSampling(Spatial):
    _sample_independence = "always"
    _arrays = ("inputs",)
    _repr_arguments = ("size",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._options = {1: ("size",), 2: ("size", "data_format", "interpolation"), 3: ("size", "data_format")}[
            cls._rank
        ]
        cls.__doc__ = with_example(cls, _SIZES, "2", 2, 4)

    def __init__(
        self,
        size: int | Sequence[int] = 2,
        data_format: str | None = None,
        interpolation: str = "nearest",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if interpolation != "nearest":
            raise ValueError(f"`interpolation` must be 'nearest'; received {interpolation!r}")
        sizes = sizes_of(size, "size", self._rank)
        self.size = sizes[0] if self._rank == 1 else sizes
        self.data_format = data_format_of(data_format)
        self.interpolation = interpolation

    def call(self, inputs: Array) -> Array:
        """Return a new array."""
        self._check_rank(inputs)
        pairs = list(zip(inputs.shape, self._factors(), strict=True))
        apart = inputs.reshape([n for length, _ in pairs for n in (length, 1)])
        repeated = np.broadcast_to(apart, [n for pair in pairs for n in pair])
        outputs: Array = repeated.reshape([length * factor for length, factor in pairs])
        return outputs

    def _factors(self) -> list[int]:
        """Return how often to repeat along each axis, including batch and channels."""
        sizes = [self.size] if isinstance(self.size, int) else list(self.size)
        return [1, 1, *sizes] if self.data_format == "channels_first" else [1, *sizes, 1]

    def _shape_after(self, shape: Shape) -> Shape | None:
        if len(shape) != self._rank + 2:
            return None
        return tuple(n if n is None else n * factor for n, factor in zip(shape, self._factors(), strict=True))


class Cropping1D(_Cropping):
    """Crop both ends of sequences (batch, steps, channels)."""

    _rank = 1


class Cropping2D(_Cropping):
    """Crop the borders of images (batch, height, width, channels)."""

    _rank = 2

    def __init__(self, cropping: Any = 0, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(cropping, data_format, **kwargs)


class Cropping3D(_Cropping):
    """Crop the borders of volumes (batch, depth, height, width, channels)."""

    _rank = 3


class ZeroPadding1D(_ZeroPadding):
    """Pad both ends of sequences (batch, steps, channels) with zeros."""

    _rank = 1


class ZeroPadding2D(_ZeroPadding):
    """Pad the borders of images (batch, height, width, channels) with zeros."""

    _rank = 2


class ZeroPadding3D(_ZeroPadding):
    """Pad the borders of volumes (batch, depth, height, width, channels) with zeros."""

    _rank = 3


class UpSampling1D(_UpSampling):
    """Repeat each step of sequences (batch, steps, channels)."""

    _rank = 1


class UpSampling2D(_UpSampling):
    """Repeat each row and column of images (batch, height, width, channels)."""

    _rank = 2


class UpSampling3D(_UpSampling):
    """Repeat each position of volumes (batch, depth, height, width, channels)."""

    _rank = 3
