"""The modules that make sparse vectors: SPLADE pooling and autoencoder after a network, and static token weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.models.architectures import architecture_of
from mp_core.models.files import tensors_in
from mp_core.models.folder import read_object, read_optional
from mp_core.models.modules import Modules
from mp_core.models.network import TextNetwork
from mp_core.models.rules import ANY, SWITCH, Rule, check, only
from mp_core.models.settings import KINDS, unexpected
from mp_core.models.steps import checked_tensors
from mp_core.models.tokenizer import Tokenizer
from mp_core.models.weights import read_model
from mp_core.ops import PackedMatrix, pack
from mp_core.ops.norms import squared

__all__ = ["AutoEncoder", "Splade", "TokenWeights", "static_weights"]

_COUNT: Rule = KINDS[int]
_WIDTH: Rule = (lambda value: value is None or type(value) is int, "an integer or null")
_SPLADE: dict[str, Rule] = {
    "pooling_strategy": only("max", "sum"),
    "activation_function": only("relu", "log1p_relu"),
    "embedding_dimension": _WIDTH,
    "word_embedding_dimension": _WIDTH,
}
_AUTO_ENCODER: dict[str, Rule] = {
    "input_dim": _COUNT,
    "hidden_dim": _COUNT,
    "k": _COUNT,
    "k_aux": ANY,  # used only in training
    "normalize": SWITCH,
    "dead_threshold": ANY,
}
_STATIC: dict[str, Rule] = {"frozen": SWITCH, "path": only(None)}


@dataclass(frozen=True, slots=True)
class Splade:
    """The module ``SpladePooling``: from the logits of a text's tokens to one weight per vocabulary token."""

    pooling: str  # ``"max"`` or ``"sum"``.
    logs: int  # How many times ``log1p`` is applied.

    @classmethod
    def read(cls, folder: Path) -> "Splade":
        """Read the module's folder."""
        config = read_object(folder / "config.json")
        check(folder / "config.json", config, _SPLADE)
        logs = 1 + (config.get("activation_function", "relu") == "log1p_relu")
        return cls(config.get("pooling_strategy", "max"), logs)


@dataclass(frozen=True, slots=True)
class AutoEncoder:
    """The module ``SparseAutoEncoder`` [1]_: the largest of ``relu((x - before) @ matrix + after)``.

    .. [1] T. Wen et al., "Beyond Matryoshka: Revisiting Sparse Coding for Adaptive Representation", arXiv:2503.01776.
    """

    matrix: PackedMatrix  # shape (width, dim)
    # `before`, `after`: shapes (width,) and (dim,): The bias that is subtracted before the product, and the bias that
    # is added after it.
    before: Array
    after: Array
    most: int  # The default number of largest numbers to keep.
    # Whether the mean of a vector is subtracted first, and the vector divided by its standard deviation.
    normalize: bool

    @classmethod
    def read(cls, folder: Path, width: int) -> "AutoEncoder":
        """Read the module's folder, for input vectors of length `width`."""
        path = folder / "config.json"
        config = {"hidden_dim": 512, "k": 8, "normalize": False} | read_object(path)
        check(path, config, _AUTO_ENCODER)
        if config.get("input_dim") != width:
            raise unexpected(path, "input_dim", config.get("input_dim"), f"{width}, the length of the vectors before")
        dim = config["hidden_dim"]
        file, tensors, _ = tensors_in(folder)
        name = "encoder.weight" if "encoder.weight" in tensors else "decoder.linear.weight"  # tied: one matrix
        own = {"pre_bias": (width,), name: (dim, width), "latent_bias": (dim,)}
        unused = {"stats_last_nonzero", "decoder.linear.weight"} - {name}  # statistics of training, and the tied matrix
        found = {key: tensor for key, tensor in tensors.items() if key not in unused}
        before, matrix, after = checked_tensors(file, found, own)
        return cls(pack(matrix.T), before, after, config["k"], config["normalize"])

    def __call__(self, vectors: Array) -> Array:
        """Return the dense outputs, shape (n, dim); negative numbers are 0."""
        if self.normalize:
            vectors = vectors - ops.mean(vectors, axis=-1, keepdims=True)
            vectors, squares, by = squared(vectors, -1)
            deviation = np.sqrt(squares / max(vectors.shape[-1] - 1, 1))
            vectors = vectors / (deviation + F32.type(1e-5) * (F32.type(1) if by is None else by))
        outputs: Array = ops.matmul(vectors - self.before, self.matrix, bias=self.after, activation="relu")
        return outputs


def static_weights(folder: Path, prompts: Mapping[str, Any]) -> Modules:
    """Return the module ``SparseStaticEmbedding`` in a folder as a network; `prompts` are settings of the encoder."""
    path = folder / "config.json"
    check(path, read_optional(path), _STATIC)
    file, tensors, _ = tensors_in(folder)
    shape = getattr(tensors.get("weight"), "shape", ())
    (weights,) = checked_tensors(file, tensors, {"weight": shape if len(shape) == 1 else (1,)})
    config = {"model_type": "static weights", "vocab_size": len(weights)}
    settings = architecture_of(config, file).read(config, file)
    return Modules(network=folder, config=config, settings=settings, special_tokens=False, **prompts)


@dataclass(frozen=True, slots=True)
class TokenWeights:
    """Static sparse vectors: each token has a fixed weight, which is the same in all texts."""

    model: TextNetwork  # A network of static weights.
    tokenizer: Tokenizer  # A tokenizer that adds no special tokens.

    @classmethod
    def read(cls, modules: Modules) -> "TokenWeights":
        """Read the network and the tokenizer of modules from :func:`static_weights`."""
        return cls(read_model(modules.network, modules.config, None, TextNetwork)[0], Tokenizer(modules))

    def __call__(self, rows: list[Array]) -> Array:
        """Return the dense vectors of texts, shape (n, vocabulary)."""
        embeddings: Any = self.model.embeddings
        weights = embeddings.table.numpy()
        out = np.zeros((len(rows), len(weights)), F32)
        for vector, ids in zip(out, rows, strict=True):
            vector[ids] = weights[ids]
        return out
