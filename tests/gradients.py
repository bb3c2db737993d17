"""Gradients for tests: by central differences in float64, and by the rules, run directly or by a plan."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import mp_core as mp
from mp_core.autocast import AutoCastVariable

__all__ = ["by_rules", "central_differences", "check_rule", "check_variables"]


def weights_for(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return what the elements of a result are multiplied by, so that their sum is a value with a gradient."""
    return np.random.default_rng(1).uniform(0.5, 1.5, shape).astype(dtype)


def by_rules(function: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """Return the gradients of the weighted sum of a result with respect to each array; float64 goes call by call."""
    weights = weights_for(np.shape(function(*arrays)), np.float64 if arrays[0].dtype == np.float64 else np.float32)
    variables = [AutoCastVariable(x, autocast=False, name=f"argument {i}") for i, x in enumerate(arrays)]

    def value(weights: Any) -> Any:
        result = function(*(variable.numpy() for variable in variables))
        return mp.matmul(result.reshape(1, -1), weights.reshape(-1, 1))

    return mp.value_and_grad(value, variables)(weights)[1]


def central_differences(value: Callable[[], float], x: np.ndarray, places: int = 40, h: float = 1e-5) -> dict:
    """Return the difference quotient of a value at some places of a float64 array that it reads."""
    chosen = np.random.default_rng(2).permutation(x.size)[:places]
    found = {}
    for flat in chosen.tolist():
        place = np.unravel_index(flat, x.shape)
        kept = x[place]
        x[place] = kept + h
        up = value()
        x[place] = kept - h
        down = value()
        x[place] = kept
        found[place] = (up - down) / (2 * h)
    return found


def check_rule(function: Callable[..., Any], *arrays: Any, tolerance: float = 1e-6) -> None:
    """Hold the rules to central differences in float64, with respect to each array."""
    arrays = [np.array(x, np.float64) for x in arrays]
    weights = weights_for(np.shape(function(*arrays)), np.float64)
    for index, gradient in enumerate(by_rules(function, *arrays)):
        assert gradient.shape == arrays[index].shape
        expected = central_differences(lambda: float(np.sum(function(*arrays) * weights)), arrays[index])
        for place, quotient in expected.items():
            assert abs(gradient[place] - quotient) <= tolerance * max(1, abs(quotient)), (index, place)


def check_variables(value: Callable[[], Any], variables: Sequence[Any], tolerance: float = 1e-6) -> list[np.ndarray]:
    """Hold the gradients of a float64 value with respect to variables to central differences; return them."""
    found = mp.value_and_grad(value, variables)()[1]
    for variable, gradient in zip(variables, found, strict=True):
        kept = variable.numpy()
        x = np.array(kept, np.float64)

        def moved(variable: Any = variable, x: np.ndarray = x) -> float:
            variable.assign(x)
            return np.asarray(value()).item()

        expected = central_differences(moved, x, places=12)
        variable.assign(kept)
        for place, quotient in expected.items():
            assert abs(gradient[place] - quotient) <= tolerance * max(1, abs(quotient)), (variable.name, place)
    return found
