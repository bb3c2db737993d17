"""Patterns from files: only those that `re` matches in bounded time are accepted."""

import re

import pytest

from mp_core.dtype_policies import DTypePolicyMap
from mp_core.utilities.patterns import matcher

A = "a" * 100
SLOW = [
    "(?:^){4000000000}",  # takes all memory
    "(?=a){4000000000}",
    "((a+){99})?b",
    "(?:(?:.+){50000})?",
    "(?:(?:^){60000}){60000}",  # patterns that keep `re` busy for ages on names of a hundred characters
    "(a+)+$",
    "(a|aa)+$",
    "(ab|ab)*c",
    "(.*)*b",
    "((a?){30}){30}b",
    "a?" * 60 + "a" * 60,
    ".*a" * 20 + "b",
    "((a*)*)*b",
    r"(a+)+\1b",
    "(?=(a+)+b)a",
    "((a+)++)+b",
    "(((a?){99}){99}){99}",
]


@pytest.mark.parametrize("pattern", SLOW)
def test_patterns_on_which_re_does_not_end_are_refused(pattern):
    for how in ("fullmatch", "search"):
        with pytest.raises(ValueError, match="may take too long: the pattern has repeats or alternatives within"):
            matcher(pattern, how)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("encoder/layer_1/query", "encoder/layer_1/query", "encoder/layer_1/key"),
        ("encoder/.*", "encoder/x", "decoder/x"),
        (r"(query|key)\.weight", "key.weight", "value.weight"),
        (r"^(?!.*norm).*$", "encoder/query", "encoder/norm"),
        (r"encoder\.layer\.\d+\.(attention|output)\.dense\.weight", "encoder.layer.11.output.dense.weight", ""),
        (".*layer.*attention.*query.*", "encoder.layer.0.attention.self.query.weight", "layer.query"),
        ("(a/)*b", "a/a/b", "a/a"),
        ("a{3}", "aaa", "aa"),
        ("", "", "a"),
    ],
)
def test_the_patterns_that_users_write_are_those_of_re(pattern, good, bad):
    matches = matcher(pattern, "fullmatch")
    assert matches(good) and not matches(bad)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "missing \\)"),
        ("a{99999999999}", "repetition number is too large"),
        ("(" * 2000 + ")" * 2000, "recursion"),
        ("a" * 4097, "may have at most 4096 characters; received 4097"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern, message):
    with pytest.raises(ValueError, match=message):
        matcher(pattern, "search")


@pytest.mark.parametrize("how", ["fullmatch", "search"])
@pytest.mark.parametrize("repeats", [2, 3, 4])
def test_a_name_too_long_for_its_pattern_is_refused(repeats, how):
    matches = matcher(".*a" * repeats + "b", how)
    with pytest.raises(ValueError, match=r"may take too long for names of more than [0-9]+ characters") as caught:
        matches("a" * 10_000)
    longest = int(re.search("more than ([0-9]+)", str(caught.value))[1])
    assert longest >= 64
    assert not matches("ac" * (longest // 2))


def test_a_map_refuses_a_key_that_may_take_too_long():
    policies = DTypePolicyMap("float32", {"a+$": "float16"})
    assert policies["a" * 200].name == "float16"
    assert policies["a" * 200 + "!"].name == "float32"
    with pytest.raises(ValueError, match=r"The key .* is not a valid regular expression: matching may take too long"):
        policies["(a+)+$"] = "float16"
