"""Numbers in texts: unusual spellings that Python's `float` and `int` accept raise an error."""

import math

import pytest

from mp_core.cli.common import finite, positive
from mp_core.cli.tune import _count, _rate, _seed
from mp_core.files.checkpoint.errors import Threshold
from mp_core.models.tuning.examples import read_examples
from mp_core.utilities.numerals import integer_of, number_of


@pytest.mark.parametrize("text", ["0", "-1", "1.5", ".5", "5.", "1e-3", "+2E5", " 7 ", "inf", "-Infinity", "nan"])
def test_numbers_are_those_of_float(text):
    assert number_of(text) == float(text) or math.isnan(number_of(text))


@pytest.mark.parametrize("text", ["1_0", "1e1_0", "\u0661", "\u20091", "0x1", "", ".", "1e", "1 0", "infinit"])
def test_other_texts_are_no_numbers(text):
    with pytest.raises(ValueError, match="is not a number"):
        number_of(text)
    assert integer_of(text, -9, 9) is None


def test_integers_have_bounds():
    assert [integer_of(text, -1, 12) for text in ("-1", "012", "+3", "13", "-2", "9" * 5000)] == [-1, 12, 3] + [
        None
    ] * 3


@pytest.mark.parametrize("read", [finite, _rate, positive, _count, _seed])
@pytest.mark.parametrize("text", ["1_0", "\u0663", "nan", "-1", "9" * 5000])
def test_options_refuse_them_in_few_words(read, text):
    with pytest.raises(Exception, match=r"received .* must be") as raised:
        read(text)
    assert type(raised.value).__name__ == "ArgumentTypeError"
    assert len(str(raised.value)) < 300


def test_a_threshold_has_a_number():
    with pytest.raises(ValueError, match="and a number"):
        Threshold.parse("sqnr<1_0")


def test_a_score_of_a_table_is_a_number(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "scores.csv").write_text("sentence1,sentence2,score\na,b,1_0\n")
    with pytest.raises(ValueError, match=r"line 2.*1_0"):
        read_examples(tmp_path / "scores.csv").numbers("data")
