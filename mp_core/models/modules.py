"""The settings of a sentence-transformers folder: the network, and the modules before and after it.

That library passes most settings to constructors. A setting that mp_core does not know might change the vectors, so it
is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mp_core.files.checkpoint.folder import missing
from mp_core.models.architectures import architecture_of
from mp_core.models.architectures.jina import JINA_V3_OWN
from mp_core.models.architectures.static import one_table
from mp_core.models.files import tensors_in
from mp_core.models.folder import read_list, read_object
from mp_core.models.pooling import POOLINGS
from mp_core.models.routes import ROUTERS, Router, read_router
from mp_core.models.rules import ANY, PLACE, SWITCH, TEXT, Rule, check, only, read_known
from mp_core.models.settings import LEAST_TOKENS, Settings, choices
from mp_core.models.steps import KINDS_OF_STEPS, Step, read_layer_weights, read_steps
from mp_core.utilities.system import is_present

__all__ = [
    "TRANSFORMER",
    "Modules",
    "kinds_of",
    "modules_listed",
    "modules_needed",
    "read_cross",
    "read_modules",
    "read_network",
    "read_pooled",
    "read_prompts",
    "router_in",
    "token_limit",
]

_ORDER = (("Transformer",), ("Pooling",))
_LAYERS = "WeightedLayerPooling"

# Switch of a pooling in files older than 2026 -> the pooling's name. Several poolings are concatenated in this order.
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

_EMPTY = only(None, {})


def _texts(how: Mapping[str, str]) -> Rule:
    """Return the rule for an object whose entry ``text`` is `how`; entries for other modalities are allowed."""
    return lambda value: isinstance(value, dict) and value.get("text") == how, f"an object whose text is {how}"


def _harmless(*dtypes: str, **more: Rule) -> Rule:
    """Return the rule for loader arguments that do not change the vectors: those in `_LOADING`, `dtypes` and `more`."""
    known = dict.fromkeys(_LOADING, ANY) | dict.fromkeys(dtypes, only(None, "auto", "float32")) | more

    def fits(value: Any) -> bool:
        return value is None or (
            isinstance(value, dict) and all(name in known and known[name][0](entry) for name, entry in value.items())
        )

    return fits, f"an object with some of {', '.join(known)}, or null"


_LOADING = (
    "trust_remote_code", "revision", "token", "cache_dir", "local_files_only", "force_download", "code_revision",
)  # fmt: skip
_MODEL_ARGUMENTS = _harmless(
    *("torch_dtype", "dtype"),
    **dict.fromkeys(
        ("attn_implementation", "add_pooling_layer", "device_map", "low_cpu_mem_usage", "use_safetensors"), ANY
    ),
)
_TOKENIZER_ARGUMENTS = _harmless(use_fast=ANY)
_CONFIG_ARGUMENTS = _harmless(use_cache=ANY)
TRANSFORMER: dict[str, Rule] = {
    "max_seq_length": ANY,  # `token_limit` checks it
    "do_lower_case": SWITCH,
    "transformer_task": only("feature-extraction"),
    "modality_config": _texts({"method": "forward", "method_output_name": "last_hidden_state"}),
    "module_output_name": only("token_embeddings"),
    "unpad_inputs": ANY,  # only changes the layout of batches
    "query_length": only(None),
    "document_length": only(None),
    "query_expansion": only(None),
    "processing_kwargs": _EMPTY,
    "model_kwargs": _MODEL_ARGUMENTS,
    "processor_kwargs": _TOKENIZER_ARGUMENTS,
    "config_kwargs": _CONFIG_ARGUMENTS,
    "model_args": _MODEL_ARGUMENTS,
    "tokenizer_args": _TOKENIZER_ARGUMENTS,
    "config_args": _CONFIG_ARGUMENTS,
    "tokenizer_name_or_path": only(None),
}
_LENGTH: Rule = (
    lambda value: value is None or (type(value) is int and value > 0),
    "a positive integer or null",
)
_MODEL: dict[str, Rule] = {
    "__version__": ANY,
    "model_type": only("SentenceTransformer"),
    "similarity_fn_name": only(None, "cosine", "dot", "euclidean", "manhattan"),
    "prompts": (
        lambda value: isinstance(value, dict) and all(text is None or isinstance(text, str) for text in value.values()),
        "an object of strings",
    ),
    "default_prompt_name": (lambda value: value is None or isinstance(value, str), "a string or null"),
    "truncate_dim": _LENGTH,
}
_CROSS_TRANSFORMER: dict[str, Rule] = TRANSFORMER | {
    "transformer_task": only("sequence-classification"),
    "modality_config": only({"text": {"method": "forward", "method_output_name": "logits"}}),
    "module_output_name": only("scores"),
}
_LOGITS = {"method": "forward", "method_output_name": "logits"}
_CAUSAL_TRANSFORMER: dict[str, Rule] = TRANSFORMER | {
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
_LOGIT_SCORE: dict[str, Rule] = {
    "true_token_id": ANY,  # checked against the vocabulary
    "false_token_id": ANY,
    "module_input_name": only("causal_logits"),
}
_CROSS: dict[str, Rule] = {
    "__version__": ANY,
    "model_type": only("CrossEncoder"),
    "prompts": ANY,  # prompts are not used
    "default_prompt_name": only(None),
    "activation_fn": ANY,  # checked together with the other entries for the activation
    "keep_in_fp32_modules": only(None, []),
}
_MODULE: dict[str, Rule] = {
    "idx": ANY,
    "name": ANY,
    "path": PLACE,
    "type": TEXT,
    "kwargs": only(None, []),
}


@dataclass(frozen=True, slots=True)
class Modules:
    """All settings of a folder: the network, and the steps before and after it."""

    network: Path  # The folder of the network and its tokenizer.
    config: dict[str, Any]  # The network's ``config.json``.
    settings: Settings  # The settings in `config` that affect the computation.
    poolings: tuple[str, ...] = ()  # Names in `mp_core.models.pooling.POOLINGS`.
    include_prompt: bool = True  # Whether the tokens of a prompt are pooled too.
    steps: tuple[Step, ...] = ()  # The modules after the pooling.
    max_length: int | None = None  # The most tokens of a text, if a file limits them.
    lower_case: bool = False  # Whether texts are lowercased first.
    prompts: Mapping[str, str] = field(default_factory=dict)  # Name -> prompt, a text that is put before each text.
    default_prompt_name: str | None = None  # The name of the default prompt.
    truncate_dim: int | None = None  # The number of dimensions of an embedding to keep.
    max_active_dims: int | None = None  # The most non-zero numbers of a sparse vector to keep.
    similarity: str = "cosine"  # The name of the similarity function of two embeddings.
    special_tokens: bool = True  # Whether the tokenizer adds special tokens to a text.
    # Texts that older ColBERT folders put before a text, and that the tokenizer must treat as one special token.
    markers: tuple[str, ...] = ()
    # The weights of the embeddings and of each block's outputs, if the output is their weighted sum.
    layer_weights: tuple[float, ...] | None = None
    # The routes of the folder, if it has some. The other attributes then describe one route.
    router: Router | None = None


def read_modules(folder: Path, task: str | None = None) -> Modules:
    """Read ``modules.json`` and the files of its modules; refuse modules that mp_core does not support.

    If the folder has routes, read the modules of the route for `task`.
    """
    router = router_in(folder)
    route = None if router is None else router.route_of(task)
    return replace(_read_static(folder, route) or _read_transformer(folder, route), router=router)


def _read_static(folder: Path, route: str | None) -> Modules | None:
    """Return the modules of a folder of static embeddings by sentence-transformers or model2vec; None for any other.

    No setting gives the size of the table, so it is read from the tensor file.
    """
    listing, config_file = folder / "modules.json", folder / "config.json"
    if is_present(listing):
        if kinds_of(folder, route)[:1] != ["StaticEmbedding"]:
            return None
        (_, network), *others = modules_listed(folder, (("StaticEmbedding",),), KINDS_OF_STEPS, route)
    elif is_present(config_file) and read_object(config_file).get("model_type") == "model2vec":
        normalizes = read_object(config_file).get("normalize") is True
        network, others = folder, [("Normalize", folder / "no file")] * normalizes
    else:
        return None
    path, tensors, _ = tensors_in(network)
    tables = {name: tensor.shape for name, tensor in one_table(tensors, path).items()}
    shape: tuple[int, ...] = next(iter(tables.values()), ())
    if len(shape) != 2 or tables.keys() not in ({"embedding.weight"}, {"embeddings"}):
        expected = "'embedding.weight', or 'embeddings' and maybe 'mapping' and 'weights', with two axes"
        raise ValueError(
            f"{path} has {', '.join(f'{name} {size}' for name, size in tables.items())}; expected {expected}"
        )
    config = {"model_type": "model2vec", "vocab_size": shape[0], "hidden_dim": shape[1]}
    return Modules(
        network=network,
        config=config,
        settings=architecture_of(config, path).read(config, path),
        poolings=("mean",),
        steps=read_steps(others, shape[1]),
        special_tokens=False,
        **read_prompts(folder / "config_sentence_transformers.json"),
    )


def _read_transformer(folder: Path, route: str | None) -> Modules:
    network, layers, pooling, others = _module_folders(folder, route)
    found = read_pooled(network, pooling, others)
    return replace(
        found,
        layer_weights=None if layers is None else read_layer_weights(layers, found.settings, found.config),
        **read_prompts(folder / "config_sentence_transformers.json"),
    )


def read_pooled(network: Path, pooling: Path, others: Sequence[tuple[str, Path]]) -> Modules:
    """Return the modules in the folders of a network, of its pooling and of the modules after it."""
    found = read_network(network)
    width = found.settings.vector_size
    poolings, include_prompt = _read_pooling(pooling / "config.json", width)
    steps = read_steps(others, width * len(poolings))
    return replace(found, poolings=poolings, include_prompt=include_prompt, steps=steps)


def read_network(network: Path, rules: Mapping[str, Rule] = TRANSFORMER) -> Modules:
    """Return the settings of a network and its texts; `rules` apply to its ``sentence_bert_config.json``."""
    path = network / "config.json"
    config = read_object(path)
    settings = architecture_of(config, path).read(config, path)
    path = network / "sentence_bert_config.json"
    options = read_known(path, rules)
    return Modules(
        network=network,
        config=config,
        settings=settings,
        max_length=token_limit(path, options, "max_seq_length"),
        lower_case=options.get("do_lower_case", False),
    )


def read_cross(folder: Path) -> tuple[Modules, Any]:
    """Return the settings of a cross-encoder, and the class name of its activation, None if no file names one."""
    listed = modules_listed(folder, (("Transformer",), ("LogitScore",)), ())
    is_causal = len(listed) > 1
    rules = _CAUSAL_TRANSFORMER if is_causal else _CROSS_TRANSFORMER
    found = read_network(listed[0][1] if listed else folder, rules)
    config = found.config
    if is_causal:
        config |= read_known(listed[1][1] / "config.json", _LOGIT_SCORE)
    activation = read_known(folder / "config_sentence_transformers.json", _CROSS).get("activation_fn")
    if activation is None:
        library = config.get("sentence_transformers") or {}
        if not isinstance(library, dict):
            raise ValueError(
                f"{found.network / 'config.json'}: sentence_transformers is {library!r}; expected an object"
            )
        activation = library.get("activation_fn")
    return found, config.get("sbert_ce_default_activation_function") if activation is None else activation


def token_limit(path: Path, settings: Mapping[str, Any], key: str) -> int | None:
    """Return the most tokens of a text that a file allows; None if it sets no limit."""
    limit = settings.get(key)
    if limit is None:
        return None
    if not (isinstance(limit, int | float) and limit >= LEAST_TOKENS and limit % 1 == 0):
        raise ValueError(f"{path}: {key} is {limit!r}; expected an integer of at least {LEAST_TOKENS}")
    return int(limit)


def _module_folders(folder: Path, route: str | None) -> tuple[Path, Path | None, Path, list[tuple[str, Path]]]:
    """Return the folders of the network, of ``WeightedLayerPooling`` or None, of the pooling, and of later modules.

    Later modules are a list of (kind, folder).
    """
    mixed = kinds_of(folder, route)[1:2] == [_LAYERS]
    if not is_present(folder / "modules.json"):
        return folder, None, folder / "1_Pooling", []
    order = (_ORDER[0], (_LAYERS,), _ORDER[1]) if mixed else _ORDER
    listed = modules_needed(folder, order, KINDS_OF_STEPS, route)
    layers = listed.pop(1)[1] if mixed else None
    (_, network), (_, pooling), *others = listed
    return network, layers, pooling, others


def router_in(folder: Path) -> Router | None:
    """Return the routes of a folder; None if none of its modules has routes."""
    found = [place for kind, place in _entries(folder) if kind.rpartition(".")[2] in ROUTERS]
    if len(found) > 1:
        raise ValueError(f"{folder / 'modules.json'} lists {len(found)} modules with routes; expected one at most")
    return read_router(found[0]) if found else None


def modules_listed(
    folder: Path, order: Sequence[tuple[str, ...]], others: tuple[str, ...], route: str | None = None
) -> list[tuple[str, Path]]:
    """Return (kind, folder) of each module in ``modules.json``; an empty list without this file.

    Module i must be of one of the kinds in ``order[i]``, later modules of one in `others`. A module with routes is
    replaced by the modules of its route.
    """
    path = folder / "modules.json"
    if not is_present(path):
        return []
    found = _listed(folder, route)
    for place, (kind, _) in enumerate(found):
        allowed = order[place] if place < len(order) else others
        if not kind.startswith("sentence_transformers.") or kind.rpartition(".")[2] not in allowed:
            expected = choices(allowed) or "nothing"
            raise ValueError(f"{path}: module {place} is {kind!r}; expected {expected} of sentence_transformers")
    if not found:
        raise ValueError(f"{path} lists 0 modules; expected {choices(kind for kinds in order for kind in kinds)}")
    return [(kind.rpartition(".")[2], home) for kind, home in found]


def modules_needed(
    folder: Path, order: Sequence[tuple[str, ...]], others: tuple[str, ...], route: str | None = None
) -> list[tuple[str, Path]]:
    """Return :func:`modules_listed`; raise if the file is missing, or lists fewer modules than `order`."""
    path = folder / "modules.json"
    if not is_present(path):
        raise missing(path)
    found = modules_listed(folder, order, others, route)
    if len(found) < len(order):
        expected = ", ".join(map(choices, order))
        raise ValueError(
            f"{path} lists {len(found)} modules; expected {expected}{' and maybe others' if others else ''}"
        )
    return found


def _listed(folder: Path, route: str | None) -> list[tuple[str, Path]]:
    """Return (class, folder) of each module; a module with routes is replaced by the modules of its route."""
    found: list[tuple[str, Path]] = []
    for kind, home in _entries(folder):
        has_routes = route is not None and kind.rpartition(".")[2] in ROUTERS
        found += read_router(home).routes[str(route)] if has_routes else [(kind, home)]
    return found


def _entries(folder: Path) -> list[tuple[str, Path]]:
    """Return (class, folder) of each entry of ``modules.json``; an empty list without this file."""
    path = folder / "modules.json"
    found = []
    for module in read_list(path) if is_present(path) else []:
        if not isinstance(module, dict):
            raise ValueError(f"{path} lists {module!r}; expected JSON objects only")
        module = _known(module, folder)
        check(path, module, _MODULE)
        found.append((module.get("type", ""), folder / module.get("path", "")))
    return found


def kinds_of(folder: Path, route: str | None) -> list[str]:
    """Return the class names of a folder's modules, without their packages."""
    return [kind.rpartition(".")[2] for kind, _ in _listed(folder, route)]


def _known(module: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return an entry of ``modules.json``, with equivalent classes replaced by those of sentence-transformers.

    These are PyLate's ``Dense``, and the class of jina-embeddings-v3, whose code in the folder is not run.
    """
    if module.get("type") == "pylate.models.Dense.Dense":
        return {**module, "type": "sentence_transformers.models.Dense"}
    if module.get("type") != "custom_st.Transformer" or module.get("path") != "":
        return module
    path = folder / "config.json"
    if not is_present(path) or architecture_of(read_object(path), path) is not JINA_V3_OWN:
        return module
    kept = {name: value for name, value in module.items() if (name, value) != ("kwargs", ["task"])}
    return kept | {"type": "sentence_transformers.models.Transformer"}


def _read_pooling(path: Path, width: int) -> tuple[tuple[str, ...], bool]:
    """Return the names of the poolings, and whether they include the prompt; `width` is that of the network."""
    as_wide: Rule = lambda value: value == width, f"hidden_size, {width}"
    rules = {
        "word_embedding_dimension": as_wide,
        "embedding_dimension": as_wide,
        "pooling_mode": ANY,  # checked below
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
    """Return the settings in ``config_sentence_transformers.json``; `kind` is the expected class of the model."""
    own = {"max_active_dims": _LENGTH} if kind == "SparseEncoder" else {}
    config = read_known(path, _MODEL | {"model_type": only(kind)} | own)
    prompts = {"query": "", "document": ""} | {name: text or "" for name, text in config.get("prompts", {}).items()}
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ValueError(f"{path}: default_prompt_name is {default!r}; expected {choices(prompts)}")
    return {
        "prompts": prompts,
        "default_prompt_name": default,
        "truncate_dim": config.get("truncate_dim"),
        "max_active_dims": config.get("max_active_dims"),
        "similarity": config.get("similarity_fn_name") or "cosine",
    }
