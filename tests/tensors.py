"""A checkpoint of all types and shapes, and functions of the checkpoint tests that read files and reports."""

import json
import struct

import ml_dtypes
import numpy as np

RNG = np.random.default_rng(3)
LINE = 2**16  # the most elements that are worked on at once


def safetensors(header, data=b"", length=None):
    """Bytes of a file, by the letter: of a header that may be wrong, and a length that may lie."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def normal(*shape, dtype="float32"):
    return RNG.standard_normal(shape).astype(dtype)


TENSORS = {
    "layer.weight": normal(70, 33),
    "layer.bias": normal(70),
    "norm.weight": normal(33, dtype="float16"),
    "conv.weight": normal(6, 5, 3, 3),
    "stack.weight": normal(3, 40, 64, dtype=ml_dtypes.bfloat16),
    "double.weight": normal(9, 8, dtype="float64"),
    "long.weight": normal(2, 2 * LINE + 1001),
    "many.weight": normal(3, 701, 131),
    "column.weight": normal(300, 1),
    "ids": np.arange(12).reshape(3, 4),
    "flags": np.array([[True, False]]),
    "scalar": np.array(2.5, np.float32),
    "empty": np.zeros((4, 0), np.float32),
}
FLOATS = {name for name, x in TENSORS.items() if x.dtype.kind in "fV"}


def row_of(report, name):
    return next(row for row in report["tensors"] if row["name"] == name)


def raw(path):
    """Dtype codes and bytes of all tensors, by a parser of its own."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    data = content[8 + length :]
    return {name: (e["dtype"], e["shape"], data[slice(*e["data_offsets"])]) for name, e in header.items()}, metadata
