"""Random networks of transformers, with legal settings that tests do not name, compared with the library's vectors.

A case makes a small network of a row of the table, saves it, and rewrites its ``config.json`` as older and newer
libraries write it: without entries that equal defaults, with rotary positions in the words of before 2026. mp_core must
give the vectors that the library computes from that folder in float64.
"""

import json
import shutil
import warnings

import numpy as np
import random_models

from mp_core.models import BertEncoder

__all__ = ["make", "run"]

_DECODERS = (
    "Qwen3",
    "Qwen2",
    "Llama",
    "Mistral",
    "Gemma",
    "Gemma2",
    "Gemma3Text",
    "EuroBert",
    "Phi3",
    "EmbeddingGemma2Text",
)
_FLAGS = {
    "ModernBert": ("attention_bias", "mlp_bias", "norm_bias"), "Qwen3": ("attention_bias",),
    "Llama": ("attention_bias", "mlp_bias"), "EuroBert": ("attention_bias", "mlp_bias"), "Gemma": ("attention_bias",),
    "Gemma2": ("attention_bias",), "Gemma3Text": ("attention_bias",), "EmbeddingGemma2Text": ("attention_bias",),
}  # fmt: skip
"""How the names of classes begin -> settings that are true or false."""
_ACTIVATION = {"DistilBert": "activation", "ModernBert": "hidden_activation"} | dict.fromkeys(
    ("Gemma2", "Gemma3Text", "EmbeddingGemma2Text"), "hidden_activation"
)
_EPSILON = {"ModernBert": "norm_eps", **dict.fromkeys(_DECODERS, "rms_norm_eps")}
_ACTIVATIONS = ("gelu", "relu", "silu", "gelu_new", "gelu_pytorch_tanh", "tanh", "swish")
_T5 = ("relu", "gelu_new", "gated-gelu", "gated-silu", "gated-relu")
_THETAS = {
    "modernbert": ("global_rope_theta", "local_rope_theta"), "gemma3_text": ("rope_theta", "rope_local_base_freq"),
}  # fmt: skip
"""Networks with two kinds of rotary positions -> what older files call their thetas."""
_KEPT = ("model_type", "architectures", "dtype", "transformers_version", "layer_types", "rope_parameters")
TOLERANCE = 1e-5
"""Of the length of a vector, where the library itself in float32 does not differ more from float64."""


def make(folder):
    """Return the folder in which every case has its network."""
    random_models.library().utils.logging.disable_progress_bar()
    random_models.made("bert")  # the first one imports torch
    return folder / "network"


def pick(rng, values):
    """Return one of some values."""
    return values[rng.integers(len(values))]


def sizes(rng, start, own):
    """Return sizes and settings of a network whose class begins so."""
    heads, head = pick(rng, (1, 2, 3, 4)), pick(rng, (4, 8, 10))
    positions, blocks, inner = pick(rng, (24, 40, 65)), pick(rng, (1, 2, 3)), pick(rng, (8, 33, 48))
    found = {
        "vocab_size": pick(rng, (40, 64)), "max_position_embeddings": positions, "num_hidden_layers": blocks,
        "num_attention_heads": heads, "hidden_size": heads * head, "intermediate_size": inner,
        "initializer_range": 0.3, "pad_token_id": pick(rng, (0, 1, 3)), "tie_word_embeddings": bool(rng.integers(2)),
    }  # fmt: skip
    if start.endswith("T5"):
        found = {
            "vocab_size": 40, "d_model": heads * head, "d_kv": pick(rng, (4, 7, 8)), "d_ff": inner, "pad_token_id": 0,
            "num_layers": blocks, "num_heads": heads, "feed_forward_proj": pick(rng, _T5), "layer_norm_epsilon": 1e-5,
        }  # fmt: skip
        return found
    if start in _DECODERS:
        found["num_key_value_heads"] = pick(rng, [n for n in (1, 2, 3, 4) if heads % n == 0])
        found["head_dim"] = pick(rng, (4, 8, 16)) if "head_dim" in own or rng.integers(2) else head
    if start == "Phi3":  # its heads are as wide as the network together
        found["head_dim"] = head
        found["original_max_position_embeddings"] = positions // 2
    found |= {flag: bool(rng.integers(2)) for flag in _FLAGS.get(start, ())}
    if rng.integers(2):
        found[_ACTIVATION.get(start, "hidden_act")] = pick(rng, _ACTIVATIONS)
    if start != "DistilBert":
        found[_EPSILON.get(start, "layer_norm_eps")] = pick(rng, (1e-12, 1e-6, 1e-5, 1e-3))
    return found


def windows(rng, start, blocks):
    """Return settings of near attention."""
    kinds = [pick(rng, ("full_attention", "sliding_attention")) for _ in range(blocks)]
    if start in ("Qwen3", "Qwen2"):
        how = {"use_sliding_window": bool(rng.integers(2)), "sliding_window": pick(rng, (3, 8, 100))}
        return how | {"max_window_layers": int(rng.integers(blocks + 1))}
    if start in ("Mistral", "Phi3"):
        return {"sliding_window": pick(rng, (None, 1, 8))}
    if start in ("Gemma2", "Gemma3Text"):
        near = {"sliding_window": pick(rng, (2, 8, 9)), "query_pre_attn_scalar": pick(rng, (5, 16))}
        return near | ({"layer_types": kinds} if rng.integers(2) else {"layer_types": None})
    if start == "EmbeddingGemma2Text":
        far = {"global_head_dim": pick(rng, (4, 12)), "num_global_key_value_heads": 1}
        return {"sliding_window": pick(rng, (1, 4, 9)), "layer_types": kinds} | far
    if start == "ModernBert":
        return {"local_attention": pick(rng, (2, 8, 10)), "global_attn_every_n_layers": pick(rng, (1, 2, 3))}
    return {}


def scaling(rng, config):
    """Return what an object of rotary positions says of scaling."""
    others = () if config["model_type"] == "phi3" else ("linear", "dynamic", "yarn", "llama3")
    kind = pick(rng, ("longrope", *others))
    said = {"rope_type": kind, "factor": pick(rng, (1.5, 4.0))}
    if kind in ("yarn", "llama3", "longrope"):
        said["original_max_position_embeddings"] = config["max_position_embeddings"] // 2
    if kind == "longrope":
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        said |= {name: rng.uniform(1, 4, size // 2).tolist() for name in ("short_factor", "long_factor")}
    if kind == "llama3":
        said |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return said


def rewritten(rng, config, defaults):
    """Return a ``config.json`` in other words, some of which change what it says."""
    said = {
        name: value for name, value in config.items()
        if name in _KEPT or name not in defaults or value != defaults[name] or rng.random() < 0.7
    }  # fmt: skip
    rope = said.get("rope_parameters")
    thetas = _THETAS.get(config["model_type"])
    if thetas is not None and rng.integers(2):
        del said["rope_parameters"]
        said |= {name: pick(rng, (500.0, 10000.0)) for name in thetas if rng.integers(2)}
        scaled = {"rope_type": "linear", "factor": 8.0} if "rope_theta" in thetas and rng.integers(2) else None
        return said | {"rope_scaling": scaled}
    if not isinstance(rope, dict) or "rope_theta" not in rope:
        return said
    theta = pick(rng, (rope["rope_theta"], 500.0))
    scaled = scaling(rng, config) if rng.integers(2) else {}
    if rng.integers(2):
        said["rope_parameters"] = {"rope_type": "default", "rope_theta": theta} | scaled
        return said
    del said["rope_parameters"]
    if scaled and rng.integers(2):
        scaled["type"] = scaled.pop("rope_type")
    return said | {"rope_theta": theta, "rope_scaling": scaled or None}


def expected(network, folder, rows):
    """Return the vectors that the library has for texts of a folder, each alone: in float64, and in float32.

    Padded ones it makes NaN where no key of padding is near.
    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            type(network).from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
            for dtype in (torch.float64, torch.float32)
        ]
    return [
        [random_models.outputs(each, row[np.newaxis], np.ones((1, len(row)), np.int64))[0] for row in rows]
        for each in found
    ]


def error(received, exact):
    """Return the largest difference of a vector of any text, relative to its length."""
    pairs = [(one.astype(np.float64), other) for one, other in zip(received, exact, strict=True)]
    return max((np.linalg.norm(one - other, axis=-1) / np.linalg.norm(other, axis=-1)).max() for one, other in pairs)


def run(folder, rng):
    """Compare a network at random."""
    name = pick(rng, sorted(random_models.ARCHITECTURES))
    start, own = random_models.ARCHITECTURES[name]
    settings = sizes(rng, start, own)
    if "is_causal" not in own:  # near attention to both sides is refused there
        settings |= windows(rng, start, settings.get("num_hidden_layers", 0))
    network = random_models.made(name, seed=int(rng.integers(1 << 31)), **settings)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    random_models.save(network, folder)
    path = folder / "config.json"
    said = rewritten(rng, json.loads(path.read_text()), type(network.config)().to_dict())
    path.write_text(json.dumps(said))
    try:
        model = BertEncoder.from_folder(folder).model
        ids, mask = random_models.ragged(settings["pad_token_id"], (1, 2, 9, min(model.settings.max_length, 64)))
        rows = [row[keep > 0] for row, keep in zip(ids, mask, strict=True)]
        received = [vectors[: len(row)] for vectors, row in zip(model(ids, mask=mask), rows, strict=True)]
        exact, single = expected(network, folder, rows)
        assert error(received, exact) < max(TOLERANCE, 4 * error(single, exact))
    except Exception as problem:
        problem.add_note(f"{name}: {settings}, config.json: {json.dumps(said)}")
        raise
