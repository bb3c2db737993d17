"""``mp_core.matmul``, and the packed matrix, whose operators call it."""

from cpython.ref cimport PyObject

from mp_core.products.operands cimport NO_SCALES, Call, multiply
from mp_core.products.panels cimport Panels

from mp_core.formats import PANEL_DTYPES
from mp_core.products.general import multiply_any
from mp_core.recorded import call_recorded


def matmul(a, b, *, out_dtype=None, out=None, bias=None, activation=None, residual=None):
    """Return ``activation(a @ b + bias) + residual``, accumulated in float32 (integers: exactly) and rounded once.

    Parameters
    ----------
    a : array-like, QuantizedArray or PackedMatrix
        Shape (..., m, k) or (k,). A packed one is unpacked at every call.
    b : array-like, PackedMatrix or QuantizedArray
        Shape (..., k, n) or (k,). Leading axes broadcast as in :func:`numpy.matmul`.
    out_dtype : dtype, optional
        Type of the result: a float type, or int32 for 8-bit integers (quantized operands: where all scales are 1).
        Default: the promoted type of the operands (bfloat16 @ bfloat16 gives bfloat16; beside float8 and int8 on the
        right, that of `a`), int32 for int8, float32 for two quantized operands.
    out : ndarray or tensor, optional
        Where to put the result, of the right shape and of type `out_dtype`. It may overlap an operand.
    bias : array-like, optional
        Shape (n,), float; added in float32.
    activation : str, optional
        "relu", "relu6", "gelu" (the exact one, by erf), "gelu_tanh", "silu", "sigmoid" or "tanh", applied in float32.
    residual : array-like, optional
        The result's shape, float; added in float32 after the activation.

    Returns
    -------
    ndarray
        The same bits for every thread count, batch size, packing and stride. For every instruction set too, but for
        products of bfloat16 and float8 by AMX tiles, which :func:`mp_core.config.set_reproducible` switches off.

    Raises
    ------
    TypeError
        The operands' types have no product: floats have, with int8 on the right too, int8 and uint8 with each other (a
        uint8 `b` is a matrix). Or `out_dtype` is int32 where scales or an epilogue make floats.
    ValueError
        The shapes do not fit, `activation` is unknown, or an integer product is too deep to be exact (the numerics page
        has the limits: int8 k <= 131071, less with uint8 and zero points).

    Notes
    -----
    Operands of different float types meet in their common type (float16 with bfloat16: float32) and are widened where
    they are multiplied; float8 and int8 on the right of a wider float are too. Two quantized operands, `a` with one
    scale or one per row, `b` with one or one per column, multiply as integers, zero points included, and are rescaled:
    ``float(sum) * row_scale * col_scale``. A quantized `b` beside a float32, float16 or bfloat16 `a` is multiplied as
    it is, ``(a @ values) * scale``, if it has no zero points, its codes are not uint8, and its scales are one, one per
    column, or one per column and group of k, a group being a multiple of 8. Any other quantized operand is dequantized
    first: beside float64 to float64, else to float32. The matrices of a `b` of more axes are multiplied one by one.
    The default type is that of a float operand of more than 8 bits, else float32.
    The numerics page states the order of operations and proves an error bound, at most ``gamma_k |A| |B|``.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.array([[1, 2], [3, 4]], np.float16)
    >>> matmul(a, a)
    array([[ 7., 10.],
           [15., 22.]], dtype=float16)
    """
    cdef Call call
    call.a, call.b, call.out_dtype, call.out = <PyObject *>a, <PyObject *>b, <PyObject *>out_dtype, <PyObject *>out
    call.bias, call.activation = <PyObject *>bias, <PyObject *>activation
    call.residual, call.left = <PyObject *>residual, NO_SCALES
    call.scale = call.zeros = <PyObject *>None
    result = multiply(&call)
    if result is None:
        arguments = {"out_dtype": out_dtype, "out": out, "bias": bias, "activation": activation, "residual": residual}
        result = call_recorded(matmul, (a, b), arguments)
    return multiply_any(a, b, out_dtype, out, bias, activation, residual) if result is None else result


cdef class PackedMatrix(Panels):
    """The right operand of a product, packed once for :func:`mp_core.matmul`. Made by :func:`mp_core.pack`.

    Immutable, picklable, the same on every instruction set.

    Attributes
    ----------
    shape : tuple of int
        The logical shape, ``(..., k, n)``.
    dtype : numpy.dtype
        float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8 or int4.
    scale : numpy.ndarray or None
        For a packed :class:`mp_core.QuantizedArray`: float32, shape (n,), or (groups of k, n).
    zero_point : numpy.ndarray or None
        Of int8, int32, shape (n,): what stands for zero. None: 0.
    group_size : int or None
        Elements along k that share a scale.
    nbytes : int
        Bytes held, scales and column sums included.
    """

    __array_ufunc__ = None  # of NumPy's operators only @ knows a packed matrix

    def __matmul__(self, other):
        return matmul(self, other)

    def __rmatmul__(self, other):
        return matmul(other, self)

    def __array__(self, dtype=None, copy=None):
        raise TypeError("a PackedMatrix is no array: unpack() returns the elements that it holds")

    def __reduce__(self):
        return _restore, (self.shape, self.dtype.name, self.data, self.column_sums, self.scale, self.zero_point,
                          self.group_size)

    def __repr__(self):
        return f"PackedMatrix(shape={self.shape}, dtype={self.dtype.name})"


def _restore(shape, name, data, column_sums, scale, zero_point, group_size):
    return PackedMatrix(shape, PANEL_DTYPES.get(name), data, column_sums, scale, zero_point, group_size)
