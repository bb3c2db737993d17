"""Products of activations with a kernel in each of its forms: what Dense and EinsumDense share."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core import dtypes, ops
from mp_core.arrays import Array
from mp_core.autocast import AutoCastVariable
from mp_core.core.names import Activation
from mp_core.layers.quantized import add_matrix, add_scaling, block_index, check_finite
from mp_core.ops import PackedMatrix
from mp_core.quantization import QuantizedArray, dequantize, quantize
from mp_core.quantizers import compute_float8_amax_history, compute_float8_scale, unpack_int4

__all__ = ["add_kernel", "fix_inputs", "project", "read_bias"]

_E4M3_MAX = float(dtypes.finfo("float8_e4m3fn").max)
_INT4 = dtypes.STORED["int4"]


def add_kernel(layer: Any, bias_shape: tuple[int, ...] | None) -> None:
    """Create kernel, bias (unless its shape is None) and what the policy adds to them, in the order of Keras' files."""
    add_matrix(layer, layer.kernel_initializer)
    layer.bias = None
    if bias_shape is not None:
        layer.bias = layer.add_weight(shape=bias_shape, initializer=layer.bias_initializer, name="bias")
    if layer.quantization_mode == "float8":
        add_scaling(layer, layer._form.history)


def fix_inputs(layer: Any) -> tuple[AutoCastVariable, AutoCastVariable]:
    """Quantize each input with a scale and zero point of its own from now on, and return both: two new weights.

    They are ones and zeros; :func:`mp_core.calibrate` gives them values. A built int8 layer that is to load calibrated
    weights needs this before ``set_weights``.

    Raises
    ------
    ValueError
        The layer does not quantize its inputs, or has fixed inputs already.
    """
    if not layer.quantizes_inputs or layer.fixed_inputs is not None:
        state = "fixed already" if layer.quantizes_inputs else "not quantized to compute in int8"
        raise ValueError(f"The inputs of layer '{layer.name}' cannot be fixed: it is {state}")
    shape = (layer.depth,)
    layer.fixed_inputs = (
        layer.add_weight(shape, "ones", "float32", trainable=False, autocast=False, name="inputs_scale"),
        layer.add_weight(shape, "zeros", "int8", trainable=False, autocast=False, name="inputs_zero_point"),
    )
    fixed: tuple[AutoCastVariable, AutoCastVariable] = layer.fixed_inputs
    return fixed


def project(
    layer: Any, inputs: Array, bias: AutoCastVariable | None, activation: Activation | None, training: bool = False
) -> Array:
    """Return ``activation(inputs @ kernel + bias)`` in the compute dtype, for a kernel whose rows are summed over.

    The kernel is packed once per value, and the bias widened for the float32 sums. For an int8 kernel the rows of the
    inputs are quantized as they come, or with the scales and zero points that are fixed for every column.
    """
    vector = None if bias is None else _vector(layer, bias)
    if inputs.dtype.kind in "iub":
        inputs = ops.cast(inputs, layer._compute)
    form, multiply = layer._form, ops.matmul
    kernel: Any
    if form is None:
        kernel = _float_kernel(layer)
    elif form.mode == "float8":
        return _multiply_float8(layer, inputs, vector, activation, training)
    elif layer.fixed_inputs is not None:
        return _multiply_fixed(layer, inputs, vector, activation)
    elif form.mode == "int8" and not layer._weight_only:
        multiply, kernel = ops.dynamic_matmul, _made(layer, _codes)
    else:
        kernel = _made(layer, _codes, None if dtypes.name_of(inputs.dtype) in dtypes.WIDE else inputs.dtype)
    outputs: Array = multiply(inputs, kernel, bias=vector, activation=activation)
    return outputs


def read_bias(layer: Any, bias: AutoCastVariable) -> Array:
    """Return the bias as it reads here; for float8 in float32, as Keras has it, rounded to bfloat16."""
    value: Array = bias.read_value()
    if layer._form is not None and layer._form.mode == "float8" and value.dtype.name == "float32":
        value = ops.cast(ops.cast(value, "bfloat16"), "float32")
    return value


def _vector(layer: Any, bias: AutoCastVariable) -> Array:
    """Return the bias flat and in float32 (float64 as it is)."""

    def widen(_: Array) -> Array:
        vector = read_bias(layer, bias).reshape(-1)
        return vector if vector.dtype.name == "float64" else ops.cast(vector, "float32")

    return bias.derived((layer.quantized, bias.dtype), widen)


def _made(layer: Any, make: Callable[[Any, Any], Any], dtype: np.dtype[Any] | None = None) -> Any:
    """Return ``make(layer, dtype)``, made once per value of the kernel and of all variables that are not the bias."""
    kernel = _stored_kernel(layer)
    kept: dict[str, Any] = kernel.derived((make, dtype), _nothing)
    last = kept.get("last")
    if last is not None:
        for variable, version in last[0]:
            if variable.version != version:
                break
        else:
            return last[1]
    # Without the kernel itself: that would be a cycle, and a model's memory would wait for the garbage collector.
    others = (variable for variable in layer._variables if variable is not layer.bias and variable is not kernel)
    versions = [(variable, variable.version) for variable in others]
    kept["last"] = last = versions, make(layer, dtype)  # one at a time: an assigned scale replaces it
    return last[1]


def _stored_kernel(layer: Any) -> AutoCastVariable:
    """Return the variable that holds the kernel, packed where it is int4."""
    variable: AutoCastVariable = layer._kernel if layer._form.mode == "int4" else layer.kernel
    return variable


def _nothing(_: Array) -> dict[str, Any]:
    return {}


# ---- kernels, packed


def _float_kernel(layer: Any) -> PackedMatrix | Array:
    kernel, m = layer.kernel, layer._matrix
    read = kernel.dtype

    def make(stored: Array) -> PackedMatrix | Array:
        return _pack(m.arranged(stored), read)

    packed: PackedMatrix | Array = kernel.derived(("packed", read), make)
    return packed


def _codes(layer: Any, dtype: np.dtype[Any] | None) -> PackedMatrix | Array:
    """Return the kernel as integers with their scales (as floats where a product cannot apply those), or in `dtype`."""
    q = _quantized(layer)
    if isinstance(q, QuantizedArray):
        return ops.pack(q) if dtype is None else dequantize(q, dtype)
    return _pack(q, layer._compute if dtype is None else dtype)


def _quantized(layer: Any) -> QuantizedArray | Array:
    """Return the matrix as codes that multiply with their scales, or else as floats."""
    m, form = layer._matrix, layer._form
    stored, scale = _stored_kernel(layer).numpy(), ops.cast(layer.kernel_scale.numpy(), "float32")
    if form.mode == "int8":
        return QuantizedArray(m.arranged(stored), 1.0 / scale.reshape(1, -1), None, (1,))
    q = _nibbles(layer, stored, scale)
    if m.in_order:
        return q
    floats: Array = m.arranged(dequantize(q, "float32") if isinstance(q, QuantizedArray) else q)
    return floats


def _nibbles(layer: Any, stored: Array, scale: Array) -> QuantizedArray | Array:
    """Return int4 codes, two to a byte, of the kernel in its own order, cut into the rows of its matrix."""
    m, block_size = layer._matrix, layer._form.block
    shape = (m.rows, m.columns)
    if block_size < 0:
        return QuantizedArray(stored.view(np.uint8), 1.0 / scale.reshape(1, -1), None, (1,), None, _INT4, shape)
    zero, (block, size) = layer.kernel_zero.numpy(), block_index(layer, len(scale))
    group = None if len(scale) == 1 else size
    fits = size is not None and (group is None or group % 8 == 0)
    if fits and not zero.any():
        return QuantizedArray(stored.view(np.uint8), scale, None, (1,), group, _INT4, shape)
    codes = unpack_int4(stored, m.columns, axis=-1).astype(np.int16) - zero[block]
    if fits and codes.size and -128 <= codes.min() <= codes.max() <= 127:
        return QuantizedArray(codes.astype(np.int8), scale, None, (1,), group)
    floats: Array = codes * scale[block]
    return floats


def _pack(matrix: Array, dtype: np.dtype[Any]) -> PackedMatrix | Array:
    return ops.pack(matrix, dtype=dtype) if dtype.name in dtypes.WIDE else ops.cast(matrix, dtype)


# ---- products


def _multiply_fixed(layer: Any, inputs: Array, bias: Array | None, activation: Activation | None) -> Array:
    """Return the product of inputs that are quantized with the scale and zero point of their columns."""
    packed, offset, steps, zero = _made(layer, _fixed)
    bias = offset if bias is None else offset + bias
    outputs: Array = ops.fixed_matmul(inputs, packed, steps, zero, bias=bias, activation=activation)
    return outputs


def _fixed(layer: Any, _: None) -> tuple[PackedMatrix, Array, Array, Array]:
    """Return the kernel, what the zero points of the inputs add to every sum, and steps and zero points."""
    q: Any = _quantized(layer)
    scale, zero = (variable.numpy() for variable in layer.fixed_inputs)
    offset = -(zero.astype(np.int64) @ q.values) / ops.cast(layer.kernel_scale.numpy(), "float64").reshape(-1)
    return ops.pack(q), ops.cast(offset, "float32"), np.reciprocal(scale), zero.astype(np.int32)


def _multiply_float8(
    layer: Any, inputs: Array, bias: Array | None, activation: Activation | None, training: bool
) -> Array:
    """Return the product of float8 codes, times both scales, plus the bias; `training` moves the scales on afterwards.

    Codes are exact in bfloat16 and their products in float32.
    """
    packed = _made(layer, _float8)
    codes = quantize(inputs, dtype="float8_e4m3fn", scale=layer.inputs_scale.numpy()).values
    outputs: Array = ops.matmul(
        ops.cast(codes, "bfloat16"), packed, out_dtype=layer._compute, bias=bias, activation=activation
    )
    if training:
        _move_on(inputs, layer.inputs_scale, layer.inputs_amax_history)
        _move_on(layer.kernel.numpy(), layer.kernel_scale, layer.kernel_amax_history)
    return outputs


def _float8(layer: Any, _: None) -> PackedMatrix:
    stored = layer.kernel.numpy()
    check_finite(layer, stored)  # it may have been assigned since the layer was quantized
    kernel = layer._matrix.arranged(stored)
    codes = quantize(kernel, dtype="float8_e4m3fn", scale=layer.kernel_scale.numpy())
    return ops.pack(QuantizedArray(codes.values, codes.scale * layer.inputs_scale.numpy(), None, ()))


def _move_on(x: Array, scale: AutoCastVariable, history: AutoCastVariable) -> None:
    """Set the scale from the history as it was, then put the maximum of `x` into the history."""
    past = history.numpy()
    scale.assign(compute_float8_scale(past.max(initial=0), scale.numpy(), _E4M3_MAX))
    history.assign(compute_float8_amax_history(x, past))
