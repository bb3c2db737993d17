"""Multi-vector encoders, compared with sentence-transformers, with small random networks."""

import numpy as np
import pytest
from late_models import change, colbert
from oracles import assert_same_bits

from mp_core.models import MultiVectorEncoder, max_similarity

pytest.importorskip("sentence_transformers")

TEXTS = ["a b c", "d", "e f g h a b c d e", "b b b h", "c " * 30]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("multi")
    colbert("bert", where)
    return where / "model"


def assert_close(found, expected):
    assert len(found) == len(expected)
    for vectors, others in zip(found, expected, strict=True):
        assert vectors.shape == others.shape and vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, others, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "modernbert"])
def test_vectors_are_those_of_sentence_transformers(name, tmp_path):
    library = colbert(name, tmp_path, {"skiplist_words": ["b", "d"]})
    encoder = MultiVectorEncoder.from_folder(tmp_path / "model")
    assert_close(encoder.encode_multi(TEXTS, task="query"), library.encode_query(TEXTS, convert_to_numpy=True))
    assert_close(encoder.encode_multi(TEXTS), library.encode_document(TEXTS, convert_to_numpy=True))
    assert encoder.dim == 8


@pytest.mark.parametrize("attend", [False, True])
@pytest.mark.parametrize("strategy", ["fixed", "min"])
def test_queries_are_filled_up(attend, strategy, tmp_path):
    expansion = {"strategy": strategy, "attend": attend, "length": 12, "token": None}
    library = colbert("bert", tmp_path, query_expansion=expansion, document_length=10)
    encoder = MultiVectorEncoder.from_folder(tmp_path / "model")
    expected = library.encode_query(TEXTS, convert_to_numpy=True)
    assert_close(encoder.encode_multi(TEXTS, task="query"), expected)
    assert len(expected[0]) == 12
    assert_close(encoder.encode_multi(TEXTS), library.encode_document(TEXTS, convert_to_numpy=True))


def test_tokens_of_a_list_do_not_count(tmp_path):
    mask = {"skiplist_words": ["b"], "skiplist_tasks": ["query", "document"], "keep_only_token_ids": [4, 6]}
    library = colbert("bert", tmp_path, mask)
    encoder = MultiVectorEncoder.from_folder(tmp_path / "model")
    assert_close(encoder.encode_multi(TEXTS), library.encode_document(TEXTS, convert_to_numpy=True))
    assert_close(encoder.encode_multi(TEXTS, task="query"), library.encode_query(TEXTS, convert_to_numpy=True))


def test_similarity_is_that_of_sentence_transformers(tmp_path):
    library = colbert("bert", tmp_path)
    encoder = MultiVectorEncoder.from_folder(tmp_path / "model")
    queries, documents = encoder.encode_multi(TEXTS[:3], task="query"), encoder.encode_multi(TEXTS)
    expected = library.similarity(library.encode_query(TEXTS[:3]), library.encode_document(TEXTS)).numpy()
    np.testing.assert_allclose(encoder.similarity(queries, documents), expected, rtol=1e-5, atol=1e-5)
    for dtype, error in (("bfloat16", 0.02), ("int8", 0.02)):
        found = max_similarity(queries, documents, dtype=dtype)
        assert np.abs(found - expected).max() < error * np.abs(expected).max()


def test_similarity_of_nothing():
    one, none = np.eye(3, dtype=np.float32), np.empty((0, 3), np.float32)
    np.testing.assert_array_equal(max_similarity([one, none], [one, none]), [[3, -np.inf], [0, -np.inf]])
    assert max_similarity([], [one]).shape == (0, 1) and max_similarity([one], []).shape == (1, 0)


def test_no_result_depends_on_the_batch(folder):
    encoder = MultiVectorEncoder.from_folder(folder, "mixed_bfloat16")
    expected = encoder.encode_multi(TEXTS)
    for text, vectors in zip(TEXTS, expected, strict=True):
        assert_same_bits(encoder.encode_multi(text)[0], vectors)
    for vectors, others in zip(encoder.encode_multi(TEXTS, batch_size=2), expected, strict=True):
        assert_same_bits(vectors, others)


def test_a_saved_encoder_has_the_same_bits(folder, tmp_path):
    encoder = MultiVectorEncoder.from_folder(folder, "int8")
    encoder.save(tmp_path / "saved")
    again = MultiVectorEncoder.from_folder(tmp_path / "saved")
    for vectors, others in zip(again.encode_multi(TEXTS), encoder.encode_multi(TEXTS), strict=True):
        assert_same_bits(vectors, others)


def test_bad_arguments_are_refused(folder):
    encoder = MultiVectorEncoder.from_folder(folder)
    with pytest.raises(ValueError, match="`task` must be 'query' or 'document'; received 'other'"):
        encoder.encode_multi("a", task="other")
    with pytest.raises(ValueError, match="`dtype` must be"):
        max_similarity([], [], dtype="int4")
    with pytest.raises(ValueError, match=r"`documents\[0\]` must have shape \(tokens, dim\); received \(3,\)"):
        max_similarity([], [np.ones(3, np.float32)])
    with pytest.raises(ValueError, match=r"must have vectors of one length; received \[3, 4\]"):
        max_similarity([np.ones((1, 3), np.float32)], [np.ones((1, 4), np.float32)])


def test_bad_folders_are_refused(tmp_path):
    colbert("bert", tmp_path, query_expansion={"strategy": "fixed", "length": 12})
    model = tmp_path / "model"
    mask, network = model / "2_MultiVectorMask" / "config.json", model / "sentence_bert_config.json"
    for path, entries, message in (
        (mask, {"skiplist_words": "a"}, "skiplist_words is 'a'; expected a list of str"),
        (mask, {"skiplist_tasks": ["other"]}, "skiplist_tasks is"),
        (network, {"query_expansion": {"strategy": "most", "length": 12}}, "strategy is 'most'"),
        (network, {"query_expansion": {"length": 9}}, "query_expansion.strategy is None; expected 'fixed' or 'min'"),
        (network, {"query_expansion": {"strategy": "fixed", "length": 99}}, "query_expansion.length is 99"),
        (network, {"query_expansion": {"strategy": "min", "length": 9, "token": "zzz"}}, "the token that pads"),
        (model / "1_Dense" / "config.json", {"module_input_name": "sentence_embedding"}, "module_input_name is"),
    ):
        before = path.read_text()
        change(path, **entries)
        with pytest.raises(ValueError, match=message):
            MultiVectorEncoder.from_folder(model)
        path.write_text(before)
