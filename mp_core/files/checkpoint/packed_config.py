"""Read ``quantization_config`` of a ``config.json``: how other programs store the weight of each module.

It has the formats of compressed-tensors, AutoAWQ, GPTQ and MXFP4. Everything that mp_core does not read is refused
here, with the file, the entry, what came and what is allowed.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from mp_core.files.checkpoint.reading import read_file
from mp_core.utilities.patterns import matcher

__all__ = ["CHANNEL", "METHODS", "TENSOR", "Block", "Quantization", "Spec", "method_note", "read_quantization"]

Block = tuple[int | None, int | None]
"""How many neighbouring rows and columns of a weight, (outputs, inputs), share a scale; None: all of them."""
TENSOR: Block = (None, None)
CHANNEL: Block = (1, None)

_TYPES = {
    "pack-quantized": (("int", 4), ("int", 8)),
    "int-quantized": (("int", 8),),
    "float-quantized": (("float", 8),),
    "naive-quantized": (("int", 8), ("float", 8)),
    "mxfp4-pack-quantized": (("float", 4),),
    "mxfp8-quantized": (("float", 8),),
    "nvfp4-pack-quantized": (("float", 4),),
}
"""Format of compressed-tensors -> the pairs of ``type`` and ``num_bits`` that mp_core reads."""
_BLOCKS = {"mxfp4-pack-quantized": 32, "mxfp8-quantized": 32, "nvfp4-pack-quantized": 16}
"""Format -> the only length of its groups."""
_MOST_RULES = 1 << 16
"""The most targets of a configuration; a network has fewer modules."""
_MOST = 1 << 31
_REQUIRED: Any = object()
"""The default of an entry that must not be missing."""


class Spec(NamedTuple):
    """How the weight of a module is stored.

    Attributes
    ----------
    layout : str
        The key of its layout in :data:`~mp_core.files.checkpoint.packed_layouts.LAYOUTS`.
    bits : int
    is_float : bool
        Whether codes are floats.
    symmetric : bool
        Whether code 0 (stored as ``2^(bits - 1)`` if codes are unsigned) always means the value 0.
    block : Block
    inputs : {"float", "dynamic", "fixed"}
        How products take their inputs: see :class:`~mp_core.dtype_policies.Scheme`.
    note : str
        The entries of the configuration that mp_core does not compute, such as ``input_activations``; "" if none.
    """

    layout: str
    bits: int
    is_float: bool
    symmetric: bool
    block: Block
    inputs: str = "float"
    note: str = ""


@dataclass(frozen=True, slots=True)
class Quantization:
    """The content of a ``quantization_config``.

    Attributes
    ----------
    method : str
        ``quant_method``.
    layouts : tuple of str
        The layouts that modules may have.
    spec : callable
        Name of a module -> its Spec; None if the configuration says that it is not quantized.
    what : str
        The file and the entry, for messages.
    """

    method: str
    layouts: tuple[str, ...]
    spec: Callable[[str], Spec | None]
    what: str


def read_quantization(folder: Path) -> Quantization | None:
    """Return the quantization of the model in a folder; None if no known method is in its ``config.json``.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        The entry contradicts itself, or asks for what mp_core does not read.
    """
    entry = _entry(folder)
    method = entry.content.get("quant_method")
    if not isinstance(method, str) or method not in METHODS:
        return None
    return Quantization(method, *METHODS[method](entry), entry.what)


def method_note(folder: Path) -> str:
    """Return what to add to an error about codes that no tensor name or configuration explains."""
    entry = _entry(folder)
    method = entry.content.get("quant_method", "missing")
    known = isinstance(method, str) and method in METHODS
    return "" if known else f"; {entry.what}: quant_method is {method!r}, expected {' or '.join(METHODS)}"


def _entry(folder: Path) -> "_Entry":
    """Return the ``quantization_config`` of a folder, empty if there is none."""
    path = folder / "config.json"
    try:
        config: Any = json.loads(read_file(path)) if path.is_file() else {}
    except (ValueError, RecursionError):  # who needs the file says what is wrong with it
        config = {}
    entry = config.get("quantization_config") if isinstance(config, dict) else None
    return _Entry(entry if isinstance(entry, dict) else {}, f"{path}: quantization_config")


class _Entry:
    """An object of the configuration whose values are checked when they are read; `what` begins messages."""

    def __init__(self, content: Mapping[str, Any], what: str) -> None:
        self.content, self.what = content, what

    def get(self, key: str, default: Any, expected: str, fits: Callable[[Any], bool]) -> Any:
        """Return a value, or `default` if it is null or missing; raise ValueError if another value does not fit."""
        value = self.content.get(key)
        if value is None and default is not _REQUIRED:
            return default
        if not fits(value):
            raise ValueError(f"{self.what}: {key} is {value!r}; expected {expected}")
        return value

    def one_of(self, key: str, default: Any, *allowed: Any) -> Any:
        """Return a value that is one of `allowed`, of the same type."""
        expected = " or ".join(map(repr, allowed))
        return self.get(key, default, expected, lambda x: any(type(x) is type(y) and x == y for y in allowed))

    def integer(self, key: str, default: Any) -> Any:
        """Return an integer."""
        return self.get(key, default, "an int", lambda x: type(x) is int)

    def size(self, key: str, default: Any) -> Any:
        """Return the length of a group: a positive even number, or -1 for all inputs."""
        return self.get(
            key,
            default,
            "-1 or a positive even number",
            lambda x: type(x) is int and (x == -1 or (0 < x < _MOST and x % 2 == 0)),
        )

    def object(self, key: str, default: Any = MappingProxyType({})) -> "_Entry":
        """Return an object inside this one, by default an empty one."""
        content = self.get(key, default, "an object", lambda x: isinstance(x, dict))
        return _Entry(content, f"{self.what}: {key}")

    def names(self, key: str) -> list[str]:
        """Return a list of strings, by default an empty one."""
        return list(self.get(key, [], f"a list of at most {_MOST_RULES} strings", _are_names))


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _MOST_RULES and all(isinstance(name, str) for name in value)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(n) is int and 0 < n < _MOST for n in value)


Parsed = tuple[tuple[str, ...], Callable[[str], Spec | None]]


# ---- compressed-tensors


def _compressed(entry: _Entry) -> Parsed:
    """Read the configuration of compressed-tensors: schemes for targets, less the ignored modules."""
    entry.get("transform_config", None, "{}: mp_core does not compute transforms", lambda x: x == {})
    entry.object("sparsity_config").one_of("format", "dense", "dense")
    groups = entry.object("config_groups", _REQUIRED)
    targets: list[tuple[str, Spec]] = []
    for name in groups.content:
        group = groups.object(name, _REQUIRED)
        if group.object("weights").content:
            spec = _scheme(group, entry)
            targets += [(target, spec) for target in group.names("targets")]
    rules = [(*_matches(target, f"{groups.what}: targets"), spec) for target, spec in sorted(targets, key=_precedence)]
    ignored = [_matches(target, f"{entry.what}: ignore") for target in entry.names("ignore")]

    def spec_of(module: str) -> Spec | None:
        if any(matches(module) for matches, is_class in ignored if not is_class):
            return None
        return next((spec for matches, is_class, spec in rules if is_class or matches(module)), None)

    return tuple(dict.fromkeys(spec.layout for _, spec in targets)), spec_of


def _precedence(rule: tuple[str, Any]) -> int:
    """Return the rank of a target: names of modules come before regular expressions, and classes are last."""
    target = rule[0]
    return 1 if target.startswith("re:") else 2 if _is_class(target) else 0


def _is_class(target: str) -> bool:
    """Return whether a target is the name of a class, such as ``Linear``, which fits all matrices."""
    return target[:1].isupper() and target.isidentifier()


def _matches(target: str, what: str) -> tuple[Callable[[str], object], bool]:
    """Return whether a module has a target: a function of its name, and whether the target is a class."""
    if not target.startswith("re:"):
        return target.__eq__, _is_class(target)
    try:
        return matcher(f"^(?:{target[3:]})", "search"), False
    except ValueError as error:
        raise ValueError(f"{what}: {target!r} is no regular expression that mp_core matches: {error}") from None


def _scheme(group: _Entry, whole: _Entry) -> Spec:
    """Return the Spec of a group of modules."""
    layout = group.one_of("format", None, *_TYPES) or whole.one_of("format", _REQUIRED, *_TYPES)
    weights = group.object("weights")
    kind = weights.one_of("type", "int", *dict.fromkeys(kind for kind, _ in _TYPES[layout]))
    bits = weights.one_of("num_bits", 8, *(bits for own, bits in _TYPES[layout] if own == kind))
    weights.one_of("dynamic", False, False)
    symmetric = weights.one_of("symmetric", True, True, *([] if kind == "float" else [False]))
    block = _block(weights)
    if layout in _BLOCKS and block != (1, _BLOCKS[layout]):
        raise ValueError(
            f"{weights.what}: scales are those of {block}; expected groups of {_BLOCKS[layout]} for {layout}"
        )
    inputs, note = _inputs(group, kind, bits, block)
    left_out = {
        "output_activations": group.object("output_activations").content,
        "kv_cache_scheme": whole.object("kv_cache_scheme").content,
    }
    notes = [note] if note else []
    return Spec(
        layout, bits, kind == "float", symmetric, block, inputs, ", ".join(notes + [k for k in left_out if left_out[k]])
    )


def _block(weights: _Entry) -> Block:
    """Return which weights share a scale."""
    size = weights.size("group_size", None)
    default = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = weights.one_of("strategy", default, "tensor", "channel", "group", "block", "tensor_group")
    strategy = "group" if strategy == "tensor_group" else strategy  # with a scale of the tensor too, for nvfp4
    if strategy == "block":
        rows, columns = weights.get("block_structure", _REQUIRED, "two positive numbers, as in [128, 128]", _is_pair)
        return rows, columns
    if (strategy == "group") != (size not in (None, -1)):
        expected = "a positive number" if strategy == "group" else "null or -1"
        raise ValueError(f"{weights.what}: group_size is {size!r}; expected {expected} for strategy {strategy!r}")
    return {"tensor": TENSOR, "channel": CHANNEL, "group": (1, size)}[strategy]


def _inputs(group: _Entry, kind: str, bits: int, block: Block) -> tuple[str, str]:
    """Return how products take their inputs, and the entry that asks for something else.

    Inputs of the type of the codes are quantized if there is a scheme for it: int8 row by row, int8 and float8 by one
    stored scale. All others stay floats.
    """
    inputs = group.object("input_activations")
    if not inputs.content:
        return "float", ""
    own = inputs.one_of("type", "int", "int", "float"), inputs.integer("num_bits", 8)
    dynamic = inputs.one_of("dynamic", False, False, True, "local")
    per_tensor = inputs.content.get("strategy", "tensor") == "tensor"
    whole_lines = block[1] is None
    fits = bits == 4 and (block[1] or 8) % 8 == 0  # kernels of 4-bit codes sum integers group by group
    if own == ("int", 8) and dynamic is True and (fits or (kind == "int" and whole_lines)):
        return "dynamic", ""
    if own == (kind, 8) and bits == 8 and dynamic is False and per_tensor and whole_lines:
        return ("fixed", "") if kind == "int" or block == TENSOR else ("float", "input_activations")
    return "float", "input_activations"


# ---- AutoAWQ, GPTQ


def _awq(entry: _Entry) -> Parsed:
    """Read the configuration of AutoAWQ."""
    bits = entry.one_of("bits", entry.one_of("w_bit", 4, 4), 4)
    entry.one_of("zero_point", True, True)
    entry.one_of("version", entry.one_of("format", "gemm", "gemm", "GEMM"), "gemm", "GEMM")
    size = entry.size("group_size", entry.size("q_group_size", 128))
    spec = Spec("awq", bits, False, False, CHANNEL if size == -1 else (1, size))
    names = entry.names("modules_to_not_convert")

    def spec_of(module: str) -> Spec | None:
        return (
            None
            if any(f".{module}.".startswith(f".{name}.") or module.endswith(f".{name}") for name in names)
            else spec
        )

    return ("awq",), spec_of


def _gptq(entry: _Entry) -> Parsed:
    """Read the configuration of GPTQ: of AutoGPTQ, optimum and GPTQModel."""
    bits = entry.one_of("bits", _REQUIRED, 4, 8)
    entry.one_of("desc_act", False, False, True)
    symmetric = entry.one_of("sym", True, True, False)
    layout = entry.one_of("checkpoint_format", entry.one_of("format", "gptq", *_GPTQ), *_GPTQ)
    entry.one_of("pack_dtype", "int32", "int32")
    size = entry.size("group_size", 128)
    kept = []
    for rule in entry.object("dynamic").content:
        if not rule.startswith("-:"):
            raise ValueError(f"{entry.what}: dynamic has the rule {rule!r}; expected rules that begin with '-:'")
        kept.append(_matches(f"re:{rule[2:]}", f"{entry.what}: dynamic")[0])
    spec = Spec(layout, bits, False, symmetric, CHANNEL if size == -1 else (1, size))
    return (layout,), lambda module: None if any(matches(module) for matches in kept) else spec


_GPTQ = "gptq", "gptq_v2"


def _mxfp4(entry: _Entry) -> Parsed:
    """Read the configuration of gpt-oss."""
    kept = entry.names("modules_to_not_convert")
    spec = Spec("mxfp4", 4, True, True, (1, 32))
    return ("mxfp4",), lambda module: None if module in kept else spec


METHODS: dict[str, Callable[[_Entry], Parsed]] = {
    "compressed-tensors": _compressed,
    "awq": _awq,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
}
"""``quant_method`` -> function that returns the layouts, and the Spec of each module."""
