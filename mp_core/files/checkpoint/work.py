"""Convert one tensor box by box: read, cast or quantize, write and measure."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from mp_core.arrays import F32, F64, FORMATS, I8, Array, cast
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.quantization import QuantizedArray, dequantize, quantize
from mp_core.core import pointwise
from mp_core.files.checkpoint.coding import BOX, Box, Coding, boxes
from mp_core.files.checkpoint.conversion_plan import Planned
from mp_core.files.checkpoint.errors import Sums, count
from mp_core.files.checkpoint.header import Entry
from mp_core.files.checkpoint.output import OutFile
from mp_core.files.checkpoint.packed import Packed
from mp_core.files.checkpoint.pool import Pool
from mp_core.files.checkpoint.tensors import File
from mp_core.policies.dtype_policies.schemes import Scheme

__all__ = ["Work", "steps"]


@dataclass(frozen=True, slots=True)
class Work:
    """The conversion of one tensor from `source` to `out`; `entries` are the places of tensors in the new file."""

    plan: Planned
    source: File
    out: OutFile
    entries: dict[str, Entry]
    saturate: bool

    def parts(self, pool: Pool) -> Generator[Sums]:
        """Write the tensor in parts; yield the sums of the errors of each part."""
        tensor, coding = self.plan.tensor, self.plan.coding
        if self.plan.dtype is not None:
            yield from pool.each(partial(self._cast, self.plan.dtype), _boxes(self.plan))
        elif tensor.packed is not None and coding is None:
            yield from pool.each(self._copy_packed, [tensor.packed])
        elif coding is None:
            for name, entry in tensor.parts.items():
                yield from pool.each(partial(self._copy, name), boxes(1, prod(entry.shape)))
        elif _passes(self.plan) == 1:
            yield from pool.each(partial(self._quantize, coding, None), _boxes(self.plan))
        else:
            ends = np.zeros((prod(coding.scale_shape[:-1]), 2), F32)
            for lines, least, most in pool.each(self._ends, _boxes(self.plan)):
                np.minimum.at(ends[:, 0], lines // coding.lines_per_scale, least)
                np.maximum.at(ends[:, 1], lines // coding.lines_per_scale, most)
                yield Sums()
            if coding.group_size:
                whole = float(np.abs(ends).max())
                yield from pool.each(partial(self._quantize, coding, whole), _boxes(self.plan))
                return
            q, bound = self._scales(coding, ends)
            self._write_scales(q, 0)
            yield from pool.each(partial(self._quantize_by, coding, q, bound), _boxes(self.plan))

    def _copy(self, name: str, box: Box) -> Sums:
        entry = self.plan.tensor.parts[name]
        size = entry.dtype.itemsize
        content = self.source.bytes(entry.start + box.begin * size, (box.end - box.begin) * size).view(entry.dtype)
        self._write(name, content, box.begin)
        if entry.dtype.kind in "biu":
            return Sums()
        return Sums(nan=count(np.isnan(_widened(content) if is_float(entry.dtype) else content)))

    def _copy_packed(self, packed: Packed) -> Sums:
        """Write a weight of another program as mp_core stores it."""
        for name, value in self.source.unpacked(packed).items():
            if not isinstance(value, QuantizedArray):
                self._write(name, value, 0)
                continue
            self._write(name, value.values, 0)
            self._write_scales(value, 0)
        return Sums()

    def _cast(self, dtype: np.dtype[Any], box: Box) -> Sums:
        tensor = self.plan.tensor
        x = self.source.box(tensor, box)
        y = cast(x, dtype)
        x, restored, overflow = _widened(x), _widened(y), 0
        if self.saturate:
            overflow = count(~np.isfinite(restored) & ~np.isnan(x))
            if overflow:
                y = cast(x, dtype, saturate=True)
                restored = _widened(y)
        self._write(tensor.name, y, box.first * tensor.length + box.begin)
        return Sums.of(x, restored, overflow)

    def _ends(self, box: Box) -> tuple[Array, Array, Array]:
        """Return the indices of the lines of a box, min(0, smallest number) and max(0, largest number) of each."""
        x = cast(self._finite(box), F32)
        finite = np.isfinite(x)
        least, most = x.min(axis=1, initial=0, where=finite), x.max(axis=1, initial=0, where=finite)
        return np.arange(box.first, box.last), least, most

    def _scales(self, coding: Coding, ends: Array) -> tuple[QuantizedArray, Array]:
        """Return a quantized array with the scales for numbers between `ends`, and the largest magnitude in range."""
        if not _scheme(self.plan).symmetric:  # quantize clips to the range of the codes itself
            return quantize(ends, axis=0, dtype=coding.dtype, symmetric=False), np.full((len(ends), 1), np.inf, F32)
        # Quantizing the largest magnitude gives its scale. Lines of zeros get the scale of infinity, which is 1.
        peaks = np.abs(ends).max(axis=1, keepdims=True)
        largest = quantize(np.where(peaks, peaks, np.float32(np.inf)), axis=0, dtype=coding.dtype)
        return largest, dequantize(largest)

    def _quantize(self, coding: Coding, whole: float | None, box: Box) -> Sums:
        """Quantize a box that has all values on which its scales depend; `whole` is the largest of the tensor."""
        x = self._finite(box)
        shape = x.shape if coding.group_size else (-1, coding.lines_per_scale, x.shape[1])
        q = _scheme(self.plan).quantize(cast(x, F32).reshape(shape), whole)
        row = box.first // coding.lines_per_scale
        column = box.begin // coding.group_size if coding.group_size else 0
        self._write_scales(q, row * coding.groups + column)
        return self._write_codes(coding, box, x, q)

    def _quantize_by(self, coding: Coding, scales: QuantizedArray, bound: Array, box: Box) -> Sums:
        """Quantize a box with given scales; clip numbers to [-bound, bound]."""
        x = self.source.box(self.plan.tensor, box)
        rows = np.arange(box.first, box.last) // coding.lines_per_scale
        clipped = np.clip(cast(x, F32), -bound[rows], bound[rows])
        zeros = None if scales.zero_point is None else scales.zero_point[rows]
        q = quantize(clipped, axis=0, dtype=coding.dtype, scale=scales.scale[rows], zero_point=zeros)
        return self._write_codes(coding, box, x, q)

    def _finite(self, box: Box) -> Array:
        """Return a box of the tensor; raise ValueError, with the index, if it has a NaN or infinity."""
        tensor = self.plan.tensor
        x = self.source.box(tensor, box)
        if not (np.isfinite(x).all() if x.dtype == F64 else pointwise.all_finite(FORMATS[x.dtype], x)):
            line, column = np.argwhere(~np.isfinite(x))[0]
            place = np.unravel_index((box.first + line) * tensor.length + box.begin + column, tensor.shape)
            raise ValueError(
                f"{self.source.path}: {tensor.name!r} must be finite to be quantized; received {x[line, column]} at "
                f"{tuple(map(int, place))}; use keep (--keep) to copy it instead"
            )
        return x

    def _write_codes(self, coding: Coding, box: Box, x: Array, q: QuantizedArray) -> Sums:
        width = coding.stored[1][-1]
        self._write(self.plan.tensor.name, q.values, box.first * width + box.begin // coding.codes_per_element)
        return Sums.of(_widened(x), dequantize(q), count(np.isinf(cast(x, F32))))

    def _write_scales(self, q: QuantizedArray, index: int) -> None:
        """Write scales and zero points, beginning at the scale `index`."""
        name = self.plan.tensor.name
        self._write(f"{name}.scale", q.scale, index)
        if q.zero_point is not None:
            self._write(f"{name}.zero_point", q.zero_point.astype(I8), index)

    def _write(self, name: str, array: Array, index: int) -> None:
        """Write elements of a tensor of the file, beginning at the element `index`."""
        entry = self.entries[name]
        self.out.write(np.ascontiguousarray(array), entry.start + index * entry.dtype.itemsize)


def _boxes(plan: Planned) -> Iterator[Box]:
    return boxes(plan.tensor.lines, plan.tensor.length, plan.coding.lines_per_scale if plan.coding else 1)


def _passes(plan: Planned) -> int:
    """Return how often the values are read: twice if a scale depends on more values than fit into a box."""
    coding, lines = plan.coding, prod(plan.tensor.shape[:-1])
    if coding is None:
        return 1
    if coding.group_size:
        return 2 if _scheme(plan).depends_on_all and lines * plan.tensor.length > BOX else 1
    return 2 if coding.lines_per_scale * plan.tensor.length > BOX else 1


def _scheme(plan: Planned) -> Scheme:
    assert plan.scheme is not None  # whoever plans codes plans their scheme
    return plan.scheme


def steps(plan: Planned) -> int:
    """Return the number of parts that :meth:`Work.parts` yields."""
    if plan.is_copy and plan.tensor.packed is not None:
        return 1
    if plan.is_copy:
        return sum(1 for entry in plan.tensor.parts.values() for _ in boxes(1, prod(entry.shape)))
    return _passes(plan) * sum(1 for _ in _boxes(plan))


def _widened(x: Array) -> Array:
    """Return floats exactly as float64 or float32, in which NumPy computes fast."""
    return x if x.dtype == F64 else cast(x, F32)
