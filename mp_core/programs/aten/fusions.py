"""Patterns of torch's operators: what torch writes in several nodes, and mp_core computes by one operation."""

from typing import Any

import numpy as np

from mp_core.files.program import Node
from mp_core.programs.aten.convolution import sizes
from mp_core.programs.patterns import Match, pattern
from mp_core.programs.weights import is_matrix

__all__: list[str] = []

_SQUARES = "aten.mean.dim(aten.pow.Tensor_Scalar(x, 2))"


@pattern("aten.linear.default(x, W)")
def linear(m: Match) -> Node | None:
    """Multiply by a constant matrix of shape (n, k) and add a constant bias."""
    _, weight, bias = (*m.last.arguments, None)[:3]
    if not is_matrix(m["W"]) or not _is_offset(m, bias):
        return None
    return _dense(m, m.graph.add_constant(weight.name.removesuffix(".weight"), m["W"].T), bias)


@pattern("aten.addmm.default(bias, x, W)")
def addmm(m: Match) -> Node | None:
    """Multiply by a constant matrix of shape (k, n) and add a constant bias."""
    bias, _, weight = m.last.arguments
    fits = is_matrix(m["W"]) and not m.last.options and bias is not None and _is_offset(m, bias)
    return _dense(m, weight, bias) if fits else None


@pattern("aten.mm.default(x, W)", "aten.matmul.default(x, W)")
def product(m: Match) -> Node | None:
    """Multiply by a constant matrix of shape (k, n)."""
    return _dense(m, m.last.arguments[1], None) if is_matrix(m["W"]) else None


def _dense(m: Match, matrix: Any, bias: Any) -> Node:
    return m.instead("mp_core.dense", m["x"], matrix, *(() if bias is None else (bias,)))


def _is_offset(m: Match, bias: Any) -> bool:
    offset = None if bias is None else m.graph.constant(bias)
    return bias is None or (isinstance(offset, np.ndarray) and offset.ndim == 1)


@pattern("aten.convolution.default(x, W)", *(f"aten.conv{rank}d.{overload}(x, W)" for rank in (1, 2, 3)
                                             for overload in ("default", "padding")))  # fmt: skip
def convolution(m: Match) -> Node | None:
    """Convolve with a constant kernel."""
    is_core, given = m.last.operator == "aten.convolution.default", m.last.arguments
    first = "valid" if m.last.operator.endswith(".padding") else 0
    defaults: tuple[Any, ...] = (None, 1, first, 1, 1)
    _, weight, bias, stride, padding, dilation, *_, groups = (*given, *defaults[len(given) - 2 :])
    if not isinstance(m["W"], np.ndarray) or not _is_offset(m, bias) or (is_core and given[6]):
        return None
    rank = m["W"].ndim - 2
    pads = padding if isinstance(padding, str) else sizes(padding, rank) * 2
    options = {"strides": sizes(stride, rank), "pads": pads, "dilations": sizes(dilation, rank), "group": groups}
    return m.instead("mp_core.conv", m["x"], weight, *(() if bias is None else (bias,)), **options)


_AVERAGES = "aten._native_batch_norm_legit_no_training.default"


@pattern(f"aten.python.getitem({_AVERAGES}(mp_core.conv(x, W)), 0)")
def normalized_convolution(m: Match) -> Node | None:
    """Multiply the kernel by the scale of a batch norm, computed in float64 and rounded once."""
    norm, node, kernel = m.node(_AVERAGES), m.nodes[-1], m["W"]
    _, *vectors, _, epsilon = norm.arguments
    parts = (*vectors, *node.arguments[2:3])
    given = [None if x is None else m.graph.constant(x) for x in parts]
    if any(x is not None and not isinstance(y, np.ndarray) for x, y in zip(parts, given, strict=True)):
        return None
    exact: list[Any] = [None if x is None else x.astype(np.float64) for x in given]
    gamma, beta, mean, variance, *bias = exact
    scale = (1.0 if gamma is None else gamma) / np.sqrt(variance + epsilon)
    offset = ((bias[0] if bias else 0.0) - mean) * scale + (0.0 if beta is None else beta)
    wide = kernel.astype(np.float64) * scale.reshape(-1, *[1] * (kernel.ndim - 1))
    folded = {"weight": wide.astype(kernel.dtype), "bias": offset.astype(kernel.dtype)}
    path = node.arguments[1].name.removesuffix(".weight")
    names = [m.graph.add_constant(f"{path}.{name}", x) for name, x in folded.items()]
    return m.replaced(node, (node.arguments[0], *names))


_LAYERS = ("mp_core.dense(x, W)", "mp_core.conv(x, W)")


@pattern(
    *(f"aten.{name}.default({layer})" for name in ("relu", "tanh", "sigmoid", "gelu", "silu") for layer in _LAYERS)
)
def activated(m: Match) -> Node | None:
    """Apply the activation in the product."""
    name = m.last.operator.split(".")[1] + ("_tanh" if m.last.options.get("approximate") == "tanh" else "")
    return _with_activation(m, name)


@pattern(*(f"aten.hardtanh.default({layer}, 0, 6)" for layer in _LAYERS))
def limited(m: Match) -> Node | None:
    """Apply relu6 in the product."""
    return _with_activation(m, "relu6")


def _with_activation(m: Match, name: str) -> Node | None:
    node = m.nodes[-1]
    return None if "activation" in node.options else m.replaced(node, node.arguments, activation=name)


@pattern(f"aten.mul.Tensor(x, aten.rsqrt.default(aten.add.Tensor({_SQUARES}, EPSILON)))")
def rms_norm(m: Match) -> Node | None:
    """Return the RMS norm over the last axis, without scale."""
    _, axes, keepdim = (*m.node("aten.mean.dim").arguments, False)[:3]
    return m.instead("aten.rms_norm.last", m["x"], epsilon=m["EPSILON"]) if [*axes] == [-1] and keepdim else None


@pattern("aten.mul.Tensor(aten.rms_norm.last(x), gamma)")
def scaled_rms_norm(m: Match) -> Node | None:
    """Give an RMS norm its scale."""
    node, gamma = m.nodes[-1], m.graph.constant(m["gamma"])
    fits = len(node.arguments) == 1 and isinstance(gamma, np.ndarray) and gamma.ndim == 1 and gamma.size > 1
    return m.replaced(node, (*node.arguments, m["gamma"])) if fits else None
