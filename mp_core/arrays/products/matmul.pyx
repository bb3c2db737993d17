"""``mp_core.matmul``."""

from cpython.ref cimport PyObject

from mp_core.arrays.products cimport panels
from mp_core.arrays.products.operands cimport NO_SCALES, Call, multiply

from mp_core.arrays.recorded import call_recorded
from mp_core.arrays.products.general import multiply_any


cdef inline Call call_of(a, b) noexcept:
    """Return the Call of ``a @ b`` without further arguments."""
    cdef Call call
    cdef PyObject *none = <PyObject *>None
    call.a, call.b, call.out_dtype, call.out, call.bias = <PyObject *>a, <PyObject *>b, none, none, none
    call.activation, call.residual, call.scale, call.zeros = none, none, none, none
    call.left, call.copies = NO_SCALES, False
    return call


def matmul(a, b, *, out_dtype=None, out=None, bias=None, activation=None, residual=None):
    """Return ``activation(a @ b + bias) + residual``, accumulated in float32 (integers exactly) and rounded once.

    Parameters
    ----------
    a : array-like, QuantizedArray or PackedMatrix
        Shape (..., m, k) or (k,), of any strides: float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2,
        int8 or uint8; with a float `b` also other integers and bool. CPU tensors are read by DLPack without a copy. A
        PackedMatrix is unpacked in every call.
    b : array-like, PackedMatrix or QuantizedArray
        Shape (..., k, n) or (k,), of the same types. Leading axes broadcast as in :func:`numpy.matmul`. If you use it
        for many products, :func:`mp_core.pack` it once: this is faster and gives the same bits.
    out_dtype : dtype, optional
        The type of the result: a float type, or int32 for 8-bit integers (for quantized operands only if all scales are
        1). Default: see Notes.
    out : ndarray or tensor, optional
        Where to put the result, of the right shape and of type `out_dtype`. It may overlap an operand.
    bias : array-like, optional
        Shape (n,), float; added in float32.
    activation : str, optional
        "relu", "relu6", "gelu" (the exact one, by erf), "gelu_tanh", "silu", "sigmoid", "tanh",
        "elu", "softplus" or "exponential", applied in float32.
    residual : array-like, optional
        The result's shape, float; added in float32 after the activation.

    Returns
    -------
    ndarray
        Shape (..., m, n), without the axis m if `a` has one axis, and without n if `b` has one; or `out` if given. The
        bits are the same for every thread count, batch size, packing and stride. They are also the same for every
        instruction set, except for products of bfloat16 and float8 with AMX tiles;
        :func:`mp_core.config.set_reproducible` turns these off.

    Raises
    ------
    TypeError
        The operands' types have no product. These pairs have one: two floats of 16 bits or more; such a float and an
        integer; float32, float16 or bfloat16 as `a` and float8 as `b`; two of the same float8 type; int8 or uint8 for
        both (a uint8 `b` must have at least two axes). Otherwise :func:`mp_core.cast` one operand. Or `out_dtype` is
        int32 although scales, floats or an epilogue make the result a float, or `out` has another type.
    ValueError
        The shapes do not fit, `activation` is unknown, or k is too large for an exact integer product: at most 131071
        for int8, less with uint8 and zero points.

    See Also
    --------
    mp_core.pack : pack a right operand for the kernels once.
    mp_core.quantize : make codes and scales.
    mp_core.dynamic_matmul : quantize float rows during the product.
    mp_core.einsum : products along other axes.

    Notes
    -----
    **Types.** The default type of the result, by the types of the operands:

    - two floats of one type: this type;
    - two different floats: the type in which both are exact (float16 and bfloat16: float32);
    - a float with float8 or an integer: the type of the wider float;
    - 8-bit integers: int32;
    - two quantized operands: float32;
    - one quantized operand: the type of the other one if it is a float of more than 8 bits, else float32.

    Sums are float32 (integers: exact; float64: NumPy's product), and the only rounding is the last step.

    **Quantized operands.** Two quantized operands multiply as integers, ``float(sum) * row_scale * column_scale``, if
    `a` has one scale or one per row, and `b` has one or one per column; zero points are allowed. A quantized `b`
    multiplies a float32, float16 or bfloat16 `a` as it is, ``(a @ values) * scale``, if it has no zero points, its
    codes are not uint8, and it has one scale, one per column, or one per column and group along k, where the group size
    is a multiple of 8. Any other quantized operand is dequantized first, to float64 if the other operand is float64,
    else to float32.

    **Error.** Before the epilogue, ``|C - A B| <= gamma(k) |A| |B|`` element by element, where ``gamma(k)`` is
    ``k u / (1 - k u)`` and ``u = 2**-24``. A and B are the numbers that are multiplied, and nothing overflows or
    underflows (bfloat16 products treat magnitudes below 2**-126 as 0). This is the bound for sums of Higham, *Accuracy
    and Stability of Numerical Algorithms*, section 3.1. The page "Numerics" states the order of operations, proves a
    tighter bound, and has the terms of underflow, scales and rounding; the tests compute it.

    Examples
    --------
    Narrow operands, a float32 sum, one rounding:

    >>> import numpy as np
    >>> import mp_core as mp
    >>> x = np.array([[1, 2, 3], [-1, 0, 1]], np.float32)
    >>> w = np.array([[0.5, -1], [2, 0.25], [1, 1]], np.float32)
    >>> mp.matmul(x.astype(np.float16), w.astype(np.float16))
    array([[7.5, 2.5],
           [0.5, 2. ]], dtype=float16)

    bfloat16 operands, with the float32 sums as the result:

    >>> mp.matmul(mp.cast(x, "bfloat16"), mp.cast(w, "bfloat16"), out_dtype="float32")
    array([[7.5, 2.5],
           [0.5, 2. ]], dtype=float32)

    A dense layer: packed weights, bias and activation before the rounding, and an existing array for the result:

    >>> packed = mp.pack(w, dtype="bfloat16")
    >>> out = np.empty((2, 2), np.float32)
    >>> y = mp.matmul(x, packed, bias=[0.5, -4], activation="relu", out=out)
    >>> y is out, y.tolist()
    (True, [[8.0, 0.0], [1.0, 0.0]])

    int8 weights with one scale per column, multiplied by floats and by int8 rows:

    >>> q = mp.pack(mp.quantize(w, axis=1))
    >>> mp.matmul(x, q).round(2)
    array([[7.53, 2.5 ],
           [0.5 , 2.  ]], dtype=float32)
    >>> mp.matmul(mp.quantize(x, axis=0), q).round(2)
    array([[7.54, 2.51],
           [0.5 , 2.  ]], dtype=float32)

    Integers are exact:

    >>> mp.matmul(np.full((1, 1000), 127, np.int8), np.full((1000, 1), -128, np.int8))
    array([[-16256000]], dtype=int32)

    Batch axes broadcast; a vector has no axis in the result:

    >>> mp.matmul(np.ones((5, 1, 2, 3), np.float16), np.ones((4, 3, 2), np.float16)).shape
    (5, 4, 2, 2)
    >>> mp.matmul(x[0], w[:, 0])
    array(7.5, dtype=float32)

    The error is within the bound:

    >>> rng = np.random.default_rng(0)
    >>> a, b = rng.standard_normal((2, 64, 64), np.float32)
    >>> wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    >>> error = np.abs(mp.matmul(a, b) - wide_a @ wide_b)
    >>> k, u = 64, 2.0**-24
    >>> bool((error <= k * u / (1 - k * u) * (np.abs(wide_a) @ np.abs(wide_b))).all())
    True
    """
    cdef Call call = call_of(a, b)
    call.out_dtype, call.out, call.bias = <PyObject *>out_dtype, <PyObject *>out, <PyObject *>bias
    call.activation, call.residual = <PyObject *>activation, <PyObject *>residual
    result = multiply(&call)
    if result is None:
        arguments = {"out_dtype": out_dtype, "out": out, "bias": bias, "activation": activation, "residual": residual}
        result = call_recorded(matmul, (a, b), arguments)
    return multiply_any(a, b, out_dtype, out, bias, activation, residual) if result is None else result


cdef object product(a, b):
    """Return ``matmul(a, b)`` for the operators, without parsing keyword arguments."""
    cdef Call call = call_of(a, b)
    result = multiply(&call)
    return matmul(a, b) if result is None else result


panels.product = product
