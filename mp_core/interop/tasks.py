"""The tasks of workers: each computes one part of a job and writes it into one file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
from distributed import get_worker

from mp_core.arrays import Array
from mp_core.files.checkpoint.conversion import PlannedShard, plan_shards, row_of, write_shard
from mp_core.files.checkpoint.conversion_plan import Rules
from mp_core.files.checkpoint.folder import Checkpoint, open_checkpoint, refuse_tools
from mp_core.files.checkpoint.output import new_file, replace, temporary_beside
from mp_core.files.checkpoint.pool import Pool
from mp_core.interop.manifest import digest, digest_of_files
from mp_core.interop.sources import FilePiece, ListPiece
from mp_core.models import TextEncoder
from mp_core.models.prompted import TextError
from mp_core.policies.config import get_num_threads, num_threads
from mp_core.policies.dtype_policies import DTypePolicy, policy_of, serialize
from mp_core.utilities.extras import needed_by
from mp_core.utilities.nonfinite import NonFiniteError, nonfinite

__all__ = ["FORMATS", "ConversionTask", "EmbeddingTask"]


@dataclass(frozen=True, slots=True)
class EmbeddingTask:
    """Embeds a piece of the texts and writes the result into a file."""

    model: str
    names: tuple[str, ...]
    files: str
    policy: str | DTypePolicy | None
    arguments: dict[str, Any]
    format: str

    def __call__(self, path: str, piece: ListPiece | FilePiece) -> dict[str, Any]:
        """Write the embeddings of a piece; return the number of texts, and of texts that were cut off."""
        cut: list[int] = []
        texts = piece.read()
        try:
            with num_threads(_threads()), nonfinite("raise"):
                embeddings = _encoder(self).encode(texts, on_cut=cut.extend, **self.arguments)
        except (TextError, NonFiniteError) as error:
            raise ValueError(f"{piece.place(error.position)} {error.reason}") from None
        with new_file(Path(path), force=True) as stream:
            FORMATS[self.format](stream, texts, embeddings)
        return {"texts": len(texts), "cut": len(cut)}


_opening = Lock()
_opened: dict[str, TextEncoder] = {}


def _encoder(task: EmbeddingTask) -> TextEncoder:
    """Return the model of a job; this process caches the last model."""
    policy = None if task.policy is None else serialize(policy_of(task.policy))
    key = digest(task.model, task.files, policy)
    with _opening:
        if key not in _opened:
            if digest_of_files(Path(task.model), task.names) != task.files:
                raise ValueError(f"the model in {task.model} differs from that of the process that began the job")
            _opened.clear()
            _opened[key] = TextEncoder.from_folder(task.model, task.policy)
        return _opened[key]


def _threads() -> int:
    """Return how many threads a task may use: mp_core's threads / tasks at a time (dask's threads of the worker)."""
    share: int = get_num_threads() // get_worker().state.nthreads
    return max(1, share)


def _write_npy(stream: BinaryIO, texts: list[str], embeddings: Array) -> None:
    np.save(stream, embeddings)


def _write_parquet(stream: BinaryIO, texts: list[str], embeddings: Array) -> None:
    with needed_by("the format parquet"):
        import pyarrow
        from pyarrow import parquet

    rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(embeddings.reshape(-1)), embeddings.shape[1])
    parquet.write_table(pyarrow.table({"text": pyarrow.array(texts, pyarrow.string()), "embedding": rows}), stream)


FORMATS: dict[str, Callable[[BinaryIO, list[str], Array], None]] = {"npy": _write_npy, "parquet": _write_parquet}
"""Suffix of a file of embeddings -> function that writes it."""


@dataclass(frozen=True, slots=True)
class ConversionTask:
    """Converts one shard of a checkpoint."""

    source: str
    policy: str
    map: tuple[tuple[str, str], ...]
    keep: tuple[str, ...]
    saturate: bool
    allow_requantize: bool
    max_memory: int

    def planned(self) -> tuple[Checkpoint, Rules, list[PlannedShard]]:
        """Plan the conversion; return the checkpoint, the rules and the shards."""
        rules = Rules.parse(self.policy, self.map, self.keep, self.allow_requantize)
        checkpoint = open_checkpoint(Path(self.source))
        refuse_tools(checkpoint)
        return checkpoint, rules, plan_shards(checkpoint, rules)

    def __call__(self, path: str, name: str) -> dict[str, Any]:
        """Write the shard `name`; return the rows of the report for its tensors."""
        _, _, shards = self.planned()
        (shard,) = (shard for shard in shards if shard.source.name == name)
        rows = [row_of(shard.source, plan) for plan in shard.plans]
        goal = Path(path)
        goal.parent.mkdir(parents=True, exist_ok=True)
        with Pool(_threads(), self.max_memory) as pool, temporary_beside(goal) as temporary:
            for _ in write_shard(shard, temporary, rows, self.saturate, pool):
                pass
            replace(temporary, goal, set(), [], force=True)
        return {"tensors": rows}
