"""Dropout rates: the entry of ``config.json`` for each place of a network."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mp_core.arrays import Array
from mp_core.layers.seeds import SeedGenerator
from mp_core.models.settings import unexpected
from mp_core.ops.random import dropout
from mp_core.utilities.arguments import share

__all__ = ["drops_of", "rates_of"]

_PLACES = ("embeddings", "attention", "output", "head")
_WEIGHTS: dict[str, tuple[str, ...]] = {"weights": ("attention_probs_dropout_prob",)}
_BERT = dict.fromkeys(_PLACES, ("hidden_dropout_prob",)) | _WEIGHTS
_OWN: dict[str, dict[str, tuple[str, ...]]] = {
    "albert": dict.fromkeys(("embeddings", "attention"), ("hidden_dropout_prob",)) | _WEIGHTS,
    "distilbert": {
        "embeddings": ("dropout",), "output": ("dropout",), "head": ("seq_classif_dropout",),
        "weights": ("attention_dropout",),
    },
    "modernbert": {
        "embeddings": ("embedding_dropout",), "head": ("classifier_dropout",),
        **dict.fromkeys(("attention", "weights"), ("attention_dropout",)),
    },
    **dict.fromkeys(("t5", "mt5", "umt5"), dict.fromkeys((*_PLACES[:3], "weights"), ("dropout_rate",))),
    "nomic_bert": {
        "embeddings": ("embd_pdrop", "hidden_dropout_prob"), "attention": ("resid_pdrop", "hidden_dropout_prob"),
        "output": ("resid_pdrop", "hidden_dropout_prob"), "weights": ("attn_pdrop", "attention_probs_dropout_prob"),
    },
    "model2vec": {},
    "deberta-v2": dict.fromkeys(_PLACES, ("hidden_dropout_prob",)),  # its attention has no dropout of weights
    "phi3": {"weights": ("attention_dropout",), **dict.fromkeys(("attention", "output"), ("resid_pdrop",))},
    **{
        kind: {"weights": ("attention_dropout",)}
        for kind in (
            "qwen2", "qwen3", "llama", "llama_bidirec", "mistral", "gemma", "gemma2", "gemma3_text", "eurobert",
            "embedding_gemma2_text", "embedding_gemma2",
        )
    },
}  # fmt: skip
"""``model_type`` -> place -> entries for its rate, of which the first existing one is used. Default: those of BERT."""
_DEFAULTS = {
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "dropout": 0.1, "dropout_rate": 0.1,
    "seq_classif_dropout": 0.2,
}  # fmt: skip
_OWN_DEFAULTS: dict[str, dict[str, float]] = {
    **{kind: {"attention_probs_dropout_prob": 0.0} for kind in ("gte", "new")},
    **{kind: {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} for kind in ("albert", "nomic_bert")},
    "distilbert": {"attention_dropout": 0.1},
}
"""Default rates in transformers: entry -> rate, and for some ``model_type`` other rates."""


def rates_of(config: Mapping[str, Any]) -> dict[str, float]:
    """Return place -> dropout rate, for rates other than 0. See :data:`mp_core.models.blocks.dropping` for the places.

    Examples
    --------
    >>> rates_of({"model_type": "distilbert", "dropout": 0.25, "seq_classif_dropout": 0.0})
    {'embeddings': 0.25, 'output': 0.25, 'weights': 0.1}
    """
    kind = config.get("model_type", "")
    found = {}
    defaults = _DEFAULTS | _OWN_DEFAULTS.get(kind, {})
    for place, entries in _OWN.get(kind, _BERT).items():
        entry = next((entry for entry in entries if entry in config), entries[-1])
        if place == "head" and config.get("classifier_dropout") is not None:
            entry = "classifier_dropout"
        rate = config.get(entry, defaults.get(entry, 0.0))
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise unexpected("config.json", entry, rate, "a number from 0 to below 1")
        if rate:
            found[place] = float(rate)
    return found


def drops_of(rates: Mapping[str, float], seeds: SeedGenerator) -> dict[str, Callable[..., Any]]:
    """Return place -> its dropout function; each call draws a new key from `seeds`."""
    return {
        place: partial(_weight_dropout if place == "weights" else _drop, seeds, share(rate, "dropout"))
        for place, rate in rates.items()
    }


def _drop(seeds: SeedGenerator, rate: float, hidden: Array) -> Array:
    return dropout(hidden, seeds.next(), rate)


def _weight_dropout(seeds: SeedGenerator, rate: float) -> dict[str, Any]:
    """Return the arguments of attention for dropout of its weights."""
    return {"dropout": rate, "random_key": seeds.next()}
