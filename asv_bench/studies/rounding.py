"""How many results of functions are misrounded: of all numbers of 16 and 8 bits, and of float32 sums in an epilogue.

`python asv_bench/studies/rounding.py` prints the first table, beside NumPy and torch if it is installed;
`python asv_bench/studies/rounding.py sums 1021` the second one, on every 1021st float32 number.
"""

import sys
from pathlib import Path

import numpy as np

import mp_core as mp
from mp_core import ops
from mp_core.layers import activations

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from exact import ENDS, FORMULAS, exact, values_of

TYPES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
FUNCTIONS = {name: getattr(ops, name) for name in ("exp", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "square")} | {
    name: activations.get(name) for name in ("tanh", "sigmoid", "gelu", "gelu_tanh", "silu", "softplus", "elu")
}
FUSED = {"exponential": "exp"} | {name: name for name in activations.FUSED.values() if name in FORMULAS}
"""Activation of products -> name of its formula."""


def misrounded(found, expected):
    """Return how many results differ; all NaN are equal."""
    different = found.view(f"u{found.itemsize}") != expected.view(f"u{expected.itemsize}")
    with np.errstate(invalid="ignore"):
        return int((different & ~(np.isnan(found) & np.isnan(expected))).sum())


def numpy_function(name):
    return np.reciprocal if name == "reciprocal" else getattr(np, name, None)


def torch_function(name):
    """Return a function of torch over arrays of 16 bits, or None."""
    try:
        import torch
        from torch.nn import functional
    except ImportError:
        return None
    named = {"gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"), "softplus": functional.softplus}
    function = named.get(name) or getattr(torch, name, None) or getattr(functional, name)

    def of_arrays(x):
        kind = torch.float16 if x.dtype == np.float16 else torch.bfloat16
        return function(torch.from_numpy(x.view(np.int16)).view(kind)).view(torch.int16).numpy().view(x.dtype)

    return of_arrays


def of_types():
    """Print the misrounded results of every function and type."""
    print("function", *TYPES, "| NumPy float16 | torch float16, bfloat16")
    for name, function in FUNCTIONS.items():
        with np.errstate(all="ignore"):
            counts = [misrounded(function(x), y) for x, y in (exact(name, dtype) for dtype in TYPES)]
            x, y = exact(name, "float16")
            plain = misrounded(numpy_function(name)(x), y) if numpy_function(name) else "-"
            peer = torch_function(name)
            peers = [misrounded(peer(x), y) for x, y in (exact(name, t) for t in TYPES[:2])] if peer else "-"
        print(name, *counts, "|", plain, "|", peers)


def of_sums(step):
    """Print which share of float32 sums an epilogue rounds to another number than the nearest, and how far away."""
    rest = max(step, 2**12)
    for activation, name in FUSED.items():
        counts, farthest, total = dict.fromkeys(TYPES[:2], 0), 0, 0
        for first in range(0, 2**32, step * rest):
            x = np.arange(first, min(first + step * rest, 2**32), step, dtype=np.uint64).astype(np.uint32)
            x = x.view(np.float32)
            x = x[np.isfinite(x)]
            total += x.size
            with np.errstate(all="ignore"):
                wide, y = values_of(FORMULAS[name], ENDS[name], x), activations.get(activation)(x)
                for dtype in counts:
                    found, expected = mp.cast(y, dtype), mp.cast(wide, dtype)
                    counts[dtype] += misrounded(found, expected)
                    apart = np.abs(found.view(np.int16).astype(int) - expected.view(np.int16).astype(int))
                    farthest = max(farthest, int(apart[~np.isnan(expected)].max(initial=0)))
        print(
            activation, *(f"{dtype} {count} of {total}" for dtype, count in counts.items()), f"at most {farthest} ULP"
        )


if __name__ == "__main__":
    of_sums(int(sys.argv[2])) if sys.argv[1:2] == ["sums"] else of_types()
