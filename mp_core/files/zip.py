"""ZIP archives that strangers may have made."""

import zipfile
from collections import Counter

__all__ = ["EXPANSION", "entries", "member"]

EXPANSION = 100
"""How many times as large as in the file something may be in memory: Keras does not compress, users may. A table of a
million words of model2vec that shares 10,000 vectors is 40 times as large, as codes of int8 80 times.
"""


def entries(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the entries by their names; raise ValueError if two have one: programs differ in which one they read."""
    found = {entry.filename: entry for entry in archive.infolist()}
    if len(found) < len(archive.infolist()):
        twice, _ = Counter(archive.namelist()).most_common(1)[0]
        raise ValueError(f"it has two entries {twice}; expected one")
    return found


def member(archive: zipfile.ZipFile, name: str, largest: int | None = None) -> bytes:
    """Return the bytes of an entry.

    Raises
    ------
    ValueError
        There is none, or two entries of the archive have one name; or it would have more than `largest` bytes, or far
        more than there are in the file; or it is compressed by another method than Deflate, of which no piece can be
        read within a limit of memory.
    """
    found = entries(archive)
    if name not in found:
        raise ValueError(f"it has no entry {name}; it has {', '.join([*found][:10])}")
    info = found[name]
    if info.compress_size > archive.start_dir:  # behind all entries; zipfile asks for as many bytes as are claimed
        raise ValueError(f"{name} would have {info.compress_size} of the {archive.start_dir} bytes in the file")
    if info.file_size > EXPANSION * max(info.compress_size, 1) or info.file_size > (largest or info.file_size):
        raise ValueError(f"{name} would have {info.file_size} bytes, from {info.compress_size} in the file")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is compressed by method {info.compress_type}; allowed are 0 (stored) and 8 (Deflate)")
    with archive.open(info) as entry:
        return entry.read(info.file_size + 1)  # without a number all is decompressed at once, whatever is claimed
