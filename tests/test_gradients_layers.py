"""The gradients of every layer, for each variable and input: compared with central differences, and in plans."""

import numpy as np
import pytest
import test_plans_layers
from gradients import central_differences
from test_plans_layers import KINDS, inputs_of, made

import mp_core as mp
from mp_core.utilities.tree import map_leaves

WITHOUT = {
    "CategoryEncoding", "Discretization", "Dropout", "SpatialDropout1D", "SpatialDropout2D", "AlphaDropout",
    "GaussianDropout", "GaussianNoise", "Identity", "ActivityRegularization",
}  # fmt: skip
CASES = [case for case in KINDS if case[0] not in WITHOUT]


@pytest.fixture(autouse=True)
def inputs_of_any_order(monkeypatch):
    """Each test draws the same inputs, whatever ran before it."""
    monkeypatch.setattr(test_plans_layers, "RNG", np.random.default_rng(0))


def prepared(name, arguments, inputs, policy):
    """A layer and its inputs, with float variables in place of the float inputs."""
    layer = made(name, arguments, dtype=policy)
    layer(*inputs)
    rng = np.random.default_rng(3)
    layer.set_weights([
        w if w.dtype.kind in "iu" else np.abs(rng.standard_normal(w.shape)) + 0.1 for w in layer.get_weights()
    ])  # fmt: skip
    stored = "float64" if policy == "float64" else "float32"
    given = []

    def as_variable(x):
        if np.asarray(x).dtype.kind != "f":
            return x
        noise = 0.01 * rng.standard_normal(np.shape(x))  # away from the corners at 0 and among equal elements
        given.append(mp.AutoCastVariable(np.asarray(x + noise, stored), autocast=False, name=f"input {len(given)}"))
        return given[-1]

    return layer, map_leaves(as_variable, inputs), given


def step_of(layer, inputs, variables):
    def value():
        result = layer(*map_leaves(lambda x: x.value if isinstance(x, mp.AutoCastVariable) else x, inputs))
        weights = np.random.default_rng(1).uniform(0.5, 1.5, result.shape).astype(result.dtype)
        return mp.matmul(result.reshape(1, -1), weights.reshape(-1, 1))

    return value, mp.value_and_grad(value, variables)


@pytest.mark.parametrize(("name", "arguments", "shapes"), CASES)
def test_gradients_equal_central_differences(name, arguments, shapes):
    layer, inputs, given = prepared(name, arguments, inputs_of(shapes), "float64")
    variables = [*layer.trainable_variables, *given]
    value, step = step_of(layer, inputs, variables)
    for variable, gradient in zip(variables, step()[1], strict=True):
        x = variable.numpy().copy()

        def moved(variable=variable, x=x):
            variable.assign(x)
            return np.asarray(value()).item()

        for place, quotient in central_differences(moved, x, places=6, h=1e-6).items():
            bound = 1e-6 * max(1, np.abs(gradient).max())
            assert abs(gradient[place] - quotient) <= bound, (variable.name, place)
        variable.assign(x)


@pytest.mark.parametrize(("name", "arguments", "shapes"), CASES)
def test_plan_is_near_float64(name, arguments, shapes):
    found, drawn = [], inputs_of(shapes)
    for policy in ("float64", "float32"):
        layer, inputs, given = prepared(name, arguments, drawn, policy)
        found.append(step_of(layer, inputs, [*layer.trainable_variables, *given])[1]()[1])
    largest = max(np.abs(exact).max() for exact in found[0])
    for exact, gradient in zip(*found, strict=True):
        bound = 5e-5 * np.abs(exact).max() + 1e-6 * largest  # some are 0: that of the bias of keys
        np.testing.assert_allclose(gradient, exact, rtol=0, atol=bound)
