"""``mp-core choose``: find the cheapest policy of each layer that keeps the error of embeddings below a limit."""

import argparse
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mp_core.cli import options
from mp_core.cli.common import DONE, as_json, check_output, finite
from mp_core.cli.embed import input_files, read_texts
from mp_core.cli.grammar import new_command
from mp_core.files.checkpoint.output import check_free, new_file
from mp_core.models import TextEncoder
from mp_core.models.fitting import METRICS, POLICIES, PolicyChoice, choose_policy
from mp_core.policies.dtype_policies import policy_of, serialize
from mp_core.utilities.system import files_below

__all__ = ["add_command"]


def add_command(commands: Any) -> None:
    """Add `choose` to the program."""
    summary = "find the cheapest policy of each layer that keeps embeddings accurate"
    examples = (
        "choose MODEL --texts news.txt --max-error 1e-3 --output smaller",
        "choose MODEL --texts news.txt --max-error 1e-3 --output map.json",
    )
    choose = new_command(commands, "choose", _choose, summary, examples)
    options.add_model(choose)
    choose.add_argument("--texts", nargs="+", required=True, metavar="FILE", help="sample texts, one per line")
    choose.add_argument("--max-error", type=finite, required=True, metavar="E", help="upper limit of --metric")
    choose.add_argument("--metric", choices=METRICS, help="the error to limit (default: max)")
    options.add(choose, "policies", default=POLICIES, help=f"policies to try (default: {' '.join(POLICIES)})")
    options.add(choose, "output", help="write the model here; if the name ends in .json, only the map for --map")
    options.add(choose, "force", "json", "threads", "quiet", "no-progress")


def _choose(arguments: argparse.Namespace) -> int:
    options.check_model(arguments)
    others = [arguments.output] if arguments.output else []
    options.check_outputs(arguments, arguments.model, *arguments.texts, *others)
    output, inputs = arguments.output, input_files(arguments.model, arguments.texts)
    if output is None:
        _, choice = _search(arguments)
    elif output.endswith(".json"):
        check_output("--output", output)
        with new_file(Path(output), force=arguments.force, inputs=inputs) as stream:
            _, choice = _search(arguments)
            stream.write(f"{as_json(serialize(choice.map))}\n".encode())
    else:
        files = {path.relative_to(arguments.model).as_posix() for path in files_below(Path(arguments.model))}
        check_free(Path(os.path.realpath(output)), files, inputs, force=arguments.force)
        _check_stored(arguments.policies)
        encoder, choice = _search(arguments)
        encoder.with_policy(choice.map).save(output, force=arguments.force)
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


def _search(arguments: argparse.Namespace) -> tuple[TextEncoder, PolicyChoice]:
    """Return the float32 encoder and the policies that were found for it."""
    encoder = TextEncoder.from_folder(arguments.model, "float32")
    return encoder, choose_policy(
        encoder,
        list(read_texts(arguments.texts)),
        max_error=arguments.max_error,
        metric=arguments.metric,
        policies=arguments.policies,
        show_progress=options.shows_progress(arguments),
    )
