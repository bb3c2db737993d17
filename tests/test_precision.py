"""Embeddings in fewer bits: codes and packed bits equal sentence-transformers' quantize_embeddings, bit for bit."""

import warnings

import numpy as np
import pytest
import tiny_bert
from oracles import assert_same_bits

from mp_core.models import BertEncoder
from mp_core.models.precision import PRECISIONS, UNIT_RANGES, unit_codes, with_precision

TEXTS = [*tiny_bert.TEXTS, "c a", "h h b"]


@pytest.fixture(scope="module")
def quantize():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("sentence_transformers.util").quantize_embeddings


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return BertEncoder.from_folder(tiny_bert.write(tmp_path_factory.mktemp("precision") / "encoder"))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_encode_gives_the_codes_of_the_library(quantize, encoder, precision):
    expected = quantize(encoder.encode(TEXTS), precision)
    assert_same_bits(encoder.encode(sentences=TEXTS, precision=precision), expected)
    if precision not in ("int8", "uint8"):
        assert_same_bits(encoder.encode(TEXTS[0], precision=precision), expected[0])
    empty = encoder.encode([], precision=precision)
    assert (empty.dtype, empty.shape) == (expected.dtype, (0, *expected.shape[1:]))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dim", [1, 7, 8, 33])
def test_arrays_have_the_codes_of_the_library(quantize, precision, dim):
    rows = np.random.default_rng(dim).standard_normal((9, dim)).astype(np.float32)
    rows[3] = rows[2] = 0
    rows[:, 0] = 0.5  # a range of one number
    assert_same_bits(with_precision(rows, precision), quantize(rows, precision))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True) + 1
    expected = quantize(rows, precision, ranges=UNIT_RANGES * np.ones(dim, np.float32))
    assert_same_bits(unit_codes(rows, precision), expected)


def test_one_text_has_no_range_and_unknown_precisions_are_named(encoder):
    for precision in ("int8", "uint8"):
        with pytest.raises(ValueError, match=f'`precision` "{precision}" needs several texts'):
            encoder.encode("a", precision=precision)
    with pytest.raises(ValueError, match=r"`precision` must be 'float32' or 'int8' .* received 'float16'"):
        encoder.encode("a", precision="float16")


def test_codes_of_unit_length_are_127_times_the_numbers_and_keep_their_angles():
    rows = np.random.default_rng(0).standard_normal((50, 384)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    codes = unit_codes(rows, "int8")
    assert np.abs(codes - 127 * rows).max() <= 0.501
    np.testing.assert_array_equal(unit_codes(rows, "uint8"), codes.astype(int) + 128)
    cosines = (codes * rows).sum(axis=1) / np.linalg.norm(codes.astype(np.float32), axis=1)
    assert cosines.min() > 0.998
    assert unit_codes(np.array([[1, -1, 0]], np.float32), "int8").tolist() == [[127, -127, 0]]
