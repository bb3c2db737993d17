"""Products of quantized operands with a quantized result: ONNX QLinearMatMul."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mp_core.arrays import F32, I8, Array
from mp_core.arrays.products.matmul import matmul
from mp_core.arrays.products.panels import PackedMatrix
from mp_core.arrays.products.quantized import scales_columns, scales_rows
from mp_core.arrays.quantization import QuantizedArray, check_unchanged
from mp_core.arrays.quantization.codes import parse_codes
from mp_core.utilities.arguments import integer, positive

__all__ = ["qlinear_matmul"]


def qlinear_matmul(
    a: QuantizedArray,
    b: QuantizedArray | PackedMatrix,
    *,
    out_scale: float,
    out_zero_point: int = 0,
    dtype: DTypeLike | None = None,
) -> QuantizedArray:
    """Return the quantized product of two quantized operands, by the formula of ONNX QLinearMatMul.

    ``clamp(round(sum * (a_scale * b_scale / out_scale) + out_zero_point))``: the sum of products is exact, zero points
    included; ``a_scale * b_scale / out_scale`` is computed in float32, and the rest in float64.

    Parameters
    ----------
    a : QuantizedArray
        Shape (..., m, k) or (k,), int8 or uint8, with one scale or one per row.
    b : QuantizedArray or PackedMatrix
        Shape (..., k, n); int8, uint8 or uint4 with one scale or one per column.
    out_scale : float
        The scale of the result.
    out_zero_point : int
        The zero point of the result.
    dtype : {"int8", "uint8"}, optional
        The type of its codes. Default: the type of `a`.

    Raises
    ------
    ValueError
        The shapes do not fit; k is too large for an exact sum; or ``a_scale * b_scale / out_scale`` overflows.

    Examples
    --------
    >>> from mp_core import QuantizedArray
    >>> a = QuantizedArray(np.array([[1, 2], [3, 4]], np.uint8), 0.5, 1)
    >>> qlinear_matmul(a, a, out_scale=0.25).values
    array([[ 2,  3],
           [ 6, 11]], dtype=uint8)
    """
    codes = parse_codes(dtype if dtype is not None else getattr(a, "dtype", "int8"))
    if codes.is_wide or codes.is_float or codes.packed:
        raise TypeError(f"`dtype` must be int8 or uint8; received {codes.dtype}")
    if not isinstance(a, QuantizedArray) or not scales_rows(a):
        raise TypeError(
            f"`a` must be a QuantizedArray of int8 or uint8 with one scale or one per row; received {_said(a)}"
        )
    with np.errstate(over="ignore", under="ignore"):
        scale, zero = F32.type(positive(out_scale, "out_scale")), integer(out_zero_point, "out_zero_point")
    if not 0 < scale < np.inf:
        raise ValueError(f"`out_scale` must be positive and finite in float32; received {out_scale}")
    if not codes.qmin <= zero <= codes.qmax:
        raise ValueError(f"`out_zero_point` must lie in [{codes.qmin}, {codes.qmax}]; received {zero}")
    check_unchanged(a)
    right, columns = _without_scales(b)
    if len(a.shape) == 1 and columns.ndim > 1:
        columns = columns[..., 0, :]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        factor = a.scale * columns / scale
    if not np.all(np.isfinite(factor)):
        raise ValueError(
            f"`out_scale` must not be so small that a_scale * b_scale / out_scale overflows; received {out_scale}"
        )
    rows = QuantizedArray(a.values, 1.0, a.zero_point, a.axis)
    total = matmul(rows, right, out_dtype="int32") * factor.astype(np.float64) + zero
    values = np.clip(np.rint(total), codes.qmin, codes.qmax).astype(codes.storage)
    return QuantizedArray(values, scale, zero or None)


def _without_scales(b: Any) -> tuple[Any, Array]:
    """Return the right operand with all scales 1, and its scales in a shape that broadcasts against the result."""
    if isinstance(b, PackedMatrix) and b.dtype is I8 and b.scale is not None and b.group_size is None:
        ones = np.ones_like(b.scale)
        return PackedMatrix(b.shape, b.dtype, b.data, b.column_sums, ones, b.zero_point), b.scale
    eight_bits = isinstance(b, QuantizedArray) and b.dtype.name in ("int8", "uint8", "uint4")
    if not eight_bits or b.group_size is not None or not scales_columns(b):
        raise TypeError(
            "`b` must be a QuantizedArray of int8, uint8 or uint4, or a PackedMatrix of one, with one scale or one per "
            f"column; received {_said(b)}"
        )
    check_unchanged(b)
    return QuantizedArray(b.values, 1.0, b.zero_point, b.axis, None, b.dtype, b.shape), b.scale


def _said(x: Any) -> str:
    if isinstance(x, QuantizedArray):
        return f"{x.dtype} of shape {x.shape} with scales {x.scale.shape}"
    return repr(x) if isinstance(x, PackedMatrix) else type(x).__name__
