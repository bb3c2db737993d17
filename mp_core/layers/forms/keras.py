"""Keras' forms: the variables of its files, whose int8 scales are reciprocals (``q / scale``).

- int8: ``name`` int8 of its own shape and ``name_scale``, for ``name / name_scale``.
- int4 by channel: ``name`` int8, two codes to a byte along the columns, and ``name_scale``, for the same.
- int4 in blocks: also ``name_zero``, int8, and ``g_idx``, the block of each place: ``(name - name_zero) * name_scale``.
- float8: ``name`` as it was; a scale and a history of maxima each for inputs, kernel and gradients.
"""

import math
from typing import Any

import numpy as np

from mp_core import dtypes, ops
from mp_core.arrays import Array, cast
from mp_core.autocast import AutoCastVariable
from mp_core.core.names import Activation
from mp_core.dtype_policies import DTypePolicy, QuantizedFloat8DTypePolicy
from mp_core.dtype_policies.schemes import LARGEST_GROUP
from mp_core.layers.forms.codes import multiply_float8, weight_only_kernel
from mp_core.layers.forms.form import AddWeight, Float, Form, Inputs, Variable, check_finite, floating, packed
from mp_core.ops import PackedMatrix
from mp_core.quantization import QuantizedArray, dequantize, quantize
from mp_core.quantizers import (
    AbsMaxQuantizer,
    abs_max_quantize,
    abs_max_quantize_grouped_with_zero_point,
    compute_float8_amax_history,
    compute_float8_scale,
    deserialize,
    pack_int4,
    unpack_int4,
)

__all__ = ["KerasFloat8", "KerasInt4", "KerasInt8", "floating_inputs"]

_INT4 = dtypes.STORED["int4"]
_E4M3 = "float8_e4m3fn"
_E4M3_MAX = float(dtypes.finfo(_E4M3).max)
_RANGES = {"int8": (-127, 127), "int4": (-8, 7)}
"""The smallest and the largest code of a symmetric quantization, by Keras' formulas."""


class _Reciprocal(Form):
    """What the forms of integers share."""

    @property
    def scale_name(self) -> str:
        """The name of the variable of the scales."""
        return f"{self.geometry.name}_scale"

    @property
    def stored(self) -> Array:
        """The codes as they are stored."""
        return self.variables[self.geometry.name].numpy()

    @property
    def scale(self) -> Array:
        """The scales in float32."""
        return ops.cast(self.variables[self.scale_name].numpy(), "float32")


class KerasInt8(_Reciprocal):
    """int8 codes with one scale for each output, or each row of a table."""

    name = "int8"

    @classmethod
    def makes(cls, policy: DTypePolicy) -> bool:
        """Whether `policy` is Keras' or leaves the inputs as they are."""
        return str(policy.scheme) in ("int8", "int8/weight_only")

    def follow(self, policy: DTypePolicy) -> None:
        """Take over whether inputs are quantized as they come."""
        assert policy.scheme is not None
        self.scheme = policy.scheme

    def variables_of(self) -> dict[str, Variable]:
        """Return codes and scales."""
        g = self.geometry
        return {g.name: Variable(g.shape, "int8", "zeros"), self.scale_name: Variable(g.scale_shape, None, "ones")}

    def encoded(self, floats: Array, dtype: str) -> dict[str, Array]:
        """Return codes and scales, by Keras' formulas."""
        g = self.geometry
        codes, scale = _abs_max(g.arranged(floats), g.axis, _RANGES["int8"], dtype)
        return {g.name: g.restored(codes), self.scale_name: scale.reshape(g.scale_shape)}

    @property
    def matrix(self) -> QuantizedArray:
        """The codes, with the reciprocals of Keras' scales."""
        codes = self.geometry.transposed(self.geometry.arranged(self.stored))
        return QuantizedArray(codes, np.float32(1) / self.scale.reshape(-1, 1), None, (0,))

    def multiply(
        self,
        rows: Array,
        bias: AutoCastVariable | None,
        activation: Activation | None,
        compute: np.dtype[Any],
        training: bool = False,
    ) -> Array:
        """Return the product with rows that are quantized as they come, unless the policy leaves them as they are."""
        if self.scheme.is_weight_only:
            return super().multiply(rows, bias, activation, compute)
        kernel, rows = self._made("dynamic", lambda: ops.pack(self.matrix.T)), floating(rows, compute)
        product: Array = ops.dynamic_matmul(rows, kernel, bias=self._vector(bias), activation=activation)
        return product

    def take(self, indices: Array, compute: np.dtype[Any]) -> Array:
        """Return the rows at `indices`: their codes divided by Keras' scales."""
        return _divided(self.stored[indices], self.variables[self.scale_name], indices, compute)


class KerasInt4(_Reciprocal):
    """int4 codes, two to a byte, with a scale for each channel, or for each of its blocks a scale and a zero point."""

    name = "int4"

    @classmethod
    def makes(cls, policy: DTypePolicy) -> bool:
        """Whether `policy` is one of int4."""
        return policy.quantization_mode == "int4"

    def fits(self, policy: DTypePolicy) -> bool:
        """Whether `policy` has blocks of the same length."""
        return self.makes(policy) and _block(policy) == self.block

    def follow(self, policy: DTypePolicy) -> None:
        """Take over the length of blocks."""
        self.block = _block(policy)

    def variables_of(self) -> dict[str, Variable]:
        """Return codes and scales, and those of blocks."""
        g = self.geometry
        shared, channels = (g.columns, g.rows) if g.is_table else (g.rows, g.columns)
        codes = {g.name: Variable((g.rows, (g.columns + 1) // 2), "int8", "zeros")}
        if self.block < 0:
            return codes | {self.scale_name: Variable((channels,), None, "ones")}
        size = min(self.block, max(shared, 1))
        blocks = -(-shared // size)
        shape = (channels, blocks) if g.is_table else (blocks, channels)
        return codes | {
            self.scale_name: Variable(shape, None, "ones"),
            f"{g.name}_zero": Variable(shape, "int8", "zeros"),
            "g_idx": Variable((shared,), "float32", lambda *_: (np.arange(shared) // size).astype(np.float32)),
        }

    def encoded(self, floats: Array, dtype: str) -> dict[str, Array]:
        """Return codes, scales and zero points, by Keras' formulas."""
        g = self.geometry
        matrix = floats.reshape(g.rows, g.columns)
        if self.block < 0:
            codes, scale = _abs_max(matrix, g.axis, _RANGES["int4"], dtype)
            return {g.name: pack_int4(codes, axis=-1)[0], self.scale_name: scale.reshape(-1)}
        parts = abs_max_quantize_grouped_with_zero_point(matrix.T if g.is_table else matrix, self.block)
        codes, scale, zero = (part.T for part in parts) if g.is_table else parts
        return {g.name: pack_int4(codes, axis=-1)[0], self.scale_name: scale, f"{g.name}_zero": zero}

    def attribute(self, name: str) -> Any:
        """Return what a layer has as the attribute of this name: of the codes an array, int8 and read-only."""
        if name != self.geometry.name:
            return super().attribute(name)
        codes = unpack_int4(self.stored, self.geometry.columns, axis=-1).reshape(self.geometry.shape)
        codes.flags.writeable = False
        return codes

    @property
    def matrix(self) -> QuantizedArray | Array:
        """The codes, with zero points where they are not zero; floats where blocks are no neighbours any more."""
        q = self._codes()
        if self.geometry.in_order and isinstance(q, QuantizedArray):
            return q if self.geometry.is_table else q.T
        floats = dequantize(q, "float32") if isinstance(q, QuantizedArray) else q
        matrix: Array = self.geometry.transposed(self.geometry.arranged(floats))
        return matrix

    def take(self, indices: Array, compute: np.dtype[Any]) -> Array:
        """Return the rows at `indices`."""
        columns, rows, scale = self.geometry.columns, self.stored[indices], self.variables[self.scale_name]
        if self.block < 0:
            return _divided(unpack_int4(rows, columns, axis=-1), scale, indices, compute)
        steps = ops.cast(scale.numpy()[indices], "float32")
        zero, blocks = self.variables[f"{self.geometry.name}_zero"].numpy()[indices], steps.shape[-1]
        block, size = self._block_index(blocks)
        if size is None:
            codes = ops.cast(unpack_int4(rows, columns, axis=-1), "float32")
            return ops.cast((codes - zero[..., block]) * steps[..., block], compute)
        shape = (math.prod(indices.shape), columns)
        values, steps, zero = (part.reshape(shape[0], part.shape[-1]) for part in (rows.view(np.uint8), steps, zero))
        q = QuantizedArray(values, steps, zero, (0,), None if blocks == 1 else size, _INT4, shape)
        return dequantize(q, compute).reshape(*indices.shape, columns)

    def _kernel(self, dtype: np.dtype[Any]) -> PackedMatrix | Array:
        def make() -> PackedMatrix | Array:
            matrix = self.matrix
            return weight_only_kernel(matrix, dtype) if isinstance(matrix, QuantizedArray) else packed(matrix.T, dtype)

        kernel: PackedMatrix | Array = self._made(("kernel", dtype), make)
        return kernel

    def _codes(self) -> QuantizedArray | Array:
        """Return the codes of the variable in its own order, cut into the rows of its matrix, or floats."""
        g = self.geometry
        shape, axis = (g.rows, g.columns), (1 - g.axis,)
        if self.block < 0:
            scale = np.float32(1) / np.expand_dims(self.scale, g.axis)
            return QuantizedArray(self.stored.view(np.uint8), scale, None, axis, None, _INT4, shape)
        scale, zero = self.scale, self.variables[f"{g.name}_zero"].numpy()
        (block, size), group = self._block_index(scale.shape[g.axis]), min(self.block, LARGEST_GROUP)
        if size is not None and zero.size and -8 <= zero.min() <= zero.max() <= 7:
            zeros = zero if zero.any() else None
            return QuantizedArray(self.stored.view(np.uint8), scale, zeros, axis, group, _INT4, shape)
        codes = unpack_int4(self.stored, g.columns, axis=-1).astype(np.int16) - zero.take(block, g.axis)
        if size is not None and codes.size and -128 <= codes.min() <= codes.max() <= 127:
            return QuantizedArray(codes.astype(np.int8), scale, None, axis, group)
        floats: Array = codes * scale.take(block, g.axis)
        return floats

    def _block_index(self, blocks: int) -> tuple[Array, int | None]:
        """Return the block of each place along the axis that shares scales, from ``g_idx``, and the length of blocks.

        The length is None where blocks are not equal runs of neighbours, as they were made.

        Raises
        ------
        ValueError
            ``g_idx`` was given numbers that are no blocks.
        """

        def check(stored: Array) -> tuple[Array, int | None]:
            with np.errstate(invalid="ignore"):
                index = stored.astype(np.intp)
            if not np.array_equal(index, stored) or (index.size and not 0 <= index.min() <= index.max() < blocks):
                raise ValueError(f"`g_idx` of layer '{self.geometry.owner}' must hold integers from 0 to {blocks - 1}")
            size = min(self.block, max(index.size, 1))
            return index, size if np.array_equal(index, np.arange(index.size) // size) else None

        made: tuple[Array, int | None] = self.variables["g_idx"].derived(("blocks", blocks), check)
        return made


class KerasFloat8(Float):
    """Delayed scaling: floats, which products round to float8 by scales that training moves on."""

    name = "float8"
    is_float = False
    looks_up = False

    @classmethod
    def makes(cls, policy: DTypePolicy) -> bool:
        """Whether `policy` is that of delayed scaling."""
        return policy.quantization_mode == "float8" and policy.scheme is None

    def fits(self, policy: DTypePolicy) -> bool:
        """Whether `policy` has histories of the same length."""
        return self.makes(policy) and _history(policy) == self.history

    def follow(self, policy: DTypePolicy) -> None:
        """Take over the length of histories."""
        self.history = _history(policy)

    def check(self, floats: Array) -> None:
        """Raise ValueError if floats are not finite."""
        check_finite(floats, self.geometry)

    def add_rest(self, add_weight: AddWeight) -> None:
        """Create scales and histories; the part of the gradients is there for Keras' files alone."""
        if self.history < 1:
            raise ValueError(f"`amax_history_length` must be positive; received {self.history}")
        for part in ("inputs", "kernel", "outputs_grad"):
            for what, shape, initializer in (("scale", (), "ones"), ("amax_history", (self.history,), "zeros")):
                name = f"{part}_{what}"
                self.variables[name] = add_weight(
                    shape=shape, dtype="float32", autocast=False, name=name, initializer=initializer
                )

    def replace(self, floats: AutoCastVariable, add_weight: AddWeight, dtype: str) -> None:
        """Keep the float variable, and add scales and histories."""
        self.variables[self.geometry.name] = floats
        self.add_rest(add_weight)

    @property
    def matrix(self) -> QuantizedArray:  # type: ignore[override]
        """The codes of the floats, times both scales."""
        v, stored = self.variables, self.variables[self.geometry.name].numpy()
        check_finite(stored, self.geometry)  # it may have been assigned since it was quantized
        scale = v["kernel_scale"].numpy()
        q = quantize(self.geometry.arranged(stored), dtype=_E4M3, scale=scale)
        return QuantizedArray(q.values.T, q.scale * v["inputs_scale"].numpy(), None, ())

    @property
    def inputs(self) -> Inputs:
        """The scale of the inputs."""
        return Inputs(self.variables["inputs_scale"].numpy())

    def multiply(
        self,
        rows: Array,
        bias: AutoCastVariable | None,
        activation: Activation | None,
        compute: np.dtype[Any],
        training: bool = False,
    ) -> Array:
        """Return the product of float8 codes, times both scales; `training` moves the scales on afterwards."""
        v, rows = self.variables, floating(rows, compute)
        kernel = self._made("float8", lambda: ops.pack(self.matrix.T))
        scale = v["inputs_scale"].numpy()
        outputs = multiply_float8(rows, kernel, scale, _E4M3, self._vector(bias), activation, compute)
        if training:
            _move_on(rows, v["inputs_scale"], v["inputs_amax_history"])
            _move_on(v[self.geometry.name].numpy(), v["kernel_scale"], v["kernel_amax_history"])
        return outputs

    @property
    def rounds_bias(self) -> bool:
        """Keras rounds that of float32 layers to bfloat16."""
        return True


def _block(policy: DTypePolicy) -> int:
    block: int = getattr(policy, "block_size", -1)
    return block


def _history(policy: DTypePolicy) -> int:
    history: int = getattr(policy, "amax_history_length", QuantizedFloat8DTypePolicy.default_amax_history_length)
    return history


def _abs_max(matrix: Array, axis: int, value_range: tuple[int, int], dtype: str) -> tuple[Array, Array]:
    """Return codes and scales, of which none is beyond the range of `dtype`: in float16, 127 / 0.001 would be."""
    codes, scale = abs_max_quantize(matrix, axis, value_range)
    largest = scale.dtype.type(dtypes.finfo(dtype).max)
    beyond = scale > largest
    if beyond.any():
        with np.errstate(over="ignore"):  # of what is not small
            coarse = np.rint(cast(matrix, scale.dtype) * largest)
        codes, scale = np.where(beyond, coarse, codes).astype(codes.dtype), np.where(beyond, largest, scale)
    return codes, scale


def _divided(codes: Array, scale: AutoCastVariable, indices: Array, compute: np.dtype[Any]) -> Array:
    """Return rows of codes divided by the scales at `indices`, in `compute`."""
    rows = ops.cast(codes, "float32")
    rows /= ops.cast(scale.numpy()[indices], "float32")[..., np.newaxis]
    return ops.cast(rows, compute)


def _move_on(x: Array, scale: AutoCastVariable, history: AutoCastVariable) -> None:
    """Set the scale from the history as it was, then put the maximum of `x` into the history."""
    past = history.numpy()
    scale.assign(compute_float8_scale(past.max(initial=0), scale.numpy(), _E4M3_MAX))
    history.assign(compute_float8_amax_history(x, past))


def floating_inputs(config: Any, scale_axes: tuple[set[int], int]) -> bool:
    """Whether a ``quantization_config`` of Keras leaves the inputs of an int8 layer as they are.

    Parameters
    ----------
    config : dict or None
    scale_axes : tuple of (set of int, int)
        The axes of the matrix whose elements share scales, and how many axes it has.

    Raises
    ------
    ValueError
        `config` is neither a dict nor None, or has quantizers that mp_core does not have.
    """
    if config is None:
        return False
    if not isinstance(config, dict):
        raise ValueError(f"`quantization_config` must be a dict of Keras or None; received {config!r}")
    given = config["config"] if config.get("config") is not None else {}
    if not isinstance(given, dict):
        raise ValueError(f"the `config` of a `quantization_config` must be a dict; received {given!r}")
    int8 = config.get("class_name") == "Int8QuantizationConfig"
    axes, ndim = scale_axes
    expected = AbsMaxQuantizer(sorted(axes), _RANGES["int8" if int8 else "int4"])
    weights = given.get("weight_quantizer") and deserialize(given["weight_quantizer"])
    if isinstance(weights, AbsMaxQuantizer):
        chosen = tuple(sorted(axis % max(ndim, 1) for axis in weights.axis or (-1,)))
        weights = AbsMaxQuantizer(chosen, weights.value_range, weights.epsilon, weights.output_dtype)
    if weights not in (None, expected):
        raise ValueError(f"mp_core quantizes with `weight_quantizer` None or {expected}; received {weights}")
    inputs = given.get("activation_quantizer") and deserialize(given["activation_quantizer"])
    allowed = (None, AbsMaxQuantizer(), AbsMaxQuantizer(-1)) if int8 else (None,)
    if inputs not in allowed:
        raise ValueError(f"mp_core quantizes with `activation_quantizer` {allowed[-1]}; received {inputs}")
    return int8 and "activation_quantizer" in given and inputs is None
