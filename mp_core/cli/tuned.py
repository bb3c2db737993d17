"""Run ``mp-core tune``: train, save the state of training from time to time, write the folder, measure."""

import argparse
import math
import os
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mp_core.cli import options
from mp_core.cli.common import as_json
from mp_core.cli.subjects import Subject, subject_of
from mp_core.files.checkpoint import RequestError
from mp_core.files.checkpoint.header import load_json
from mp_core.files.checkpoint.output import new_file, temporary_beside
from mp_core.files.checkpoint.reading import read_file
from mp_core.interop.manifest import digest_of_files
from mp_core.models.fitting.quantization_aware import distill
from mp_core.models.tuning.examples import Examples, read_examples
from mp_core.policies.dtype_policies import DTypePolicy, policy_of
from mp_core.training.callbacks import BackupAndRestore, Callback
from mp_core.training.callbacks.base import NUMBERS, Rule
from mp_core.training.order import order_of
from mp_core.utilities.nonfinite import nonfinite
from mp_core.utilities.system import files_below, is_present

__all__ = ["train_model"]

_EVERY = 2.0  # seconds between two lines of progress
_SAVE_EVERY = 50  # batches between two states of training
_STATE = "training.state"  # what BackupAndRestore writes
_TRAINED_WITH = 512  # most texts that train codes
_JUDGED = 64  # most other texts on which the codes are compared with the floats


def train_model(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train, save and measure a model; return the report."""
    subject = subject_of(arguments.model)
    examples = read_examples(arguments.examples, arguments.examples)
    evaluation = read_examples(arguments.eval, arguments.eval) if arguments.eval else None
    loss = subject.chosen_loss(arguments.loss, examples)
    if arguments.learning_rate is None:
        arguments.learning_rate = subject.learning_rate
    model = subject.opens.from_folder(arguments.model, _training_policy(arguments))
    if arguments.lora is not None:
        model.enable_lora(arguments.lora, seed=arguments.seed)
    report: dict[str, Any] = {"model": arguments.model, "output": arguments.output, "examples": len(examples)}
    report |= {"epochs": arguments.epochs, "loss": loss, "policy": _policy(arguments).name}
    if evaluation is not None:
        options.announce(arguments, f"measuring {arguments.model} on {len(evaluation):,} examples")
        report["before"] = subject.measured(model, evaluation)
    started = time.perf_counter()
    report |= _train(arguments, subject, model, examples, loss)
    options.announce(arguments, f"writing {arguments.output}")
    model = _save(arguments, subject, model, examples, report)
    if arguments.resume is not None:
        (Path(arguments.resume) / _STATE).unlink(missing_ok=True)
    report["seconds"] = time.perf_counter() - started
    if evaluation is not None:
        options.announce(arguments, f"measuring {arguments.output} on {len(evaluation):,} examples")
        report["after"] = subject.measured(model, evaluation)
    return report


def _train(
    arguments: argparse.Namespace, subject: Subject, model: Any, examples: Examples, loss: str
) -> dict[str, Any]:
    """Train the model; return the entries of the report about training."""
    steps = _Steps(arguments, len(examples))
    callbacks: list[Any] = [steps]
    if arguments.resume is not None:
        _check_state(arguments, loss)
        callbacks.append(BackupAndRestore(arguments.resume, save_freq=_SAVE_EVERY, delete_checkpoint=False))
    with nullcontext() if arguments.dask is None else options.client_of(arguments) as client:
        history = model.fit(
            examples, loss=loss, epochs=arguments.epochs, batch_size=arguments.batch_size,
            learning_rate=arguments.learning_rate, chunk=arguments.chunk,
            cluster=None if client is None else _workers(client), seed=arguments.seed, callbacks=callbacks, verbose=0,
        )  # fmt: skip
    weights = [v.numpy() for v in model.model.trainable_variables]
    with nonfinite("ignore"):  # _check_finite raises instead
        outputs = subject.outputs(model, subject.inputs(examples)[:2])
    _check_finite([*weights, outputs], steps.losses)
    return {"examples_per_second": steps.rate, "losses": history.history.get("loss", []), "steps": steps.losses}


def _workers(client: Any) -> Any:
    from mp_core.interop.dask import Workers  # needs a package

    return Workers(client)


def _policy(arguments: argparse.Namespace) -> DTypePolicy:
    """Return the policy of OUT."""
    return policy_of("float32" if arguments.policy is None else arguments.policy)


def _training_policy(arguments: argparse.Namespace) -> str:
    """Return the policy for training: float32 if OUT has codes, unless LoRA trains adapters beside fixed codes."""
    policy = _policy(arguments)
    return "float32" if policy.scheme is not None and arguments.lora is None else policy.name


def _save(
    arguments: argparse.Namespace, subject: Subject, model: Any, examples: Examples, report: dict[str, Any]
) -> Any:
    """Write OUT; return the model that it contains."""
    policy, force = _policy(arguments), arguments.force
    if arguments.adapter_only:
        model.save_adapter(arguments.output, force=force)
        served = subject.opens.from_folder(arguments.model, policy)
        served.load_adapter(arguments.output)
        return served
    if policy.scheme is None or arguments.lora is not None:
        model.save(arguments.output, force=force)
    else:
        with temporary_beside(Path(os.path.realpath(arguments.output))) as floats:
            model.save(floats)
            _quantize(arguments, subject, floats, examples, report).save(arguments.output, force=force)
    served = subject.opens.from_folder(arguments.output)
    if policy.scheme is not None and arguments.lora is not None:
        judged = subject.inputs(examples)[:_JUDGED]
        report["codes"] = _compare(subject, {"merged": served}, "what was trained", model, judged)
    return served


def _quantize(
    arguments: argparse.Namespace, subject: Subject, floats: Path, examples: Examples, report: dict[str, Any]
) -> Any:
    """Quantize the model in the folder `floats` under the policy of OUT.

    With --distill the codes are then trained to give the outputs of the floats. The trained codes are kept only if
    their outputs for other texts are closer to the floats than those of the rounded codes.
    """
    policy, teacher = _policy(arguments), subject.opens.from_folder(floats)
    students = {"rounded": subject.opens.from_folder(floats, policy)}
    inputs, judged = _split(subject.inputs(examples), arguments.seed)
    if arguments.distill:
        options.announce(arguments, f"training the codes of {arguments.policy} with {len(inputs)} texts")
        students["trained"] = distill(teacher, inputs, policy, epochs=arguments.distill, seed=arguments.seed, verbose=0)
    measured = _compare(subject, students, "the floats", teacher, judged)
    kept = max(students, key=lambda name: subject.nearness(measured[name]))
    report["codes"] = measured | {"texts": len(inputs) if arguments.distill else 0, "kept": kept}
    return students[kept]


def _compare(subject: Subject, models: dict[str, Any], beside: str, other: Any, judged: list[Any]) -> dict[str, Any]:
    """Compare the outputs of `models` with those of `other`, which the report calls `beside`; return the report."""
    expected = subject.outputs(other, judged)
    measured = {name: subject.compared(subject.outputs(model, judged), expected) for name, model in models.items()}
    return {"measure": subject.measure, "beside": beside, "judged": len(judged), **measured}


def _split(inputs: list[Any], seed: int) -> tuple[list[Any], list[Any]]:
    """Split inputs at random into those that train codes and those on which the codes are compared."""
    drawn = [inputs[place] for place in order_of(lambda: seed)(len(inputs), 0)]
    judged = min(_JUDGED, max(1, len(drawn) // 8))
    return drawn[judged:][:_TRAINED_WITH] or drawn, drawn[:judged]


def _check_finite(arrays: list[Any], losses: list[float]) -> None:
    """Raise if training diverged, before anything is written."""
    if not all(np.isfinite(np.asarray(x, np.float32)).all() for x in arrays) or not all(map(math.isfinite, losses)):
        raise ValueError("training has diverged: a loss, weight or output is not finite; try a lower --learning-rate")


def _check_state(arguments: argparse.Namespace, loss: str) -> None:
    """Raise if the state in the folder of --resume is of a run with another model, other examples or options."""
    folder, model, file = Path(arguments.resume), Path(arguments.model), Path(arguments.examples)
    here: dict[str, Any] = {
        "the model's SHA-256": digest_of_files(model, _files(model)),
        "the SHA-256 of the examples": digest_of_files(file.parent, [file.name]),
        "--loss": loss,
    }
    for name in ("epochs", "batch_size", "learning_rate", "lora", "policy", "distill", "seed"):
        here[f"--{name.replace('_', '-')}"] = getattr(arguments, name)
    path = folder / "tune.json"
    if is_present(folder / _STATE):
        there = load_json(read_file(path), str(path)) if is_present(path) else {}
        for name, value in here.items():
            if there.get(name) != value:
                raise RequestError(
                    f"{folder} has the state of another run: there {name} is {there.get(name)}, here {value}; remove "
                    "the folder or choose another"
                )
    folder.mkdir(parents=True, exist_ok=True)
    with new_file(path, force=True) as stream:
        stream.write(f"{as_json(here)}\n".encode())


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in files_below(folder) if path.is_file()]


class _Steps(Callback):
    """Record the loss of each step and print progress."""

    _state_rules: ClassVar[Mapping[str, Rule]] = {
        "losses": NUMBERS,
        "mean": (lambda x: NUMBERS[0](x) and len(x) == 2, "a list of two numbers"),
    }

    def __init__(self, arguments: argparse.Namespace, examples: int) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.rate = 0.0
        self._arguments, self._examples = arguments, examples
        self._seen, self._last_print, self._epoch, self._begin = 0, 0.0, 0, 0.0
        self._state = [0.0, 0]  # sum and count of the epoch's mean loss

    def get_state(self) -> dict[str, Any]:
        return {"losses": self.losses, "mean": self._state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the losses of an interrupted run."""
        self._check_state(state)
        self.losses, self._state = state["losses"], state["mean"]

    def on_train_begin(self, logs: Any = None) -> None:
        self._begin = self._last_print = time.perf_counter()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._state = epoch, self.model.metrics[0].state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Record the loss of a step; print the mean of the epoch every `_EVERY` seconds."""
        (total, count), (before, fewer) = self.model.metrics[0].state, self._state
        self.losses.append((total - before) / (count - fewer))
        self._state = [total, count]
        done = min((batch + 1) * self._arguments.batch_size, self._examples)
        self._seen += done - batch * self._arguments.batch_size
        moment = time.perf_counter()
        self.rate = self._seen / max(moment - self._begin, 1e-9)
        last = done == self._examples
        if options.shows_progress(self._arguments) and (last or moment - self._last_print >= _EVERY):
            self._last_print = moment
            place = f"epoch {self._epoch + 1}/{self._arguments.epochs}, {done:,} of {self._examples:,} examples"
            print(
                f"mp-core: {place}, loss {total / count:.4f}, {self.rate:.1f} examples/s", file=sys.stderr, flush=True
            )
