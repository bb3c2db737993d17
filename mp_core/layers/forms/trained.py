"""Quantization-aware training: floats that each product rounds to the codes that will run."""

from dataclasses import replace
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, cast
from mp_core.arrays.quantization import QuantizedArray, quantize, unpacked_codes
from mp_core.arrays.recorded import constant
from mp_core.core.names import Activation
from mp_core.layers.forms.codes import Codes
from mp_core.layers.forms.form import AddWeight, constant_initializer
from mp_core.layers.forms.products import Inputs
from mp_core.ops.convolution import rows_of_windows
from mp_core.ops.convolution_specs import Windows
from mp_core.ops.elementwise import compared, computed, where
from mp_core.ops.functions import exp
from mp_core.ops.gradients.custom import custom_gradient
from mp_core.policies.autocast import AutoCastVariable
from mp_core.utilities.docstrings import shown

__all__ = ["TrainedCodes", "rounded"]


_UNIT = F32.type(128)
"""Codes per unit of the variable ``weights``. It makes these as large as float weights, for which learning rates are
chosen."""


@shown("{}(np.float32([0.5, 1.5, 9.0]), np.float32(-7), np.float32(7))", "array([0., 2., 7.], dtype=float32)")
def rounded(x: Array, low: Array, high: Array) -> Array:
    """Round to nearest, ties to even, and clip; gradients pass straight through where nothing is clipped."""
    low, high, zero = (constant(np.asarray(bound, np.float32)) for bound in (low, high, 0.0))

    @custom_gradient
    def straight_through(x: Array) -> Any:
        whole = computed("rint", x, dtype=F32)
        inside = computed("minimum", computed("maximum", whole, low, dtype=F32), high, dtype=F32)
        is_inside = compared("equal", whole, inside, dtype=F32)
        return inside, lambda d: where(is_inside, d, zero, dtype=F32)

    result: Array = straight_through(x)
    return result


class TrainedCodes(Codes):
    """A :class:`Codes` form during training.

    It has these further variables:

    - ``weights``, float32, shape (n, k), trained: the codes are ``clip(rint(128 * weights) + zero_point)``.
    - ``growth``, float32, in the shape of ``scale``: scales are ``scale * exp(growth)``. ``inputs_growth`` does the
      same for fixed scales of inputs. Both are trained if scales are learned.
    """

    is_trained = True

    @classmethod
    def of(cls, form: Codes, add_weight: AddWeight, learn_scales: bool) -> "TrainedCodes":
        """Return a form that starts from codes whose inputs are floats or have fixed scales."""
        self, q = cls(form.geometry, form.policy, form.config()), form.matrix
        self.variables = dict(form.variables)
        codes = cast(unpacked_codes(q), F32) - self._zero_points()
        values = {"weights": codes / _UNIT, "growth": np.zeros(q.scale.shape, F32)}
        if form.inputs is not None:
            values["inputs_growth"] = np.zeros(np.shape(form.inputs.scale), F32)
        for name, value in values.items():
            self.variables[name] = add_weight(
                value.shape, constant_initializer(value), "float32", name == "weights" or learn_scales,
                autocast=False, name=name,
            )  # fmt: skip
        return self

    def multiply(
        self, rows: Array, bias: AutoCastVariable | None, activation: Activation | None, compute: Any,
        training: bool = False, windows: Windows | None = None, out_dtype: np.dtype[Any] | None = None,
    ) -> Array:  # fmt: skip
        """Return the product with the current codes; with fixed scales of inputs, rows are rounded by these."""
        x = ops.cast(rows if windows is None else rows_of_windows(rows, windows), F32)
        if self.fixes_inputs:
            zero = cast(self.variables["inputs_zero_point"].numpy(), F32)
            x = rounded(ops.divide(x, self._current_scale("inputs_")), -128 - zero, 127 - zero)
        lines = ops.multiply(self._current_codes(), self._element_scales())
        result: Array = ops.matmul(
            x,
            lines.swapaxes(0, 1),
            out_dtype=out_dtype or rows.dtype,
            bias=self.bias_vector(bias),
            activation=activation,
        )
        return result

    def _zero_points(self) -> Array:
        """Return the zero point of each element, in a shape that broadcasts."""
        if not self.zero_point:
            return np.zeros((), F32)
        zero, (_, k), size = self.variables["zero_point"].numpy(), self.geometry.lines_shape, self.scheme.group_size
        return cast(zero if size is None else np.take(zero, np.arange(k) // size, 1), F32)

    def _current_codes(self) -> Array:
        """Return the current codes minus their zero points."""
        zero = self._zero_points()
        units = ops.multiply(self.variables["weights"].numpy(), constant(np.asarray(_UNIT)))
        return rounded(units, self._codes.qmin - zero, self._codes.qmax - zero)

    def _current_scale(self, part: str = "") -> Array:
        """Return the current scales, ``scale * exp(growth)``."""
        scale, exponent = (self.variables[f"{part}{name}"].numpy() for name in ("scale", "growth"))
        result: Array = ops.multiply(constant(scale), exp(exponent))
        return result

    def _element_scales(self) -> Array:
        """Return the scale of each element, in a shape that broadcasts."""
        scale, (_, k), size = self._current_scale(), self.geometry.lines_shape, self.scheme.group_size
        if size is None:
            return scale
        places = np.arange(k) // size == np.arange(scale.shape[1])[:, np.newaxis]
        spread: Array = ops.matmul(scale, constant(places.astype(F32)))  # exact: each sum has one nonzero term
        return spread

    @property
    def matrix(self) -> QuantizedArray:
        """The current codes and scales."""
        q = super().matrix
        ones, scale = np.ones_like(q.scale), np.ascontiguousarray(self._current_scale())
        whole = quantize(
            self._current_codes(), axis=q.axis, dtype=q.dtype, group_size=q.group_size, scale=ones,
            zero_point=q.zero_point,
        )  # fmt: skip
        return replace(whole, scale=scale)

    @property
    def inputs(self) -> Inputs | None:
        """The current fixed scales of inputs; None if there are none."""
        before = super().inputs
        if before is None:
            return None
        return Inputs(np.ascontiguousarray(self._current_scale("inputs_")), before.zero_point)

    def current_values(self) -> dict[str, Array]:
        """Return name of the variable -> trained codes or scales; raise ValueError if a scale is no longer finite."""
        return self.values_of(self.matrix, self.inputs)

    def as_codes(self, values: dict[str, Array]) -> Codes:
        """Return the plain form with the variables before training, to which `values` are assigned."""
        form = Codes(self.geometry, self.policy, self.config())
        for name, value in values.items():
            form.variables[name] = self.variables[name]
            form.variables[name].assign(value)
        return form
