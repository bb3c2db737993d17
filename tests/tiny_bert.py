"""A random BERT of 2 layers in a folder, and its forward in float64: NumPy only, written from the papers' formulas."""

import json
import math
from pathlib import Path

import numpy as np
from oracles import ACTIVATIONS
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d", "e", "f", "g", "h"]
TEXTS = ["a b c", "", "d", "a b c d e f g h a b c d", "h g f e"]  # one empty, one too long
LAYERS, WIDTH, HEADS, INNER, POSITIONS = 2, 16, 2, 24, 10
CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "vocab_size": len(WORDS),
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": POSITIONS,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}


MODULES = ("Transformer", "Pooling", "Normalize")


def write(folder: Path, *, prefix: str = "", pooling: str = "mean_tokens", **config: object) -> Path:
    """Write the files of the model; `config` replaces entries of ``config.json``."""
    (folder / "1_Pooling").mkdir(parents=True)
    paths = zip(MODULES, ("", "1_Pooling", "2_Normalize"), strict=True)
    modules = [{"type": f"sentence_transformers.models.{module}", "path": path} for module, path in paths]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    save_file({prefix + name: tensor for name, tensor in tensors().items()}, folder / "model.safetensors")
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def tensors() -> dict[str, np.ndarray]:
    """Return the same random weights in every call."""
    rng = np.random.default_rng(7)
    shapes = {
        "embeddings.word_embeddings.weight": (len(WORDS), WIDTH),
        "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
    }
    linear = {
        "attention.self.query": (WIDTH, WIDTH),
        "attention.self.key": (WIDTH, WIDTH),
        "attention.self.value": (WIDTH, WIDTH),
        "attention.output.dense": (WIDTH, WIDTH),
        "intermediate.dense": (INNER, WIDTH),
        "output.dense": (WIDTH, INNER),
    }
    norms = ["embeddings"]
    for index in range(LAYERS):
        layer = f"encoder.layer.{index}"
        norms += [f"{layer}.attention.output", f"{layer}.output"]
        for name, shape in linear.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
    drawn = {name: rng.normal(0, 0.5, shape) for name, shape in shapes.items()}
    for name in norms:
        drawn |= {
            f"{name}.LayerNorm.weight": rng.normal(1, 0.2, WIDTH),
            f"{name}.LayerNorm.bias": rng.normal(0, 1, WIDTH),
        }
    return {name: tensor.astype(np.float32) for name, tensor in drawn.items()}


def forward(folder: Path, ids: list[int], activation: str = "gelu") -> np.ndarray:
    """Return the vectors of the tokens of one text, shape (tokens, WIDTH), in float64."""
    w = {name: tensor.astype(np.float64) for name, tensor in load_file(folder / "model.safetensors").items()}

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        x = x - x.mean(axis=-1, keepdims=True)
        x /= np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-12)
        return x * w[f"{name}.LayerNorm.weight"] + w[f"{name}.LayerNorm.bias"]

    def heads(x):
        return x.reshape(len(ids), HEADS, -1).transpose(1, 0, 2)

    words, positions, types = (w[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type"))
    x = norm(words[ids] + positions[: len(ids)] + types[0], "embeddings")
    for index in range(LAYERS):
        layer = f"encoder.layer.{index}"
        q, k, v = (heads(linear(x, f"{layer}.attention.self.{part}")) for part in ("query", "key", "value"))
        scores = np.exp(q @ k.transpose(0, 2, 1) / math.sqrt(WIDTH / HEADS))
        context = (scores / scores.sum(axis=-1, keepdims=True)) @ v
        context = context.transpose(1, 0, 2).reshape(len(ids), WIDTH)
        x = norm(x + linear(context, f"{layer}.attention.output.dense"), f"{layer}.attention.output")
        inner = ACTIVATIONS[activation](linear(x, f"{layer}.intermediate.dense"))
        x = norm(x + linear(inner, f"{layer}.output.dense"), f"{layer}.output")
    return x


def edit_json(name, **entries):
    """Return a function of a folder that puts entries into one of its JSON files."""

    def edit(folder):
        path = folder / name
        path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | entries))

    return edit
