"""The base of layers whose inputs have places: one, two or three axes of them."""

from typing import Any, ClassVar

from mp_core.arrays import Array
from mp_core.layers.layer import Layer
from mp_core.utilities.docstrings import with_sections

__all__ = ["Spatial", "with_example"]

_EXAMPLE = """
    Examples
    --------
    >>> import numpy as np
    >>> {name}({arguments})(np.ones({given}, np.float32)).shape
    {found}
    """


def with_example(cls: Any, parameters: str, arguments: str, places: int, found: int | None) -> str:
    """Return the docstring of a layer with its parameters, and with an example if it is no base of others.

    Parameters
    ----------
    cls : type
        A subclass of :class:`Spatial`.
    parameters, arguments : str
        The section of the parameters; the arguments of the example.
    places, found : int
        How many places the inputs of the example have along each axis, and the outputs; None: these have no such axis.
    """
    text = with_sections(cls.__doc__, parameters)
    if not cls._rank:
        return text
    given, shape = ((1, *(() if n is None else (n,) * cls._rank), 3) for n in (places, found))
    return f"{text.rstrip()}\n{_EXAMPLE.format(name=cls.__name__, arguments=arguments, given=given, found=shape)}"


class Spatial(Layer):
    """A layer of inputs (batch, places ..., channels), or with the channels at axis 1."""

    _arrays = ("inputs",)
    _rank: ClassVar[int] = 0
    data_format: str

    def _check_rank(self, inputs: Array) -> None:
        if inputs.ndim != self._rank + 2:
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected {self._rank + 2} axes, '
                f"but received input with shape {inputs.shape}"
            )
