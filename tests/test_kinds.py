"""Every kind of product in kinds.def gives the bits of the simplest one, on every instruction set."""

import re
from pathlib import Path

import numpy as np
import pytest
from oracles import assert_same_bits, values

import mp_core as mp
from mp_core.core import cpu

KINDS = Path(__file__).parents[1] / "mp_core" / "core" / "kernels" / "products" / "kinds.def"
ROWS = KINDS.read_text() if KINDS.exists() else ""
MICRO_KERNELS = re.findall(r"^MP_(?:KIND|SAME)\((\w+),", ROWS, re.MULTILINE)
WAYS = [tuple(re.split(r",\s*", row)) for row in re.findall(r"^MP_WAY\((\w+,.*)\)$", ROWS, re.MULTILINE)]
LEFT = {"MP_WIDE": ["float32"], "MP_PAIRS": ["bfloat16"], "MP_QUADS": ["int8", "uint8"]}
RIGHT = {
    "MP_F32": "float32",
    "MP_F16": "float16",
    "MP_BF16": "bfloat16",
    "MP_F8_E4M3FN": "float8_e4m3fn",
    "MP_F8_E5M2": "float8_e5m2",
    "MP_I8": "int8",
    "MP_I4": "int4",
    "MP_F4": "float4_e2m1fn",
}
HEIGHTS = {
    "gemm": (1, 2, 3, 4, 5, 6, 7),
    "gemm_shifted": (1, 2, 3, 4, 5),
    "in_place": (1, 2, 6),
    "transposed": (1, 3, 6),
    "decode": (12, 40, 97),
    "recode": (13, 16, 25, 53),
    "in_turn": (1, 2),
}
# Of gemm_recoded and by hand; wide_f32 is in WAYS.
OTHERWISE = {"words_i16", "octs_s8", "octs_u8", "quads_shifted", "quads_f4"}


def operand(rng, shape, dtype):
    return rng.integers(-128, 128, shape).astype(dtype) if "int8" in dtype else values(rng, shape, dtype, 2)


def right_operand(rng, k, n, dtype, way):
    """Return b as it takes this way: packed, by rows or by columns."""
    if dtype in ("int4", "float4_e2m1fn"):
        symmetric = way != "gemm_shifted"  # otherwise with zero points
        return mp.pack(mp.quantize(rng.standard_normal((k, n), np.float32), axis=1, dtype=dtype, symmetric=symmetric))
    b = operand(rng, (k, n), dtype)
    if way == "in_place":
        return b
    return np.asfortranarray(b) if way == "transposed" else mp.pack(b)


@pytest.mark.skipif(not ROWS, reason="an installed package, without its sources")
def test_every_micro_kernel_is_used():
    assert MICRO_KERNELS and {name for *_, name in WAYS} | OTHERWISE == set(MICRO_KERNELS)


@pytest.mark.usefixtures("reproducible")
@pytest.mark.parametrize(("way", "arithmetic", "b_format", "name"), WAYS)
@pytest.mark.parametrize(("k", "n"), [(67, 80), (1030, 33)])
def test_kind_gives_the_same_bits_on_every_isa(way, arithmetic, b_format, name, k, n, isa, rng):
    """Rows that fill register blocks and rows that do not; columns that end within a vector, K within a group."""
    b = right_operand(rng, k, 60 * n if way == "in_turn" else n, RIGHT[b_format], way)  # in turn: from memory
    out = "int32" if arithmetic == "MP_QUADS" else "float32"
    for left in LEFT[arithmetic]:
        a = operand(rng, (max(HEIGHTS[way]), k), left)
        cpu.set_isa("scalar")
        expected = mp.matmul(a[:1] if way == "decode" else a, b, out_dtype=out)
        cpu.set_isa(isa)
        for rows in HEIGHTS[way]:
            assert_same_bits(mp.matmul(a[:rows], b, out_dtype=out)[: len(expected)], expected[:rows])
