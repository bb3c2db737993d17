"""softmax, layer_norm and the activations, compared with float64."""

import math

import numpy as np
import pytest
from oracles import (
    ACTIVATIONS,
    NARROW,
    assert_same_bits,
    bits,
    codes,
    exact_layer_norm,
    exact_softmax,
    gamma,
    nearest,
    values,
)

import mp_core as mp
from mp_core.layers import activations

SHAPES = [(1,), (15,), (16,), (17,), (3, 33), (2, 3, 64), (5, 1), (4, 1000), (0, 4), (4, 0)]


def step(dtype):
    return float(mp.dtypes.finfo(dtype).eps)


def ulps(actual, exact):
    """Distance in units in the last place of the exact value, as float32."""
    exponent = np.maximum(np.frexp(exact)[1], -125)
    return np.abs(actual.astype(np.float64) - exact) * 2.0 ** (24 - exponent)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float64", "float32", *NARROW])
def test_softmax(isa, shape, dtype, rng):
    x = values(rng, shape, dtype, 2)
    y = mp.softmax(x)
    assert y.dtype == x.dtype and y.shape == x.shape
    exact = exact_softmax(x.astype(np.float64))
    error = np.abs(y.astype(np.float64) - exact)
    smallest = float(mp.dtypes.finfo(dtype).smallest_subnormal)
    depth = np.abs(x.astype(np.float64) - x.astype(np.float64).max(axis=-1, keepdims=True, initial=-np.inf))
    assert np.all(error <= exact * (step(dtype) / 2 + 1e-6 + 2.0**-24 * depth) + smallest)  # x - max rounds, then exp


def test_softmax_sums_in_float32_whatever_the_storage():
    x = np.zeros(512, "bfloat16")
    assert mp.softmax(x).astype(np.float32).sum() == 1.0


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_softmax_along_any_axis(axis, rng):
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    np.testing.assert_allclose(mp.softmax(x, axis=axis), exact_softmax(x.astype(np.float64), axis), rtol=1e-6)
    assert_same_bits(mp.softmax(x, axis=axis, out=x.copy()), mp.softmax(x, axis=axis))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_softmax_scale_and_mask(isa, dtype, rng):
    x = values(rng, (2, 3, 4, 37), dtype, 1)
    mask = rng.random((2, 1, 1, 37)) < 0.6
    mask[..., 0] = True
    y = mp.softmax(x, scale=0.25, mask=mask).astype(np.float64)
    exact = exact_softmax(np.where(mask, 0.25 * x.astype(np.float64), -np.inf))
    np.testing.assert_allclose(y, exact, rtol=step(dtype) + 1e-6, atol=0)
    full = np.broadcast_to(mask, x.shape)
    for form in (np.ascontiguousarray(full), np.asfortranarray(full), mask.tolist()):
        np.testing.assert_array_equal(mp.softmax(x, scale=0.25, mask=form).astype(np.float64), y)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("n", [4, 16, 19])
def test_a_row_without_any_kept_element_is_zeros(isa, dtype, n):
    x, first = np.array([np.arange(n)] * 3, dtype), np.arange(n) < 1
    y = mp.softmax(x, mask=np.array([first & False, first, first]))
    np.testing.assert_array_equal(y, np.array([first * 0, first, first], dtype))
    x[:2, 0] = np.nan
    y = mp.softmax(x, mask=np.array([first & False, first, first]))
    assert not y[0].any() and np.isnan(y[1, 0]) and not y[1, 1:].any() and y[2, 0] == 1


KEPT = {
    "usual": (lambda n: np.linspace(-3, 3, n), 1),
    "lowest": (lambda n: np.full(n, -np.inf), None),  # replaced by the lowest number of the type
    "lowest and more": (lambda n: np.where(np.arange(n) % 2, 3.0, -np.inf), None),
    "some -inf": (lambda n: np.where(np.arange(n) % 2, 3.0, -np.inf), 1),
    "all -inf": (lambda n: np.full(n, -np.inf), np.nan),
    "inf": (lambda n: np.where(np.arange(n) == 1, np.inf, 0.0), np.nan),
    "NaN": (lambda n: np.where(np.arange(n) == 1, np.nan, 0.0), np.nan),
}
"""Elements that count, and what they sum to; NaN: all of them become NaN."""


@pytest.mark.parametrize("hidden", [0.0, np.inf, -np.inf, np.nan, "highest", "lowest"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", KEPT)
def test_a_mask_leaves_the_softmax_of_what_it_keeps(isa, name, dtype, hidden):
    """Whatever is masked gets exactly 0 and changes nothing."""
    for n in (2, 16, 21):
        make, total = KEPT[name]
        limits = mp.dtypes.finfo(dtype)
        kept = np.array(make(n))
        if total is None:
            kept[np.isneginf(kept)], total = float(limits.min), 1
        kept = kept.astype(dtype)
        x, mask = np.empty(2 * n, dtype), np.arange(2 * n) % 2 == 1
        x[mask] = kept
        x[~mask] = {"highest": limits.max, "lowest": limits.min}.get(hidden, hidden)
        y, alone = mp.softmax(x, mask=mask), mp.softmax(kept)
        np.testing.assert_array_equal(bits(y[~mask]), 0)
        if np.isnan(total):
            assert np.isnan(y[mask]).all() and np.isnan(alone).all()
        else:
            wide = y[mask].astype(np.float64)
            np.testing.assert_allclose(wide, alone.astype(np.float64), rtol=4 * step(dtype))
            assert abs(wide.sum() - 1) <= n * step(dtype)


@pytest.mark.parametrize("dtype", ["float32", *NARROW])
@pytest.mark.parametrize("n", [17, 1030])
def test_no_bit_depends_on_the_rows_beside_a_row(isa, n, dtype, rng):
    x, residual, mask = values(rng, (2, 7, n), dtype, 1), values(rng, (2, 7, n), dtype, 1), rng.random((2, 7, n)) < 0.5
    gamma, beta = rng.standard_normal((2, n)).astype(np.float32)
    soft, whole = mp.softmax(x), mp.softmax(x, mask=mask)
    shared = mp.softmax(x, mask=mask[:, :1])
    norm, rms = mp.layer_norm(x, gamma, beta, residual=residual), mp.rms_norm(x, gamma)
    for i in np.ndindex(2, 7):
        assert_same_bits(soft[i], mp.softmax(x[i]))
        assert_same_bits(whole[i], mp.softmax(x[i], mask=mask[i]))
        assert_same_bits(shared[i], mp.softmax(x[i], mask=mask[i[0], 0]))
        assert_same_bits(norm[i], mp.layer_norm(x[i], gamma, beta, residual=residual[i]))
        assert_same_bits(rms[i], mp.rms_norm(x[i], gamma))


def test_masks_may_be_integers():
    x = np.float32([1, 1, 5])
    for dtype in ("int64", "int8", "uint8"):
        np.testing.assert_array_equal(mp.softmax(x, mask=np.array([1, 1, 0], dtype)), [0.5, 0.5, 0])


def test_layers_follow_the_rule_of_masks():
    lowest = float(np.finfo(np.float32).min)
    for hidden in (0.0, np.inf, np.nan, lowest):
        x = np.float32([[lowest, lowest, hidden, hidden]])
        y = mp.layers.Softmax(dtype="float32")(x, mask=[[1, 1, 0, 0]])
        np.testing.assert_array_equal(y, [[0.5, 0.5, 0, 0]])
    layer = mp.layers.MultiHeadAttention(1, 2, use_bias=False, dtype="float32")
    x = np.float32([[[1, 2], [3, 4], [5, 6]]])
    layer(x, x)
    layer.set_weights([w * 0 + 1 if i != 1 else w * 0 - np.float32(1e38) for i, w in enumerate(layer.get_weights())])
    _, scores = layer(x, x, attention_mask=np.array([[1, 1, 0]] * 2 + [[0, 0, 0]]), return_attention_scores=True)
    np.testing.assert_array_equal(scores[0, 0, 2], [0, 0, 0])
    np.testing.assert_array_equal(scores[0, 0, :2, 2], 0)
    assert np.isnan(scores[0, 0, :2, :2]).all()  # all that is kept is -inf


def test_softmax_of_infinities_and_nan(isa):
    x = np.float32([[0, -np.inf, 0], [np.nan, 0, 0], [np.inf, 0, 0], [-np.inf, -np.inf, -np.inf], [3e38, -3e38, 3e38]])
    y = mp.softmax(x)
    np.testing.assert_array_equal(y[[0, 4]], np.float32([[0.5, 0, 0.5], [0.5, 0, 0.5]]))
    assert np.isnan(y[1]).all() and np.isnan(y[2, 0]) and np.isnan(y[3]).all()


def sum_bound(n):
    """docs/numerics.md: gamma of the additions that an element takes part in."""
    return gamma(min(-(-n // 16), 256) + math.ceil(math.log2(max(-(-n // 4096), 1))) + 4)


@pytest.mark.parametrize("n", [4096, 2**20 + 3, 2**21])
def test_sums_of_long_rows_do_not_stagnate(n, rng):
    repeated = (0.37 * (np.arange(n) % 3)).astype(np.float32)
    for x in (np.zeros(n, np.float32), repeated, rng.standard_normal(n, np.float32)):
        y = mp.softmax(x)
        e = np.exp(x.astype(np.float64) - float(x.max()))
        assert abs(y.sum(dtype=np.float64) - 1) <= sum_bound(n) + 2.0**-21
        np.testing.assert_allclose(y, e / e.sum(), rtol=sum_bound(n) + 2e-6)
    x = rng.standard_normal(n, np.float32) + np.float32(100)
    wide = x.astype(np.float64)
    assert np.abs(mp.layer_norm(x, epsilon=0.0) - exact_layer_norm(wide, 0.0)).max() <= 3e-5
    exact = wide / np.sqrt(np.mean(wide**2))
    np.testing.assert_allclose(mp.rms_norm(x, epsilon=0.0), exact, rtol=sum_bound(n) / 2 + 4 * 2.0**-24)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[-1]])
@pytest.mark.parametrize("dtype", ["float64", "float32", *NARROW])
def test_rms_norm(isa, shape, dtype, rng):
    x, gamma = values(rng, shape, dtype, 1), rng.standard_normal(shape[-1]).astype("bfloat16")
    y = mp.rms_norm(x, gamma, epsilon=1e-5)
    assert y.dtype == x.dtype and y.shape == x.shape
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * gamma.astype(np.float64)
    smallest = float(mp.dtypes.finfo(dtype).smallest_subnormal)
    assert np.all(np.abs(y.astype(np.float64) - exact) <= np.abs(exact) * (step(dtype) / 2 + 3e-6) + smallest)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_norms_along_any_axis(axis, dtype, rng):
    x, r = values(rng, (3, 4, 5), dtype, 1), values(rng, (3, 4, 5), dtype, 1)
    gamma, beta = rng.standard_normal((2, x.shape[axis]))

    def last(array):
        return np.ascontiguousarray(np.moveaxis(array, axis, -1))

    y = mp.layer_norm(x, gamma, beta, axis=axis, residual=r)
    assert_same_bits(last(y), mp.layer_norm(last(x), gamma, beta, residual=last(r)))
    assert_same_bits(last(mp.rms_norm(x, gamma, axis=axis)), mp.rms_norm(last(x), gamma))
    for source in (x.copy(), r.copy()):
        out = source
        given, added = (out, r) if source is not r and np.array_equal(source, x) else (x, out)
        assert mp.layer_norm(given, gamma, beta, axis=axis, residual=added, out=out) is out
        assert_same_bits(out, y)
    out = x.copy()
    assert mp.rms_norm(out, gamma, axis=axis, out=out) is out
    assert_same_bits(out, mp.rms_norm(x, gamma, axis=axis))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("axes", [(1, 2), (0, 2), (-1, 0), (2, 0, 1), (1,)])
def test_norms_along_several_axes_are_those_of_the_axes_joined(axes, dtype, rng):
    shape, places = (3, 4, 5), sorted(axis % 3 for axis in axes)
    x, r = values(rng, shape, dtype, 1), values(rng, shape, dtype, 1)
    lengths, kept = [shape[axis] for axis in places], [axis for axis in range(3) if axis not in places]
    gamma, beta = rng.standard_normal((2, *lengths))

    def rows(array):
        return array.transpose(*kept, *places).reshape(*(shape[axis] for axis in kept), -1).copy()

    norm = mp.layer_norm(rows(x), gamma.ravel(), beta.ravel(), residual=rows(r))
    y = mp.layer_norm(x, gamma, beta, axis=axes, residual=r)
    assert_same_bits(rows(y), norm)
    assert_same_bits(rows(mp.rms_norm(x, gamma, axis=axes)), mp.rms_norm(rows(x), gamma.ravel()))
    in_place = x.copy()
    for out in (np.zeros(shape, x.dtype), np.zeros((3, 4, 10), x.dtype)[..., ::2], in_place):
        given = out if out is in_place else x
        assert mp.layer_norm(given, gamma, beta, axis=list(axes), residual=r, out=out) is out
        assert_same_bits(out, y)


def test_norms_name_axes_that_cannot_be():
    x = np.ones((2, 3, 4), np.float32)
    for norm in (mp.layer_norm, mp.rms_norm):
        for axes in ((), (0, 0), (1, -2)):
            with pytest.raises(ValueError, match="`axis` must name axes, each once"):
                norm(x, axis=axes)
        with pytest.raises(ValueError, match=r"`axis` must lie in \[-3, 3\)"):
            norm(x, axis=(0, 3))
        with pytest.raises(TypeError, match="`axis` must be an int or a sequence of int"):
            norm(x, axis=(0, 1.5))
        with pytest.raises(ValueError, match=r"`gamma` must have shape \(2, 4\); received \(8,\)"):
            norm(x, np.ones(8), axis=(0, 2))


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[-1]])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_layer_norm(isa, shape, dtype, rng):
    x, residual = values(rng, shape, dtype, 1), values(rng, shape, dtype, 1)
    gamma, beta = rng.standard_normal(shape[-1]), rng.standard_normal(shape[-1])
    gamma, beta = gamma.astype(np.float32), beta.astype("bfloat16")
    for extra in (None, residual):
        y = mp.layer_norm(x, gamma, beta, epsilon=1e-5, residual=extra)
        assert y.dtype == x.dtype and y.shape == x.shape
        total = x.astype(np.float64) + (0 if extra is None else extra.astype(np.float64))
        exact = exact_layer_norm(total, 1e-5) * gamma.astype(np.float64) + beta.astype(np.float64)
        scale = np.abs(exact) + np.abs(beta.astype(np.float64)) + np.abs(gamma)
        assert np.all(np.abs(y.astype(np.float64) - exact) <= scale * (step(dtype) + 3e-6))


def test_layer_norm_of_large_means_uses_two_passes(isa):
    x = (np.arange(64) % 2 + 4096).astype(np.float32)
    np.testing.assert_allclose(mp.layer_norm(x, epsilon=0.0), np.where(np.arange(64) % 2, 1, -1), rtol=1e-6)


def test_layer_norm_in_place_and_overlapping_residual(rng):
    x, r = (rng.standard_normal((5, 20)).astype(np.float32) for _ in range(2))
    expected = mp.layer_norm(x, residual=r)
    assert_same_bits(mp.layer_norm(x.copy(), residual=r, out=(out := r.copy())), expected)
    again = x.copy()
    assert mp.layer_norm(again, residual=r, out=again) is again
    assert_same_bits(again, expected)
    shared = r.copy()
    assert_same_bits(mp.layer_norm(x, residual=shared, out=shared), expected)
    assert out.shape == x.shape


def test_out_may_overlap_gamma_beta_and_mask(rng):
    x, vector = rng.standard_normal((5, 8)).astype(np.float32), rng.standard_normal(8).astype(np.float32)
    for name in ("gamma", "beta"):
        expected = mp.layer_norm(x, **{name: vector})
        out = np.ones((5, 8), np.float32)
        out[0] = vector
        assert_same_bits(mp.layer_norm(x, **{name: out[0]}, out=out), expected)
    out = np.zeros((5, 8), np.float32)
    mask = out.view(np.bool_)[:, ::4]
    mask[:, :3] = True
    expected = mp.softmax(x, mask=mask.copy())
    assert_same_bits(mp.softmax(x, mask=mask, out=out), expected)


def test_float64_ends_as_float32_does():
    ends = np.array([-np.inf, np.inf, np.nan, 0.0])
    for function in FUNCTIONS.values():
        np.testing.assert_array_equal(function(ends).astype(np.float32), function(ends.astype(np.float32)))
    assert mp.layer_norm(np.zeros((3, 0))).shape == (3, 0)


FUNCTIONS = {name: function for function, name in activations.FUSED.items()}
BOUNDS = {
    "relu": 0, "relu6": 0, "gelu": 2, "gelu_tanh": 2.2, "silu": 2, "sigmoid": 1, "tanh": 1, "elu": 1, "softplus": 2,
    "exponential": 1,
}  # fmt: skip
"""Of docs/numerics.md, in ULP of float32."""


def test_every_activation_has_a_bound_and_a_formula():
    assert FUNCTIONS.keys() == BOUNDS.keys() == ACTIVATIONS.keys()


def float32_numbers(step):
    """Every `step`-th float32 by code, both infinities and NaN among them, and all numbers of 16 bits."""
    narrow = (codes(dtype).astype(np.float32) for dtype in ("float16", "bfloat16"))
    return np.concatenate([np.arange(0, 2**32, step, dtype=np.uint32).view(np.float32), *narrow])


def assert_error_in_ulp(name, x):
    y = FUNCTIONS[name](x)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        exact = ACTIVATIONS[name](x.astype(np.float64))
        nearest = exact.astype(np.float32)
    finite = np.isfinite(nearest)
    assert_same_bits(y[~finite], nearest[~finite])
    assert ulps(y[finite], exact[finite]).max(initial=0) <= BOUNDS[name]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_error_in_ulp(isa, name):
    assert_error_in_ulp(name, float32_numbers(65521))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_error_in_ulp_of_every_float32(name):
    for first in range(0, 2**32, 2**22):
        assert_error_in_ulp(name, np.arange(first, first + 2**22, dtype=np.uint64).astype(np.uint32).view(np.float32))


def test_exp_error_in_ulp(isa):
    """By softmax: 15 terms below e^-19.5 beside a 0 leave the sum of the row at exactly 1."""
    x = np.linspace(-104, -19.5, 150_000, dtype=np.float32).reshape(-1, 15)
    y = mp.softmax(np.pad(x, [(0, 0), (1, 0)]))[:, 1:]
    assert ulps(y, np.exp(x.astype(np.float64))).max() <= 1


# Values at +Inf, 3e38, -3e38 and -Inf, where they are not those of relu.
LIMITS = {
    "relu6": (6, 6, 0, 0), "sigmoid": (1, 1, 0, 0), "tanh": (1, 1, -1, -1), "elu": (np.inf, 3e38, -1, -1),
    "exponential": (np.inf, np.inf, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_keep_signs_and_limits(isa, name):
    function = FUNCTIONS[name]
    x = np.float32([np.inf, -np.inf, np.nan, 3e38, -3e38])
    y = function(x)
    top, high, low, bottom = LIMITS.get(name, (np.inf, 3e38, 0, 0))
    np.testing.assert_array_equal(y, np.float32([top, bottom, np.nan, high, low]))
    for dtype in ("float32", "float64", "bfloat16"):
        zeros = np.array([-0.0, 0.0] * 8, dtype)  # NumPy's maximum depends on the place in a vector
        np.testing.assert_array_equal(np.signbit(function(zeros)), [function(np.zeros(1))[0] == 0, False] * 8)
    tiny = np.float32([2.0**-149, -(2.0**-149)])
    if name in ("relu", "relu6", "tanh", "elu"):
        np.testing.assert_array_equal(function(tiny), np.maximum(tiny, 0) if "relu" in name else tiny)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float64", *NARROW])
def test_activations_of_other_types(isa, name, dtype, rng):
    function = FUNCTIONS[name]
    x = values(rng, (3, 700), dtype, 1)
    y = function(x)
    assert y.dtype == x.dtype
    if dtype == "float64":
        np.testing.assert_allclose(y, ACTIVATIONS[name](x), rtol=1e-13, atol=1e-300)
    else:
        assert_same_bits(y, nearest(ACTIVATIONS[name](x.astype(np.float64)), dtype))


@pytest.mark.parametrize("function", [mp.softmax, mp.layer_norm, mp.rms_norm, mp.gelu])
def test_any_layout_and_out(function, rng):
    x = rng.standard_normal((6, 40)).astype(np.float32)
    expected = function(x)
    for view in (np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2], x.astype(">f4")):
        assert_same_bits(function(view), expected)
    for out in (np.empty((6, 80), "f4")[:, ::2], np.empty((40, 6), "f4").T):
        assert function(x, out=out) is out
        assert_same_bits(np.ascontiguousarray(out), expected)


def test_threads_do_not_change_bits(rng):
    x = rng.standard_normal((400, 300)).astype(np.float32)
    for function in (mp.softmax, mp.layer_norm, mp.rms_norm, mp.gelu):
        with mp.config.num_threads(1):
            one = function(x)
        with mp.config.num_threads(5):
            assert_same_bits(function(x), one)


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mp.softmax(X, axis=2), ValueError, "`axis` must lie in"),
        (lambda: mp.softmax(np.float32(1)), ValueError, "`axis` must lie in"),
        (lambda: mp.softmax(X, mask=np.ones(3)), TypeError, "`mask` must be bool or integer"),
        (lambda: mp.softmax(X, mask=[0, 1, 2]), ValueError, "`mask` must be 1 .*received numbers from 0 to 2"),
        (lambda: mp.softmax(X, scale=1e300), ValueError, "`scale` must be finite in float32; received scale=1e\\+300"),
        (lambda: mp.softmax(X.astype("f2"), scale=-4e38), ValueError, "`scale` must be finite in float32"),
        (lambda: mp.softmax(X.astype("f8"), scale=np.inf), ValueError, "`scale` must be finite in float64"),
        (lambda: mp.softmax(X, mask=[True] * 4), ValueError, "`mask` must broadcast"),
        (lambda: mp.softmax(X, out=np.empty((2, 3))), TypeError, "`out` must have dtype float32"),
        (lambda: mp.layer_norm(np.float32(1)), ValueError, "at least 1 axis"),
        (lambda: mp.layer_norm(X, axis=2), ValueError, "`axis` must lie in"),
        (lambda: mp.layer_norm(X, np.ones(3), axis=0), ValueError, r"`gamma` must have shape \(2,\)"),
        (lambda: mp.rms_norm(np.float32(1)), ValueError, "`axis` must lie in"),
        (lambda: mp.rms_norm(X, np.ones(2)), ValueError, r"`gamma` must have shape \(3,\)"),
        (lambda: mp.rms_norm(X, epsilon=-1.0), ValueError, "`epsilon` must be a number of at least 0"),
        (lambda: mp.rms_norm(X, out=np.empty((2, 3))), TypeError, "`out` must have dtype float32"),
        (lambda: mp.layer_norm(X, np.ones(2)), ValueError, r"`gamma` must have shape \(3,\)"),
        (lambda: mp.layer_norm(X, None, np.ones((1, 3))), ValueError, r"`beta` must have shape \(3,\)"),
        (lambda: mp.layer_norm(X, residual=np.ones(3)), ValueError, "`residual` must have shape"),
        (lambda: mp.gelu("x"), TypeError, "`x` must be an array"),
        (lambda: mp.gelu(X, "none"), TypeError, "`approximate` must be True or False; received approximate='none'"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_rows_of_float64_with_infinities_warn_of_nothing():
    """Warnings are errors here."""
    np.testing.assert_array_equal(mp.softmax(np.array([1e308, 0.0]), mask=[True, False]), [1, 0])
    assert (
        np.isnan(mp.softmax(np.array([np.inf, 0.0]))).all() and np.isnan(mp.layer_norm(np.array([np.inf, 0.0]))).all()
    )
