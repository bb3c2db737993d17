"""``mp-core tune``: an encoder trained on examples, saved as a folder, with its quality before and after."""

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
from mp_core.checkpoint.output import check_free, new_file, temporary_beside
from mp_core.cli import options
from mp_core.cli.common import DONE, as_json, positive
from mp_core.cli.grammar import new_command
from mp_core.dtype_policies import policy_of
from mp_core.models import BertEncoder
from mp_core.utilities.suggest import refusal

__all__ = ["add_command"]

_LOSSES = ("multiple_negatives", "multiple_negatives_symmetric", "cosine", "cosent", "triplet", "mse", "margin_mse")
_EVERY = 2.0  # seconds between two lines of progress
_SAVE_EVERY = 50  # batches between two states of training


def add_command(commands: Any) -> None:
    """Add the command to the program's."""
    examples = (
        "tune MODEL pairs.jsonl -o OUT",
        "tune MODEL pairs.jsonl -o OUT --eval eval.jsonl --policy int8",
        "tune MODEL pairs.jsonl -o OUT --batch-size 256 --chunk 32",
        "tune MODEL scored.csv -o OUT --epochs 3 --resume state",
    )
    tune = new_command(
        commands, "tune", _tune, "train an encoder on pairs, triplets or scored pairs of texts", examples
    )
    options.add_model(tune)
    tune.add_argument("examples", metavar="FILE", help="examples, .jsonl, .csv or .tsv: texts, maybe a label or score")
    options.add(tune, "output", required=True, help="the folder of the trained encoder")
    options.add(tune, "force")
    tune.add_argument("--eval", metavar="FILE", help="examples to measure recall, or correlation, on: before and after")
    tune.add_argument(
        "--loss", choices=_LOSSES, metavar="LOSS",
        help=f"one of {', '.join(_LOSSES)} (default: multiple_negatives, with labels cosent)",
    )  # fmt: skip
    tune.add_argument("--epochs", type=positive, default=1, metavar="N", help="default: %(default)s")
    tune.add_argument("--batch-size", type=positive, default=32, metavar="N", help="default: %(default)s")
    tune.add_argument("--chunk", type=positive, metavar="N", help="embed so many examples at a time: less memory")
    tune.add_argument("--learning-rate", type=_rate, default=5e-5, metavar="X", help="default: %(default)s")
    tune.add_argument("--lora", type=positive, metavar="RANK", help="train adapters of this rank, not the weights")
    options.add(tune, "policy", help="of OUT, such as int8 or mixed_bfloat16 (default: float32)")
    tune.add_argument("--seed", type=_seed, default=0, metavar="N", help="of order and dropout; default: %(default)s")
    tune.add_argument("--resume", metavar="FOLDER", help="keep the state of training there, and go on from it")
    options.add(tune, "json", "plot", "threads", "quiet", "no-progress")


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(refusal(text, "must be a finite number above 0"))
    return rate


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(refusal(text, "must be an integer from 0 to 4294967295"))
    return int(text)


def _tune(arguments: argparse.Namespace) -> int:
    _check(arguments)
    report = _tuned(arguments)
    options.show(arguments, report, lambda: _text(report))
    if arguments.plot is not None:
        _plot(report, arguments.plot)
    return DONE


def _check(arguments: argparse.Namespace) -> None:
    """Raise before the work for what could not be done at its end."""
    options.check_model(arguments)
    if arguments.plot is not None:
        from mp_core.benchmark import check_plots

        check_plots()
    files = [arguments.examples, *([arguments.eval] if arguments.eval else [])]
    options.check_outputs(arguments, arguments.model, *files, arguments.output)
    model, target = Path(os.path.realpath(arguments.model)), Path(os.path.realpath(arguments.output))
    if model in target.parents:
        raise RequestError(f"the target {target} lies inside the folder {model}")
    names = {path.relative_to(model).as_posix() for path in model.rglob("*")}
    check_free(target, names, [*model.rglob("*"), *map(Path, files)], force=arguments.force)
    if arguments.policy is not None:
        scheme = policy_of(arguments.policy).scheme
        try:
            if scheme is not None:
                scheme.check_stored()
        except ValueError as error:
            raise argparse.ArgumentError(None, f"argument --policy: {error}") from error


def _tuned(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train, save and measure; return the report."""
    from mp_core.models.tuning.evaluation import measured
    from mp_core.models.tuning.examples import read_examples

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
    report["seconds"] = time.perf_counter() - started
    report |= {"examples_per_second": steps.rate, "losses": history.history["loss"], "steps": steps.losses}
    options.tell(arguments, f"writing {arguments.output}")
    encoder = _saved(arguments, encoder)
    if held is not None:
        options.tell(arguments, f"measuring {arguments.output} on {len(held):,} examples")
        report["after"] = measured(encoder, held)
    return report


def _training_policy(arguments: argparse.Namespace) -> str:
    """Return the policy under which the encoder trains: one of codes only under LoRA, which leaves them as they are."""
    policy = policy_of("float32" if arguments.policy is None else arguments.policy)
    return "float32" if policy.scheme is not None and arguments.lora is None else policy.name


def _saved(arguments: argparse.Namespace, encoder: BertEncoder) -> BertEncoder:
    """Write the folder, and return the encoder in it."""
    policy = None if arguments.policy is None else policy_of(arguments.policy)
    if policy is None or policy.scheme is None or arguments.lora is not None:
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
    names = ("epochs", "batch_size", "chunk", "learning_rate", "lora", "policy", "seed")
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


def _text(report: dict[str, Any]) -> str:
    """Return the report in words."""
    lines = [
        f"{report['output']}: {report['examples']:,} examples, {len(report['losses'])} epochs, {report['loss']}, "
        f"policy {report['policy']}",
        f"loss {' '.join(f'{loss:.4f}' for loss in report['losses'])}, {report['seconds']:.1f} s, "
        f"{report['examples_per_second']:.1f} examples/s",
    ]
    if "before" in report:
        lines += [f"{name:10} {value:.4f} -> {report['after'][name]:.4f}" for name, value in report["before"].items()]
    return "\n".join(lines)


def _plot(report: dict[str, Any], file: str) -> None:
    """Draw the loss of each step."""
    from mp_core.benchmark.plots import plot_curve

    title = f"{report['loss']}, {report['examples']:,} examples"
    plot_curve(report["steps"], file, title, "step", "loss")
