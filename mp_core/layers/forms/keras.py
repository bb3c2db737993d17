"""Keras' forms, with the variables of its files. ``name`` is ``kernel`` or ``embeddings``.

- int8: ``name`` (int8, in the shape of the floats) and ``name_scale``. Value: ``name / name_scale``.
- int4 by channel: ``name`` (int8, two codes to a byte along the columns) and ``name_scale``. Value: the same.
- int4 in blocks: also ``name_zero`` (int8) and ``g_idx``, the block of each row (of a table: of each column).
  Value: ``(name - name_zero[g_idx]) * name_scale[g_idx]``.
- float8: ``name`` (floats); a scale and a history of maxima for each of inputs, kernel and gradients.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import Array, dtypes
from mp_core.arrays.holding import current_recording
from mp_core.arrays.quantization import QuantizedArray, dequantize, quantize
from mp_core.core.names import Activation
from mp_core.layers.forms.form import AddWeight, Float, Form, Variable, check_finite, floating
from mp_core.layers.forms.products import Inputs, multiplied
from mp_core.ops.convolution_specs import Windows
from mp_core.ops.float8 import delayed_float8, with_float8_gradient
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.dtype_policies import DTypePolicy, QuantizedFloat8DTypePolicy
from mp_core.policies.dtype_policies.schemes import LARGEST_GROUP
from mp_core.policies.quantizers import abs_max_quantize_grouped_with_zero_point, pack_int4, unpack_int4
from mp_core.policies.quantizers.abs_max import abs_max_within

__all__ = ["KerasFloat8", "KerasInt4", "KerasInt8"]

_INT4 = dtypes.STORED["int4"]


class _IntegerForm(Form):
    @property
    def scale_name(self) -> str:
        """The name of the variable of the scales."""
        return f"{self.geometry.name}_scale"

    @property
    def stored(self) -> Array:
        """The stored codes."""
        return self.variables[self.geometry.name].numpy()

    @property
    def scale(self) -> Array:
        """The scales, in float32."""
        return ops.cast(self.variables[self.scale_name].numpy(), "float32")


class KerasInt8(_IntegerForm):
    """int8 codes with one scale for each output, or each row of a table."""

    name = "int8"

    @classmethod
    def makes(cls, policy: DTypePolicy) -> bool:
        """Return whether the scheme of `policy` is int8, with quantized or float inputs."""
        return str(policy.scheme) in ("int8", "int8/weight_only")

    def variables_of(self) -> dict[str, Variable]:
        g = self.geometry
        return {g.name: Variable(g.shape, "int8", "zeros"), self.scale_name: Variable(g.scale_shape, None, "ones")}

    def encoded(self, floats: Array, dtype: str) -> dict[str, Array]:
        g = self.geometry
        codes, scale = abs_max_within(g.arranged(floats), g.shared_axis, (-127, 127), dtype)
        return {g.name: g.restored(codes), self.scale_name: scale.reshape(g.scale_shape)}

    @property
    def matrix(self) -> QuantizedArray:
        """The codes, with the reciprocals of Keras' scales."""
        codes = self.geometry.transposed(self.geometry.arranged(self.stored))
        return QuantizedArray(codes, 1.0 / self.scale.reshape(-1, 1), None, (0,))


class KerasInt4(_IntegerForm):
    """int4 codes, two to a byte, with a scale for each channel, or for each of its blocks a scale and a zero point."""

    name = "int4"

    @classmethod
    def makes(cls, policy: DTypePolicy) -> bool:
        """Return whether the mode of `policy` is int4."""
        return policy.quantization_mode == "int4"

    @property
    def block(self) -> int:
        """The block size; -1 for a whole channel."""
        return getattr(self.policy, "block_size", -1)

    def variables_of(self) -> dict[str, Variable]:
        """Return the variables for codes and scales; with blocks, also zero points and block numbers."""
        g = self.geometry
        channels, shared = g.lines_shape
        codes = {g.name: Variable((g.rows, (g.columns + 1) // 2), "int8", "zeros")}
        if self.block < 0:
            return codes | {self.scale_name: Variable((channels,), None, "ones")}
        size = min(self.block, max(shared, 1))
        blocks = -(-shared // size)
        shape = (channels, blocks) if g.is_table else (blocks, channels)
        return codes | {
            self.scale_name: Variable(shape, None, "ones"),
            f"{g.name}_zero": Variable(shape, "int8", "zeros"),
            "g_idx": Variable((shared,), "float32", lambda *_: self._block_numbers(shared, size)),
        }

    @staticmethod
    def _block_numbers(shared: int, size: int) -> Array:
        """Return the block number of each row, if blocks are consecutive rows."""
        return (np.arange(shared) // size).astype(np.float32)

    def _with_added(self, delta: Array, dtype: str) -> dict[str, Array]:
        """Return the values of the variables for the sum, in blocks of consecutive rows."""
        values = super()._with_added(delta, dtype)
        if self.block < 0:
            return values
        shared = self.geometry.lines_shape[1]
        return values | {"g_idx": self._block_numbers(shared, min(self.block, max(shared, 1)))}

    def encoded(self, floats: Array, dtype: str) -> dict[str, Array]:
        """Return codes, scales and zero points, by Keras' formulas."""
        g = self.geometry
        matrix = floats.reshape(g.rows, g.columns)
        if self.block < 0:
            codes, scale = abs_max_within(matrix, g.shared_axis, (-8, 7), dtype)
            return {g.name: pack_int4(codes, axis=-1)[0], self.scale_name: scale.reshape(-1)}
        parts = abs_max_quantize_grouped_with_zero_point(matrix.T if g.is_table else matrix, self.block)
        codes, scale, zero = (part.T for part in parts) if g.is_table else parts
        return {g.name: pack_int4(codes, axis=-1)[0], self.scale_name: scale, f"{g.name}_zero": zero}

    def attribute(self, name: str) -> Any:
        """Return what ``layer.<name>`` returns: for the codes a read-only int8 array, else the variable."""
        if name != self.geometry.name:
            return super().attribute(name)
        codes = unpack_int4(self.stored, self.geometry.columns, axis=-1).reshape(self.geometry.shape)
        codes.flags.writeable = False
        return codes

    @property
    def matrix(self) -> QuantizedArray | Array:
        """The codes with their scales and zero points; float32 if a QuantizedArray cannot represent their order."""
        g, q = self.geometry, self._as_stored()
        if isinstance(q, QuantizedArray) and g.order == tuple(range(len(g.order))):
            lines: QuantizedArray | Array = g.transposed(q)
        else:
            lines = g.transposed(g.arranged(dequantize(q) if isinstance(q, QuantizedArray) else q))
        return lines

    def _as_stored(self) -> QuantizedArray | Array:
        """Return the matrix in the order of the variable, (rows, columns); floats if no QuantizedArray can hold it."""
        g, scale = self.geometry, self.scale
        shape, axis, packed = (g.rows, g.columns), (1 - g.shared_axis,), self.stored.view(np.uint8)
        if self.block < 0:
            return QuantizedArray(packed, 1.0 / np.expand_dims(scale, g.shared_axis), None, axis, None, _INT4, shape)
        zero, group = self.variables[f"{g.name}_zero"].numpy(), min(self.block, LARGEST_GROUP)
        read = group_reader(g.owner, self.block, scale.shape[g.shared_axis], whole=True)
        block, in_runs = self.variables["g_idx"].derived(("blocks", scale.shape), read)
        if in_runs and zero.size and -8 <= zero.min() <= zero.max() <= 7:
            return QuantizedArray(packed, scale, zero if zero.any() else None, axis, group, _INT4, shape)
        codes = unpack_int4(self.stored, g.columns, axis=-1)
        return grouped(codes, scale, zero, block, group if in_runs else None, g.shared_axis)


def grouped(
    codes: Array, scale: Array, zero: Array, index: Array, group: int | None, axis: int
) -> QuantizedArray | Array:
    """Return ``(codes - zero[index]) * scale[index]``: int8 codes if differences fit and groups are runs, or floats.

    Parameters
    ----------
    codes : ndarray of int8 or uint8, with two axes
    scale, zero : ndarray
        One element for each group along `axis`.
    index : ndarray of int
        The group of each element along `axis`.
    group : int or None
        The length of a group if groups are consecutive elements; None if they are not.
    axis : int
    """
    differences = codes.astype(np.int16) - zero.take(index, axis)
    if group is not None and differences.size and -128 <= differences.min() <= differences.max() <= 127:
        return QuantizedArray(differences.astype(np.int8), scale, None, (1 - axis,), group)
    floats: Array = differences * scale.take(index, axis)
    return floats


def group_reader(owner: str, size: int, groups: int, *, whole: bool = False) -> Callable[[Array], tuple[Array, bool]]:
    """Return a function of ``g_idx`` that returns the group of each input, and whether groups are consecutive inputs.

    Groups are consecutive when they are created; files may hold others. With `whole` the numbers must be integers, else
    their integer part counts.
    """

    def read(stored: Array) -> tuple[Array, bool]:
        with np.errstate(invalid="ignore"):
            index = stored.astype(np.intp)
        is_valid = np.isfinite(stored).all() and (not whole or np.array_equal(index, stored))
        if not is_valid or (index.size and not 0 <= index.min() <= index.max() < groups):
            raise ValueError(f"`g_idx` of layer '{owner}' must hold integers from 0 to {groups - 1}")
        length = min(size, max(index.size, 1))
        return index, np.array_equal(index, np.arange(index.size) // length)

    return read


class KerasFloat8(Float):
    """Delayed scaling: stores floats; products round them to float8 by scales that training updates."""

    name = "float8"
    is_float = False
    looks_up = False
    rounds_bias = True

    @classmethod
    def makes(cls, policy: DTypePolicy) -> bool:
        """Return whether `policy` uses delayed scaling."""
        return policy.quantization_mode == "float8" and policy.scheme is None

    def variables_of(self) -> dict[str, Variable]:
        """Return the variables for floats, scales and histories."""
        length = getattr(self.policy, "amax_history_length", QuantizedFloat8DTypePolicy.default_amax_history_length)
        if length < 1:
            raise ValueError(f"`amax_history_length` must be positive; received {length}")
        variables = super().variables_of()
        moved = {"trainable": True, "late": True, "overwritten": True}
        for part in ("inputs", "kernel", "outputs_grad"):
            variables[f"{part}_scale"] = Variable((), "float32", "ones", **moved)
            variables[f"{part}_amax_history"] = Variable((length,), "float32", "zeros", **moved)
        return variables

    def check(self, floats: Array) -> None:
        check_finite(floats, self.geometry)

    def replace(self, floats: AutoCastVariable, add_weight: AddWeight, dtype: str) -> None:
        """Keep the float variable, and create scales and histories."""
        self.variables[self.geometry.name] = floats
        self.add(add_weight, late=True)

    @property
    def matrix(self) -> QuantizedArray:
        """The codes of the floats, with the product of kernel and input scales."""
        stored = self.variables[self.geometry.name].numpy()
        check_finite(stored, self.geometry)  # it may have been assigned after the layer was quantized
        scale = self.variables["kernel_scale"].numpy()
        q = quantize(self.geometry.arranged(stored), dtype="float8_e4m3fn", scale=scale)
        return QuantizedArray(q.values.T, q.scale * self.inputs.scale, None, ())

    @property
    def inputs(self) -> Inputs:
        """The scale of the inputs."""
        return Inputs(self.variables["inputs_scale"].numpy())

    def multiply(
        self, rows: Array, bias: AutoCastVariable | None, activation: Activation | None, compute: Any,
        training: bool = False, windows: Windows | None = None, out_dtype: np.dtype[Any] | None = None,
    ) -> Array:  # fmt: skip
        """Return the product of float8 codes; while gradients are recorded, compose it of Keras' operations."""
        recording = current_recording()
        if recording is None or recording.noted_calls is None:
            return Form.multiply(self, rows, bias, activation, compute, windows=windows, out_dtype=out_dtype)
        outputs = self._recorded(floating(rows, compute), bias, activation, training, windows)
        return outputs if out_dtype is None else ops.cast(outputs, out_dtype)

    def _recorded(self, rows: Array, bias: Any, activation: Any, training: bool, windows: Windows | None) -> Array:
        """Return the product, composed of operations whose "gradients" are the next scales and histories."""
        kernel, compute = self.variables[self.geometry.name].read_value(), rows.dtype
        left = delayed_float8(rows, *self._scaling("inputs"), compute, training)
        right = self.geometry.arranged(delayed_float8(kernel, *self._scaling("kernel"), compute, training))
        product = multiplied(left, self.geometry.by_group(right), windows)
        outputs = with_float8_gradient(product, *self._scaling("outputs_grad"))
        vector = self.bias_vector(bias)
        if vector is not None:
            outputs = ops.add(outputs, ops.cast(vector, compute))
        return outputs if activation is None else ops.activations.activate(activation, outputs)

    def _scaling(self, part: str) -> tuple[Array, Array]:
        """Return scale and history of a part: "inputs", "kernel" or "outputs_grad"."""
        scale, history = (self.variables[f"{part}_{kept}"].read_value() for kept in ("scale", "amax_history"))
        return scale, history
