"""The base of layers whose inputs have places: one, two or three axes of them."""

from typing import ClassVar

from mp_core.arrays import Array
from mp_core.layers.layer import Layer

__all__ = ["Spatial"]


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
