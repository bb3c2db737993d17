"""Schemes: one spelling, errors, the codes that they make of floats, and the policies that name them."""

import copy
import itertools
import pickle

import numpy as np
import pytest

import mp_core as mp
from mp_core.dtype_policies import (
    SPELLINGS,
    DTypePolicyMap,
    Int4DTypePolicy,
    QuantizedDTypePolicy,
    Scheme,
    SchemeDTypePolicy,
    deserialize,
    get,
    policy_of,
    serialize,
)

SIZES = [1, 2, 3, 20, 64, 128, 32768, 2**31 - 1]
EIGHTS = 3  # of them multiples of 8, which int4 with dynamic inputs needs
SPELLED = {  # how the contract of files and policies spells each scheme -> its fields
    "int8": ("int8", "dynamic", None, "channel"),
    "int8/tensor": ("int8", "dynamic", None, "tensor"),
    "int8/fixed": ("int8", "fixed", None, "channel"),
    "int8/fixed/tensor": ("int8", "fixed", None, "tensor"),
    "int8/weight_only": ("int8", "float", None, "channel"),
    "int8/weight_only/tensor": ("int8", "float", None, "tensor"),
    "int8/weight_only/N": ("int8", "float", 64, "group"),
    "int4/N": ("int4", "float", 64, "group"),
    "int4/-1": ("int4", "float", None, "channel"),
    "int4/dynamic/N": ("int4", "dynamic", 64, "group"),
    "int4/dynamic/-1": ("int4", "dynamic", None, "channel"),
} | {
    spelling: (codes, *fields)
    for codes in ("float8_e4m3fn", "float8_e5m2")
    for spelling, fields in {
        codes: ("float", None, "channel"),
        f"{codes}/tensor": ("float", None, "tensor"),
        f"{codes}/N": ("float", 64, "group"),
        f"{codes}/fixed/tensor": ("fixed", None, "tensor"),
    }.items()
}
MICROSCALED = {  # the same for microscaling formats
    "mxfp4": ("mxfp4", "float", 32, "group"),
    "mxfp4/dynamic": ("mxfp4", "dynamic", 32, "group"),
    "mxfp8_e4m3": ("mxfp8_e4m3", "float", 32, "group"),
    "mxfp8_e5m2": ("mxfp8_e5m2", "float", 32, "group"),
    "mxint8": ("mxint8", "float", 32, "group"),
    "mxint8/dynamic": ("mxint8", "dynamic", 32, "group"),
    "nvfp4": ("nvfp4", "float", 16, "group"),
    "nvfp4/dynamic": ("nvfp4", "dynamic", 16, "group"),
}
WORDS = [word.replace("N", "64") for word in SPELLED]


def _every():
    """Return every valid scheme, out of all combinations of fields, with some sizes of groups."""
    codes = ("int8", "int4", "uint8", "int16", "float8_e4m3fn", "float8_e5m2", "float8")
    found = []
    for fields in itertools.product(
        codes, ("float", "dynamic", "fixed", "weight_only"), (None, *SIZES), ("channel", "tensor", "group")
    ):
        try:
            found.append(Scheme(*fields))
        except ValueError:
            continue
    return found


def test_every_scheme_is_printed_and_parsed_as_it_is():
    schemes = _every()
    assert len(set(map(str, schemes))) == len(schemes) == len(SPELLED) - 5 + 4 * len(SIZES) + EIGHTS
    for scheme in schemes:
        again = Scheme.parse(str(scheme))
        assert again == scheme and hash(again) == hash(scheme) and type(again.group_size) is type(scheme.group_size)
        assert pickle.loads(pickle.dumps(scheme)) == copy.deepcopy(scheme) == scheme


def test_the_table_of_spellings_is_the_language():
    assert set(SPELLINGS) == set(SPELLED | MICROSCALED)
    for spelling, fields in (SPELLED | MICROSCALED).items():
        word = spelling.replace("N", "64")
        assert Scheme.parse(word) == Scheme(*fields) and str(Scheme(*fields)) == word


HOSTILE = [
    "", "/", "int8/", "/int8", "int8//tensor", "INT8", " int8", "int8 ", "int8\n", "int8/dynamic", "int8/64",
    "int8/fixed/64", "int8/fixed/fixed", "int8/tensor/fixed", "int8/weight_only/-1", "int8/weight_only/0",
    "int8/weight_only/channel", "int8/weight_only/64/64", "int8/weight_only/N", "int4/N", "int4/0", "int4/-2",
    "int4/-0", "int4/064", "int4/ 64", "int4/64\n", "int4/+64", "int4/6_4", "int4/64.0", "int4/None", "int4/٦٤",
    "int4/tensor", "int4/weight_only/64", "int4/fixed/64", "int4/2147483648", "int4/9999999999", "int4/" + "9" * 5000,
    "int4/dynamic", "int4/dynamic/tensor", "int4/64/dynamic",
    "float8", "float8/tensor", "float8_e4m3fn/-1", "float8_e4m3fn/fixed", "float8_e4m3fn/fixed/64",
    "float8_e4m3fn/weight_only", "float8_e4m3", "int16", "ternary", "int8_from_float32",
    "int8/weight_only_from_float32",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
def test_what_spells_no_scheme_is_refused_with_those_that_there_are(text):
    with pytest.raises(ValueError, match=r"^a scheme must be one of int8, int8/tensor, .*, int4/N") as caught:
        Scheme.parse(text)
    assert str(caught.value).endswith(f"received {text!r}")


def test_no_other_order_of_words_is_a_scheme():
    words = ("int8", "int4", "float8_e4m3fn", "fixed", "dynamic", "weight_only", "tensor", "channel", "64", "-1", "")
    accepted = set()
    for number in (1, 2, 3, 4):
        for parts in itertools.product(words, repeat=number):
            text = "/".join(parts)
            try:
                assert str(Scheme.parse(text)) == text
            except ValueError:
                continue
            accepted.add(text)
    assert accepted == {word for word in WORDS if "e5m2" not in word}


def test_groups_of_int4_beside_rows_of_int8_are_multiples_of_8():
    with pytest.raises(
        ValueError, match="`group_size` must be a multiple of 8 for int4 with dynamic inputs; received 20"
    ):
        Scheme.parse("int4/dynamic/20")


def test_int4_alone_is_refused_by_name():
    with pytest.raises(ValueError, match="must name its groups, as in int4/64; received 'int4'"):
        Scheme.parse("int4")
    with pytest.raises(TypeError, match="a scheme must be a string such as 'int8'; received None"):
        Scheme.parse(None)


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        (("int16",), ValueError, "`codes` must be 'int8' or 'int4' .*; received 'int16'"),
        ((["int8"],), ValueError, r"`codes` must be .*; received \['int8'\]"),
        (("int4", "fixed"), ValueError, "`inputs` must be 'float' or 'dynamic' for int4; received 'fixed'"),
        (("int8", "fixed", 64, "group"), ValueError, "`per` must be 'channel' or 'tensor' for int8 with fixed inputs"),
        (("int8", "float", None, "group"), ValueError, "`group_size` must be from 1 to 2147483647 for per='group'"),
        (("int8", "float", 0, "group"), ValueError, "`group_size` must be from 1 .*; received 0"),
        (("int8", "float", 2**31, "group"), ValueError, "`group_size` must be from 1 .*; received 2147483648"),
        (("int8", "float", 64, "channel"), ValueError, "`group_size` must be None for per='channel'; received 64"),
        (("int8", "float", True, "group"), TypeError, "`group_size` must be an int or None; received True"),
        (("int8", "float", 64.0, "group"), TypeError, "`group_size` must be an int or None; received 64.0"),
    ],
)
def test_fields_that_are_no_scheme_are_refused_by_name(fields, error, text):
    with pytest.raises(error, match=text):
        Scheme(*fields)


@pytest.mark.parametrize("size", [1, 3, 20, 96, 65536])
def test_files_hold_groups_of_powers_of_two(size):
    with pytest.raises(ValueError, match=f"powers of two from 2 to 32768; received 'int4/{size}'"):
        Scheme.parse(f"int4/{size}").check_stored()
    for stored in ("int4/2", "int4/32768", "int4/-1", "int8"):
        Scheme.parse(stored).check_stored()


# ---- codes


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("shape", [(5, 150), (1, 64), (4, 30), (3, 4, 128), (0, 64), (3, 0)])
def test_codes_have_the_scheme_that_made_them(word, shape):
    scheme = Scheme.parse(word)
    lines = np.random.default_rng(0).standard_normal(shape).astype(np.float32) + 0.5
    q = scheme.quantize(lines)
    assert Scheme.of(q, scheme.inputs) == scheme
    assert q.dtype == scheme.dtype and (q.zero_point is None) == scheme.symmetric == (scheme.codes != "int4")
    assert scheme.is_weight_only == (scheme.inputs == "float")
    groups = {"channel": 1, "tensor": 1, "group": -(-shape[-1] // 64)}[scheme.per]
    assert (
        q.scale.shape
        == {
            "channel": (shape[0],) + (1,) * (len(shape) - 1),
            "tensor": (1,) * len(shape),
            "group": (*shape[:-1], groups),
        }[scheme.per]
    )


@pytest.mark.parametrize("made", WORDS)
@pytest.mark.parametrize("length", [30, 64, 150])
def test_a_scheme_describes_the_codes_that_it_would_make(made, length):
    lines = np.random.default_rng(3).standard_normal((5, length)).astype(np.float32)
    q = Scheme.parse(made).quantize(lines)
    for word in WORDS:
        own = Scheme.parse(word).quantize(lines)
        same = own.dtype == q.dtype and own.scale.shape == q.scale.shape and np.array_equal(own.values, q.values)
        assert Scheme.parse(word).describes(q) == same, word


@pytest.mark.parametrize(("word", "qmax"), [("int8", 127), ("int8/weight_only/4", 127), ("float8_e4m3fn/4", 448)])
def test_symmetric_scales_are_the_largest_over_the_largest_code(word, qmax):
    lines = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    groups = np.abs(lines.reshape(3, -1, 4) if word.endswith("/4") else lines[:, None]).max(axis=2)
    np.testing.assert_array_equal(Scheme.parse(word).quantize(lines).scale, groups / np.float32(qmax))


def test_a_group_longer_than_a_line_is_the_whole_line():
    lines = np.random.default_rng(2).standard_normal((3, 20)).astype(np.float32)
    group, channel = (Scheme.parse(word).quantize(lines) for word in ("int4/64", "int4/-1"))
    for name in ("values", "scale", "zero_point"):
        np.testing.assert_array_equal(getattr(group, name), getattr(channel, name))


@pytest.mark.parametrize(
    ("q", "error", "text"),
    [
        (np.ones((2, 2)), TypeError, "`q` must be a QuantizedArray; received ndarray"),
        (mp.quantize(np.ones((2, 2)), axis=0, dtype="uint8"), ValueError, "`codes` must be .* received 'uint8'"),
        (mp.quantize(np.ones((2, 2)), axis=1), ValueError, r"axis=\(0,\) for channel scales, .* received axis=\(1,\)"),
        (mp.quantize(np.ones((2, 2)), axis=1, group_size=2), ValueError, r"group scales, .* received axis=\(1,\)"),
        (mp.quantize(np.ones((2, 2)), dtype="int4"), ValueError, "`per` must be 'group' or 'channel' for int4"),
    ],
)
def test_codes_of_no_scheme_are_refused_by_name(q, error, text):
    with pytest.raises(error, match=text):
        Scheme.of(q)


# ---- policies


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("source", ["float32", "mixed_bfloat16", "params=float32,compute=bfloat16,output=float32"])
def test_the_policy_of_a_scheme_survives_names_copies_pickles_and_configs(word, source):
    policy = get(f"{word}_from_{source}")
    kinds = {"int8": QuantizedDTypePolicy, "int4/64": Int4DTypePolicy, "int4/-1": Int4DTypePolicy}
    assert type(policy) is kinds.get(word, SchemeDTypePolicy)
    assert policy.scheme == Scheme.parse(word) and policy.name == f"{word}_from_{source}"
    keras = type(policy) is not SchemeDTypePolicy
    assert serialize(policy)["module"] == ("keras.dtype_policies" if keras else "mp_core.dtype_policies")
    assert policy.quantization_mode == word.partition("/")[0].partition("_")[0] and policy.source_name == source
    for again in (
        get(policy.name),
        copy.deepcopy(policy),
        pickle.loads(pickle.dumps(policy)),
        type(policy).from_config(policy.get_config()),
        deserialize(serialize(policy)),
        DTypePolicyMap("float32", {"a": policy.name})["a"],
        deserialize(serialize(DTypePolicyMap(policy)))["anything"],
    ):
        assert again == policy and again.scheme == policy.scheme and repr(again) == repr(policy)


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("int8_from_float32", "int8"),
        ("int4_from_float32", "int4/-1"),
        ("int4/None_from_float32", "int4/-1"),
        ("int4/20_from_float32", "int4/20"),
        (f"int4/{10**30}_from_float32", f"int4/{2**31 - 1}"),
        ("float8_from_float32", None),
        ("gptq/4/64_from_float32", None),
        ("awq/4/64_from_float32", None),
        ("ternary_from_float32", None),
        ("mixed_bfloat16", None),
    ],
)
def test_policies_of_keras_say_their_scheme(name, scheme):
    found = get(name).scheme
    assert (None if found is None else str(found)) == scheme
    assert DTypePolicyMap(name).scheme == found


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("source", ["float16", "mixed_float16"])
def test_only_integer_products_refuse_float16(word, source):
    if (word.startswith("int8") and "weight_only" not in word) or "dynamic" in word:
        with pytest.raises(ValueError, match=f"mode='{word}' doesn't work well with compute_dtype='float16'"):
            get(f"{word}_from_{source}")
    else:
        assert get(f"{word}_from_{source}").compute_dtype == "float16"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SchemeDTypePolicy("int8"), "Expected QuantizedDTypePolicy for it. Received: mode=int8"),
        (lambda: SchemeDTypePolicy("int4/64"), "Expected Int4DTypePolicy for it. Received: mode=int4/64"),
        (lambda: SchemeDTypePolicy("int8/weights"), "Invalid mode for SchemeDTypePolicy: a scheme must be one of"),
        (lambda: get("int8/64_from_float32"), "Invalid mode .* received 'int8/64'"),
        (lambda: get("float8_e4m3_from_float32"), "Invalid mode .* received 'float8_e4m3'"),
        (lambda: Int4DTypePolicy("int4/" + "9" * 5000), "Invalid block_size in mode"),
        (lambda: Int4DTypePolicy("int4/064"), "Invalid block_size in mode"),
        (lambda: get("int8"), "valid pair"),
        (lambda: get("int4/64"), "valid pair"),
        (lambda: get("int8/weight_only"), "valid pair"),
    ],
)
def test_policies_refuse_other_modes(make, text):
    with pytest.raises(ValueError, match=text):
        make()


# ---- the words of users


@pytest.mark.parametrize("word", WORDS)
def test_a_scheme_alone_is_over_mixed_bfloat16(word):
    assert policy_of(word) == get(f"{word}_from_mixed_bfloat16")


@pytest.mark.parametrize(
    "word", ["float32", "mixed_float16", "float8_from_float32", "int8/fixed_from_float32", "int4_from_float32"]
)
def test_other_words_are_names_of_policies(word):
    assert policy_of(word) == get(word)
    assert policy_of(get(word)) == get(word)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("int4", r"; did you mean int4/64\? \(a scheme of int4 must name its groups, as in int4/64; received 'int4'\)"),
        ("int8_weight_only", r"; did you mean int8/weight_only\?"),
        ("int8/64", r"; did you mean int8/weight_only/64\?"),
        ("float8", r"; did you mean float8_e4m3fn\?"),
        ("flaot32", r"; did you mean float32\?"),
        ("int8_from_mixed_float16", r" \(Quantization mode='int8' doesn't work well with compute_dtype='float16'\.\)"),
    ],
)
def test_other_words_are_refused_with_those_that_there_are(word, reason):
    allowed = "float32, float16, bfloat16, mixed_float16, mixed_bfloat16, int8, int8/tensor, .*, or SCHEME_from_POLICY"
    with pytest.raises(ValueError, match=f"^`policy` must be one of {allowed} .*; received '{word}'{reason}$"):
        policy_of(word)
    with pytest.raises(TypeError, match="`stored` must be a policy or its name; received None"):
        policy_of(None, "stored")


def test_policy_of_returns_a_map_as_it_is():
    policies = DTypePolicyMap("int8/weight_only_from_float32")
    assert policy_of(policies) is policies
