"""Norms of tiny and huge vectors: equal to NumPy in float64; ordinary vectors keep their bits."""

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import constraints, layers, losses, metrics, ops, optimizers, utils
from mp_core.core import cpu
from mp_core.models.pooling import unit
from mp_core.models.sentence_transformers import SentenceTransformerNames
from mp_core.ops.norms import length

SCALES = [1e-40, 1e-30, 1e-25, 1e-20, 1.0, 1e19, 1e22, 1e30, 3e38]
FLOAT32 = 3e-7  # a sum of 48 squares, a root, a quotient, the rounding of subnormal inputs excluded


def rows(scale, width=48, seed=0):
    return (np.random.default_rng(seed).uniform(-1, 1, (6, width)) * scale).astype(np.float32)


def units(x):
    wide = x.astype(np.float64)
    return wide / np.linalg.norm(wide, axis=-1, keepdims=True)


def layer_normalized(x, epsilon):
    wide = x.astype(np.float64)
    return (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + epsilon)


def rms_normalized(x, epsilon):
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + epsilon)


@pytest.mark.parametrize("scale", SCALES)
def test_embeddings_have_the_length_one(scale):
    x = rows(scale)
    np.testing.assert_allclose(unit(x), units(x), rtol=0, atol=FLOAT32)


def test_rows_beside_tiny_and_huge_ones_keep_their_bits():
    ordinary = rows(1.0)
    mixed = np.concatenate([ordinary, rows(1e-25), rows(1e22), np.zeros((1, 48), np.float32)])
    expected = ordinary / np.maximum(np.linalg.norm(ordinary, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    assert_same_bits(unit(mixed)[:6], expected)
    assert_same_bits(unit(mixed)[-1], np.zeros(48, np.float32))
    plain = ordinary / np.sqrt(ops.sum(np.square(ordinary), 1, keepdims=True))
    assert_same_bits(ops.normalize(mixed)[:6], plain)


@pytest.mark.parametrize("scale", SCALES)
def test_cosines_and_distances_of_embeddings(scale):
    a, b = rows(scale, seed=1), rows(scale, seed=2)
    names = SentenceTransformerNames()
    np.testing.assert_allclose(names.similarity(a, b), units(a) @ units(b).T, rtol=0, atol=1e-6)
    names.similarity_fn_name = "euclidean"
    exact = -np.linalg.norm(a.astype(np.float64) - b.astype(np.float64), axis=1)
    if scale < 3e38:
        np.testing.assert_allclose(names.similarity_pairwise(a, b), exact, rtol=1e-6, atol=1e-44)


@pytest.fixture
def sets():
    """The instruction sets of this CPU; the one of before is chosen again afterwards."""
    before = cpu.isa()
    yield cpu.available_isas()
    cpu.set_isa(before)


@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 1e-5])
@pytest.mark.parametrize("scale", [scale for scale in SCALES if scale > 1e-39])
def test_layer_and_rms_norms_on_every_instruction_set(sets, scale, epsilon):
    x = rows(scale, 100)
    found = []
    for name in sets:
        cpu.set_isa(name)
        found.append((mp.layer_norm(x, epsilon=epsilon), ops.rms_norm(x, epsilon=epsilon)))
        alone = x.copy()
        ops.rms_norm(alone, epsilon=epsilon, out=alone)
        assert_same_bits(alone, found[-1][1])
    for one, other in found:
        assert_same_bits(one, found[0][0])
        assert_same_bits(other, found[0][1])
    for received, exact in zip(found[0], (layer_normalized(x, epsilon), rms_normalized(x, epsilon)), strict=True):
        np.testing.assert_allclose(received, exact, rtol=0, atol=1e-6 * np.abs(exact).max())


@pytest.mark.parametrize("epsilon", [1e-40, 1e-31, 1e-6])
def test_equal_numbers_are_normalized_to_zeros(sets, epsilon):
    x = np.repeat(np.float32([[0.5], [2.0**28], [1e30], [-1e37]]), 4, axis=1)
    for name in sets:
        cpu.set_isa(name)
        assert_same_bits(mp.layer_norm(x, epsilon=epsilon), np.zeros_like(x))
        variable = mp.AutoCastVariable(x)
        _, (found,) = mp.value_and_grad(
            lambda variable=variable: ops.sum(mp.layer_norm(variable.value, epsilon=epsilon)), [variable]
        )()
        assert_same_bits(np.abs(found), np.zeros_like(x))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_norms_of_narrow_types(dtype):
    scale = 1e25 if dtype == "bfloat16" else 1e-6
    x = mp.cast(rows(scale), dtype)
    exact = rms_normalized(mp.cast(x, "float32"), 0.0)
    received = mp.cast(ops.rms_norm(x, epsilon=0.0), "float32")
    np.testing.assert_allclose(received, exact, rtol=2.0**-8)


def test_rows_with_infinity_or_nan_stay_nan():
    x = rows(1.0)
    x[0, 0], x[1, 0] = np.inf, np.nan
    for received in (mp.layer_norm(x), ops.rms_norm(x)):
        assert np.isnan(received[:2]).any(axis=1).all()
        assert np.isfinite(received[2:]).all()


@pytest.mark.parametrize("scale", [1e-20, 1e22, 1e30])
@pytest.mark.parametrize(
    ("norm", "exact"), [(mp.layer_norm, layer_normalized), (ops.rms_norm, rms_normalized)]
)  # fmt: skip
def test_gradients_of_norms(scale, norm, exact):
    x = rows(scale)
    weights = np.random.default_rng(3).uniform(-1, 1, x.shape).astype(np.float32)
    variable = mp.AutoCastVariable(x)
    _, (found,) = mp.value_and_grad(lambda: ops.sum(norm(variable.value, epsilon=0.0) * weights), [variable])()
    step, wide = scale * 1e-6, x.astype(np.float64)
    for place in ((0, 0), (2, 7), (5, 40)):
        moved = [wide.copy(), wide.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        plus, minus = ((exact(each, 0.0) * weights).sum() for each in moved)
        assert float(found[place]) == pytest.approx((plus - minus) / (2 * step), rel=1e-3, abs=1e-5 / scale)


@pytest.mark.parametrize("scale", [0.0, 1e-40, 1e-25])
@pytest.mark.parametrize(
    "normalized", [layers.UnitNormalization(), lambda x: layers.Dot(-1, normalize=True)([x, ops.ones_like(x)])]
)
def test_gradients_of_vectors_shorter_than_epsilon_are_finite(normalized, scale):
    """There the function is x / 1e-12. The gradient of a root of 0 makes NaN of it, in Keras on torch too."""
    x = rows(scale)
    variable = mp.AutoCastVariable(x)
    _, (found,) = mp.value_and_grad(lambda: ops.sum(normalized(variable.value)), [variable])()
    share = 1 / np.sqrt(x.shape[1]) if not isinstance(normalized, layers.UnitNormalization) else 1
    np.testing.assert_allclose(found, np.full_like(x, share * 1e12), rtol=1e-6)


def test_a_plan_has_the_bits_of_calls_without_one():
    class Normalized(layers.Layer):
        def call(self, inputs):
            return ops.normalize(inputs)

    made = (layers.UnitNormalization(), layers.LayerNormalization(epsilon=1e-6), Normalized())
    x = np.concatenate([rows(1.0), rows(1e22), rows(1e-25)])
    for layer in made:
        assert_same_bits(mp.compile(layer, np.ones_like(x))(x), layer(x))


@pytest.mark.parametrize("scale", [1e22, 1e30, 3e38])
def test_operations_and_layers_of_huge_vectors(scale):
    x, y = rows(scale), rows(scale, seed=1)
    np.testing.assert_allclose(ops.normalize(x), units(x), rtol=0, atol=FLOAT32)
    np.testing.assert_allclose(layers.UnitNormalization()(x), units(x), rtol=0, atol=FLOAT32)
    cosines = (units(x) * units(y)).sum(-1)
    np.testing.assert_allclose(losses.cosine_similarity(x, y), -cosines, rtol=0, atol=1e-6)
    np.testing.assert_allclose(metrics.CosineSimilarity()(x, y), cosines.mean(), rtol=0, atol=1e-6)
    dot = layers.Dot(axes=1, normalize=True)([x, y])
    np.testing.assert_allclose(dot[:, 0], cosines, rtol=0, atol=1e-6)


def test_tiny_vectors_are_normalized_where_epsilon_is_smaller():
    x = rows(1e-25)
    np.testing.assert_allclose(ops.normalize(x, epsilon=0.0), units(x), rtol=0, atol=FLOAT32)
    np.testing.assert_allclose(ops.normalize(x), x.astype(np.float64) / 1e-6, rtol=1e-6)
    assert_same_bits(ops.normalize(np.zeros((1, 4), np.float32)), np.zeros((1, 4), np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lengths_are_those_of_numpy(dtype):
    for scale in (1e-40, 1e-25, 1.0, 1e22, 1e37):
        x = rows(scale).astype(dtype)
        np.testing.assert_allclose(length(x, 1)[:, 0], np.linalg.norm(x.astype(np.float64), axis=1), rtol=1e-5)
        assert_same_bits(ops.norm(x, axis=1), length(x, 1)[:, 0])
    if dtype is np.float64:
        x = rows(1.0).astype(np.float64) * 1e200
        np.testing.assert_allclose(length(x, 1)[:, 0] / 1e200, np.linalg.norm(x / 1e200, axis=1), rtol=1e-12)


def test_the_gradient_of_a_norm_is_the_unit_vector_and_of_zeros_zero():
    x = np.concatenate([rows(1.0), rows(1e22), rows(1e-25), np.zeros((1, 48), np.float32)])
    variable = mp.AutoCastVariable(x)
    _, (found,) = mp.value_and_grad(lambda: ops.sum(ops.norm(variable.value, axis=1)[:, None] * 1.0), [variable])()
    np.testing.assert_allclose(found[:-1], units(x[:-1]), rtol=0, atol=FLOAT32)
    assert not found[-1].any()


def test_constraints_of_huge_weights():
    w = rows(1e22).T
    np.testing.assert_allclose(np.linalg.norm(constraints.UnitNorm()(w), axis=0), 1, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(constraints.MaxNorm(2.0)(w), axis=0), 2, rtol=1e-6)
    half = np.full((4, 2), 300, np.float16)  # whose squares leave float16
    np.testing.assert_allclose(constraints.MaxNorm(2.0)(half).astype(np.float32), 1, rtol=1e-3)
    half = np.full((4, 2), 60000, np.float16)  # whose norms do, too
    for constraint in (constraints.MaxNorm(2.0), constraints.MinMaxNorm(1.0, 2.0), constraints.UnitNorm()):
        exact = constraint(half.astype(np.float64))
        np.testing.assert_allclose(constraint(half).astype(np.float64), exact, rtol=1e-3)


@pytest.mark.parametrize("scale", [1e-37, 1e-25, 1e22, 1e37])
def test_the_correlation_of_tiny_and_huge_numbers(scale):
    x, y = rows(scale), rows(1.0)[:, ::-1]
    exact = [np.corrcoef(*pair)[0, 1] for pair in zip(x.astype(np.float64) / scale, y, strict=True)]
    for pair in ((x, y), (y, x)):
        np.testing.assert_allclose(metrics.pearson_correlation(*pair), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm"])
def test_gradients_of_huge_norms_are_clipped(clip):
    g = rows(1e22)
    variable = mp.AutoCastVariable(np.zeros_like(g))
    optimizer = optimizers.SGD(1.0, **{clip: 2.0})
    optimizer.apply([g], [variable])
    np.testing.assert_allclose(np.linalg.norm(variable.numpy().astype(np.float64)), 2, rtol=1e-6)


@pytest.mark.parametrize("kind", ["Lamb", "Muon", "Adafactor"])
def test_optimizers_whose_steps_have_norms_stay_finite(kind):
    w = rows(1e22)
    variable = mp.AutoCastVariable(w)
    getattr(optimizers, kind)(0.1).apply([rows(1e15)], [variable])
    assert np.isfinite(variable.numpy()).all()
    assert (variable.numpy() != w).any()


@pytest.mark.parametrize("scale", [1e-200, 1e-25, 1.0, 1e22, 1e200])
@pytest.mark.parametrize("order", [1, 2, 3, 60])
def test_utils_normalize(scale, order):
    x = rows(1.0).astype(np.float64) * scale
    np.testing.assert_allclose(np.linalg.norm(utils.normalize(x, order=order), order, axis=-1), 1, rtol=1e-12)
