"""Gradients have the same bits for every number of threads and instruction set, and in passes of whole blocks."""

import hashlib

import numpy as np
import pytest

import mp_core as mp
from mp_core import layers
from mp_core.core import cpu
from mp_core.ops.gradients.elementwise import activation_gradient
from mp_core.ops.gradients.sums import sum_rows

BLOCK = 1024  # rows: docs/numerics.md


def perceptron(policy="float32"):
    model = layers.Sequential([
        layers.Dense(24, "relu", dtype=policy), layers.Dense(12, "gelu", dtype=policy), layers.Dense(3, dtype=policy),
    ])  # fmt: skip
    model.build((None, 17))
    rng = np.random.default_rng(0)
    model.set_weights([rng.standard_normal(w.shape).astype(np.float32) for w in model.get_weights()])
    return model


def step_of(model):
    def value(x, y):
        return mp.sum(mp.multiply(model(x), y), out_dtype="float32")

    return mp.value_and_grad(value, model.trainable_variables)


def data(rows):
    rng = np.random.default_rng(1)
    return rng.standard_normal((rows, 17)).astype(np.float32), rng.standard_normal((rows, 3)).astype(np.float32)


@pytest.mark.parametrize("rows", [1500, 2 * BLOCK, 3 * BLOCK + 5])
def test_passes_of_one_block_have_the_bits_of_the_whole_batch(rows):
    step, (x, y) = step_of(perceptron()), data(rows)
    _, whole = step(x, y)
    total = None
    for begin in range(0, rows, BLOCK):
        _, found = step(x[begin : begin + BLOCK], y[begin : begin + BLOCK])
        total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
    assert all(np.array_equal(*pair) for pair in zip(total, whole, strict=True))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_bits_are_the_same_for_every_number_of_threads_and_call_by_call(policy):
    model, (x, y) = perceptron(policy), data(700)
    step = step_of(model)
    _, expected = step(x, y)
    for threads in (1, 2, 4):
        with mp.config.num_threads(threads):
            assert all(np.array_equal(*pair) for pair in zip(step(x, y)[1], expected, strict=True))
    with mp.tf_keras.GradientTape() as tape:
        loss = mp.sum(mp.multiply(model(x), y), out_dtype="float32")
    found = tape.gradient(loss, model.trainable_variables)
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


def test_bits_are_the_same_on_every_instruction_set():
    policies = ("float32", "mixed_bfloat16", "mixed_float16")
    before, digests = cpu.isa(), set()
    with cpu.reproducible():
        try:
            for isa in cpu.available_isas():
                cpu.set_isa(isa)
                found = [step_of(perceptron(policy))(*data(1100))[1] for policy in policies]
                digests.add(hashlib.sha256(b"".join(x.tobytes() for each in found for x in each)).hexdigest())
        finally:
            cpu.set_isa(before)
    assert len(digests) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_gradients_of_a_dense_layer_are_the_formulas_of_the_numerics_page(dtype):
    policy = dtype if dtype == "float32" else f"mixed_{dtype}"
    layer, (x, y) = layers.Dense(3, "gelu", dtype=policy), data(2100)
    layer.build((None, 17))
    layer.set_weights([np.random.default_rng(2).standard_normal(w.shape) for w in layer.get_weights()])
    y = mp.cast(y, dtype)
    step = mp.value_and_grad(lambda x, y: mp.sum(mp.multiply(layer(x), y), out_dtype="float32"), layer.variables)
    value, (kernel, bias) = step(x, y)

    rows, (w, b) = mp.cast(x, dtype), (mp.cast(w, dtype) for w in layer.get_weights())
    inner = mp.matmul(rows, w, bias=b, out_dtype="float32")
    result = mp.cast(mp.gelu(inner), dtype)
    assert np.array_equal(result, layer(x))
    assert value == mp.sum(mp.multiply(result, y), out_dtype="float32")
    d = activation_gradient("gelu", mp.cast(y, "float32"), inner, np.float32)
    assert np.array_equal(bias, sum_rows(d))
    assert np.array_equal(kernel, mp.matmul(rows.T, mp.cast(d, dtype), out_dtype="float32"))
