"""EmbeddingGemma 2: its text network in a folder of the whole model, and the blocks of its configuration."""

import json
import warnings

import numpy as np
import pytest
import random_models
from oracles import assert_same_bits
from safetensors.numpy import load_file, save_file

from mp_core.models import BertEncoder, TextNetwork

NAME = "embedding_gemma2_text"


def config_of(**entries):
    return random_models.made(NAME).config.to_dict() | entries


def whole(folder):
    """Save a network of the library with its text network only, and return it."""
    import torch

    transformers = random_models.library()
    text = random_models.made(NAME)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.EmbeddingGemma2Config(text_config=text.config.to_dict())
        config._attn_implementation = "eager"
        network = transformers.EmbeddingGemma2Model(config).eval()
    with torch.no_grad():
        network.language_model.load_state_dict(text.state_dict())
    random_models.save(network, folder)
    return network


def test_the_texts_of_the_whole_have_the_vectors_of_transformers(tmp_path):
    network = whole(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    beside = {"vision_tower.patch_embedder.weight": np.ones((3, 2), np.float32)}
    save_file(load_file(path) | beside, path, {"format": "pt"})
    encoder = BertEncoder.from_folder(tmp_path / "model")
    ids, mask = random_models.ragged(1)
    expected = random_models.outputs(network, ids, mask)[mask > 0]
    found = encoder.model(ids, mask=mask)[mask > 0]
    errors = np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert errors.max() < 1e-5
    assert encoder.dim == found.shape[1] == 24
    texts = ["a b c", "d " * 20]
    encoder.save(tmp_path / "again")
    assert_same_bits(BertEncoder.from_folder(tmp_path / "again").encode(texts), encoder.encode(texts))
    assert load_file(tmp_path / "again" / "model.safetensors").keys() >= beside.keys()


def test_a_folder_of_several_kinds_of_inputs_is_read_for_texts(tmp_path):
    whole(tmp_path)
    expected = BertEncoder.from_folder(tmp_path).encode(["a b"])
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    said = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
    path = tmp_path / "sentence_bert_config.json"
    path.write_text(json.dumps(said | {"modality_config": {"text": text, "image": text}}))
    assert_same_bits(BertEncoder.from_folder(tmp_path).encode(["a b"]), expected)
    path.write_text(json.dumps(said | {"modality_config": {"image": text}}))
    with pytest.raises(ValueError, match=r"modality_config is .*; expected"):
        BertEncoder.from_folder(tmp_path)


def test_blocks_of_either_kind_have_heads_of_their_own():
    model = TextNetwork(config_of())
    model.build()
    shapes = [block.attention.key.kernel.shape for block in model.encoder.blocks]
    assert shapes == [(32, 16), (32, 12)]
    assert model.settings.heads == ((2, 8), (1, 12))
    assert model.settings.reaches == (4, None)
    early = {name: value for name, value in config_of().items() if name not in ("per_layer_config", "layer_types")}
    read = TextNetwork(early | {"global_head_dim": 12, "sliding_window_pattern": 2}).settings
    assert read.heads == ((2, 8), (1, 12)) and read.reaches == (4, None)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"per_layer_config": {"2": {}}}, "per_layer_config is .*; expected an object of numbers of blocks"),
        ({"per_layer_config": {"1": {"hidden_size": 8}}}, "per_layer_config is .*'head_dim' or 'num_key_value_heads'"),
        ({"per_layer_config": {"1": {"head_dim": 7}}}, "the head_dim of block 1 is 7; expected a positive, even int"),
        ({"per_layer_config": {"1": {"num_key_value_heads": 3}}}, "of block 1 is 3; expected a divisor of num_att"),
        ({"per_layer_config": {"9" * 5000: {}}}, "per_layer_config is .*; expected an object of numbers of blocks"),
        ({"per_layer_config": [8, 8]}, "per_layer_config is .8, 8.; expected an object"),
        ({"hidden_size_per_layer_input": 0}, "hidden_size_per_layer_input is 0; expected a positive int"),
        ({"embedding_dim": None}, "embedding_dim is None; expected a positive int"),
        ({"model_type": "embedding_gemma2"}, "text_config is None; expected an object"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(entries, message):
    with pytest.raises(ValueError, match=f"`config`: .*{message}"):
        TextNetwork(config_of() | entries)
