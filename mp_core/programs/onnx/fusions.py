"""Patterns of ONNX operators: what exporters write in several nodes, and mp_core computes by one operation.

Each rule keeps the meaning of the nodes. Results differ by less than the roundings that are saved: the operation
computes in float32 and rounds once, where the nodes round at each step.
"""

from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.quantization import QuantizedArray
from mp_core.files.program import Node, Value
from mp_core.programs.patterns import Match, pattern
from mp_core.programs.weights import is_matrix

# ---- types


@pattern("Cast(x)")
def cast(m: Match) -> Value | None:
    """Drop a cast of floats to the type that they have."""
    return m["x"] if m.last.options["to"] in _FLOATS and m.graph.is_float(m["x"]) else None


_FLOATS = {1, 10, 16}
"""ONNX' numbers of float32, float16 and bfloat16."""


# ---- activations


@pattern("Mul(x, 0.5, Add(Erf(Mul(x, 0.7071067811865476)), 1))")
def gelu(m: Match) -> Node:
    """Return the exact gelu."""
    return m.instead("Gelu", m["x"])


@pattern(
    "Mul(x, 0.5, Add(Tanh(Mul(0.7978845608028654, Add(x, Mul(0.044715, Pow(x, 3))))), 1))",
    "Mul(x, 0.5, Add(Tanh(Mul(0.7978845608028654, Add(x, Mul(0.044715, x, x, x)))), 1))",
    "Mul(x, 0.5, Add(Tanh(Mul(0.7978845608028654, x, Add(Mul(0.044715, x, x), 1))), 1))",
)
def gelu_tanh(m: Match) -> Node:
    """Return the gelu by tanh."""
    return m.instead("Gelu", m["x"], approximate="tanh")


@pattern("Mul(x, Sigmoid(Mul(x, ALPHA)))")
def swish(m: Match) -> Node:
    """Return ``x * sigmoid(alpha * x)``: silu for alpha 1."""
    return m.instead("Swish", m["x"], alpha=m["ALPHA"])


@pattern("Mul(x, HardSigmoid(x))", "Mul(x, 0.16666666666666666, Clip(Add(x, 3), 0, 6))")
def hard_swish(m: Match) -> Node | None:
    """Return ``x * clip(x / 6 + 1 / 2, 0, 1)``."""
    options = dict(next((node.options for node in m.nodes if node.operator == "HardSigmoid"), {"alpha": 1 / 6}))
    fits = np.isclose(options.get("alpha", 0.2), 1 / 6) and options.get("beta", 0.5) == 0.5
    return m.instead("HardSwish", m["x"]) if fits else None


# ---- norms


@pattern(
    "Div(Sub(x, ReduceMean(x)), Sqrt(Add(ReduceMean(Pow(Sub(x, ReduceMean(x)), 2)), EPSILON)))",
    "Div(Sub(x, ReduceMean(x)), Sqrt(Add(ReduceMean(Mul(Sub(x, ReduceMean(x)), Sub(x, ReduceMean(x)))), EPSILON)))",
)
def layer_norm(m: Match) -> Node | None:
    """Return the layer norm over the last axis, without scale and offset."""
    means = [node for node in m.nodes if node.operator == "ReduceMean"]
    return m.instead("LayerNormalization", m["x"], None, epsilon=m["EPSILON"]) if all(map(m.is_last, means)) else None


@pattern(
    "Mul(x, Reciprocal(Sqrt(Add(ReduceMean(Pow(x, 2)), EPSILON))))",
    "Mul(x, Reciprocal(Sqrt(Add(ReduceMean(Mul(x, x)), EPSILON))))",
    "Div(x, Sqrt(Add(ReduceMean(Pow(x, 2)), EPSILON)))",
    "Div(x, Sqrt(Add(ReduceMean(Mul(x, x)), EPSILON)))",
)
def rms_norm(m: Match) -> Node | None:
    """Return the RMS norm over the last axis, without scale."""
    is_last = m.is_last(m.node("ReduceMean"))
    return m.instead("RMSNormalization", m["x"], None, epsilon=m["EPSILON"]) if is_last else None


@pattern("Mul(LayerNormalization(x, none), gamma)", "Mul(RMSNormalization(x, none), gamma)")
def scaled_norm(m: Match) -> Node | None:
    """Give a norm its scale."""
    node = m.nodes[-1]
    if m["none"] is not None or not is_vector(m.graph.constant(m["gamma"])):
        return None
    return m.replaced(node, (m["x"], m["gamma"]))


@pattern("Add(LayerNormalization(x, gamma), beta)")
def shifted_norm(m: Match) -> Node | None:
    """Give a norm its offset."""
    node, gamma, beta = m.nodes[-1], m.graph.constant(m["gamma"]), m.graph.constant(m["beta"])
    fits = len(node.arguments) == 2 and is_vector(gamma) and is_vector(beta) and gamma.shape == beta.shape
    return m.replaced(node, (*node.arguments, m["beta"])) if fits else None


@pattern("LayerNormalization(Add(x, y))")
def residual_norm(m: Match) -> Node:
    """Add the residual in the norm."""
    _, gamma, beta = (*m.last.arguments, None, None)[:3]
    return m.instead("mp_core.residual_norm", m["x"], m["y"], gamma, beta, **m.last.options)


# ---- attention


@pattern(
    "MatMul(Softmax(Add(Mul(MatMul(Mul(q, A), Mul(k, B)), C), bias), axis=(-1, 3)), v)",
    "MatMul(Softmax(Mul(MatMul(Mul(q, A), Mul(k, B)), C), axis=(-1, 3)), v)",
)
def attention(m: Match) -> Node | None:
    """Return the attention of heads (n, heads, length, size), or of (n, length, size); k has its last axes swapped."""
    if any(m.graph.constant(m[name]) is not None for name in "qk"):
        return None
    scale = m["A"] * m["B"] * m["C"]
    return m.instead("mp_core.attention", m["q"], m["k"], m["v"], m.values.get("bias"), scale=scale)


# ---- products and convolutions


@pattern("MatMul(x, W)")
def product(m: Match) -> Node | None:
    """Multiply by a constant matrix."""
    return m.instead("mp_core.dense", m["x"], m.last.arguments[1]) if is_matrix(m["W"]) else None


@pattern("Gemm(x, W)")
def affine(m: Match) -> Node | None:
    """Multiply by a constant matrix and add a constant bias, without other factors."""
    _, matrix, bias = (*m.last.arguments, None)[:3]
    given = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0} | dict(m.last.options)
    if not is_matrix(m["W"]) or (given["alpha"], given["transA"]) != (1, 0):
        return None
    if given["transB"]:
        matrix = m.graph.add_constant(f"{matrix.name}.T", m["W"].T)
    if bias is None:
        return m.instead("mp_core.dense", m["x"], matrix)
    n, offset = m.graph.constant(matrix).shape[1], m.graph.constant(bias)
    fits = (
        isinstance(offset, np.ndarray)
        and offset.ndim > 0
        and offset.size == offset.shape[-1] == n
        and given["beta"] == 1
    )
    return m.instead("mp_core.dense", m["x"], matrix, bias) if fits else None


@pattern("Add(mp_core.dense(x, W), bias)", "Add(mp_core.dynamic_dense(x, W), bias)")
def biased_product(m: Match) -> Node | None:
    """Add the bias in the product."""
    node, bias = m.nodes[-1], m.graph.constant(m["bias"])
    is_offset = isinstance(bias, np.ndarray) and bias.shape == (m["W"].shape[1],)
    fits = is_offset and len(node.arguments) in (2, 6) and not node.options
    return m.replaced(node, (*node.arguments, m["bias"])) if fits else None


@pattern("Gather(W, x, axis=0)")
def look_up(m: Match) -> Node | None:
    """Look up rows of a constant table."""
    fits = is_matrix(m["W"]) and m.graph.constant(m["x"]) is None
    return m.instead("mp_core.embedding", m["x"], m.last.arguments[0]) if fits else None


@pattern("Conv(x, W)")
def convolution(m: Match) -> Node | None:
    """Convolve with a constant kernel; windows at the upper end need the shapes of a call, so they are no layer."""
    options = dict(m.last.options)
    pads, size = options.pop("auto_pad", "NOTSET"), options.pop("kernel_shape", None)
    bias = m.graph.constant(m.last.arguments[2]) if len(m.last.arguments) > 2 else None
    shape = m["W"].shape if isinstance(m["W"], np.ndarray | QuantizedArray) else ()
    is_kernel = len(shape) > 2 and 0 not in shape
    if not is_kernel or pads == "SAME_LOWER" or (size is not None and tuple(size) != shape[2:]):
        return None
    if len(m.last.arguments) > 2 and bias is None and m.last.arguments[2] is not None:
        return None
    if pads != "NOTSET":
        options["pads"] = "same" if pads == "SAME_UPPER" else "valid"
    return m.instead("mp_core.conv", m["x"], *(x for x in m.last.arguments[1:] if x is not None), **options)


@pattern("mp_core.conv(Pad(x, P), W)")
def padded_convolution(m: Match) -> Node | None:
    """Let a convolution pad its inputs, if Pad adds constant numbers of zeros along spatial axes."""
    node, rank = m.node("Pad"), len(m["W"].shape) - 2
    options, (_, _, value, axes) = dict(m.last.options), (*node.arguments, None, None)[:4]
    own, more = options.get("pads", (0,) * (2 * rank)), np.zeros((2, rank + 2), np.int64)
    along = range(rank + 2) if axes is None else m.graph.constant(axes)
    if node.options.get("mode", "constant") != "constant" or isinstance(own, str) or along is None:
        return None
    more[:, np.asarray(along)] = m["P"].reshape(2, -1)
    if (value is not None and m.graph.number(value) != 0) or more.min() < 0 or more[:, :2].any():
        return None
    options["pads"] = tuple(int(n) for n in more[:, 2:].reshape(-1) + np.asarray(own))
    return m.instead("mp_core.conv", m["x"], *m.last.arguments[1:], **options)


@pattern("Add(mp_core.conv(x, W), bias)", "Add(mp_core.dynamic_conv(x, W), bias)")
def biased_convolution(m: Match) -> Node | None:
    """Add the bias of a convolution, shape (channels, 1 ...), in it."""
    node, bias = m.nodes[-1], channels(m.graph.constant(m["bias"]), m["W"])
    if bias is None or len(node.arguments) not in (2, 6) or "activation" in node.options:
        return None
    return m.replaced(node, (*node.arguments, m.graph.add_constant(f"{m.last.outputs[0]}.bias", bias)))


@pattern("BatchNormalization(mp_core.conv(x, W))")
def normalized_convolution(m: Match) -> Node | None:
    """Multiply the kernel by the scale of a batch norm, computed in float64 and rounded once."""
    node, kernel = m.nodes[-1], m["W"]
    constants = [m.graph.constant(x) for x in (*m.last.arguments[1:5], *node.arguments[2:3])]
    if (
        any(x is None for x in (*constants, *[kernel] * isinstance(kernel, QuantizedArray)))
        or "activation" in node.options
        or m.last.options.get("training_mode")
    ):
        return None
    gamma, beta, mean, variance, *bias = (np.asarray(x, np.float64) for x in constants)
    scale = gamma / np.sqrt(variance + m.last.options.get("epsilon", 1e-5))
    offset = beta + (bias[0] - mean if bias else -mean) * scale
    wide = kernel.astype(np.float64) * scale.reshape(-1, *[1] * (kernel.ndim - 1))
    folded = {"kernel": wide.astype(kernel.dtype), "bias": offset.astype(kernel.dtype)}
    names = [m.graph.add_constant(f"{m.last.outputs[0]}.{name}", x) for name, x in folded.items()]
    return m.replaced(node, (node.arguments[0], *names))


@pattern(*(f"{name}({layer}(x, W))" for name in ("Relu", "Tanh", "Sigmoid", "Gelu", "Swish", "Clip", "FastGelu")
           for layer in ("mp_core.dense", "mp_core.conv")))  # fmt: skip
def activated(m: Match) -> Node | None:
    """Apply the activation in the product."""
    node, name = m.nodes[-1], _activation(m)
    if name is None or "activation" in node.options or m["W"] is None:
        return None
    return m.replaced(node, node.arguments, activation=name)


def _activation(m: Match) -> str | None:
    """Return the name of an activation that products apply, for the last node."""
    name, options, rest = m.last.operator, m.last.options, m.last.arguments[1:]
    if name == "Clip":
        return "relu6" if [m.graph.number(x) for x in rest] == [0, 6] else None
    if name == "Swish":
        return "silu" if options.get("alpha", 1.0) == 1 else None
    if name == "Gelu":
        return "gelu_tanh" if options.get("approximate") == "tanh" else "gelu"
    return name.lower()


def is_vector(x: Any) -> bool:
    """Return whether a constant is a vector of more than one element."""
    return isinstance(x, np.ndarray) and x.ndim == 1 and x.size > 1


def channels(x: Any, kernel: Any) -> Array | None:
    """Return a constant of shape (channels, 1 ...) or (1, channels, 1 ...) as a vector; None for another one."""
    filters, spatial = kernel.shape[0], len(kernel.shape) - 2
    if not isinstance(x, np.ndarray) or x.shape[-spatial - 1 :] != (filters, *[1] * spatial):
        return None
    return x.reshape(-1) if x.size == filters else None
