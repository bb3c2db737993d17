"""Values and gradients: rules of products compared with central differences, plans, and errors."""

import ml_dtypes
import numpy as np
import pytest
from gradients import by_rules, check_rule, check_variables

import mp_core as mp
from mp_core import layers
from mp_core.arrays.recorded import recordable
from mp_core.autocast import AutoCastVariable
from mp_core.core.changes import count
from mp_core.ops.gradients.registry import UngradedError

rng = np.random.default_rng(0)


def random(*shape):
    return rng.standard_normal(shape)


def squares(x):
    x = x.value if isinstance(x, AutoCastVariable) else x
    return mp.matmul(x.reshape(1, -1), x.reshape(-1, 1))


PRODUCTS = {
    "matrices": lambda a, b: mp.matmul(a, b),
    "a bias": lambda a, b, c: mp.matmul(a, b, bias=c),
    "relu": lambda a, b, c: mp.matmul(a, b, bias=c, activation="relu"),
    "a residual": lambda a, b, c, r: mp.matmul(a, b, bias=c, residual=r),
    "einsum": lambda a, b: mp.einsum("mk,kn->nm", a, b),
    "the same twice": lambda a: mp.matmul(a, a.swapaxes(0, 1)),
    "a part": lambda a, b: mp.matmul(a[:, 1:4], b[1:4]),
    "overlapping parts": lambda a, b: mp.matmul(a[:, :4], mp.matmul(a[:, 1:5], b)[:4, :3]),
    "a view in another order": lambda a, b: mp.matmul(a.reshape(2, 3, 5).transpose(1, 0, 2), b),
}
SHAPES = {
    "matrices": [(4, 5), (5, 3)], "a bias": [(4, 5), (5, 3), (3,)], "relu": [(4, 5), (5, 3), (3,)],
    "a residual": [(4, 5), (5, 3), (3,), (4, 3)], "einsum": [(4, 5), (5, 3)], "the same twice": [(4, 5)],
    "a part": [(4, 5), (5, 3)], "overlapping parts": [(4, 5), (4, 3)],
    "a view in another order": [(6, 5), (5, 3)],
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_rule_equals_central_differences(name):
    check_rule(PRODUCTS[name], *(random(*shape) for shape in SHAPES[name]))


@pytest.mark.parametrize(
    ("a", "b"),
    [((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((2, 4, 5), (5,)), ((2, 4, 5), (5, 3)), ((2, 4, 5), (2, 5, 3)),
     ((3, 1, 4, 5), (2, 5, 3)), ((4, 5), (2, 5, 3)), ((5,), (2, 5, 3))],
)  # fmt: skip
def test_rule_of_products_of_every_shape(a, b):
    check_rule(mp.matmul, random(*a), random(*b))


@pytest.mark.parametrize(
    ("equation", "a", "b"),
    [("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)), ("...mk,kn->...mn", (2, 3, 4), (4, 5)), ("ij,j->i", (3, 4), (4,)),
     ("ij,kl->il", (3, 4), (2, 5)), ("ab,bc->c", (3, 4), (4, 2)), ("ab,ab->a", (3, 4), (1, 4)),
     ("i,i->", (5,), (5,)), ("ij,kj->", (3, 4), (2, 4))],
)  # fmt: skip
def test_rule_of_einsum_of_every_kind(equation, a, b):
    check_rule(lambda x, y: mp.einsum(equation, x, y), random(*a), random(*b))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_plan_is_within_rounding_of_float64(name, dtype):
    arrays = [random(*shape).astype(dtype) for shape in SHAPES[name]]
    exact = by_rules(PRODUCTS[name], *(x.astype(np.float64) for x in arrays))
    for gradient, expected in zip(by_rules(PRODUCTS[name], *arrays), exact, strict=True):
        assert gradient.dtype == dtype
        unit = float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(
            gradient.astype(np.float64), expected, rtol=0, atol=8 * unit * np.abs(expected).max()
        )


@recordable
def unknown(x):
    return mp.matmul(x, x.reshape(-1, 1))


def mlp(dtype="float32"):
    model = layers.Sequential([layers.Dense(8, "relu", dtype=dtype), layers.Dense(3, dtype=dtype)])
    model.build((None, 5))
    return model


def test_gradients_of_a_perceptron_equal_central_differences():
    model, x = mlp("float64"), random(6, 5)
    check_variables(lambda: squares(model(x)), model.trainable_variables)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_plan_reads_the_values_that_variables_have_and_is_made_once(policy):
    model, x = mlp(policy), random(6, 5).astype(np.float32)
    calls = []

    def value(x):
        calls.append(1)
        return squares(model(x))

    step = mp.value_and_grad(value, model.trainable_variables)
    assert step(x)[0] == squares(model(x))
    for variable in model.variables:
        variable.assign(2 * variable.numpy())
    result, found = step(x)
    assert len(calls) == 1
    assert result == squares(model(x))
    assert all(g.dtype == np.float32 for g in found)
    fresh = mp.value_and_grad(value, model.trainable_variables)(x)[1]
    assert all(np.array_equal(g, other) for g, other in zip(found, fresh, strict=True))
    step(x[:2])
    assert len(calls) == 3  # the fresh one, and another shape


def test_gradient_of_a_variable_is_not_rounded_to_16_bits():
    layer = layers.Dense(1, use_bias=False, dtype="mixed_bfloat16")
    layer.build((None, 1))
    step = mp.value_and_grad(lambda x: mp.matmul(np.ones((1, 300), ml_dtypes.bfloat16), layer(x)), layer.variables)
    assert step(np.ones((300, 1), np.float32))[1][0] == 300
    assert step(np.full((300, 1), 1.0078125, np.float32))[1][0] == 302.34375  # which bfloat16 has not


def test_frozen_layers_stay_packed_and_pass_gradients_on():
    model, x = mlp(), random(6, 5).astype(np.float32)
    first, last = model.layers
    both = mp.value_and_grad(lambda x: squares(model(x)), model.variables)(x)[1]
    last.trainable = False
    assert all(
        np.array_equal(found, expected)
        for found, expected in zip(
            mp.value_and_grad(lambda x: squares(model(x)), first.variables)(x)[1], both, strict=False
        )
    )


def test_function_of_variables_alone_and_other_results():
    w = AutoCastVariable(np.float32([1.0, 2.0]))
    (value, rest), found = mp.value_and_grad(lambda: (squares(w), {"w": w.value}), [w], has_aux=True)()
    assert value == 5 and rest["w"].tolist() == [1, 2] and found[0].tolist() == [2, 4]
    assert mp.grad(lambda: squares(w), [w])()[0].tolist() == [2, 4]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_assigned_shares_no_memory_with_other_results(dtype):
    w, state = (AutoCastVariable(np.ones((1, 2), dtype), autocast=False, trainable=x) for x in (True, False))

    def function(x):
        state.assign(mp.multiply(w.value, x))
        return squares(state.value), state.value

    (_, rest), _ = mp.value_and_grad(function, [w], has_aux=True)(np.full((1, 2), 3, dtype))
    rest[...] = 0
    assert state.numpy().tolist() == [[3, 3]]


def test_same_gradient_twice_is_two_arrays():
    a, b = (AutoCastVariable(np.float32([[1.0]]), name=name) for name in "ab")
    found = mp.grad(lambda x: mp.matmul(x, x, residual=mp.matmul(x, a, residual=b.value)), [a, b])(np.ones((1, 1), "f"))
    assert not np.shares_memory(*found)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_same_gradient_of_two_numbers_is_two_arrays(dtype):
    a, b = (AutoCastVariable(np.array(x, dtype), autocast=False, name=name) for name, x in (("a", 2), ("b", 3)))
    weight = np.array([[1.25]], dtype)

    def value(weight):
        return mp.matmul(mp.add(a.value, b.value).reshape(1, 1), weight)

    step = mp.value_and_grad(value, [a, b])
    for factor in (1, 2):  # of float32, by a plan
        total, found = step(factor * weight)
        assert total == 6.25 * factor and [x.tolist() for x in found] == [1.25 * factor] * 2
        assert not np.shares_memory(*found)


def test_variable_that_the_value_does_not_depend_on_is_an_error():
    a, b = (AutoCastVariable(np.float32([[1.0]]), name=name) for name in "ab")
    with pytest.raises(ValueError, match="does not depend on the variables 'b'"):
        mp.grad(lambda: squares(a), [a, b])()


def test_bad_variables_values_and_functions_are_refused():
    w, count = AutoCastVariable(np.float32([1.0, 2.0]), name="w"), AutoCastVariable(3, name="count")
    with pytest.raises(TypeError, match="variable 'count' holds int32"):
        mp.value_and_grad(lambda: squares(w), [w, count])
    with pytest.raises(TypeError, match="received ndarray at 0"):
        mp.value_and_grad(lambda: squares(w), [np.ones(2)])
    with pytest.raises(ValueError, match=r"must have one element.*received shape \(2, 2\)"):
        mp.grad(lambda: mp.matmul(w.value.reshape(2, 1), w.value.reshape(1, 2)), [w])()
    with pytest.raises(ValueError, match=r"numpy\.cbrt is not an operation"):
        mp.grad(lambda: squares(np.cbrt(w)), [w])()
    with pytest.raises(ValueError, match="an assignment to variable 'w'"):
        mp.grad(lambda: squares(w.assign(w.value[::-1])), [w])()
    with pytest.raises(TypeError, match="gradients of gradients"):
        mp.grad(lambda: squares(mp.grad(lambda: squares(w), [w])()[0]), [w])()
    with pytest.raises(UngradedError, match="unknown has no gradient"):
        mp.grad(lambda: squares(unknown(w.value)), [w])()
    kept = []
    mp.grad(lambda: (kept.append(w.value.reshape(1, 2)), squares(w))[1], [w])()
    with pytest.raises(ValueError, match="used after its recording had ended"):
        kept[0] + 1.0
    assert w.numpy().tolist() == [1, 2]


def test_float64_is_computed_call_by_call():
    w = AutoCastVariable(np.float64([1.0, 2.0]))
    value, (gradient,) = mp.value_and_grad(lambda x: mp.matmul(w, x), [w])(np.float32([3.0, 1.0]))
    assert value.dtype == gradient.dtype == np.float64 and gradient.tolist() == [3, 1]


def test_custom_gradient_is_used_and_a_constant_or_an_identity_is_left_alone():
    @mp.custom_gradient
    def clipped(x, scale):
        return x, lambda d: (mp.matmul(d, np.float32([[2.0]])), None)

    w = AutoCastVariable(np.float32([[3.0]]))
    assert mp.grad(lambda: squares(clipped(w, 1.0)), [w])()[0].tolist() == [[12]]
    assert mp.grad(lambda: mp.matmul(clipped(w, 1.0), w), [w])()[0].tolist() == [[9]]
    assert clipped(np.float32([[1.0]]), 2.0).tolist() == [[1]]

    @mp.custom_gradient
    def wrong(x, y):
        return mp.matmul(x, y), lambda d: d

    with pytest.raises(ValueError, match="must return 2 gradients"):
        mp.grad(lambda: wrong(w, w), [w])()


def test_assigned_variables_get_their_values_after_each_run():
    w, mean = AutoCastVariable(np.float32([[2.0]])), AutoCastVariable(np.zeros((1, 1), np.float32), trainable=False)

    def value(x):
        moved = mean.assign(mp.matmul(x, np.float32([[0.5]]), residual=mean.value))
        return mp.matmul(x, w, residual=moved.value)

    step = mp.value_and_grad(value, [w])
    assert step(np.float32([[4.0]]))[0] == 10 and mean.numpy() == 2
    assert step(np.float32([[8.0]]))[0] == 22 and mean.numpy() == 6
    mean.assign([[0.0]])
    assert step(np.float32([[8.0]]))[0] == 20 and mean.numpy() == 4
    wide = mp.value_and_grad(value, [w])
    assert wide(np.float64([[8.0]]))[0] == 24 and mean.numpy() == 8


def test_assignments_of_a_plan_without_gradients_are_refused():
    mean = AutoCastVariable(np.float32([[2.0]]), trainable=False, name="mean")
    with pytest.raises(ValueError, match="an assignment to variable 'mean'"):
        mp.compile(lambda x: mean.assign(mp.matmul(x, x)), np.ones((1, 1), np.float32))


QUANTIZED = ["int8", "int8/weight_only", "int8/weight_only/8", "int8/fixed", "int4/16", "int4/-1", "float8_e4m3fn"]


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("mode", QUANTIZED)
def test_quantized_layers_pass_gradients_on_by_the_numbers_that_their_codes_stand_for(mode, policy):
    layer, x = layers.Dense(8, "relu", dtype=policy), random(20, 32).astype(np.float32)
    layer.build((None, 32))
    if mode == "int8/fixed":
        model = layers.Sequential([layer])
        model(x)
        layer = mp.calibrate(model, x, f"int8_from_{policy}").layers[0]
    else:
        layer.quantize(mode)
    rows = AutoCastVariable(x)
    weights = mp.cast(random(20, 8), layer.compute_dtype)

    def value():
        return mp.sum(mp.multiply(layer(rows.value), weights), out_dtype="float32")

    result, (found,) = mp.value_and_grad(value, [rows])()
    assert result == value()
    matrix = layer.form.matrix
    matrix = mp.dequantize(matrix) if isinstance(matrix, mp.QuantizedArray) else matrix
    fixed = layer.form.inputs
    matrix = matrix if fixed is None else matrix / fixed.scale
    d = weights.astype(np.float64) * (np.asarray(layer(x), np.float64) > 0)
    expected = d @ matrix.astype(np.float64)
    unit = 2.0**-8 if "bfloat16" in policy else 2.0**-22
    np.testing.assert_allclose(found, expected, rtol=0, atol=4 * unit * np.abs(expected).max())


def test_a_step_that_assigns_nothing_changes_nothing_for_other_plans():
    w = AutoCastVariable(np.float32([1.0, 2.0]))
    step, before = mp.value_and_grad(lambda: squares(w), [w]), count()
    step()
    assert count() is before


def test_a_plan_of_gradients_names_its_function():
    w = AutoCastVariable(np.float32([1.0, 2.0]))
    both = mp.value_and_grad(lambda: mp.matmul(w, w), [w])
    both()
    (plan,) = both._plans._kept.values()
    assert repr(plan).startswith("<GradientPlan of <function") and "4 operations" in repr(plan)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elements_of_a_gradient_share_no_memory(dtype):
    w = AutoCastVariable(np.ones((2, 3), dtype), name="w")
    _, (found,) = mp.value_and_grad(lambda: mp.ops.sum(w + 0.0), [w])()
    found[0, 0] = 5
    np.testing.assert_array_equal(found, [[5, 1, 1], [1, 1, 1]])
