"""``mp-core embed``: texts in, vectors out."""

import argparse
import io
import json
import sys
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mp_core import demo, dtype_policies
from mp_core.cli.common import DONE, check_output, positive
from mp_core.layers.quantized import MODES
from mp_core.models import BertEncoder

__all__ = ["add_command", "policy", "read_texts"]


def add_command(commands: Any) -> None:
    """Add the command to the program's."""
    embed = commands.add_parser("embed", help="embed texts, one a line, with a model from a folder")
    embed.add_argument("files", nargs="*", metavar="FILE", help="UTF-8 text; standard input if none is given, or for -")
    embed.add_argument("--model", required=True, metavar="DIR", help="folder with config.json and model.safetensors")
    embed.add_argument("--policy", type=policy, default="float32", help="dtype policy (default: %(default)s)")
    embed.add_argument("--batch-size", type=positive, default=32, metavar="N", help="default: %(default)s")
    embed.add_argument("--output", metavar="FILE", help="default: standard output")
    embed.add_argument("--format", choices=_WRITERS, help="default: by the suffix of --output, else jsonl")
    embed.set_defaults(run=_embed)


def policy(name: str) -> str:
    """Check a policy's name; ``int8`` alone means the demo's int8 policy."""
    name = demo.ALIASES.get(name, name)
    try:
        chosen = dtype_policies.get(name)
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    compute_dtype = chosen.compute_dtype
    if chosen.quantization_mode not in (None, *MODES):
        raise argparse.ArgumentTypeError(f"must be a policy that layers compute in; {name!r} only names its weights")
    if "float" not in compute_dtype:
        raise argparse.ArgumentTypeError(
            f"must compute in a floating-point dtype; {name!r} computes in {compute_dtype}"
        )
    return name


def _embed(arguments: argparse.Namespace) -> int:
    suffix = Path(arguments.output or "").suffix[1:]
    chosen = arguments.format or (suffix if suffix in _WRITERS else "jsonl")
    if chosen == "npy" and not arguments.output and sys.stdout.isatty():
        raise argparse.ArgumentError(None, "npy is binary: redirect standard output or give --output")
    if arguments.output:
        check_output("--output", Path(arguments.output))
    encoder = BertEncoder.from_folder(arguments.model, arguments.policy)
    texts = list(read_texts(arguments.files or ["-"]))
    embeddings = encoder.encode(texts, batch_size=arguments.batch_size, show_progress=sys.stderr.isatty())
    if arguments.output:
        with open(arguments.output, "wb") as stream:
            _WRITERS[chosen](stream, texts, embeddings)
    else:
        _WRITERS[chosen](sys.stdout.buffer, texts, embeddings)
    return DONE


def read_texts(names: list[str]) -> Iterator[str]:
    """Yield the lines of the named files, of standard input for ``-``."""
    for name in names:
        standard = name == "-"
        try:
            with open(0 if standard else name, encoding="utf-8-sig", newline="\n", closefd=not standard) as lines:
                yield from (line.removesuffix("\n").removesuffix("\r") for line in lines)
        except UnicodeDecodeError as error:
            raise ValueError(f"{'standard input' if standard else name} is not UTF-8 text: {error}") from error


def _write_npy(stream: BinaryIO, texts: list[str], embeddings: np.ndarray[Any, Any]) -> None:
    buffer = io.BytesIO()  # numpy.save asks a file for its position, which a pipe does not have
    np.save(buffer, embeddings)
    stream.write(buffer.getbuffer())


def _write_jsonl(stream: BinaryIO, texts: list[str], embeddings: np.ndarray[Any, Any]) -> None:
    for text, row in zip(texts, embeddings, strict=True):
        # str() of a float32 is its shortest exact decimal; json would write the digits of the float64.
        numbers = ", ".join(str(x) if isfinite(x) else "null" for x in row)
        stream.write(f'{{"text": {json.dumps(text)}, "embedding": [{numbers}]}}\n'.encode())


def _write_tsv(stream: BinaryIO, texts: list[str], embeddings: np.ndarray[Any, Any]) -> None:
    for row in embeddings:
        stream.write(("\t".join(map(str, row)) + "\n").encode())


_WRITERS: dict[str, Callable[[BinaryIO, list[str], np.ndarray[Any, Any]], None]] = {
    "npy": _write_npy,
    "jsonl": _write_jsonl,
    "tsv": _write_tsv,
}
