"""``mp_core.matmul``."""

from cpython.ref cimport PyObject

from mp_core.arrays.products cimport panels
from mp_core.arrays.products.operands cimport NO_SCALES, Call, multiply

from mp_core.arrays.recorded import call_recorded
from mp_core.arrays.products.general import multiply_any


cdef inline Call call_of(a, b) noexcept:
    """Describe a product of two operands, without anything else."""
    cdef Call call
    cdef PyObject *none = <PyObject *>None
    call.a, call.b, call.out_dtype, call.out, call.bias = <PyObject *>a, <PyObject *>b, none, none, none
    call.activation, call.residual, call.scale, call.zeros = none, none, none, none
    call.left, call.copies = NO_SCALES, False
    return call


def matmul(a, b, *, out_dtype=None, out=None, bias=None, activation=None, residual=None):
    """Return ``activation(a @ b + bias) + residual``, accumulated in float32 (integers: exactly) and rounded once.

    Parameters
    ----------
    a : array-like, QuantizedArray or PackedMatrix
        Shape (..., m, k) or (k,), of any strides: float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2,
        int8 or uint8; other integers and bool beside a float. CPU tensors come by DLPack, without a copy. A packed one
        is unpacked at every call.
    b : array-like, PackedMatrix or QuantizedArray
        Shape (..., k, n) or (k,), of the same types. Leading axes broadcast as in :func:`numpy.matmul`. If it serves
        for many products, :func:`mp_core.pack` it once: the same bits, sooner.
    out_dtype : dtype, optional
        Type of the result: a float type, or int32 for 8-bit integers (quantized operands: where all scales are 1).
        Default: see Notes.
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
        Shape (..., m, n), without the axis m if `a` has one axis, without n if `b` has; `out` if that was given. It
        has the same bits for every thread count, batch size, packing and stride. For every instruction set too, but
        for products of bfloat16 and float8 by AMX tiles, which :func:`mp_core.config.set_reproducible` switches off.

    Raises
    ------
    TypeError
        The operands' types have no product. These pairs have one: two floats of 16 bits or more; such a float and an
        integer; float32, float16 or bfloat16 on the left and float8 on the right; two of the same float8 type; int8 or
        uint8 on both sides (a `b` of uint8 has at least two axes). Otherwise :func:`mp_core.cast` one operand. Or
        `out_dtype` is int32 although scales, floats or an epilogue make the result a float, or `out` has another type.
    ValueError
        The shapes do not fit, `activation` is unknown, or an integer product is too deep to be exact: k must be at
        most 131071 for int8, less with uint8 and zero points.

    See Also
    --------
    mp_core.pack : lay out a right operand for the kernels, once.
    mp_core.quantize : make codes and scales.
    mp_core.dynamic_matmul : quantize float rows during the product.
    mp_core.einsum : products along other axes.

    Notes
    -----
    **Types.** By default two operands of one float type give that type, and two of different ones the type in which
    both are exact (float16 with bfloat16: float32). Beside float8 and integers it is the type of the wider float.
    8-bit integers give int32; two quantized operands give float32, and one gives the type of the float beside it if
    that has more than 8 bits, else float32. Sums are of float32 (float64: NumPy's product; integers: exact), and the
    one rounding is the last step.

    **Quantized operands.** Two of them multiply as integers if `a` has one scale or one per row and `b` one or one per
    column, zero points included: ``float(sum) * row_scale * column_scale``. A `b` beside a float32, float16 or bfloat16
    `a` is multiplied as it is, ``(a @ values) * scale``, if it has no zero points, its codes are not uint8, and its
    scales are one, one per column, or one per column and group of k, a group being a multiple of 8. Any other
    quantized operand is dequantized first: beside float64 to float64, else to float32.

    **Error.** Before the epilogue, ``|C - A B| <= gamma(k) |A| |B|`` element by element, where ``gamma(k)`` is
    ``k u / (1 - k u)`` and ``u = 2**-24``, for the numbers that were multiplied and if nothing overflows or underflows
    (bfloat16 takes magnitudes below 2**-126 for 0). This is the bound for sums of Higham, *Accuracy and Stability of
    Numerical Algorithms*, section 3.1. The page "Numerics" states the order of operations, proves a tighter bound, and
    has the terms of underflow, scales and rounding; the tests compute it.

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

    bfloat16 through :func:`mp_core.cast`, with the sums as they are:

    >>> mp.matmul(mp.cast(x, "bfloat16"), mp.cast(w, "bfloat16"), out_dtype="float32")
    array([[7.5, 2.5],
           [0.5, 2. ]], dtype=float32)

    A dense layer: weights packed once, bias and activation before the rounding, a result into memory that is there:

    >>> packed = mp.pack(w, dtype="bfloat16")
    >>> out = np.empty((2, 2), np.float32)
    >>> y = mp.matmul(x, packed, bias=[0.5, -4], activation="relu", out=out)
    >>> y is out, y.tolist()
    (True, [[8.0, 0.0], [1.0, 0.0]])

    int8 weights with a scale for each column, beside floats and beside rows of int8:

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

    Batches broadcast, and vectors lose their axis:

    >>> mp.matmul(np.ones((5, 1, 2, 3), np.float16), np.ones((4, 3, 2), np.float16)).shape
    (5, 4, 2, 2)
    >>> mp.matmul(x[0], w[:, 0])
    array(7.5, dtype=float32)

    Within the bound:

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
    """Return ``matmul(a, b)``, sooner: there are no arguments by name to look for."""
    cdef Call call = call_of(a, b)
    result = multiply(&call)
    return matmul(a, b) if result is None else result


panels.product = product
