"""Slots: the correspondence between a part of a network and its tensors in files.

:mod:`mp_core.models.weights` reads and writes folders by the same loop over the slots of all parts.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.arrays.quantization import QuantizedArray
from mp_core.layers.matrix import MatrixLayer
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.dtype_policies.map import policy_at

if TYPE_CHECKING:
    from mp_core.models.weights import Weights

__all__ = ["Matrix", "Slot", "Tensor"]

Tensor = Array | QuantizedArray


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor in files, and the variable with its numbers."""

    path: str  # The path of the layer. The architecture knows the start of its tensor names.
    part: str  # The end of the tensor's name, such as ``"weight"`` or ``"bias"``.
    variable: AutoCastVariable
    rows: int | None = None  # The number of rows of the tensor, if the variable may have only the first ones.

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        own: tuple[int, ...] = self.variable.shape
        return own if self.rows is None else (self.rows, *own[1:])

    def read(self, weights: "Weights") -> None:
        """Assign the tensor to the variable."""
        self.variable.assign(weights.take(self.path, self.part, *self.shape)[: self.variable.shape[0]])

    def to_save(self, weights: "Weights") -> dict[str, Tensor | None]:
        """Return name of a tensor in the file -> its new content; None: the tensor is dropped."""
        own: Array = self.variable.numpy()
        if self.shape != own.shape:
            rest = weights.take(self.path, self.part, *self.shape)[len(own) :]
            own = np.concatenate([own, ops.cast(rest, own.dtype)])
        return {weights.name(self.path, self.part): own}


class Matrix:
    """The slot of a layer's matrix or embedding table: floats, or codes of the scheme of the layer's policy."""

    part = "weight"

    def __init__(self, layer: MatrixLayer) -> None:
        self._layer, self.path = layer, str(layer.path)
        self.shape = layer.form.geometry.lines_shape

    def read(self, weights: "Weights") -> None:
        """Assign the tensor to the layer. Codes of the scheme of its policy are not converted."""
        scheme = policy_at(self._layer.dtype_policy, self.path).scheme
        value, inputs = weights.find(self.path, self.part, *self.shape)
        fits = isinstance(value, QuantizedArray) and scheme is not None and scheme.describes(value)
        is_fixed = scheme is not None and scheme.inputs == "fixed" and not self._layer.form.geometry.is_table
        if not fits or is_fixed != (inputs is not None):
            value, inputs = weights.take(self.path, self.part, *self.shape), None
        try:
            self._layer.set_matrix(value, inputs)
        except ValueError as error:
            raise ValueError(f"{weights.path}: tensor {weights.name(self.path, self.part)}: {error}") from None
        weights.drop_pages(self.path, self.part)

    def to_save(self, weights: "Weights") -> dict[str, Tensor | None]:
        """Return the matrix, and the fixed scales of inputs, as :meth:`Slot.to_save` does."""
        name, inputs = weights.name(self.path, self.part), self._layer.inputs
        scales = (None, None) if inputs is None else (inputs.scale, inputs.zero_point)
        return {name: self._layer.matrix, f"{name}.inputs_scale": scales[0], f"{name}.inputs_zero_point": scales[1]}
