"""The work of ``mp-core tune``: training, what is kept of it meanwhile, and the folder at its end."""

import argparse
import math
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from mp_core.callbacks import BackupAndRestore, Callback
from mp_core.checkpoint import RequestError
from mp_core.checkpoint.header import load_json
from mp_core.checkpoint.output import new_file, temporary_beside
from mp_core.checkpoint.reading import read_file
from mp_core.cli import options
from mp_core.cli.common import as_json
from mp_core.dtype_policies import DTypePolicy, policy_of
from mp_core.fitting.quantization_aware import distill
from mp_core.interop.manifest import digest_of_files
from mp_core.models import BertEncoder
from mp_core.models.tuning.evaluation import cosines, measured
from mp_core.models.tuning.examples import Examples, read_examples
from mp_core.training.order import order_of

__all__ = ["tuned"]

_EVERY = 2.0  # seconds between two lines of progress
_SAVE_EVERY = 50  # batches between two states of training
_STATE = "training.state"  # what BackupAndRestore writes
_TRAINED_WITH, _JUDGED = 512, 64  # texts, at most, that train codes, and others by which these are judged


def tuned(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train, save and measure; return the report."""
    examples = read_examples(arguments.examples, arguments.examples)
    held = read_examples(arguments.eval, arguments.eval) if arguments.eval else None
    loss = arguments.loss or ("multiple_negatives" if examples.labels is None else "cosent")
    encoder = BertEncoder.from_folder(arguments.model, _training_policy(arguments))
    if arguments.lora is not None:
        encoder.enable_lora(arguments.lora)
    report: dict[str, Any] = {"model": arguments.model, "output": arguments.output, "examples": len(examples)}
    report |= {"epochs": arguments.epochs, "loss": loss, "policy": _policy(arguments).name}
    if held is not None:
        options.tell(arguments, f"measuring {arguments.model} on {len(held):,} examples")
        report["before"] = measured(encoder, held)
    started = time.perf_counter()
    report |= _trained(arguments, encoder, examples, loss)
    options.tell(arguments, f"writing {arguments.output}")
    encoder = _saved(arguments, encoder, examples, report)
    if arguments.resume is not None:
        (Path(arguments.resume) / _STATE).unlink(missing_ok=True)
    report["seconds"] = time.perf_counter() - started
    if held is not None:
        options.tell(arguments, f"measuring {arguments.output} on {len(held):,} examples")
        report["after"] = measured(encoder, held)
    return report


def _trained(arguments: argparse.Namespace, encoder: BertEncoder, examples: Examples, loss: str) -> dict[str, Any]:
    """Train the encoder, and return what the report says of it."""
    steps = _Steps(arguments, len(examples))
    callbacks: list[Any] = [steps]
    if arguments.resume is not None:
        _check_state(arguments, loss)
        callbacks.append(BackupAndRestore(arguments.resume, save_freq=_SAVE_EVERY, delete_checkpoint=False))
    with nullcontext() if arguments.dask is None else options.client_of(arguments) as client:
        history = encoder.fit(
            examples, loss, arguments.epochs, arguments.batch_size, learning_rate=arguments.learning_rate,
            chunk=arguments.chunk, cluster=None if client is None else _workers(client), seed=arguments.seed,
            callbacks=callbacks, verbose=0,
        )  # fmt: skip
    _check_finite(encoder, steps.losses, examples)
    return {"examples_per_second": steps.rate, "losses": history.history.get("loss", []), "steps": steps.losses}


def _workers(client: Any) -> Any:
    from mp_core.interop.dask import Workers  # needs a package

    return Workers(client)


def _policy(arguments: argparse.Namespace) -> DTypePolicy:
    """Return the policy of OUT."""
    return policy_of("float32" if arguments.policy is None else arguments.policy)


def _training_policy(arguments: argparse.Namespace) -> str:
    """Return the policy under which the encoder trains: one of codes only under LoRA, which leaves them as they are."""
    policy = _policy(arguments)
    return "float32" if policy.scheme is not None and arguments.lora is None else policy.name


def _saved(
    arguments: argparse.Namespace, encoder: BertEncoder, examples: Examples, report: dict[str, Any]
) -> BertEncoder:
    """Write the folder, and return the encoder in it."""
    policy = _policy(arguments)
    if policy.scheme is None or arguments.lora is not None:
        encoder.save(arguments.output, force=arguments.force)
    else:
        with temporary_beside(Path(os.path.realpath(arguments.output))) as floats:
            encoder.save(floats)
            _with_codes(arguments, floats, policy, examples, report).save(arguments.output, force=arguments.force)
    return BertEncoder.from_folder(arguments.output)


def _with_codes(
    arguments: argparse.Namespace, floats: Path, policy: DTypePolicy, examples: Examples, report: dict[str, Any]
) -> BertEncoder:
    """Return the encoder in a folder under a policy of codes.

    The codes are trained to give the vectors of the floats. They stay as they are rounded if these vectors, of texts
    that did not train them, come nearer: the least cosine decides.
    """
    students = {"rounded": BertEncoder.from_folder(floats, policy)}
    if not arguments.distill:
        return students["rounded"]
    teacher = BertEncoder.from_folder(floats)
    texts, judged = _parts(examples, arguments.seed)
    options.tell(arguments, f"training the codes of {arguments.policy} with {len(texts)} texts")
    students["trained"] = distill(teacher, texts, policy, epochs=arguments.distill, seed=arguments.seed, verbose=0)
    vectors = teacher.encode(judged)
    found = {name: cosines(student.encode(judged), vectors) for name, student in students.items()}
    kept = max(found, key=lambda name: found[name]["least"])
    report["codes"] = {"texts": len(texts), "judged": len(judged), "kept": kept, **found}
    return students[kept]


def _parts(examples: Examples, seed: int) -> tuple[list[str], list[str]]:
    """Return different texts of the examples, drawn at random: those that train codes, and those that judge them."""
    texts = list(dict.fromkeys(text for row in zip(*examples.texts, strict=True) for text in row))
    drawn = [texts[place] for place in order_of(lambda: seed)(len(texts), 0)]
    judged = min(_JUDGED, max(1, len(drawn) // 8))
    return drawn[judged:][:_TRAINED_WITH] or drawn, drawn[:judged]


def _check_finite(encoder: BertEncoder, losses: list[float], examples: Examples) -> None:
    """Raise if training has diverged, before anything is written."""
    found = [v.numpy() for v in encoder.model.trainable_variables]
    found.append(encoder.encode([column[0] for column in examples.texts]))
    if not all(np.isfinite(np.asarray(x, np.float32)).all() for x in found) or not all(map(math.isfinite, losses)):
        raise ValueError("training has diverged: a loss, weight or vector is not finite; try a lower --learning-rate")


def _check_state(arguments: argparse.Namespace, loss: str) -> None:
    """Raise if the folder of --resume has the state of a run of another model, other examples or options."""
    folder, model, file = Path(arguments.resume), Path(arguments.model), Path(arguments.examples)
    here: dict[str, Any] = {
        "the model's SHA-256": digest_of_files(model, _files(model)),
        "the SHA-256 of the examples": digest_of_files(file.parent, [file.name]),
        "--loss": loss,
    }
    for name in ("epochs", "batch_size", "chunk", "learning_rate", "lora", "policy", "distill", "seed"):
        here[f"--{name.replace('_', '-')}"] = getattr(arguments, name)
    path = folder / "tune.json"
    if (folder / _STATE).exists():
        there = load_json(read_file(path), str(path)) if path.exists() else {}
        for name, value in here.items():
            if there.get(name) != value:
                raise RequestError(
                    f"{folder} has the state of another run: there {name} is {there.get(name)}, here {value}; remove it"
                )
    folder.mkdir(parents=True, exist_ok=True)
    with new_file(path, force=True) as stream:
        stream.write(f"{as_json(here)}\n".encode())


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


class _Steps(Callback):
    """Notes the loss of each step, and says how far training is."""

    def __init__(self, arguments: argparse.Namespace, examples: int) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.rate = 0.0
        self._arguments, self._examples = arguments, examples
        self._seen, self._told, self._epoch, self._begin = 0, 0.0, 0, 0.0
        self._state = [0.0, 0]

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to measure time."""
        self._begin = self._told = time.perf_counter()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch, and where its mean stands."""
        self._epoch, self._state = epoch, self.model.metrics[0].state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the loss of a step, and tell the mean of the epoch now and then."""
        (total, count), (before, fewer) = self.model.metrics[0].state, self._state
        self.losses.append((total - before) / (count - fewer))
        self._state = [total, count]
        done = min((batch + 1) * self._arguments.batch_size, self._examples)
        self._seen += done - batch * self._arguments.batch_size
        moment = time.perf_counter()
        self.rate = self._seen / max(moment - self._begin, 1e-9)
        last = done == self._examples
        if options.shows_progress(self._arguments) and (last or moment - self._told >= _EVERY):
            self._told = moment
            place = f"epoch {self._epoch + 1}/{self._arguments.epochs}, {done:,} of {self._examples:,} examples"
            print(
                f"mp-core: {place}, loss {total / count:.4f}, {self.rate:.1f} examples/s", file=sys.stderr, flush=True
            )
