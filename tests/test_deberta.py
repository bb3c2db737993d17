"""DeBERTa-v3: distances as in transformers, long texts, saving and opening again, and errors."""

import numpy as np
import pytest
import random_models

import mp_core as mp
from mp_core.models import BertEncoder, Reranker, TextNetwork
from mp_core.models.architectures.deberta import _places

CONFIG = {
    "model_type": "deberta-v2",
    "relative_attention": True,
    "share_att_key": True,
    "position_biased_input": False,
    "norm_rel_ebd": "layer_norm",
    "pos_att_type": "p2c|c2p",
}


@pytest.mark.parametrize(("buckets", "farthest"), [(256, 512), (16, 40), (4, 30), (-1, 40)])
@pytest.mark.parametrize("length", [1, 40, 600])
def test_distances_are_those_of_transformers(buckets, farthest, length):
    import torch

    random_models.library()
    from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

    span, rows = farthest if buckets == -1 else buckets, torch.zeros(1, length, 1)
    expected = build_relative_position(rows, rows, buckets, farthest)[0] + span
    received = _places(span, 0 if buckets == -1 else farthest, length)
    np.testing.assert_array_equal(received, expected.clamp(0, 2 * span - 1).numpy())


@pytest.mark.parametrize("policy", ["float32", "int8_from_mixed_bfloat16"])
def test_a_folder_that_is_saved_gives_the_same_embeddings_whatever_the_batch(tmp_path, policy):
    texts = ["a b c", "h g f e d c b a a b", "d"]
    (tmp_path / "first").mkdir()
    encoder = BertEncoder.from_folder(random_models.save(random_models.made("deberta-v3"), tmp_path / "first"), policy)
    expected = encoder.encode(texts)
    for batch_size in (1, 2):
        np.testing.assert_array_equal(encoder.encode(texts, batch_size=batch_size), expected)
    encoder.save(tmp_path / "second")
    np.testing.assert_array_equal(BertEncoder.from_folder(tmp_path / "second").encode(texts), expected)


def test_long_texts_have_the_vectors_of_transformers(tmp_path):
    network = random_models.made("deberta-v3", max_position_embeddings=300)
    model = BertEncoder.from_folder(random_models.save(network, tmp_path)).model
    ids, mask = random_models.ragged(1, (1, 130, 300))
    expected = random_models.outputs(network, ids, mask)
    errors = np.linalg.norm(model(ids, mask=mask) - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert errors[mask > 0].max() < 1e-5


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"relative_attention": False}, "relative_attention is False; expected True, as in DeBERTa-v3"),
        ({"share_att_key": None}, "share_att_key is None; expected True"),
        ({"position_biased_input": True}, "position_biased_input is True; expected False"),
        ({"norm_rel_ebd": "none"}, "norm_rel_ebd is 'none'; expected 'layer_norm'"),
        ({"pos_att_type": ["c2p"]}, "pos_att_type is .'c2p'.; expected"),
        ({"conv_kernel_size": 3}, "conv_kernel_size is 3; expected 0"),
        ({"type_vocab_size": 2}, "type_vocab_size is 2; expected 0"),
        ({"position_buckets": 0}, "position_buckets is 0; expected -1 or a positive int"),
        ({"position_buckets": 2}, "position_buckets is 2; expected -1 or an int from 4"),
        ({"position_buckets": 4000}, "position_buckets is 4000; expected -1 or an int from 4 to 1021"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(entries, message):
    with pytest.raises(ValueError, match=f"`config`: {message}"):
        TextNetwork(CONFIG | entries)


def test_the_head_of_its_rerankers_has_the_activation_of_its_pooler(tmp_path):
    import test_reranker

    network = test_reranker.written(tmp_path, "deberta-v3", pooler_hidden_act="tanh")
    received = Reranker.from_folder(tmp_path).predict(test_reranker.PAIRS, activation="linear")
    expected = test_reranker.logits(network, tmp_path, test_reranker.PAIRS)[:, 0]
    np.testing.assert_allclose(received, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_plan_of_padded_texts_has_the_bits_of_the_call(tmp_path, policy):
    model = BertEncoder.from_folder(random_models.save(random_models.made("deberta-v3"), tmp_path), policy).model
    ids, mask = random_models.ragged(1, (3, 9))
    ids, mask = ids.astype(np.int32), mask > 0
    plan = mp.compile(lambda ids, mask: model(ids, mask=mask), ids, mask)
    np.testing.assert_array_equal(plan(ids, mask), model(ids, mask=mask))


PAIRS = [("a b", "c d"), ("e", "f g h e f g h a b c d e f g h a b"), ("b c d", "a"), ("h g", "e f")]


def test_groups_of_a_batch_have_the_loss_of_the_whole_whatever_their_lengths(tmp_path, monkeypatch):
    folder = random_models.save(random_models.made("deberta-v3"), tmp_path)
    histories, weights = [], []
    for group in (4, 1, 3):
        monkeypatch.setattr("mp_core.models.tuning.batches.GROUP", group)
        encoder = BertEncoder.from_folder(folder)
        how = {"optimizer": mp.optimizers.SGD(0.1), "batch_size": 4, "dropout": 0, "seed": 1}
        histories.append(encoder.fit(PAIRS, verbose=0, **how).history["loss"])
        weights.append(encoder.model.get_weights())
    assert histories[0] == histories[1] == histories[2]
    for other in weights[1:]:
        for one, two in zip(weights[0], other, strict=True):
            np.testing.assert_allclose(one, two, rtol=0, atol=2e-6)


def test_its_rerankers_are_trained_with_dropout(tmp_path):
    import test_reranker

    test_reranker.written(tmp_path, "deberta-v3")
    rows = [("a b", "c d", 1.0), ("e", "f g h a b", 0.0), ("b c d", "a", 1.0), ("h g", "e f", 0.0)]
    found = Reranker.from_folder(tmp_path).fit(rows, epochs=10, batch_size=4, learning_rate=2e-3, seed=0, verbose=0)
    assert found.history["loss"][-1] < 0.8 * found.history["loss"][0]
