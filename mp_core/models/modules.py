"""What the JSON files of a sentence-transformers folder say about everything around the network.

That library hands most of these settings to constructors. One that mp_core does not know might change what they do, so
it is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mp_core.models.architectures import architecture_of
from mp_core.models.architectures.jina import JINA_V3_OWN
from mp_core.models.files import tensors_in
from mp_core.models.folder import read_list, read_object
from mp_core.models.pooling import POOLINGS
from mp_core.models.settings import LEAST_TOKENS, Settings, choices
from mp_core.models.steps import KINDS_OF_STEPS, Step, read_steps

__all__ = [
    "SWITCH",
    "TRANSFORMER",
    "Modules",
    "Rule",
    "check",
    "modules_listed",
    "only",
    "read_cross",
    "read_known",
    "read_modules",
    "read_prompts",
    "token_limit",
]

_ORDER = (("Transformer",), ("Pooling",))

# Switch of a pooling in files of before 2026 -> its name; the poolings that are on stand side by side in this order.
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

Rule = tuple[Callable[[Any], bool], str]
"""The function that says whether a setting may have a value, and the allowed values, as a part of a sentence."""


def only(*allowed: Any) -> Rule:
    """Return the rule that a setting is one of these."""
    return lambda value: value in allowed, choices(allowed)


SWITCH: Rule = lambda value: isinstance(value, bool), "true or false"
"""The rule that a setting is on or off."""

_ANY: Rule = lambda _: True, "anything"
_NOTHING = only(None, {})

TRANSFORMER: dict[str, Rule] = {
    "max_seq_length": _ANY,  # checked as a limit
    "do_lower_case": SWITCH,
    "transformer_task": only("feature-extraction"),
    "modality_config": only({"text": {"method": "forward", "method_output_name": "last_hidden_state"}}),
    "module_output_name": only("token_embeddings"),
    "unpad_inputs": _ANY,  # how batches are laid out
    "query_length": only(None),
    "document_length": only(None),
    "query_expansion": only(None),
    "processing_kwargs": _NOTHING,
    "model_kwargs": _NOTHING,
    "processor_kwargs": _NOTHING,
    "config_kwargs": _NOTHING,
    "model_args": _NOTHING,
    "tokenizer_args": _NOTHING,
    "config_args": _NOTHING,
    "tokenizer_name_or_path": only(None),
}
_MODEL: dict[str, Rule] = {
    "__version__": _ANY,
    "model_type": only("SentenceTransformer"),
    "similarity_fn_name": only(None, "cosine", "dot", "euclidean", "manhattan"),
    "prompts": (
        lambda value: isinstance(value, dict) and all(text is None or isinstance(text, str) for text in value.values()),
        "an object of strings",
    ),
    "default_prompt_name": (lambda value: value is None or isinstance(value, str), "a string or null"),
    "truncate_dim": (
        lambda value: value is None or (type(value) is int and value > 0),
        "a positive integer or null",
    ),
}
_CROSS_TRANSFORMER: dict[str, Rule] = TRANSFORMER | {
    "transformer_task": only("sequence-classification"),
    "modality_config": only({"text": {"method": "forward", "method_output_name": "logits"}}),
    "module_output_name": only("scores"),
}
_LOGITS = {"method": "forward", "method_output_name": "logits"}
_ANSWERING_TRANSFORMER: dict[str, Rule] = TRANSFORMER | {
    "transformer_task": only("text-generation"),
    "modality_config": (
        lambda value: (
            isinstance(value, dict)
            and value.get("text") == _LOGITS
            and value.get("message", _LOGITS) in [_LOGITS | extra for extra in ({}, {"format": "flat"})]
            and value.keys() <= {"text", "message"}
        ),
        f"text and message of {_LOGITS}",
    ),
    "module_output_name": only("causal_logits"),
}
_ANSWER: dict[str, Rule] = {
    "true_token_id": _ANY,  # checked with the vocabulary
    "false_token_id": _ANY,
    "module_input_name": only("causal_logits"),
}
_CROSS: dict[str, Rule] = {
    "__version__": _ANY,
    "model_type": only("CrossEncoder"),
    "prompts": _ANY,  # none is used
    "default_prompt_name": only(None),
    "activation_fn": _ANY,  # checked as the other entries that may say it
    "keep_in_fp32_modules": only(None, []),
}
_MODULE: dict[str, Rule] = {
    "idx": _ANY,
    "name": _ANY,
    "path": (
        lambda value: (
            isinstance(value, str) and not PurePosixPath(value).is_absolute() and ".." not in PurePosixPath(value).parts
        ),
        "a path in the folder",
    ),
    "type": (lambda value: isinstance(value, str), "a string"),
    "kwargs": only(None, []),
}


@dataclass(frozen=True, slots=True)
class Modules:
    """All settings of a folder: those of the network, and of the steps before and after it.

    Attributes
    ----------
    network : Path
        The folder that holds the network and its tokenizer.
    config : dict
        What ``config.json`` says of the network.
    settings : Settings
        What of it decides how the network computes.
    poolings : tuple of str
        Names in :data:`~mp_core.models.pooling.POOLINGS`.
    include_prompt : bool
        Whether the tokens of a prompt are pooled, too.
    steps : tuple of Step
        What is done with the pooled vectors.
    max_length : int or None
        The most tokens of a text, if a file says so.
    lower_case : bool
        Whether texts are lowercased before all else.
    prompts : mapping of str to str
        Texts to be put before each text, by name.
    default_prompt_name : str or None
        The name of the prompt that is used if the caller names none.
    truncate_dim : int or None
        How many numbers of an embedding are kept.
    similarity : str
        The name of the similarity of two embeddings.
    special_tokens : bool
        Whether the tokenizer adds its special tokens to a text.
    """

    network: Path
    config: dict[str, Any]
    settings: Settings
    poolings: tuple[str, ...]
    include_prompt: bool
    steps: tuple[Step, ...]
    max_length: int | None
    lower_case: bool
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    truncate_dim: int | None
    similarity: str = "cosine"
    special_tokens: bool = True


def read_modules(folder: Path) -> Modules:
    """Read ``modules.json`` and the files of the modules that it lists; refuse those that mp_core does not compute."""
    return _read_static(folder) or _read_transformer(folder)


def _read_static(folder: Path) -> Modules | None:
    """Return the modules of a folder of static embeddings, as sentence-transformers or model2vec writes it, if it is.

    Neither says in words how large the table is, so its file does.
    """
    listing, said = folder / "modules.json", folder / "config.json"
    if listing.exists():
        first = next(iter(read_list(listing)), None)
        if not isinstance(first, dict) or str(first.get("type")).rpartition(".")[2] != "StaticEmbedding":
            return None
        (_, network), *others = modules_listed(folder, (("StaticEmbedding",),), KINDS_OF_STEPS)
    elif said.exists() and read_object(said).get("model_type") == "model2vec":
        network, others = folder, [("Normalize", folder / "no file")] * (read_object(said).get("normalize") is True)
    else:
        return None
    path, tensors, _ = tensors_in(network)
    tables = {name: tensor.shape for name, tensor in tensors.items()}
    shape: tuple[int, ...] = next(iter(tables.values()), ())
    if len(shape) != 2 or tables.keys() not in ({"embedding.weight"}, {"embeddings"}):
        expected = "'embedding.weight' or 'embeddings' alone, with two axes"
        raise ValueError(
            f"{path} has {', '.join(f'{name} {size}' for name, size in tables.items())}; expected {expected}"
        )
    config = {"model_type": "model2vec", "vocab_size": shape[0], "hidden_dim": shape[1]}
    return Modules(
        network=network,
        config=config,
        settings=architecture_of(config, path).read(config, path),
        poolings=("mean",),
        include_prompt=True,
        steps=read_steps(others, shape[1]),
        max_length=None,
        lower_case=False,
        special_tokens=False,
        **read_prompts(folder / "config_sentence_transformers.json"),
    )


def _read_transformer(folder: Path) -> Modules:
    """Return the modules of a folder of a transformer."""
    network, pooling, others = _module_folders(folder)
    path = network / "config.json"
    config = read_object(path)
    settings = architecture_of(config, path).read(config, path)
    poolings, include_prompt = _read_pooling(pooling / "config.json", settings.hidden_size)
    path = network / "sentence_bert_config.json"
    transformer = read_known(path, TRANSFORMER)
    return Modules(
        network=network,
        config=config,
        settings=settings,
        poolings=poolings,
        include_prompt=include_prompt,
        steps=read_steps(others, settings.hidden_size * len(poolings)),
        max_length=token_limit(path, transformer, "max_seq_length"),
        lower_case=transformer.get("do_lower_case", False),
        **read_prompts(folder / "config_sentence_transformers.json"),
    )


def read_cross(folder: Path) -> tuple[Modules, Any]:
    """Return the settings of a cross-encoder, and the name that they give the activation of its scores, if any."""
    listed = modules_listed(folder, (("Transformer",), ("LogitScore",)), ())
    network = listed[0][1] if listed else folder
    path = network / "config.json"
    config = read_object(path)
    settings = architecture_of(config, path).read(config, path)
    answers = len(listed) > 1
    if answers:
        config |= read_known(listed[1][1] / "config.json", _ANSWER)
    rules = _ANSWERING_TRANSFORMER if answers else _CROSS_TRANSFORMER
    transformer = read_known(network / "sentence_bert_config.json", rules)
    said = read_known(folder / "config_sentence_transformers.json", _CROSS).get("activation_fn")
    if said is None:
        library = config.get("sentence_transformers") or {}
        if not isinstance(library, dict):
            raise ValueError(f"{path}: sentence_transformers is {library!r}; expected an object")
        said = library.get("activation_fn")
    return Modules(
        network=network,
        config=config,
        settings=settings,
        poolings=(),
        include_prompt=True,
        steps=(),
        max_length=token_limit(network / "sentence_bert_config.json", transformer, "max_seq_length"),
        lower_case=transformer.get("do_lower_case", False),
        prompts={},
        default_prompt_name=None,
        truncate_dim=None,
    ), config.get("sbert_ce_default_activation_function") if said is None else said


def token_limit(path: Path, settings: Mapping[str, Any], key: str) -> int | None:
    """Return the most tokens of a text that a file states, if it does."""
    limit = settings.get(key)
    if limit is None:
        return None
    if not (isinstance(limit, int | float) and limit >= LEAST_TOKENS and limit % 1 == 0):
        raise ValueError(f"{path}: {key} is {limit!r}; expected an integer of at least {LEAST_TOKENS}")
    return int(limit)


def _module_folders(folder: Path) -> tuple[Path, Path, list[tuple[str, Path]]]:
    """Return where the settings of the network and of the pooling are, and the kinds and folders of what follows."""
    listed = modules_listed(folder, _ORDER, KINDS_OF_STEPS)
    if not listed:
        return folder, folder / "1_Pooling", []
    if len(listed) < 2:
        path = folder / "modules.json"
        raise ValueError(f"{path} lists {len(listed)} modules; expected 'Transformer', 'Pooling' and maybe others")
    (_, network), (_, pooling), *others = listed
    return network, pooling, others


def modules_listed(folder: Path, order: Sequence[tuple[str, ...]], others: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Return the kinds and folders of the modules that ``modules.json`` lists; none without this file.

    The first ones must be of the kinds in `order`, those behind them of `others`.
    """
    path = folder / "modules.json"
    if not path.exists():
        return []
    found = []
    for place, module in enumerate(read_list(path)):
        if not isinstance(module, dict):
            raise ValueError(f"{path} lists {module!r}; expected JSON objects only")
        module = _known(module, folder)
        check(path, module, _MODULE)
        kind = module.get("type", "")
        allowed = order[place] if place < len(order) else others
        if not kind.startswith("sentence_transformers.") or kind.rpartition(".")[2] not in allowed:
            expected = choices(allowed) or "nothing"
            raise ValueError(f"{path}: module {place} is {kind!r}; expected {expected} of sentence_transformers")
        found.append((kind.rpartition(".")[2], folder / module.get("path", "")))
    if not found:
        raise ValueError(f"{path} lists 0 modules; expected {choices(kind for kinds in order for kind in kinds)}")
    return found


def _known(module: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return a module as it is; that of jina-embeddings-v3, whose code is not run, as the one that it extends."""
    if module.get("type") != "custom_st.Transformer" or module.get("path") != "":
        return module
    path = folder / "config.json"
    if not path.exists() or architecture_of(read_object(path), path) is not JINA_V3_OWN:
        return module
    kept = {name: value for name, value in module.items() if (name, value) != ("kwargs", ["task"])}
    return kept | {"type": "sentence_transformers.models.Transformer"}


def _read_pooling(path: Path, width: int) -> tuple[tuple[str, ...], bool]:
    """Return the poolings of vectors of this width, and whether they include the prompt."""
    as_wide: Rule = lambda value: value == width, f"hidden_size, {width}"
    rules = {
        "word_embedding_dimension": as_wide,
        "embedding_dimension": as_wide,
        "pooling_mode": _ANY,  # checked below
        "include_prompt": SWITCH,
        **dict.fromkeys(_SWITCHES, SWITCH),
    }
    config = read_object(path)
    check(path, config, rules)
    chosen = config.get("pooling_mode")
    if chosen is None:
        chosen = [name for switch, name in _SWITCHES.items() if config.get(switch)] or ["mean"]
    names = [chosen] if isinstance(chosen, str) else chosen
    if not isinstance(names, list) or not names or any(name not in list(POOLINGS) for name in names):
        raise ValueError(f"{path}: pooling_mode is {chosen!r}; expected {choices(POOLINGS)}, or a list of them")
    return tuple(names), config.get("include_prompt", True)


def read_prompts(path: Path, kind: str = "SentenceTransformer") -> dict[str, Any]:
    """Return the settings of the model as a whole, which is of this class of sentence-transformers."""
    config = read_known(path, _MODEL | {"model_type": only(kind)})
    prompts = {"query": "", "document": ""} | {name: text or "" for name, text in config.get("prompts", {}).items()}
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ValueError(f"{path}: default_prompt_name is {default!r}; expected {choices(prompts)}")
    return {
        "prompts": prompts,
        "default_prompt_name": default,
        "truncate_dim": config.get("truncate_dim"),
        "similarity": config.get("similarity_fn_name") or "cosine",
    }


def read_known(path: Path, rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return the settings in a file that may be missing, all of them known."""
    settings = read_object(path) if path.exists() else {}
    check(path, settings, rules)
    return settings


def check(path: Path, settings: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Raise ValueError unless all settings of a file are known and may have their values."""
    for name, value in settings.items():
        if name not in rules:
            raise ValueError(f"{path}: setting {name!r} is unknown; expected {choices(rules)}")
        fits, expected = rules[name]
        if not fits(value):
            raise ValueError(f"{path}: {name} is {value!r}; expected {expected}")
