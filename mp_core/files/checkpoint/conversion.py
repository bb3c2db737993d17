"""Convert a checkpoint of any size into another type, in bounded memory."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

from mp_core.files.checkpoint.coding import SUFFIXES
from mp_core.files.checkpoint.conversion_plan import Planned, RequestError, Rules, strings
from mp_core.files.checkpoint.errors import Sums, Threshold, failures
from mp_core.files.checkpoint.folder import Checkpoint, Index, Shard, matches, open_checkpoint, refuse_tools
from mp_core.files.checkpoint.header import Entry, write_header
from mp_core.files.checkpoint.loading import policies_of
from mp_core.files.checkpoint.mark import copy_files, dtype_of_most, set_dtype, update_config
from mp_core.files.checkpoint.output import OutFile, check_free, check_space, replace, temporary_beside
from mp_core.files.checkpoint.packed_writing import check_home, group_of, kinds_of, write_compressed
from mp_core.files.checkpoint.pool import Pool
from mp_core.files.checkpoint.sources import as_safetensors
from mp_core.files.checkpoint.tensors import File, metadata_of
from mp_core.files.checkpoint.work import Work, steps
from mp_core.utilities.arguments import path_of
from mp_core.utilities.html import Report
from mp_core.utilities.progress import progress

__all__ = [
    "LAYOUTS_TO",
    "MAX_MEMORY",
    "PlannedShard",
    "convert",
    "plan_shards",
    "row_of",
    "write_beside",
    "write_shard",
]

MAX_MEMORY = 2**29
"""Default bytes of working memory."""
LAYOUTS_TO = "mp_core", "compressed-tensors"
"""Whose layouts a conversion can write."""


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    policy: str,
    *,
    map: Sequence[tuple[str, str]] | Mapping[str, str] = (),
    keep: Sequence[str] = (),
    exclude: Sequence[str] = (),
    saturate: bool = True,
    force: bool = False,
    dry_run: bool = False,
    max_memory: int = MAX_MEMORY,
    threads: int | None = None,
    fail_if: Sequence[str] = (),
    allow_requantize: bool = False,
    show_progress: bool = False,
    to: str = "mp_core",
) -> dict[str, Any]:
    """Write a checkpoint in another type and measure the errors.

    Tensors of mp_core's six float types are cast to one of them or, if they have two or more axes, quantized to 8 or 4
    bits with float32 scales (int4: and zero points). All others are copied. Codes of other tools are read if they are
    float8 with scales; other codes raise an error. `target` appears only when everything is on the disk and no tensor
    has failed. A corrupt file, and a tensor to be quantized that has an infinity or NaN, raise ValueError; an argument
    that does not fit the checkpoint raises :class:`RequestError`.

    Parameters
    ----------
    source : path
        A safetensors file, the ``.safetensors.index.json`` of a model in several files, or a folder: all its files
        except hidden ones are converted or copied. Or a file of ``torch.save`` (``.bin``, ``.pt``, ``.pth``; no code
        in it is run), a GGUF or an ONNX file, or a folder with ``pytorch_model.bin``: these are first written as
        safetensors, beside `target`.
    target : path
        A file if `source` is one, else a folder. Two exceptions: if `source` is a file and `target` an existing folder,
        the result goes into it under the name of `source`; if `source` is a folder with one safetensors file and
        `target` ends in ``.safetensors``, the result is that one file.
    policy : str
        A type of floats (``"float32"``, ``"float16"``, ``"bfloat16"``), the spelling of a scheme (``"int8"``,
        ``"int8/weight_only/64"``, ``"int4/64"``, ``"float8_e4m3fn"``, ...), or the name of the policy under which
        layers use the tensors. ``"int8"`` means ``"int8_from_mixed_bfloat16"``. A channel is an index of the
        first axis; a group is 2, 4, 8, ... or 32768 neighbours along the last axis. Schemes with fixed inputs need a
        sample of the inputs: :func:`mp_core.calibrate` the model and save it.
    map : mapping or sequence of (str, str)
        Regular expressions and policies: the first that matches anywhere in a tensor's name replaces `policy`.
    keep : sequence of str
        Regular expressions: tensors whose names match are copied, even if `map` matches too.
    exclude : sequence of str
        Shell patterns. A file is left out if one matches the end of its path, or of the path of a folder that it is
        in. Weights in other formats, such as ``pytorch_model.bin`` and ``onnx/``, are always left out.
    saturate : bool
        Whether values beyond a float type's range become its largest number instead of infinity.
    force : bool
        Whether to replace `target`; a folder is replaced only if the conversion would write every file in it. A file
        of `source` is never replaced.
    dry_run : bool
        Whether to stop before reading values: then the report has only types and sizes.
    max_memory : int
        Bytes of working memory.
    threads : int, optional
        Default: :func:`mp_core.config.get_num_threads`. The files do not depend on it.
    fail_if : sequence of str
        Conditions such as ``"sqnr<30"`` on the measures below; a tensor that meets one fails.
    allow_requantize : bool
        Whether tensors that are quantized already may be quantized again.
    show_progress : bool
        Whether to show a bar on stderr (needs tqdm).
    to : {"mp_core", "compressed-tensors"}
        Whose layout the codes have. transformers with compressed-tensors opens the second, if `target` is a folder; it
        holds no fixed scales of inputs and no ``float8_e5m2``.

    Returns
    -------
    dict
        ``source``, ``target``, ``to``, ``policy``, ``bytes`` and ``new_bytes`` of all tensors, ``left_out`` (files),
        ``codes`` (the number of tensors that are codes), ``failed`` (a line for each failure) and ``tensors``: for
        each its ``name``, ``file``, ``shape``, ``dtype``, ``new_dtype``, ``bytes``, ``new_bytes``, the measures
        ``max_abs_error``, ``rel_rmse`` (relative to the RMS of the tensor), ``sqnr`` (decibels), ``cosine``, and the
        numbers of elements that went out of range (``overflow``), became 0 (``flushed``), or are ``nan``.

    Examples
    --------
    >>> report = convert("model.safetensors", "small.safetensors", "int8", keep=["embed"])  # doctest: +SKIP
    >>> min(tensor["sqnr"] for tensor in report["tensors"])  # doctest: +SKIP
    37.9
    """
    if to not in LAYOUTS_TO:
        raise ValueError(f"`to` must be {' or '.join(repr(known) for known in LAYOUTS_TO)}; received {to!r}")
    exclude = strings(exclude, "exclude")
    rules = Rules.parse(policy, map, keep, allow_requantize)
    thresholds = [Threshold.parse(condition) for condition in strings(fail_if, "fail_if")]
    path = Path(os.path.realpath(path_of(target, "target")))
    as_folder, target = os.fspath(target).endswith(os.sep), path
    with as_safetensors(path_of(source, "source"), path, exclude) as given, Pool(threads, max_memory) as pool:
        checkpoint = open_checkpoint(given, exclude)
        checkpoint, target = _resolve(checkpoint, target, as_folder)
        _check_excluded(checkpoint, exclude)
        refuse_tools(checkpoint)
        shards = plan_shards(checkpoint, rules)
        rows = [row_of(shard.source, plan) for shard in shards for plan in shard.plans]
        if to != LAYOUTS_TO[0]:
            _count_packed(checkpoint, shards, rows)
        report = Report(
            source=os.fspath(source),
            target=os.fspath(target),
            to=to,
            policy=rules.policy.name,
            bytes=sum(row["bytes"] for row in rows),
            new_bytes=sum(row["new_bytes"] for row in rows),
            left_out=checkpoint.left_out,
            codes=sum(plan.new_coding is not None for shard in shards for plan in shard.plans),
            failed=[],
            tensors=rows,
        )
        names = checkpoint.files
        if checkpoint.folder.resolve() in target.parents and not checkpoint.is_file:
            raise RequestError(f"the target {target} is inside the folder that is converted; choose another place")
        inputs = checkpoint.paths
        check_free(target, names, inputs, force=force)
        if dry_run:
            return report
        check_space(target.parent, report["new_bytes"])
        with temporary_beside(target) as temporary:
            written = _convert(checkpoint, shards, temporary, rows, rules.policy.name, saturate, pool)
            total = sum(steps(plan) for shard in shards for plan in shard.plans)
            for _ in progress(written, show=show_progress, total=total, unit="block"):
                pass
            report["failed"] = failures(rows, thresholds)
            if to != LAYOUTS_TO[0]:
                write_compressed(temporary)
            if not report["failed"]:
                replace(temporary, target, names, inputs, force=force)
    return report


def _resolve(checkpoint: Checkpoint, target: Path, as_folder: bool) -> tuple[Checkpoint, Path]:
    """Return source and target such that both are files or both are folders."""
    as_folder |= target.is_dir()
    if checkpoint.is_file:
        if as_folder and not target.is_dir():
            raise RequestError(f"the target {target}{os.sep} is not a folder")
        (name,) = checkpoint.shards
        return checkpoint, target / name if as_folder else target
    if target.suffix != ".safetensors" or as_folder:
        return checkpoint, target
    if len(checkpoint.shards) > 1:
        found = f"{checkpoint.folder} has {len(checkpoint.shards)} safetensors files"
        raise RequestError(f"{found}: the target must be a folder; received {target}")
    (shard,) = checkpoint.shards.values()
    return open_checkpoint(shard.path), target


def _check_excluded(checkpoint: Checkpoint, exclude: Sequence[str]) -> None:
    for pattern in exclude:
        if not any(matches(name, pattern) for name in checkpoint.left_out):
            raise RequestError(f"the pattern {pattern!r} excludes no file")
    for name in checkpoint.left_out:
        if name in checkpoint.shards:
            raise RequestError(f"{name!r} cannot be excluded: an index lists it")


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A file that will be written."""

    source: Shard
    plans: list[Planned]
    policies: dict[str, str]
    """Tensor -> policy, for tensors whose policy is not that of the file."""
    head: bytes
    entries: dict[str, Entry]


def plan_shards(checkpoint: Checkpoint, rules: Rules) -> list[PlannedShard]:
    """Plan the contents of every file."""
    before = {shard.name: policies_of(shard) for shard in checkpoint.shards.values()}
    known = [
        (tensor, before[shard.name][1].get(tensor.name, before[shard.name][0])) for shard, tensor in checkpoint.tensors
    ]
    plans = iter(rules.plan(known))
    shards = []
    for shard in checkpoint.shards.values():
        own = list(islice(plans, len(shard.tensors)))
        parts: dict[str, Any] = {}
        for plan in own:
            for name in parts.keys() & plan.parts:
                raise RequestError(
                    f"{shard.path}: two tensors would have the name {name!r}; use keep (--keep) for the tensor whose "
                    "codes add it"
                )
            parts |= plan.parts
            for name in (f"{plan.tensor.name}.{suffix}" for suffix in SUFFIXES[1:]):
                if plan.coding is not None and name in shard.tensors:
                    raise RequestError(
                        f"{shard.path}: {name!r} would be read as a part of the codes of {plan.tensor.name!r}; use "
                        f"keep (--keep) for {plan.tensor.name!r}"
                    )
        codings = {plan.tensor.name: plan.new_coding for plan in own if plan.new_coding is not None}
        others = {plan.tensor.name: plan.policy for plan in own if plan.policy not in (None, rules.policy.name)}
        metadata = metadata_of(shard.header.metadata, codings, rules.policy.name, others)
        shards.append(PlannedShard(shard, own, others, *write_header(parts, metadata)))
    for index in checkpoint.indices:
        names = [name for shard in shards if shard.source.name in index.shards for name in shard.entries]
        for name, times in Counter(names).items():
            if times > 1:
                raise RequestError(
                    f"{index.name}: two tensors would have the name {name!r}; use keep (--keep) for the tensor whose "
                    "codes add it"
                )
    return shards


def row_of(shard: Shard, plan: Planned) -> dict[str, Any]:
    """Return the row of a report for a tensor, without measures."""
    tensor = plan.tensor
    return {
        "name": tensor.name,
        "file": shard.name,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "new_dtype": plan.new_dtype,
        "bytes": tensor.nbytes,
        "new_bytes": plan.nbytes,
    }


def _count_packed(checkpoint: Checkpoint, shards: Sequence[PlannedShard], rows: Sequence[dict[str, Any]]) -> None:
    """Set the new bytes of codes in the layouts of compressed-tensors; raise RequestError if these cannot hold one."""
    of_plans = ((shard.source, plan) for shard in shards for plan in shard.plans)
    for row, (shard, plan) in zip(rows, of_plans, strict=True):
        if plan.gives_codes:
            name, zeros = plan.tensor.name, f"{plan.tensor.name}.zero_point" in plan.parts
            coding = plan.coding or plan.tensor.coding
            assert coding is not None
            group = group_of(name, coding, zeros, plan.policy)
            check_home(checkpoint, shard)
            kinds = kinds_of(name, coding, zeros, group["format"])
            row["new_bytes"] = sum(prod(shape) * dtype.itemsize for dtype, shape in kinds.values())


def _convert(
    checkpoint: Checkpoint,
    shards: Sequence[PlannedShard],
    folder: Path,
    rows: Sequence[dict[str, Any]],
    policy: str,
    saturate: bool,
    pool: Pool,
) -> Iterator[None]:
    """Write all files; add the measures to the rows; yield after every step."""
    remaining = iter(rows)
    for shard in shards:
        path = folder if checkpoint.is_file else folder / shard.source.name
        yield from write_shard(shard, path, islice(remaining, len(shard.plans)), saturate, pool)
    write_beside(checkpoint, shards, folder, policy)


def write_shard(
    shard: PlannedShard, path: Path, rows: Iterable[dict[str, Any]], saturate: bool, pool: Pool
) -> Iterator[None]:
    """Write one file; add the measures of its tensors to their rows; yield after every step."""
    with File(shard.source.path) as source, OutFile(path) as out:
        out.write(shard.head, 0)
        for plan, row in zip(shard.plans, rows, strict=True):
            sums = Sums()
            with closing(Work(plan, source, out, shard.entries, saturate).parts(pool)) as parts:
                for part in parts:
                    sums += part
                    yield
            row.update(sums.metrics())


def write_beside(checkpoint: Checkpoint, shards: Sequence[PlannedShard], folder: Path, policy: str) -> None:
    """Write the files that have no tensors."""
    beside: dict[str, list[PlannedShard]] = {}
    for shard in shards:
        beside.setdefault(Path(shard.source.name).with_name("config.json").as_posix(), []).append(shard)
    changes = {name: partial(_config, own, policy) for name, own in beside.items()}
    copy_files(checkpoint.folder, folder, checkpoint.others, changes)
    for index in checkpoint.indices:
        own = [shard for shard in shards if shard.source.name in index.shards]
        with OutFile(folder / index.name) as out:
            out.write(_index(index, own), 0)


def _config(shards: Sequence[PlannedShard], policy: str, content: bytes) -> bytes:
    """Return the content of the ``config.json`` beside these shards, updated to describe them."""
    plans = [plan for shard in shards for plan in shard.plans]
    foreign = [plan for plan in plans if plan.tensor.coding and plan.tensor.coding.blocks is not None]
    decoded = bool(foreign) and not any(plan.is_copy for plan in foreign)
    decoded |= any(plan.tensor.packed is not None for plan in plans)  # copies of these are codes of mp_core
    codes = any(plan.new_coding is not None for plan in plans)
    policies = {name: own for shard in shards for name, own in shard.policies.items()}
    return update_config(content, policy, policies, dtype=_dtype(shards), codes=codes, decoded=decoded)


def _dtype(shards: Sequence[PlannedShard]) -> str | None:
    """Return the dtype of most numbers in the new files; codes and their scales do not count."""
    plans = (plan for shard in shards for plan in shard.plans if not plan.gives_codes)
    return dtype_of_most((plan.new_dtype, prod(plan.tensor.shape)) for plan in plans)


def _index(index: Index, shards: Sequence[PlannedShard]) -> bytes:
    """Return the content of the index of the new shards."""
    files = {name: Path(shard.source.name).name for shard in shards for name in shard.entries}
    size = sum(plan.nbytes for shard in shards for plan in shard.plans)
    metadata = index.content["metadata"] | {"total_size": size}
    set_dtype(metadata, _dtype(shards))
    content = index.content | {"metadata": metadata, "weight_map": files}
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"
