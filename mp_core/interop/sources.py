"""Cut texts into pieces: parts of a list, or ranges of lines in files, which each worker reads itself."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from os import PathLike
from typing import Any, BinaryIO

from mp_core.files.checkpoint.header import open_regular
from mp_core.files.checkpoint.output import naming
from mp_core.files.checkpoint.reading import lines_of
from mp_core.interop.manifest import digest
from mp_core.models.texts import in_order, list_of_texts
from mp_core.utilities.arguments import path_of

__all__ = ["FilePiece", "ListPiece", "pieces", "text_of"]

_BYTES = 2**24
"""A piece of a file ends after the line with which it reaches this many bytes, or earlier."""


@dataclass(frozen=True, slots=True)
class ListPiece:
    """Texts of a list, from position `first` on."""

    texts: list[str]
    first: int

    @property
    def key(self) -> str:
        """A digest of the texts."""
        return digest(*self.texts)

    def read(self) -> list[str]:
        """Return the texts."""
        return self.texts

    def place(self, position: int) -> str:
        """Return the name of a text for errors."""
        return f"`texts[{self.first + position}]`"


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Lines of a file from line `first` on: `size` bytes from byte `start` on, and `content`, their SHA-256."""

    file: str
    start: int
    size: int
    first: int
    content: str

    @property
    def key(self) -> str:
        """A digest of the texts. It depends on whether the first line is line 1, which loses a byte-order mark."""
        return digest(self.content, self.first == 1)

    def read(self) -> list[str]:
        """Read the texts; raise ValueError if the file has changed, or is not UTF-8."""
        with naming(self.file), open_regular(self.file) as stream:
            stream.seek(self.start)
            content = stream.read(self.size)
        if sha256(content).hexdigest() != self.content:
            raise ValueError(f"{self.file} has changed since the job began")
        lines = content.split(b"\n")
        if not lines[-1]:
            lines.pop()
        return [text_of(line, self.file, number) for number, line in enumerate(lines, self.first)]

    def place(self, position: int) -> str:
        """Return the name of a text for errors."""
        return f"{self.file}, line {self.first + position}"


def text_of(line: bytes, file: str, number: int) -> str:
    """Return the text of a line of a file; raise ValueError if it is not UTF-8."""
    content = line.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return content.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}, line {number} is not UTF-8 text: {error}") from error


def pieces(texts: Iterable[str] | Iterable[PathLike[str]], most: int) -> Sequence[ListPiece | FilePiece]:
    """Cut texts, or the lines of files, into one or more pieces of at most `most` texts.

    Raise TypeError or ValueError for a single text or path, a table, a dict or a set, a mix of texts and paths, or a
    file that is a pipe or a device or has a line of more than 64 MiB.
    """
    given: list[Any] = list(in_order(texts, "texts", "an iterable of str or of paths"))
    if given and isinstance(given[0], PathLike):
        return _of_files(given, most) or [ListPiece([], 0)]
    given = list_of_texts(given, "texts")
    return [ListPiece(given[first : first + most], first) for first in range(0, max(1, len(given)), most)]


def _of_files(files: Sequence[PathLike[str]], most: int) -> list[FilePiece]:
    for position, file in enumerate(files):
        if not isinstance(file, PathLike):
            raise TypeError(f"`texts[{position}]` must be a path, as `texts[0]` is; received {type(file).__name__}")
    paths = [path_of(file, f"texts[{position}]").absolute() for position, file in enumerate(files)]
    found: list[FilePiece] = []
    for path in paths:
        with naming(path), open_regular(path) as stream:
            found += _of_stream(str(path), stream, most)
    return found


def _of_stream(file: str, stream: BinaryIO, most: int) -> Iterator[FilePiece]:
    start = size = lines = 0
    first, content = 1, sha256()
    for line in lines_of(stream, file):
        content.update(line)
        size, lines = size + len(line), lines + 1
        if lines == most or size >= _BYTES:
            yield FilePiece(file, start, size, first, content.hexdigest())
            start, first, size, lines, content = start + size, first + lines, 0, 0, sha256()
    if lines:
        yield FilePiece(file, start, size, first, content.hexdigest())
