"""The calls of mp_core that the operations of the vectors stand for."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import mp_core as mp
from mp_core.arrays import Array
from mp_core.cli.vectors.files import inputs_of
from mp_core.ops import random

__all__ = ["CALLS", "outputs_of"]


def outputs_of(case: Mapping[str, Any]) -> dict[str, Array]:
    """Return the outputs of a case as mp_core computes them."""
    call = CALLS[case["operation"]]
    with np.errstate(all="ignore"):
        found = call(**inputs_of(case), **case["arguments"])
    return {name: np.asarray(x) for name, x in found.items()} if isinstance(found, dict) else {"y": np.asarray(found)}


def quantized(codes: Array, scale: Array, zero: Array | None, group: int | None) -> mp.QuantizedArray:
    """Return codes with a scale per column, or per column and group of rows."""
    return mp.QuantizedArray(codes, scale, zero, axis=1, group_size=group)


def _matmul(
    a: Array,
    b: Array,
    b_scale: Any = None,
    b_zero: Any = None,
    group: int | None = None,
    packed: bool = False,
    **rest: Any,
) -> Array:
    right: Any = b if b_scale is None else quantized(b, b_scale, b_zero, group)
    return mp.matmul(a, mp.pack(right) if packed else right, **rest)


def _quantized_matmul(a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array) -> Array:
    left = mp.QuantizedArray(a, a_scale, a_zero, axis=0)
    return mp.matmul(left, quantized(b, b_scale, b_zero, None), out_dtype="float32")


def _dynamic_matmul(
    a: Array, b: Array, b_scale: Array, b_zero: Any = None, group: int | None = None, **rest: Any
) -> Array:
    return mp.dynamic_matmul(a, mp.pack(quantized(b, b_scale, b_zero, group)), **rest)


def _qlinear_matmul(
    a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, out_scale: float, out_zero: int
) -> Array:
    left = mp.QuantizedArray(a, a_scale, a_zero)
    right = quantized(b, b_scale, b_zero, None)
    found: Array = mp.qlinear_matmul(left, right, out_scale=out_scale, out_zero_point=out_zero).values
    return found


def _quantize(x: Array, dtype: str, symmetric: bool = True, **given: Any) -> dict[str, Any]:
    q = mp.quantize(x, axis=None if given else 0, dtype=dtype, symmetric=symmetric, **given)
    found = {"codes": _unpacked(q), "scale": q.scale, "x": mp.dequantize(q)}
    return found if q.zero_point is None else found | {"zero_point": q.zero_point}


def _unpacked(q: mp.QuantizedArray) -> Array:
    """Return codes, those of 4 bits as bytes with the low bits."""
    if q.dtype.name not in ("int4", "uint4"):
        found: Array = q.values
        return found
    pairs = np.stack([q.values & 15, q.values >> 4], -1).reshape(*q.values.shape[:-1], -1)
    return pairs[..., : q.shape[-1]].view(q.dtype)


def _function(x: Array, name: str) -> Array:
    if name == "gelu_tanh":
        return mp.gelu(x, approximate=True)
    room = mp.activations if name in ("elu", "softplus", "relu6") else mp.ops
    found: Array = getattr(room, "exp" if name == "exponential" else name)(x)
    return found


def _elementwise(x: Array, y: Array, name: str) -> Array:
    found: Array = getattr(mp.ops if hasattr(mp.ops, name) else mp, name)(x, y)
    return found


def _gradient(forward: str, d: Array, wanted: int = 1, **rest: Any) -> dict[str, Any]:
    """Return the gradients of the first `wanted` arrays of an operation, d being the gradient of its result."""
    names = list(rest)[:wanted]
    variables = [mp.AutoCastVariable(rest[name], autocast=False, name=name) for name in names]

    def value(d: Any) -> Any:
        current = {name: variable.numpy() for name, variable in zip(names, variables, strict=True)}
        return mp.sum(mp.multiply(CALLS[forward](**rest | current), d), out_dtype="float32")

    return dict(zip(names, mp.value_and_grad(value, variables)(d)[1], strict=True))


def _train(x: Array, classes: Array, policy: str, steps: int, **weights: Array) -> dict[str, Any]:
    """Return the losses and the weights after some steps of Adam."""
    units = [weights["b1"].size, weights["b2"].size]
    model = mp.Sequential([
        mp.Input(x.shape[1:]),
        mp.layers.Dense(units[0], "gelu", dtype=policy),
        mp.layers.Dense(units[1], dtype="float32"),
    ])  # fmt: skip
    model.set_weights([weights[name] for name in ("w1", "b1", "w2", "b2")])
    loss = mp.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = mp.optimizers.Adam(0.01)
    step = mp.value_and_grad(lambda x, y: loss(y, model(x, training=True)), model.trainable_variables)
    losses = []
    for _ in range(steps):
        value, gradients = step(x, classes)
        optimizer.apply(gradients, model.trainable_variables)
        losses.append(np.float32(value))
    found = dict(zip(("w1", "b1", "w2", "b2"), model.get_weights(), strict=True))
    return found | {"losses": np.array(losses)}


def _recurrent(x: Array, w: Array, u: Array, b: Array, layer: str, policy: str, **states: Array) -> dict[str, Any]:
    made = getattr(mp.layers, layer)(u.shape[0], dtype=policy, return_state=True)
    made.build((None, 1, x.shape[1]))
    made.set_weights([w, u, b])
    _, *new = made(x[:, np.newaxis], initial_state=list(states.values()))
    return dict(zip(states, new, strict=True))


CALLS: dict[str, Callable[..., Any]] = {
    "cast": lambda x, dtype, saturate=False: mp.cast(x, dtype, saturate=saturate),
    "matmul": _matmul,
    "quantized_matmul": _quantized_matmul,
    "dynamic_matmul": _dynamic_matmul,
    "qlinear_matmul": _qlinear_matmul,
    "quantize": _quantize,
    "sum": lambda x, axis: mp.sum(x, tuple(axis)),
    "mean": lambda x, axis: mp.mean(x, tuple(axis)),
    "softmax": lambda x, scale=1.0, mask=None: mp.softmax(x, scale=scale, mask=None if mask is None else mask != 0),
    "log_softmax": lambda x: mp.ops.log_softmax(x),
    "layer_norm": lambda x, gamma, beta, residual=None, epsilon=1e-3: mp.layer_norm(
        x, gamma, beta, residual=residual, epsilon=epsilon
    ),
    "rms_norm": lambda x, gamma, epsilon=1e-6: mp.rms_norm(x, gamma, epsilon=epsilon),
    "normalize": lambda x, epsilon=1e-12: mp.ops.normalize(x, epsilon=epsilon),
    "cumsum": lambda x: mp.ops.cumsum(x, 1),
    "function": _function,
    "power": lambda x, exponent: mp.ops.power(x, exponent),
    "elementwise": _elementwise,
    "gate": lambda x, y, activation: mp.ops.gate(x, y, activation),
    "rotary": lambda x, angles: mp.ops.rotary(x, angles),
    "attention": lambda q, k, v, mask=None, **rest: mp.dot_product_attention(
        q, k, v, mask=None if mask is None else mask != 0, **rest
    ),
    "ragged_attention": lambda q, k, v, offsets, key=None, **rest: mp.ops.ragged_attention(
        q, k, v, offsets, random_key=key, **rest
    ),
    "ragged_pool": lambda x, offsets, pooling: mp.ops.ragged_pool(x, offsets, pooling),
    "dropout": lambda x, key, rate: random.dropout(x, key, rate),
    "uniform": lambda key, shape: random.uniform(key, shape),
    "normal": lambda key, shape: random.normal(key, shape),
    "take_rows": lambda table, indices: mp.ops.take_rows(table, indices, table.dtype),
    "gradient": _gradient,
    "train": _train,
    "recurrent": _recurrent,
}
"""Operation -> the call: it takes the inputs and arguments of a case, and returns an output, or name -> output."""
