"""Read untrusted files within limits: a path may be a link to a device, to a pipe or to a file larger than memory."""

import os
from collections.abc import Iterator
from typing import BinaryIO

from mp_core.files.checkpoint.header import MAX_JSON, open_regular
from mp_core.files.checkpoint.output import naming

__all__ = ["lines_of", "read_file"]

_PIECE = 1 << 18  # bytes per read
_LONGEST = 1 << 26  # most bytes of a line: more than any text that a model reads as a whole


def read_file(path: str | os.PathLike[str], most: int = MAX_JSON) -> bytes:
    """Return the content of a regular file of at most `most` bytes."""
    with naming(path), open_regular(path) as file:
        fits = os.fstat(file.fileno()).st_size <= most
        content = _beginning(file, most + 1) if fits else b""  # st_size of files in /proc is 0
    if not fits or len(content) > most:
        raise ValueError(f"{path} has more than {most} bytes")
    return content


def _beginning(file: BinaryIO, most: int) -> bytes:
    """Return at most `most` bytes, read in pieces because a read allocates as much as it may return."""
    pieces = []
    while most > 0 and (piece := file.read(min(most, _PIECE))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def lines_of(stream: BinaryIO, name: str, longest: int = _LONGEST) -> Iterator[bytes]:
    """Yield the lines of a file or pipe, line ends included; raise ValueError for a line above `longest` bytes."""
    number = 0
    while line := stream.readline(longest + 1):
        number += 1
        if len(line) > longest:
            raise ValueError(f"{name}, line {number} has more than {longest} bytes")
        yield line
