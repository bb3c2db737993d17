"""``mp-core choose``: find the cheapest policy of each layer that keeps the error of outputs below a limit."""

import argparse
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mp_core.cli import graphs, options
from mp_core.cli.common import DONE, as_json, check_output, finite
from mp_core.cli.embed import input_files, read_texts
from mp_core.cli.grammar import new_command
from mp_core.files.checkpoint.output import check_free, new_file
from mp_core.models import TextEncoder
from mp_core.models.fitting import METRICS, POLICIES, PolicyChoice, choose_policy
from mp_core.policies.dtype_policies import policy_of, serialize
from mp_core.programs import ProgramModel
from mp_core.programs.folders import FILES
from mp_core.utilities.system import files_below

__all__ = ["add_command"]


def add_command(commands: Any) -> None:
    """Add `choose` to the program."""
    summary = "find the cheapest policy of each layer that keeps embeddings, or the outputs of a graph, accurate"
    examples = (
        "choose MODEL --texts news.txt --max-error 1e-3 --output smaller",
        "choose MODEL --texts news.txt --max-error 1e-3 --output map.json",
        "choose model.onnx --inputs in.npz --max-error 1e-3 --output smaller",
    )
    choose = new_command(commands, "choose", _choose, summary, examples)
    options.add_model(choose, "folder of an encoder, or graph: ONNX file, or folder that a ProgramModel was saved as")
    choose.add_argument("--texts", nargs="+", metavar="FILE", help="if MODEL is an encoder: sample texts, one per line")
    options.add(choose, "inputs")
    choose.add_argument("--max-error", type=finite, required=True, metavar="E", help="upper limit of --metric")
    choose.add_argument("--metric", choices=METRICS, help="the error to limit (default: max)")
    options.add(choose, "policies", default=POLICIES, help=f"policies to try (default: {' '.join(POLICIES)})")
    options.add(choose, "output", help="write the model here; if the name ends in .json, only the map for --map")
    options.add(choose, "force", "json", "threads", "quiet", "no-progress")


def _choose(arguments: argparse.Namespace) -> int:
    _check_sample(arguments)
    others = [arguments.output] if arguments.output else []
    sample = [*(arguments.texts or ()), *([arguments.inputs] if arguments.inputs else ())]
    options.check_outputs(arguments, arguments.model, *sample, *others)
    output, inputs = arguments.output, input_files(arguments.model, sample)
    if output is None:
        _, choice = _search(arguments)
    elif output.endswith(".json"):
        check_output("--output", output)
        with new_file(Path(output), force=arguments.force, inputs=inputs) as stream:
            _, choice = _search(arguments)
            stream.write(f"{as_json(serialize(choice.map))}\n".encode())
    else:
        folder = Path(arguments.model)
        files = (
            set(FILES)
            if graphs.is_graph(arguments.model)
            else {path.relative_to(folder).as_posix() for path in files_below(folder)}
        )
        check_free(Path(os.path.realpath(output)), files, inputs, force=arguments.force)
        _check_stored(arguments.policies)
        model, choice = _search(arguments)
        chosen = model.with_policy(choice.map)
        if isinstance(chosen, TextEncoder):
            chosen.save(output, force=arguments.force)
        else:
            chosen.save(output, overwrite=arguments.force)
    options.show(arguments, asdict(choice) | {"map": serialize(choice.map)}, lambda: str(choice))
    return DONE


def _check_stored(policies: Iterable[str]) -> None:
    """Raise before the search if a folder cannot store one of the policies."""
    for scheme in (policy_of(name).scheme for name in policies):
        try:
            if scheme is not None:
                scheme.check_stored()
        except ValueError as error:
            raise argparse.ArgumentError(None, f"argument --policies: {error}") from error


def _check_sample(arguments: argparse.Namespace) -> None:
    """Raise unless the sample is one for the kind of MODEL: texts for an encoder, inputs for a graph."""
    if graphs.is_graph(arguments.model):
        if arguments.texts:
            raise argparse.ArgumentError(None, "argument --texts: not allowed if MODEL is a graph; use --inputs")
        return
    options.check_model(arguments)
    if arguments.inputs is not None:
        raise argparse.ArgumentError(None, "argument --inputs: not allowed unless MODEL is a graph")
    if not arguments.texts:
        raise argparse.ArgumentError(None, "the following arguments are required: --texts")


def _opened(arguments: argparse.Namespace) -> tuple[TextEncoder | ProgramModel, list[Any]]:
    """Return the model in float32, and the calls of its sample."""
    if not graphs.is_graph(arguments.model):
        return TextEncoder.from_folder(arguments.model, "float32"), list(read_texts(arguments.texts))
    graph = graphs.opened(arguments.model, "float32")
    return graph, [graphs.drawn_for(graph) if arguments.inputs is None else graphs.arrays(arguments.inputs)]


def _search(arguments: argparse.Namespace) -> tuple[TextEncoder | ProgramModel, PolicyChoice]:
    """Return the float32 model and the policies that were found for it."""
    model, sample = _opened(arguments)
    return model, choose_policy(
        model,
        sample,
        max_error=arguments.max_error,
        metric=arguments.metric,
        policies=arguments.policies,
        show_progress=options.shows_progress(arguments),
    )
