"""Networks with the head of a masked language model: at each token of a text, a logit for each of the vocabulary."""

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
    """The layers between a network and its logits, as ``transformers`` writes them.

    Attributes
    ----------
    dense, norm : str
        How the names of the tensors of the product and of the normalization begin.
    output : str
        The same of the product with the vocabulary, whose matrix is the table of the vocabulary if the file has none.
    bias : str
        The name of the vector that this product adds, in files that have no ``{output}.bias``.
    activation : str or None
        The entry of ``config.json`` that names the activation after the first product; None: it is gelu.
    switches : tuple of (str, str)
        The entries that say whether the first product and the normalization add vectors, if ``config.json`` does.
    """

    dense: str
    norm: str
    output: str
    bias: str
    activation: str | None = None
    switches: tuple[str, str] | None = None


_AFTER = _Head(dense="lm_head.dense", norm="lm_head.layer_norm", output="lm_head.decoder", bias="lm_head.bias")
_HEADS = {
    "bert": _Head(
        dense="cls.predictions.transform.dense",
        norm="cls.predictions.transform.LayerNorm",
        output="cls.predictions.decoder",
        bias="cls.predictions.bias",
        activation="hidden_act",
    ),
    "roberta": _AFTER,
    "xlm-roberta": _AFTER,
    "camembert": _AFTER,
    "mpnet": _AFTER,
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
"""The values of ``model_type`` whose networks may have the head of a masked language model."""


class _Transform(Part):
    """A product and a normalization: what the vocabulary is multiplied by."""

    def __init__(self, settings: Settings, activation: str, biases: tuple[bool, bool], **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self._activation, self._biases = activation, biases

    def build(self, input_shape: Shape) -> None:
        """Create the layers."""
        width = self.settings.hidden_size
        self.inner = self.dense("dense", width, width, self._activation, self._biases[0])
        self.norm = self.normalization("norm", self._biases[1])
        self.output = self.dense("output", self.settings.vocab_size, width, "relu")

    def call(self, hidden: Array) -> Array:
        """Return the vectors that the vocabulary is multiplied by."""
        outputs: Array = self.norm(self.inner(hidden))
        return outputs


class MaskedModel(TextNetwork):
    """A network and the head of a masked language model.

    Parameters
    ----------
    config : dict
        What ``config.json`` says.
    **kwargs
        Those of :class:`TextNetwork`. The layers of the head are at ``head/dense``, ``head/norm`` and ``head/output``.
    """

    def __init__(self, config: Mapping[str, Any], types: int = 1, **kwargs: Any) -> None:
        super().__init__(config, types, **kwargs)
        self.check(self.config, "`config`")
        self._own = _HEADS[self.config["model_type"]]

    @staticmethod
    def check(config: Mapping[str, Any], path: Any) -> None:
        """Raise ValueError, with the path, if mp_core does not compute the head that ``config.json`` says."""
        kind = config["model_type"]
        if kind not in _HEADS:
            raise ValueError(f"{path}: model_type is {kind!r}, whose logits mp_core lacks; expected {choices(_HEADS)}")
        _activation(_HEADS[kind], config, path)
        _biases(_HEADS[kind], config, path)

    def _build_parts(self, input_shape: Shape) -> None:
        super()._build_parts(input_shape)
        activation, biases = (
            _activation(self._own, self.config, "`config`"),
            _biases(self._own, self.config, "`config`"),
        )
        self.head = _Transform(self.settings, activation, biases, name="head", dtype=self.dtype_policy)
        self.head.build((None, self.settings.hidden_size))

    def names(self, prefix: str) -> dict[str, str]:
        """Return the path of each layer -> how the names of its tensors begin; the head's are the same everywhere."""
        own = {"head/dense": self._own.dense, "head/norm": self._own.norm, "head/output": self._own.output}
        return super().names(prefix) | own

    def aliases(self, tensors: Iterable[str], prefix: str) -> dict[str, str]:
        """Return the names of the head's tensors that the file has under another name -> that name."""
        table = f"{self.names(prefix)['embeddings/word']}.weight"
        others = {f"{self._own.output}.weight": table, f"{self._own.output}.bias": self._own.bias}
        return {name: other for name, other in others.items() if name not in tensors}

    def pooled(self, ids: Array, offsets: Array, pooling: str, logs: int) -> Array:
        """Return the weights of the vocabulary for texts that lie one behind the other.

        Parameters
        ----------
        ids : ndarray of int32, shape (tokens,)
        offsets : ndarray of int32, shape (n + 1,)
            Where each text begins and the last one ends.
        pooling : {"max", "sum"}
        logs : int
            How often ``log1p`` is applied to logits, of which negative ones count as 0.

        Returns
        -------
        ndarray of float32, shape (n, vocabulary)
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
    for _ in range(times):  # it never falls, so that the largest logit has the largest weight
        x = ops.log1p(x)
    return x


_TOKENS = 128  # of a text whose logits are in memory at a time: 16 MB of a vocabulary of 30,000


def _activation(head: _Head, config: Mapping[str, Any], path: Any) -> str:
    """Return the name of the activation after the first product."""
    said = "gelu" if head.activation is None else config.get(head.activation, "gelu")
    if not isinstance(said, str) or said not in ACTIVATIONS:
        raise unexpected(path, str(head.activation), said, choices(ACTIVATIONS))
    return ACTIVATIONS[said]


def _biases(head: _Head, config: Mapping[str, Any], path: Any) -> tuple[bool, bool]:
    """Return whether the first product and the normalization add vectors."""
    if head.switches is None:
        return True, True
    dense, norm = (config.get(entry, False) for entry in head.switches)
    for entry, value in zip(head.switches, (dense, norm), strict=True):
        if not isinstance(value, bool):
            raise unexpected(path, entry, value, "true or false")
    return dense, norm
