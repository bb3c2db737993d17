"""Read ZIP archives from untrusted sources."""

import zipfile
from collections import Counter

__all__ = ["EXPANSION", "entries", "member"]

EXPANSION = 100
"""Limit of size in memory / size in the file. Keras does not compress, but users may. A model2vec table of a million
words that share 10,000 vectors expands 40 times, with int8 codes 80 times.
"""


def entries(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return name -> entry; raise ValueError for duplicate names, because programs differ in which entry they read."""
    found = {entry.filename: entry for entry in archive.infolist()}
    if len(found) < len(archive.infolist()):
        twice, _ = Counter(archive.namelist()).most_common(1)[0]
        raise ValueError(f"it has two entries {twice}; expected one")
    return found


def member(archive: zipfile.ZipFile, name: str, largest: int | None = None) -> bytes:
    """Return the bytes of an entry of at most `largest` bytes, expanded at most :data:`EXPANSION` times.

    It must be stored or compressed by Deflate, the only methods that are read in pieces.
    """
    found = entries(archive)
    if name not in found:
        raise ValueError(f"it has no entry {name}; it has {', '.join([*found][:10])}")
    info = found[name]
    if info.compress_size > archive.start_dir:  # zipfile would allocate the claimed size
        raise ValueError(f"{name} claims {info.compress_size} bytes of a file that has {archive.start_dir}")
    most = min(EXPANSION * max(info.compress_size, 1), largest or info.file_size)
    if info.file_size > most:
        raise ValueError(
            f"{name} would have {info.file_size} bytes, from {info.compress_size} in the file; allowed are {most}"
        )
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is compressed by method {info.compress_type}; allowed are 0 (stored) and 8 (Deflate)")
    with archive.open(info) as entry:
        return entry.read(info.file_size + 1)  # a limit, because more may be stored than is claimed
