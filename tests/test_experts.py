"""Mixtures of experts (nomic-embed-text-v2-moe), by the published formulas in float64."""

import json
import math

import numpy as np
import pytest
import random_models
from safetensors.numpy import load_file, save_file

from mp_core.models import BertEncoder, TextNetwork

WIDTH, INNER, HEADS, BLOCKS, EXPERTS, CHOSEN = 32, 48, 4, 4, 5, 2
CONFIG = {
    "model_type": "nomic_bert", "activation_function": "gelu", "n_embd": WIDTH, "n_inner": INNER, "n_head": HEADS,
    "n_layer": BLOCKS, "n_positions": 64, "vocab_size": 40, "type_vocab_size": 1, "layer_norm_epsilon": 1e-5,
    "num_experts": EXPERTS, "moe_top_k": CHOSEN, "moe_every_n_layers": 2, "moe_normalize_expert_weights": False,
    "moe_impl": "megablocks", "num_shared_experts": 0, "expert_choice_router": False, "ffn_div": 1, "prenorm": False,
    "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "rotary_emb_base": 10000,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "pad_token_id": 1,
    "rotary_scaling_factor": None, "parallel_block": False, "causal": False, "max_trained_positions": 2048,
}  # fmt: skip
TEXTS = ["a b c", "h g f e d c b a a b", "d"]


def random_tensors(seed=0):
    """Return random tensors by the names of such folders."""
    rng = np.random.default_rng(seed)
    shapes = {"embeddings.word_embeddings.weight": (40, WIDTH), "embeddings.token_type_embeddings.weight": (1, WIDTH)}
    vectors = {"emb_ln"}
    for block in range(BLOCKS):
        start = f"encoder.layers.{block}"
        vectors |= {f"{start}.norm1", f"{start}.norm2"}
        products = {"attn.Wqkv": (3 * WIDTH, WIDTH), "attn.out_proj": (WIDTH, WIDTH)}
        if block % 2 == 0:
            products |= {"mlp.fc1": (INNER, WIDTH), "mlp.fc2": (WIDTH, INNER)}
        else:
            shapes |= {f"{start}.mlp.router.layer.weight": (EXPERTS, WIDTH), f"{start}.mlp.experts.bias": (WIDTH,)}
            shapes |= {f"{start}.mlp.experts.mlp.{name}": (EXPERTS * INNER, WIDTH) for name in ("w1", "w2")}
        for name, shape in products.items():
            shapes |= {f"{start}.{name}.weight": shape, f"{start}.{name}.bias": shape[:1]}
    found = {name: rng.normal(0, 0.3, shape) for name, shape in shapes.items()}
    for name in vectors:
        found |= {f"{name}.weight": rng.normal(1, 0.3, WIDTH), f"{name}.bias": rng.normal(0, 0.3, WIDTH)}
    return {name: value.astype(np.float32) for name, value in sorted(found.items())}


def exact(tensors, ids):
    """Return the vectors of the tokens of one text in float64."""
    from scipy.special import erf, softmax

    t = {name: value.astype(np.float64) for name, value in tensors.items()}

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * t[f"{name}.weight"] + t[f"{name}.bias"]

    def product(x, name):
        return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]

    def gelu(x):
        return x * 0.5 * (1 + erf(x / math.sqrt(2)))

    def turned(x):
        half = x.shape[-1] // 2
        angles = np.arange(len(ids))[:, np.newaxis] * 10000.0 ** -(np.arange(half) / half)
        cos, sin, first, second = np.cos(angles), np.sin(angles), x[..., :half], x[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def mixture(x, start):
        shares = softmax(x @ t[f"{start}.router.layer.weight"].T, axis=-1)
        out = np.zeros_like(x)
        inner, outer = (t[f"{start}.experts.mlp.{w}"].reshape(EXPERTS, INNER, WIDTH) for w in ("w1", "w2"))
        for token, share in enumerate(shares):
            for expert in np.argsort(-share)[:CHOSEN]:
                out[token] += share[expert] * (gelu(x[token] @ inner[expert].T) @ outer[expert])
        return out + t[f"{start}.experts.bias"]

    words, types = (t[f"embeddings.{name}_embeddings.weight"] for name in ("word", "token_type"))
    x = norm(words[ids] + types[0], "emb_ln")
    for block in range(BLOCKS):
        start = f"encoder.layers.{block}"
        qkv = product(x, f"{start}.attn.Wqkv").reshape(len(ids), 3, HEADS, -1).transpose(1, 2, 0, 3)
        query, key = turned(qkv[0]), turned(qkv[1])
        scores = softmax(query @ key.transpose(0, 2, 1) / math.sqrt(WIDTH // HEADS), axis=-1)
        attended = (scores @ qkv[2]).transpose(1, 0, 2).reshape(len(ids), -1)
        x = norm(product(attended, f"{start}.attn.out_proj") + x, f"{start}.norm1")
        mlp = f"{start}.mlp"
        added = mixture(x, mlp) if block % 2 else product(gelu(product(x, f"{mlp}.fc1")), f"{mlp}.fc2")
        x = norm(added + x, f"{start}.norm2")
    return x


@pytest.fixture(scope="module")
def tensors():
    return random_tensors()


@pytest.fixture
def folder(tmp_path, tensors):
    path = tmp_path / "first"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, path / "model.safetensors")
    return random_models.tokenizer_in(path)


def near(received, expected):
    return (np.linalg.norm(received - expected, axis=-1) / np.linalg.norm(expected, axis=-1)).max()


def test_vectors_are_those_of_the_formulas_ragged_padded_and_alone(folder, tensors):
    encoder = BertEncoder.from_folder(folder)
    ids, mask = random_models.ragged(1)
    padded = encoder.model(ids, mask=mask)
    for row, keep, vectors in zip(ids, mask, padded, strict=True):
        expected = exact(tensors, row[keep > 0])
        assert near(vectors[keep > 0], expected) < 1e-5
        np.testing.assert_array_equal(encoder.model(row[np.newaxis, keep > 0])[0], vectors[keep > 0])
    for text, vector in zip(TEXTS, encoder.encode(TEXTS), strict=True):
        row = np.array([0, *(random_models.WORDS.index(word) for word in text.split()), 2])
        assert near(vector, exact(tensors, row).mean(axis=0)) < 1e-5
        np.testing.assert_array_equal(encoder.encode([text])[0], vector)


@pytest.mark.parametrize(
    ("policy", "bound"),
    [("mixed_bfloat16", 0.04), ("int8/weight_only_from_mixed_bfloat16", 0.1), ("int8_from_mixed_bfloat16", 0.16)],
)
def test_other_policies_stay_close_and_a_saved_folder_gives_the_same(folder, tensors, tmp_path, policy, bound):
    encoder = BertEncoder.from_folder(folder, policy)
    received, rows = encoder.encode(TEXTS), (text.split() for text in TEXTS)
    expected = [exact(tensors, np.array([0, *map(random_models.WORDS.index, row), 2])).mean(axis=0) for row in rows]
    assert np.linalg.norm(received - expected) < bound * np.linalg.norm(expected)
    encoder.save(tmp_path / "again")
    again = BertEncoder.from_folder(tmp_path / "again")
    assert again.model.dtype_policy == encoder.model.dtype_policy
    np.testing.assert_array_equal(again.encode(TEXTS), received)


def test_router_and_sums_stay_in_float32(folder):
    experts = BertEncoder.from_folder(folder, "bfloat16").model.encoder.blocks[1].experts
    assert experts.router(np.ones((3, WIDTH), np.float32)).dtype == np.float32


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"num_experts": 0}, "num_experts is 0; expected a positive int"),
        ({"moe_top_k": 6}, "moe_top_k is 6; expected an int from 1 to num_experts, 5"),
        ({"activation_function": "swiglu"}, "activation_function is 'swiglu'; expected 'gelu' or"),
        ({"moe_normalize_expert_weights": True}, "moe_normalize_expert_weights is True; expected False"),
        ({"expert_choice_router": True}, "expert_choice_router is True; expected False"),
        ({"num_shared_experts": 1}, "num_shared_experts is 1; expected 0"),
        ({"prenorm": True}, "prenorm is True; expected False"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(entries, message):
    with pytest.raises(ValueError, match=f"`config`: {message}"):
        TextNetwork(CONFIG | entries)


def test_experts_that_do_not_fit_are_named(folder):
    path = folder / "config.json"
    for entries, message in (
        (
            {"num_experts": 7},
            r"tensor encoder\.layers\.1\.mlp\.experts\.mlp\.w1 has shape .*; expected rows of num_experts=7",
        ),
        ({"num_experts": 10}, r"tensor encoder\.layers\.1\.mlp\.router\.layer\.weight has shape \(5, 32\)"),
    ):
        path.write_text(json.dumps(CONFIG | entries))
        with pytest.raises(ValueError, match=message):
            BertEncoder.from_folder(folder)
    path.write_text(json.dumps(CONFIG))
    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.layers.3.mlp.experts.mlp.w2"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"tensor encoder\.layers\.3\.mlp\.experts\.0\.outer\.weight is missing"):
        BertEncoder.from_folder(folder)
