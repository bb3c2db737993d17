"""Two arrays, element by element: this section of docs/numerics.md. Results are float32, still to be rounded once."""

import numpy as np

from .functions import activate

F32 = np.float32


def larger(x, y):
    """Return the larger element, +0 of two zeros, NaN where one is NaN."""
    return np.where(x == y, np.where(np.signbit(x), y, x), np.maximum(x, y))


def smaller(x, y):
    """Return the smaller element, -0 of two zeros, NaN where one is NaN."""
    return np.where(x == y, np.where(np.signbit(x), x, y), np.minimum(x, y))


def gate(x, y, activation):
    """Return activation(x) * y."""
    return activate(activation, x) * y


def rotary(x, angles):
    """Turn the halves of vectors; `angles` has the cosines, then the sines, of half the width each."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    cos, sin = angles[..., :half], angles[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


OPERATIONS = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}
OPERATIONS |= {"maximum": larger, "minimum": smaller}
