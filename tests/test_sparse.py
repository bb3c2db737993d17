"""Sparse encoders, compared with sentence-transformers, with small random networks."""

import numpy as np
import pytest
from late_models import change, splade
from oracles import assert_same_bits

from mp_core.models import SparseEncoder, SparseVectors
from mp_core.models.masked import MASKED

pytest.importorskip("sentence_transformers")

TEXTS = ["a b c", "d", "e f g h a b c d e", "b b b h", "c " * 30]
NAMES = ["bert", "distilbert", "roberta", "xlm-roberta", "camembert", "mpnet", "modernbert"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("sparse")
    splade("bert", where)
    return where / "model"


def test_every_masked_model_is_tested():
    assert sorted(NAMES) == sorted(MASKED)


@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_those_of_sentence_transformers(name, tmp_path):
    expected = splade(name, tmp_path).encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    encoder = SparseEncoder.from_folder(tmp_path / "model")
    found = encoder.encode_sparse(TEXTS)
    assert np.abs(found.toarray() - expected).max() <= 1e-5 * np.abs(expected).max() and expected.any()
    assert encoder.dim == found.dim == expected.shape[1] and len(found) == len(TEXTS)
    alone = [encoder.encode_sparse(text)[0] for text in TEXTS]
    for (indices, values), (own_indices, own_values) in zip(found, alone, strict=True):
        assert_same_bits(indices, own_indices)
        assert_same_bits(values, own_values)


@pytest.mark.parametrize("settings", [{"pooling_strategy": "sum"}, {"activation_function": "log1p_relu"}], ids=str)
def test_poolings_are_those_of_sentence_transformers(settings, tmp_path):
    expected = splade("bert", tmp_path, **settings).encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    found = SparseEncoder.from_folder(tmp_path / "model").encode_sparse(TEXTS, batch_size=2).toarray()
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_long_texts_are_pooled_piece_by_piece(folder, monkeypatch):
    encoder = SparseEncoder.from_folder(folder)
    expected = encoder.encode_sparse(TEXTS)
    monkeypatch.setattr("mp_core.models.masked._TOKENS", 3)
    found = encoder.encode_sparse(TEXTS)
    assert_same_bits(found.values, expected.values)
    assert_same_bits(found.indices, expected.indices)


def test_the_largest_numbers_are_kept(folder):
    encoder = SparseEncoder.from_folder(folder)
    every, few = encoder.encode_sparse(TEXTS), encoder.encode_sparse(TEXTS, max_active_dims=3)
    for (_, values), (indices, kept) in zip(every, few, strict=True):
        assert len(kept) == min(3, len(values)) and sorted(kept) == sorted(values)[-3:]
        assert (np.diff(indices) > 0).all()
    ties = SparseVectors.of(np.array([[1, 2, 1, 1]], np.float32), 2)
    assert ties.indices.tolist() == [0, 1]


def test_vectors_become_csr_and_multiply(folder):
    pytest.importorskip("scipy")
    found = SparseEncoder.from_folder(folder).encode_sparse(TEXTS)
    csr = found.to_scipy()
    np.testing.assert_array_equal(csr.toarray(), found.toarray())
    assert np.shares_memory(csr.data, found.values)
    wide = found.toarray().astype(np.float64)
    np.testing.assert_allclose(found.similarity(found), wide @ wide.T, rtol=1e-6)
    with pytest.raises(ValueError, match="must have vectors of 40 numbers; received 4"):
        found.similarity(SparseVectors.of(np.zeros((1, 4), np.float32)))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "int8", "int4/16"])
def test_policies_keep_most_of_it_and_are_saved(policy, folder, tmp_path):
    exact = SparseEncoder.from_folder(folder).encode_sparse(TEXTS).toarray()
    encoder = SparseEncoder.from_folder(folder, policy)
    found = encoder.encode_sparse(TEXTS)
    error = np.abs(found.toarray() - exact).max() / exact.max()
    assert error < {"mixed_bfloat16": 0.05, "int8": 0.1, "int4/16": 0.7}[policy]
    encoder.save(tmp_path / "saved")
    again = SparseEncoder.from_folder(tmp_path / "saved").encode_sparse(TEXTS)
    assert_same_bits(again.values, found.values)


def test_prompts_are_put_before_texts(folder):
    encoder = SparseEncoder.from_folder(folder)
    assert_same_bits(encoder.encode_sparse("c", prompt="a b ").values, encoder.encode_sparse("a b c").values)
    assert encoder.encode_sparse("c", prompt_name="query").values.size
    assert len(encoder.encode_sparse([])) == 0


def test_bad_arguments_are_refused(folder):
    encoder = SparseEncoder.from_folder(folder)
    for arguments, error, message in (
        ({"texts": ["a"], "max_active_dims": 0}, ValueError, "`max_active_dims`"),
        ({"texts": {"a", "b"}}, TypeError, "`texts`"),
        ({"texts": ["a"], "batch_size": 1.5}, (TypeError, ValueError), "`batch_size`"),
        ({"texts": ["a"], "prompt_name": "other"}, ValueError, "`prompt_name` must be one of"),
    ):
        with pytest.raises(error, match=message):
            encoder.encode_sparse(**arguments)


def test_bad_folders_are_refused(tmp_path):
    splade("bert", tmp_path)
    model = tmp_path / "model"
    pooling, network = model / "1_SpladePooling" / "config.json", model / "sentence_bert_config.json"
    for path, entries, message in (
        (pooling, {"pooling_strategy": "mean"}, "pooling_strategy is 'mean'; expected 'max' or 'sum'"),
        (pooling, {"other": 1}, "setting 'other' is unknown"),
        (network, {"transformer_task": "feature-extraction"}, "transformer_task is 'feature-extraction'"),
        (model / "config.json", {"model_type": "albert"}, "model_type is 'albert', whose logits mp_core lacks"),
        (model / "config_sentence_transformers.json", {"model_type": "CrossEncoder"}, "model_type is 'CrossEncoder'"),
    ):
        before = path.read_text()
        change(path, **entries)
        with pytest.raises(ValueError, match=message):
            SparseEncoder.from_folder(model)
        path.write_text(before)
