"""What is in a checkpoint, and how far two are apart."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np

from mp_core.arrays import F32, F64, Array, cast
from mp_core.checkpoint.errors import Sums
from mp_core.checkpoint.folder import Shard, open_checkpoint, unique_tensors
from mp_core.checkpoint.pool import Pool
from mp_core.checkpoint.tensors import File, Tensor, boxes
from mp_core.dtypes import is_float
from mp_core.progress import progress

__all__ = ["inspect_file", "verify_files"]

_MEMORY = 2**28
_LARGEST, _SMALLEST = 65504.0, 2.0**-14  # float16's largest number and its smallest with all digits


@dataclass(frozen=True, slots=True)
class _Range:
    """What the values of a part of a tensor are like."""

    max_abs: float = 0.0
    above_float16: int = 0
    below_float16: int = 0
    infinite: int = 0
    nan: int = 0

    @classmethod
    def of(cls, x: Array) -> "_Range":
        magnitude = np.abs(np.asarray(x, np.float64))
        finite = magnitude[np.isfinite(magnitude)]
        infinite = int(np.count_nonzero(np.isinf(magnitude)))
        return cls(
            float(finite.max(initial=0.0)),
            int(np.count_nonzero(finite > _LARGEST)),
            int(np.count_nonzero((finite < _SMALLEST) & (finite > 0))),
            infinite,
            magnitude.size - finite.size - infinite,
        )

    def __add__(self, other: "_Range") -> "_Range":
        largest, *counts = zip(astuple(self), astuple(other), strict=True)
        return _Range(max(largest), *map(sum, counts))


def inspect_file(
    path: str | os.PathLike[str], *, threads: int | None = None, show_progress: bool = False
) -> dict[str, Any]:
    """Return what a checkpoint holds, and what of it other types could not.

    Parameters
    ----------
    path : path
        A safetensors file, the ``.safetensors.index.json`` of a model in several, or a folder.
    threads : int, optional
        Default: :func:`mp_core.config.get_num_threads`.
    show_progress : bool
        Whether to show a bar on stderr (needs tqdm).

    Returns
    -------
    dict
        ``path``, ``bytes``, ``metadata`` (by file) and ``tensors``: for each its ``name``, ``file``, ``shape``, ``dtype``,
        ``bytes``, ``quantization`` (the entry of the metadata, or None), the largest finite magnitude ``max_abs``, and the
        numbers of its elements that are above float16's range, below its normal numbers but not 0 (``below_float16``),
        ``infinite`` and ``nan``. Codes count as the numbers they stand for.

    Raises
    ------
    OSError
        A file is missing or cannot be read.
    ValueError
        A file is corrupt.
    """
    checkpoint = open_checkpoint(path)
    rows = [_contents(shard, tensor) for shard, tensor in checkpoint.tensors]

    def measure(pool: Pool) -> Iterator[None]:
        for row, (shard, tensor) in zip(rows, checkpoint.tensors, strict=True):
            total = _Range()
            with File(shard.path) as file:
                for part in pool.each(
                    lambda box, file=file, tensor=tensor: _Range.of(_wide(file.box(tensor, box))),
                    boxes(tensor.lines, tensor.length, pool.limit),
                ):
                    total += part
                    yield
            row.update(asdict(total))

    _run(measure, [tensor for _, tensor in checkpoint.tensors], threads, show_progress)
    return {
        "path": os.fspath(path),
        "bytes": sum(row["bytes"] for row in rows),
        "metadata": {name: shard.header.metadata for name, shard in checkpoint.shards.items()},
        "tensors": rows,
    }


def verify_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    rtol: float = 0.0,
    threads: int | None = None,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Compare two checkpoints of one model, as the numbers that their values or codes stand for.

    Parameters
    ----------
    a, b : path
        Safetensors files, ``.safetensors.index.json`` files or folders; not necessarily both of a kind.
    rtol : float
        The most `rel_rmse` that is no failure: the RMS of the differences, relative to that of `a`.
    threads : int, optional
        Default: :func:`mp_core.config.get_num_threads`.
    show_progress : bool
        Whether to show a bar on stderr (needs tqdm).

    Returns
    -------
    dict
        ``a``, ``b``, ``rtol``, ``failed`` (a line for each tensor that only one of them has, or that has another shape or
        is too far off) and ``tensors``, for those that both have: ``name``, ``shape``, ``dtype`` and ``new_dtype``,
        ``bytes`` and ``new_bytes``, and the measures of :func:`convert_file`.

    Raises
    ------
    OSError
        A file is missing or cannot be read.
    ValueError
        A file is corrupt, or `rtol` no number of at least 0.
    """
    if not rtol >= 0:
        raise ValueError(f"`rtol` must be a number of at least 0; received {rtol!r}")
    first, second = (unique_tensors(open_checkpoint(path)) for path in (a, b))
    failed = [f"{name}: only in {a}" for name in first if name not in second]
    failed += [f"{name}: only in {b}" for name in second if name not in first]
    common = [name for name in first if name in second]
    pairs = [(*first[name], *second[name]) for name in common if first[name][1].shape == second[name][1].shape]
    failed += [
        f"{name}: of shape {first[name][1].shape} and {second[name][1].shape}"
        for name in common
        if first[name][1].shape != second[name][1].shape
    ]
    rows = [_pair(tensor, other) for _, tensor, _, other in pairs]

    def measure(pool: Pool) -> Iterator[None]:
        for row, (shard, tensor, other_shard, other) in zip(rows, pairs, strict=True):
            total = Sums()
            with File(shard.path) as x, File(other_shard.path) as y:
                for part in pool.each(
                    lambda box, x=x, y=y, tensor=tensor, other=other: _compare(x.box(tensor, box), y.box(other, box)),
                    boxes(tensor.lines, tensor.length, pool.limit),
                ):
                    total += part
                    yield
            row.update(total.metrics())

    _run(measure, [tensor for _, tensor, _, _ in pairs], threads, show_progress)
    failed += [
        f"{row['name']}: rel_rmse is {row['rel_rmse']:.6g}; at most {rtol:g} is allowed"
        for row in rows
        if not row["rel_rmse"] <= rtol
    ]
    return {"a": os.fspath(a), "b": os.fspath(b), "rtol": rtol, "failed": failed, "tensors": rows}


def _contents(shard: Shard, tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "file": shard.name,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "bytes": tensor.nbytes,
        "quantization": None if tensor.scheme is None else tensor.scheme.entry(),
    }


def _pair(tensor: Tensor, other: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "new_dtype": other.dtype,
        "bytes": tensor.nbytes,
        "new_bytes": other.nbytes,
    }


def _run(
    measure: Callable[[Pool], Iterator[None]], tensors: Sequence[Tensor], threads: int | None, show_progress: bool
) -> None:
    with Pool(threads, _MEMORY) as pool:
        total = sum(1 for tensor in tensors for _ in boxes(tensor.lines, tensor.length, pool.limit))
        for _ in progress(measure(pool), show=show_progress, total=total, unit="block"):
            pass


def _compare(x: Array, y: Array) -> Sums:
    wide, other = _wide(x), _wide(y)
    if not (is_float(x.dtype) or is_float(y.dtype)):  # neighbours above 2^53 are one float64
        other = np.where((x != y) & (wide == other), wide * (1 + 2.0**-52), other)
    return Sums.of(wide, other)


def _wide(x: Array) -> Array:
    """Return any values in a type in which NumPy is fast."""
    return cast(x, F64 if not is_float(x.dtype) else F64 if x.dtype == F64 else F32)
