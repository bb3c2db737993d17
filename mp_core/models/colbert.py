"""ColBERT folders of PyLate 3 and of Stanford, from before sentence-transformers supported such encoders.

They are read as in sentence-transformers 6: a marker, a special token of the tokenizer, is put before each text;
queries are padded with a token to a fixed length; the vectors of punctuation in documents are dropped.
"""

import string
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mp_core.models.files import tensors_in
from mp_core.models.folder import read_object, read_optional
from mp_core.models.modules import TRANSFORMER, Modules, modules_needed, read_network
from mp_core.models.pooling import unit
from mp_core.models.rules import ANY, SWITCH, Rule, check, only
from mp_core.models.steps import KINDS_OF_STEPS, Step, product, read_steps
from mp_core.utilities.system import is_present

__all__ = ["PYLATE", "STANFORD", "format_of", "read_colbert"]

PYLATE, STANFORD = "PyLate", "Stanford"
_CONFIG, _METADATA = "config_sentence_transformers.json", "artifact.metadata"
_TEXT: Rule = lambda value: value is None or isinstance(value, str), "a string or null"
_LENGTH: Rule = lambda value: value is None or (type(value) is int and value > 1), "an integer of at least 2 or null"
_PROMPTS: Rule = (
    lambda value: isinstance(value, dict) and all(text is None or isinstance(text, str) for text in value.values()),
    "an object of strings",
)
_WORDS: Rule = (
    lambda value: value is None or (isinstance(value, list) and all(isinstance(word, str) for word in value)),
    "a list of str or null",
)
_PYLATE: dict[str, Rule] = {
    "__version__": ANY,
    "model_type": only("ColBERT"),
    "similarity_fn_name": only(None, "MaxSim", "cosine", "dot"),  # "cosine" and "dot" are defaults that PyLate writes
    "prompts": _PROMPTS,
    "default_prompt_name": only(None),
    "query_prefix": _TEXT,
    "document_prefix": _TEXT,
    "query_length": _LENGTH,
    "document_length": _LENGTH,
    "attend_to_expansion_tokens": SWITCH,
    "do_query_expansion": SWITCH,
    "skiplist_words": _WORDS,
}
_STANFORD: dict[str, Rule] = {
    "query_token_id": _TEXT,
    "doc_token_id": _TEXT,
    "query_maxlen": _LENGTH,
    "doc_maxlen": _LENGTH,
    "attend_to_mask_tokens": SWITCH,
    "mask_punctuation": SWITCH,
    "similarity": only("cosine"),
}
"""The settings in ``artifact.metadata`` that change the vectors; others configure the index and the training."""
_LENGTHS = {"query_length", "document_length"}
_DEFAULT = 32  # the default number of tokens of a query


def format_of(folder: Path) -> str | None:
    """Return :data:`PYLATE` or :data:`STANFORD` for a ColBERT folder of that format, else None."""
    config = folder / _CONFIG
    if is_present(config) and read_object(config).get("model_type") == "ColBERT":
        return PYLATE
    if is_present(folder / "modules.json") or not is_present(folder / "config.json"):
        return None
    names = read_object(folder / "config.json").get("architectures")
    return STANFORD if isinstance(names, list) and "HF_ColBERT" in names else None


def read_colbert(folder: Path, kind: str) -> tuple[Modules, dict[str, Any]]:
    """Return the modules of a ColBERT folder, and its settings of queries and documents in the current format."""
    return _FORMATS[kind](folder)


def _pylate(folder: Path) -> tuple[Modules, dict[str, Any]]:
    config = read_object(folder / _CONFIG)
    check(folder / _CONFIG, config, _PYLATE)
    (_, network), *others = modules_needed(folder, (("Transformer",),), KINDS_OF_STEPS)
    found = read_network(network, TRANSFORMER | dict.fromkeys(_LENGTHS, _LENGTH))
    steps = read_steps(others, found.settings.hidden_size, (None, "token_embeddings"))
    markers = {task: config.get(f"{task}_prefix") or "" for task in ("query", "document")}
    prompts = {name: text or "" for name, text in (config.get("prompts") or {}).items()}
    prompts |= {task: marker + prompts.get(task, "").removeprefix(marker) for task, marker in markers.items()}
    words = config.get("skiplist_words")
    options: dict[str, Any] = {"skiplist_words": list(string.punctuation) if words is None else words}
    options["document_length"] = config.get("document_length")
    if config.get("do_query_expansion", True):
        attend = config.get("attend_to_expansion_tokens", False)
        options["query_expansion"] = _expansion(attend, config.get("query_length"))
    else:
        options["query_length"] = config.get("query_length")
    return _normalized(found, steps, markers, prompts), options


def _stanford(folder: Path) -> tuple[Modules, dict[str, Any]]:
    path = folder / _METADATA
    written = read_optional(path)
    config = {name: value for name, value in written.items() if name in _STANFORD}
    check(path, config, _STANFORD)
    found = read_network(folder)
    file, tensors, _ = tensors_in(folder)
    step = product(
        file,
        {name: x for name, x in tensors.items() if name == "linear.weight"},
        found.settings.hidden_size,
    )
    entries = {"query": ("query_token_id", "[unused0]"), "document": ("doc_token_id", "[unused1]")}
    markers = {task: f"{config.get(entry) or default} " for task, (entry, default) in entries.items()}
    options = {
        "skiplist_words": list(string.punctuation) if config.get("mask_punctuation", True) else [],
        "document_length": config.get("doc_maxlen"),
        "query_expansion": _expansion(config.get("attend_to_mask_tokens", False), config.get("query_maxlen")),
    }
    return _normalized(found, (step,), markers, markers), options


def _expansion(attend: bool, length: int | None) -> dict[str, Any]:
    return {"strategy": "fixed", "attend": attend, "length": length or _DEFAULT}


def _normalized(
    found: Modules, steps: tuple[Step, ...], markers: Mapping[str, str], prompts: Mapping[str, str]
) -> Modules:
    width = steps[-1].width if steps else found.settings.hidden_size
    every = (*steps, Step("Normalize", unit, width))
    return replace(found, steps=every, prompts=dict(prompts), markers=tuple(filter(None, markers.values())))


_FORMATS = {PYLATE: _pylate, STANFORD: _stanford}
