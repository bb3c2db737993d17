"""Gradients, by this section of docs/numerics.md: float32 values, to be rounded once to the type of the argument."""

import numpy as np

from .attention import bands, weights
from .elements import larger, smaller
from .formats import rounded
from .functions import FLOAT32
from .fused import fma
from .products import arithmetic, epilogue, sums
from .rows import about_zero, deviations, normalized, row_sums

F32 = np.float32
ROWS = 1024


def product(a, b, kind, **steps):
    """Return a product of two matrices of one type in float32."""
    return epilogue(sums(a, b, arithmetic(kind, kind)), arithmetic(kind, kind), **steps)


def of_product(a, b, d, kind):
    """Return the gradients of a and b: (rounded to their type, float32 for a variable)."""
    d = rounded(d, kind)
    return product(d, b.T, kind), product(a.T, d, kind)


def sum_over_rows(d, before=None):
    """Return the sum of rows, in blocks of 1024."""
    c = before
    for first in range(0, len(d), ROWS):
        s = np.zeros(d.shape[1:], F32)
        for row in d[first : first + ROWS]:
            s = s + row
        c = s if c is None else c + s
    return np.zeros(d.shape[1:], F32) if c is None else c


def of_table(d, indices, rows):
    """Return the gradient of a table from the gradients of gathered rows."""
    table = np.zeros((rows, d.shape[1]), F32)
    for first in range(0, len(d), ROWS):
        part = np.zeros_like(table)
        for row, index in zip(d[first : first + ROWS], indices[first : first + ROWS], strict=True):
            part[index] = part[index] + row
        table = part if first == 0 else table + part
    return table


def of_softmax(y, d, scale=1.0):
    """Return the gradient of softmax with the result y."""
    return y * (d - row_sums(y, d)[:, None]) * F32(scale)


def of_log_softmax(y, d):
    """Return the gradient of log_softmax with the result y."""
    return fma(FLOAT32["exponential"](y), -row_sums(d)[:, None], d)


def of_layer_norm(x, d, gamma=None, epsilon=1e-3):
    """Return the gradients of x (with its residual), gamma and beta."""
    n, r = normalized(x, epsilon, deviations)
    g = d if gamma is None else d * gamma
    width = F32(x.shape[1])
    mean, share = row_sums(g)[:, None] / width, row_sums(g, n)[:, None] / width
    return fma(n, -share, g - mean) * r, sum_over_rows(d * n), sum_over_rows(d)


def of_rms_norm(x, d, gamma=None, epsilon=1e-6):
    """Return the gradients of x and gamma."""
    n, r = normalized(x, epsilon, about_zero)
    g = d if gamma is None else d * gamma
    return fma(n, -(row_sums(g, n)[:, None] / F32(x.shape[1])), g) * r, sum_over_rows(d * n)


def of_activation(name, x, d, y=None):
    """Return the gradient of an activation of x, with the result y if the formula uses it."""
    if name in ("relu", "relu6"):
        return np.where(FLOAT32[f"{name}_derivative_at_result"](y) > 0, d, F32(0))
    if name == "exponential":
        return d * y
    at_result = FLOAT32.get(f"{name}_derivative_at_result")
    return d * (at_result(y) if at_result else FLOAT32[f"{name}_derivative"](x))


def of_pair(name, x, y, d):
    """Return the gradients of both operands of an operation, element by element."""
    if name in ("add", "subtract"):
        return d, d if name == "add" else -d
    if name == "multiply":
        return d * y, d * x
    if name == "divide":
        return d / y, (-d / y) * (x / y)
    chosen = larger(x, y) if name == "maximum" else smaller(x, y)
    half, zero = d / F32(2), F32(0)
    return tuple(np.where(x == y, half, np.where(chosen == each, d, zero)) for each in (x, y))


def of_attention(q, k, v, d, kind, scale=None, reach=None, causal=False, softcap=None):
    """Return the gradients of q, k and v of one head, rounded to their type."""
    scale = F32(1 / np.sqrt(q.shape[1]) if scale is None else scale)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for rows, keys, mask in bands(len(q), len(k), reach, causal):
        p, y = weights(q[rows], k[keys], kind, scale=float(scale), mask=mask, softcap=softcap)
        g = product(d[rows], v[keys].T, kind)
        s = of_softmax(p, g) * scale
        s = rounded(s if y is None else s * fma(-y, y, F32(1)), kind)
        dq[rows] = rounded(product(s, k[keys], kind), kind)
        dk[keys] = product(s.T, q[rows], kind, residual=dk[keys])
        dv[keys] = product(rounded(p, kind).T, d[rows], kind, residual=dv[keys])
    return dq, rounded(dk, kind), rounded(dv, kind)
