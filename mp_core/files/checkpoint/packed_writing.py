"""Write the codes of a converted folder in the layouts of compressed-tensors, which transformers and others open."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mp_core.arrays import F32, I8, I32, Array, cast
from mp_core.arrays.quantization import QuantizedArray
from mp_core.files.checkpoint.coding import QUANTIZATION, Coding, Kind
from mp_core.files.checkpoint.conversion_plan import RequestError
from mp_core.files.checkpoint.folder import Checkpoint, Shard, open_checkpoint
from mp_core.files.checkpoint.header import Entry, write_header
from mp_core.files.checkpoint.loading import open_tensors, policies_of
from mp_core.files.checkpoint.output import OutFile
from mp_core.files.checkpoint.reading import read_file
from mp_core.files.checkpoint.tensors import POLICIES, POLICY, Tensor
from mp_core.policies.dtype_policies import policy_of

__all__ = ["check_home", "group_of", "kinds_of", "write_compressed"]

_FORMATS = {
    ("int4", "float"): "pack-quantized",
    ("int4", "dynamic"): "pack-quantized",
    ("int8", "float"): "pack-quantized",
    ("int8", "dynamic"): "int-quantized",
    ("mxint8", "float"): "pack-quantized",
    ("float8_e4m3fn", "float"): "float-quantized",
    ("mxfp8_e4m3", "float"): "float-quantized",
    ("mxfp4", "float"): "mxfp4-pack-quantized",
    ("mxfp4", "dynamic"): "mxfp4-pack-quantized",
}
"""Codes and kind of inputs of a scheme -> the format of compressed-tensors."""
_DYNAMIC = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
_INTEGERS, _BYTES = np.dtype(np.int64), np.dtype(np.uint8)


def group_of(name: str, coding: Coding, zeros: bool, policy: str | None) -> dict[str, Any]:
    """Return the entry of ``config_groups``, without its targets, for a weight.

    Parameters
    ----------
    name : str
    coding : Coding
    zeros : bool
        Whether there are zero points.
    policy : str or None
        The policy under which layers use the weight.

    Raises
    ------
    RequestError
        compressed-tensors has no format for such codes.
    """
    scheme = None if policy is None else policy_of(policy).scheme
    inputs = "fixed" if coding.fixed_inputs else "float" if scheme is None else scheme.inputs
    codes = coding.dtype if scheme is None else scheme.codes
    layout, size = _FORMATS.get((codes, inputs)), coding.group_size
    if layout is None or coding.blocks is not None:
        written = " or ".join(f"{name} with {kind} inputs" for name, kind in _FORMATS)
        raise RequestError(
            f"tensor {name!r} is {codes} with {inputs} inputs; compressed-tensors can hold {written}: use "
            "another policy or keep (--keep)"
        )
    if not name.endswith(".weight") or len(coding.shape) != 2 or (size is not None and coding.shape[1] % size):
        raise RequestError(
            f"tensor {name!r} of shape {coding.shape} in groups of {size} has no place in compressed-tensors, which "
            "takes matrices called NAME.weight whose lines are whole groups: use keep (--keep) for it"
        )
    strategy = "group" if size else "channel" if coding.axis else "tensor"
    weights = {
        "num_bits": 8 // coding.codes_per_element,
        "type": "float" if coding.is_float else "int",
        "symmetric": not zeros,
        "strategy": strategy,
        "group_size": {"group": size, "channel": -1}.get(strategy),
        "dynamic": False,
    }
    return {
        "weights": weights,
        "input_activations": _DYNAMIC if inputs == "dynamic" else None,
        "output_activations": None,
        "format": layout,
    }


def kinds_of(name: str, coding: Coding, zeros: bool, layout: str) -> dict[str, Kind]:
    """Return the type and shape of each tensor of a weight, by name; the arguments are those of :func:`group_of`."""
    (n, k), scales = coding.shape, coding.scale_shape if coding.axis else (1,)
    if layout.startswith("mx"):
        return {f"{name}_packed": coding.stored, f"{name}_scale": (_BYTES, scales)}
    if layout != "pack-quantized":
        return {name: coding.stored, f"{name}_scale": (F32, scales)} | (
            {f"{name}_zero_point": (I8, scales)} if zeros else {}
        )
    per = 4 * coding.codes_per_element
    kinds: dict[str, Kind] = {
        f"{name}_packed": (I32, (n, -(-k // per))),
        f"{name}_scale": (F32, scales),
        f"{name}_shape": (_INTEGERS, (2,)),
    }
    if zeros:
        kinds[f"{name}_zero_point"] = (I32, (-(-n // per), coding.groups)) if coding.axis else (I8, scales)
    return kinds


def _parts(name: str, q: QuantizedArray, kinds: Mapping[str, Kind]) -> dict[str, Array]:
    """Return the tensors of a weight by name."""
    zero = None if q.zero_point is None else q.zero_point.astype(np.int8)
    bits = 4 if q.dtype.name == "int4" else 8
    parts: dict[str, Array] = {f"{name}_scale": q.scale}
    if kinds[f"{name}_scale"][0] == _BYTES:
        parts = {f"{name}_packed": q.values, f"{name}_scale": _exponents(name, q.scale)}
    elif f"{name}_packed" in kinds:
        codes = np.zeros((kinds[f"{name}_packed"][1][0], 4 * kinds[f"{name}_packed"][1][1]), np.uint8)
        stored = q.values.view(np.uint8)
        codes[:, : stored.shape[1]] = stored ^ (0x88 if bits == 4 else 0x80)
        if bits == 4 and q.shape[1] % 2:
            codes[:, stored.shape[1] - 1] &= 15  # the unused half of the last byte
        parts |= {f"{name}_packed": codes.view(np.int32), f"{name}_shape": np.array(q.shape, _INTEGERS)}
        if zero is not None and q.axis:
            zero = np.ascontiguousarray(_words(zero.T, bits).T)
    else:
        parts[name] = q.values
    if zero is not None:
        parts[f"{name}_zero_point"] = zero
    return {part: parts[part].reshape(shape) for part, (_, shape) in kinds.items()}


def _exponents(name: str, scale: Array) -> Array:
    """Return scales that are powers of two as their exponents plus 127, uint8."""
    powers = cast(scale, "float8_e8m0fnu")
    if (cast(powers, F32) != scale).any():
        raise RequestError(
            f"tensor {name!r} has scales that are no powers of two, which mxfp4-pack-quantized has: use another policy"
        )
    return powers.view(np.uint8)


def _words(codes: Array, bits: int) -> Array:
    """Return signed codes, one in each element, in the bits of int32, plus ``2^(bits - 1)``: (lines, words)."""
    lines, n = codes.shape
    per = 32 // bits
    padded = np.zeros((lines, -(-n // per) * per), np.uint8)
    padded[:, :n] = codes.astype(np.int16) + (1 << (bits - 1))
    if bits == 4:
        padded = padded[:, ::2] | (padded[:, 1::2] << 4)
    return np.ascontiguousarray(padded).view(np.int32)


def check_home(checkpoint: Checkpoint, shard: Shard) -> None:
    """Raise RequestError unless a network's ``config.json`` is beside a file with codes: it gets their description."""
    path = shard.path.with_name("config.json")
    beside = Path(shard.name).with_name("config.json").as_posix() in checkpoint.others
    if not beside or "model_type" not in _object(path):
        raise RequestError(
            f"{path} is no configuration of a network with a model_type, which must describe the codes in "
            f"{shard.name}: give the folder of a model, and keep (--keep) the tensors of other modules"
        )


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if it holds anything else."""
    try:
        content = json.loads(read_file(path))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def write_compressed(folder: Path) -> None:
    """Rewrite a folder of mp_core's codes in the layouts of compressed-tensors, with its ``config.json``."""
    checkpoint = open_checkpoint(folder)
    homes: dict[Path, dict[str, dict[str, Any]]] = {}
    for shard in checkpoint.shards.values():
        default, policies = policies_of(shard)
        groups = {
            name: group_of(name, tensor.coding, _has_zeros(tensor), policies.get(name, default))
            for name, tensor in shard.tensors.items()
            if tensor.coding is not None
        }
        homes.setdefault(shard.path.parent, {}).update(groups)
        _rewrite(shard, groups)
    for index in checkpoint.indices:
        shards = {name: Shard.open(folder, name) for name in index.shards}
        files = {name: Path(file).name for file, shard in shards.items() for name in shard.header.entries}
        size = sum(entry.nbytes for shard in shards.values() for entry in shard.header.entries.values())
        metadata = index.content["metadata"] | {"total_size": size}
        _write_json(folder / index.name, index.content | {"metadata": metadata, "weight_map": files})
    for home, groups in ((home, groups) for home, groups in homes.items() if groups):
        matrices = {
            name.removesuffix(".weight")
            for shard in checkpoint.shards.values()
            for name, tensor in shard.tensors.items()
            if shard.path.parent == home and len(tensor.shape) == 2
        }
        path = home / "config.json"
        _write_json(path, _object(path) | {"quantization_config": _configuration(groups, matrices)})


def _has_zeros(tensor: Tensor) -> bool:
    return tensor.part("zero_point") is not None


def _rewrite(shard: Shard, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace one file by its tensors in the layouts of compressed-tensors."""
    kinds: dict[str, dict[str, Kind]] = {}
    for name, tensor in shard.tensors.items():
        if tensor.coding is None:
            kinds[name] = tensor.kinds
        else:
            kinds[name] = kinds_of(name, tensor.coding, _has_zeros(tensor), groups[name]["format"])
    metadata = {k: v for k, v in shard.header.metadata.items() if k not in (QUANTIZATION, POLICY, POLICIES)}
    head, entries = write_header({part: kind for own in kinds.values() for part, kind in own.items()}, metadata)
    new = shard.path.with_name(f".{shard.path.name}.new")
    with OutFile(new) as out:
        out.write(head, 0)
        _write_parts(shard.path, out, kinds, entries)
    os.replace(new, shard.path)


def _write_parts(
    path: Path, out: OutFile, kinds: Mapping[str, Mapping[str, Kind]], entries: Mapping[str, Entry]
) -> None:
    """Write the tensors of a file into another one; at the end, none is mapped into memory."""
    for name, value in open_tensors(path).items():
        parts = _parts(name, value, kinds[name]) if isinstance(value, QuantizedArray) else {name: value}
        for part, array in parts.items():
            out.write(np.ascontiguousarray(array), entries[part].start)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.unlink()
    with OutFile(path) as out:
        out.write(json.dumps(content, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n", 0)


def _configuration(groups: Mapping[str, Mapping[str, Any]], matrices: Iterable[str]) -> dict[str, Any]:
    """Return the ``quantization_config``; `matrices` are the names of all modules with a matrix."""
    members: dict[str, list[str]] = {}
    for name, group in groups.items():
        members.setdefault(json.dumps(group), []).append(name.removesuffix(".weight"))
    formats = {group["format"] for group in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{number}": {"targets": _targets(names, set(matrices) - set(names))} | json.loads(group)
            for number, (group, names) in enumerate(members.items())
        },
        "ignore": [],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _targets(names: Sequence[str], others: Iterable[str]) -> list[str]:
    """Return patterns that match all of these modules, and none of the others.

    A pattern has the end of a name, as short as possible, because a network inside another one has longer names.
    Numbers of layers are left open if all layers are alike.
    """
    found: dict[str, None] = {}
    text = "\n".join(others)
    for name in names:
        parts = name.split(".")
        starts = range(len(parts) - (2 if any(part.isdigit() for part in parts) else 1), -1, -1)
        ends = [[*map(re.escape, parts[start:])] for start in starts]
        opened = [["[0-9]+" if part.isdigit() else part for part in end] for end in ends]
        patterns = [".*" + r"\.".join(end) + "$" for end in (*opened, *ends)]
        found[next((p for p in patterns if not re.search(f"^{p}", text, re.MULTILINE)), re.escape(name) + "$")] = None
    return [f"re:{pattern}" for pattern in found]
