"""Embed many texts and convert large checkpoints on a dask cluster, in jobs that can be resumed."""

from collections.abc import Iterable, Mapping, Sequence
from filecmp import cmp
from os import PathLike
from pathlib import Path
from typing import Any

from mp_core.core.cpu import __version__
from mp_core.files.checkpoint import MAX_MEMORY, RequestError
from mp_core.files.checkpoint.conversion import PlannedShard, write_beside
from mp_core.files.checkpoint.folder import Checkpoint, open_checkpoint
from mp_core.files.checkpoint.output import replace, temporary_beside
from mp_core.files.checkpoint.places import path_in
from mp_core.interop.cluster import PartError, run
from mp_core.interop.manifest import Manifest, OutputPart, digest, digest_of_files
from mp_core.interop.sources import pieces
from mp_core.interop.tasks import FORMATS, ConversionTask, EmbeddingTask
from mp_core.interop.training import Workers
from mp_core.models import TextEncoder
from mp_core.policies.dtype_policies import DTypePolicy, policy_of, serialize
from mp_core.utilities.arguments import integer, path_of, positive_integer
from mp_core.utilities.extras import needed_by

with needed_by("mp_core.interop.dask"):
    from distributed import Client

__all__ = ["FORMATS", "PartError", "Workers", "convert_shards", "embed"]


def embed(
    client: Client,
    texts: Iterable[str] | Iterable[PathLike[str]],
    model: str | PathLike[str],
    policy: str | DTypePolicy | None,
    output: str | PathLike[str],
    *,
    format: str = "npy",
    part_size: int = 4096,
    batch_size: int = 32,
    normalize: bool | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    truncate_dim: int | None = None,
    retries: int = 2,
    force: bool = False,
    show_progress: bool | None = None,
) -> dict[str, Any]:
    """Embed texts on the workers of a cluster, into files of a folder; the bits are those of a single process.

    The workers must see the model, the files and the output under the same paths. Each worker opens the model once. To
    resume an interrupted or failed call, repeat it: parts that are done are kept. If the texts have changed, only the
    parts that differ are computed again.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.
    texts : iterable of str, or of paths
        Texts, which are sent to the workers; or files with one text per line, which the workers read.
    model, policy
        See :meth:`mp_core.models.TextEncoder.from_folder`.
    output : path
        A folder for the files ``part-000000.npy`` and so on. It is created; its parent folder must exist.
    format : str
        ``"npy"``: float32 arrays of shape (n, dim). ``"parquet"``: tables with the columns ``text`` and ``embedding``.
    part_size : int
        The most texts in a file.
    batch_size, normalize, prompt, prompt_name, truncate_dim
        See :meth:`mp_core.models.TextEncoder.encode`.
    retries : int
        How often to retry a part that failed for another reason than its inputs.
    force : bool
        Whether to replace the output of another job, such as one with another model or policy.
    show_progress : bool, optional
        Whether to show a bar on stderr (needs tqdm). Default: only if stderr is a terminal.

    Returns
    -------
    dict
        ``files`` (their paths, in the order of the texts), ``texts`` and ``cut`` (the number of texts, and of texts
        with more tokens than the model takes), ``done`` and ``kept`` (the number of files that this call wrote, and of
        files that existed already).

    Raises
    ------
    PartError
        Parts failed.
    FileExistsError
        `output` has files of another job (see `force`) or of no job.

    Examples
    --------
    >>> from distributed import Client  # doctest: +SKIP
    >>> report = embed(Client("scheduler:8786"), [Path("news.txt")], "minilm", "int8", "vectors")  # doctest: +SKIP
    >>> vectors = np.concatenate([np.load(file) for file in report["files"]])  # doctest: +SKIP
    """
    retries = _whole(retries, "retries")
    if format not in FORMATS:
        raise ValueError(f"`format` must be one of {', '.join(map(repr, FORMATS))}; received {format!r}")
    folder, target = _real(model, "model"), _real(output, "output")
    if folder in (target, *target.parents):
        raise FileExistsError(f"the output {target} is inside the model's folder; choose another place")
    found = pieces(texts, positive_integer(part_size, "part_size"))
    arguments: dict[str, Any] = {
        "normalize": normalize,
        "prompt": prompt,
        "prompt_name": prompt_name,
        "truncate_dim": truncate_dim,
    }
    TextEncoder.from_folder(folder, policy).encode([], batch_size, **arguments)  # raise errors of every part here
    names = open_checkpoint(folder, skip_links=True).files
    files = digest_of_files(folder, names)
    named = None if policy is None else serialize(policy_of(policy))
    job = {"job": "embed", "mp_core": __version__, "format": format, "model": files, "policy": named, **arguments}
    task = EmbeddingTask(
        str(folder), tuple(sorted(names)), files, policy, arguments | {"batch_size": batch_size}, format
    )
    parts = [OutputPart(f"part-{number:06}.{format}", piece.key, (task, piece)) for number, piece in enumerate(found)]
    with Manifest(target, job, "part-[0-9]*", force=force) as manifest:
        done = run(client, manifest, parts, retries, show_progress)
        records = [manifest.done[part.name] for part in parts]
    return {
        "files": [str(target / part.name) for part in parts],
        "texts": sum(record["texts"] for record in records),
        "cut": sum(record["cut"] for record in records),
        "done": done,
        "kept": len(parts) - done,
    }


def convert_shards(
    client: Client,
    source: str | PathLike[str],
    target: str | PathLike[str],
    policy: str,
    *,
    map: Sequence[tuple[str, str]] | Mapping[str, str] = (),
    keep: Sequence[str] = (),
    saturate: bool = True,
    allow_requantize: bool = False,
    max_memory: int = MAX_MEMORY,
    retries: int = 2,
    force: bool = False,
    show_progress: bool | None = None,
) -> dict[str, Any]:
    """Convert the shards of a checkpoint on a cluster; the files equal those of :func:`mp_core.checkpoint.convert`.

    The workers must see both folders under the same paths. To resume an interrupted or failed call, repeat it. A shard
    is converted again if its size or its time of modification has changed. The index and the configuration are written
    last, so that an incomplete target cannot be loaded.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.
    source : path
        A folder with safetensors files.
    target : path
        A folder. It is created; its parent folder must exist.
    policy, map, keep, saturate, allow_requantize
        See :func:`mp_core.checkpoint.convert`.
    max_memory : int
        Bytes of working memory of each task.
    retries, force, show_progress
        See :func:`embed`.

    Returns
    -------
    dict
        ``source``, ``target``, ``policy``, ``bytes``, ``new_bytes`` and ``tensors`` as in
        :func:`mp_core.checkpoint.convert`; ``done`` and ``kept``, the number of shards that this call wrote, and of
        shards that existed already.

    Raises
    ------
    PartError
        Shards failed, for example because a tensor cannot be quantized.
    FileExistsError
        `target` has files of another job (see `force`) or of no job.

    Examples
    --------
    >>> from distributed import Client  # doctest: +SKIP
    >>> report = convert_shards(Client("scheduler:8786"), "model", "model-int8", "int8")  # doctest: +SKIP
    >>> report["done"] + report["kept"]  # as many as there are shards  # doctest: +SKIP
    4
    """
    retries = _whole(retries, "retries")
    folder, goal = _real(source, "source"), _real(target, "target")
    task = ConversionTask(str(folder), policy, _pairs(map), tuple(keep), saturate, allow_requantize, max_memory)
    checkpoint, rules, shards = task.planned()
    if checkpoint.is_file:
        raise RequestError(f"`source` must be a folder; received {folder}")
    if folder in (goal, *goal.parents):
        raise RequestError(f"the target {goal} is inside the folder that is converted; choose another place")
    options = {"map": task.map, "keep": task.keep, "saturate": saturate, "allow_requantize": allow_requantize}
    job = {"job": "convert", "mp_core": __version__, "policy": rules.policy.name, **options}
    parts = []
    for shard in shards:
        state = shard.source.path.stat()
        key = digest(shard.source.name, state.st_size, state.st_mtime_ns)
        parts.append(OutputPart(shard.source.name, key, (task, shard.source.name)))
    with Manifest(goal, job, "*.safetensors", force=force) as manifest:
        done = run(client, manifest, parts, retries, show_progress)
        rows = [row for part in parts for row in manifest.done[part.name]["tensors"]]
        _write_rest(checkpoint, shards, goal, rules.policy.name)
    return {
        "source": str(source),
        "target": str(target),
        "policy": rules.policy.name,
        "bytes": sum(row["bytes"] for row in rows),
        "new_bytes": sum(row["new_bytes"] for row in rows),
        "tensors": rows,
        "done": done,
        "kept": len(parts) - done,
    }


def _write_rest(checkpoint: Checkpoint, shards: list[PlannedShard], goal: Path, policy: str) -> None:
    """Write the files without tensors, except those that exist with the right content."""
    with temporary_beside(goal) as temporary:
        temporary.mkdir()
        write_beside(checkpoint, shards, temporary, policy)
        for name in (*checkpoint.others, *(index.name for index in checkpoint.indices)):
            if not ((goal / name).exists() and cmp(temporary / name, goal / name, shallow=False)):
                (goal / name).parent.mkdir(parents=True, exist_ok=True)
                replace(temporary / name, path_in(goal, name, "the job"), set(), [], force=True)


def _pairs(map: Sequence[tuple[str, str]] | Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(map.items() if isinstance(map, Mapping) else map)


def _real(path: str | PathLike[str], argument: str) -> Path:
    return path_of(path, argument).resolve()


def _whole(count: int, argument: str) -> int:
    if integer(count, argument) < 0:
        raise ValueError(f"`{argument}` must be at least 0; received {count}")
    return integer(count, argument)
