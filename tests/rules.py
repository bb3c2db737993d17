"""Rules of gradients, called as in the backward pass, and central differences to compare with."""

import inspect

import numpy as np
from oracles import stated_sum

from mp_core.ops.gradients.registry import rule_of


def _resolved(gradient, dtype):
    return gradient(np.dtype(dtype)) if callable(gradient) else gradient


def _unbroadcast(gradient, x):
    """The sum over the axes along which an operand was stretched."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - x.ndim)), dtype=gradient.dtype)
    stretched = tuple(i for i in range(x.ndim) if x.shape[i] == 1 < gradient.shape[i])
    return gradient.sum(axis=stretched, keepdims=True)


def gradients(operation, d, *args, wanted=None, **kwargs):
    """The gradients of all float arguments by the rule: name -> array (of several operands: name0, name1, ...)."""
    out = operation(*args, **kwargs)
    assert d.shape == out.shape and d.dtype == out.dtype
    found = rule_of(operation)(d, out, *args, **kwargs)
    bound = inspect.signature(operation).bind(*args, **kwargs).arguments
    result = {}
    for name, given in bound.items():
        several = isinstance(given, tuple) and name in found
        for i, x in enumerate(given if several else (given,)):
            gradient = found.get(name)[i] if several else found.get(name)
            if not isinstance(x, np.ndarray) or x.dtype == np.bool_ or gradient is None:
                continue
            made = _resolved(gradient, x.dtype if wanted is None else wanted)
            result[f"{name}{i}" if several else name] = _unbroadcast(made, x)
    return result


def differences(operation, d, *args, step=1e-6, **kwargs):
    """The same by central differences, in float64."""
    bound = inspect.signature(operation).bind(*args, **kwargs)

    def value():
        return float(np.sum(d * operation(*bound.args, **bound.kwargs)))

    result = {}
    for name, given in bound.arguments.items():
        several = isinstance(given, tuple)
        for i, x in enumerate(given if several else (given,)):
            if not isinstance(x, np.ndarray) or x.dtype != np.float64:
                continue
            slope = np.empty(x.shape)
            for place in np.ndindex(x.shape):
                kept = x[place]
                x[place] = kept + step
                up = value()
                x[place] = kept - step
                slope[place] = (up - value()) / (2 * step)
                x[place] = kept
            result[f"{name}{i}" if several else name] = slope
    return result


def assert_follows_differences(operation, d, *args, **kwargs):
    """Every gradient of float64 arguments is within 1e-6 of central differences."""
    found, expected = gradients(operation, d, *args, **kwargs), differences(operation, d, *args, **kwargs)
    assert expected.keys() <= found.keys() and expected
    for name, slope in expected.items():
        assert found[name].dtype == np.float64
        np.testing.assert_allclose(found[name], slope, rtol=1e-6, atol=1e-6, err_msg=name)


# ---- float32 by NumPy, in the order of docs/numerics.md


def fused(x, y, z):
    """``x y + z`` of float32, rounded once: the product is exact in float64, and the sum is rounded to odd there."""
    product, z = np.multiply(x, y, dtype=np.float64), np.asarray(z, np.float64)
    total = np.asarray(product + z)
    back = total - product
    error = (product - (total - back)) + (z - back)
    odd = total.view(np.int64) & 1
    towards = np.where((error > 0) == (total > 0), 1, -1)
    moved = (total.view(np.int64) + towards).view(np.float64)
    return np.where((error != 0) & (odd == 0), moved, total).astype(np.float32)


def row_sum(x, y=None):
    """The sum of a row, or that of the products of two."""
    return stated_sum(x) if y is None else stated_sum(x, y, add=lambda lanes, a, b: fused(a, b, lanes))
