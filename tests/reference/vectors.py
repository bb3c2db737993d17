"""Write the vectors of the contract: ``python -m tests.reference.vectors``. docs/vectors.md states their format."""

import hashlib
import json
from pathlib import Path

import numpy as np

from .cases import CASES
from .compute import COMPUTE
from .formats import FORMATS, INTEGERS, cast, codes, decode
from .random import word_of_each

FOLDER = Path(__file__).parents[2] / "mp_core" / "cli" / "vectors"
SHOWN = 8


def digits_of(kind):
    """Return the number of hexadecimal digits of an element."""
    if kind in INTEGERS:
        return INTEGERS[kind][0] // 4
    if kind in FORMATS:
        return (FORMATS[kind].exponent_bits + FORMATS[kind].mantissa_bits + FORMATS[kind].signed) // 4
    return int(kind.removeprefix("float")) // 4


def values_of(entry):
    """Return the values of an input."""
    kind, shape = entry["dtype"], entry["shape"]
    if "bits" in entry:
        n = digits_of(kind)
        x = np.array([int(entry["bits"][at : at + n], 16) for at in range(0, len(entry["bits"]), n)], np.uint64)
    else:
        x = word_of_each(entry["key"], int(np.prod(shape)))
    if kind in INTEGERS:
        bits, signed = INTEGERS[kind]
        x = (x & np.uint64((1 << bits) - 1)).astype(np.int64 if kind != "uint64" else np.uint64)
        return (x - ((x >> bits - 1 << bits) if signed else 0)).reshape(shape)
    if "bits" in entry:
        wide = kind in ("float32", "float64")
        return (x.astype(f"u{digits_of(kind) // 2}").view(kind) if wide else decode(x.astype(np.int64), kind)).reshape(
            shape
        )
    low, high = entry["exponents"]
    numbers = (x >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1
    return cast(np.ldexp(numbers, (x % np.uint64(high - low + 1)).astype(int) + low), kind).reshape(shape)


def described(x, kind):
    """Return what a file says of an output: dtype, shape, the first bits and the SHA-256 of all."""
    x = np.asarray(x)
    if kind not in INTEGERS:
        x = np.where(np.isnan(x), np.abs(x), x)  # one NaN
    n = digits_of(kind)
    text = "".join(f"{code:0{n}x}" for code in codes(x, kind).ravel().tolist())
    found = {"dtype": kind, "shape": list(x.shape), "bits": text[: SHOWN * n]}
    return found | {"sha256": hashlib.sha256(text.encode()).hexdigest()}


def outputs_of(case, section):
    """Return the outputs of a case as the second implementation computes them."""
    arrays = {name: values_of(entry) for name, entry in case["inputs"].items()}
    types = {name: entry["dtype"] for name, entry in case["inputs"].items()}
    order = {"tiles": True} if section == "tiles" else {}
    with np.errstate(all="ignore"):
        found = COMPUTE[case["operation"]](types, **arrays, **case["arguments"], **order)
    found = found if isinstance(found, dict) else {"y": found}
    return {name: described(*pair) for name, pair in found.items()}


def main():
    """Write a file for each section."""
    for section, cases in CASES.items():
        lines = [json.dumps(case | {"outputs": outputs_of(case, section)}, separators=(",", ":")) for case in cases]
        (FOLDER / f"{section}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
