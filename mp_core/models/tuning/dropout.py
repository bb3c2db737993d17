"""The dropout of a configuration: which entry of ``config.json`` is the rate of which place of a network."""

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
_HIDDEN = dict.fromkeys(_PLACES, ("hidden_dropout_prob",))
_OWN: dict[str, dict[str, tuple[str, ...]]] = {
    "albert": dict.fromkeys(("embeddings", "attention"), ("hidden_dropout_prob",)),
    "distilbert": {"embeddings": ("dropout",), "output": ("dropout",), "head": ("seq_classif_dropout",)},
    "modernbert": {
        "embeddings": ("embedding_dropout",), "attention": ("attention_dropout",), "head": ("classifier_dropout",),
    },
    **dict.fromkeys(("t5", "mt5"), dict.fromkeys(_PLACES[:3], ("dropout_rate",))),
    "nomic_bert": {
        "embeddings": ("embd_pdrop", "hidden_dropout_prob"), "attention": ("resid_pdrop", "hidden_dropout_prob"),
        "output": ("resid_pdrop", "hidden_dropout_prob"),
    },
    **{kind: {} for kind in ("model2vec", "qwen2", "qwen3", "llama", "mistral", "gemma3_text", "eurobert")},
}  # fmt: skip
"""``model_type`` -> the entries that may say the rate of a place, the first that is there; others are BERT's."""
_DEFAULTS = {"hidden_dropout_prob": 0.1, "dropout": 0.1, "dropout_rate": 0.1, "seq_classif_dropout": 0.2}
_WITHOUT = {"albert": 0.0, "nomic_bert": 0.0}
"""Rates of ``transformers`` where ``config.json`` says none: of entries, and of networks that have others."""


def rates_of(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the rate of dropout of each place of a network, where it is not 0.

    That of the weights of attention (``attention_probs_dropout_prob``) is left out: these weights are never stored.

    Raises
    ------
    ValueError
        A rate is no number from 0 to below 1.

    Examples
    --------
    >>> rates_of({"model_type": "distilbert", "dropout": 0.25, "seq_classif_dropout": 0.0})
    {'embeddings': 0.25, 'output': 0.25}
    """
    kind = config.get("model_type", "")
    found = {}
    for place, entries in _OWN.get(kind, _HIDDEN).items():
        said = next((entry for entry in entries if entry in config), entries[-1])
        if place == "head" and config.get("classifier_dropout") is not None:
            said = "classifier_dropout"
        rate = config.get(said, _WITHOUT.get(kind, _DEFAULTS.get(said, 0.0)))
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise unexpected("config.json", said, rate, "a number from 0 to below 1")
        if rate:
            found[place] = float(rate)
    return found


def drops_of(rates: Mapping[str, float], seeds: SeedGenerator) -> dict[str, Callable[[Array], Array]]:
    """Return the function that drops elements of each place; each call draws from the seeds."""
    return {place: partial(_drop, seeds, share(rate, "dropout")) for place, rate in rates.items()}


def _drop(seeds: SeedGenerator, rate: float, hidden: Array) -> Array:
    return dropout(hidden, seeds.next(), rate)
