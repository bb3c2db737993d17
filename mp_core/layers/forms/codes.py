"""mp_core's own form: codes, scales and zero points of a QuantizedArray, in the order of files: (outputs, inputs)."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, I8, Array, asarray
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.arrays.quantization.array import pack_pairs
from mp_core.arrays.quantization.recipe import positive_and_finite
from mp_core.layers.forms.form import Form, Geometry, Variable, check_finite
from mp_core.layers.forms.products import Inputs
from mp_core.ops import PackedMatrix
from mp_core.ops.lookup import has_rows
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.policies.dtype_policies.schemes import Scheme
from mp_core.utilities.arguments import boolean

__all__ = ["Codes"]


class Codes(Form):
    """Codes of a :class:`~mp_core.dtype_policies.Scheme`: ``x ~ scale * (q - zero_point)``.

    For n outputs and k inputs, or a table of n rows and k columns, the variables are

    - ``codes``, shape (n, k); 4-bit codes are stored as uint8, two to a byte along k, shape (n, ceil(k / 2));
    - ``scale``, float32, and for asymmetric codes ``zero_point``, int8, of shape (n, 1), (n, groups) or (1, 1);
    - with fixed scales of inputs: ``inputs_scale``, float32, and ``inputs_zero_point``, int8, of shape (k,); for
      float8 only ``inputs_scale``, shape (). The codes then stand for the weights times the scales of their inputs.

    Examples
    --------
    >>> from mp_core.layers import Dense
    >>> layer = Dense(2, dtype="int8/weight_only_from_float32")
    >>> layer.build((None, 3))
    >>> layer.set_matrix(np.float32([[1, 2, 3], [4, 5, 6]]))
    >>> type(layer.form).__name__, {name: x.shape for name, x in layer.form.variables_of().items()}
    ('Codes', {'codes': (2, 3), 'scale': (2, 1)})
    """

    name = "codes"

    def __init__(self, geometry: Geometry, policy: DTypePolicy, config: dict[str, Any] | None = None) -> None:
        super().__init__(geometry, policy)
        zeros = not self.scheme.symmetric if config is None else boolean(config.get("zero_point"), "zero_point")
        self.zero_point = zeros and not self._codes.is_float
        self.rounds_bias = self.fixes_inputs and self._codes.is_float
        (_, k), size = geometry.lines_shape, self.scheme.group_size
        if self.scheme.has_whole_blocks and size is not None and k % size:
            what = "columns" if geometry.is_table else "inputs"
            raise ValueError(
                f"layer '{geometry.owner}' must have a multiple of {size} {what} for '{self.scheme}'; received {k}"
            )

    @classmethod
    def makes(cls, policy: DTypePolicy) -> bool:
        return policy.scheme is not None

    def config(self) -> dict[str, Any]:
        """Return whether there are zero points."""
        return {"zero_point": self.zero_point}

    @property
    def scheme(self) -> Scheme:
        """The scheme of the policy."""
        assert self.policy.scheme is not None
        return self.policy.scheme

    @property
    def _codes(self) -> Any:
        return self.scheme.kind

    @property
    def fixes_inputs(self) -> bool:
        """Whether the scales of the inputs are fixed. Never for a table, which multiplies no inputs."""
        return self.scheme.inputs == "fixed" and not self.geometry.is_table

    def variables_of(self) -> dict[str, Variable]:
        """Return the variables for codes, scales and zero points, and for fixed scales of the inputs."""
        (n, k), size = self.geometry.lines_shape, self.scheme.group_size
        shape = (1, 1) if self.scheme.per == "tensor" else (n, 1 if size is None else -(-k // size))
        variables = {
            "codes": Variable((n, (k + 1) // 2 if self._codes.packed else k), self._codes.storage.name, "zeros"),
            "scale": Variable(shape, "float32", "ones"),
        }
        if self.zero_point:
            variables["zero_point"] = Variable(shape, "int8", "zeros")
        if self.fixes_inputs:
            variables["inputs_scale"] = Variable(() if self._codes.is_float else (k,), "float32", "ones")
            if not self._codes.is_float:
                variables["inputs_zero_point"] = Variable((k,), "int8", "zeros")
        return variables

    def check(self, floats: Array) -> None:
        """Raise ValueError if floats are not finite, or the scheme needs scales of inputs, which a sample must give."""
        if self.fixes_inputs:
            raise ValueError(
                f"layer '{self.geometry.owner}' cannot be quantized to '{self.scheme}' without scales of its inputs: "
                "`mp_core.calibrate` finds them in a sample"
            )
        super().check(floats)

    def encoded(self, floats: Array, dtype: str) -> dict[str, Array]:
        """Return codes and scales by the formulas of :func:`mp_core.quantize`."""
        return self.values_of(self.scheme.quantize(self.geometry.transposed(self.geometry.arranged(floats))))

    def values_of(self, q: QuantizedArray, inputs: Inputs | None = None) -> dict[str, Array]:
        """Return the values of the variables by name, without copying an array.

        `q`, of shape (n, k), and the fixed scales `inputs` must be those of the scheme, or ValueError is raised.
        """
        (n, k), is_float = self.geometry.lines_shape, self._codes.is_float
        if q.shape != (n, k):
            raise ValueError(f"it must be a matrix of shape {(n, k)}; received {q.shape}")
        if not self.scheme.describes(q):
            size = "" if q.group_size is None else f" in groups of {q.group_size}"
            raise ValueError(f"its policy names '{self.scheme}'; received codes of {q.dtype}{size}, axis={q.axis}")
        values = {"codes": q.values, "scale": _checked("`scale`", q.scale, q.scale.shape)}
        if self.zero_point:
            values["zero_point"] = np.zeros(q.scale.shape, np.int8) if q.zero_point is None else q.zero_point
        if self.fixes_inputs != (inputs is not None):
            wanted = "have the scales of inputs" if self.fixes_inputs else "be None"
            raise ValueError(f"`inputs` must {wanted} for '{self.scheme}'; received {inputs!r}")
        if inputs is not None:
            if not isinstance(inputs, tuple) or len(inputs) != 2:
                raise TypeError(f"`inputs` must be Inputs, a scale and a zero point; received {inputs!r}")
            scale, zero_point = inputs
            values["inputs_scale"] = _checked("`inputs.scale`", scale, () if is_float else (k,))
            if is_float != (zero_point is None):
                raise ValueError(f"`inputs.zero_point` must be {'None' if is_float else 'int8'} for '{self.scheme}'")
            if not is_float:
                values["inputs_zero_point"] = asarray(zero_point, "inputs.zero_point")
                if values["inputs_zero_point"].shape != (k,):
                    raise ValueError(f"`inputs.zero_point` must have shape {(k,)}; received {np.shape(zero_point)}")
        return values

    def _with_added(self, delta: Array, dtype: str) -> dict[str, Array]:
        """Return the values of the variables for the sum. Fixed scales of inputs, part of the codes, do not change."""
        lines = self.geometry.transposed(self.geometry.arranged(delta))
        total = dequantize(self.matrix) + (lines if self.inputs is None else lines * self.inputs.scale)
        check_finite(total, self.geometry)
        return self.values_of(self.scheme.quantize(total), self.inputs)

    @property
    def matrix(self) -> QuantizedArray:
        scale = self._scale("scale")
        zero = self.variables["zero_point"].numpy() if self.zero_point else None
        axis, size, shape = self.scheme.axis(), self.scheme.group_size, self.geometry.lines_shape
        return QuantizedArray(self.variables["codes"].numpy(), scale, zero, axis, size, self.scheme.dtype, shape)

    def free_packed(self, operand: PackedMatrix | Array, stamps: Mapping[str, object], begin: int = 0) -> None:
        """Free the codes, and the scales and zero points of scale groups, if `operand` holds the same values."""
        n, k = self.geometry.lines_shape
        if not isinstance(operand, PackedMatrix) or operand.dtype != self.scheme.dtype:
            return
        if k % 2 if self._codes.packed else self.zero_point:  # an unused half byte; codes minus their zero points
            return
        columns = slice(begin, begin + n)
        source = operand if begin == 0 and operand.shape[1] == n and has_rows(operand) else None
        make = partial(_codes_in, operand, columns, self._codes.packed)
        self.variables["codes"].give_back(stamps["codes"], make, source)
        for name in self.variables.keys() & ("scale", "zero_point"):
            if np.ndim(getattr(operand, name)) == 2:
                self.variables[name].give_back(stamps[name], partial(_scales_in, operand, columns, name))

    def take(self, indices: Array, compute: np.dtype[Any]) -> Array:
        """Return rows of a table; if its codes are freed, from the packed matrix that holds them."""
        codes = self.variables["codes"].source
        if not isinstance(codes, PackedMatrix) or compute.itemsize == 8:
            return super().take(indices, compute)
        rows: Array = ops.take_rows(codes, indices, compute)
        return rows

    @property
    def inputs(self) -> Inputs | None:
        """The fixed scales and zero points of the inputs; None if the scheme has none."""
        if not self.fixes_inputs:
            return None
        zero = self.variables.get("inputs_zero_point")
        return Inputs(self._scale("inputs_scale"), None if zero is None else zero.numpy())

    def _scale(self, name: str) -> Array:
        variable = self.variables[name]
        return _checked(f"`{name}` of layer '{self.geometry.owner}'", variable.numpy(), variable.shape)


def _codes_in(operand: PackedMatrix, columns: slice, in_pairs: bool) -> Array:
    """Return the codes of some columns of a packed matrix in the order of the variable: (outputs, inputs)."""
    lines = operand.unpack()[:, columns].T
    if not in_pairs:
        return np.ascontiguousarray(lines)
    codes = np.ascontiguousarray(lines.view(I8))
    pairs = np.empty((codes.shape[0], codes.shape[1] // 2), np.uint8)
    pack_pairs(codes, pairs)
    return pairs


def _scales_in(operand: PackedMatrix, columns: slice, name: str) -> Array:
    """Return the scales or zero points of scale groups of some columns, in the order of the variable."""
    return np.ascontiguousarray(getattr(operand, name)[:, columns].T)


def _checked(what: str, scale: Any, shape: tuple[int, ...]) -> Array:
    """Return scales as float32; raise ValueError unless they have that shape and are positive and finite."""
    array = asarray(scale, what.strip("`"))
    if array.shape != shape:
        raise ValueError(f"{what} must have shape {shape}; received {array.shape}")
    array = np.require(array if array.dtype == F32 else ops.cast(array, "float32"), requirements="C")
    if not positive_and_finite(array):
        raise ValueError(f"{what} must be positive and finite; received {array.min()} to {array.max()}")
    return array
