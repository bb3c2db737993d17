"""The tensors that a part of a network has in files: the name of each, and what of the part holds it.

Reading a folder and writing one are the same walk over the slots of all parts: :mod:`mp_core.models.weights`.
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
    """A tensor of files, and the variable that holds its numbers.

    Attributes
    ----------
    path : str
        The layer, of which the architecture knows how the names of its tensors begin.
    part : str
        How the name of the tensor ends: ``"weight"`` or ``"bias"``.
    variable : AutoCastVariable
    rows : int or None
        How many rows the tensor has, where the variable may have fewer: it holds the first ones.
    """

    path: str
    part: str
    variable: AutoCastVariable
    rows: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        own: tuple[int, ...] = self.variable.shape
        return own if self.rows is None else (self.rows, *own[1:])

    def read(self, weights: "Weights") -> None:
        """Give the layer the tensor."""
        self.variable.assign(weights.take(self.path, self.part, *self.shape)[: self.variable.shape[0]])

    def written(self, weights: "Weights") -> dict[str, Tensor | None]:
        """Return what the layer holds, by the names of tensors in the file; None for one that is there no more."""
        own: Array = self.variable.numpy()
        if self.shape != own.shape:
            rest = weights.take(self.path, self.part, *self.shape)[len(own) :]
            own = np.concatenate([own, ops.cast(rest, own.dtype)])
        return {weights.name(self.path, self.part): own}


class Matrix:
    """The matrix that a layer multiplies by, or whose rows it looks up: floats, or codes of the scheme of its policy.

    Parameters
    ----------
    layer : MatrixLayer

    Attributes
    ----------
    path, part, shape
        Those of :class:`Slot`.
    """

    part = "weight"

    def __init__(self, layer: MatrixLayer) -> None:
        self._layer, self.path = layer, str(layer.path)
        self.shape = layer.form.geometry.lines_shape

    def read(self, weights: "Weights") -> None:
        """Give the layer the tensor. Codes of the scheme of its policy stay as they are."""
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

    def written(self, weights: "Weights") -> dict[str, Tensor | None]:
        """Return the matrix, and the fixed scales of inputs beside it, as :meth:`Slot.written` does."""
        name, inputs = weights.name(self.path, self.part), self._layer.inputs
        beside = (None, None) if inputs is None else (inputs.scale, inputs.zero_point)
        return {name: self._layer.matrix, f"{name}.inputs_scale": beside[0], f"{name}.inputs_zero_point": beside[1]}
