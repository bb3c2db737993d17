"""Operations on arrays: check, allocate, call the core.

Every function takes ndarrays, array-likes and anything with ``__dlpack__`` on the CPU, of any shape, stride, alignment
and byte order, and returns an ndarray. Storage may be narrow; arithmetic is float32 (int32 for int8 products), and the
result is rounded once. float64 stays float64 throughout, mostly on NumPy's own routines.
"""

from mp_core.arrays import cast
from mp_core.ops.activations import gelu, relu, relu6, sigmoid, silu, tanh
from mp_core.ops.arrangement import (
    broadcast_to,
    concatenate,
    expand_dims,
    flip,
    moveaxis,
    ones_like,
    ravel,
    reshape,
    shape,
    split,
    squeeze,
    stack,
    stop_gradient,
    swapaxes,
    transpose,
    zeros_like,
)
from mp_core.ops.attention import dot_product_attention, ragged_attention
from mp_core.ops.comparisons import equal, greater, greater_equal, less, less_equal, not_equal
from mp_core.ops.composed import abs, logsumexp, reciprocal, rsqrt, std, var
from mp_core.ops.dynamic import dynamic_matmul, fixed_matmul
from mp_core.ops.functions import (
    absolute,
    argmax,
    argmin,
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
from mp_core.ops.windows import window_maxima, window_sums
from mp_core.products.matmul import matmul
from mp_core.products.packing import pack
from mp_core.products.panels import PackedMatrix

__all__ = [
    "PackedMatrix",
    "abs",
    "absolute",
    "add",
    "argmax",
    "argmin",
    "broadcast_to",
    "cast",
    "clip",
    "concatenate",
    "divide",
    "dot_product_attention",
    "dynamic_matmul",
    "equal",
    "exp",
    "expand_dims",
    "fixed_matmul",
    "flip",
    "gate",
    "gelu",
    "greater",
    "greater_equal",
    "layer_norm",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log_softmax",
    "logsumexp",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "moveaxis",
    "multiply",
    "negative",
    "normalize",
    "not_equal",
    "ones_like",
    "pack",
    "pad",
    "pad_zeros",
    "power",
    "qlinear_matmul",
    "ragged_attention",
    "ragged_pool",
    "ragged_rotary",
    "ravel",
    "reciprocal",
    "relu",
    "relu6",
    "reshape",
    "rms_norm",
    "rotary",
    "rsqrt",
    "shape",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "stop_gradient",
    "subtract",
    "sum",
    "swapaxes",
    "take_rows",
    "tanh",
    "token_places",
    "transpose",
    "var",
    "where",
    "window_maxima",
    "window_sums",
    "zeros_like",
]


def __dir__() -> list[str]:
    return __all__
