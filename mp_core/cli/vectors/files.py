"""The files of vectors: cases with inputs, and the bits that every implementation of docs/numerics.md computes.

docs/vectors.md states the format. ``python -m tests.reference.vectors`` writes the files by the second implementation.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from mp_core.arrays import Array

__all__ = ["FOLDER", "array_of", "bits_of", "cases", "described", "inputs_of", "same_bits"]

FOLDER = Path(__file__).parent
SHOWN = 8
"""How many elements of an output a file contains; the hash is that of all of them."""


def cases() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (section, case) of every file."""
    for file in sorted(FOLDER.glob("*.json")):
        for case in json.loads(file.read_text()):
            yield file.stem, case


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype with this name."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def digits_of(name: str) -> int:
    """Return the number of hexadecimal digits of an element."""
    return 1 if "int4" in name or "float4" in name else 2 * dtype_of(name).itemsize


def bits_of(x: Array, name: str) -> Array:
    """Return the bits of an array as unsigned integers, with one NaN: that of the type, without its sign."""
    if digits_of(name) == 1:
        return np.asarray(x).view(np.uint8) & 15
    unsigned = np.ascontiguousarray(x).view(f"u{x.itemsize}")
    if x.dtype.kind in "iu":
        return unsigned
    with np.errstate(invalid="ignore"):
        is_nan = np.isnan(x.astype(np.float32))
    return np.where(is_nan, np.array(np.nan, x.dtype).view(f"u{x.itemsize}"), unsigned)


def described(x: Array, name: str) -> dict[str, Any]:
    """Return what a file says of an output: dtype, shape, the first bits and the SHA-256 of all."""
    digits = digits_of(name)
    text = "".join(f"{code:0{digits}x}" for code in bits_of(x, name).ravel().tolist())
    found = {"dtype": name, "shape": list(x.shape), "bits": text[: SHOWN * digits]}
    return found | {"sha256": hashlib.sha256(text.encode()).hexdigest()}


def same_bits(x: Array, expected: Mapping[str, Any]) -> bool:
    """Return whether an output is the expected one."""
    return x.dtype == dtype_of(expected["dtype"]) and described(x, expected["dtype"]) == expected


def inputs_of(case: Mapping[str, Any]) -> dict[str, Array]:
    """Return the input arrays of a case."""
    return {name: array_of(entry) for name, entry in case["inputs"].items()}


def array_of(entry: Mapping[str, Any]) -> Array:
    """Return the array that an entry of a file describes: by bits, or as random numbers of a key."""
    dtype, shape = dtype_of(entry["dtype"]), entry["shape"]
    if "bits" not in entry:
        return random(dtype, entry["key"], entry["exponents"], math.prod(shape)).reshape(shape)
    digits = digits_of(entry["dtype"])
    codes = [int(entry["bits"][at : at + digits], 16) for at in range(0, len(entry["bits"]), digits)]
    return np.array(codes, f"u{dtype.itemsize}").view(dtype).reshape(shape)


def random(dtype: np.dtype[Any], key: Sequence[int], exponents: Sequence[int], count: int) -> Array:
    """Return numbers by the words of a key: integers, or floats with exponents from the first to the last given."""
    low, high = exponents
    words = np.random.Philox(key=key).random_raw(count)
    if dtype.kind in "iu" or (dtype.itemsize == 1 and "int" in dtype.name):
        return (words & np.uint64(2 ** (4 * digits_of(dtype.name)) - 1)).astype(f"u{dtype.itemsize}").view(dtype)
    numbers = (words >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1
    powers = (words % np.uint64(high - low + 1)).astype(np.int64) + low
    return np.ldexp(numbers, powers).astype(np.float32).astype(dtype)
