"""Layers that tests quantize, and numbers for them."""

import numpy as np

from mp_core import layers

SOURCES = ["float32", "mixed_bfloat16", "mixed_float16", "bfloat16", "float64"]
rng = np.random.default_rng(0)


def normal(*shape, dtype=np.float32):
    """Return normally distributed numbers."""
    return rng.standard_normal(shape).astype(dtype)


def dense(policy, units=7, activation=None, depth=44, **kwargs):
    """Return a built Dense."""
    layer = layers.Dense(units, activation, bias_initializer="ones", dtype=policy, **kwargs)
    layer.build((None, depth))
    return layer


def einsum(policy):
    """Return a built EinsumDense, whose inputs and outputs have two axes each that are multiplied."""
    layer = layers.EinsumDense("abcd,cdef->abef", (None, 3, 5), bias_axes="ef", bias_initializer="ones", dtype=policy)
    layer.build((None, None, 4, 11))
    return layer


def wide(x):
    """Return the values of an array or variable in float64."""
    return np.asarray(x.numpy() if hasattr(x, "numpy") else x).astype(np.float64)
