"""Folders whose networks come with their own code: GTE's `new` and Jina's version 2, by their published formulas."""

import json
import math

import numpy as np
import pytest
import random_models
from safetensors.numpy import save_file

from mp_core.models import BertEncoder, TextNetwork
from mp_core.models.blocks import by_distance
from mp_core.models.gated_blocks import _slopes

FLOAT32 = 1e-5  # as in test_architectures.py
TEXTS = ["a b c", "h g f e d c b a a b", "d"]


def near(received, expected):
    return (np.linalg.norm(received - expected, axis=-1) / np.linalg.norm(expected, axis=-1)).max()


def ntk(theta, size, factor, mixed_b=None):
    """Return the frequencies of Alibaba's NTKScalingRotaryEmbedding in float64 (kexue.fm/archives/9706)."""
    base = theta * (factor if mixed_b is None else 1)
    frequencies = 1.0 / base ** (np.arange(0, size, 2) / size)
    if mixed_b is None:
        return frequencies / factor ** (2 / size)
    a = math.log(factor) / (size / 2) ** mixed_b
    return frequencies / np.exp(a * np.arange(1, size // 2 + 1) ** mixed_b)


@pytest.mark.parametrize(
    "scaling", [None, {"factor": 8.0}, {"factor": 2.0, "mixed_b": 0.625}, {"factor": 2.0, "mixed_b": None}]
)
def test_folders_of_gte_with_own_code_have_the_vectors_of_transformers_with_these_frequencies(tmp_path, scaling):
    import torch

    network = random_models.made("gte")
    (tmp_path / "first").mkdir()
    folder = random_models.save(network, tmp_path / "first")
    config = json.loads((folder / "config.json").read_text())
    config = {name: value for name, value in config.items() if not name.startswith("rope")}
    config |= {"model_type": "new", "rope_theta": 20000, "position_embedding_type": "rope", "pack_qkv": True}
    config |= {"layer_norm_type": "layer_norm", "logn_attention_scale": False, "unpad_inputs": True}
    config |= {"rope_scaling": None if scaling is None else scaling | {"type": "ntk"}}
    (folder / "config.json").write_text(json.dumps(config))
    network.rotary_emb.inv_freq.copy_(torch.from_numpy(ntk(20000.0, 8, **scaling or {"factor": 1.0})))
    ids, mask = random_models.ragged(1)
    expected = random_models.outputs(network, ids, mask)
    encoder = BertEncoder.from_folder(folder)
    assert near(encoder.model(ids, mask=mask)[mask > 0], expected[mask > 0]) < FLOAT32
    encoder.save(tmp_path / "again")
    np.testing.assert_array_equal(BertEncoder.from_folder(tmp_path / "again").encode(TEXTS), encoder.encode(TEXTS))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"position_embedding_type": "absolute"}, "position_embedding_type is 'absolute'; expected 'rope'"),
        ({"logn_attention_scale": True}, "logn_attention_scale is True; expected False"),
        ({"pack_qkv": False}, "pack_qkv is False; expected True"),
        ({"rope_scaling": {"type": "ntk"}}, "the factor of rope_parameters is None; expected a positive"),
        ({"rope_scaling": {"type": "ntk", "factor": 0}}, "the factor of rope_parameters is 0; expected a positive"),
    ],
)
def test_what_such_a_folder_must_not_say_is_refused_by_name(entries, message):
    with pytest.raises(ValueError, match=f"`config`: {message}"):
        TextNetwork({"model_type": "new"} | entries)


def test_nvidias_llama_attends_both_ways(tmp_path):
    network = random_models.made("llama", is_causal=False)
    folder = random_models.save(network, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["is_causal"]
    config |= {"model_type": "llama_bidirec", "architectures": ["LlamaBidirectionalModel"], "pooling": "avg"}
    (folder / "config.json").write_text(json.dumps(config))
    ids, mask = random_models.ragged(1)
    expected = random_models.outputs(network, ids, mask)
    assert np.abs(expected - random_models.outputs(random_models.made("llama"), ids, mask))[mask > 0].max() > 0.1
    received = BertEncoder.from_folder(folder).model(ids, mask=mask)
    assert near(received[mask > 0], expected[mask > 0]) < FLOAT32


# ---- Jina's version 2

JINA = {
    "model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu", "hidden_act": "gelu",
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
}  # fmt: skip


def tensors_of_jina(heads):
    """Return random tensors of such a network, by the names of its folders."""
    rng = np.random.default_rng(heads)
    shapes = {"word_embeddings": (40, 32), "token_type_embeddings": (2, 32)}
    found = {f"embeddings.{name}.weight": rng.normal(size=shape) for name, shape in shapes.items()}
    layers = {"embeddings.LayerNorm": None}
    for block in range(2):
        start = f"encoder.layer.{block}"
        layers |= {f"{start}.attention.self.{name}": (32, 32) for name in ("query", "key", "value")}
        layers |= {f"{start}.attention.output.dense": (32, 32), f"{start}.attention.output.LayerNorm": None}
        layers |= {f"{start}.mlp.gated_layers": (96, 32), f"{start}.mlp.wo": (32, 48), f"{start}.mlp.layernorm": None}
    for name, shape in layers.items():
        found[f"{name}.weight"] = rng.normal(1, 0.3, 32) if shape is None else rng.normal(0, 0.3, shape)
        if "gated_layers" not in name:
            found[f"{name}.bias"] = rng.normal(0, 0.3, 32)
    return {name: value.astype(np.float32) for name, value in found.items()}


def outputs_of_jina(tensors, ids, heads):
    """Return the vectors of the tokens of one text in float64, by the formulas of arXiv:2310.19923 and its code."""
    from scipy.special import erf, softmax

    t = {name: value.astype(np.float64) for name, value in tensors.items()}

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return scaled * t[f"{name}.weight"] + t[f"{name}.bias"]

    def product(x, name):
        return x @ t[f"{name}.weight"].T + t.get(f"{name}.bias", 0)

    x = norm(t["embeddings.word_embeddings.weight"][ids] + t["embeddings.token_type_embeddings.weight"][0],
             "embeddings.LayerNorm")  # fmt: skip
    distance = np.abs(np.arange(len(ids))[:, np.newaxis] - np.arange(len(ids)))
    bias = -np.array(slopes(heads))[:, np.newaxis, np.newaxis] * distance
    for block in range(2):
        start = f"encoder.layer.{block}"
        q, k, v = (
            product(x, f"{start}.attention.self.{name}").reshape(len(ids), heads, -1).transpose(1, 0, 2)
            for name in ("query", "key", "value")
        )
        scores = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]) + bias, axis=-1)
        attended = (scores @ v).transpose(1, 0, 2).reshape(len(ids), -1)
        x = norm(product(attended, f"{start}.attention.output.dense") + x, f"{start}.attention.output.LayerNorm")
        both = product(x, f"{start}.mlp.gated_layers")
        gate, up = both[:, :48], both[:, 48:]
        inner = gate * 0.5 * (1 + erf(gate / math.sqrt(2))) * up
        x = norm(product(inner, f"{start}.mlp.wo") + x, f"{start}.mlp.layernorm")
    return x


def slopes(heads):
    """Return the factors of the distance as the code of ALiBi's authors has them."""

    def of_power(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(heads).is_integer():
        return of_power(heads)
    whole = 2 ** math.floor(math.log2(heads))
    return of_power(whole) + of_power(2 * whole)[0::2][: heads - whole]


@pytest.mark.parametrize("heads", range(1, 34))
def test_slopes_are_those_of_alibi(heads):
    received = by_distance(_slopes(heads, 9))[0]
    distance = np.abs(np.arange(9)[:, np.newaxis] - np.arange(9))
    np.testing.assert_allclose(received, -np.array(slopes(heads))[:, np.newaxis, np.newaxis] * distance, rtol=3e-7)


@pytest.fixture(params=[4, 2])
def jina(request, tmp_path):
    tensors, folder = tensors_of_jina(request.param), tmp_path / "first"
    folder.mkdir()
    random_models.tokenizer_in(folder)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(JINA | {"num_attention_heads": request.param}))
    return folder, tensors, request.param


def test_vectors_of_jina_v2_are_those_of_its_formulas(jina):
    folder, tensors, heads = jina
    encoder = BertEncoder.from_folder(folder)
    ids, mask = random_models.ragged(1, (1, 7, 20, 64))
    received = encoder.model(ids, mask=mask)
    rows = [row[keep > 0] for row, keep in zip(ids, mask, strict=True)]
    for row, vectors in zip(rows, received, strict=True):
        assert near(vectors[: len(row)], outputs_of_jina(tensors, row, heads)) < FLOAT32
    alone = encoder._pooled(rows, 0)
    assert encoder._plans._kept  # without Python between the operations
    expected = [outputs_of_jina(tensors, row, heads).mean(axis=0) for row in rows]
    assert near(alone, np.array(expected)) < FLOAT32


def test_a_long_text_of_jina_v2_is_attended_to_in_blocks(jina):
    folder, tensors, heads = jina
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 8192}))
    ids = np.random.default_rng(0).integers(0, 40, 1000)
    received = BertEncoder.from_folder(folder)._pooled([ids], 0)
    assert near(received, outputs_of_jina(tensors, ids, heads).mean(axis=0, keepdims=True)) < FLOAT32


def test_a_folder_of_jina_v2_is_saved_and_opened(jina, tmp_path):
    encoder = BertEncoder.from_folder(jina[0], "int8")
    encoder.save(tmp_path / "again")
    np.testing.assert_array_equal(BertEncoder.from_folder(tmp_path / "again").encode(TEXTS), encoder.encode(TEXTS))


@pytest.mark.parametrize(("entry", "value"), [("feed_forward_type", "reglu"), ("hidden_act", "relu")])
def test_other_perceptrons_of_jina_are_refused(entry, value):
    with pytest.raises(ValueError, match=f"`config`: {entry} is '{value}'; expected"):
        TextNetwork(JINA | {entry: value})


def test_biases_of_distances_take_no_memory_of_pairs():
    settings = TextNetwork(JINA | {"max_position_embeddings": 2**15}).settings
    bias = by_distance(_slopes(settings.num_attention_heads, settings.max_length))
    assert bias.shape == (1, 4, 2**15, 2**15)
    assert bias.base is not None
    assert abs(np.array(bias.strides)).max() <= 4 * 2**16
