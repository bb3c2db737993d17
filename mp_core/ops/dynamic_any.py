"""The general path of products that quantize their left operand: `quantize` first, then the product of the codes."""

from typing import Any

import numpy as np

from mp_core.arrays import F32, Array, as_float, imported_all, imported_out
from mp_core.arrays.dtypes import parse
from mp_core.arrays.products.general import multiply_any
from mp_core.arrays.products.panels import PackedMatrix
from mp_core.arrays.products.quantized import Factors
from mp_core.arrays.quantization import QuantizedArray, quantize

__all__ = ["dynamic_any"]


def dynamic_any(
    a: Any,
    b: PackedMatrix,
    scale: Any,
    zeros: Array | None,
    out_dtype: Any,
    out: Array | None,
    epilogue: tuple[Any, Any, Any],
) -> Array:
    """Do what ``dynamic_matmul`` and ``fixed_matmul`` say for all operands that the fast path does not serve."""
    wanted = None if out_dtype is None else parse(out_dtype, "out_dtype")
    bias, activation, residual = epilogue
    held = imported_out(out)
    a, bias, residual = imported_all(("a", "bias", "residual"), a, bias, residual)
    a = as_float(a, "a")
    if a.ndim == 0:
        raise ValueError("`a` must have at least 1 axis; received shape ()")
    if zeros is None:
        rows = quantize(a, axis=tuple(range(a.ndim - 1)) if scale is None else None, scale=scale)
    else:
        codes = quantize(a, axis=-1, scale=scale, zero_point=zeros).values
        rows = QuantizedArray(codes, np.ones((1,) * codes.ndim, np.float32), None, ())
    factors = Factors(rows.values, b, rows.scale, rows.zero_point, F32)
    result = multiply_any(factors, b, a.dtype if wanted is None else wanted, held, bias, activation, residual)
    return result if out is None else out
