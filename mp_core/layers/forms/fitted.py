"""Keras' forms for kernels that are fitted to a sample of inputs: gptq and awq.

For n outputs and k inputs the variables are

- ``kernel`` (uint8, shape (n, k)); with 4 bits two codes to a byte along the outputs, shape (ceil(n / 2), k);
- ``kernel_scale`` and ``kernel_zero`` (uint8), shape (n, groups);
- only awq: ``awq_scales``, shape (k,);
- ``g_idx``, shape (k,): the group of each input. Keras writes fractions; their integer part counts.

The kernel is ``(kernel - kernel_zero[g_idx]) * kernel_scale[g_idx]``; awq divides it by ``awq_scales``.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, I8, Array, dtypes
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.core.names import Activation
from mp_core.layers.forms.form import Form, Variable
from mp_core.layers.forms.keras import group_reader, grouped
from mp_core.layers.forms.observed import InputStatistics
from mp_core.layers.forms.products import Product, product_of
from mp_core.layers.forms.rounding import DAMPING, Nearest, rounded_for
from mp_core.ops.convolution import rows_of_windows
from mp_core.ops.convolution_specs import Windows
from mp_core.policies.dtype_policies.schemes import LARGEST_GROUP
from mp_core.policies.quantizers import pack_int4, unpack_int4

__all__ = ["KerasAWQ", "KerasGPTQ"]

_INT4 = dtypes.STORED["int4"]
_POINTS = 20  # steps between the ratios 0 and 1 that awq tries


class _Grid(NamedTuple):
    """The numbers that codes stand for: ``scale * (q - zero)``, q from 0 to `largest`.

    Attributes
    ----------
    scale, zero : ndarray of float32, shape (outputs, groups)
    group : int
        The number of inputs in a group.
    largest : int
    """

    scale: Array
    zero: Array
    group: int
    largest: int

    @classmethod
    def of(cls, lines: Array, bits: int, group: int, symmetric: bool, dtype: str) -> "_Grid":
        """Return the grid of a matrix (outputs, inputs), whose scales are rounded to `dtype`.

        The range of a group always contains 0, so that its zero point is a code. With `symmetric` the range is that of
        the largest magnitude, and its middle is 0.
        """
        largest, starts = 2**bits - 1, range(0, lines.shape[1], group)
        low = np.minimum(np.minimum.reduceat(lines, starts, axis=1), 0)
        high = np.maximum(np.maximum.reduceat(lines, starts, axis=1), 0)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        scale = ops.cast(ops.cast((high - low) / F32.type(largest), dtype), F32)
        scale = np.where(scale > 0, scale, F32.type(1))
        zero = np.full_like(scale, (largest + 1) / 2) if symmetric else np.rint(-low / scale).clip(0, largest)
        return cls(scale, zero, group, largest)

    def nearest(self) -> Nearest:
        """Return the function that rounds a column."""

        def nearest(column: Array, index: int) -> Array:
            scale, zero = (part[:, index // self.group] for part in (self.scale, self.zero))
            codes = np.rint(ops.cast(column, F32) / scale + zero).clip(0, self.largest)
            return (codes - zero) * scale

        return nearest

    def spread(self, part: Array, inputs: int) -> Array:
        """Return scales or zero points for each input."""
        return part.repeat(self.group, axis=1)[:, :inputs]

    def codes(self, lines: Array) -> Array:
        """Return the nearest codes in uint8."""
        scale, zero = (self.spread(part, lines.shape[1]) for part in (self.scale, self.zero))
        return np.rint(lines / scale + zero).clip(0, self.largest).astype(np.uint8)

    def numbers(self, codes: Array) -> Array:
        """Return the numbers of codes."""
        scale, zero = (self.spread(part, codes.shape[1]) for part in (self.scale, self.zero))
        return (codes - zero) * scale


class KerasGPTQ(Form):
    """Unsigned codes of 2, 3, 4 or 8 bits with scales and zero points of groups of inputs, rounded by GPTQ.

    Without a sample the codes are the nearest ones.
    """

    name = "gptq"
    looks_up = False

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return int(self.policy.weight_bits)  # type: ignore[attr-defined]

    @property
    def _lines_shape(self) -> tuple[int, int]:
        """The shape (outputs, inputs) of the stored matrix.

        Of a kernel with three axes Keras takes the first axis as inputs if it is the longest, else the first two.
        """
        shape = self.geometry.shape
        if len(shape) not in (2, 3):
            raise NotImplementedError(
                f"'{self.name}' needs a kernel with 2 or 3 axes; that of layer '{self.geometry.owner}' has {len(shape)}"
            )
        split = 1 if len(shape) == 2 or shape.index(max(shape)) == 0 else 2
        return math.prod(shape[split:]), math.prod(shape[:split])

    @property
    def _group(self) -> int:
        inputs, size = max(self._lines_shape[1], 1), int(self.policy.group_size)  # type: ignore[attr-defined]
        return inputs if size < 0 else min(size, inputs)

    def variables_of(self) -> dict[str, Variable]:
        """Return the variables for codes, scales, zero points and the groups of inputs."""
        (n, k), group = self._lines_shape, self._group
        shape = (n, -(-k // group))
        return {
            "kernel": Variable(((n + 1) // 2 if self.bits == 4 else n, k), "uint8", "zeros", late=True),
            "kernel_scale": Variable(shape, None, "ones", late=True),
            "kernel_zero": Variable(shape, "uint8", "zeros", late=True),
            "g_idx": Variable((k,), "float32", lambda *_: _groups(k, group), late=True),
        }

    def encoded(self, floats: Array, dtype: str) -> dict[str, Array]:
        """Return the nearest codes, with their scales and zero points."""
        lines = self._lines(floats)
        grid = _Grid.of(lines, self.bits, self._group, False, dtype)
        return self._values(grid.codes(lines), grid)

    def fitted(self, floats: Array, seen: InputStatistics, settings: Mapping[str, Any], dtype: str) -> dict[str, Array]:
        """Return the values of the variables, rounded for inputs.

        Parameters
        ----------
        floats : ndarray
            In the shape of the layer's variable; :meth:`check` has accepted them.
        seen : InputStatistics
            Of the inputs of the layer.
        settings : mapping of str to Any
            The arguments of Keras' configuration: here ``symmetric`` and ``hessian_damping``.
        dtype : str
            The variable dtype of the policy.
        """
        lines = self._lines(floats)
        grid = _Grid.of(lines, self.bits, self._group, bool(settings.get("symmetric", False)), dtype)
        rounded = rounded_for(lines, grid.nearest(), seen.moments, float(settings.get("hessian_damping", DAMPING)))
        return self._values(grid.codes(rounded), grid)

    def _lines(self, floats: Array) -> Array:
        n, k = self._lines_shape
        return np.ascontiguousarray(ops.cast(floats, F32).reshape(k, n).T)

    def _values(self, codes: Array, grid: _Grid) -> dict[str, Array]:
        stored = pack_int4(codes, axis=0, dtype="uint8")[0] if self.bits == 4 else codes
        return {
            "kernel": stored, "kernel_scale": grid.scale, "kernel_zero": grid.zero.astype(np.uint8),
            "g_idx": _groups(codes.shape[1], grid.group),
        }  # fmt: skip

    def attribute(self, name: str) -> Any:
        """Return what ``layer.<name>`` returns: for the codes a read-only uint8 array, else the variable."""
        if name != "kernel":
            return super().attribute(name)
        codes = self._codes.view()
        codes.flags.writeable = False
        return codes

    @property
    def _codes(self) -> Array:
        stored = self.variables["kernel"].numpy()
        return unpack_int4(stored, self._lines_shape[0], axis=0, dtype="uint8") if self.bits == 4 else stored

    @property
    def matrix(self) -> QuantizedArray | Array:
        """The codes with their scales and zero points; float32 if a QuantizedArray cannot represent them."""
        g, lines = self.geometry, self._as_stored()
        if g.order == tuple(range(len(g.order))) and self._lines_shape == g.lines_shape:
            return lines
        floats: Array = g.transposed(g.arranged(_as_floats(lines).T))
        return floats

    def _as_stored(self) -> QuantizedArray | Array:
        """Return the stored matrix, (outputs, inputs); floats if no QuantizedArray can hold it."""
        scale, zero = ops.cast(self.variables["kernel_scale"].numpy(), F32), self.variables["kernel_zero"].numpy()
        read, group = group_reader(self.geometry.owner, self._group, scale.shape[1]), min(self._group, LARGEST_GROUP)
        index, in_runs = self.variables["g_idx"].derived(("groups", scale.shape), read)
        if in_runs and self.bits <= 4 and zero.size and zero.max() <= 15:
            codes, zero = (part.astype(I8) - I8.type(8) for part in (self._codes, zero))
            pairs = pack_int4(codes, axis=-1)[0].view(np.uint8)
            return QuantizedArray(pairs, scale, zero if zero.any() else None, (0,), group, _INT4, codes.shape)
        return grouped(self._codes, scale, zero, index, group if in_runs else None, 1)


class KerasAWQ(KerasGPTQ):
    """Codes of 4 bits of the kernel times ``awq_scales``, which protect the weights of large inputs.

    Inputs are divided by these scales, and rounded to their dtype, before the product. Without a sample the scales
    are 1.

    References
    ----------
    J. Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", MLSys 2024.
    """

    name = "awq"

    def variables_of(self) -> dict[str, Variable]:
        """Return the variables for codes, scales, zero points, the scales of inputs and their groups."""
        variables = super().variables_of()
        groups = variables.pop("g_idx")
        scales = Variable((self._lines_shape[1],), None, "ones", late=True)
        return variables | {"awq_scales": scales, "g_idx": groups}

    def encoded(self, floats: Array, dtype: str) -> dict[str, Array]:
        """Return the nearest codes; all scales of inputs are 1."""
        return super().encoded(floats, dtype) | {"awq_scales": np.ones(self._lines_shape[1], F32)}

    def fitted(self, floats: Array, seen: InputStatistics, settings: Mapping[str, Any], dtype: str) -> dict[str, Array]:
        """Return the values of the variables, with the best scales of a grid of ratios (``num_grid_points``).

        With m the largest magnitude of each input, ratio r has the scales ``max(m^r, 1e-4)``, divided by the root of
        the product of their smallest and largest. The best ones have the smallest ``sum (m E)^2``, E the error of the
        kernel: the first of them, if several have.
        """
        lines, group = self._lines(floats), self._group
        largest = ops.cast(np.maximum(-seen.low, seen.high), F32)
        largest = np.where(largest < F32.type(1e-8), F32.type(1), largest)
        points, best, least = int(settings.get("num_grid_points", _POINTS)), None, np.inf
        for point in range(points + 1):
            scales = np.maximum(ops.power(largest, point / points), F32.type(1e-4))
            scales = scales / np.maximum(np.sqrt(scales.max() * scales.min()), F32.type(1e-8))
            scales = ops.cast(ops.cast(scales, dtype), F32)
            grid = _Grid.of(lines * scales, self.bits, group, False, dtype)
            codes = grid.codes(lines * scales)
            cost = float(ops.sum(np.square((lines - grid.numbers(codes) / scales) * largest)))
            if best is None or cost < least:
                best, least = self._values(codes, grid) | {"awq_scales": scales}, cost
        assert best is not None
        return best

    @property
    def matrix(self) -> QuantizedArray | Array:
        """The kernel as float32: a QuantizedArray has no scales of inputs."""
        g, lines = self.geometry, _as_floats(self._as_stored()) / self._scales
        floats: Array = g.transposed(g.arranged(lines.T))
        return floats

    @property
    def _scales(self) -> Array:
        """The scales of the inputs, in the order of the stored matrix."""
        scales = ops.cast(self.variables["awq_scales"].numpy(), F32)
        if not (np.isfinite(scales) & (scales > 0)).all():
            raise ValueError(f"`awq_scales` of layer '{self.geometry.owner}' must be positive and finite")
        return scales

    def _product(self, dtype: np.dtype[Any]) -> Product:
        """Pack the codes for rows of a dtype, and return the function that divides rows and multiplies them."""
        g, scales = self.geometry, self._scales
        if g.order != tuple(range(len(g.order))) or self._lines_shape != g.lines_shape or g.groups > 1:
            return super()._product(dtype)
        multiply, _ = product_of(self._as_stored(), None, False, dtype)

        def product(
            rows: Array, bias: Any, activation: Activation | None, compute: Any,
            windows: Windows | None = None, out_dtype: Any = None,
        ) -> Array:  # fmt: skip
            rows = rows if windows is None else rows_of_windows(rows, windows)  # each has its own place in `scales`
            rows = ops.cast(ops.divide(rows, scales), dtype)
            divided: Array = multiply(rows, bias, activation, compute, out_dtype=out_dtype)
            return divided

        return product


def _groups(inputs: int, group: int) -> Array:
    """Return the group of each input: consecutive inputs."""
    return (np.arange(inputs) // group).astype(np.float32)


def _as_floats(lines: QuantizedArray | Array) -> Array:
    return lines if isinstance(lines, np.ndarray) else dequantize(lines)
