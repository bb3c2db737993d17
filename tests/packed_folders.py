"""Weights in the layouts of compressed-tensors, AutoAWQ and GPTQ, written number by number from their descriptions.

A 32-bit word has the codes of eight (4 bits) or four (8 bits) neighbours, the first in the lowest bits, unless a layout
says otherwise. Codes in words are unsigned: 8 or 128 more than signed ones.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import tiny_bert
from safetensors.numpy import load_file, save_file

GROUP = 8
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]
"""The columns of eight whose codes AutoAWQ puts into a word, from the lowest bits on."""


def words(codes, bits, order=None):
    """Pack unsigned codes along the last axis, (lines, n) -> int32 (lines, ceil(n / per))."""
    per = 32 // bits
    lines, n = codes.shape
    found = np.zeros((lines, -(-n // per)), np.uint32)
    for column in range(n):
        word, place = divmod(column, per)
        if order is not None:
            place = order.index(place)
        found[:, word] |= codes[:, column].astype(np.uint32) << np.uint32(bits * place)
    return found.view(np.int32)


def quantized(x, bits, group, symmetric, rng, order=None):
    """Return unsigned codes (n, k), scales (n, groups), unsigned zero points or None, and what they stand for.

    `order` is the group of each column; default: neighbours.
    """
    n, k = x.shape
    order = np.arange(k) // (group or k) if order is None else order
    groups, top = order.max() + 1, 2**bits - 1
    scale = (rng.random((n, groups)) * 0.1 + 0.02).astype(np.float16).astype(np.float32)
    zero = np.full((n, groups), 2 ** (bits - 1)) if symmetric else rng.integers(0, top, (n, groups), endpoint=True)
    codes = np.clip(np.rint(x / scale[:, order]) + zero[:, order], 0, top).astype(np.int64)
    numbers = (codes - zero[:, order]).astype(np.float32) * scale[:, order]
    return codes, scale, None if symmetric else zero, numbers


def pack_quantized(x, rng, bits=4, group=GROUP, symmetric=True, order=None):
    codes, scale, zero, numbers = quantized(x, bits, group, symmetric, rng, order)
    parts = {
        "weight_packed": words(codes, bits),
        "weight_scale": scale,
        "weight_shape": np.array(x.shape, np.int64),
    }
    if zero is not None:  # packed along the outputs
        parts["weight_zero_point"] = np.ascontiguousarray(words(zero.T, bits).T)
    if order is not None:
        parts["weight_g_idx"] = order.astype(np.int32)
    return parts, numbers


def int_quantized(x, rng, group=None, symmetric=True):
    codes, scale, zero, numbers = quantized(x, 8, group, symmetric, rng)
    parts = {"weight": (codes - 128).astype(np.int8), "weight_scale": scale}
    if zero is not None:
        parts["weight_zero_point"] = (zero - 128).astype(np.int8)
    return parts, numbers


def awq(x, rng, group=GROUP):
    codes, scale, zero, numbers = quantized(x, 4, group, False, rng)
    parts = {
        "qweight": words(codes.T, 4, AWQ),
        "qzeros": words(zero.T, 4, AWQ),
        "scales": np.ascontiguousarray(scale.T).astype(np.float16),
    }
    return parts, numbers


def gptq(x, rng, bits=4, group=GROUP, symmetric=True, order=None, version=1):
    codes, scale, zero, numbers = quantized(x, bits, group, symmetric, rng, order)
    zero = np.full(scale.shape, 2 ** (bits - 1)) if zero is None else zero
    stored = (zero - 1) % 2**bits if version == 1 else zero
    k = x.shape[1]
    parts = {
        "qweight": np.ascontiguousarray(words(codes, bits).T),
        "qzeros": words(stored.T, bits),
        "scales": np.ascontiguousarray(scale.T).astype(np.float16),
        "g_idx": (np.arange(k) // (group or k) if order is None else order).astype(np.int32),
    }
    return parts, numbers


def compressed(layout, *, bits=4, group=GROUP, symmetric=True, kind="int", strategy=None, inputs=None, **more):
    """Return a ``quantization_config`` of compressed-tensors."""
    weights = {"num_bits": bits, "type": kind, "symmetric": symmetric, "dynamic": False}
    weights |= {"strategy": strategy or ("group" if group else "channel"), "group_size": group}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme},
        "ignore": [],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    } | more


def shuffled(k, group, rng):
    """Return a group for each of k columns, in random order."""
    return rng.permutation(np.arange(k) // group)


def write(folder, config, pack, keep=()):
    """Write :func:`packed_copies` of a tiny BERT."""
    return packed_copies(tiny_bert.write(Path(f"{folder}-source")), folder, config, pack, keep)


def packed_copies(source, folder, config, pack, keep=()):
    """Write a copy of a model whose matrices are packed, and in FOLDER-floats one of the numbers that they stand for.

    `pack` is a function of a matrix and a generator. Layers whose names contain one of `keep` stay floats.
    """
    rng = np.random.default_rng(5)
    packed, plain = (Path(shutil.copytree(source, target)) for target in (folder, f"{folder}-floats"))
    tensors, floats = {}, {}
    for name, x in load_file(source / "model.safetensors").items():
        if x.ndim != 2 or "embed" in name or any(part in name for part in keep):
            tensors[name] = floats[name] = x
            continue
        parts, floats[name] = pack(x, rng)
        tensors |= {f"{name.removesuffix('.weight')}.{part}": value for part, value in parts.items()}
    metadata = {"format": "pt"}
    save_file(tensors, packed / "model.safetensors", metadata)
    save_file(floats, plain / "model.safetensors", metadata)
    settings = json.loads((packed / "config.json").read_text()) | {"quantization_config": config}
    (packed / "config.json").write_text(json.dumps(settings))
    return packed, plain
