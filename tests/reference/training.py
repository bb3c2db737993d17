"""One training step and one recurrent step, by the sections on layers, gradients and optimizers of docs/numerics.md."""

import numpy as np

from .formats import rounded
from .functions import FLOAT32
from .gradients import of_activation, of_log_softmax, of_product, sum_over_rows
from .products import matmul
from .rows import log_softmax, row_sums, total

F32 = np.float32


def power(base, n):
    """Return base^n by repeated squaring in float64."""
    result = 1.0
    while n:
        result, base, n = (result * base if n & 1 else result), base * base, n >> 1
    return result


def adam(w, g, m, v, step, rate=1e-3, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
    """Return the new variable and its moments."""
    m = m + (g - m) * F32(1 - beta_1)
    v = v + (g * g - v) * F32(1 - beta_2)
    p1, p2 = (F32(power(float(F32(beta)), step)) for beta in (beta_1, beta_2))
    alpha = F32(rate) * np.sqrt(F32(1) - p2) / (F32(1) - p1)
    return w - m * alpha / (np.sqrt(v) + F32(epsilon)), m, v


def cross_entropy(logits, classes):
    """Return the mean cross-entropy of float32 logits, and its gradient."""
    y = log_softmax(logits)
    chosen = np.eye(logits.shape[1], dtype=F32)[classes]
    d = np.broadcast_to(F32(-1) * (F32(1) / F32(len(y))), y.shape)
    return total(-row_sums(y * chosen), [0], mean=True), of_log_softmax(y, d * chosen)


def step(weights, x, classes, kind):
    """Return the loss and the gradients of Dense(gelu), Dense in float32, and the cross-entropy."""
    w1, b1, w2, b2 = weights
    x, narrow = rounded(x, kind), rounded(w1, kind)
    z = matmul(x, narrow, kind, kind, "float32", bias=rounded(b1, kind))
    h = rounded(FLOAT32["gelu"](z), kind)
    logits = matmul(h, w2, "float32", "float32", "float32", bias=b2)
    loss, d = cross_entropy(logits, classes)
    dh, dw2 = of_product(h, w2, d, "float32")
    dz = of_activation("gelu", z, rounded(dh, kind))
    _, dw1 = of_product(x, narrow, dz, kind)
    return loss, [dw1, sum_over_rows(dz), dw2, sum_over_rows(d)]


def lstm_step(x, h, c, w, u, b, kind="float32"):
    """Return the new states (h, c) of an LSTM."""
    p = matmul(x, w, kind, kind, "float32", bias=b)
    i, f, g, o = np.split(matmul(h, u, kind, kind, "float32", residual=p), 4, axis=1)
    new = FLOAT32["sigmoid"](f) * c + FLOAT32["sigmoid"](i) * FLOAT32["tanh"](g)
    return rounded(FLOAT32["sigmoid"](o) * FLOAT32["tanh"](new), kind), rounded(new, kind)


def gru_step(x, h, w, u, b, kind="float32"):
    """Return the new state of a GRU with `reset_after`; b has two rows."""
    p = matmul(x, w, kind, kind, "float32", bias=b[0])
    q = matmul(h, u, kind, kind, "float32", bias=b[1])
    (pz, pr, pn), (qz, qr, qn) = np.split(p, 3, axis=1), np.split(q, 3, axis=1)
    z, r = FLOAT32["sigmoid"](pz + qz), FLOAT32["sigmoid"](pr + qr)
    n = FLOAT32["tanh"](pn + r * qn)
    return rounded(z * h + (F32(1) - z) * n, kind)
