"""``mp-core perplexity``: how well a decoder predicts a text."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mp_core.cli import options
from mp_core.cli.common import DONE, positive
from mp_core.cli.grammar import new_command
from mp_core.models.folder import read_text
from mp_core.models.generation import Generator

__all__ = ["add_command"]

_MOST = 1 << 30
"""The most bytes of FILE."""


def add_command(commands: Any) -> None:
    """Add `perplexity` to the program."""
    examples = "perplexity MODEL wiki.txt --window 512", "perplexity MODEL wiki.txt --policy int4/64 --json"
    summary = "measure how well a decoder predicts a text"
    command = new_command(commands, "perplexity", _perplexity, summary, examples)
    options.add_model(command, "folder of a causal language model, or a .gguf file")
    command.add_argument("file", metavar="FILE", help="a text of any length, UTF-8")
    options.add(command, "policy")
    command.add_argument("--window", type=positive, metavar="N", help="tokens of a window (default: 1024)")
    command.add_argument("--stride", type=positive, metavar="N", help="the window moves by N (default: half of it)")
    options.add(command, "json", "threads", "quiet", "no-progress")


def _perplexity(arguments: argparse.Namespace) -> int:
    options.check_model(arguments)
    options.check_outputs(arguments, arguments.model, arguments.file)
    text = read_text(Path(arguments.file), _MOST)
    generator = Generator.from_folder(arguments.model, arguments.policy, cache_tokens=arguments.window)
    found = generator.perplexity(
        text, window=arguments.window, stride=arguments.stride, show_progress=options.shows_progress(arguments)
    )
    how = f"{found.tokens} tokens in windows of {found.window}, {found.stride} apart"
    options.show(
        arguments,
        {"perplexity": found.value} | {name: value for name, value in asdict(found).items() if name != "value"},
        lambda: f"{found.value:.4f}, of {how}, under {generator.model.dtype_policy.name}",
    )
    return DONE
