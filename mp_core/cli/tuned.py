"""The work of ``mp-core tune``: training, what is kept of it meanwhile, and the folder at its end."""

import argparse
import hashlib
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from mp_core.callbacks import BackupAndRestore, Callback
from mp_core.checkpoint import RequestError
from mp_core.checkpoint.output import new_file, temporary_beside
from mp_core.cli import options
from mp_core.cli.common import as_json
from mp_core.dtype_policies import policy_of
from mp_core.fitting.quantization_aware import distill
from mp_core.models import BertEncoder
from mp_core.models.tuning.evaluation import measured
from mp_core.models.tuning.examples import read_examples

__all__ = ["tuned"]

_EVERY = 2.0  # seconds between two lines of progress
_SAVE_EVERY = 50  # batches between two states of training


def tuned(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train, save and measure; return the report."""
    examples = read_examples(arguments.examples, arguments.examples)
    held = read_examples(arguments.eval, arguments.eval) if arguments.eval else None
    loss = arguments.loss or ("multiple_negatives" if examples.labels is None else "cosent")
    encoder = BertEncoder.from_folder(arguments.model, _training_policy(arguments))
    if arguments.lora is not None:
        encoder.enable_lora(arguments.lora)
    report: dict[str, Any] = {"model": arguments.model, "output": arguments.output, "examples": len(examples)}
    report |= {"loss": loss, "policy": encoder.model.dtype_policy.name}
    if held is not None:
        options.tell(arguments, f"measuring {arguments.model} on {len(held):,} examples")
        report["before"] = measured(encoder, held)
    steps, started = _Steps(arguments, len(examples)), time.perf_counter()
    callbacks: list[Any] = [steps]
    if arguments.resume is not None:
        _check_state(arguments, loss)
        callbacks.append(BackupAndRestore(arguments.resume, save_freq=_SAVE_EVERY))
    history = encoder.fit(
        examples, loss, arguments.epochs, arguments.batch_size, learning_rate=arguments.learning_rate,
        chunk=arguments.chunk, seed=arguments.seed, callbacks=callbacks, verbose=0,
    )  # fmt: skip
    _check_finite(encoder, steps.losses)
    report |= {"examples_per_second": steps.rate, "losses": history.history["loss"], "steps": steps.losses}
    options.tell(arguments, f"writing {arguments.output}")
    encoder = _saved(arguments, encoder, [text for column in examples.texts for text in column])
    report["seconds"] = time.perf_counter() - started
    if held is not None:
        options.tell(arguments, f"measuring {arguments.output} on {len(held):,} examples")
        report["after"] = measured(encoder, held)
    return report


def _training_policy(arguments: argparse.Namespace) -> str:
    """Return the policy under which the encoder trains: one of codes only under LoRA, which leaves them as they are."""
    policy = policy_of("float32" if arguments.policy is None else arguments.policy)
    return "float32" if policy.scheme is not None and arguments.lora is None else policy.name


def _saved(arguments: argparse.Namespace, encoder: BertEncoder, texts: list[str]) -> BertEncoder:
    """Write the folder, and return the encoder in it; codes may be trained with the texts before."""
    policy = None if arguments.policy is None else policy_of(arguments.policy)
    if arguments.distill is not None:
        options.tell(arguments, f"training the codes of {arguments.policy}")
        encoder = distill(
            encoder, list(dict.fromkeys(texts)), policy, epochs=arguments.distill, seed=arguments.seed, verbose=0
        )
        encoder.save(arguments.output, force=arguments.force)
    elif policy is None or policy.scheme is None or arguments.lora is not None:
        encoder.save(arguments.output, force=arguments.force)
    else:
        with temporary_beside(Path(os.path.realpath(arguments.output))) as floats:
            encoder.save(floats)
            BertEncoder.from_folder(floats, policy).save(arguments.output, force=arguments.force)
    return BertEncoder.from_folder(arguments.output)


def _check_finite(encoder: BertEncoder, losses: list[float]) -> None:
    """Raise if training has diverged, before anything is written."""
    finite = all(np.isfinite(np.asarray(v.numpy(), np.float32)).all() for v in encoder.model.trainable_variables)
    if not finite or not all(map(math.isfinite, losses)):
        raise ValueError("training has diverged: a loss or a weight is not finite; try a lower --learning-rate")


def _check_state(arguments: argparse.Namespace, loss: str) -> None:
    """Raise if the folder of --resume has the state of a run of other examples or options."""
    folder = Path(arguments.resume)
    names = ("epochs", "batch_size", "chunk", "learning_rate", "lora", "policy", "distill", "seed")
    here = {name: getattr(arguments, name) for name in names} | {"loss": loss}
    here["examples"] = hashlib.sha256(Path(arguments.examples).read_bytes()).hexdigest()
    path = folder / "tune.json"
    if (folder / "training.state").exists():
        there = json.loads(path.read_text()) if path.exists() else {}
        for name, value in here.items():
            if there.get(name) != value:
                option = f"--{name.replace('_', '-')}"
                raise RequestError(
                    f"{folder} has the state of another run: its {option} is {there.get(name)}, here {value}; remove it"
                )
    folder.mkdir(parents=True, exist_ok=True)
    with new_file(path, force=True) as stream:
        stream.write(f"{as_json(here)}\n".encode())


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
