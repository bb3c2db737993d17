"""Operation of the vectors -> the functions of this package: (types, arrays, arguments) -> (values, type) or a dict."""

import itertools

import numpy as np

from . import attention, elements, gradients, quantization, random, rows, training
from .formats import cast, rounded
from .functions import FLOAT32, activate
from .products import matmul

F32 = np.float32
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def by_rows(function):
    """Let a function of rows of float32 round its result to the type of x."""
    return lambda t, x, **rest: (rounded(function(x, **rest), t["x"]), t["x"])


def power(x, exponent):
    """Return a power of float32 numbers."""
    if exponent in SIMPLE_POWERS:
        return SIMPLE_POWERS[exponent](x)
    return FLOAT32["power"](x, np.full_like(x, exponent))


SIMPLE_POWERS = {2: np.square, 0.5: np.sqrt, -1: lambda x: F32(1) / x, 3: lambda x: (np.float64(x) * x * x).astype(F32)}


def cast_to(t, x, dtype, saturate=False):
    """Cast an array."""
    return cast(x, dtype, saturate), dtype


def multiply(t, a, b, out_dtype, b_scale=None, b_zero=None, group=None, packed=False, **steps):
    """Return a product; codes of 4 bits are multiplied as int8 differences from their zero points."""
    kind = "int8" if t["b"] == "int4" else t["b"]
    if b_zero is not None:
        b = b - (np.repeat(b_zero, group, 0)[: len(b)] if group else b_zero)
    if b_scale is not None:
        steps |= {"group_scales": b_scale, "group": group} if group else {"column_scale": b_scale}
    return matmul(a, b, t["a"], kind, out_dtype, **steps), out_dtype


def quantized_matmul(t, **given):
    """Return the product of two arrays of codes."""
    return quantization.quantized_matmul(**given), "float32"


def dynamic_matmul(t, a, b, out_dtype, **steps):
    """Return a product whose left operand is quantized."""
    return rounded(quantization.dynamic_matmul(a, b, **steps), out_dtype), out_dtype


def qlinear_matmul(t, **given):
    """Return the codes of a quantized product."""
    return quantization.qlinear_matmul(**given, kind=t["a"]), t["a"]


def quantize(t, x, dtype, symmetric=True, scale=None, zero_point=0):
    """Return codes, scales, zero points and the values of the codes."""
    low = {"int8": -127, "int4": -7}.get(dtype) if symmetric and scale is None else None
    zero, extra = np.full((1,) * x.ndim, zero_point), scale is not None or not symmetric
    if scale is not None:
        scale = np.full((1,) * x.ndim, scale, F32)
    elif symmetric:
        scale = quantization.symmetric_scales(x, dtype)[:, None]
    else:
        scale, zero = (found[:, None] for found in quantization.asymmetric_scales(x, dtype))
    q = quantization.quantize(x, dtype, scale, zero, low)
    found = {"codes": (q, dtype), "scale": (scale, "float32")}
    found["x"] = (quantization.dequantize(q, scale, zero), "float32")
    return found | ({"zero_point": (zero, "int32")} if extra else {})


def dense_attention(t, q, k, v, bias=None, mask=None, is_causal=False, **rest):
    """Return attention of one sequence with one head."""
    steps = rest | {"causal": is_causal, "bias": None if bias is None else bias[0, 0]}
    steps |= {"mask": None if mask is None else mask[0, 0] != 0}
    return attention.attention(q[0, :, 0], k[0, :, 0], v[0, :, 0], t["q"], **steps)[None, :, None], t["q"]


def ragged_attention(t, q, k, v, offsets, key, is_causal=False, dropout=0.0, **rest):
    """Return attention of several sequences."""
    return attention.ragged_attention(q, k, v, offsets, t["q"], rate=dropout, key=key, causal=is_causal, **rest), t["q"]


def ragged_pool(t, x, offsets, pooling):
    """Return a row for each sequence."""
    return np.stack(
        [attention.pool(x[start:end], pooling, t["x"]) for start, end in itertools.pairwise(offsets)]
    ), "float32"


def gradient(t, d, forward, wanted, **given):
    """Return the gradients of the first arrays of an operation."""
    found = GRADIENTS[forward](t["d"], d, **given)
    found = found if isinstance(found, tuple) else (found,)
    return {name: (rounded(x, t["d"]), t["d"]) for name, x in zip(list(given)[:wanted], found, strict=False)}


def of_function(kind, d, x, name):
    """Return the gradient of a function, from its result rounded to the type of x."""
    return gradients.of_activation(name, x, d, rounded(FLOAT32[name](x), kind))


def of_attention(kind, d, q, k, v, **rest):
    """Return the gradients of attention with one sequence and one head."""
    found = gradients.of_attention(*(x[0, :, 0] for x in (q, k, v, d)), kind, **rest)
    return tuple(x[None, :, None] for x in found)


GRADIENTS = {
    "softmax": lambda kind, d, x, scale: gradients.of_softmax(rounded(rows.softmax(x, scale), kind), d, scale),
    "log_softmax": lambda kind, d, x: gradients.of_log_softmax(rounded(rows.log_softmax(x), kind), d),
    "layer_norm": lambda kind, d, x, gamma, beta, **given: gradients.of_layer_norm(x, d, gamma, **given),
    "rms_norm": lambda kind, d, x, gamma, **given: gradients.of_rms_norm(x, d, gamma, **given),
    "matmul": lambda kind, d, a, b: gradients.of_product(a, b, d, kind),
    "take_rows": lambda kind, d, table, indices: gradients.of_table(d, indices, len(table)),
    "function": of_function,
    "elementwise": lambda kind, d, x, y, name: gradients.of_pair(name, x, y, d),
    "attention": of_attention,
}


def train(t, x, classes, policy, steps, **weights):
    """Return the losses and the weights after some steps of Adam."""
    kind, losses = policy.removeprefix("mixed_"), []
    moments = {name: (np.zeros_like(w), np.zeros_like(w)) for name, w in weights.items()}
    for step in range(1, steps + 1):
        loss, found = training.step(weights.values(), x, classes, kind)
        losses.append(loss)
        for name, g in zip(weights, found, strict=True):
            weights[name], *moments[name] = training.adam(weights[name], g, *moments[name], step, 0.01)
    return {name: (w, "float32") for name, w in (weights | {"losses": np.array(losses)}).items()}


def recurrent(t, x, w, u, b, layer, policy, **states):
    """Return the states after one step."""
    weights = [rounded(each, t["x"]) for each in (w, u, b)]
    step = training.lstm_step if layer == "LSTM" else training.gru_step
    new = step(x, *states.values(), *weights, t["x"])
    new = new if isinstance(new, tuple) else (new,)
    return {name: (state, t["x"]) for name, state in zip(states, new, strict=True)}


COMPUTE = {
    "cast": cast_to,
    "matmul": multiply,
    "quantized_matmul": quantized_matmul,
    "dynamic_matmul": dynamic_matmul,
    "qlinear_matmul": qlinear_matmul,
    "quantize": quantize,
    "sum": by_rows(lambda x, axis: rows.total(x, axis)),
    "mean": by_rows(lambda x, axis: rows.total(x, axis, mean=True)),
    "softmax": by_rows(lambda x, scale=1.0, mask=None: rows.softmax(x, scale, None if mask is None else mask != 0)),
    "log_softmax": by_rows(rows.log_softmax),
    "layer_norm": by_rows(rows.layer_norm),
    "rms_norm": by_rows(rows.rms_norm),
    "normalize": by_rows(lambda x, epsilon=1e-12: rows.normalize(x, epsilon)),
    "cumsum": by_rows(rows.cumsum),
    "function": lambda t, x, name: (activate(name, x, t["x"]), t["x"]),
    "power": by_rows(power),
    "elementwise": by_rows(lambda x, y, name: elements.OPERATIONS[name](x, y)),
    "gate": by_rows(elements.gate),
    "rotary": by_rows(lambda x, angles: elements.rotary(x, angles[:, None])),
    "attention": dense_attention,
    "ragged_attention": ragged_attention,
    "ragged_pool": ragged_pool,
    "dropout": by_rows(lambda x, key, rate: random.dropout(x, key, rate)),
    "uniform": lambda t, key, shape: (random.uniform(key, *shape), "float32"),
    "normal": lambda t, key, shape: (random.normal(key, *shape), "float32"),
    "gradient": gradient,
    "train": train,
    "recurrent": recurrent,
}
