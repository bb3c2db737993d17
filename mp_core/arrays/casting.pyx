"""The cast. Contiguous float arrays go straight to the kernels; everything else takes the general path."""

cimport numpy as cnp

from mp_core.core.convert cimport contiguous, note_cast
from mp_core.core.header cimport MP_F32, MP_FLOATS, MP_SATURATE, mp_active
from mp_core.core.library cimport MP_F64, mp_cast, mp_recorder
from mp_core.arrays.formats cimport Formats, format_named, format_of, formats

from mp_core.arrays.conversion import cast_any
from mp_core.arrays.stochastic import key_of, round_stochastically

cnp.import_array()

cdef const Formats *FORMATS = formats()


def cast(x, dtype, *, out=None, saturate=False, rounding="nearest", seed=None, draw=None):
    """Return `x` converted to `dtype`, each element rounded once, by default to nearest even.

    Parameters
    ----------
    x : array-like
        Any shape, any dtype of :data:`mp_core.dtypes.ALLOWED` and :data:`mp_core.dtypes.STORED`.
    dtype : dtype or str
        The dtype of the result, from the same lists, in any byte order.
    out : ndarray or tensor, optional
        Where to put the result: the shape of `x`, of type `dtype`. It may overlap `x`.
    saturate : bool
        Clamp finite and infinite values to the range of `dtype` instead of overflowing; NaN becomes 0 in integer types.
        Without it overflow follows ml_dtypes: infinity, or NaN for float8_e4m3fn, which has no infinity.
    rounding : str
        "nearest", or for bfloat16, float16, float8_e4m3fn and float8_e5m2 "stochastic": a number between two
        neighbours becomes one of them by chance, so that the mean over many draws is the number itself.
    seed : int or ndarray of uint32, optional
        For stochastic rounding: an integer from 0 to 2**32 - 1; or a key, (seed, draw), of shape (2,), which a plan
        reads when it runs. The same key gives the same bits, for any threads, strides and CPUs.
    draw : int, optional
        Which draw of this seed: from 0 (the default) to 2**32 - 1.

    Returns
    -------
    ndarray
        A new array, or `out`. NaN stays NaN, of the same sign, in float types.

    Raises
    ------
    TypeError
        A dtype is not in the lists, `saturate` is not a bool, or the dtype of `out` is not `dtype`.
    ValueError
        `out` has another shape than `x`, or is read-only; `rounding` is unknown, or `seed` and `draw` do not fit it.

    Notes
    -----
    float64 is rounded once too: on its way to a narrow type it is rounded to odd in float32, then to nearest even [1]_.
    To integer types the rule is NumPy's (truncation); int4 and uint4 keep the low four bits.

    References
    ----------
    .. [1] S. Boldo, G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to
       odd", IEEE Transactions on Computers 57(4), 2008.

    Examples
    --------
    >>> cast([1.0, 1.00390625, 3e38], "bfloat16")
    array([1, 1, 3.00406e+38], dtype=bfloat16)
    >>> cast([500.0, -1e9], "float8_e4m3fn", saturate=True).tolist()
    [448.0, -448.0]
    >>> cast([1.003] * 6, "bfloat16", rounding="stochastic", seed=3).tolist()
    [1.0078125, 1.0078125, 1.0, 1.0078125, 1.0, 1.0]
    """
    if rounding != "nearest" or seed is not None or draw is not None:
        key = key_of(rounding, seed, draw)
        return round_stochastically(x, dtype, key, out, saturate)
    result = cast_contiguous(x, dtype, out, saturate)
    return cast_any(x, dtype, out, saturate) if result is None else result


cdef cnp.ndarray cast_contiguous(object x, object dtype, object out, object saturate):
    """Cast a contiguous float array to a float type; return None for all other casts, and if `out` overlaps it."""
    cdef mp_cast c
    cdef cnp.ndarray source, result
    c.dst_format = format_named(dtype)
    if not 0 <= c.dst_format < MP_FLOATS or type(x) is not cnp.ndarray or type(saturate) is not bool:
        return None
    source = x
    c.src_format = format_of(FORMATS, source)
    if (not (0 <= c.src_format < MP_FLOATS or (c.src_format == MP_F64 and c.dst_format != MP_F32))
            or not cnp.PyArray_ISCARRAY_RO(source)):
        return None
    if out is None:
        result = cnp.PyArray_EMPTY(cnp.PyArray_NDIM(source), cnp.PyArray_DIMS(source), FORMATS.types[c.dst_format], 0)
    elif (type(out) is not cnp.ndarray or cnp.PyArray_TYPE(<cnp.ndarray>out) != FORMATS.types[c.dst_format]
            or not cnp.PyArray_ISCARRAY(<cnp.ndarray>out) or not cnp.PyArray_SAMESHAPE(source, <cnp.ndarray>out)):
        return None
    else:
        result = out
    c.n, c.src, c.dst = cnp.PyArray_SIZE(source), cnp.PyArray_BYTES(source), cnp.PyArray_BYTES(result)
    c.src_size, c.dst_size = cnp.PyArray_ITEMSIZE(source), cnp.PyArray_ITEMSIZE(result)
    if c.src < c.dst + c.n * c.dst_size and c.dst < c.src + c.n * c.src_size:
        return None
    c.kernels, c.mode = mp_active(), MP_SATURATE if saturate else 0
    if c.n == 0:
        return result
    if mp_recorder()[0] == NULL or not note_cast(&c, source, result):
        contiguous(&c)
    return result
