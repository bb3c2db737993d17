"""``mp-core choose``: the cheapest policies under which embeddings stay good."""

import argparse
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from mp_core import dtype_policies, selection
from mp_core.checkpoint.output import new_file
from mp_core.cli.common import DONE, as_json, check_output
from mp_core.cli.embed import input_files, read_texts
from mp_core.cli.policies import policy
from mp_core.models import BertEncoder

__all__ = ["add_command"]


def add_command(commands: Any) -> None:
    """Add the command to the program's."""
    choose = commands.add_parser("choose", help="find the cheapest policies under which embeddings stay good")
    choose.add_argument("model", metavar="DIR", help="folder with config.json and model.safetensors")
    choose.add_argument("--texts", nargs="+", required=True, metavar="FILE", help="the sample, one text a line")
    choose.add_argument("--max-error", type=_budget, required=True, metavar="E", help="the most that --metric may be")
    choose.add_argument("--metric", choices=selection.METRICS, default="max", help="default: %(default)s")
    choose.add_argument(
        "--policies",
        nargs="+",
        type=policy,
        default=selection.POLICIES,
        metavar="POLICY",
        help=f"default: {' '.join(selection.POLICIES)}",
    )
    choose.add_argument("--output", metavar="FILE", help="write the map here, for --map of embed and convert")
    choose.add_argument("--force", action="store_true", help="replace FILE")
    choose.add_argument("--json", action="store_true", help="write one JSON object")
    choose.set_defaults(run=_choose)


def _budget(text: str) -> float:
    try:
        budget = float(text)
    except ValueError:
        budget = math.nan
    if not 0 <= budget < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number of at least 0; received {text!r}")
    return budget


def _choose(arguments: argparse.Namespace) -> int:
    if not arguments.output:
        return _chosen(arguments, None)
    check_output("--output", arguments.output)
    inputs = input_files(arguments.model, arguments.texts)
    with new_file(Path(arguments.output), force=arguments.force, inputs=inputs) as stream:
        return _chosen(arguments, stream)


def _chosen(arguments: argparse.Namespace, stream: BinaryIO | None) -> int:
    choice = selection.choose_policy(
        BertEncoder.from_folder(arguments.model),
        list(read_texts(arguments.texts)),
        max_error=arguments.max_error,
        metric=arguments.metric,
        policies=arguments.policies,
        show_progress=sys.stderr.isatty(),
    )
    report = asdict(choice) | {"map": dtype_policies.serialize(choice.map)}
    if stream is not None:
        stream.write(f"{as_json(report['map'])}\n".encode())
    print(as_json(report) if arguments.json else choice)
    return DONE
