"""BGE-M3's three kinds of vectors, compared with transformers and FlagEmbedding's formulas in torch."""

import json
import re

import late_models
import numpy as np
import pytest
import random_models
from oracles import assert_same_bits

from mp_core.models import BertEncoder, M3Encoder, M3Vectors
from mp_core.models.texts import Tokens

torch = pytest.importorskip("torch")

TEXTS = ["a b c a", "d", "e f g h a b c d e zzz", "", "c " * 60]


def write(folder):
    """Write a random XLM-RoBERTa with the heads of BGE-M3; return the network and the heads."""
    late_models.network("xlm-roberta", "Model", folder)
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    listed = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    torch.manual_seed(3)
    heads = torch.nn.Linear(32, 1), torch.nn.Linear(32, 24)
    torch.nn.init.constant_(heads[0].bias, 2.0)  # so that some weights are above 0
    for name, head in zip(("sparse_linear.pt", "colbert_linear.pt"), heads, strict=True):
        torch.save(head.state_dict(), folder / name)
    return random_models.made("xlm-roberta"), *heads


def expected(network, sparse_linear, colbert_linear, rows):
    """Return the dense, sparse and multi-vectors of the tokens of texts, as FlagEmbedding computes them."""
    found = [], [], []
    for row in rows:
        ids = torch.tensor(row[None].astype(np.int64))
        with torch.no_grad():
            hidden = network(input_ids=ids, attention_mask=torch.ones_like(ids))[0]
            weights = torch.relu(sparse_linear(hidden))
            placed = torch.zeros(1, len(row), network.config.vocab_size).scatter(-1, ids.unsqueeze(-1), weights)
            sparse = placed.max(dim=1).values[0]
            sparse[[0, 1, 2, 3]] = 0  # <s>, <pad>, </s> and <unk>
            vectors = torch.nn.functional.normalize(colbert_linear(hidden[:, 1:]), dim=-1)[0]
            dense = torch.nn.functional.normalize(hidden[:, 0], dim=-1)[0]
        for kind, vector in zip(found, (dense, sparse, vectors), strict=True):
            kind.append(vector.numpy())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("m3") / "model"
    write(where)
    return where


def test_one_pass_gives_the_vectors_of_flagembedding(tmp_path):
    parts = write(tmp_path / "model")
    encoder = M3Encoder.from_folder(tmp_path / "model")
    found = encoder.encode_all(TEXTS, batch_size=2)
    dense, sparse, multi = expected(*parts, encoder.tokenize(TEXTS).rows)
    np.testing.assert_allclose(found.dense, dense, atol=1e-5)
    np.testing.assert_allclose(found.sparse.toarray(), sparse, atol=1e-5)
    assert np.count_nonzero(sparse) and len(found) == len(TEXTS) and encoder.multi_dim == 24
    for vectors, others in zip(found.multi, multi, strict=True):
        np.testing.assert_allclose(vectors, others, atol=1e-5)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "int8"])
def test_no_bit_depends_on_the_batch_or_on_what_else_is_computed(policy, folder):
    encoder = M3Encoder.from_folder(folder, policy)
    found = encoder.encode_all(TEXTS)
    assert_same_bits(found.dense, encoder.encode(TEXTS))
    assert_same_bits(found.dense, BertEncoder.from_folder(folder, policy).encode(TEXTS))
    for place, text in enumerate(TEXTS):
        alone = encoder.encode_all(text)
        assert_same_bits(alone.multi[0], found.multi[place])
        for own, other in zip(alone.sparse[0], found.sparse[place], strict=True):
            assert_same_bits(own, other)


def test_a_saved_encoder_has_the_same_bits(folder, tmp_path):
    encoder = M3Encoder.from_folder(folder, "int8")
    encoder.save(tmp_path / "saved")
    again = M3Encoder.from_folder(tmp_path / "saved").encode_all(TEXTS)
    found = encoder.encode_all(TEXTS)
    assert_same_bits(again.dense, found.dense)
    assert_same_bits(again.sparse.values, found.sparse.values)
    for vectors, others in zip(again.multi, found.multi, strict=True):
        assert_same_bits(vectors, others)


def test_similarity_is_the_weighted_mean_of_three(folder):
    encoder = M3Encoder.from_folder(folder)
    queries, documents = encoder.encode_all(TEXTS[:3]), encoder.encode_all(TEXTS)
    dense = queries.dense @ documents.dense.T
    sparse = queries.sparse.toarray() @ documents.sparse.toarray().T
    multi = [[(a @ b.T).max(axis=1).mean() for b in documents.multi] for a in queries.multi]
    for weights in ((1, 1, 1), (0.4, 0.2, 0.4), (0, 0, 2)):
        wanted = np.tensordot(np.array(weights) / sum(weights), np.array([dense, sparse, multi]), 1)
        np.testing.assert_allclose(queries.similarity(documents, weights), wanted, atol=1e-5)
    for weights in ((1, 1), (0, 0, 0), (1, -1, 1), (1, float("nan"), 1), "abc"):
        with pytest.raises(ValueError, match="`weights` must be three numbers of at least 0"):
            queries.similarity(documents, weights)
    other = M3Vectors(np.ones((1, 3), np.float32), documents.sparse, documents.multi)
    with pytest.raises(ValueError, match="`other` must have dense vectors of 32 numbers; received 3"):
        queries.similarity(other)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"weight": (1, 31), "bias": (1,)}, "weight has shape .1, 31.; expected .1, 32."),
        ({"weight": (1, 32)}, "bias is missing"),
        ({"weight": (1, 32), "bias": (1,), "other": (1,)}, "other is left over"),
        ({}, "weight is missing"),
    ],
)
@pytest.mark.parametrize("name", ["sparse_linear.pt", "colbert_linear.pt"])
def test_heads_that_do_not_fit_are_refused_by_name(name, tensors, message, folder, tmp_path):
    write(tmp_path / "model")
    torch.save({name: torch.ones(shape) for name, shape in tensors.items()}, tmp_path / "model" / name)
    with pytest.raises(ValueError, match=f"{re.escape(name)}: tensor {message}"):
        M3Encoder.from_folder(tmp_path / "model")


def test_stretched_tensors_are_refused_before_memory_is_taken(tmp_path):
    write(tmp_path / "model")
    heads = {"weight": torch.ones(1).expand(2**40, 32), "bias": torch.ones(1).expand(2**40)}
    torch.save(heads, tmp_path / "model" / "colbert_linear.pt")
    with pytest.raises(
        ValueError, match=r"colbert_linear.pt has \d+ bytes, but its tensors, which share storages, have \d+ together"
    ):
        M3Encoder.from_folder(tmp_path / "model")


def test_other_folders_are_refused(folder, tmp_path):
    write(tmp_path / "model")
    late_models.change(tmp_path / "model" / "config.json", model_type="roberta")
    with pytest.raises(ValueError, match="model_type is 'roberta'; expected 'xlm-roberta'"):
        M3Encoder.from_folder(tmp_path / "model")
    write(tmp_path / "plain")
    (tmp_path / "plain" / "sparse_linear.pt").unlink()
    with pytest.raises(OSError, match=r"sparse_linear\.pt"):
        M3Encoder.from_folder(tmp_path / "plain")


def test_tokens_are_refused_in_batches_of_none(folder):
    encoder = M3Encoder.from_folder(folder)
    with pytest.raises(ValueError, match="`batch_size` must be"):
        encoder.encode_all_tokens(encoder.tokenize(["a"]), 0)


def test_one_kind_alone_has_the_bits_of_all_three(folder):
    encoder, done = M3Encoder.from_folder(folder), []
    tokens = encoder.tokenize(["a", "b c d", "b", "c c"])
    every = encoder.encode_all_tokens(tokens)
    sparse = encoder.encode_sparse_tokens(tokens, 3, on_batch=done.append)
    multi = encoder.encode_multi_tokens(tokens, 1, on_batch=done.append)
    for own, others in ((sparse, every.sparse), ([(x,) for x in multi], [(x,) for x in every.multi])):
        for x, y in zip(own, others, strict=True):
            assert [part.tobytes() for part in x] == [part.tobytes() for part in y]
    assert done == [3, 1, 1, 1, 1, 1]


def test_a_text_of_one_token_has_no_vector_of_a_token(folder):
    found = M3Encoder.from_folder(folder).encode_all_tokens(Tokens([np.array([5], np.int32), np.array([0], np.int32)]))
    assert [vectors.shape for vectors in found.multi] == [(0, 24), (0, 24)] and np.isfinite(found.dense).all()
    assert len(found.sparse[1][0]) == 0  # of a special token


@pytest.mark.parametrize("head", ["sparse_linear.pt", "colbert_linear.pt"])
def test_a_head_whose_products_are_not_finite_is_told_though_dense_vectors_are(tmp_path, head):
    """Weights that are NaN are not above 0, so that sparse vectors alone would not show them."""
    write(tmp_path / "model")
    state = torch.load(tmp_path / "model" / head)
    state["weight"] = state["weight"] * np.nan
    torch.save(state, tmp_path / "model" / head)
    encoder = M3Encoder.from_folder(tmp_path / "model")
    with pytest.warns(RuntimeWarning, match="input 4 is not finite: a module after the network computed it") as told:
        found = [encoder.encode_all(TEXTS) for _ in range(2)]
    assert len(told) == 1 and np.isfinite(found[0].dense).all()
