"""``mp-core tune``: train an encoder or a reranker on examples, save it, and measure it before and after."""

import argparse
import math
import os
from pathlib import Path
from typing import Any

from mp_core.cli import options
from mp_core.cli.common import DONE, positive
from mp_core.cli.grammar import new_command
from mp_core.files.checkpoint import RequestError
from mp_core.files.checkpoint.output import check_free, temporary_beside
from mp_core.models.adapters import ADAPTER_FILES
from mp_core.policies.dtype_policies import policy_of
from mp_core.utilities.numerals import integer_of, number_of
from mp_core.utilities.suggest import refusal
from mp_core.utilities.system import files_below

__all__ = ["add_command"]

_DISTILLED = 2  # epochs; docs/adapting.md shows the gain and the cost of training codes
_LOSSES = (
    "multiple_negatives", "multiple_negatives_symmetric", "cosine", "cosent", "triplet", "mse", "margin_mse",
    "cross_entropy",
)  # fmt: skip


def add_command(commands: Any) -> None:
    """Add `tune` to the program."""
    examples = (
        "tune MODEL pairs.jsonl -o OUT",
        "tune MODEL pairs.jsonl -o OUT --eval eval.jsonl --policy int8",
        "tune MODEL pairs.jsonl -o OUT --batch-size 256 --chunk 32",
        "tune MODEL scored.csv -o OUT --epochs 3 --resume state",
        "tune MODEL pairs.jsonl -o OUT --batch-size 256 --dask scheduler:8786",
        "tune RERANKER labelled.jsonl -o OUT --eval eval.jsonl --policy int8",
        "tune MODEL pairs.jsonl -o OUT --lora 8 --policy int8 --adapter-only",
    )
    tune = new_command(commands, "tune", _tune, "train an encoder or a reranker on examples", examples)
    options.add_model(tune, "folder of an encoder or a reranker")
    tune.add_argument(
        "examples", metavar="FILE", help="examples as .jsonl, .csv or .tsv: texts, optionally with a label or score"
    )
    options.add(tune, "output", required=True, help="folder for the trained model")
    options.add(tune, "force")
    tune.add_argument("--eval", metavar="FILE", help="examples on which to measure quality before and after training")
    tune.add_argument(
        "--loss", choices=_LOSSES, metavar="LOSS",
        help=f"one of {', '.join(_LOSSES)} (default: depends on the model and the examples)",
    )  # fmt: skip
    tune.add_argument(
        "--epochs", type=positive, default=1, metavar="N", help="passes over the examples (default: %(default)s)"
    )
    tune.add_argument(
        "--batch-size", type=positive, default=32, metavar="N", help="examples per step (default: %(default)s)"
    )
    tune.add_argument(
        "--chunk", type=positive, metavar="N", help="keep the activations of only N examples at a time: less memory"
    )
    tune.add_argument(
        "--learning-rate", type=_rate, metavar="X", help="default: 5e-05 for encoders, 2e-05 for rerankers"
    )
    tune.add_argument("--lora", type=positive, metavar="RANK", help="train adapters of this rank, not the weights")
    tune.add_argument("--adapter-only", action="store_true", help="with --lora: write only the adapter")
    options.add(tune, "policy", help="policy of OUT, such as int8 or mixed_bfloat16 (default: float32)")
    tune.add_argument(
        "--distill", type=_count, metavar="N",
        help=f"with an int8 or int4 --policy: epochs that train the codes; 0 only rounds (default: {_DISTILLED})",
    )  # fmt: skip
    tune.add_argument("--dask", metavar="ADDRESS", help="embed batches on the workers of this dask cluster")
    tune.add_argument(
        "--seed", type=_seed, default=0, metavar="N", help="seed of all random numbers (default: %(default)s)"
    )
    tune.add_argument(
        "--resume", metavar="FOLDER", help="save the state of training in FOLDER, and continue from a state found there"
    )
    options.add(tune, "json", "plot", "threads", "quiet", "no-progress")


def _count(text: str) -> int:
    return 0 if text == "0" else positive(text)


def _rate(text: str) -> float:
    try:
        rate = number_of(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(refusal(text, "must be a finite number above 0"))
    return rate


def _seed(text: str) -> int:
    seed = integer_of(text, 0, 2**32 - 1)
    if seed is None:
        raise argparse.ArgumentTypeError(refusal(text, "must be an integer from 0 to 4294967295"))
    return seed


def _tune(arguments: argparse.Namespace) -> int:
    _check(arguments)
    from mp_core.cli.tuned import tuned  # loads training

    report = tuned(arguments)
    options.show(arguments, report, lambda: _text(report))
    if arguments.plot is not None:
        _plot(report, arguments.plot)
    return DONE


def _check(arguments: argparse.Namespace) -> None:
    """Raise before training for anything that would fail after it."""
    options.check_model(arguments)
    if arguments.plot is not None:
        from mp_core.cli.benchmark import check_plots  # looks for matplotlib, which only drawing needs

        check_plots()
    files = [arguments.examples, *([arguments.eval] if arguments.eval else [])]
    options.check_outputs(arguments, arguments.model, *files, arguments.output)
    model, target = Path(os.path.realpath(arguments.model)), Path(os.path.realpath(arguments.output))
    if model in target.parents:
        raise RequestError(f"the target {target} is inside the folder {model}; choose another place")
    inputs = [*files_below(model)]
    names = {path.relative_to(model).as_posix() for path in inputs}
    if arguments.adapter_only:
        if arguments.lora is None:
            raise argparse.ArgumentError(None, "argument --adapter-only: needs --lora")
        names = {*ADAPTER_FILES}
    check_free(target, names, [*inputs, *map(Path, files)], force=arguments.force)
    with temporary_beside(target) as probe:  # raises if OUT cannot be written
        probe.mkdir()
    _check_codes(arguments)
    _check_state_and_workers(arguments, model, target)


def _check_state_and_workers(arguments: argparse.Namespace, model: Path, target: Path) -> None:
    """Raise if --resume would write into MODEL or OUT, or if --dask has only one group of examples per batch."""
    if arguments.resume is not None:
        state = Path(os.path.realpath(arguments.resume))
        for name, folder in {"MODEL": model, "OUT": target}.items():
            if folder in (state, *state.parents):
                raise argparse.ArgumentError(
                    None, f"argument --resume: {arguments.resume} is {name} or inside it; choose another folder"
                )
    if arguments.dask is not None:
        from mp_core.models.tuning.batches import GROUP  # loads training

        options.check_address(arguments)
        if arguments.batch_size <= GROUP:
            reason = f"needs --batch-size above {GROUP}; a worker computes {GROUP} examples together"
            raise argparse.ArgumentError(None, f"argument --dask: {reason}")


def _check_codes(arguments: argparse.Namespace) -> None:
    """Raise if files cannot store the codes of --policy, or if --distill is given for codes that cannot be trained."""
    scheme = None if arguments.policy is None else policy_of(arguments.policy).scheme
    try:
        if scheme is not None:
            scheme.check_stored()
    except ValueError as error:
        raise argparse.ArgumentError(None, f"argument --policy: {error}") from error
    trainable = scheme is not None and scheme.has_trainable_codes and arguments.lora is None
    if arguments.distill and not trainable:
        needed = "a --policy with int8 codes or with int4 codes and float inputs, and no --lora"
        raise argparse.ArgumentError(None, f"argument --distill: needs {needed}")
    if arguments.distill is None:
        arguments.distill = _DISTILLED if trainable else 0


def _text(report: dict[str, Any]) -> str:
    """Return the report as text."""
    lines = [
        f"{report['output']}: {report['examples']:,} examples, {report['epochs']} epochs, {report['loss']}, "
        f"policy {report['policy']}",
        f"loss {' '.join(f'{loss:.4f}' for loss in report['losses'])}, {report['seconds']:.1f} s, "
        f"{report['examples_per_second']:.1f} examples/s",
    ]
    if "before" in report:
        lines += [f"{name:10} {value:.4f} -> {report['after'][name]:.4f}" for name, value in report["before"].items()]
    if "codes" in report:
        lines.append(_text_of_codes(report["codes"]))
    return "\n".join(lines)


def _text_of_codes(codes: dict[str, Any]) -> str:
    """Return one line: how close the outputs of the quantized model are to those of the trained floats."""
    names = [name for name in ("rounded", "trained", "merged") if name in codes]
    measured = ", ".join(f"{name} {next(iter(codes[name].values())):.4f}" for name in names)
    kept = f"; {codes['kept']} kept" if len(names) > 1 else ""
    return f"{codes['measure']} with {codes['beside']}, {codes['judged']} texts: {measured}{kept}"


def _plot(report: dict[str, Any], file: str) -> None:
    """Draw the loss of each step."""
    from mp_core.cli.benchmark.plots import plot_curve  # needs matplotlib

    title = f"{report['loss']}, {report['examples']:,} examples"
    plot_curve(report["steps"], file, title, "step", "loss")
