"""Compare convolutions with torch and with their limits, on one thread, in one interleaved run.

    python asv_bench/studies/peers_convolutions.py [--types float32 bfloat16 float16 int8] [--rounds 60] [--only dw]

The limit of a convolution is the product of its stored matrix of windows and the packed kernel (`ops.matmul`). The
limit of a depthwise convolution is the slower of a copy of its inputs and results, and of its multiply-adds at the
speed of a product of 512 x 512 x 512. torch's inputs and weights are in `channels_last` (one axis: contiguous); of int8
it has no convolution without static scales. Kernels are packed in advance; results are new arrays for all. Per cell:
limit / mp_core and torch / mp_core, each of the fastest rounds, since other programs may interrupt any call.
"""

import argparse
import math
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

import mp_core as mp
from mp_core import ops

KEPT = 32 << 20  # bytes: glibc keeps freed memory for later arrays, if it has once freed an array of this size
SHORTEST = 2e-4  # seconds: a contender is called so often in a round that it takes at least this long


class Shape(NamedTuple):
    """A convolution of a published network."""

    inputs: tuple[int, ...]
    size: tuple[int, ...]
    filters: int  # 0: depthwise
    stride: int
    padding: int


SHAPES = {
    "ResNet-50 7x7/2, 3 at 224": Shape((1, 224, 224, 3), (7, 7), 64, 2, 3),
    "ResNet-50 1x1, 64 at 56": Shape((1, 56, 56, 64), (1, 1), 256, 1, 0),
    "ResNet-50 1x1/2, 256 at 56": Shape((1, 56, 56, 256), (1, 1), 512, 2, 0),
    "ResNet-50 3x3, 64 at 56": Shape((1, 56, 56, 64), (3, 3), 64, 1, 1),
    "ResNet-50 3x3/2, 128 at 56": Shape((1, 56, 56, 128), (3, 3), 128, 2, 1),
    "ResNet-50 3x3, 128 at 28": Shape((1, 28, 28, 128), (3, 3), 128, 1, 1),
    "ResNet-50 3x3, 256 at 14": Shape((1, 14, 14, 256), (3, 3), 256, 1, 1),
    "ResNet-50 3x3, 512 at 7": Shape((1, 7, 7, 512), (3, 3), 512, 1, 1),
    "wav2vec 2 k10/5, 1 at 16000": Shape((1, 16000, 1), (10,), 512, 5, 0),
    "wav2vec 2 k3/2, 512 at 3199": Shape((1, 3199, 512), (3,), 512, 2, 0),
    "ViT 16x16/16, 3 at 224": Shape((1, 224, 224, 3), (16, 16), 768, 16, 0),
    "MobileNet dw 3x3, 32 at 112": Shape((1, 112, 112, 32), (3, 3), 0, 1, 1),
    "MobileNet dw 3x3/2, 64 at 112": Shape((1, 112, 112, 64), (3, 3), 0, 2, 1),
    "MobileNet dw 3x3, 128 at 56": Shape((1, 56, 56, 128), (3, 3), 0, 1, 1),
    "MobileNet dw 3x3, 512 at 14": Shape((1, 14, 14, 512), (3, 3), 0, 1, 1),
    "ConvNeXt dw 7x7, 96 at 56": Shape((1, 56, 56, 96), (7, 7), 0, 1, 3),
    "ConvNeXt dw 7x7, 768 at 7": Shape((1, 7, 7, 768), (7, 7), 0, 1, 3),
}


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def dense(shape, dtype):
    """Return mp_core's convolution, its limit, and the multiply-adds of a call."""
    x, depth = normal(*shape.inputs), math.prod(shape.size) * shape.inputs[-1]
    kernel, padding = normal(depth, shape.filters) / 16, [(shape.padding, shape.padding)] * len(shape.size)
    if dtype == "int8":
        x, packed = mp.quantize(x), mp.pack(mp.quantize(kernel, axis=1))
    else:
        x, packed = mp.cast(x, dtype), mp.pack(kernel, dtype=dtype)

    def convolve():
        return ops.conv(x, packed, shape.stride, padding, kernel_size=shape.size)

    rows = normal(math.prod(convolve().shape[:-1]), depth)
    rows = mp.quantize(rows) if dtype == "int8" else mp.cast(rows, dtype)
    return convolve, {"product": lambda: ops.matmul(rows, packed)}, rows.shape[0] * depth * shape.filters


def depthwise(shape, dtype):
    x, kernel = mp.cast(normal(*shape.inputs), dtype), normal(*shape.size, shape.inputs[-1], 1)
    padding = [(shape.padding, shape.padding)] * len(shape.size)

    def convolve():
        return ops.depthwise_conv(x, kernel, shape.stride, padding)

    result = convolve()
    inputs, square, packed = np.empty_like(x), normal(512, 512), mp.pack(normal(512, 512))
    work = result.size * math.prod(shape.size)

    def copy():
        np.copyto(inputs, x)
        return result.copy()

    def multiply():
        return ops.matmul(square, packed)

    multiply.share = work / 512**3
    return convolve, {"copy": copy, "multiply-adds": multiply}, work


def by_torch(shape, dtype):
    """Return torch's convolution; None if torch has none of this type."""
    if dtype == "int8":
        return None
    kind, rank, channels = getattr(torch, dtype), len(shape.size), shape.inputs[-1]
    layout = torch.channels_last if rank == 2 else torch.contiguous_format
    x = torch.from_numpy(np.moveaxis(normal(*shape.inputs), -1, 1).copy())
    weights = torch.from_numpy(normal(shape.filters or channels, channels if shape.filters else 1, *shape.size))
    x, weights = (each.to(kind).contiguous(memory_format=layout) for each in (x, weights))
    function = torch.nn.functional.conv2d if rank == 2 else torch.nn.functional.conv1d
    groups = 1 if shape.filters else channels

    def convolve():
        with torch.inference_mode():
            return function(x, weights, stride=shape.stride, padding=shape.padding, groups=groups)

    return convolve


def timed(contenders, rounds):
    """Return the seconds of a call in each round, by contender."""
    counts = {}
    for name, call in contenders.items():
        call()
        start = perf_counter()
        call()
        counts[name] = max(1, int(SHORTEST / max(perf_counter() - start, 1e-9)))
    seconds = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            start = perf_counter()
            for _ in range(counts[name]):
                call()
            seconds[name].append((perf_counter() - start) / counts[name] * getattr(call, "share", 1.0))
    return seconds


def report(name, shape, dtype, rounds):
    ours, limits, work = (dense if shape.filters else depthwise)(shape, dtype)
    theirs = by_torch(shape, dtype)
    seconds = timed({"mp_core": ours, **limits} | ({} if theirs is None else {"torch": theirs}), rounds)
    best = {contender: min(each) for contender, each in seconds.items()}
    share = max(best[limit] for limit in limits) / best["mp_core"]
    peer = "" if theirs is None else f"{best['torch'] / best['mp_core']:.2f}"
    rate = 2 * work / best["mp_core"] / 1e9
    print(f"{name:32} {dtype:9} {rate:8.1f} {share:8.2f} {peer:>7}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", default=["float32", "bfloat16", "float16", "int8"])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", default="", help="a part of the names of the shapes")
    arguments = parser.parse_args()
    np.empty(KEPT - 4096, np.uint8)  # freed at once: otherwise large results get new pages, in some calls only
    torch.set_num_threads(1)
    mp.config.set_num_threads(1)
    print(f"{'':32} {'':9} {'GFLOP/s':>8} {'of limit':>8} {'x torch':>7}")
    for name, shape in SHAPES.items():
        for dtype in arguments.types:
            if arguments.only in name and (shape.filters or dtype != "int8"):
                report(name, shape, dtype, arguments.rounds)


if __name__ == "__main__":
    main()
