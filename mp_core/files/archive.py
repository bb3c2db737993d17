"""``.keras`` archives: ZIP files with the configuration of a model, its weights and metadata, as plain values."""

import json
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

from mp_core.core.cpu import __version__
from mp_core.files import hdf5
from mp_core.files.zip import member

__all__ = ["CONFIG", "WEIGHTS", "Archive", "read", "read_weights", "write"]

CONFIG, WEIGHTS = "config.json", "model.weights.h5"
_METADATA = "metadata.json"
_LARGEST_TEXT = 1 << 24
"""Limit of the size of ``config.json`` in bytes. A model with 10,000 layers has 10 MB, which take 100 MB in memory."""
_KERAS = "3.15.1"
"""The version of Keras whose file format is written."""


class Archive(NamedTuple):
    """The contents of an archive: the values of two JSON texts, and an HDF5 file."""

    config: Any
    metadata: Any
    weights: bytes


def read(file: BinaryIO) -> Archive:
    """Return the contents of an archive. Nothing in it is executed, and nothing is written to disk.

    Damaged files raise ValueError, or errors of :mod:`zipfile`, :mod:`zlib` and :mod:`json`.
    """
    archive = zipfile.ZipFile(file)
    config = _json(archive, CONFIG)
    metadata = _json(archive, _METADATA) if _METADATA in archive.namelist() else {}
    return Archive(config, metadata, member(archive, WEIGHTS))


def read_weights(file: BinaryIO) -> bytes:
    """Return the HDF5 file in an archive; errors as for :func:`read`."""
    return member(zipfile.ZipFile(file), WEIGHTS)


def _json(archive: zipfile.ZipFile, name: str) -> Any:
    try:
        return json.loads(member(archive, name, _LARGEST_TEXT))
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply") from None


def write(file: BinaryIO, config: Any, weights: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Write an archive.

    `weights` is the argument of :func:`hdf5.write`; `metadata` is added to the versions and the date.
    """
    about = {
        "keras_version": _KERAS,
        "date_saved": time.strftime("%Y-%m-%d@%H:%M:%S"),
        "mp_core_version": __version__,
        **metadata,
    }
    with _zipped(file) as archive:
        archive.writestr(_METADATA, json.dumps(about))
        archive.writestr(CONFIG, json.dumps(config))
        with archive.open(WEIGHTS, "w", force_zip64=True) as stream:
            hdf5.write(stream, weights)


@contextmanager
def _zipped(file: BinaryIO) -> Iterator[zipfile.ZipFile]:
    """Yield a ZIP archive that is written to a stream; after an error or an interrupt, write nothing more.

    ``with ZipFile`` would close the archive after an error, which raises a second error in the middle of a member.
    """
    archive = zipfile.ZipFile(file, "w")
    try:
        yield archive
        archive.close()
    except BaseException:
        archive.fp = None  # an archive without a stream counts as closed
        raise
