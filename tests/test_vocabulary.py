"""Each word of the kernels' vocabulary works as the table of vocabulary.h says, on every instruction set.

vocabulary.py has the words as functions; NumPy computes the expected results.
"""

import itertools

import ml_dtypes
import numpy as np
import pytest
from oracles import assert_same_bits, bits, exactly
from test_guard_pages import PAGE, Guarded
from vocabulary import HERE, table, words_of

BF16 = ml_dtypes.bfloat16
LANES = 16
E2M1 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)


@pytest.fixture(scope="module", params=HERE or [None])
def words(request, tmp_path_factory):
    """The functions of each instruction set that this CPU has."""
    if request.param is None:
        pytest.skip("no build directory says how the kernels were compiled")
    with words_of(request.param, tmp_path_factory.mktemp("words")) as found:
        yield found


# ---- operands


def vectors(*columns):
    """Rows of 16 lanes, for each operand, that hold all of its column (filled up with its beginning)."""
    rows = -(-max(map(len, columns)) // LANES)
    return [np.resize(x, (rows, LANES)) for x in columns]


def pairs(x, count):
    return [np.array(column, x.dtype) for column in zip(*itertools.product(x, repeat=count), strict=True)]


WORDS_U32 = np.array([0, 1, 2, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1], np.uint32)
FLOATS = np.array(
    [0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x33800000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x40490FDB,
     0x4B800001, 0x7F7FFFFF, 0x7F800000, 0x7FC00001, 0x7F800001],  # 2^24 + 2, largest, Inf, quiet NaN, signalling NaN
    np.uint32,
)  # fmt: skip
FLOATS = np.concatenate([FLOATS, FLOATS | 0x80000000])


def random(rng, kind):
    """Random bits of the kind, and its edge cases."""
    if kind == "f32":
        return np.concatenate([FLOATS, rng.integers(0, 2**32, 996, np.uint32)]).view(np.float32)
    if kind == "mask":
        return rng.integers(0, 2, 1024, np.uint32)
    if kind in ("u8", "u16"):
        every = np.arange(256 if kind == "u8" else 65536)
        return rng.permutation(every).astype(kind.replace("u", "uint"))
    return np.concatenate([WORDS_U32, rng.integers(0, 2**32, 1010, np.uint32)])


def operands(rng, kinds):
    """Rows of lanes of these kinds: random bits, and all combinations of edge cases."""
    columns = [random(rng, kind) for kind in kinds]
    most = max(map(len, columns))
    columns = [rng.permutation(np.resize(x, most)) for x in columns]
    if set(kinds) in ({"f32"}, {"u32"}) and len(kinds) > 1:
        edges = pairs(FLOATS.view(np.float32) if kinds[0] == "f32" else WORDS_U32, len(kinds))
        columns = [np.concatenate([x, edge]) for x, edge in zip(columns, edges, strict=True)]
    return vectors(*columns)


# ---- meanings, from NumPy: a result of float type is compared as a number, one of integers bit for bit


def fma(x, y, z):
    """x y + z rounded once: the sum is rounded to odd in float64, whose 53 bits are more than twice 24 + 2."""
    x, y, z = (exactly(v, np.float64) for v in (x, y, z))
    product = x * y  # exact
    total = product + z
    back = total - product
    error = (product - (total - back)) + (z - back)  # Knuth's two-sum: total + error is exact
    odd = bits(total) & 1 == 1
    to_odd = np.where(np.isfinite(total) & (error != 0) & ~odd, np.nextafter(total, np.copysign(np.inf, error)), total)
    return exactly(to_odd, np.float32)


def halves(x):
    """(low, high) bf16 of each lane."""
    return (x & 0xFFFF).astype(np.uint16).view(BF16), (x >> 16).astype(np.uint16).view(BF16)


def joined(x):
    """Neighbours along the last axis, as the 32 bits of a lane."""
    return np.ascontiguousarray(x).view(np.uint32)


def bytes_of(x):
    """(rows, 16, 4) bytes, the lowest first."""
    return np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, 4)


def words_of_bytes(x):
    """The inverse of bytes_of."""
    return np.ascontiguousarray(x, np.uint8).view(np.uint32)[..., 0]


def dot_u8s8(z, x, y):
    products = bytes_of(x).astype(np.int64) * bytes_of(y).view(np.int8)
    return (z.astype(np.int64) + products.sum(-1)).astype(np.uint32)


def dot_i16(z, x, y):
    """Exact modulo 2^32."""
    x, y = (np.ascontiguousarray(v).view(np.int16).reshape(*v.shape, 2).astype(np.int64) for v in (x, y))
    return (z + (x * y).sum(-1)).astype(np.uint32)


def dot_s8s8(z, x, y):
    products = bytes_of(x).view(np.int8).astype(np.int64) * bytes_of(y).view(np.int8)
    return (z.astype(np.int64) + products.sum(-1)).astype(np.uint32)


def dot_octs(kind):
    """z + the products of two rows of eight bytes of that kind by eight blocks of two columns of eight signed bytes."""

    def dot(z, x, y):
        rows = np.ascontiguousarray(x[:, :4]).view(kind).reshape(-1, 1, 2, 1, 8).astype(np.int64)
        columns = np.ascontiguousarray(y).view(np.int8).reshape(-1, 4, 1, 2, 8)
        return (z + (rows * columns).sum(-1).reshape(z.shape)).astype(np.uint32)

    return dot


def of_parts(function, dtype):
    """A function over the parts of that type in vectors of 32-bit lanes."""
    return lambda x, y: function(x.view(dtype), y.view(dtype)).view(np.uint32)


def flag(x):
    return x.any(-1).astype(np.uint32)[:, None]


def summed(x):
    for half in (8, 4, 2, 1):
        x = x[:, :half] + x[:, half : 2 * half]
    return x


def largest(x):
    best = x[:, :1]
    for lane in range(1, LANES):
        best = np.where(x[:, lane : lane + 1] > best, x[:, lane : lane + 1], best)
    return bits(best)


MEANINGS = {
    "and_u32": ("u32 u32", np.bitwise_and),
    "or_u32": ("u32 u32", np.bitwise_or),
    "xor_u32": ("u32 u32", np.bitwise_xor),
    "add_u32": ("u32 u32", np.add),
    "sub_u32": ("u32 u32", np.subtract),
    "mul_u32": ("u32 u32", np.multiply),
    "min_u32": ("u32 u32", np.minimum),
    "max_u32": ("u32 u32", np.maximum),
    "as_f32": ("u32", lambda x: x),
    "as_u32": ("f32", bits),
    "add_f32": ("f32 f32", np.add),
    "sub_f32": ("f32 f32", np.subtract),
    "mul_f32": ("f32 f32", np.multiply),
    "div_f32": ("f32 f32", np.divide),
    "fma_f32": ("f32 f32 f32", fma),
    "min_f32": ("f32 f32", lambda x, y: np.where(x < y, bits(x), bits(y))),
    "max_f32": ("f32 f32", lambda x, y: np.where(x > y, bits(x), bits(y))),
    "lt_f32": ("f32 f32", lambda x, y: (x < y).astype(np.uint32)),
    "gt_i32": ("u32 u32", lambda x, y: (x.view(np.int32) > y.view(np.int32)).astype(np.uint32)),
    "select_f32": ("mask f32 f32", lambda m, x, y: np.where(m == 1, bits(x), bits(y))),
    "select_u32": ("mask u32 u32", lambda m, x, y: np.where(m == 1, x, y)),
    "f32_from_i32": ("u32", lambda x: x.view(np.int32).astype(np.float32)),
    "f32_from_bf16": ("u16", lambda x: (x.astype(np.uint32) << 16).view(np.float32)),
    "widen_u16": ("u16", lambda x: x.astype(np.uint32)),
    "load_u16_as_u32": ("u16", lambda x: x.astype(np.uint32)),
    "widen_u8": ("u8", lambda x: x.astype(np.uint32)),
    "widen_i8": ("u8", lambda x: x.view(np.int8).astype(np.int32).view(np.uint32)),
    "narrow_u16": ("u32", lambda x: x.astype(np.uint16)),
    "narrow_u8": ("u32", lambda x: x.astype(np.uint8)),
    "low_halves": ("u32 u32", lambda x, y: joined((np.concatenate([x, y], -1) & 0xFFFF).astype(np.uint16))),
    "high_halves": ("u32 u32", lambda x, y: joined((np.concatenate([x, y], -1) >> 16).astype(np.uint16))),
    "top_u32": ("u32", lambda x: x.max(-1, keepdims=True)),
    "max_lanes": ("f32", largest),
    "sum_f32": ("f32", summed),
    "dot_u8s8": ("u32 u32 u32", dot_u8s8),
    "dot_s8s8": ("u32 u32 u32", dot_s8s8),
    "dot_i16": ("u32 u32 u32", dot_i16),
    "dot_octs_s8": ("u32 u32 u32", dot_octs(np.int8)),
    "dot_octs_u8": ("u32 u32 u32", dot_octs(np.uint8)),
    "f32_from_f16": ("u16", lambda x: exactly(x.view(np.float16), np.float32)),
    "load_f16_as_f32": ("u16", lambda x: exactly(x.view(np.float16), np.float32)),
    "f16_from_f32": ("f32", lambda x: exactly(x, np.float16)),
    "high_u8": ("u16", lambda x: (x >> 8).astype(np.uint8)),
    "eq_u16": ("u16 u16", lambda x, y: (x == y).astype(np.uint32)),
    "u16_from_u8": ("u8", lambda x: x.astype(np.uint16)),
    "and_u16": ("u16 u16", np.bitwise_and),
    "or_u16": ("u16 u16", np.bitwise_or),
    "any_subnormal": ("f32", lambda x: flag((x != 0) & (np.abs(x) < 2.0**-126))),
    "min_u16": ("u32 u32", of_parts(np.minimum, np.uint16)),
    "min_i8": ("u32 u32", of_parts(np.minimum, np.int8)),
    "max_i8": ("u32 u32", of_parts(np.maximum, np.int8)),
    "any_clear": ("u32 u32", lambda x, y: flag(x & y == 0)),
    "any_set": ("u32 u32", lambda x, y: flag(x & y != 0)),
}


@pytest.mark.parametrize("word", MEANINGS)
def test_lane_by_lane(words, word, rng):
    kinds, meaning = MEANINGS[word]
    x = operands(rng, kinds.split())
    with np.errstate(all="ignore"):
        expected = meaning(*x)
    assert_same_bits(words.each(word, x, expected), expected)


def test_fma_where_the_sum_is_just_beside_halfway_between_two_floats(words, rng):
    """c plus half its last bit times 1 - 2^-2n or 1 + 2^-3n: a double does not hold the difference from halfway."""
    count = 1 << 14
    over, e = rng.integers(0, 2, count), rng.integers(-90, 110, count)
    tiny = np.arange(count) % 4 == 0  # c subnormal, or the smallest normal number
    n = np.where(over, rng.integers(10, 12, count), rng.integers(15, 24, count))
    half = np.where(tiny, -150, e - 24)
    x = np.ldexp(1 + np.ldexp(1.0, -n), half // 2)
    y = np.ldexp(1 - np.ldexp(1.0, -n) + over * np.ldexp(1.0, -2 * n), half - half // 2)
    subnormal, normal = rng.integers(2**21, 2**23 + 1, count), rng.integers(2**23, 2**24, count)
    z = np.ldexp(np.where(tiny, subnormal, normal), np.where(tiny, -149, e - 23))
    z[:256] = np.ldexp(2.0**23 - 1, -149)
    signs = rng.choice(np.array([-1, 1], np.float32), (3, count))
    operands = vectors(*signs * np.array([x, y, z], np.float32))
    expected = fma(*operands)
    assert_same_bits(words.each("fma_f32", operands, expected), expected)


@pytest.mark.parametrize("word", ["any_subnormal", "any_clear", "any_set", "eq_u16"])
def test_what_is_rare_in_random_bits(words, word, rng):
    """All lanes but one alike, in each place."""
    kinds, meaning = MEANINGS[word]
    ones = np.ones((LANES, LANES), np.float32 if "f32" in kinds else kinds.split()[0].replace("u", "uint"))
    x = [ones.copy() for _ in kinds.split()]
    np.fill_diagonal(x[0], 2.0**-140 if "f32" in kinds else 2)
    for turn in (x, [ones, *x[1:]], [2 * ones, *x[1:]]):
        expected = meaning(*turn)
        assert_same_bits(words.each(word, turn, expected), expected)


# ---- words with a count, a constant or several vectors, by name

SHIFTS = {
    "shl_u32": ("u32", 32, lambda x, n: x << np.uint32(n)),
    "shr_u32": ("u32", 32, lambda x, n: x >> np.uint32(n)),
    "sar_u32": ("u32", 32, lambda x, n: (x.view(np.int32) >> n).view(np.uint32)),
    "shl_u16": ("u16", 16, lambda x, n: x << np.uint16(n)),
}


@pytest.mark.parametrize("word", SHIFTS)
def test_shifts(words, word, rng):
    kind, width, meaning = SHIFTS[word]
    (x,) = operands(rng, [kind])
    x = x[:128]
    for n in range(width):
        assert_same_bits(words.each(word, [x], x, n), meaning(x, n))


@pytest.mark.parametrize("word", ["f32_from_bf16", "f32_from_f16", "load_f16_as_f32"])
def test_nan_becomes_quiet_and_keeps_its_sign(words, word):
    top = 0x7F80 if "bf16" in word else 0x7C00
    x = np.arange(0x8000, dtype=np.uint16)
    (x,) = vectors(np.concatenate([x[x > top], x[x > top] | 0x8000]))
    found = words.each(word, [x], x.astype(np.uint32))
    assert (found & 0x7FC00000 == 0x7FC00000).all()
    np.testing.assert_array_equal(found >> 31, x >> 15)


MEMORY = {"f32": np.float32, "u32": np.uint32, "u16": np.uint16, "u8": np.uint8}


@pytest.mark.parametrize("kind", MEMORY)
def test_loads_and_stores_touch_their_elements_only(words, kind, rng):
    """Each address modulo 64, against both ends of a page."""
    memory, size = Guarded(1), np.dtype(MEMORY[kind]).itemsize
    x = rng.integers(1, 256, LANES * size, np.uint8)
    for shift in range(64):
        at = np.zeros(LANES * size + 64, np.uint8)[shift:]
        at[: x.size] = x
        assert_same_bits(words[f"load_{kind}"](at, out=np.empty_like(x)), x)
        at[:] = 7
        words[f"store_{kind}"](x, out=at)
        assert_same_bits(at[: x.size], x)
        assert (at[x.size :] == 7).all()
    for n, end in itertools.product(range(1, LANES + 1), (True, False)):
        part = x[: n * size]
        loaded = words[f"loadn_{kind}"](memory.place(part, end), out=np.empty_like(x), n=n)
        assert_same_bits(loaded, np.concatenate([part, np.zeros((LANES - n) * size, np.uint8)]))
        out = memory.place(np.zeros_like(part), end)
        memory.bytes[PAGE : 2 * PAGE] = 7
        words[f"storen_{kind}"](x, out=out, n=n)
        assert_same_bits(out, part)
        assert (memory.bytes[PAGE : 2 * PAGE] != 7).sum() == (part != 7).sum()


def test_storen_bytes(words, rng):
    memory, x = Guarded(1), rng.integers(8, 256, 64, np.uint8)
    for n, end in itertools.product(range(1, 64), (True, False)):
        memory.bytes[PAGE : 2 * PAGE] = 7
        out = memory.bytes[PAGE : 2 * PAGE][-n:] if end else memory.bytes[PAGE : PAGE + n]
        words["storen_bytes"](x, out=out, n=n)
        assert_same_bits(out, x[:n])
        assert (memory.bytes[PAGE : 2 * PAGE] != 7).sum() == n


@pytest.mark.parametrize("kind", ["f32", "u16", "u8"])
def test_streams(words, kind, rng):
    x = rng.integers(0, 256, LANES * np.dtype(MEMORY[kind]).itemsize, np.uint8)
    out = np.zeros(256, np.uint8)
    out = out[-out.ctypes.data % 64 :][: x.size]
    words[f"stream_{kind}"](x, out=out)
    words["stream_fence"](out=out)
    assert_same_bits(out, x)


@pytest.mark.parametrize("kind", ["f32", "u32", "u16"])
def test_set(words, kind, rng):
    for x in random(rng, kind)[:100]:
        out = words[f"set_{kind}"](np.array([x]), out=np.empty(LANES, x.dtype))
        assert_same_bits(bits(out), bits(np.full(LANES, x)))


def test_first_n(words):
    for n in range(LANES + 1):
        mask = words["first_n"](out=np.empty(LANES, np.uint32), n=n)
        assert mask.tolist() == [1] * n + [0] * (LANES - n)


def test_i32_from_f32(words, rng):
    """To nearest even in range; what comes of NaN (and, with reciprocals, of numbers beyond) clears 16 bits."""
    ordinary = np.concatenate([np.arange(-600, 600) / 4, rng.uniform(-(2.0**31), 2.0**31, 999)])
    x = np.concatenate([random(rng, "f32"), ordinary.astype(np.float32)])
    (x,) = vectors(x)
    found = words.each("i32_from_f32", [x], bits(x))
    with np.errstate(invalid="ignore"):
        in_range = (x >= -(2.0**31)) & (x < 2.0**31)
    np.testing.assert_array_equal(found[in_range].view(np.int32), np.rint(x[in_range]).astype(np.int32))
    strange = np.isnan(x) if words.has("MP_DIVIDES") else ~in_range
    assert not (found[strange] & 0xFFFF).any()


def test_dot_bf16(words, rng):
    """The odd product first, then the even one, each rounded once; of normal numbers."""
    z, x, y = operands(rng, ["f32", "u32", "u32"])
    edges = [0, 0x8000, 0x3F80, 0xBF80, 0x4000, 0x7F80, 0xFF80, 0x7FC0]
    x[:, :4], y[:, :4] = (joined(rng.choice(edges, (len(x), 8)).astype(np.uint16)) for _ in "xy")
    z = np.where(np.abs(z) < 2.0**-126, 0, z).astype(np.float32)
    x, y = (np.where(np.isin((v >> 7) & 0xFF, (0, 1)) | np.isin((v >> 23) & 0xFF, (0, 1)), 0, v) for v in (x, y))
    (x0, x1), (y0, y1) = halves(x.astype(np.uint32)), halves(y.astype(np.uint32))
    with np.errstate(all="ignore"):
        first = fma(x1, y1, z)
        expected = fma(x0, y0, first)
    tiny = lambda v: (v != 0) & (np.abs(v) < 2.0**-120)  # noqa: E731  # and what rounds to such a number
    unsure = tiny(first) | tiny(expected)
    found = words.each("dot_bf16", [z, x.astype(np.uint32), y.astype(np.uint32)], expected)
    assert unsure.mean() < 0.2
    assert_same_bits(np.where(unsure, 0, found), np.where(unsure, 0, expected))


def test_bf16_of_normal(words, rng):
    (x,) = operands(rng, ["f32"])
    x = np.where(np.abs(x) < 2.0**-126, 0, x).astype(np.float32)
    expected = exactly(x, BF16)
    assert_same_bits(words.each("bf16_of_normal", [x], expected), expected)


@pytest.mark.parametrize("word", ["transpose_u32", "sums_u32"])
def test_sixteen_vectors(words, word, rng):
    x = rng.integers(0, 2**32, (LANES, LANES), np.uint32)
    expected = x.T.copy() if word == "transpose_u32" else x.sum(1, dtype=np.uint32)
    assert_same_bits(words[word](x, out=np.empty_like(expected)), expected)


@pytest.mark.parametrize("stride", [64, 65, 100, 4096])
def test_load_columns(words, stride, rng):
    """Nothing beyond the 16 words of the last place is read."""
    x = Guarded(20).place(rng.integers(0, 256, 15 * stride + 64, np.uint8), True)
    expected = np.array([x[i * stride :][:64].view(np.uint32) for i in range(LANES)]).T.copy()
    assert_same_bits(words["load_columns"](x, out=np.empty_like(expected), n=stride), expected)


@pytest.mark.parametrize("to", [64, 192])
@pytest.mark.parametrize("stride", [64, 65, 100, 4096])
def test_transpose_words(words, stride, to, rng):
    """Nothing beyond the 16 words of the last place is read or written."""
    x = Guarded(20).place(rng.integers(0, 256, 15 * stride + 64, np.uint8), True)
    out = Guarded(2).place(np.zeros(15 * to + 64, np.uint8), True)
    words["transpose_words"](x, np.array([to]), out=out, n=stride)
    for j in range(LANES):
        expected = np.array([x[i * stride + 4 * j :][:4].view(np.uint32) for i in range(LANES)])
        assert_same_bits(out[j * to :][:64].view(np.uint32), expected[:, 0])


@pytest.mark.parametrize("stride", [800, 1000, 4096])
@pytest.mark.parametrize("k", [1, 3, 4, 15, 16, 17, 31, 32, 100, 187])
def test_fma_columns(words, k, stride, rng):
    """Nothing beyond the k floats of the last column is read."""
    x = Guarded(20).place(np.zeros(256 + (15 * stride) // 4 + k, np.float32), True)
    x[:] = rng.uniform(0.5, 2, len(x))
    z = rng.uniform(-1, 1, LANES).astype(np.float32)
    expected = z.copy()
    for p in range(k):
        expected = fma(x[p], x[256 + p :: stride // 4][:LANES], expected)
    assert_same_bits(words["fma_columns"](z, x, np.array([stride]), out=np.empty_like(z), n=k), expected)


@pytest.mark.parametrize("stride", [64, 65, 1000])
def test_interleave_rows(words, stride, rng):
    x = Guarded(2).place(rng.integers(0, 256, 3 * stride + 64, np.uint8), True)
    expected = joined(np.stack([x[i * stride :][:64] for i in range(4)], -1)).reshape(-1)
    assert_same_bits(words["interleave_rows"](x, out=np.empty_like(expected), n=stride), expected)


def test_interleave_u8(words, rng):
    x = rng.integers(0, 256, (4, LANES), np.uint8)
    expected = joined(x.T).reshape(-1)
    assert_same_bits(words["interleave_u8"](x, out=np.empty_like(expected)), expected)


def test_narrow_high_i8(words, rng):
    x = random(rng, "u32").reshape(-1, 4 * LANES)
    expected = np.clip(x.view(np.int32) >> 16, -128, 127).astype(np.int8)
    assert_same_bits(words.each("narrow_high_i8", [x], expected), expected)


PAIRS = {
    "pair_from_e4m3fn": ml_dtypes.float8_e4m3fn,
    "pair_from_e5m2": ml_dtypes.float8_e5m2,
    "pair_from_i8": np.int8,
}


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("word", PAIRS)
def test_pairs(words, word, half, rng):
    """Every code in every place."""
    codes = np.stack([np.roll(np.arange(256, dtype=np.uint8), turn) for turn in (0, 1, 85, 171)], -1)
    x = joined(codes).reshape(-1, LANES)
    expected = exactly(bytes_of(x)[..., 2 * half : 2 * half + 2].view(PAIRS[word]), BF16).reshape(len(x), -1)
    assert_same_bits(words.each(word, [x], expected, n=half), expected)


@pytest.mark.parametrize("half", [0, 1])
def test_i16_from_i8(words, half, rng):
    (x,) = operands(rng, ["u32"])
    expected = bytes_of(x)[..., 2 * half : 2 * half + 2].view(np.int8).astype(np.int16).reshape(len(x), -1)
    assert_same_bits(words.each("i16_from_i8", [x], expected, n=half), expected)


def test_load_octs(words):
    """Each byte of both octs, alone: it is multiplied by the 1 that each column has in its place."""
    for row, place in itertools.product(range(2), range(8)):
        octs, columns = np.zeros((2, 8), np.uint8), np.zeros((8, 8), np.uint8)
        octs[row, place], columns[:, place] = 200, 1
        got = words["load_octs"](octs[0].copy(), octs[1].copy(), columns, out=np.empty(LANES, np.uint32))
        expected = np.zeros((4, 2, 2), np.uint32)
        expected[:, row] = 200
        assert (got == expected.ravel()).all()


@pytest.mark.parametrize("half", [0, 1])
def test_zips(words, half, rng):
    x, y = operands(rng, ["u32", "u32"])
    for word, lanes in (("zip_words", 1), ("zip_octs", 2)):
        turns = np.stack([x.reshape(len(x), -1, lanes), y.reshape(len(x), -1, lanes)], 2).reshape(len(x), 2, LANES)
        expected = np.ascontiguousarray(turns[:, half])
        assert_same_bits(words.each(word, [x, y], expected, n=half), expected)
    octs = np.concatenate([x, y], -1).reshape(len(x), LANES, 2)
    expected = np.ascontiguousarray(octs[:, half::2]).reshape(len(x), LANES)
    assert_same_bits(words.each("unzip_octs", [x, y], expected, n=half), expected)


def test_pair_from_i4(words, rng):
    (x,) = operands(rng, ["u32"])
    nibbles = np.stack([x & 15, x >> 16 & 15], -1).astype(np.int8)
    expected = exactly(np.where(nibbles > 7, nibbles - 16, nibbles), BF16).reshape(len(x), -1)
    assert_same_bits(words.each("pair_from_i4", [x], expected), expected)


F4 = [("f32_from_f4", 0), ("pair_from_f4", 0), ("bytes_from_f4", 0), *(("pair_of_f4", s) for s in range(4))]


@pytest.mark.parametrize(("word", "s"), F4)
def test_numbers_from_f4(words, word, s, rng):
    x = operands(rng, ["u32"])[0] & (0x0F0F0F0F if word == "bytes_from_f4" else 0xFFFFFFFF)
    codes = x >> np.uint32(4 * s)
    pair = exactly(E2M1[np.stack([codes & 15, codes >> 16 & 15], -1)], BF16).reshape(len(x), -1)
    doubled = (2 * E2M1 + 12).astype(np.uint8)[x.view(np.uint8) & 15].view(np.uint32)
    expected = {"f32": E2M1[x & 15], "pair": pair, "bytes": doubled}[word.partition("_")[0]]
    assert_same_bits(words.each(word, [x], expected, n=s), expected)


@pytest.mark.parametrize("s", range(2))
def test_pairs_of_e4m3fn(words, s):
    codes = np.arange(2**16, dtype=np.uint32)
    x = ((codes & 0xFF) << np.uint32(8 * s) | (codes >> 8) << np.uint32(8 * s + 16)).reshape(-1, LANES)
    numbers = np.stack([x >> np.uint32(8 * s), x >> np.uint32(8 * s + 16)], -1).astype(np.uint8)
    expected = exactly(numbers.view(ml_dtypes.float8_e4m3fn), BF16).reshape(len(x), -1)
    found = words.each("pair_of_e4m3fn", [x], expected, n=s)
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


def test_pair_from_u5(words, rng):
    (x,) = operands(rng, ["u32"])
    expected = exactly(np.stack([x & 31, x >> 16 & 31], -1).astype(np.int8) - 16, BF16).reshape(len(x), -1)
    assert_same_bits(words.each("pair_from_u5", [x], expected), expected)
    expected = (x & 31).astype(np.float32) - 16
    assert_same_bits(words.each("f32_from_u5", [x], expected), expected)


@pytest.mark.parametrize("half", [0, 1])
def test_quad_from_u4(words, half, rng):
    (x,) = operands(rng, ["u32"])
    fours = [x >> np.uint32(8 * half + bit) & 15 for bit in (0, 16, 4, 20)]
    expected = sum(four << np.uint32(8 * place) for place, four in enumerate(fours)).astype(np.uint32)
    assert_same_bits(words.each("quad_from_u4", [x], expected, n=half), expected)


def test_counts(words):
    for n, limit in itertools.product((0, 1, 15, 16, 2**40), repeat=2):
        assert words["at_most"](np.array([n, limit]), out=np.empty(1, np.int64))[0] == min(n, limit)
    block = np.zeros(256, np.uint8)
    for shift, size, n in itertools.product(range(65), (1, 2, 4), (0, 3, 64, 1000)):
        at = block[-block.ctypes.data % 64 + shift :]
        whole = next((i for i in range(n) if (shift + i * size) % 64 == 0), n)
        assert words["unaligned_head"](at, np.array([size, n]), out=np.empty(1, np.int64))[0] == whole


def test_factors(words, rng):
    """A factor, seen through products that keep it, and multiplied as the words without one do."""
    x, flips = random(rng, "u32")[:200], (0, 0x80808080)
    ordinary = x[(x & 0x7F800000 != 0) & (x & 0x7F80 != 0) & (x & 0x7F800000 < 0x7F800000) & (x & 0x7F80 < 0x7F80)]
    for word in ordinary:
        here = np.array([word])
        assert (words["wide_factor"](here, out=np.empty(LANES, np.uint32)) == word).all()
        low = words["pair_factor"](here, out=np.empty(LANES, np.uint32))
        assert (low == (word & 0xFFFF) << 16).all()
        for flip in flips:
            total = sum(((int(word) ^ flip) >> shift) & 0xFF for shift in (0, 8))
            assert (words["quad_factor"](here, out=np.empty(LANES, np.uint32), n=flip) == total).all()


SAME_BY_FACTOR = {
    "fma_factor": ("fma_f32", "f32 f32 f32", (1, 2, 0)),
    "dot_bf16_factor": ("dot_bf16", "f32 u32 u32", (0, 1, 2)),
    "dot_u8s8_factor": ("dot_u8s8", "u32 u32 u32", (0, 1, 2)),
    "dot_s8u8_factor": ("dot_u8s8", "u32 u32 u32", (0, 2, 1)),
    "dot_s8s8_factor": ("dot_s8s8", "u32 u32 u32", (0, 1, 2)),
}


@pytest.mark.parametrize("word", SAME_BY_FACTOR)
def test_products_by_factors(words, word, rng):
    plain, kinds, order = SAME_BY_FACTOR[word]
    z, x, y = operands(rng, kinds.split())
    x = np.repeat(x[:, :1], LANES, 1)
    expected = words.each(plain, [(z, x, y)[i] for i in order], z)
    assert_same_bits(words.each(word, [z, x, y], z), expected)


def test_two_products_by_small_bytes(words, rng):
    z, x, y = operands(rng, ["u32"] * 3)
    x[:5] = 0x80808080  # -128 by the largest bytes: sums of pairs are the largest
    y = np.minimum(bytes_of(y), 23)
    y[:5] = 23
    first, second = (np.repeat(x[:, i : i + 1], LANES, 1) for i in (0, 1))
    expected = dot_u8s8(dot_u8s8(z, words_of_bytes(y), first), words_of_bytes(y ^ 1), second)
    assert_same_bits(words.each("dot_two_s8u4", [z, x, words_of_bytes(y)], z), expected)


# ---- nothing is left out: also test_vocabulary_table.py


def test_every_word_that_a_set_must_have_is_there(words):
    """A word that its condition rules out is not: the table says exactly what a set has."""
    for word, condition in table().items():
        assert hasattr(words.library, f"word_{word}") is words.has(condition), word
