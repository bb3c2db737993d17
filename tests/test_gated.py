"""Networks with rotary positions and gates: all settings, long texts, one token, saving and opening again."""

import json
import tracemalloc

import numpy as np
import pytest
import random_models
from oracles import assert_same_bits

from mp_core.models import BertEncoder, TextNetwork
from mp_core.models.architectures import ARCHITECTURES
from mp_core.models.architectures.gated import GatedArchitecture
from mp_core.models.heads import Classifier
from mp_core.models.rope import Rope, angles
from mp_core.models.texts import as_ragged

NAMES = [name for name in random_models.ARCHITECTURES if isinstance(ARCHITECTURES.get(name), GatedArchitecture)]

SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn with all": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.25,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "yarn with scales of the scores": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 0.7,
        "mscale_all_dim": 1.5,
    },
}


def near(received, expected):
    """Return the largest difference of two rows of vectors, relative to the length of the vector."""
    return (np.linalg.norm(received - expected, axis=-1) / np.linalg.norm(expected, axis=-1)).max()


@pytest.mark.parametrize("name", SCALINGS)
def test_vectors_turn_as_transformers_turns_them(tmp_path, name):
    network = random_models.made("qwen3", rope_parameters=SCALINGS[name] | {"rope_theta": 5000.0})
    ids, mask = random_models.ragged(1)
    expected = random_models.outputs(network, ids, mask)
    received = BertEncoder.from_folder(random_models.save(network, tmp_path)).model(ids, mask=mask)
    assert near(received[mask > 0], expected[mask > 0]) < 1e-5


@pytest.mark.parametrize("name", SCALINGS)
def test_vectors_of_modernbert_turn_as_transformers_turns_them_in_blocks_of_each_kind(tmp_path, name):
    both = {"full_attention": SCALINGS[name] | {"rope_theta": 5000.0}, "sliding_attention": {"rope_theta": 200.0}}
    both["sliding_attention"] |= {"rope_type": "linear", "factor": 2.0}
    network = random_models.made("modernbert", rope_parameters=both)
    ids, mask = random_models.ragged(1)
    expected = random_models.outputs(network, ids, mask)
    received = BertEncoder.from_folder(random_models.save(network, tmp_path)).model(ids, mask=mask)
    assert near(received[mask > 0], expected[mask > 0]) < 1e-5


def long_rope(size, few):
    """Return what a network says of LongRoPE, for heads of this length and texts of so many tokens."""
    rng = np.random.default_rng(size)
    lists = {name: rng.uniform(1, 4, size // 2).tolist() for name in ("short_factor", "long_factor")}
    return {"rope_type": "longrope", "original_max_position_embeddings": few, "rope_theta": 500.0, **lists}


@pytest.mark.parametrize("name", ["qwen3", "phi3", "phi3 that sees near tokens"])
@pytest.mark.parametrize("settings", [{}, {"factor": 3.0}, {"attention_factor": 1.5}], ids=str)
def test_the_length_of_a_text_decides_how_its_vectors_turn(tmp_path, name, settings):
    said = long_rope(16 if name == "qwen3" else 8, 12) | settings
    own = {} if name == "qwen3" else {"original_max_position_embeddings": 12}
    network = random_models.made(name, rope_parameters=said, **own)
    encoder = BertEncoder.from_folder(random_models.save(network, tmp_path))
    lengths = (1, 5, 12, 13, 20, 40)
    ids, mask = random_models.ragged(1, lengths)
    alone = [ids[i : i + 1, :length] for i, length in enumerate(lengths)]
    padded, found = encoder.model(ids, mask=mask), encoder.model.ragged(*as_ragged([row[0] for row in alone]))
    for i, (row, start) in enumerate(zip(alone, np.cumsum([0, *lengths]), strict=False)):
        expected = random_models.outputs(network, row, np.ones_like(row))[0]
        of_one = encoder.model(row)[0]
        assert near(of_one, expected) < 1e-5
        assert_same_bits(found[start : start + lengths[i]], of_one)
        assert_same_bits(padded[i, : lengths[i]], of_one)
    left = encoder.model(ids[:2, ::-1], mask=mask[:2, ::-1])[1, -5:]  # padded before the text
    assert near(left, encoder.model(ids[1:2, 4::-1])[0]) < 1e-5


def test_texts_of_either_length_share_a_plan(tmp_path):
    network = random_models.made("phi3", rope_parameters=long_rope(8, 12), original_max_position_embeddings=12)
    encoder = BertEncoder.from_folder(random_models.save(network, tmp_path))
    texts = ["a", "a b c", "b c d e f " * 4, "h " * 9]
    together = encoder.encode(texts)
    assert encoder._plans._kept
    for text, vector in zip(texts, together, strict=True):
        assert_same_bits(encoder.encode([text])[0], vector)


def test_older_files_of_phi3_say_longrope_in_other_words():
    said, config = long_rope(8, 12), random_models.made("phi3").config.to_dict()
    new = TextNetwork(config | {"rope_parameters": said, "original_max_position_embeddings": 12}).settings
    scaling = {name: said[name] for name in ("short_factor", "long_factor")} | {"type": "su"}
    old = config | {"rope_parameters": None, "rope_theta": 500.0, "rope_scaling": scaling}
    assert TextNetwork(old | {"original_max_position_embeddings": 12}).settings == new
    assert TextNetwork(old | {"original_max_position_embeddings": 40}).settings.ropes[0].long is None
    qwen = random_models.made("qwen3", rope_parameters=long_rope(16, 12)).config.to_dict()
    del qwen["rope_parameters"]["original_max_position_embeddings"]
    assert TextNetwork(qwen).settings.ropes[0].few == 0  # then it is the most positions


def test_an_older_file_says_how_vectors_turn_in_other_words():
    config = random_models.made("qwen3").config.to_dict()
    new = TextNetwork(config | {"rope_parameters": SCALINGS["yarn"] | {"rope_theta": 300.0}}).settings
    scaling = {name: value for name, value in SCALINGS["yarn"].items() if name != "rope_type"} | {"type": "yarn"}
    old = TextNetwork(config | {"rope_parameters": None, "rope_theta": 300.0, "rope_scaling": scaling}).settings
    assert old == new
    assert new.ropes[0].theta == 300


def test_a_reranker_of_a_network_whose_scores_are_not_known_is_refused():
    with pytest.raises(
        ValueError, match="`config`: model_type is 'nomic_bert', whose scores mp_core lacks; expected 'bert'"
    ):
        Classifier(random_models.made("nomic_bert").config.to_dict())


def test_a_folder_of_nomic_from_before_transformers_had_it_is_read(tmp_path):
    folder = random_models.save(random_models.made("nomic_bert"), tmp_path)
    expected = BertEncoder.from_folder(folder).encode(["a b c", "d"])
    path = folder / "config.json"
    config = json.loads(path.read_text())
    names = {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "layer_norm_eps": "layer_norm_epsilon",
    }
    old = {names[entry]: config[entry] for entry in names}
    old |= {"model_type": "nomic_bert", "activation_function": "swiglu", "rotary_emb_base": 1000, "prenorm": False}
    old |= {"vocab_size": 40, "rotary_emb_fraction": 1.0, "qkv_proj_bias": False, "rotary_scaling_factor": None}
    path.write_text(json.dumps(old))
    np.testing.assert_array_equal(BertEncoder.from_folder(folder).encode(["a b c", "d"]), expected)
    for entry, value in (("prenorm", True), ("activation_function", "gelu"), ("qkv_proj_bias", True)):
        path.write_text(json.dumps(old | {entry: value}))
        with pytest.raises(ValueError, match=f"{entry} is {value!r}; expected"):
            BertEncoder.from_folder(folder)


def test_angles_are_made_once():
    assert angles(Rope(100.0), 8, 5) is angles(Rope(100.0), 8, 5)


@pytest.mark.parametrize("name", NAMES)
def test_long_texts_have_the_vectors_of_transformers(tmp_path, name):
    network = random_models.made(name, max_position_embeddings=400)
    encoder = BertEncoder.from_folder(random_models.save(network, tmp_path))
    ids, mask = random_models.ragged(1, (1, 130, 400))
    rows = [row[keep > 0] for row, keep in zip(ids, mask, strict=True)]
    expected = random_models.outputs(network, ids, mask)
    assert near(encoder.model(ids, mask=mask)[mask > 0], expected[mask > 0]) < 1e-5
    alone = np.array([vectors[keep > 0].mean(axis=0) for vectors, keep in zip(expected, mask, strict=True)])
    assert near(encoder._pooled(rows, 0), alone) < 1e-5
    assert encoder._plans._kept  # without Python between the operations


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "nomic_bert", "gte"])
@pytest.mark.parametrize("policy", ["int8_from_mixed_bfloat16", "int4/16_from_float32"])
def test_a_folder_that_is_saved_gives_the_same_embeddings(tmp_path, name, policy):
    texts = ["a b c", "h g f e d c b a a b", "d"]
    (tmp_path / "first").mkdir()
    encoder = BertEncoder.from_folder(random_models.save(random_models.made(name), tmp_path / "first"), policy)
    encoder.save(tmp_path / "second")
    again = BertEncoder.from_folder(tmp_path / "second")
    assert again.model.dtype_policy == encoder.model.dtype_policy
    np.testing.assert_array_equal(again.encode(texts), encoder.encode(texts))
    for threads in (1, 3):
        np.testing.assert_array_equal(encoder.encode(texts, batch_size=threads), encoder.encode(texts))


def test_the_last_token_is_the_embedding_as_with_padding_on_the_left(tmp_path):
    network = random_models.made("qwen3")
    folder = random_models.save(network, tmp_path)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"padding_side": "left"}))
    ids = np.array([[0, 4, 5, 6, 2], [1, 1, 0, 7, 2]])
    expected = random_models.outputs(network, ids, (ids != 1).astype(np.int64))[:, -1]
    assert near(BertEncoder.from_folder(folder).encode(["a b c", "d"]), expected) < 1e-5


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("qwen3", "head_dim"),
        ("gemma2", "head_dim"),
        ("phi3", "head_dim"),
        ("umt5", "d_kv"),
        ("embedding_gemma2_text", "head_dim"),
        ("embedding_gemma2_text", "global_head_dim"),
    ],
)
@pytest.mark.parametrize("policy", ["float32", "int8"])
def test_heads_longer_than_those_of_the_tensors_take_no_memory(name, entry, policy, tmp_path):
    folder = random_models.save(random_models.made(name), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config.pop("per_layer_config", None)  # of EmbeddingGemma 2, in which it would come before
    (folder / "config.json").write_text(json.dumps(config | {entry: 2**24}))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"has shape .*; expected .*, of \w+=32, \w+ \* (head_dim|d_kv)=67108864"):
            BertEncoder.from_folder(folder, policy)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "entries", "message"),
    [
        ("qwen3", {"num_key_value_heads": 3}, "num_key_value_heads is 3; expected a divisor of num_attention_heads, 4"),
        ("qwen3", {"num_key_value_heads": 0}, "num_key_value_heads is 0; expected a positive int"),
        ("qwen3", {"head_dim": 7}, "hidden_size is 32; expected an even multiple of num_attention_heads, 4"),
        ("qwen3", {"head_dim": "8"}, "head_dim is '8'; expected a positive int"),
        ("qwen3", {"rope_parameters": {"rope_theta": -1.0}}, "the rope_theta of rope_parameters is -1.0; expected"),
        ("qwen3", {"rope_parameters": 3}, "rope_parameters is 3; expected an object"),
        ("qwen3", {"rope_parameters": None, "rope_scaling": [2]}, "rope_scaling is .2.; expected an object"),
        ("qwen3", {"hidden_act": "xielu"}, "hidden_act is 'xielu'; expected 'gelu'"),
        ("qwen3", {"layer_types": ["linear_attention"] * 2}, "layer_types is .*; expected a list of 2 of 'full_att"),
        ("qwen2", {"is_causal": 0}, "is_causal is 0; expected True or False"),
        ("mistral", {"is_causal": False}, "is_causal is False; expected true in a network with blocks of near att"),
        ("phi3", {"partial_rotary_factor": 0.75}, "partial_rotary_factor is 0.75; expected 1.0"),
        (
            "phi3",
            {"original_max_position_embeddings": 1, "rope_parameters": long_rope(8, 1)},
            "the original_max_position_embeddings of rope_parameters is 1.0; expected an integer of at least 2",
        ),
        (
            "phi3",
            {"rope_parameters": long_rope(8, 12) | {"long_factor": [1.0] * 3}},
            "the long_factor of rope_parameters is .1.0, 1.0, 1.0.; expected a list of 4 positive, finite numbers",
        ),
        (
            "phi3",
            {"rope_parameters": long_rope(8, 12) | {"short_factor": [1.0, 1.0, 0.0, 1.0]}},
            "the short_factor of rope_parameters is .*; expected a list of 4 positive",
        ),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0; expected a positive int"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0; expected None"),
        ("gemma3_text", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0; expected a positive int"),
        ("nomic_bert", {"moe_every_n_layers": 1}, "moe_every_n_layers is 1; expected an int above 1"),
        ("nomic_bert", {"moe_every_n_layers": "2"}, "moe_every_n_layers is '2'; expected 0 or -1"),
        ("nomic_bert", {"prenorm": True}, "prenorm is True; expected False"),
        ("nomic_bert", {"type_vocab_size": -1}, "type_vocab_size is -1; expected an int from 0"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(name, entries, message):
    config = random_models.made(name).config.to_dict()
    with pytest.raises(ValueError, match=f"`config`: {message}"):
        TextNetwork(config | entries)


def test_the_theta_of_nomic_bert_may_have_either_name():
    settings = random_models.made("nomic_bert").config.to_dict()
    del settings["rope_parameters"]
    for entries in ({"rope_theta": 500.0}, {"rotary_emb_base": 500.0}, {"rotary_emb_base": 500.0, "rope_theta": 9.0}):
        assert {rope.theta for rope in TextNetwork(settings | entries).settings.ropes} == {500.0}


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "gte", "nomic_bert"])
def test_a_tensor_that_is_missing_or_has_another_shape_is_named(tmp_path, name):
    from safetensors.numpy import load_file, save_file

    folder = random_models.save(random_models.made(name), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    matrix = max(tensors, key=lambda name: ("embed" not in name, tensors[name].ndim, name))
    for changed, message in (
        ({matrix: None}, f"tensor {matrix} is missing; expected shape"),
        ({matrix: tensors[matrix][:, 1:]}, f"tensor {matrix} has shape .*; expected"),
    ):
        kept = {key: np.ascontiguousarray(value) for key, value in (tensors | changed).items() if value is not None}
        save_file(kept, folder / "model.safetensors")
        with pytest.raises(ValueError, match=message):
            BertEncoder.from_folder(folder)
