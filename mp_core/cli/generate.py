"""``mp-core generate``: continue texts by a decoder."""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from mp_core.cli import options
from mp_core.cli.common import DONE, finite, path, positive
from mp_core.cli.embed import read_texts
from mp_core.cli.grammar import new_command
from mp_core.models.generation import Generated, Generator

__all__ = ["add_command"]

_AT_ONCE = 64
"""The most prompts that are in memory at once."""


def add_command(commands: Any) -> None:
    """Add `generate` to the program."""
    examples = "generate MODEL prompts.txt --max-tokens 64", "generate MODEL --temperature 0.7 --seed 1 --format jsonl"
    command = new_command(commands, "generate", _generate, "continue prompts, one per line, by a decoder", examples)
    options.add_model(command, "folder of a causal language model")
    command.add_argument("files", nargs="*", default=(), metavar="FILE", help="prompts (default: standard input)")
    options.add(command, "policy")
    command.add_argument("--max-tokens", type=positive, default=128, metavar="N", help="per prompt (default: 128)")
    command.add_argument("--temperature", type=finite, default=0.0, metavar="T", help="0: the most probable token")
    command.add_argument("--top-k", type=positive, metavar="N", help="choose among the N most probable tokens")
    command.add_argument("--top-p", type=finite, default=1.0, metavar="P", help="... whose probabilities add up to P")
    command.add_argument("--min-p", type=finite, default=0.0, metavar="P", help="... that have P of the largest one")
    command.add_argument("--repetition-penalty", type=finite, default=1.0, metavar="X", help="divides repeated logits")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of the random numbers (default: 0)")
    command.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    command.add_argument("--cache-tokens", type=positive, metavar="N", help="tokens with keys and values in memory")
    drafts = "`lookup` proposes tokens from the text, a smaller model in FOLDER its own: same output, fewer steps"
    command.add_argument("--speculation", type=path, metavar="FOLDER", help=drafts)
    command.add_argument("--format", choices=("text", "jsonl"), default="text", help="of the output (default: text)")
    options.add(command, "threads", "quiet")


def _generate(arguments: argparse.Namespace) -> int:
    options.check_model(arguments)
    how = {"policy": arguments.policy, "cache_tokens": arguments.cache_tokens}
    given = arguments.speculation
    speculation = given if given in (None, "lookup") else Generator.from_folder(given, **how)
    generator = Generator.from_folder(arguments.model, **how, speculation=speculation)
    start, tokens = time.perf_counter(), 0
    for prompt, found in _results(generator, arguments):
        tokens += len(found.tokens)
        shown = {"prompt": prompt, "text": found.text, "tokens": found.tokens, "reason": found.reason}
        print(json.dumps(shown, ensure_ascii=False) if arguments.format == "jsonl" else prompt + found.text, flush=True)
    if not arguments.quiet:
        seconds = time.perf_counter() - start
        print(f"mp-core: {tokens} tokens, {tokens / seconds:.1f} tokens per second", file=sys.stderr)
    return DONE


def _results(generator: Generator, arguments: argparse.Namespace) -> Iterator[tuple[str, Generated]]:
    """Yield each prompt and what was generated after it, in order."""
    prompts = read_texts(list(arguments.files) or ["-"])
    names = "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop"
    how = {name: getattr(arguments, name) for name in names}
    while window := list(islice(prompts, _AT_ONCE)):
        yield from zip(window, generator.generate(window, arguments.max_tokens, **how), strict=True)
