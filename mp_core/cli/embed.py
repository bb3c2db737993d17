"""``mp-core embed``: compute vectors of texts."""

import argparse
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from mp_core.arrays import Array
from mp_core.cli import options
from mp_core.cli.common import DONE, check_output, positive, printable
from mp_core.cli.grammar import new_command
from mp_core.cli.kinds import KINDS, Kind, kind_of
from mp_core.cli.policies import policy_map
from mp_core.files.checkpoint.output import naming, new_file
from mp_core.files.checkpoint.reading import lines_of
from mp_core.interop.sources import text_of
from mp_core.models import Reranker, TextEncoder
from mp_core.models.opening import class_of
from mp_core.models.precision import PRECISIONS
from mp_core.models.prompted import TextError
from mp_core.utilities.nonfinite import NonFiniteError, nonfinite
from mp_core.utilities.progress import counting
from mp_core.utilities.suggest import not_one_of
from mp_core.utilities.system import files_below

__all__ = ["add_command", "input_files", "read_texts"]

_FILES = "UTF-8 texts, one per line (default: standard input, also written -)"
# Texts are read, embedded and written in windows; a window ends when it has this many texts or characters.
_TEXTS, _CHARACTERS = 1024, 2**22


def add_command(commands: Any) -> None:
    """Add `embed` to the program."""
    examples = "embed MODEL news.txt > vectors.jsonl", "embed MODEL --policy int8 --output vectors.npy news.txt"
    embed = new_command(commands, "embed", _embed, "compute vectors of texts, one text per line", examples)
    options.add_model(embed)
    embed.add_argument("files", nargs="*", default=(), metavar="FILE", help=_FILES)
    policies = embed.add_mutually_exclusive_group()
    options.add(policies, "policy")
    policies.add_argument("--map", metavar="FILE", help="policies by layer, from `mp-core choose --output NAME.json`")
    embed.add_argument(
        "--batch-size", type=positive, default=32, metavar="N", help="texts per batch (default: %(default)s)"
    )
    prompt = embed.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="text to put before each text (default: set by the model)")
    prompt.add_argument("--prompt-name", metavar="NAME", help="use the prompt with this name in the model's folder")
    embed.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="scale embeddings to length 1, or not (default: set by the model)",
    )
    embed.add_argument(
        "--truncate-dim", type=positive, metavar="N", help="keep the first N numbers (default: set by the model)"
    )
    embed.add_argument("--precision", choices=PRECISIONS, help="type of the written numbers (default: float32)")
    embed.add_argument("--kind", choices=KINDS, help="kind of vectors, for models that have several (default: dense)")
    embed.add_argument("--task", metavar="NAME", help="kind of texts, such as query, for models that distinguish tasks")
    options.add(embed, "output", help="file to write (default: standard output); with --dask, a folder")
    embed.add_argument(
        "--format",
        choices=(*_FORMATS, "parquet"),
        help="format of the output (default: from the suffix of --output, else jsonl; with --dask: npy)",
    )
    embed.add_argument("--dask", metavar="ADDRESS", help="embed on the workers of this dask cluster (npy or parquet)")
    options.add(embed, "force", "threads", "quiet", "no-progress")


class _Line(NamedTuple):
    """A text, its file and the number of its line."""

    file: str
    number: int
    text: str

    @property
    def place(self) -> str:
        """Return "FILE, line NUMBER"."""
        return f"{self.file}, line {self.number}"


@dataclass
class _Tally:
    """The number of texts, the number that were cut off, and the place of the first of those."""

    texts: int = 0
    cut: int = 0
    first: str = ""


def _embed(arguments: argparse.Namespace) -> int:
    options.check_model(arguments)
    if arguments.dask is not None:
        return _embed_on_cluster(arguments)
    chosen = _format_of(arguments)
    if arguments.output:
        check_output("--output", arguments.output)
    with _destination(arguments) as stream:
        encoder = _encoder(arguments)
        tally = _write_vectors(stream, encoder, kind_of(encoder, arguments, chosen), chosen, arguments)
    if tally.cut and not arguments.quiet:
        texts_cut = f"{tally.cut} of {tally.texts} texts were cut off at {encoder.max_length} tokens"
        print(f"mp-core: {texts_cut}; the first is {printable(tally.first)}", file=sys.stderr)
    return DONE


def _format_of(arguments: argparse.Namespace) -> str:
    """Return the format of --format, or the one that the suffix of --output means."""
    if arguments.format == "parquet":
        raise argparse.ArgumentError(None, "argument --format: parquet needs --dask")
    suffix = Path(arguments.output or "").suffix[1:]
    if arguments.format is None and suffix not in ("", *_FORMATS):
        reason = f"the suffix of {arguments.output} is none of {', '.join(_FORMATS)}; use --format to choose one"
        raise argparse.ArgumentError(None, f"argument --output: {reason}")
    chosen: str = arguments.format or suffix or "jsonl"
    if chosen == "npy" and not arguments.output and sys.stdout.isatty():
        raise argparse.ArgumentError(None, "npy is binary; redirect standard output or use --output")
    return chosen


def _policy_of(arguments: argparse.Namespace) -> Any:
    return policy_map(arguments.map) if arguments.map else arguments.policy


def _encoder(arguments: argparse.Namespace) -> Any:
    """Open the encoder in MODEL, of any kind, for the task of --task."""
    folder = Path(arguments.model)
    found = class_of(folder)
    kind: Any = TextEncoder if found is Reranker else found  # TextEncoder's error says that MODEL is a reranker
    encoder = kind.from_folder(folder, _policy_of(arguments))
    if arguments.task is not None and isinstance(encoder, TextEncoder):
        try:
            encoder, arguments.task = encoder.with_task(arguments.task), None
        except ValueError as error:
            raise argparse.ArgumentError(None, f"argument --task: {error}") from None
    if arguments.prompt_name not in (None, *encoder.prompts):
        reason = not_one_of(arguments.prompt_name, encoder.prompts)
        raise argparse.ArgumentError(None, f"argument --prompt-name: {reason}")
    return encoder


def _write_vectors(stream: BinaryIO, encoder: Any, kind: Kind, chosen: str, arguments: argparse.Namespace) -> _Tally:
    """Write the vectors of all texts in the format `chosen`; return the counts for the last message."""
    tally, show, names = _Tally(), options.shows_progress(arguments), arguments.files or ["-"]
    if show and "-" in names and sys.stdin is not None and sys.stdin.isatty():
        print("mp-core: reading texts from standard input, one per line; end with Ctrl-D", file=sys.stderr)
    with counting(show=show, total=_number_of_lines(names) if show else None, unit="text") as done:
        batches = _embedded(partial(kind.encode, encoder), _read_lines(names), arguments, tally, done)
        if chosen == "npy":
            _write_npy(stream, batches, kind.encode(encoder, [], arguments, lambda _: None, done))
        elif chosen == "tsv":
            _write_tsv(stream, batches)
        else:
            _write_jsonl(stream, batches, kind)
    return tally


def _embed_on_cluster(arguments: argparse.Namespace) -> int:
    options.check_address(arguments)
    if arguments.kind not in (None, "dense") or arguments.task is not None:
        raise argparse.ArgumentError(None, "argument --dask: computes only dense vectors; remove --kind and --task")
    if arguments.precision not in (None, "float32"):
        raise argparse.ArgumentError(None, "argument --precision: not allowed with --dask, which writes float32")
    if arguments.threads is not None:
        raise argparse.ArgumentError(None, "argument --threads: not allowed with --dask; set it on the workers")
    if not arguments.output or not arguments.files or "-" in arguments.files:
        raise argparse.ArgumentError(None, "argument --dask: needs --output, and files that the workers can read")
    if arguments.format not in (None, "npy", "parquet"):
        reason = f"must be npy or parquet with --dask; received {arguments.format}"
        raise argparse.ArgumentError(None, f"argument --format: {reason}")
    from mp_core.interop import dask  # needs the package distributed

    with options.client_of(arguments) as client:
        try:
            report = dask.embed(
                client,
                [Path(file) for file in arguments.files],
                arguments.model,
                _policy_of(arguments),
                arguments.output,
                format=arguments.format or "npy",
                batch_size=arguments.batch_size,
                normalize=arguments.normalize,
                prompt=arguments.prompt,
                prompt_name=arguments.prompt_name,
                truncate_dim=arguments.truncate_dim,
                force=arguments.force,
                show_progress=False if arguments.quiet or arguments.no_progress else None,
            )
        except dask.PartError as error:
            raise ValueError(str(error)) from error
    if not arguments.quiet:
        cut = f"; {report['cut']} of {report['texts']} texts were cut off" if report["cut"] else ""
        print(f"mp-core: {report['done']} files written, {report['kept']} existed already{cut}", file=sys.stderr)
    return DONE


@contextmanager
def _destination(arguments: argparse.Namespace) -> Iterator[BinaryIO]:
    """Yield the stream to write to. A file gets its name at the end; after an error there is no file."""
    if not arguments.output:
        yield sys.stdout.buffer
        return
    inputs = input_files(arguments.model, [*(arguments.files or ["-"]), *([arguments.map] if arguments.map else [])])
    with new_file(Path(arguments.output), force=arguments.force, inputs=inputs) as stream:
        yield stream


def input_files(model: str, names: list[str]) -> list[Path]:
    """Return the files that a command reads (the model's and the named ones): no output may replace them."""
    return [*(Path("/dev/stdin" if name == "-" else name) for name in names), *files_below(Path(model))]


def _embedded(
    encode: Callable[..., Any],
    lines: Iterable[_Line],
    arguments: argparse.Namespace,
    tally: _Tally,
    done: Callable[[int], object],
) -> Iterator[tuple[list[str], Any]]:
    """Yield the texts and embeddings of each window of lines; call `done` with the number of new texts."""
    for window in _windows(lines):
        texts = [line.text for line in window]

        def count(positions: list[int], window: list[_Line] = window) -> None:
            tally.first = tally.first or window[positions[0]].place
            tally.cut += len(positions)

        try:
            with nonfinite("raise"):
                embeddings = encode(texts, arguments, count, done)
        except (TextError, NonFiniteError) as error:
            raise ValueError(f"{window[error.position].place} {error.reason}") from error
        tally.texts += len(texts)
        yield texts, embeddings


def _windows(lines: Iterable[_Line]) -> Iterator[list[_Line]]:
    """Yield lists of lines that fit into memory."""
    window: list[_Line] = []
    characters = 0
    for line in lines:
        window.append(line)
        characters += len(line.text)
        if len(window) == _TEXTS or characters >= _CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def read_texts(names: list[str]) -> Iterator[str]:
    """Yield the lines of the named files; ``-`` is standard input."""
    return (line.text for line in _read_lines(names))


def _read_lines(names: list[str]) -> Iterator[_Line]:
    for name in names:
        standard = name == "-"
        file = "standard input" if standard else name
        with naming(file), open(0 if standard else name, "rb", closefd=not standard) as stream:
            for number, line in enumerate(lines_of(stream, file), 1):
                yield _Line(file, number, text_of(line, file, number))


def _number_of_lines(names: list[str]) -> int | None:
    """Return the number of lines of all files; None if one of them can be read only once."""
    if not all(Path(name).is_file() for name in names):
        return None
    number = 0
    for name in names:
        with naming(name), open(name, "rb") as stream:
            number += sum(1 for _ in stream)
    return number


def _write_npy(stream: BinaryIO, batches: Iterable[tuple[list[str], Array]], empty: Array) -> None:
    """Write one array. Its header has the number of rows, so it is written again at the end.

    `empty` is the embedding of no texts: it has the dtype and the number of columns.
    """
    with TemporaryFile() if stream is sys.stdout.buffer or not stream.seekable() else nullcontext(stream) as file:
        rows = 0
        file.write(_npy_header(rows, empty))
        for _, embeddings in batches:
            file.write(embeddings.data)
            rows += len(embeddings)
        file.seek(0)
        file.write(_npy_header(rows, empty))
        if file is not stream:
            file.seek(0)
            shutil.copyfileobj(file, stream)


def _npy_header(rows: int, empty: Array) -> bytes:
    """Return the header of an .npy file; NumPy pads it, so its length does not depend on the number of rows."""
    header = io.BytesIO()
    description = {"shape": (rows, empty.shape[1]), "fortran_order": False, "descr": empty.dtype.str}
    np.lib.format.write_array_header_1_0(header, description)
    return header.getvalue()


def _write_jsonl(stream: BinaryIO, batches: Iterable[tuple[list[str], Any]], kind: Kind) -> None:
    for texts, vectors in batches:
        for text, vector in zip(texts, vectors, strict=True):
            stream.write(f'{{"text": {json.dumps(text)}, {kind.entries(vector)}}}\n'.encode())


def _write_tsv(stream: BinaryIO, batches: Iterable[tuple[list[str], Array]]) -> None:
    for _, embeddings in batches:
        for row in embeddings:
            stream.write(("\t".join(map(str, row)) + "\n").encode())


_FORMATS = KINDS["dense"].formats
