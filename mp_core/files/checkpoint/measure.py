"""List the contents of a checkpoint, and compare two checkpoints."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, astuple, dataclass
from functools import partial
from typing import Any

import numpy as np

from mp_core.arrays import F32, F64, Array, cast
from mp_core.arrays.dtypes import is_float
from mp_core.files.checkpoint.coding import Box, boxes
from mp_core.files.checkpoint.errors import Sums, as_float64, count
from mp_core.files.checkpoint.folder import Shard, open_checkpoint, unique_tensors
from mp_core.files.checkpoint.pool import Pool
from mp_core.files.checkpoint.tensors import File, Tensor
from mp_core.utilities.arguments import number, path_of
from mp_core.utilities.html import Report
from mp_core.utilities.progress import progress

__all__ = ["inspect", "verify"]

_MEMORY = 2**28  # bytes of working memory
_LARGEST, _SMALLEST = 65504.0, 2.0**-14  # float16's largest number and smallest normal number


@dataclass(frozen=True, slots=True)
class _Range:
    """The range of the values of a part of a tensor, and how many do not fit into float16."""

    max_abs: float = 0.0
    above_float16: int = 0
    below_float16: int = 0
    infinite: int = 0
    nan: int = 0

    @classmethod
    def of(cls, x: Array) -> "_Range":
        magnitude = np.abs(as_float64(x))
        finite = magnitude[np.isfinite(magnitude)]
        infinite = count(np.isinf(magnitude))
        return cls(
            float(finite.max(initial=0.0)),
            count(finite > _LARGEST),
            count((finite < _SMALLEST) & (finite > 0)),
            infinite,
            magnitude.size - finite.size - infinite,
        )

    def metrics(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)

    def __add__(self, other: "_Range") -> "_Range":
        largest, *counts = zip(astuple(self), astuple(other), strict=True)
        return _Range(max(largest), *map(sum, counts))


def inspect(path: str | os.PathLike[str], *, threads: int | None = None, show_progress: bool = False) -> dict[str, Any]:
    """List the tensors of a checkpoint, the range of their values, and how many do not fit into float16.

    Parameters
    ----------
    path : path
        A safetensors file, the ``.safetensors.index.json`` of a model in several files, or a folder.
    threads : int, optional
        Default: :func:`mp_core.config.get_num_threads`.
    show_progress : bool
        Whether to show a bar on stderr (needs tqdm).

    Returns
    -------
    dict
        ``path``, ``bytes``, ``metadata`` (by file), ``left_out`` (weights in other formats, and links that lead out of
        the folder) and ``tensors``: for each its ``name``, ``file``, ``shape``, ``dtype``, ``bytes``, ``quantization``
        (the entry of the metadata, or None), ``tool`` (the tool that wrote the tensor if mp_core cannot read its
        codes, or None), ``layout`` (of another program, whose codes mp_core reads, or None), ``note`` (what mp_core
        does otherwise than that program, or None), the largest finite magnitude ``max_abs``, and the numbers of
        elements above float16's range (``above_float16``), below its normal numbers but not 0 (``below_float16``),
        ``infinite`` and ``nan``.
        Codes are measured as the numbers that they decode to.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import mp_core as mp
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "model.safetensors")
    ...     mp.checkpoint.save_tensors(path, {"bias": np.float32([1, 1e5])}, policy="float32")
    ...     row = inspect(path)["tensors"][0]
    >>> row["name"], row["max_abs"], row["above_float16"]
    ('bias', 100000.0, 1)
    """
    checkpoint = open_checkpoint(path_of(path, "path"), skip_links=True)
    tasks = [_Task(_contents(shard, tensor), tensor, (shard,), _range) for shard, tensor in checkpoint.tensors]
    rows = _run(tasks, _Range(), threads, show_progress)
    return Report(
        path=os.fspath(path),
        bytes=sum(row["bytes"] for row in rows),
        left_out=checkpoint.left_out,
        metadata={name: shard.header.metadata for name, shard in checkpoint.shards.items()},
        tensors=rows,
    )


def verify(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    rtol: float = 0.0,
    threads: int | None = None,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Compare two checkpoints of one model; codes are compared as the numbers that they decode to.

    Parameters
    ----------
    a, b : path
        Safetensors files, ``.safetensors.index.json`` files or folders, in any combination.
    rtol : float
        A tensor fails if its `rel_rmse`, the RMS of the differences relative to the RMS of `a`, exceeds `rtol`.
    threads : int, optional
        Default: :func:`mp_core.config.get_num_threads`.
    show_progress : bool
        Whether to show a bar on stderr (needs tqdm).

    Returns
    -------
    dict
        ``a``, ``b``, ``rtol``, ``failed`` (a line for each tensor that only one of them has, whose shapes differ, or
        whose error exceeds `rtol`) and ``tensors``, for those that both have: ``name``, ``shape``, ``dtype``,
        ``new_dtype``, ``bytes``, ``new_bytes`` and the measures of :func:`convert`.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import mp_core as mp
    >>> with TemporaryDirectory() as folder:
    ...     a, b = Path(folder, "a.safetensors"), Path(folder, "b.safetensors")
    ...     mp.checkpoint.save_tensors(a, {"w": np.float32([3, 4])}, policy="float32")
    ...     mp.checkpoint.save_tensors(b, {"w": np.float32([3, 4.5])}, policy="float32")
    ...     report = verify(a, b, rtol=0.05)
    >>> report["failed"]  # 0.5 / sqrt(3**2 + 4**2)
    ['w: rel_rmse is 0.1; at most 0.05 is allowed']
    """
    rtol = number(rtol, "rtol", 0.0)
    first, second = (unique_tensors(open_checkpoint(path)) for path in (path_of(a, "a"), path_of(b, "b")))
    failed = [f"{name}: only in {a}" for name in first if name not in second]
    failed += [f"{name}: only in {b}" for name in second if name not in first]
    tasks = []
    for name in (name for name in first if name in second):
        (shard, tensor), (other_shard, other) = first[name], second[name]
        if tensor.shape == other.shape:
            tasks.append(_Task(_pair(tensor, other), tensor, (shard, other_shard), partial(_compare, other)))
        else:
            failed.append(f"{name}: of shape {tensor.shape} and {other.shape}")
    rows = _run(tasks, Sums(), threads, show_progress)
    failed += [
        f"{row['name']}: rel_rmse is {row['rel_rmse']:.6g}; at most {rtol:g} is allowed"
        for row in rows
        if not row["rel_rmse"] <= rtol
    ]
    return Report(a=os.fspath(a), b=os.fspath(b), rtol=rtol, failed=failed, tensors=rows)


def _contents(shard: Shard, tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "file": shard.name,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "bytes": tensor.nbytes,
        "quantization": None if tensor.coding is None else tensor.coding.entry(),
        "tool": tensor.tool,
        "layout": None if tensor.packed is None else tensor.packed.spec.layout,
        "note": None if tensor.packed is None else tensor.packed.note or None,
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


@dataclass(frozen=True, slots=True)
class _Task:
    """A tensor to measure box by box, and the row that gets its measures."""

    row: dict[str, Any]
    tensor: Tensor
    shards: tuple[Shard, ...]
    measure: Callable[[Tensor, Sequence[File], Box], Any]


def _run(tasks: Sequence[_Task], zero: Any, threads: int | None, show_progress: bool) -> list[dict[str, Any]]:
    """Run the tasks; return their rows with the measures, each the sum of `zero` and the results of all boxes."""

    def steps() -> Iterator[None]:
        for task in tasks:
            total = zero
            with ExitStack() as stack:
                files = [stack.enter_context(File(shard.path)) for shard in task.shards]
                cut = boxes(task.tensor.lines, task.tensor.length)
                parts = stack.enter_context(closing(pool.each(partial(task.measure, task.tensor, files), cut)))
                for part in parts:
                    total += part
                    yield
            task.row.update(total.metrics())

    with Pool(threads, _MEMORY) as pool:
        total = sum(1 for task in tasks for _ in boxes(task.tensor.lines, task.tensor.length))
        for _ in progress(steps(), show=show_progress, total=total, unit="block"):
            pass
    return [task.row for task in tasks]


def _range(tensor: Tensor, files: Sequence[File], box: Box) -> _Range:
    x = files[0].box(tensor, box)
    return _Range.of(np.abs(_complex(x)) if x.dtype.kind == "c" else _wide(x))


def _compare(other: Tensor, tensor: Tensor, files: Sequence[File], box: Box) -> Sums:
    x, y = files[0].box(tensor, box), files[1].box(other, box)
    if "c" in (x.dtype.kind, y.dtype.kind):
        x, y = _complex(x).view(F64), _complex(y).view(F64)
    wide, other_wide = _wide(x), _wide(y)
    if not (is_float(x.dtype) and is_float(y.dtype)):  # neighbours above 2^53 are one float64
        other_wide = np.where(_differ(x, y) & (wide == other_wide), wide * (1 + 2.0**-52), other_wide)
    return Sums.of(wide, other_wide)


def _differ(x: Array, y: Array) -> Array:
    """Return where integers differ that are equal as float64; one of the two arrays may be floats."""
    with np.errstate(invalid="ignore"):
        if is_float(x.dtype):
            x = _wide(x).astype(y.dtype)
        elif is_float(y.dtype):
            y = _wide(y).astype(x.dtype)
    return np.not_equal(x, y)


def _complex(x: Array) -> Array:
    with np.errstate(invalid="ignore"):  # a signaling NaN would warn
        return x.astype(np.complex128)


def _wide(x: Array) -> Array:
    """Return values in float32 or float64, in which NumPy is fast."""
    return cast(x, F32 if is_float(x.dtype) and x.dtype != F64 else F64)
