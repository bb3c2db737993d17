"""``mp-core generate``: continue texts, or answer chats, by a decoder."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import groupby
from math import inf
from typing import Any, NamedTuple

from mp_core.cli import options
from mp_core.cli.common import DONE, finite, path, positive
from mp_core.cli.embed import read_texts
from mp_core.cli.grammar import new_command
from mp_core.models.generation import Generated, Generator, Sampling
from mp_core.models.generation.batch import Run
from mp_core.utilities.progress import counting

__all__ = ["add_command"]

_AT_ONCE = 64
"""The most prompts that are in memory at once."""
_PENALTIES = "repetition_penalty", "presence_penalty", "frequency_penalty"
_SAMPLING = "temperature", "top_k", "top_p", "min_p", *_PENALTIES, "seed"
Answers = Iterator[tuple[Any, Generated]]


def add_command(commands: Any) -> None:
    """Add `generate` to the program."""
    examples = (
        "generate MODEL prompts.txt --max-tokens 64", "generate MODEL --temperature 0.7 --seed 1 --format jsonl",
        "generate MODEL --chat", "generate MODEL --chat messages.jsonl --json answers.json",
    )  # fmt: skip
    command = new_command(commands, "generate", _generate, "continue prompts, or answer chats, by a decoder", examples)
    options.add_model(command, "folder of a causal language model")
    command.add_argument("files", nargs="*", default=(), metavar="FILE", help="prompts (default: standard input)")
    options.add(command, "policy")
    command.add_argument("--chat", action="store_true", help="lines are turns of a chat, or messages as JSON")
    command.add_argument("--max-tokens", type=positive, default=128, metavar="N", help="per prompt (default: 128)")
    command.add_argument("--temperature", type=finite, default=0.0, metavar="T", help="0: the most probable token")
    command.add_argument("--top-k", type=positive, metavar="N", help="choose among the N most probable tokens")
    command.add_argument("--top-p", type=finite, default=1.0, metavar="P", help="... whose probabilities add up to P")
    command.add_argument("--min-p", type=finite, default=0.0, metavar="P", help="... that have P of the largest one")
    command.add_argument("--repetition-penalty", type=finite, default=1.0, metavar="X", help="divides repeated logits")
    signed = partial(finite, least=-inf)
    command.add_argument("--presence-penalty", type=signed, default=0.0, metavar="X", help="less for generated tokens")
    command.add_argument("--frequency-penalty", type=signed, default=0.0, metavar="X", help="... each time again")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of the random numbers (default: 0)")
    command.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    command.add_argument("--cache-tokens", type=positive, metavar="N", help="tokens with keys and values in memory")
    drafts = "`lookup` proposes tokens from the text, a smaller model in FOLDER its own: same output, fewer steps"
    command.add_argument("--speculation", type=path, metavar="FOLDER", help=drafts)
    command.add_argument("--format", choices=("text", "jsonl"), default="text", help="of the output (default: text)")
    options.add(command, "json", "threads", "quiet", "no-progress")


class _Item(NamedTuple):
    """What a prompt is shown as, and its text or tokens."""

    shown: Any
    prompt: str | list[int]


def _generate(arguments: argparse.Namespace) -> int:
    options.check_model(arguments)
    options.check_outputs(arguments, arguments.model, *arguments.files)
    how = {"policy": arguments.policy, "cache_tokens": arguments.cache_tokens}
    given = arguments.speculation
    speculation = given if given in (None, "lookup") else Generator.from_folder(given, **how)
    generator = Generator.from_folder(arguments.model, **how, speculation=speculation)
    report: dict[str, Any] = {"model": arguments.model, "policy": generator.model.dtype_policy.name, "results": []}
    start, counted = time.perf_counter(), 0
    with counting(show=options.shows_progress(arguments) and not _is_live(arguments), total=None, unit="token") as done:

        def count(tokens: int) -> None:
            nonlocal counted
            counted += tokens
            done(tokens)

        try:
            answers = (_chats if arguments.chat else _continuations)(generator, arguments, count)
            for shown, found in answers:
                entry = {"messages" if arguments.chat else "prompt": shown} | _fields(found)
                if arguments.json is not None:
                    report["results"].append(entry)
                if arguments.json != "-":
                    _write(arguments, entry)
        finally:  # also after an interrupt: what is done is written
            seconds = time.perf_counter() - start
            report |= {"tokens": counted, "seconds": seconds, "tokens_per_second": counted / seconds}
            if arguments.json is not None:
                options.show(argparse.Namespace(**vars(arguments) | {"quiet": True}), report, str)
    if not arguments.quiet:
        print(f"mp-core: {counted} tokens, {report['tokens_per_second']:.1f} tokens per second", file=sys.stderr)
    return DONE


def _fields(found: Generated) -> dict[str, Any]:
    return {name: value for name, value in asdict(found).items() if name != "log_probabilities"}


def _is_live(arguments: argparse.Namespace) -> bool:
    """Return whether answers are written piece by piece: in a chat whose turns are lines of text."""
    return bool(arguments.chat and arguments.format == "text" and arguments.json != "-")


def _write(arguments: argparse.Namespace, entry: Mapping[str, Any]) -> None:
    """Write an answer as a line; the text of a live answer is written already."""
    if arguments.format == "jsonl":
        print(json.dumps(entry, ensure_ascii=False), flush=True)
    elif arguments.chat:
        print("" if entry["messages"] is None else entry["text"], flush=True)
    else:
        print(entry["prompt"] + entry["text"], flush=True)


def _lines(arguments: argparse.Namespace) -> Iterator[tuple[int, str]]:
    return enumerate(read_texts(list(arguments.files) or ["-"]))


def _continuations(generator: Generator, arguments: argparse.Namespace, count: Callable[[int], None]) -> Answers:
    """Yield each line and its continuation, in order."""
    items = ((number, _Item(line, line)) for number, line in _lines(arguments))
    return _in_order(generator, items, arguments, lambda run, piece: count(1))


def _chats(generator: Generator, arguments: argparse.Namespace, count: Callable[[int], None]) -> Answers:
    """Yield messages and their answers, in order.

    A line that starts with [ or { has all messages of a chat; the others are the turns of one user in another chat.
    """
    turns: list[dict[str, Any]] = []
    for is_json, lines in groupby(_lines(arguments), lambda line: line[1].lstrip()[:1] in ("[", "{")):
        if is_json:
            items = ((number, _item(generator, number, line)) for number, line in lines)
            yield from _in_order(generator, items, arguments, lambda run, piece: count(1))
            continue
        for number, line in lines:
            turns.append({"role": "user", "content": line})
            item = _item(generator, number, list(turns), not _is_live(arguments))
            live = partial(_show_piece, count, _is_live(arguments))
            for shown, found in _in_order(generator, [(number, item)], arguments, live):
                turns.append({"role": "assistant", "content": found.text})
                yield shown, found


def _show_piece(count: Callable[[int], None], is_live: bool, run: Run, piece: str) -> None:
    count(1)
    if is_live:
        print(piece, end="", flush=True)


def _messages_of(line: str) -> Any:
    """Read the messages of a line: a list, or an object with "messages"."""
    given = json.loads(line)
    return given.get("messages") if isinstance(given, dict) else given


def _item(generator: Generator, number: int, messages: Any, is_shown: bool = True) -> _Item:
    """Return messages, or a line of JSON, as an item; errors name the line."""
    try:
        found = _messages_of(messages) if isinstance(messages, str) else messages
        return _Item(found if is_shown else None, generator.chat_tokens(found))
    except (ValueError, TypeError, RecursionError) as error:
        json_only = "; a line that starts with [ or { must be messages as JSON" if isinstance(messages, str) else ""
        raise ValueError(f"line {number + 1}: {error}{json_only}") from None


def _in_order(
    generator: Generator,
    items: Iterable[tuple[int, _Item]],
    arguments: argparse.Namespace,
    on_piece: Callable[[Run, str], None],
) -> Answers:
    """Yield what each item is shown as, and its answer, in order."""
    sampling = Sampling(**{name: getattr(arguments, name) for name in _SAMPLING})
    failures: list[ValueError] = []  # of the line that ends the reading: the answers to those before it come first
    shown: dict[Run, Any] = {}
    found: dict[Run, Generated] = {}

    def runs() -> Iterator[Run]:
        for number, item in items:
            try:
                (run,) = generator.runs([item.prompt], sampling, arguments.max_tokens, first=number)
            except ValueError as error:
                failures.append(ValueError(f"line {number + 1}: {error}"))
                return
            shown[run] = item.shown
            yield run

    for run, piece, done in generator.steps_of(runs(), arguments.stop, _AT_ONCE):
        on_piece(run, piece)
        if done is not None:
            found[run] = done
        while shown and (first := next(iter(shown))) in found:
            yield shown.pop(first), found.pop(first)
    for failure in failures:
        raise failure
