"""Patterns from files: the same answers as `re`, in bounded time."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mp_core import patterns
from mp_core.dtype_policies import DTypePolicyMap
from mp_core.patterns import matcher

ATOMS = st.sampled_from(
    [
        "a",
        "b",
        ".",
        "[ab]",
        "[^a]",
        r"\d",
        r"\w",
        r"\.",
        "é",
        r"\b",
        "^",
        "$",
        r"\A",
        r"\Z",
        "(?i:B)",
        "(?s:.)",
        "(?m:^)",
    ]
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=0, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{0,2}", "{1,}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(PATTERNS, st.text("abB.1é\n", max_size=6))
@example("(a|b)*?$", "ab\n")
@example("(?i)A[B-C]", "ab")
@example("", "a")
def test_all_ways_at_once_find_what_re_finds(pattern, name):
    program = patterns._Program.of(patterns._parser.parse(pattern))
    for search, expected in ((False, re.fullmatch(pattern, name)), (True, re.search(pattern, name))):
        assert program.matches(name, search) == (expected is not None)


A = "a" * 100
SLOW = {  # pattern: a name that matches, one that does not
    "(a+)+$": (A, f"{A}!"),
    "(a|aa)+$": (A, f"{A}!"),
    "(ab|ab)*c": ("ab" * 50 + "c", "ab" * 50),
    "(.*)*b": (f"{A}b", A),
    "((a?){30}){30}b": (f"{A}b", A),
    "a?" * 60 + "a" * 60: (A, "a" * 59),
    ".*a" * 20 + "b": (f"{A}b", A),
    "((a*)*)*b": (f"{A}b", A),
}


@pytest.mark.parametrize("pattern", SLOW)
def test_patterns_on_which_re_does_not_end_do(pattern):
    for how in ("fullmatch", "search"):
        good, bad = SLOW[pattern]
        matches = matcher(pattern, how)
        assert matches(good)
        assert not matches(bad)


def test_common_patterns_are_those_of_re():
    for pattern in ("encoder/layer_1/query", "encoder/.*", r"(query|key)\.weight", "a{3}", ""):
        assert matcher(pattern, "fullmatch") == re.compile(pattern).fullmatch
    assert matcher(r"^(?!.*norm).*$", "fullmatch")("encoder/query")
    assert not matcher(r"^(?!.*norm).*$", "fullmatch")("encoder/norm")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "missing \\)"),
        ("a{99999999999}", "repetition number is too large"),
        ("(" * 2000 + ")" * 2000, "recursion"),
        ("a" * 4097, "may have 4096 characters; received 4097"),
        (r"(a+)+\1b", "matching may take too long: it has a reference"),
        ("(?=(a+)+b)a", "matching may take too long: it has a reference, a lookaround"),
        ("((a+)++)+b", "matching may take too long"),
        ("(((a?){99}){99}){99}", "matching may take too long: it has more than 2000 parts"),
        ("((()*)*){999999999}(a+)+", "matching may take too long: it has more than 2000 parts"),
    ],
)
def test_what_cannot_be_bounded_is_refused(pattern, message):
    with pytest.raises(ValueError, match=message):
        matcher(pattern, "search")


def test_a_name_too_long_for_a_lookaround_is_refused():
    matches = matcher(".*.*(?!a).*", "fullmatch")
    assert matches("b" * 100)
    with pytest.raises(ValueError, match="may take too long for names of more than 128 characters"):
        matches("b" * 1000)


def test_a_map_ends_on_every_key():
    policies = DTypePolicyMap("float32", {"(a+)+$": "float16", ".*" * 30 + "x": "bfloat16"})
    assert policies["a" * 200].name == "float16"
    assert policies["a" * 200 + "!"].name == "float32"
    assert policies["a" * 200 + "x"].name == "bfloat16"
    with pytest.raises(ValueError, match=r"The key .* is no valid regular expression: matching may take too long"):
        policies[r"(a+)+\1"] = "float16"
