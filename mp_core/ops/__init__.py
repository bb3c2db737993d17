"""Operations on arrays: check, allocate, call the core.

It imports arrays and the rooms below it; policies and the rooms above it may import it.

Every function takes ndarrays, array-likes and anything with ``__dlpack__`` on the CPU, of any shape, stride, alignment
and byte order, and returns an ndarray. Storage may be narrow; arithmetic is float32 (int32 for int8 products), and the
result is rounded once. float64 stays float64 throughout, and is mostly computed by NumPy.
"""

from typing import TYPE_CHECKING

from mp_core.arrays import cast
from mp_core.arrays.products.matmul import matmul
from mp_core.arrays.products.packing import pack
from mp_core.arrays.products.panels import PackedMatrix
from mp_core.ops import of_numpy as _of_numpy  # noqa: F401 - registers the NumPy functions that plans record
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
from mp_core.ops.bits import (
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_not,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    left_shift,
    right_shift,
)
from mp_core.ops.choosing import argsort, repeat, roll, sort, tile, top_k
from mp_core.ops.comparisons import equal, greater, greater_equal, less, less_equal, not_equal
from mp_core.ops.composed import (
    abs,
    ceil,
    cumsum,
    dot,
    floor,
    logsumexp,
    norm,
    prod,
    reciprocal,
    round,
    sign,
    std,
    tril,
    triu,
    var,
)
from mp_core.ops.contraction import einsum
from mp_core.ops.conversion import convert_to_numpy, convert_to_tensor
from mp_core.ops.convolution import conv, conv_transpose, depthwise_conv
from mp_core.ops.creation import arange, eye, full, full_like, linspace, one_hot, ones, zeros
from mp_core.ops.dynamic import dynamic_matmul, fixed_matmul
from mp_core.ops.elementary import (
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctanh,
    cos,
    cosh,
    erf,
    erfc,
    exp2,
    expm1,
    log2,
    log10,
    log_sigmoid,
    rsqrt,
    selu,
    sin,
    sinh,
    softsign,
    tan,
)
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
    power,
    softplus,
    sqrt,
    square,
    where,
)
from mp_core.ops.indexing import (
    gather_nd,
    put_along_axis,
    scatter,
    scatter_update,
    slice,
    slice_update,
    take,
    take_along_axis,
)
from mp_core.ops.logic import (
    all,
    any,
    isfinite,
    isinf,
    isnan,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
)
from mp_core.ops.lookup import take_rows, token_places
from mp_core.ops.normalizations import batch_normalization, group_normalization, local_response_normalization
from mp_core.ops.norms import normalize
from mp_core.ops.padding import pad, pad_zeros
from mp_core.ops.pairs import (
    add,
    divide,
    gate,
    maximum,
    minimum,
    multiply,
    ragged_rotary,
    rotary,
    subtract,
    true_divide,
)
from mp_core.ops.piecewise import (
    celu,
    elu,
    glu,
    hard_shrink,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    leaky_relu,
    soft_shrink,
    sparse_plus,
    sparse_sigmoid,
    sparsemax,
    squareplus,
    swish,
    tanh_shrink,
    threshold,
)
from mp_core.ops.pooling import ragged_pool
from mp_core.ops.pools import average_pool, max_pool
from mp_core.ops.qlinear import qlinear_matmul
from mp_core.ops.quantized import dequantize_linear, dynamic_quantize_linear, matmul_integer, quantize_linear
from mp_core.ops.quotients import floor_divide, fmod, mod
from mp_core.ops.recurrent import gru, lstm, simple_rnn
from mp_core.ops.resizing import resize
from mp_core.ops.rows import layer_norm, log_softmax, rms_norm, softmax
from mp_core.ops.sums import mean, sum
from mp_core.ops.windows import window_maxima, window_sums
from mp_core.utilities.absent import refusing

__all__ = [
    "PackedMatrix", "abs", "absolute", "add", "all", "any", "arange", "arccos", "arccosh", "arcsin", "arcsinh",
    "arctan", "arctanh", "argmax", "argmin", "argsort", "average_pool", "batch_normalization", "bitwise_and",
    "bitwise_invert", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "broadcast_to", "cast", "ceil", "celu", "clip", "concatenate", "conv", "conv_transpose", "convert_to_numpy",
    "convert_to_tensor", "cos", "cosh", "cumsum", "depthwise_conv", "dequantize_linear", "divide", "dot",
    "dot_product_attention", "dynamic_matmul", "dynamic_quantize_linear", "einsum", "elu", "equal", "erf", "erfc",
    "exp", "exp2", "expand_dims", "expm1", "eye", "fixed_matmul", "flip", "floor", "floor_divide", "fmod", "full",
    "full_like", "gate", "gather_nd", "gelu", "glu", "greater", "greater_equal", "group_normalization", "gru",
    "hard_shrink", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "isfinite", "isinf", "isnan",
    "layer_norm", "leaky_relu", "left_shift", "less", "less_equal", "linspace", "local_response_normalization",
    "log", "log10", "log1p", "log2", "log_sigmoid", "log_softmax", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logsumexp", "lstm", "matmul", "matmul_integer", "max", "max_pool", "maximum", "mean", "min",
    "minimum", "mod", "moveaxis", "multiply", "negative", "norm", "normalize", "not_equal", "one_hot", "ones",
    "ones_like", "pack", "pad", "pad_zeros", "power", "prod", "put_along_axis", "qlinear_matmul", "quantize_linear",
    "ragged_attention", "ragged_pool", "ragged_rotary", "ravel", "reciprocal", "relu", "relu6", "repeat", "reshape",
    "resize", "right_shift", "rms_norm", "roll", "rotary", "round", "rsqrt", "scatter", "scatter_update", "selu",
    "shape", "sigmoid", "sign", "silu", "simple_rnn", "sin", "sinh", "slice", "slice_update", "soft_shrink",
    "softmax", "softplus", "softsign", "sort", "sparse_plus", "sparse_sigmoid", "sparsemax", "split", "sqrt",
    "square", "squareplus", "squeeze", "stack", "std", "stop_gradient", "subtract", "sum", "swapaxes", "swish",
    "take", "take_along_axis", "take_rows", "tan", "tanh", "tanh_shrink", "threshold", "tile", "token_places",
    "top_k", "transpose", "tril", "triu", "true_divide", "var", "where", "window_maxima", "window_sums", "zeros",
    "zeros_like",
]  # fmt: skip


if not TYPE_CHECKING:  # to a type checker, a name that does not exist is an error
    __getattr__, __dir__ = refusing("ops", __all__)
