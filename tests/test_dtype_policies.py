"""Dtype policies: names, errors, equality, serialization, the default (checklists B and F1, source 001)."""

import asyncio
import copy
import pickle
import re
import threading

import ml_dtypes
import numpy as np
import pytest

from mp_core import config, dtypes, layers
from mp_core.dtype_policies import (
    QUANTIZATION_MODES,
    AWQDTypePolicy,
    DTypePolicy,
    DTypePolicyMap,
    FloatDTypePolicy,
    GPTQDTypePolicy,
    Int4DTypePolicy,
    QuantizedDTypePolicy,
    QuantizedFloat8DTypePolicy,
    deserialize,
    dtype_policy,
    get,
    policy_of,
    policy_scope,
    serialize,
    set_dtype_policy,
    standardize_dtype,
)
from mp_core.policies.dtype_policies.policy import replace_default

PLAIN = [  # name, compute, variable
    ("float32", "float32", "float32"),
    ("float64", "float64", "float64"),
    ("float16", "float16", "float16"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("mixed_float16", "float16", "float32"),
    ("mixed_bfloat16", "bfloat16", "float32"),
    ("uint8", "uint8", "uint8"),
    ("int8", "int8", "int8"),
    ("int", "int32", "int32"),
    ("float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fn"),
    ("string", "string", "string"),
    ("complex64", "complex64", "complex64"),
]
INVALID_NAMES = ["invalid_name", "", "@mixed_float16!", "mixed_float16" * 100, "mixed_float15", "half", "f4", "<f4"]
POLICIES = [
    DTypePolicy("mixed_float16"),
    FloatDTypePolicy("mixed_bfloat16"),
    DTypePolicy("params=float32,compute=bfloat16,output=float32"),
    QuantizedDTypePolicy("int8", "mixed_bfloat16"),
    QuantizedFloat8DTypePolicy("float8", "mixed_float16", amax_history_length=512),
    Int4DTypePolicy("int4/128", "float32"),
    GPTQDTypePolicy("gptq/4/128", "float32"),
    AWQDTypePolicy("awq/4/-1", "float32"),
]


# ---- plain policies


@pytest.mark.parametrize(("name", "compute", "variable"), PLAIN)
def test_plain_policy_has_the_dtypes_of_its_name(name, compute, variable):
    policy = DTypePolicy(name)
    assert (policy.name, policy.compute_dtype, policy.variable_dtype) == (name, compute, variable)
    assert policy.output_dtype == compute
    assert policy.quantization_mode is None
    assert repr(policy) == f'<DTypePolicy "{name}">'
    assert policy.get_config() == {"name": name}


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_unknown_name_is_an_error(name):
    with pytest.raises(ValueError, match="Cannot convert"):
        DTypePolicy(name)


@pytest.mark.parametrize("name", [123, 1.0, np.float32, ["float32"]])
def test_name_must_be_a_string(name):
    with pytest.raises(TypeError, match="'name' must be a string, such as 'mixed_float16'"):
        DTypePolicy(name)


@pytest.mark.parametrize("attribute", ["name", "compute_dtype", "variable_dtype", "output_dtype", "other"])
def test_policies_are_immutable(attribute):
    with pytest.raises(AttributeError):
        setattr(DTypePolicy("float32"), attribute, "float16")


def test_no_name_takes_the_default():
    set_dtype_policy("mixed_bfloat16")
    assert DTypePolicy().name == "mixed_bfloat16"
    assert QuantizedDTypePolicy("int8").name == "int8_from_mixed_bfloat16"


def test_trap_4_float_dtype_policy_is_an_alias_but_subclasses_are_not():
    class MyPolicy(DTypePolicy):
        pass

    plain, alias, mine = (cls("mixed_float16") for cls in (DTypePolicy, FloatDTypePolicy, MyPolicy))
    assert repr(alias) == '<DTypePolicy "mixed_float16">'
    assert plain == alias and hash(plain) == hash(alias)
    assert plain != mine and mine == MyPolicy("mixed_float16")
    assert plain != "mixed_float16"
    assert serialize(alias)["class_name"] == "FloatDTypePolicy"
    assert deserialize(serialize(mine)) == mine
    assert DTypePolicy("int") != DTypePolicy("int32")


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_policies_survive_copies_pickles_configs_and_names(policy):
    again = [
        copy.copy(policy),
        copy.deepcopy(policy),
        pickle.loads(pickle.dumps(policy)),
        type(policy).from_config(policy.get_config()),
        deserialize(serialize(policy)),
    ]
    for other in again:
        assert other == policy and hash(other) == hash(policy) and repr(other) == repr(policy)
        assert other.get_config() == policy.get_config()
    assert get(str(policy)).name == policy.name


@pytest.mark.parametrize(
    ("text", "canonical", "variable", "compute", "output"),
    [
        ("params=float32,compute=bfloat16,output=float32", None, "float32", "bfloat16", "float32"),
        ("p=f32,c=bf16", "params=float32,compute=bfloat16,output=bfloat16", "float32", "bfloat16", "bfloat16"),
        ("c=half", "params=float32,compute=float16,output=float16", "float32", "float16", "float16"),
        ("p=bf16", "params=bfloat16,compute=bfloat16,output=bfloat16", "bfloat16", "bfloat16", "bfloat16"),
        ("o=f64,p=full", "params=float32,compute=float32,output=float64", "float32", "float32", "float64"),
    ],
)
def test_role_grammar_parses_and_prints_back(text, canonical, variable, compute, output):
    policy = get(text)
    assert str(policy) == (canonical or text)
    assert (policy.variable_dtype, policy.compute_dtype, policy.output_dtype) == (variable, compute, output)
    assert get(str(policy)) == policy


@pytest.mark.parametrize(
    ("text", "reason"), [("x=float32", "Unknown key 'x'"), ("c=int8", "Unknown dtype 'int8'"), ("c=", "Unknown dtype")]
)
def test_role_grammar_says_what_is_wrong(text, reason):
    with pytest.raises(ValueError, match=reason):
        get(text)


CONVERTED = [  # value, autocast, dtype after convert_input to float16
    (np.ones(2, np.float32), True, "float16"),
    (np.ones(2, np.float64), True, "float16"),
    (np.ones(2, ml_dtypes.bfloat16), True, "float16"),
    (np.ones(2, ml_dtypes.float8_e5m2), True, "float16"),
    (np.ones(2, ">f4"), True, "float16"),
    (np.float32(1), True, "float16"),
    (np.ones(2, np.float32), False, "float32"),
    (np.ones(2, np.int64), True, "int64"),
    (np.ones(2, bool), True, "bool"),
    (np.ones(2, np.complex64), True, "complex64"),
]


@pytest.mark.parametrize(("x", "autocast", "expected"), CONVERTED)
def test_convert_input_casts_floating_point_arrays_only(x, autocast, expected):
    assert DTypePolicy("mixed_float16").convert_input(x, autocast, "float16").dtype.name == expected


@pytest.mark.parametrize("x", [1.0, 1, None, "text", np.ones(2, np.float16)], ids=repr)
def test_convert_input_returns_the_rest_as_it_is(x):
    assert DTypePolicy("mixed_float16").convert_input(x, True, "float16") is x


# ---- quantized policies


def test_quantized_policy():
    policy = QuantizedDTypePolicy("int8", "mixed_bfloat16")
    assert repr(policy) == '<QuantizedDTypePolicy "int8_from_mixed_bfloat16">'
    assert policy.get_config() == {"mode": "int8", "source_name": "mixed_bfloat16"}
    assert (policy.compute_dtype, policy.variable_dtype, policy.quantization_mode) == ("bfloat16", "float32", "int8")
    assert (policy._source_name, policy._quantization_mode) == ("mixed_bfloat16", "int8")
    assert policy == QuantizedDTypePolicy("int8", "mixed_bfloat16") != QuantizedDTypePolicy("int8", "bfloat16")
    assert QUANTIZATION_MODES == ("int8", "float8", "int4", "ternary", "gptq", "awq")


def test_float8_policy_compares_its_history_length():
    policy = QuantizedFloat8DTypePolicy("float8", "mixed_bfloat16")
    assert policy.amax_history_length == QuantizedFloat8DTypePolicy.default_amax_history_length == 1024
    assert policy.get_config()["amax_history_length"] == 1024
    assert policy != QuantizedFloat8DTypePolicy("float8", "mixed_bfloat16", amax_history_length=512)
    assert policy != QuantizedDTypePolicy("float8", "mixed_bfloat16")
    other = QuantizedFloat8DTypePolicy("float8", "mixed_bfloat16", amax_history_length=512)
    assert repr(policy) == repr(other) == f'<QuantizedFloat8DTypePolicy "{policy}">'  # as in Keras


QUANTIZED_NAMES = [  # name, class, quantization_mode, name after parsing
    ("int8_from_mixed_bfloat16", QuantizedDTypePolicy, "int8", None),
    ("float8_from_mixed_float16", QuantizedFloat8DTypePolicy, "float8", None),
    ("int4_from_float16", QuantizedDTypePolicy, "int4", None),
    ("int4/128_from_float32", Int4DTypePolicy, "int4", None),
    ("int4/None_from_float32", Int4DTypePolicy, "int4", "int4/-1_from_float32"),
    ("gptq/4/128_from_mixed_bfloat16", GPTQDTypePolicy, "gptq", None),
    ("awq/4/-1_from_float32", AWQDTypePolicy, "awq", None),
]


@pytest.mark.parametrize(("name", "kind", "mode", "canonical"), QUANTIZED_NAMES)
def test_quantized_names(name, kind, mode, canonical):
    policy = get(name)
    assert type(policy) is kind
    assert (policy.quantization_mode, policy.name) == (mode, canonical or name)
    assert serialize(policy)["module"] == "keras.dtype_policies"


def test_parameters_of_grouped_modes():
    int4, gptq, awq = get("int4/64_from_float32"), get("gptq/2/32_from_float32"), get("awq/4/16_from_float32")
    assert (int4.mode, int4.block_size, int4.get_config()["mode"]) == ("int4", 64, "int4/64")
    assert (gptq.mode, gptq.weight_bits, gptq.group_size) == ("gptq", 2, 32)
    assert (awq.mode, awq.weight_bits, awq.group_size) == ("awq", 4, 16)
    assert GPTQDTypePolicy("gptq/4/128").name == "gptq/4/128_from_float32"


ERRORS = [  # call, error, text
    (lambda: QuantizedDTypePolicy("int7", "float32"), ValueError, "Invalid quantization mode"),
    (lambda: QuantizedDTypePolicy("int4/64", "float32"), ValueError, "Invalid quantization mode"),
    (lambda: QuantizedDTypePolicy("int8", "float16"), ValueError, "doesn't work well with compute_dtype='float16'"),
    (lambda: QuantizedDTypePolicy("int8", "mixed_float16"), ValueError, "doesn't work well"),
    (lambda: QuantizedFloat8DTypePolicy("float8", "float32", 512.0), TypeError, "must be an integer"),
    (lambda: QuantizedFloat8DTypePolicy("float8", "float32", "512"), TypeError, "must be an integer"),
    (lambda: Int4DTypePolicy("int4", "float32"), ValueError, "Invalid mode for Int4DTypePolicy"),
    (lambda: Int4DTypePolicy("int4/0", "float32"), ValueError, "Invalid block_size in mode"),
    (lambda: Int4DTypePolicy("int4/x", "float32"), ValueError, "Invalid block_size in mode"),
    (lambda: GPTQDTypePolicy("gptq/5/128", "float32"), ValueError, "only supports 2 or 3 or 4 or 8-bit"),
    (lambda: AWQDTypePolicy("awq/8/128", "float32"), ValueError, "only supports 4-bit"),
    (lambda: AWQDTypePolicy("awq/4", "float32"), ValueError, "Invalid mode"),
    (lambda: get("int8_abc_"), ValueError, "Cannot convert `policy` into a valid pair"),
    (lambda: get("int8_from_"), ValueError, "Cannot convert"),
    (lambda: get("mixed_bfloat15"), ValueError, "Cannot convert"),
    (lambda: get(123), ValueError, "Cannot interpret `dtype` argument"),
    (lambda: get(np.ones(2)), ValueError, "Cannot interpret `dtype` argument"),
    (lambda: deserialize({"class_name": "NoPolicy", "config": {}}), ValueError, "Unknown policy class_name='NoPolicy'"),
    (lambda: set_dtype_policy(12345), ValueError, "Invalid `policy` argument"),
    (lambda: set_dtype_policy(None), ValueError, "Invalid `policy` argument"),
]


@pytest.mark.parametrize(
    ("read", "word", "other"),
    [
        (DTypePolicy, "bf16", "bfloat16"),
        (DTypePolicy, "mixed_bf16", "mixed_bfloat16"),
        (DTypePolicy, "INT8", "int8"),
        (get, "int8", "int8_from_mixed_bfloat16"),
        (get, "int8_from_bf16", "bfloat16"),
        (policy_of, "bf16", "bfloat16"),
        (policy_of, "INT8", "int8"),
        (policy_of, "int4", "int4/64"),
        (policy_of, "int8_from_bf16", "int8_from_bfloat16"),
    ],
)
def test_a_name_of_another_spelling_is_answered_with_what_is_meant(read, word, other):
    with pytest.raises(ValueError, match=re.escape(f"did you mean {other}?")):
        read(word)


@pytest.mark.parametrize(("read", "word"), [(DTypePolicy, "zebra"), (DTypePolicy, "int8_from_bf16"), (get, "int8_x")])
def test_a_name_that_nothing_is_like_gets_no_guess(read, word):
    with pytest.raises(ValueError, match="Cannot convert") as raised:
        read(word)
    assert "did you mean" not in str(raised.value)


@pytest.mark.parametrize(("call", "error", "text"), ERRORS)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_trap_5_prefix_dispatch_and_the_order_of_errors():
    for name in ("int8", "float8_e4m3fn", "float8_e5m2"):
        with pytest.raises(ValueError, match="valid pair"):
            get(name)
        with pytest.raises(ValueError, match="valid pair"):
            set_dtype_policy(name)
        assert DTypePolicy(name).name == name
    assert get(np.dtype("int8")) == DTypePolicy("int8")
    with pytest.raises(TypeError, match="'name' must be a string"):
        QuantizedDTypePolicy("int7", 123)
    with pytest.raises(ValueError, match="Cannot convert"):
        QuantizedDTypePolicy("int7", "mixed_float15")
    with pytest.raises(ValueError, match="Invalid quantization mode"):
        QuantizedDTypePolicy("int7", "float16")


# ---- get, serialize


@pytest.mark.parametrize(
    ("identifier", "name"),
    [
        (None, "float32"),
        ("mixed_float16", "mixed_float16"),
        (np.float16, "float16"),
        (np.dtype("float64"), "float64"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (float, "float32"),
        ({"class_name": "DTypePolicy", "config": {"name": "mixed_float16"}}, "mixed_float16"),
    ],
)
def test_get(identifier, name):
    assert get(identifier) == DTypePolicy(name)


@pytest.mark.parametrize("policy", [*POLICIES, DTypePolicyMap()], ids=str)
def test_get_returns_policies_themselves(policy):
    assert get(policy) is policy


def test_trap_12_serialized_shape():
    assert serialize(DTypePolicy("float32")) == {
        "module": "keras",
        "class_name": "DTypePolicy",
        "config": {"name": "float32"},
        "registered_name": None,
    }
    assert serialize(DTypePolicyMap())["module"] == "keras.dtype_policies"


def test_deserialize_takes_custom_objects():
    custom = {"Renamed": DTypePolicy}
    assert deserialize({"class_name": "Renamed", "config": {"name": "float16"}}, custom) == DTypePolicy("float16")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(None, "float32"), (bool, "bool"), (int, "int32"), (float, "float32"), (str, "string"), (complex, "complex64"),
     ("int", "int32"), (np.float64, "float64"), (np.dtype("uint8"), "uint8"), ("float8_e5m2", "float8_e5m2")],
)  # fmt: skip
def test_standardize_dtype(dtype, name):
    assert standardize_dtype(dtype) == name


@pytest.mark.parametrize("dtype", ["half", "single", "f4", "<f4", "float", np.float64(1), [1], "float8_e4m3"])
def test_trap_10_numpy_spellings_are_invalid(dtype):
    with pytest.raises(ValueError, match="Invalid dtype"):
        standardize_dtype(dtype)


# ---- the default


def test_trap_11_unset_default_follows_floatx():
    assert dtype_policy() == DTypePolicy("float32")
    dtypes.set_floatx("bfloat16")
    assert dtype_policy() == DTypePolicy("bfloat16")
    set_dtype_policy("mixed_float16")
    dtypes.set_floatx("float64")
    assert dtype_policy() == DTypePolicy("mixed_float16")


@pytest.mark.parametrize("policy", ["int32", "int8_from_float32", *POLICIES], ids=str)
def test_any_policy_can_be_the_default(policy):
    set_dtype_policy(policy)
    assert dtype_policy() == get(policy)


def test_an_empty_map_can_be_the_default():
    policies = DTypePolicyMap("float16")
    set_dtype_policy(policies)
    assert dtype_policy() is policies


def _in_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_the_default_is_the_process_s_and_scopes_are_the_thread_s():
    set_dtype_policy("mixed_bfloat16")
    assert _in_thread(dtype_policy) == DTypePolicy("mixed_bfloat16")
    with policy_scope("float16") as inner:
        assert dtype_policy() is inner
        assert _in_thread(dtype_policy) == DTypePolicy("mixed_bfloat16")


def test_scopes_nest_and_restore_on_error():
    with pytest.raises(RuntimeError), policy_scope("float16"):
        with policy_scope("float64"):
            set_dtype_policy("mixed_bfloat16")
            assert dtype_policy().name == "mixed_bfloat16"
            replace_default(None)
            assert dtype_policy().name == "float32"
        assert dtype_policy().name == "float16"
        raise RuntimeError
    assert dtype_policy().name == "float32"
    with pytest.raises(ValueError, match="Invalid `policy`"), policy_scope(None):
        pass


def test_scopes_do_not_leak_between_tasks():
    async def task(name):
        with policy_scope(name):
            await asyncio.sleep(0)
            return dtype_policy().name

    async def main():
        return await asyncio.gather(task("float16"), task("bfloat16"))

    assert asyncio.run(main()) == ["float16", "bfloat16"]


# ---- the example that source 001 repeats for every class


@pytest.mark.parametrize("set_default", [set_dtype_policy, config.set_dtype_policy])
def test_layer_example_of_source_001(set_default):
    set_default("mixed_float16")
    layer1 = layers.Dense(10)
    assert repr(layer1.dtype_policy) == '<DTypePolicy "mixed_float16">'
    layer2 = layers.Dense(10, dtype="float32")
    assert repr(layer2.dtype_policy) == '<DTypePolicy "float32">'
    set_default("float32")
    assert layer2.dtype_policy == layers.Dense(10, dtype=DTypePolicy("float32")).dtype_policy == dtype_policy()


def test_attention_example_of_source_001():
    class MyMultiHeadAttention(layers.MultiHeadAttention):
        def get_config(self):
            config = super().get_config()
            dtype_policy_map = DTypePolicyMap()
            for layer in self.flatten():
                if layer.quantization_mode is not None:
                    dtype_policy_map[layer.path] = layer.dtype_policy
            if len(dtype_policy_map) > 0:
                config.update({"dtype": dtype_policy_map})
            return config

    layer = MyMultiHeadAttention(2, 4, name="attention")
    layer.build((None, None, 8))
    assert isinstance(layer.get_config()["dtype"], dict)
    layer.query_dense.quantize("int8")
    saved = layer.get_config()["dtype"]
    assert list(saved) == ["attention/query"]
    again = MyMultiHeadAttention.from_config(layer.get_config())
    again.build((None, None, 8))
    assert again.query_dense.kernel.true_dtype == np.int8 and again.key_dense.kernel.true_dtype == np.float32


@pytest.mark.parametrize("value", [[], "int8", None, np.float32])
def test_floatx_is_one_of_four_names(value):
    with pytest.raises(ValueError, match="Unknown `floatx` value"):
        dtypes.set_floatx(value)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_pickles_policies(protocol):
    for policy in (get("mixed_float16"), DTypePolicyMap("float32", {"a": "float16"})):
        assert pickle.loads(pickle.dumps(policy, protocol)) == policy
