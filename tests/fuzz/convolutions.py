"""Convolutions: rows of the table of operations."""

import itertools

import numpy as np
from oracles import gamma, product_bound

import mp_core as mp
from fuzz.arrays import values
from fuzz.check import UNIT, WIDE, Case, wide
from mp_core import ops

__all__ = ["CONVOLUTIONS"]


def _geometry(rng, transposed=False):
    """Draw the spatial lengths of inputs, the size of a kernel, and the options of a call."""
    rank = int(rng.integers(1, 4))
    size, strides, dilation = ([int(n) for n in rng.integers(1, most, rank)] for most in (4, 4, 3))
    if transposed:
        dilation = [1] * rank if max(strides) > 1 else dilation
        return rng.integers(1, 6, rank).tolist(), size, {"strides": strides, "dilation_rate": dilation}
    padding = [tuple(int(n) for n in rng.integers(0, 3, 2)) for _ in size]
    lengths = [(n - 1) * by + 1 + int(rng.integers(0, 6)) for n, by in zip(size, dilation, strict=True)]
    return lengths, size, {"strides": strides, "padding": padding, "dilation_rate": dilation}


def _windows(x, size, strides, padding, dilation_rate):
    """All windows, shape (batch, windows ..., places, channels)."""
    x = np.pad(x, [(0, 0), *padding, (0, 0)])
    counts = [
        (n - (k - 1) * by - 1) // step + 1
        for n, k, step, by in zip(x.shape[1:-1], size, strides, dilation_rate, strict=True)
    ]
    starts = [
        [at * by for at, by in zip(place, dilation_rate, strict=True)] for place in itertools.product(*map(range, size))
    ]
    return np.stack([
        x[:, *(slice(at, at + (n - 1) * by + 1, by) for at, n, by in zip(start, counts, strides, strict=True))]
        for start in starts
    ], axis=-2)  # fmt: skip


def conv(rng):
    """Groups, packed or not, with or without a bias."""
    dtype, (lengths, size, options) = str(rng.choice(WIDE)), _geometry(rng)
    groups, depth, width = (int(rng.integers(1, most)) for most in (4, 20, 20))
    x = values(rng, (int(rng.integers(1, 4)), *lengths, groups * depth), dtype)
    kernel = values(rng, (*size, depth, groups * width), dtype)
    rows = _windows(x, size, **options)
    parts = [np.ascontiguousarray(part).reshape(-1, rows.shape[-2] * depth)
             for part in np.split(rows, groups, axis=-1)]  # fmt: skip
    matrices = np.split(kernel.reshape(-1, groups * width), groups, axis=-1)
    shape = (*rows.shape[:-2], groups * width)
    pairs = list(zip(parts, matrices, strict=True))
    exact = np.concatenate([wide(a) @ wide(b) for a, b in pairs], axis=-1).reshape(shape)
    bound = np.concatenate([product_bound(a, b, dtype, "float32") for a, b in pairs], axis=-1).reshape(shape)
    if rng.random() < 0.3:
        options["bias"] = rng.standard_normal(groups * width).astype(np.float32)
        bound, exact = bound + UNIT * (np.abs(exact) + bound + 2 * np.abs(options["bias"])), exact + options["bias"]
    packs = rng.random() < 0.4

    def convolve(x, kernel, **options):
        if not packs:
            return ops.conv(x, kernel, **options)
        matrix = np.stack(np.split(np.asarray(kernel).reshape(-1, groups * width), groups, axis=-1))
        return ops.conv(x, mp.pack(matrix if groups > 1 else matrix[0]), kernel_size=size, **options)

    if packs:  # the kernel is no operand, so that no plan and no gradient sees it
        return Case(lambda x, **options: convolve(x, kernel, **options), (x,), options, exact, bound)
    return Case(convolve, (x, kernel), options, exact, bound)


def depthwise_conv(rng):
    dtype, (lengths, size, options) = str(rng.choice(WIDE)), _geometry(rng)
    channels, multiplier = int(rng.integers(1, 40)), int(rng.integers(1, 3))
    x = values(rng, (int(rng.integers(1, 4)), *lengths, channels), dtype)
    kernel = values(rng, (*size, channels, multiplier), dtype)
    rows, weights = _windows(wide(x), size, **options), wide(kernel).reshape(-1, channels, multiplier)
    exact, total = (
        (a[..., np.newaxis] * b).sum(axis=-3).reshape(*rows.shape[:-2], -1)
        for a, b in ((rows, weights), (np.abs(rows), np.abs(weights)))
    )
    return Case(ops.depthwise_conv, (x, kernel), options, exact, gamma(len(weights)) * total + 2.0**-140)


def conv_transpose(rng):
    dtype, (lengths, size, options) = str(rng.choice(WIDE)), _geometry(rng, transposed=True)
    channels, filters = (int(n) for n in rng.integers(1, 20, 2))
    x = values(rng, (int(rng.integers(1, 4)), *lengths, channels), dtype)
    kernel = values(rng, (*size, filters, channels), dtype)
    exact, total = (
        _added(a, b, **options) for a, b in ((wide(x), wide(kernel)), (np.abs(wide(x)), np.abs(wide(kernel))))
    )
    error = gamma(channels + kernel.size // (channels * filters)) * total + 2.0**-100 * (1 + total)
    return Case(ops.conv_transpose, (x, kernel), options, exact, error)


def _added(x, kernel, strides, dilation_rate):
    """The sum of the kernel times each element, at its place."""
    size = kernel.shape[: len(strides)]
    axes = list(zip(x.shape[1:-1], size, strides, dilation_rate, strict=True))
    out = np.zeros((len(x), *((n - 1) * s + max((k - 1) * by + 1, s) for n, k, s, by in axes), kernel.shape[-2]))
    for place in itertools.product(*map(range, size)):
        to = (slice(at * by, at * by + (n - 1) * s + 1, s) for at, (n, _, s, by) in zip(place, axes, strict=True))
        out[:, *to] += x @ kernel[place].T
    return out


CONVOLUTIONS = {"conv": conv, "depthwise_conv": depthwise_conv, "conv_transpose": conv_transpose}
