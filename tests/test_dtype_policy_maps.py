"""Maps of dtype policies (checklist B4, source 001)."""

import copy
import pickle

import pytest

from mp_core import config, layers
from mp_core.dtype_policies import (
    DTypePolicy,
    DTypePolicyMap,
    QuantizedDTypePolicy,
    deserialize,
    get,
    serialize,
    set_dtype_policy,
)


def _map(**kwargs):
    return DTypePolicyMap(
        "float32", {"layer/dense_0": "mixed_bfloat16", "layer/dense_[1-3]": DTypePolicy("float16")}, **kwargs
    )


def test_map_example_of_source_001():
    dtype_policy_map = DTypePolicyMap()
    dtype_policy_map["layer/dense_0"] = DTypePolicy("bfloat16")
    dtype_policy_map["layer/dense_1"] = QuantizedDTypePolicy("int8", "bfloat16")
    policy_0 = dtype_policy_map["layer/dense_0"]
    policy_1 = dtype_policy_map["layer/dense_1"]
    policy_2 = dtype_policy_map["layer/dense_2"]  # No hit
    assert policy_0 == DTypePolicy("bfloat16")
    assert policy_1 == QuantizedDTypePolicy("int8", "bfloat16")
    assert policy_2 == config.dtype_policy()


LOOKUPS = [  # match, keys, path, key hit: None for the default, a list for an ambiguity
    ("fullmatch", ["dense", "dense_1"], "dense_10", None),
    ("search", ["dense", "dense_1"], "dense_10", ["dense", "dense_1"]),
    ("fullmatch", ["attention/query"], "attention/query_norm", None),
    ("search", ["attention/query"], "attention/query_norm", "attention/query"),
    ("fullmatch", ["dense_.*", "dense_1.*"], "dense_12", ["dense_.*", "dense_1.*"]),
    ("fullmatch", ["dense_.*", "dense_1"], "dense_1", "dense_1"),
    ("search", ["dense", "dense_1"], "dense_1", "dense_1"),
]


@pytest.mark.parametrize(("match", "keys", "path", "expected"), LOOKUPS)
def test_trap_1_regex_mode_and_exact_keys_win(match, keys, path, expected):
    policies = DTypePolicyMap("float64", dict(zip(keys, ("float16", "bfloat16"), strict=False)), match)
    for _ in range(2):  # the second time from the cache
        if isinstance(expected, list):
            with pytest.raises(ValueError, match="matches multiple dtype policy specification keys") as error:
                policies[path]
            assert str(expected) in str(error.value)
        else:
            assert policies[path] is (policies.default_policy if expected is None else policies[expected])


def test_map_delegates_to_its_default():
    policies = DTypePolicyMap("int8_from_mixed_bfloat16")
    assert policies.name == "map_int8_from_mixed_bfloat16"
    assert (policies.compute_dtype, policies.variable_dtype, policies.output_dtype) == (
        "bfloat16",
        "float32",
        "bfloat16",
    )
    assert policies.quantization_mode == "int8"


def test_map_is_a_mapping_of_exact_keys():
    policies = _map()
    assert len(policies) == 2 and list(policies) == ["layer/dense_0", "layer/dense_[1-3]"]
    assert "layer/dense_0" in policies and "layer/dense_1" not in policies
    assert policies["layer/dense_1"] == DTypePolicy("float16")
    assert policies.pop("layer/dense_[1-3]") == DTypePolicy("float16")
    assert policies["layer/dense_1"] == DTypePolicy("float32")
    with pytest.raises(KeyError):
        policies.pop("layer/dense_[1-3]")
    assert "default_policy" in repr(policies) and "DTypePolicyMap" in repr(policies)
    assert "mapping=[('layer/dense_0', 'mixed_bfloat16')]" in repr(policies)


def test_trap_2_defaults_of_mapping_methods_are_not_honoured():
    policies = _map()
    assert policies.get("missing", "other") == DTypePolicy("float32")
    assert policies.setdefault("missing", "float16") == DTypePolicy("float32") and "missing" not in policies
    with pytest.raises(KeyError):
        policies.pop("missing", None)
    with pytest.raises(KeyError):
        policies.pop("layer/dense_1")  # a hit by regular expression only
    with pytest.raises(ValueError, match="already exist"):
        policies.update({"layer/dense_0": "float16"})
    assert not DTypePolicyMap()
    empty = DTypePolicyMap("float64")
    assert layers.Layer(dtype=empty).dtype_policy is empty


def test_maps_compare_by_value_and_are_unhashable():
    assert _map() == _map() != DTypePolicyMap("float32")
    assert _map(match="search") != _map()
    assert _map() != DTypePolicy("float32")
    with pytest.raises(TypeError):
        hash(_map())


MAP_ERRORS = [
    (lambda: DTypePolicyMap(DTypePolicyMap()), ValueError, "`default_policy` cannot be a `DTypePolicyMap`"),
    (lambda: DTypePolicyMap(serialize(DTypePolicyMap())), ValueError, "`default_policy` cannot be a `DTypePolicyMap`"),
    (lambda: DTypePolicyMap(policy_map=123), TypeError, "If specified, `policy_map` must be a dict"),
    (lambda: DTypePolicyMap(policy_map=DTypePolicy("float32")), TypeError, "must be a dict"),
    (lambda: DTypePolicyMap(match="prefix"), ValueError, "`match` must be one of fullmatch, search"),
    (lambda: DTypePolicyMap(policy_map={"a": 123}), ValueError, "Cannot interpret the assigned value by"),
    (lambda: DTypePolicyMap(policy_map={"(": "float32"}), ValueError, "'\\('.* is not a valid regular expression"),
    (lambda: _map().__setitem__("layer/dense_0", "float16"), ValueError, "layer/dense_0 already exist"),
]


@pytest.mark.parametrize(("call", "error", "text"), MAP_ERRORS)
def test_map_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_the_default_of_a_map_is_frozen_at_construction():
    policies = DTypePolicyMap()
    set_dtype_policy("mixed_bfloat16")
    assert policies["any"] == DTypePolicy("float32")


def test_trap_3_a_map_without_default_reloads_with_the_default_of_then():
    policies = DTypePolicyMap(policy_map={"a": "float16", "b": QuantizedDTypePolicy("int8", "float32")})
    config = serialize(policies)
    before = copy.deepcopy(config)
    assert config["config"]["policy_map"]["b"]["config"] == {"mode": "int8", "source_name": None}
    assert policies["a"].name == "float16" and policies["b"].name == "int8_from_float32"
    set_dtype_policy("mixed_bfloat16")
    again = deserialize(config)
    assert config == before
    assert again["a"] == again["other"] == DTypePolicy("mixed_bfloat16")
    assert again["b"] == QuantizedDTypePolicy("int8", "mixed_bfloat16")


@pytest.mark.parametrize("match", ["fullmatch", "search"])
def test_a_map_with_default_reloads_equal(match):
    policies = _map(match=match)
    assert deserialize(serialize(policies)) == policies
    assert pickle.loads(pickle.dumps(policies)) == copy.deepcopy(policies) == policies
    assert ("match" in policies.get_config()) == (match == "search")
    assert get(serialize(DTypePolicyMap(DTypePolicy("float16")))) == DTypePolicyMap("float16")


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("ab*", "a", True),
        ("ab?c", "ac", True),
        ("ab{0}c", "ac", True),
        ("ab+", "a", False),
        ("a|b", "b", True),
        ("(?i)dense", "DENSE", True),
        ("dense_.*", "dense_1", True),
        ("dense_.*", "dens", False),
        (".*", "", True),
        (r"\w/x", "q/x", True),
        ("", "", True),
    ],
)
def test_a_literal_prefix_never_hides_a_match(pattern, path, matches):
    assert (DTypePolicyMap("float32", {pattern: "bfloat16"})[path].name == "bfloat16") is matches


def test_a_map_among_the_entries_of_a_map_reloads():
    policies = DTypePolicyMap()
    policies["a"] = DTypePolicyMap()
    assert deserialize(serialize(policies)) == policies
    with pytest.raises(TypeError, match="a path must be a string; received 3"):
        policies[3]


def test_the_policy_of_one_path_goes_before_patterns_that_match_it():
    """A name that is no regular expression is kept escaped."""
    policies = DTypePolicyMap("float32", {".*": "bfloat16"})
    policies.replace("a(b", get("float16"))
    assert policies["a(b"].name == "float16" and policies["other"].name == "bfloat16"
    assert DTypePolicyMap.from_config(policies.get_config())["a(b"].name == "float16"


def test_copies_of_a_map_change_alone():
    policies = DTypePolicyMap("float32", {"a": "float16"})
    other = copy.copy(policies)
    other["b"] = "bfloat16"
    with pytest.raises(TypeError, match="a path must be a string; received b'abc'"):
        policies[b"abc"] = "float16"
    assert list(policies) == ["a"] and list(other) == ["a", "b"]
