"""``mp_core.pack``: pack the right operand of products."""

from typing import Any

from numpy.typing import DTypeLike

from mp_core.arrays import I8, asarray, cast
from mp_core.arrays.dtypes import WIDE, name_of, parse
from mp_core.arrays.formats import NARROW, PANELS
from mp_core.arrays.products.panels import PackedMatrix
from mp_core.arrays.products.panels import pack as _pack
from mp_core.arrays.products.quantized import pack_quantized, scales_columns
from mp_core.arrays.quantization import QuantizedArray
from mp_core.core.names import PanelName

__all__ = ["pack"]


def pack(b: Any, *, dtype: PanelName | DTypeLike | None = None) -> PackedMatrix:
    """Pack the right operand of products once, so that :func:`matmul` need not pack it in every call.

    Parameters
    ----------
    b : array-like or QuantizedArray
        Shape (..., k, n). A :class:`QuantizedArray` must have two axes, and one scale, one per column, or one per
        column and group along k (symmetric codes or int4, groups of a multiple of 8), as in microscaling formats.
        uint8 and uint4 codes are stored as int8; the zero points of uint8 are shifted by 128.
    dtype : {"float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"}, optional
        Cast to this type first. Default: the type of `b`.

    Returns
    -------
    PackedMatrix
        Its `shape` is that of `b`; :meth:`PackedMatrix.unpack` returns the elements exactly.

    Notes
    -----
    Memory: the bytes of `b` with k rounded up to a multiple of 1 (float32, float16), 2 (bfloat16), 4 (float8, int8) or
    8 (int4, float4_e2m1fn), 64 more bytes, 4 bytes per column for int8, and the scales and zero points of a
    QuantizedArray (for int4, zero points are int8).

    With float rows, packed int4 with zero points is multiplied as ``values - zero_point``, and the sums are scaled. An
    array of such codes that is not packed is dequantized first (:func:`matmul`).

    Raises
    ------
    TypeError
        The type cannot be packed.
    ValueError
        `b` has fewer than two axes, or scales that a product cannot apply.

    Examples
    --------
    >>> import numpy as np
    >>> pack(np.eye(3, dtype=np.float32), dtype="bfloat16")
    PackedMatrix(shape=(3, 3), dtype=bfloat16)
    """
    if isinstance(b, QuantizedArray):
        if dtype is not None:
            raise TypeError(f"`dtype` must be None for a quantized `b`; received {dtype!r}")
        if len(b.shape) != 2 or not scales_columns(b, packed=True):
            raise ValueError(
                "a quantized `b` must be one matrix whose scales are one number, one per column (axis=1), or one per "
                "group of rows (a multiple of 8 rows, without zero points unless the codes are int4); "
                f"received {b.dtype} of shape {b.shape} with scales {b.scale.shape}"
            )
        return pack_quantized(b)
    wanted = None if dtype is None else parse(dtype)
    b = asarray(b, "b")
    if b.ndim < 2:
        raise ValueError(f"`b` must have at least 2 axes (..., k, n); received shape {b.shape}")
    target = b.dtype if wanted is None else wanted
    if name_of(target) not in PANELS:
        choices = ", ".join((*WIDE, *NARROW))
        if wanted is None:
            raise TypeError(f"`b` must be of type {choices}; received {target.name}: pass dtype= to cast it")
        raise TypeError(f"`dtype` must be one of {choices}; received {target.name}")
    if b.dtype is not target:
        if target is I8:
            raise TypeError(f"`b` must be int8 to be packed as int8: quantize it first; received {b.dtype.name}")
        b = cast(b, target)
    return _pack(b, target)
