"""Operations on arrays: check, allocate, call the core.

Every function takes ndarrays, array-likes and anything with ``__dlpack__`` on the CPU, of any shape, stride, alignment
and byte order, and returns an ndarray. Storage may be narrow; arithmetic is float32 (int32 for int8 products), and the
result is rounded once. float64 stays float64 throughout, mostly on NumPy's own routines.
"""

from mp_core.arrays import cast
from mp_core.ops.activations import gelu, relu, relu6, sigmoid, silu, tanh
from mp_core.ops.attention import dot_product_attention, ragged_attention
from mp_core.ops.dynamic import dynamic_matmul, fixed_matmul
from mp_core.ops.functions import (
    absolute,
    clip,
    exp,
    log,
    log1p,
    max,
    min,
    negative,
    normalize,
    power,
    softplus,
    sqrt,
    square,
    where,
)
from mp_core.ops.lookup import take_rows, token_places
from mp_core.ops.padding import pad, pad_zeros
from mp_core.ops.pairs import add, divide, gate, maximum, minimum, multiply, ragged_rotary, rotary, subtract
from mp_core.ops.pooling import ragged_pool
from mp_core.ops.qlinear import qlinear_matmul
from mp_core.ops.rows import layer_norm, log_softmax, rms_norm, softmax
from mp_core.ops.sums import mean, sum
from mp_core.products.matmul import matmul
from mp_core.products.packing import pack
from mp_core.products.panels import PackedMatrix

__all__ = [
    "PackedMatrix",
    "absolute",
    "add",
    "cast",
    "clip",
    "divide",
    "dot_product_attention",
    "dynamic_matmul",
    "exp",
    "fixed_matmul",
    "gate",
    "gelu",
    "layer_norm",
    "log",
    "log1p",
    "log_softmax",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "negative",
    "normalize",
    "pack",
    "pad",
    "pad_zeros",
    "power",
    "qlinear_matmul",
    "ragged_attention",
    "ragged_pool",
    "ragged_rotary",
    "relu",
    "relu6",
    "rms_norm",
    "rotary",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "subtract",
    "sum",
    "take_rows",
    "tanh",
    "token_places",
    "where",
]


def __dir__() -> list[str]:
    return __all__
