"""Networks with a masked language model head: for each token of a text, logits over the vocabulary."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.models.blocks import Part, Shape
from mp_core.models.network import TextNetwork
from mp_core.models.settings import ACTIVATIONS, Settings, choices, unexpected

__all__ = ["MASKED", "MaskedModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The layers between a network and its logits, as ``transformers`` writes them."""

    dense: str  # `dense`, `norm`: The start of the tensor names of the first product and of the norm.
    norm: str
    # The same for the product to the vocabulary. If the file lacks its matrix, it is the word embedding table.
    output: str
    bias: str  # The name of the bias of that product in files without ``{output}.bias``.
    # The entry of ``config.json`` for the activation after the first product; None: always gelu.
    activation: str | None = None
    # The entries of ``config.json`` for whether the first product and the norm have a bias; None: both have.
    switches: tuple[str, str] | None = None


_LM_HEAD = _Head(dense="lm_head.dense", norm="lm_head.layer_norm", output="lm_head.decoder", bias="lm_head.bias")
_HEADS = {
    "bert": _Head(
        dense="cls.predictions.transform.dense",
        norm="cls.predictions.transform.LayerNorm",
        output="cls.predictions.decoder",
        bias="cls.predictions.bias",
        activation="hidden_act",
    ),
    "roberta": _LM_HEAD,
    "xlm-roberta": _LM_HEAD,
    "camembert": _LM_HEAD,
    "mpnet": _LM_HEAD,
    "distilbert": _Head(
        dense="vocab_transform",
        norm="vocab_layer_norm",
        output="vocab_projector",
        bias="vocab_projector.bias",
        activation="activation",
    ),
    "modernbert": _Head(
        dense="head.dense",
        norm="head.norm",
        output="decoder",
        bias="decoder.bias",
        activation="classifier_activation",
        switches=("classifier_bias", "norm_bias"),
    ),
}
MASKED = tuple(_HEADS)
"""Each ``model_type`` that may have a masked language model head."""


class _Transform(Part):
    """The layers of the head: a product and a norm (:meth:`call`), and the product to the vocabulary (`output`)."""

    def __init__(self, settings: Settings, activation: str, biases: tuple[bool, bool], **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self._activation, self._biases = activation, biases

    def build(self, input_shape: Shape) -> None:
        width = self.settings.hidden_size
        self.inner = self.dense("dense", width, width, self._activation, self._biases[0])
        self.norm = self.normalization("norm", self._biases[1])
        self.output = self.dense("output", self.settings.vocab_size, width, "relu")

    def call(self, hidden: Array) -> Array:
        """Return the input vectors of the product to the vocabulary."""
        outputs: Array = self.norm(self.inner(hidden))
        return outputs


class MaskedModel(TextNetwork):
    """A network with a masked language model head: the layers ``head/dense``, ``head/norm`` and ``head/output``."""

    def __init__(self, config: Mapping[str, Any], types: int = 1, **kwargs: Any) -> None:
        super().__init__(config, types, **kwargs)
        self.check(self.config, "`config`")
        self._layout = _HEADS[self.config["model_type"]]

    @staticmethod
    def check(config: Mapping[str, Any], path: Any) -> None:
        """Raise ValueError, which names `path`, if mp_core does not support the head of a ``config.json``."""
        kind = config["model_type"]
        if kind not in _HEADS:
            raise ValueError(f"{path}: model_type is {kind!r}, whose logits mp_core lacks; expected {choices(_HEADS)}")
        _activation(_HEADS[kind], config, path)
        _biases(_HEADS[kind], config, path)

    def _build_parts(self, input_shape: Shape) -> None:
        super()._build_parts(input_shape)
        activation, biases = (
            _activation(self._layout, self.config, "`config`"),
            _biases(self._layout, self.config, "`config`"),
        )
        self.head = _Transform(self.settings, activation, biases, name="head", dtype=self.dtype_policy)
        self.head.build((None, self.settings.hidden_size))

    def names(self, prefix: str) -> dict[str, str]:
        """Return the path of each layer -> the start of its tensor names; the prefix does not apply to the head."""
        own = {"head/dense": self._layout.dense, "head/norm": self._layout.norm, "head/output": self._layout.output}
        return super().names(prefix) | own

    def aliases(self, tensors: Iterable[str], prefix: str) -> dict[str, str]:
        """Return name of a tensor of the head that the file lacks -> the name of the tensor to use instead."""
        table = f"{self.names(prefix)['embeddings/word']}.weight"
        others = {f"{self._layout.output}.weight": table, f"{self._layout.output}.bias": self._layout.bias}
        return {name: other for name, other in others.items() if name not in tensors}

    def pooled(self, ids: Array, offsets: Array, pooling: str, logs: int) -> Array:
        """Return the weights of the vocabulary for ragged texts, float32, shape (n, vocabulary).

        `pooling` is "max" or "sum"; ``log1p`` is applied `logs` times to the logits, of which negative ones count as 0.
        """
        hidden = self.head(self.ragged(ids, offsets))
        out = np.zeros((len(offsets) - 1, self.settings.vocab_size), F32)
        for row, (begin, end) in zip(out, pairwise(offsets), strict=True):
            for first in range(begin, end, _TOKENS):
                logits = ops.cast(self.head.output(hidden[first : min(first + _TOKENS, end)]), F32)
                if pooling == "max":
                    np.maximum(row, logits.max(axis=0), out=row)
                else:
                    row += ops.sum(_log1p(logits, logs), axis=0)
        return _log1p(out, logs) if pooling == "max" else out


def _log1p(x: Array, times: int) -> Array:
    for _ in range(times):  # log1p is monotonic: the largest logit has the largest weight
        x = ops.log1p(x)
    return x


_TOKENS = 128
"""The number of tokens whose logits are in memory at once: 16 MB for a vocabulary of 30,522."""


def _activation(head: _Head, config: Mapping[str, Any], path: Any) -> str:
    name = "gelu" if head.activation is None else config.get(head.activation, "gelu")
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise unexpected(path, str(head.activation), name, choices(ACTIVATIONS))
    return ACTIVATIONS[name]


def _biases(head: _Head, config: Mapping[str, Any], path: Any) -> tuple[bool, bool]:
    if head.switches is None:
        return True, True
    dense, norm = (config.get(entry, False) for entry in head.switches)
    for entry, value in zip(head.switches, (dense, norm), strict=True):
        if not isinstance(value, bool):
            raise unexpected(path, entry, value, "true or false")
    return dense, norm
