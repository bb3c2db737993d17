"""Our own form: the codes, scales and zero points of any QuantizedArray, lines-major as files have them."""

from dataclasses import replace
from typing import Any

import numpy as np

from mp_core import dtypes, ops
from mp_core.arguments import boolean
from mp_core.arrays import Array, asarray
from mp_core.autocast import AutoCastVariable
from mp_core.codes import CODES
from mp_core.core.names import Activation
from mp_core.core.quantize import positive_and_finite
from mp_core.dtype_policies import DTypePolicy
from mp_core.dtype_policies.schemes import Scheme
from mp_core.layers.forms.form import Form, Geometry, Inputs, Variable, floating, packed
from mp_core.ops import PackedMatrix
from mp_core.quantization import QuantizedArray, dequantize, for_each_element, quantize, unpacked_codes

__all__ = ["Codes", "multiply_float8", "weight_only_kernel"]


class Codes(Form):
    """Codes of a :class:`~mp_core.dtype_policies.Scheme`: ``x ~ scale * (q - zero_point)``.

    Its variables are ``codes`` (n, k), those of int4 two to a byte along k; ``scale`` and, where there are any,
    ``zero_point``, of shape (n, 1), (n, groups) or (1, 1); and for fixed inputs ``inputs_scale`` and
    ``inputs_zero_point`` (k,), of float8 ``inputs_scale`` () alone. With fixed inputs, the codes stand for the weights
    times the scales of their inputs.
    """

    name = "codes"

    def __init__(self, geometry: Geometry, policy: DTypePolicy, config: dict[str, Any] | None = None) -> None:
        super().__init__(geometry, policy)
        zeros = not self.scheme.symmetric if config is None else config.get("zero_point")
        self.zero_point = boolean(zeros, "zero_point") and self.scheme.codes in ("int8", "int4")

    @classmethod
    def makes(cls, policy: DTypePolicy) -> bool:
        """Whether `policy` names a scheme."""
        return policy.scheme is not None

    def fits(self, policy: DTypePolicy) -> bool:
        """Whether `policy` names the codes and scales that are stored."""
        return policy.scheme is not None and (
            _stored(policy.scheme) == _stored(self.scheme)
            and (self.geometry.is_table or (policy.scheme.inputs == "fixed") == self.fixes_inputs)
        )

    def follow(self, policy: DTypePolicy) -> None:
        """Take over what happens to inputs."""
        assert policy.scheme is not None
        self.scheme: Scheme = policy.scheme

    def config(self) -> dict[str, Any]:
        """Return whether there are zero points."""
        return {"zero_point": self.zero_point}

    @property
    def fixes_inputs(self) -> bool:
        """Whether there are scales of the inputs."""
        return self.scheme.inputs == "fixed" and not self.geometry.is_table

    # ---- variables

    def variables_of(self) -> dict[str, Variable]:
        """Return codes, scales and zero points, and those of fixed inputs."""
        scheme, (n, k) = self.scheme, self.geometry.lines_shape
        found = CODES[scheme.codes]
        groups = 1 if scheme.group_size is None else -(-k // scheme.group_size)
        shape = (1, 1) if scheme.per == "tensor" else (n, groups)
        variables = {
            "codes": Variable((n, (k + 1) // 2 if found.packed else k), found.storage.name, "zeros"),
            "scale": Variable(shape, "float32", "ones"),
        }
        if self.zero_point:
            variables["zero_point"] = Variable(shape, "int8", "zeros")
        if self.fixes_inputs:
            variables["inputs_scale"] = Variable(() if found.is_float else (k,), "float32", "ones")
            if not found.is_float:
                variables["inputs_zero_point"] = Variable((k,), "int8", "zeros")
        return variables

    def check(self, floats: Array) -> None:
        """Raise ValueError if floats are not finite, or inputs are to be fixed, which floats do not say how."""
        if self.fixes_inputs:
            raise ValueError(
                f"layer '{self.geometry.owner}' cannot be quantized to '{self.scheme}' without scales of its inputs: "
                "`mp_core.calibrate` finds them in a sample"
            )
        super().check(floats)

    def encoded(self, floats: Array, dtype: str) -> dict[str, Array]:
        """Return codes and scales by the formulas of :func:`mp_core.quantize`."""
        matrix = self.geometry.transposed(self.geometry.arranged(floats))
        return self.values_of(self.scheme.quantize(ops.cast(matrix, "float32")), None)

    def values_of(self, q: QuantizedArray, inputs: Inputs | None) -> dict[str, Array]:
        """Return the values of the variables for codes, which are not copied.

        Raises
        ------
        ValueError
            The codes, their granularity or shape are others than those of the form; a scale is not positive and
            finite; `inputs` is missing, or not wanted.
        """
        n, k = self.geometry.lines_shape
        if q.shape != (n, k):
            raise ValueError(f"it must be a matrix of shape {(n, k)}; received codes of shape {q.shape}")
        if not self.scheme.describes(q):
            size = "" if q.group_size is None else f" in groups of {q.group_size}"
            raise ValueError(f"its policy names '{self.scheme}'; received codes of {q.dtype}{size}, axis={q.axis}")
        values = {"codes": q.values, "scale": _checked("scale", q.scale, q.scale.shape)}
        if self.zero_point:
            values["zero_point"] = np.zeros(q.scale.shape, np.int8) if q.zero_point is None else q.zero_point
        if not self.fixes_inputs:
            if inputs is not None:
                raise ValueError(f"`inputs` must be None for '{self.scheme}'; received {inputs!r}")
            return values
        if inputs is None:
            raise ValueError(f"`inputs` must have the scales of inputs for '{self.scheme}'; received None")
        scale, zero_point = inputs
        is_float = CODES[self.scheme.codes].is_float
        values["inputs_scale"] = _checked("inputs.scale", scale, () if is_float else (k,))
        if is_float != (zero_point is None):
            raise ValueError(f"`inputs.zero_point` must be {'None' if is_float else 'int8'} for '{self.scheme}'")
        if not is_float:
            values["inputs_zero_point"] = asarray(zero_point, "inputs.zero_point")
        return values

    # ---- what they stand for

    @property
    def matrix(self) -> QuantizedArray:
        """The codes with their scales."""
        v, scheme = self.variables, self.scheme
        zero = v["zero_point"].numpy() if self.zero_point else None
        scale = v["scale"].numpy()
        if not positive_and_finite(scale):
            raise ValueError(f"`scale` must be positive and finite; received {scale.min()} to {scale.max()}")
        return QuantizedArray(
            v["codes"].numpy(), scale, zero, scheme.axis(), scheme.group_size, scheme.dtype, self.geometry.lines_shape
        )

    @property
    def inputs(self) -> Inputs | None:
        """Scales and zero points of fixed inputs."""
        if not self.fixes_inputs:
            return None
        zero = self.variables.get("inputs_zero_point")
        scale = _checked("inputs_scale", self.variables["inputs_scale"].numpy(), self.variables["inputs_scale"].shape)
        return Inputs(scale, None if zero is None else zero.numpy())

    # ---- products

    def multiply(
        self,
        rows: Array,
        bias: AutoCastVariable | None,
        activation: Activation | None,
        compute: np.dtype[Any],
        training: bool = False,
    ) -> Array:
        """Return the product with the inputs as the scheme has them: floats, or quantized by row, or as fixed."""
        if self.scheme.is_weight_only:
            return super().multiply(rows, bias, activation, compute)
        rows, vector = floating(rows, compute), self._vector(bias)
        product: Array
        if self.scheme.inputs == "dynamic":
            kernel = self._made("dynamic", lambda: ops.pack(self.matrix.T))
            product = ops.dynamic_matmul(rows, kernel, bias=vector, activation=activation)
        elif CODES[self.scheme.codes].is_float:
            kernel, scale = self._made("fixed", self._fixed_float8)
            product = multiply_float8(rows, kernel, scale, self.scheme.codes, vector, activation, compute)
        else:
            kernel, offset, scale, zero = self._made("fixed", self._fixed)
            vector = offset if vector is None else offset + vector
            product = ops.fixed_matmul(rows, kernel, scale, zero, bias=vector, activation=activation)
        return product

    def take(self, indices: Array, compute: np.dtype[Any]) -> Array:
        """Return the rows at `indices`: their codes times their scales."""
        q = self._made("matrix", lambda: self.matrix)
        index, shared = indices.reshape(-1), self.scheme.per == "tensor"
        scale, zero = (part if part is None or shared else part[index] for part in (q.scale, q.zero_point))
        shape = (index.size, self.geometry.columns)
        rows = QuantizedArray(q.values[index], scale, zero, q.axis, q.group_size, q.dtype, shape)
        return dequantize(rows, compute).reshape(*indices.shape, self.geometry.columns)

    @property
    def rounds_bias(self) -> bool:
        """Whether inputs are quantized to float8."""
        return self.fixes_inputs and CODES[self.scheme.codes].is_float

    def _kernel(self, dtype: np.dtype[Any]) -> PackedMatrix | Array:
        kernel: PackedMatrix | Array = self._made(("kernel", dtype), lambda: weight_only_kernel(self.matrix, dtype))
        return kernel

    def _fixed(self) -> tuple[PackedMatrix, Array, Array, Array]:
        """Return the kernel, what the zero points of the inputs add to every sum, and scales and zero points."""
        q, inputs = self.matrix, self.inputs
        assert inputs is not None
        sums = ops.matmul(q.values, inputs.zero_point).astype(np.int64)
        if q.zero_point is not None:
            sums -= q.zero_point.reshape(-1) * inputs.zero_point.sum(dtype=np.int64)
        offset = -sums * q.scale.reshape(-1).astype(np.float64)
        return ops.pack(q.T), ops.cast(offset, "float32"), inputs.scale, inputs.zero_point.astype(np.int32)

    def _fixed_float8(self) -> tuple[PackedMatrix, Array]:
        assert self.inputs is not None
        return ops.pack(self.matrix.T), self.inputs.scale


def multiply_float8(
    rows: Array,
    kernel: PackedMatrix,
    scale: Array,
    codes: str,
    bias: Array | None,
    activation: Activation | None,
    compute: np.dtype[Any],
) -> Array:
    """Return the product of inputs as float8 codes, exact in bfloat16, with a kernel that has taken in `scale`."""
    left = ops.cast(quantize(rows, dtype=codes, scale=scale).values, "bfloat16")
    product: Array = ops.matmul(left, kernel, out_dtype=compute, bias=bias, activation=activation)
    return product


def weight_only_kernel(lines: QuantizedArray, dtype: np.dtype[Any]) -> PackedMatrix | Array:
    """Return what inputs of a float type are multiplied by: codes where a product applies their scales, else floats."""
    q = without_zeros(lines)
    if q.group_size is not None and q.scale.shape[1] == 1:
        q = replace(q, group_size=None)  # one group is the whole line
    if q.zero_point is None and (q.group_size is None or q.group_size % 8 == 0):
        return packed(q.T, dtype)
    return packed(dequantize(q, "float32" if dtypes.name_of(dtype) in dtypes.WIDE else dtype).T, dtype)


def without_zeros(q: QuantizedArray) -> QuantizedArray:
    """Return `q` less its zero points, in int8, where the differences fit in; `q` itself where they do not."""
    if q.zero_point is None:
        return q
    if not q.zero_point.any():
        return replace(q, zero_point=None)
    codes = unpacked_codes(q) - for_each_element(q.zero_point, q).astype(np.int16)
    if codes.size and not -128 <= codes.min() <= codes.max() <= 127:
        return q
    return QuantizedArray(codes.astype(np.int8), q.scale, None, q.axis, q.group_size)


def _stored(scheme: Scheme) -> tuple[str, int | None, str]:
    """Return what a scheme says about codes and scales."""
    return scheme.codes, scheme.group_size, scheme.per


def _checked(name: str, scale: Any, shape: tuple[int, ...]) -> Array:
    """Return scales as float32 of that shape; raise unless they are positive and finite."""
    array = asarray(scale, name)
    if array.shape != shape:
        raise ValueError(f"`{name}` must have shape {shape}; received {array.shape}")
    array = np.require(ops.cast(array, "float32"), requirements="C")
    if not positive_and_finite(array):
        raise ValueError(f"`{name}` must be positive and finite; received {array.min()} to {array.max()}")
    return array
