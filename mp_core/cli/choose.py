"""``mp-core choose``: the cheapest policies under which embeddings stay good."""

import argparse
import math
import sys
from dataclasses import asdict
from typing import Any

from mp_core import dtype_policies, selection
from mp_core.cli.common import DONE, as_json
from mp_core.cli.embed import policy, read_texts
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
        metavar="POLICY",
        help="default: bfloat16, float16, and float8, int8 and int4 with bfloat16 inputs",
    )
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
    choice = selection.choose_policy(
        BertEncoder.from_folder(arguments.model),
        list(read_texts(arguments.texts)),
        max_error=arguments.max_error,
        metric=arguments.metric,
        policies=arguments.policies,
        show_progress=sys.stderr.isatty(),
    )
    report = asdict(choice) | {"map": dtype_policies.serialize(choice.map)}
    print(as_json(report) if arguments.json else choice)
    return DONE
