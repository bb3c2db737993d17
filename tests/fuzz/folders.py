"""Damaged folders of models of every architecture: each raises ValueError or OSError, or runs in little memory.

The good folders are made from the tables of the architectures, without the libraries that write such folders. A case
changes one to three things in a copy of one: entries of its JSON files, the header, the tensors or the bytes of a file.
"""

import contextlib
import json
import random
import shutil

import hostile_folders
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from test_static import tokenizer

from fuzz.damage import damaged
from fuzz.limits import peak
from fuzz.reading import REFUSALS
from mp_core.models.architectures import ARCHITECTURES
from mp_core.models.masked import MaskedModel
from mp_core.models.network import TextNetwork
from mp_core.models.opening import class_of
from mp_core.models.weights import slots_in

__all__ = ["make", "run", "write"]

MEMORY = 192 << 20  # bytes that a folder of some kilobytes may take: the tables of positions of the longest texts
WORDS = 12
_SIZES = {
    "vocab_size": WORDS,
    **dict.fromkeys(("hidden_size", "d_model", "dim"), 8),
    **dict.fromkeys(("intermediate_size", "d_ff", "hidden_dim"), 12),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_heads"), 2),
    **dict.fromkeys(("embedding_size", "head_dim", "d_kv", "query_pre_attn_scalar"), 4),
    "num_key_value_heads": 1,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
    "pad_token_id": 1,
    "layer_norm_eps": 1e-6,
}
_DEBERTA = {"relative_attention": True, "share_att_key": True, "position_biased_input": False, "type_vocab_size": 0}
_EMBEDDING_GEMMA2 = {"hidden_size_per_layer_input": 4, "embedding_dim": 8, "global_head_dim": 8}
_OWN = {
    "deberta-v2": _DEBERTA | {"norm_rel_ebd": "layer_norm", "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    "bert with alibi": {"model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu"},
    "xlm-roberta with rotary": {"model_type": "xlm-roberta", "position_embedding_type": "rotary"},
    "modernbert": {"head_dim": None, "local_attention": 8},
    "mistral": {"sliding_window": 8},
    "embedding_gemma2_text": _EMBEDDING_GEMMA2,
    "embedding_gemma2": {"text_config": _SIZES | _EMBEDDING_GEMMA2},
}
"""``model_type`` -> what ``config.json`` needs beside the sizes."""
_NETWORK, _POOLING = ("Transformer", "", {}), ("Pooling", "1_Pooling", {"pooling_mode": "mean"})
_HEAD = {"in_features": 8, "out_features": 4, "activation_function": "torch.nn.modules.linear.Identity"}
_OF_TOKENS = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
_ROUTES = {
    "types": dict.fromkeys(("query", "document"), "sentence_transformers.models.Dense"),
    "structure": {"query": ["query"], "document": ["document"]},
    "parameters": {"default_route": "document", "route_mappings": {"('query', 'text')": "query"}},
}
_LISTS = {
    "plain": [_NETWORK, _POOLING, ("Dense", "2_Dense", _HEAD), ("Normalize", "3_Normalize", {})],
    "routes": [_NETWORK, _POOLING, ("Router", "2_Router", _ROUTES)],
    "layers": [
        _NETWORK,
        ("WeightedLayerPooling", "1_Layers", {"embedding_dimension": 8, "layer_start": 1, "num_hidden_layers": 2}),
        _POOLING,
    ],
    "sparse": [_NETWORK, ("SpladePooling", "1_SpladePooling", {"pooling_strategy": "max"})],
    "tokens": [
        _NETWORK,
        ("Dense", "1_Dense", _HEAD | _OF_TOKENS),
        ("MultiVectorMask", "2_Mask", {"skiplist_words": ["a"], "keep_only_token_ids": None}),
    ],
}
"""Kind of a folder -> the class, the place and the settings of each module."""
_CLASSES = {"sparse": "SparseEncoder", "tokens": "MultiVectorEncoder"}
TEXTS = ["a b", "c", "a b c d e f g h " * 5, ""]


def make(folder):
    """Write the good folders; return where they are."""
    rng = np.random.default_rng(0)
    for kind in ARCHITECTURES:
        if kind != "model2vec":
            write(folder / "seeds" / kind, kind, "plain", rng)
    for modules in ("routes", "layers", "sparse", "tokens"):
        write(folder / "seeds" / modules, "bert", modules, rng)
    table = folder / "seeds" / "model2vec"
    _write_json(table / "config.json", {"model_type": "model2vec", "normalize": True})
    rows = rng.standard_normal((5, 8)).astype(np.float32)
    own = {"mapping": rng.integers(0, 5, WORDS), "weights": np.ones(WORDS, np.float32)}
    save_file({"embeddings": rows, **own}, table / "model.safetensors")
    tokenizer().save(str(table / "tokenizer.json"))
    for seed in sorted((folder / "seeds").iterdir()):
        _use(seed)
    return folder


def _write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write(folder, kind, modules, rng):
    """Write a random network with its modules; return the folder."""
    config = {"model_type": kind, **_SIZES, **_OWN.get(kind, {}), "output_hidden_states": modules == "layers"}
    _write_json(folder / "config.json", config)
    listed = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path, _ in _LISTS[modules]]
    _write_json(folder / "modules.json", listed)
    for name, path, settings in _LISTS[modules][1:]:
        _write_json(folder / path / ("router_config.json" if name == "Router" else "config.json"), settings)
        homes = [folder / path / route for route in settings["types"]] if name == "Router" else [folder / path]
        for home in homes:
            if name in ("Dense", "Router"):
                _write_json(home / "config.json", _HEAD | (_OF_TOKENS if modules == "tokens" else {}))
                head = {"linear.weight": rng.standard_normal((4, 8)), "linear.bias": np.zeros(4)}
                save_file({name: x.astype(np.float32) for name, x in head.items()}, home / "model.safetensors")
            elif name == "WeightedLayerPooling":
                save_file({"layer_weights": np.ones(2, np.float32)}, home / "model.safetensors")
    settings = {"transformer_task": "fill-mask"} if modules == "sparse" else {}
    if modules == "tokens":
        settings["query_expansion"] = {"strategy": "fixed", "attend": False, "length": 12, "token": "h"}
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": 16, "do_lower_case": False, **settings})
    kept = {"model_type": _CLASSES.get(modules, "SentenceTransformer"), "prompts": {"query": "a "}}
    _write_json(folder / "config_sentence_transformers.json", kept)
    _write_json(folder / "tokenizer_config.json", {"model_max_length": 20, "mask_token": "h"})
    save_file(_tensors(config, modules, rng), folder / "model.safetensors")
    tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def _tensors(config, modules, rng):
    """Return random tensors of a network by the names that its architecture gives them."""
    model = (MaskedModel if modules == "sparse" else TextNetwork)(config)
    model.build()
    starts = model.names("")
    shapes = {f"{starts[slot.path]}.{slot.part}": slot.shape for _, slots in slots_in(model) for slot in slots}
    s, types = model.settings, "embeddings/token_type"
    if s.type_vocab_size:  # its table may be a part of that of positions
        shapes[f"{starts[types]}.weight"] = (s.type_vocab_size, s.embedding_width)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


# ---- damage


def _json(folder, draw):
    path = draw.choice(sorted(folder.rglob("*.json")))
    content = json.loads(path.read_text())
    container, key = draw.choice(list(hostile_folders.places(content)))
    change = draw.randrange(4)
    if change == 0:
        del container[key]
    elif change == 1 and isinstance(container, dict):
        container[draw.choice(("rope_scaling", "layer_types", "path", "types", "is_causal", "k"))] = draw.choice(
            hostile_folders.VALUES
        )
    else:
        container[key] = draw.choice(hostile_folders.VALUES)
    path.write_text(json.dumps(content))


def _header(folder, draw):
    hostile_folders.mutate_header(draw.choice(sorted(folder.rglob("*.safetensors"))), draw)


def _tensor(folder, draw):
    path = draw.choice(sorted(folder.rglob("*.safetensors")))
    tensors = load_file(path)
    name = draw.choice(sorted(tensors))
    x = tensors.pop(name)
    change = draw.randrange(5)
    if change < 4:
        others = (x[:0], x.astype(np.int32), x[..., np.newaxis], np.full_like(x, np.nan))
        tensors[name] = np.ascontiguousarray(others[change])
    if change == 4 and draw.random() < 0.5:
        tensors[f"{name}.more"] = x
    save_file(tensors, path)


def _bytes(folder, draw):
    path = draw.choice([path for path in sorted(folder.rglob("*")) if path.is_file()])
    path.write_bytes(damaged(np.random.default_rng(draw.randrange(2**32)), path.read_bytes()))


_DAMAGES = (_json, _json, _json, _json, _header, _tensor, _bytes)


def run(folder, rng):
    """Open and use one damaged folder; raise if it takes too much memory, or ends by anything but a refusal."""
    draw, room = random.Random(int(rng.integers(2**62))), folder / "room"
    shutil.rmtree(room, ignore_errors=True)
    shutil.copytree(draw.choice(sorted((folder / "seeds").iterdir())), room)
    for _ in range(draw.randint(1, 3)):
        with contextlib.suppress(
            ValueError, AttributeError, TypeError, IndexError, SafetensorError
        ):  # of what is damaged
            draw.choice(_DAMAGES)(room, draw)
    with peak() as most:
        with contextlib.suppress(*REFUSALS):
            _use(room)
        allocated = most()
    assert allocated <= MEMORY, f"{allocated} bytes were allocated"


def _use(folder):
    """Open a folder by the class that it is for, and give it texts."""
    model = class_of(folder).from_folder(folder)
    for name in ("encode", "encode_query", "encode_sparse", "encode_multi"):
        if hasattr(model, name):
            getattr(model, name)(TEXTS[:1] if model.max_length > 64 else TEXTS)
