import warnings
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import NARROW, assert_same_bits, bits, codes, exactly, nearest

import mp_core as mp
from mp_core.dtypes import ALLOWED, STORED, finfo

FLOATS = ("float64", "float32", *NARROW)
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")


def probes(dtype):
    """Every value of a narrow format as float32, every midpoint between neighbours, and the float32 on either side."""
    finite = exactly(codes(dtype), "float32")
    finite = np.unique(finite[np.isfinite(finite)])
    middle = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    largest = finite[-1:].astype(np.float64)
    overflow = (largest + (largest - finite[-2]) / 2).astype(np.float32)
    near = [finite, middle, overflow, -overflow]
    near += [np.nextafter(x, np.float32(side)) for x in near for side in (np.inf, -np.inf)]
    special = np.array(
        [
            0,
            0x80000000,
            0x7F800000,
            0xFF800000,
            0x7FC00000,
            0xFFC00000,
            0x7F800001,
            0x7FFFFFFF,
            0xFF800001,
            1,
            0x80000001,
            0x007FFFFF,
            0x00800000,
            0x7F7FFFFF,
            0xFF7FFFFF,
        ],
        np.uint32,
    ).view(np.float32)
    return np.concatenate([*near, special])


@pytest.mark.parametrize("dtype", NARROW)
def test_widening_is_exact_for_every_code(isa, dtype):
    x = codes(dtype)
    expected = exactly(x, "float32")
    actual = mp.cast(x, "float32")
    assert_same_bits(actual, expected)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual[nan]), np.signbit(exactly(x[nan], "float32")))


@pytest.mark.parametrize("dtype", NARROW)
def test_narrowing_rounds_once_to_nearest_even(isa, dtype):
    x = probes(dtype)
    actual = mp.cast(x, dtype)
    assert_same_bits(actual, nearest(exactly(x, "float64"), dtype))
    assert_same_bits(actual, exactly(x, dtype))
    nan = np.isnan(x)
    np.testing.assert_array_equal(np.signbit(exactly(actual[nan], "float32")), np.signbit(x[nan]))


@pytest.mark.parametrize("dtype", NARROW)
def test_narrowing_random_bits(isa, dtype, rng):
    x = rng.integers(0, 2**32, 1 << 18, dtype=np.uint32).view(np.float32)
    assert_same_bits(mp.cast(x, dtype), exactly(x, dtype))


@pytest.mark.parametrize("dtype", NARROW)
def test_round_trip_keeps_every_code_but_nan(isa, dtype):
    x = codes(dtype)
    assert_same_bits(mp.cast(mp.cast(x, "float32"), dtype), x)
    assert_same_bits(mp.cast(x, dtype), x)


@pytest.mark.parametrize("dtype", ("float32", *NARROW))
def test_float64_rounds_once(isa, dtype, rng):
    """The float64 neighbours of a midpoint round apart; by way of float32 they would first round to the midpoint."""
    x = exactly(probes(dtype if dtype != "float32" else "float16"), "float64")
    x = np.concatenate([x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf), [1e300, -1e300, 5e-324, 1e-46, -1e-46]])
    x = np.concatenate([x, rng.standard_normal(4096) * 10.0 ** rng.integers(-50, 50, 4096)])
    expected = exactly(x, "float32") if dtype == "float32" else nearest(x, dtype)
    assert_same_bits(mp.cast(x, dtype), expected)


@pytest.mark.parametrize("target", NARROW)
@pytest.mark.parametrize("source", NARROW)
def test_between_narrow_formats(isa, source, target):
    x = codes(source)
    assert_same_bits(mp.cast(x, target), nearest(exactly(x, "float64"), target))


@pytest.mark.parametrize("dtype", ("float32", *NARROW))
def test_saturate_clamps_to_the_largest_finite_value(isa, dtype):
    largest = float(finfo(dtype).max)
    x = np.array([np.inf, -np.inf, 1e300, -1e300, largest, -largest, 0.5, np.nan])
    expected = [largest, -largest, largest, -largest, largest, -largest, 0.5, np.nan]
    for source in (x, x.astype(np.float64)):
        np.testing.assert_array_equal(mp.cast(source, dtype, saturate=True).astype(np.float64), expected)
    np.testing.assert_array_equal(mp.cast(exactly(x, "float32"), dtype, saturate=True).astype(np.float64), expected)


@pytest.mark.parametrize("target", (*FLOATS, *INTEGERS))
@pytest.mark.parametrize("source", (*FLOATS, *INTEGERS))
def test_every_pair_of_types(source, target):
    x = np.array([0, 1, 2, 3, 5, 100]).astype(source)
    result = mp.cast(x, target)
    assert result.dtype == ALLOWED[target]
    expected = x.astype(np.float64)
    if target == "bool":
        expected = expected != 0
    elif target == "float8_e4m3fn" or target == "float8_e5m2":
        expected = nearest(expected, target).astype(np.float64)
    np.testing.assert_array_equal(result.astype(np.float64), expected)


@pytest.mark.parametrize("target", NARROW)
def test_integers_round_once(target, rng):
    x = rng.integers(-(2**31), 2**31, 4096, dtype=np.int32)
    assert_same_bits(mp.cast(x, target), nearest(x.astype(np.float64), target))


def test_integers_round_once_to_float32(rng):
    x = rng.integers(-(2**31), 2**31, 4096, dtype=np.int32)
    np.testing.assert_array_equal(mp.cast(x, "float32"), x.astype(np.float32))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2**62 + 2**54 + 1, 2**62 + 2**55),
        (2**62 + 2**54, 2**62),
        (-(2**62) - 2**54 - 1, -(2**62) - 2**55),
        (2**62 + 2**54 - 1, 2**62),
    ],
)
def test_int64_beside_a_midpoint_of_bfloat16(value, expected):
    """float64 would first round the neighbours of the midpoint 2^62 + 2^54 to it."""
    assert int(mp.cast(np.array([value], np.int64), "bfloat16")[0]) == expected


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", ["int64", "uint64", "int32", "uint32"])
def test_integers_beside_midpoints_round_once(source, target, saturate):
    """What float64 would first round to a midpoint, and what is one beside it."""
    precision = finfo(target).nmant + 1
    limits, largest = np.iinfo(source), float(finfo(target).max)
    exponents = range(precision + 1, limits.bits - (limits.min < 0))
    middles = [(2**precision + odd) * 2 ** (e - precision) for e in exponents for odd in (1, 3)]
    values = [m + d for m in middles for d in (-1, 0, 1)] + [limits.max, limits.min]
    values = [v for m in values for v in (m, -m) if limits.min <= v <= limits.max and abs(v) <= largest]

    def rounded(value):
        step = 2 ** max(abs(value).bit_length() - precision, 0)
        return round(Fraction(value, step)) * step

    result = mp.cast(np.array(values, source), target, saturate=saturate)
    assert [int(x) for x in result.astype(np.float64)] == [rounded(value) for value in values]


@pytest.mark.parametrize("target", ("int8", "uint8", "int32", "int64", "uint64"))
def test_saturate_to_integers(target):
    limits = np.iinfo(target)
    low, high = mp.cast(np.array([-np.inf, np.inf]), target, saturate=True)
    assert low == limits.min and 0 <= limits.max - int(high) < 2**11
    assert mp.cast(np.array([2**40], np.int64), "int8", saturate=True)[0] == 127


def test_saturate_reaches_the_ends_of_64_bits_and_nan_is_zero():
    x = np.array([np.inf, 2.0**64, -np.inf, np.nan, 5.5])
    assert mp.cast(x, "uint64", saturate=True).tolist() == [2**64 - 1, 2**64 - 1, 0, 0, 5]
    assert mp.cast(x, "int64", saturate=True).tolist() == [2**63 - 1, 2**63 - 1, -(2**63), 0, 5]
    assert mp.cast(np.array([2**63], np.uint64), "int64", saturate=True)[0] == 2**63 - 1
    assert mp.cast(np.array([-1], np.int64), "uint64", saturate=True)[0] == 0


def test_masked_arrays_are_refused():
    with pytest.raises(TypeError, match="`x` must not be a masked array"):
        mp.cast(np.ma.masked_equal([1.0, 2.0], 2.0), "float32")


def test_saturated_bfloat16_to_integer():
    assert mp.cast(np.array([1e30, -1e30], ml_dtypes.bfloat16), "int8", saturate=True).tolist() == [127, -128]


# ---- the types that are only stored


def stored_codes(dtype):
    bits_of = 4 if dtype.name in ("int4", "uint4", "float4_e2m1fn") else 8
    return np.arange(2**bits_of, dtype=np.uint8).view(dtype)


@pytest.mark.parametrize("dtype", STORED.values(), ids=STORED)
def test_stored_types_widen_exactly_and_come_back(dtype):
    x = stored_codes(dtype)
    for wide in ("float32", "float64", "bfloat16"):
        expected = exactly(x, np.float64)
        np.testing.assert_array_equal(mp.cast(x, wide).astype(np.float64), expected)
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(bits(mp.cast(mp.cast(x, wide), dtype))[number], bits(x)[number])


@pytest.mark.parametrize("name", [name for name in STORED if name.startswith("float")])
@pytest.mark.parametrize("source", ["float64", "float32", "int64"])
def test_stored_floats_round_once(name, source, rng):
    """Midpoints between neighbours, and the float64 and integers on either side of them."""
    values = exactly(stored_codes(STORED[name]), np.float64)
    values = np.unique(values[np.isfinite(values)])
    middle = (values[1:] + values[:-1]) / 2
    above, below = np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)
    if source == "int64":
        middle = np.round(middle[np.abs(middle) < 2**61]) * 2.0 ** (0 if name != "float8_e8m0fnu" else 1)
        above, below = middle + 1, middle - 1
    for x, neighbour in ((above, values[1:]), (below, values[:-1])):
        if source == "float64":
            np.testing.assert_array_equal(exactly(mp.cast(x, name), np.float64), neighbour)
        else:
            typed = exactly(x, source)
            actual, wanted = mp.cast(typed, name), mp.cast(typed.astype(np.float64), name)
            np.testing.assert_array_equal(exactly(actual, np.float64), exactly(wanted, np.float64))


def test_every_tie_to_e8m0_goes_up():
    x = 1.5 * 2.0 ** np.arange(-127, 127)
    for source in ("float64", "float32"):
        np.testing.assert_array_equal(bits(mp.cast(x.astype(source), "float8_e8m0fnu")), np.arange(1, 255))


@pytest.mark.parametrize(
    ("name", "nan", "infinity", "saturated"),
    [
        ("float8_e4m3fnuz", 0x80, [0x80, 0x80], [0x7F, 0xFF]),
        ("float8_e5m2fnuz", 0x80, [0x80, 0x80], [0x7F, 0xFF]),
        ("float8_e4m3b11fnuz", 0x80, [0x80, 0x80], [0x7F, 0xFF]),
        ("float8_e8m0fnu", 0xFF, [0xFF, 0xFF], [0xFE, 0xFF]),
        ("float4_e2m1fn", None, [7, 15], [7, 15]),
    ],
)
def test_nan_and_infinity_of_stored_types(name, nan, infinity, saturated):
    """The table of docs/numerics.md; float4_e2m1fn has no NaN, which becomes a zero."""
    x = np.float32([np.nan, -np.nan, np.inf, -np.inf])
    for saturate, ends in ((False, infinity), (True, saturated)):
        codes = bits(mp.cast(x, name, saturate=saturate)).tolist()
        assert codes[2:] == ends
        assert codes[:2] == [nan, nan] if nan is not None else set(codes[:2]) <= {0, 8}
    if nan is not None:
        assert bits(mp.cast(np.uint8([nan]).view(name), "float32"))[0] & 0x7FC00000 == 0x7FC00000
    zeros = bits(mp.cast(np.float32([0.0, -0.0, -1.0]), name)).tolist()
    assert zeros[:2] == {"float4_e2m1fn": [0, 8], "float8_e8m0fnu": [255, 255]}.get(name, [0, 0])
    assert (zeros[2] == 255) == (name == "float8_e8m0fnu")


@pytest.mark.parametrize("name", STORED)
def test_stored_types_saturate(name):
    limits = ml_dtypes.iinfo(name) if name.endswith("int4") else ml_dtypes.finfo(name)
    result = mp.cast(np.array([1e30, 1e38]), name, saturate=True).astype(np.float64)
    np.testing.assert_array_equal(result, np.minimum([1e30, 1e38], float(limits.max)) if "e8m0" not in name else result)


def test_stored_types_only_cast():
    with pytest.raises(TypeError, match="`x` must be an array of"):
        mp.softmax(np.zeros(3, "float8_e4m3fnuz"))
    out = np.empty(2, "int4")
    assert mp.cast([-9, 3], "int4", out=out, saturate=True) is out and out.astype(int).tolist() == [-8, 3]


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[::-1, ::-1],
    "every other column": lambda x: x[:, ::2],
    "every other row": lambda x: x[::2],
    "offset": lambda x: x[1:, 3:],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "zero columns": lambda x: x[:, :0],
    "scalar": lambda x: x[0, 0, ...],
    "three axes": lambda x: x.reshape(6, -1, 11).transpose(1, 2, 0),
    "swapped": lambda x: x if x.dtype.itemsize == 1 or x.dtype.kind == "V" else x.astype(x.dtype.newbyteorder()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float32", "bfloat16"),
        ("bfloat16", "float32"),
        ("float64", "float16"),
        ("float8_e5m2", "bfloat16"),
        ("float16", "float8_e4m3fn"),
    ],
)
def test_any_layout(layout, source, target, rng):
    x = LAYOUTS[layout](rng.standard_normal((30, 77)).astype(source))
    expected = nearest(x.astype(np.float64), target) if target != "float32" else x.astype(np.float32)
    assert_same_bits(mp.cast(x, target), expected)
    out = np.full((2, *x.shape[:-1], 2 * (x.shape[-1] if x.ndim else 1)), 7).astype(target)[0, ..., ::-2]
    out = out if x.ndim else out[0, ...]
    assert mp.cast(x, target, out=out) is out
    assert_same_bits(out, expected)


@settings(deadline=None, max_examples=60)
@given(n=st.integers(0, 100), start=st.integers(0, 7), step=st.integers(-3, 3), seed=st.integers(0, 999))
def test_lengths_offsets_and_steps(n, start, step, seed):
    x = np.random.default_rng(seed).standard_normal(400).astype(np.float32)
    view = np.lib.stride_tricks.as_strided(x[start + 300 * (step < 0) :], (n,), (4 * step,))
    assert_same_bits(mp.cast(view, "bfloat16"), view.astype(ml_dtypes.bfloat16))


def test_unaligned_memory(rng):
    raw = rng.bytes(4 * 100 + 1)
    x = np.frombuffer(raw, np.uint8)[1:].view(np.float32)
    assert not x.flags.aligned
    assert_same_bits(mp.cast(x, "bfloat16"), exactly(x, "bfloat16"))


@pytest.mark.parametrize("shift", [-3, -1, 0, 1, 2, 30])
def test_out_may_overlap_the_input(shift, rng):
    memory = rng.standard_normal(500).astype(np.float32)
    x = memory[100:200]
    expected = x.astype(ml_dtypes.bfloat16)
    out = memory.view(ml_dtypes.bfloat16)[200 + shift : 300 + shift]
    assert_same_bits(mp.cast(x, "bfloat16", out=out), expected)
    same = rng.standard_normal(64).astype(np.float16)
    wanted = same.astype(np.float32).astype(ml_dtypes.bfloat16)
    assert_same_bits(mp.cast(same, "bfloat16", out=same.view(ml_dtypes.bfloat16)), wanted)


def test_large_arrays_split_over_threads(rng):
    x = rng.standard_normal(1_000_003).astype(np.float32)
    expected = x.astype(ml_dtypes.bfloat16)
    for count in (1, 2, 3):
        with mp.config.num_threads(count):
            assert_same_bits(mp.cast(x, "bfloat16"), expected)


def test_byte_swapped_out():
    out = np.empty(3, ">f4")
    mp.cast([1.0, 2.0, 3.5], "float32", out=out)
    np.testing.assert_array_equal(out, [1.0, 2.0, 3.5])


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "message"),
    [
        (([1.0], "float99"), {}, TypeError, "`dtype` must be one of float64, .*received 'float99'"),
        (([1.0], None), {}, TypeError, "`dtype` must be one of .*received None"),
        (([1.0], "float32,,"), {}, TypeError, "`dtype` must be one of"),
        (([1.0], ["float32"]), {}, TypeError, "`dtype` must be one of"),
        ((["a"], "float32"), {}, TypeError, "`x` must be an array of .*received dtype <U1"),
        (([1j], "float32"), {}, TypeError, "received dtype complex128"),
        (([[1], [1, 2]], "float32"), {}, TypeError, "`x` must be an array or nested sequence"),
        (([1.0], "float32"), {"out": [0.0]}, TypeError, "`out` must be a numpy.ndarray or a tensor .*received list"),
        (([1.0], "float32"), {"out": np.empty(2, np.float32)}, ValueError, r"shape \(1,\); received \(2,\)"),
        (([1.0], "float32"), {"out": np.empty(1)}, TypeError, "`out` must have dtype float32; received float64"),
    ],
)
def test_errors_name_the_argument(arguments, keywords, error, message):
    with pytest.raises(error, match=message):
        mp.cast(*arguments, **keywords)


def test_read_only_out_is_refused():
    out = np.empty(1, np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        mp.cast([1.0], "float32", out=out)


def test_scalars_and_lists_and_zero_dimensions():
    assert mp.cast(1.5, "bfloat16").shape == ()
    assert mp.cast(True, "float16") == 1
    assert bits(mp.cast(np.float32(-0.0), "float16")) == 0x8000
    assert mp.cast([], "float16").shape == (0,)


@pytest.mark.parametrize("target", ["float64", "float32", "bfloat16", "float8_e4m3fnuz"])
@pytest.mark.parametrize(
    "signaling",
    [np.uint32(0x7F810000).view(np.float32), np.uint64(0x7FF0100000000000).view(np.float64)],
    ids=["float32", "float64"],
)
def test_a_signaling_nan_becomes_a_quiet_one_without_a_warning(signaling, target):
    x = np.array([1.0, 2.0], signaling.dtype)
    x.view(f"u{x.itemsize}")[1] = signaling.view(f"u{x.itemsize}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = mp.cast(x, target)
    assert result[0] == 1 and result[1] != result[1]


@pytest.mark.parametrize("source", NARROW)
@pytest.mark.parametrize(("target", "quiet"), [("bfloat16", 0x40), ("float16", 0x200), ("float32", 0x400000),
                                               ("float64", 1 << 51)])  # fmt: skip
def test_every_nan_of_16_and_8_bits_becomes_a_quiet_one_of_its_sign(isa, source, target, quiet):
    """So long that all lanes meet all NaN, and that some are beyond the last whole vector."""
    x = np.tile(codes(source), 2)[3:-1]
    with np.errstate(invalid="ignore"):
        nan = np.isnan(x.astype(np.float32))
    result = mp.cast(x, target)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.isnan(result.astype(np.float64)), nan)
    sign = 8 * result.itemsize - 1
    np.testing.assert_array_equal(bits(result)[nan] >> sign, bits(x)[nan] >> (8 * x.itemsize - 1))
    assert nan.any() and (bits(result)[nan] & quiet).all()


@pytest.mark.parametrize("value", ["no", 1, None])
def test_saturate_is_a_bool(value):
    with pytest.raises(TypeError, match="`saturate` must be True or False; received saturate="):
        mp.cast(np.ones(2), "float16", saturate=value)
    with pytest.raises(TypeError, match="`symmetric` must be True or False; received symmetric="):
        mp.quantize(np.ones(2), symmetric=value)
    assert mp.cast(np.float32([1e9]), "float16", saturate=np.True_) == 65504
