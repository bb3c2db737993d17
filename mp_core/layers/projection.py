"""Products of activations with a kernel, float or int8: what Dense and EinsumDense share."""

import math
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.autocast import AutoCastVariable
from mp_core.layers.layer import Layer
from mp_core.ops import PackedMatrix
from mp_core.quantization import QuantizedArray, quantize
from mp_core.quantizers import abs_max_quantize

__all__ = ["add_kernel", "fix_inputs", "project", "quantize_kernel"]

Array = np.ndarray[Any, Any]


def add_kernel(
    layer: Layer, name: str, shape: tuple[int, ...], initializer: Any, scale_shape: tuple[int, ...]
) -> tuple[AutoCastVariable, AutoCastVariable | None]:
    """Create the kernel of `layer` under its policy, and the scale of an int8 one.

    Raises
    ------
    NotImplementedError
        The policy asks for a quantization mode other than int8.
    """
    if layer.quantization_mode is None:
        return layer.add_weight(shape=shape, initializer=initializer, name=name), None
    if layer.quantization_mode != "int8":
        raise NotImplementedError(
            f"Invalid quantization mode. {type(layer).__name__} computes unquantized or in 'int8'. "
            f"Received: quantization_mode={layer.quantization_mode}"
        )
    layer.quantized = True
    return _add_int8(layer, name, "zeros", shape, "ones", scale_shape)


def quantize_kernel(
    layer: Layer, kernel: AutoCastVariable, axis: int | tuple[int, ...], scale_shape: tuple[int, ...]
) -> tuple[AutoCastVariable, AutoCastVariable]:
    """Replace the float `kernel` of `layer` by an int8 one, with one scale along `axis`."""
    codes, scale = abs_max_quantize(kernel.numpy(), axis)
    layer._variables[:] = [variable for variable in layer._variables if variable is not kernel]
    layer.quantized = True
    return _add_int8(
        layer, kernel.name, lambda *_: codes, kernel.shape, lambda *_: scale.reshape(scale_shape), scale_shape
    )


def _add_int8(
    layer: Layer, name: str, codes: Any, shape: tuple[int, ...], scale: Any, scale_shape: tuple[int, ...]
) -> tuple[AutoCastVariable, AutoCastVariable]:
    return (
        layer.add_weight(shape=shape, initializer=codes, dtype="int8", trainable=False, autocast=False, name=name),
        layer.add_weight(shape=scale_shape, initializer=scale, trainable=False, name=f"{name}_scale"),
    )


def fix_inputs(layer: Layer, depth: int) -> tuple[AutoCastVariable, AutoCastVariable]:
    """Create the scale and zero point with which an int8 `layer` quantizes each of its `depth` inputs.

    Raises
    ------
    ValueError
        The layer has no int8 kernel, or has fixed inputs already.
    """
    names = [variable.name for variable in layer._variables]
    if not layer.quantized or "inputs_scale" in names:
        state = "fixed already" if layer.quantized else "not quantized"
        raise ValueError(f"The inputs of layer '{layer.name}' cannot be fixed: it is {state}")
    return (
        layer.add_weight((depth,), "ones", "float32", trainable=False, autocast=False, name="inputs_scale"),
        layer.add_weight((depth,), "zeros", "int8", trainable=False, autocast=False, name="inputs_zero_point"),
    )


def project(
    inputs: Array,
    kernel: AutoCastVariable,
    scale: AutoCastVariable | None,
    depth: int,
    bias: AutoCastVariable | None,
    activation: Any,
    dtype: np.dtype[Any],
    fixed: tuple[AutoCastVariable, AutoCastVariable] | None = None,
) -> Array:
    """Return ``activation(inputs @ kernel + bias)`` for a kernel whose leading axes, `depth` in all, are summed over.

    An int8 kernel means ``codes / scale`` (Keras' scale multiplies); the rows of `inputs` are quantized as they come,
    or with the scale and zero point that are `fixed` for every column, and the result has type `dtype`. Either kernel
    is packed once per value, and the bias widened for the float32 sums.
    """
    vector = None if bias is None else _vector(bias)
    if inputs.dtype.kind in "iub":
        inputs = ops.cast(inputs, dtype)
    if scale is None:
        read = kernel.dtype
        packed = kernel.derived(("packed", read), lambda stored: _pack(_matrix(stored, depth), read))
        return ops.matmul(inputs, packed, bias=vector, activation=activation)
    multiplier, zeros = scale.numpy(), None if fixed is None else fixed[1].numpy()
    kept: dict[str, tuple[Array, Array | None, PackedMatrix, Array]] = kernel.derived("packed int8", lambda codes: {})
    made = kept.get("last")
    if made is None or made[0] is not multiplier or made[1] is not zeros:  # one at a time: assigned ones replace it
        codes = _matrix(kernel.numpy(), depth)
        made = kept["last"] = multiplier, zeros, _pack_int8(codes, multiplier), _offset(codes, multiplier, zeros)
    if fixed is None:
        rows = quantize(inputs, axis=tuple(range(inputs.ndim - 1)))
    else:
        steps = fixed[0].derived("steps", np.reciprocal)
        wide = fixed[1].derived("int32", lambda stored: stored.astype(np.int32))
        codes = quantize(inputs, axis=-1, scale=steps, zero_point=wide).values
        rows = QuantizedArray(codes, np.ones((1,) * codes.ndim, np.float32), None, ())
        vector = made[3] if vector is None else made[3] + vector
    return ops.matmul(rows, made[2], out_dtype=dtype, bias=vector, activation=activation)


def _offset(codes: Array, scale: Array, zeros: Array | None) -> Array:
    """Return what the zero points of the inputs add to every sum of products: ``-zeros @ kernel``."""
    if zeros is None:
        return np.zeros(codes.shape[1], np.float32)
    sums = zeros.astype(np.int64) @ codes
    offset: Array = ops.cast(-sums / ops.cast(scale, "float64").reshape(-1), "float32")
    return offset


def _vector(bias: AutoCastVariable) -> Array:
    """Return the bias as it reads here, flat and in float32 (float64 as it is)."""
    read = bias.dtype

    def widen(stored: Array) -> Array:
        vector = ops.cast(stored.reshape(-1), read)
        return vector if read.name == "float64" else ops.cast(vector, "float32")

    return bias.derived(("vector", read), widen)


def _matrix(kernel: Array, depth: int) -> Array:
    """Return the kernel as (depth, units), also where one of them is 0."""
    return kernel.reshape(depth, math.prod(kernel.shape) // depth if depth else kernel.shape[-1])


def _pack(matrix: Array, dtype: np.dtype[Any]) -> PackedMatrix | Array:
    packable = dtype.name in ("float32", "float16", "bfloat16")
    return ops.pack(matrix, dtype=dtype) if packable else ops.cast(matrix, dtype)


def _pack_int8(codes: Array, scale: Array) -> PackedMatrix:
    steps = 1.0 / ops.cast(scale, "float32").reshape(1, -1)
    return ops.pack(QuantizedArray(codes, steps, None, (1,)))
