"""The base of layers with one to three spatial axes."""

from typing import Any, ClassVar

import numpy as np

from mp_core.arrays import Array
from mp_core.layers.layer import Layer
from mp_core.layers.shapes import Shape
from mp_core.utilities.docstrings import with_sections

__all__ = ["Spatial", "with_example"]

_EXAMPLE = """
    Examples
    --------
    >>> import numpy as np
    >>> {name}({arguments})(np.ones({given}, np.float32)).shape
    {found}
    """


def with_example(cls: Any, parameters: str, arguments: str, before: int, after: int | None) -> str:
    """Return the docstring of a layer with its section *Parameters* and, unless it is a base class, an example.

    `arguments` are those of the constructor, and `before` and `after` the length of each spatial axis of inputs and
    outputs; None: outputs have no spatial axes.
    """
    text = with_sections(cls.__doc__, parameters)
    if not cls._rank:
        return text
    given, shape = ((1, *(() if n is None else (n,) * cls._rank), 3) for n in (before, after))
    return f"{text.rstrip()}\n{_EXAMPLE.format(name=cls.__name__, arguments=arguments, given=given, found=shape)}"


class Spatial(Layer):
    """The base of layers with inputs (batch, positions ..., channels), or with the channels at axis 1."""

    _arrays = ("inputs",)
    _rank: ClassVar[int] = 0
    data_format: str

    def _length_of_channels(self, shape: Shape) -> int | None:
        return shape[-1 if self.data_format == "channels_last" else 1]

    def _channels_last(self, inputs: Array) -> Array:
        """Return inputs with the channels moved to the last axis."""
        return np.moveaxis(inputs, 1, -1) if self.data_format == "channels_first" else inputs

    def _arranged(self, outputs: Array) -> Array:
        """Return outputs, whose channels are last, with the channels moved to the axis of `data_format`."""
        return np.moveaxis(outputs, -1, 1) if self.data_format == "channels_first" else outputs

    def _check_rank(self, inputs: Array) -> None:
        if inputs.ndim != self._rank + 2:
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected {self._rank + 2} axes, '
                f"but received input with shape {inputs.shape}"
            )
