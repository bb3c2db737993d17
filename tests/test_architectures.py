"""Architectures: the outputs of the transformers library for small random networks that it saved."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import random_models
from safetensors.numpy import load_file, save_file

from mp_core.models import BertEncoder, TextNetwork
from mp_core.models.architectures import ARCHITECTURES, architecture_of
from mp_core.models.gated_blocks import GatedSettings

# Rounding errors of float32 sums of at most 48 products, in two blocks: relative to the length of a vector.
FLOAT32 = 1e-5
# What transformers does not have, or as a part: test_static.py, test_custom_code.py, test_tasks.py, test_gemma.py.
ELSEWHERE = {
    "model2vec", "new", "bert with alibi", "xlm-roberta with rotary", "nomic_bert with experts", "llama_bidirec",
    "embedding_gemma2",
}  # fmt: skip


def assert_near(received, expected):
    """Assert that vectors, along the last axis, are those expected but for rounding."""
    errors = np.linalg.norm(received - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert errors.max() < FLOAT32


@pytest.fixture(scope="module", params=random_models.ARCHITECTURES)
def case(request, tmp_path_factory):
    """Return a network of the library and the folder that it was saved to."""
    network = random_models.made(request.param)
    return network, random_models.save(network, tmp_path_factory.mktemp("saved"))


def padding_of(network):
    return network.config.pad_token_id


def test_every_architecture_has_a_case():
    kinds = {random_models.made(name).config.model_type for name in random_models.ARCHITECTURES}
    assert kinds == set(ARCHITECTURES) - ELSEWHERE


def test_the_page_has_a_row_for_every_architecture(monkeypatch):
    root = Path(__file__).parents[1]
    monkeypatch.syspath_prepend(root / "docs")
    assert "\n".join(importlib.import_module("models_table").rows()) in (root / "docs/models.md").read_text()


def test_vectors_of_ragged_texts_are_those_of_transformers(case):
    network, folder = case
    model = BertEncoder.from_folder(folder).model
    ids, mask = random_models.ragged(padding_of(network))
    expected = random_models.outputs(network, ids, mask)
    received = model(ids, mask=mask)
    assert np.abs(expected).max() > 1
    assert_near(received[mask > 0], expected[mask > 0])


def test_embeddings_of_texts_are_those_of_their_tokens(case):
    network, folder = case
    encoder = BertEncoder.from_folder(folder)
    texts = ["a b c", "", "h g f e d c b a a b", "d"]
    received = encoder.encode(texts)
    for text, vector in zip(texts, received, strict=True):
        ids = np.array([[0, *(random_models.WORDS.index(word) for word in text.split()), 2]])
        expected = random_models.outputs(network, ids, np.ones_like(ids))[0].mean(axis=0)
        assert_near(vector, expected)


def test_texts_are_cut_where_positions_end(case):
    network, folder = case
    encoder = BertEncoder.from_folder(folder)
    positions = network.config.max_position_embeddings
    counted = network.config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet")
    longest = positions - (padding_of(network) + 1 if counted else 0)
    assert encoder.max_length == longest
    ids, mask = random_models.ragged(padding_of(network), (longest,))
    expected = random_models.outputs(network, ids, mask)
    assert_near(encoder.model(ids), expected)
    with pytest.raises(ValueError, match=rf"`ids` must have shape \(n, 1 to {longest}\)"):
        encoder.model(np.full((1, longest + 1), 7))


def test_a_padding_token_inside_a_text_is_counted_as_transformers_does(case):
    network, folder = case
    ids = np.array([[7, 8, padding_of(network), 9, 10, padding_of(network), 11]])
    expected = random_models.outputs(network, ids, np.ones_like(ids))
    received = BertEncoder.from_folder(folder).model(ids)
    assert_near(received, expected)


# Length of all differences over that of all outputs. bfloat16 rounds every activation by up to 1 in 512; int8 also rows
# of activations and of weights, each to 127 steps below its largest element: with random weights 1 in 100 or so, twice.
# A norm after each sum keeps errors from growing, so the bounds are about twice the worst of these networks. Gates
# multiply two rounded numbers, and double that.
BOUNDS = {
    "mixed_bfloat16": 0.02,
    "int8/weight_only_from_mixed_bfloat16": 0.05,
    "int8_from_mixed_bfloat16": 0.08,
}


@pytest.mark.parametrize("policy", BOUNDS)
def test_other_policies_stay_close_to_float32_and_padding_changes_no_bit(case, policy):
    network, folder = case
    ids, mask = random_models.ragged(padding_of(network))
    expected = random_models.outputs(network, ids, mask)[mask > 0]
    model = BertEncoder.from_folder(folder, policy).model
    received = model(ids, mask=mask)[mask > 0].astype(np.float32)
    bound = BOUNDS[policy] * (2 if isinstance(model.settings, GatedSettings) else 1)
    assert np.linalg.norm(received - expected) < bound * np.linalg.norm(expected)
    for row, keep in zip(ids, mask, strict=True):
        alone = model(row[np.newaxis, keep > 0])[0]
        np.testing.assert_array_equal(alone, model(ids, mask=mask)[(ids == row).all(axis=1)][0][keep > 0])


def test_relative_positions_share_biases_as_in_transformers():
    import torch

    random_models.library()
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    from mp_core.models.blocks import PositionBias

    settings = TextNetwork(random_models.made("mpnet").config.to_dict()).settings
    layer = PositionBias(settings)
    layer.build((None, None))
    layer.set_weights([np.arange(32)[:, np.newaxis] + np.zeros(4)])
    places = torch.arange(600)
    expected = MPNetEncoder.relative_position_bucket(places[None] - places[:, None]).numpy()
    np.testing.assert_array_equal(layer(length=600)[0, 0], expected)


def renamed(folder, change):
    path = folder / "model.safetensors"
    save_file({change(name): tensor for name, tensor in load_file(path).items()}, path, {"format": "pt"})


@pytest.mark.parametrize("name", random_models.ARCHITECTURES)
def test_a_network_that_is_a_part_of_another_model_is_found(name, tmp_path):
    network = random_models.made(name)
    folder = random_models.save(network, tmp_path)
    expected = BertEncoder.from_folder(folder).encode(["a b c"])
    prefix = ARCHITECTURES[network.config.model_type].prefix
    renamed(folder, lambda name: prefix + name)
    received = BertEncoder.from_folder(folder)
    np.testing.assert_array_equal(received.encode(["a b c"]), expected)
    assert all(start.startswith(prefix) for start in received.tensor_names.values())


def test_names_of_old_files_are_understood_and_their_buffers_ignored(tmp_path):
    network = random_models.made("bert")
    folder = random_models.save(network, tmp_path)
    expected = BertEncoder.from_folder(folder).encode(["a b c"])
    old = {"weight": "gamma", "bias": "beta"}

    def change(name):
        start, _, part = name.rpartition(".")
        return f"{start}.{old[part]}" if start.endswith("LayerNorm") else name

    renamed(folder, change)
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"embeddings.position_ids": np.arange(40)[np.newaxis]}, path)
    np.testing.assert_array_equal(BertEncoder.from_folder(folder).encode(["a b c"]), expected)


@pytest.mark.parametrize(
    ("name", "entries", "message"),
    [
        ("bert", {"model_type": "gpt2"}, "model_type is 'gpt2'; expected 'bert' or 'ernie' or"),
        ("bert", {"model_type": ["bert"]}, r"model_type is \['bert'\]; expected 'bert' or"),
        ("roberta", {"position_embedding_type": "relative_key"}, "expected 'absolute'"),
        ("roberta", {"is_decoder": True}, "is_decoder is True; expected False"),
        ("roberta", {"is_decoder": 0}, "is_decoder is 0; expected False"),
        ("roberta", {"pad_token_id": -1}, "pad_token_id is -1; expected an int from 0 to"),
        ("roberta", {"pad_token_id": 39}, "max_position_embeddings is 40; expected an int from 42 to"),
        ("distilbert", {"activation": "mish"}, "activation is 'mish'; expected 'gelu' or"),
        ("distilbert", {"n_heads": 5}, "dim is 32; expected a multiple of n_heads, 5"),
        ("distilbert", {"sinusoidal_pos_embds": "yes"}, "sinusoidal_pos_embds is 'yes'; expected False or True"),
        ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets is 16; expected 32"),
        ("mpnet", {"hidden_dim": 3, "intermediate_size": None}, "intermediate_size is None; expected a positive int"),
    ],
)
def test_what_is_not_computed_is_refused_by_entry_and_file(tmp_path, name, entries, message):
    folder = random_models.save(random_models.made(name), tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    with pytest.raises(ValueError, match=rf"config\.json: .*{message}"):
        BertEncoder.from_folder(folder)


@pytest.mark.parametrize("kind", sorted(set(ARCHITECTURES) - {*ELSEWHERE, "deberta-v2"}))
def test_what_a_configuration_does_not_say_is_what_transformers_takes(kind):
    said = random_models.library().AutoConfig.for_model(kind).to_dict()
    assert ARCHITECTURES[kind].read({"model_type": kind}, "") == ARCHITECTURES[kind].read(said, "")


@pytest.mark.parametrize("kind", sorted(set(ARCHITECTURES) - {"model2vec", "deberta-v2"}))
def test_more_blocks_than_any_network_has_are_refused_before_they_are_listed(kind):
    network = ARCHITECTURES[kind]
    entry = network.entry("num_hidden_layers")
    with pytest.raises(ValueError, match=f"{entry} is 2147483647; expected an int from 1 to 4096"):
        network.read({**network.defaults, entry: 2**31 - 1}, "config.json")


def test_every_other_network_of_transformers_is_refused_by_name():
    auto = importlib.import_module(f"{random_models.library().__name__}.models.auto.modeling_auto")
    others = auto.MODEL_MAPPING_NAMES.keys() - ARCHITECTURES.keys()
    assert len(others) > 100
    for name in others:
        with pytest.raises(ValueError, match=rf"config\.json: model_type is '{name}'; expected 'bert' or 'ernie'"):
            architecture_of({"model_type": name}, "config.json")


def test_the_names_of_bert_are_taken_of_distilbert_too_as_in_transformers():
    said = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8}
    expected = random_models.library().AutoConfig.for_model("distilbert", **said)
    found = ARCHITECTURES["distilbert"].read(said, "")
    assert (found.hidden_size, found.num_hidden_layers, found.num_attention_heads) == (
        expected.dim,
        expected.n_layers,
        expected.n_heads,
    )
    with pytest.raises(ValueError, match="num_attention_heads is 0; expected a positive int"):
        ARCHITECTURES["distilbert"].read({"num_attention_heads": 0}, "")


def test_a_block_that_is_left_over_is_named(tmp_path):
    folder = random_models.save(random_models.made("distilbert"), tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"n_layers": 1}))
    with pytest.raises(ValueError, match=r"tensor transformer\.layer\.1\.\S+ is left over; expected n_layers=1"):
        BertEncoder.from_folder(folder)
