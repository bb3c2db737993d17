"""Several Dense layers in one product: the bits of each layer alone, and never those of other weights."""

import gc
import weakref

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import layers
from mp_core.autocast import autocast_scope
from mp_core.dtype_policies import Scheme, policy_of
from mp_core.forms import Inputs
from mp_core.layers import side_by_side as room
from mp_core.layers.side_by_side import side_by_side

POLICIES = [
    "float32", "mixed_bfloat16", "mixed_float16", "bfloat16", "float64", "int8_from_mixed_bfloat16",
    "int8_from_float32", "int8/weight_only_from_mixed_bfloat16", "int4/32_from_mixed_bfloat16",
    "float8_from_mixed_bfloat16",
]  # fmt: skip
SHARED = {"float32", "mixed_bfloat16", "mixed_float16", "bfloat16", "int8_from_mixed_bfloat16", "int8_from_float32"}


def dense(rng, units, policy="float32", depth=48, **options):
    layer = layers.Dense(units, **options)
    layer.build((None, depth))
    layer.set_weights([rng.standard_normal(w.shape).astype(np.float32) for w in layer.get_weights()])
    return layer.with_policy(policy)


def rows(rng, layer, shape=(2, 5, 48)):
    return mp.cast(rng.standard_normal(shape), layer.compute_dtype)


@pytest.fixture
def made(monkeypatch):
    """What was made of layers, each time that something was."""
    products, make = [], room._joined_product
    monkeypatch.setattr(room, "_joined_product", lambda *arguments: products.append(make(*arguments)) or products[-1])
    return products


def check(parts, x):
    expected = [layer(x) for layer in parts]
    for received, wanted in zip(side_by_side(parts, x), expected, strict=True):
        assert_same_bits(received, wanted)
    return expected


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_bits(policy, bias, made, rng):
    parts = [dense(rng, units, policy, use_bias=bias) for units in (64, 7, 130)]
    x = rows(rng, parts[0])
    for scope in (None, "float32", "bfloat16"):
        with autocast_scope(scope):
            check(parts, x)
    check(parts, x[:, :1])
    assert any(product is not None for product in made) == (policy in SHARED)
    assert len(made) <= 1


@pytest.mark.parametrize("policy", ["float32", "int8_from_float32"])
def test_other_values_make_another_product(policy, made, rng):
    parts = [dense(rng, 64, policy) for _ in range(3)]
    x = rows(rng, parts[0])
    before = check(parts, x)
    for layer in parts:
        for weight in layer.weights:
            value = weight.numpy()
            weight.assign(value * 2 if value.dtype == np.float32 else value[::-1].copy())
            check(parts, x)
    assert len(made) == 1 + sum(len(layer.weights) for layer in parts)
    assert not np.array_equal(before[0], check(parts, x)[0])


def test_other_forms_make_another_product(made, rng):
    parts = [dense(rng, 64) for _ in range(3)]
    x = rows(rng, parts[0])
    check(parts, x)
    parts[1].quantize("int8")
    check(parts, x)
    assert made[-1] is None
    for layer in (parts[0], parts[2]):
        layer.quantize("int8")
    check(parts, x)
    assert made[-1] is not None
    for layer in parts:
        layer.dtype_policy = "int8_from_mixed_bfloat16"
    check(parts, mp.cast(x, "bfloat16"))
    check(parts, x)  # is cast by each


def fixed(rng, units, scale, zero_point, codes="int8"):
    """A layer with these scales of its inputs."""
    scheme = f"{codes}/fixed" if codes == "int8" else f"{codes}/fixed/tensor"
    layer = dense(rng, units)
    inputs = Inputs(scale, zero_point)
    q = Scheme.parse(scheme).quantize(layer.matrix)
    layer = layer.with_policy("float32")
    layer.set_matrix(q, inputs, policy=policy_of(f"{scheme}_from_float32"))
    return layer


@pytest.mark.parametrize("threads", [1, 2])
def test_equal_fixed_scales_of_inputs_make_one_product(isa, threads, made, rng):
    scale, zero_point = rng.uniform(0.01, 0.1, 48).astype(np.float32), rng.integers(-128, 128, 48).astype(np.int8)
    parts = [fixed(rng, units, scale.copy(), zero_point.copy()) for units in (64, 7, 130)]
    with mp.config.num_threads(threads):
        check(parts, rows(rng, parts[0], (40, 48)))
        check(parts, rows(rng, parts[0]))
    assert len(made) == 1 and made[0] is not None


@pytest.mark.parametrize("which", ["scale", "zero_point", "codes"])
def test_other_fixed_scales_of_inputs_make_a_product_each(which, made, rng):
    scale, zero_point = rng.uniform(0.01, 0.1, 48).astype(np.float32), np.arange(48, dtype=np.int8)
    other_scale, other_zero_point = scale.copy(), zero_point.copy()
    if which == "scale":
        other_scale[-1] = np.nextafter(scale[-1], 1)
    else:
        other_zero_point[0] = 1
    parts = [fixed(rng, 8, scale, zero_point), fixed(rng, 8, other_scale, other_zero_point)]
    if which == "codes":
        parts = [fixed(rng, 8, np.float32(0.5), None, "float8_e4m3fn") for _ in range(2)]
    x = rows(rng, parts[0])
    check(parts, x)
    check([parts[0], dense(rng, 8, "int8_from_float32")], x)
    check([dense(rng, 8, "int8_from_float32"), parts[0]], x)
    assert made == [None] * 3


def test_other_layers_are_called(made, rng):
    class Own(layers.Dense):
        def call(self, inputs):
            return super().call(inputs) + 1

    x = np.asarray(rng.standard_normal((3, 48)), np.float32)
    own = Own(5)
    for parts in [
        [dense(rng, 5), own],
        [dense(rng, 5), dense(rng, 5, activation="relu")],
        [dense(rng, 5), dense(rng, 5, "mixed_bfloat16")],
    ]:
        check(parts, x)
    assert [part.shape for part in side_by_side([dense(rng, 5), layers.Dense(4)], x)] == [(3, 5), (3, 4)]
    assert not made
    check([dense(rng, 5), dense(rng, 5, use_bias=False)], x)
    assert made == [None]


def test_wrong_inputs_have_the_message_of_the_layer(rng):
    parts = [dense(rng, 5) for _ in range(2)]
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 48"):
        side_by_side(parts, np.ones((2, 3), np.float32))
    assert side_by_side(parts, np.ones((2, 48)))[0].dtype == np.float32


def test_dropped_with_the_layers(made, rng):
    """No cycle keeps the packed kernels until the garbage collector comes."""
    parts = [dense(rng, 64) for _ in range(3)]
    x = rows(rng, parts[0])
    side_by_side(parts, x)
    gc.collect()
    gc.disable()
    try:
        product = weakref.ref(made.pop())
        del parts
        assert product() is None
    finally:
        gc.enable()
