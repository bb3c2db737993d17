"""The table of vocabulary.h has each shared word of the kernels, and test_vocabulary.py tests every word of it."""

import re

from test_vocabulary import MEANINGS, MEMORY, PAIRS, SAME_BY_FACTOR, SHIFTS
from vocabulary import HEADER, table

TESTED = {
    *MEANINGS, *SHIFTS, *PAIRS, *SAME_BY_FACTOR, "dot_two_s8u4", "wide_factor", "pair_factor", "quad_factor",
    *(f"{word}_{kind}" for kind in MEMORY for word in ("load", "store", "loadn", "storen")),
    "storen_bytes", "stream_f32", "stream_u16", "stream_u8", "stream_fence", "set_f32", "set_u32", "set_u16", "first_n",
    "i32_from_f32", "dot_bf16", "bf16_of_normal", "transpose_u32", "sums_u32", "load_columns", "transpose_words",
    "fma_columns", "interleave_rows", "i16_from_i8", "interleave_u8", "narrow_high_i8",
    "load_octs", "zip_words", "zip_octs", "unzip_octs",
    "pair_from_i4", "pair_from_f4", "pair_of_f4", "pair_of_e4m3fn", "f32_from_f4", "bytes_from_f4", "pair_from_u5",
    "f32_from_u5", "quad_from_u4", "at_most", "unaligned_head",
}  # fmt: skip


def test_every_word_of_the_table_has_a_test():
    assert set(table()) == TESTED


def test_every_shared_word_of_the_headers_is_in_the_table():
    """What vocabulary.h and the sets define beside their own helpers, which one header defines and uses alone."""
    folder = HEADER.parent
    defined = {}
    for path in [HEADER, *sorted((folder / "simd").glob("*.h"))]:
        for name in re.findall(r"^MP_INLINE [\w ]+?\*?(\w+)\(", path.read_text(), re.M):
            defined.setdefault(name, set()).add(path)
    kernels = [path for path in folder.glob("*/*.*") if path.parent.name not in ("simd", "__pycache__")]
    used = set(re.findall(r"\w+", "\n".join(path.read_text() for path in kernels)))
    assert (set(defined) & used) - set(table()) == set()
