"""Nodes with a constant matrix become layers: policies, quantization and files treat their matrices as any other."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.dtypes import is_float
from mp_core.layers import Dense, Embedding, Layer

__all__ = ["MAKERS", "Call", "Constant", "dense", "embedding", "weighted"]

Constant = Callable[[Any], Array | None]
"""Returns the value of an argument if it is constant, else None."""


class Call(NamedTuple):
    """A call of a layer in place of a node."""

    layer: Layer
    arguments: tuple[Any, ...]


Maker = Callable[..., Call | None]
MAKERS: dict[str, Maker] = {}
"""Operator -> ``maker(node, constant, **options)``, where options are the name and the policy of the layer.

It returns None if the operator's function must compute the node.
"""


def weighted(*names: str) -> Callable[[Maker], Maker]:
    """Register a maker for the operators `names`."""

    def register(maker: Maker) -> Maker:
        MAKERS.update(dict.fromkeys(names, maker))
        return maker

    return register


def is_matrix(x: Array | None) -> bool:
    """Return whether an argument is a constant matrix of floats."""
    return x is not None and x.ndim == 2 and is_float(x.dtype) and x.size > 0


def dense(lines: Array, bias: Array | None, *, name: str, dtype: Any) -> Dense:
    """Return a layer with a matrix of shape (outputs, inputs), whose memory it shares."""
    layer = Dense(len(lines), use_bias=bias is not None, kernel_initializer="zeros", name=name, dtype=dtype)
    layer.build((None, lines.shape[1]))
    layer.set_matrix(frozen(lines))
    if layer.bias is not None and bias is not None:
        layer.bias.assign(bias.reshape(-1))
    return layer


def embedding(table: Array, *, name: str, dtype: Any) -> Embedding:
    """Return a layer that looks up rows of a table."""
    layer = Embedding(*table.shape, embeddings_initializer="zeros", name=name, dtype=dtype)
    layer.build()
    layer.set_matrix(frozen(table))
    return layer


def frozen(x: Array) -> Array:
    """Return a view that cannot be written to, so that a layer need not copy it."""
    view = x.view()
    view.setflags(write=False)
    return np.asarray(view)
