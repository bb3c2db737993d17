"""Look up rows of tables, and count the positions of tokens."""

from typing import Any

import numpy as np

from mp_core.arrays import FORMATS, Array, cast, contiguous
from mp_core.arrays.dtypes import ALLOWED, is_float, name_of
from mp_core.arrays.products.panels import PackedMatrix
from mp_core.arrays.quantization import QuantizedArray, check_unchanged, dequantize
from mp_core.arrays.quantization.codes import CODES
from mp_core.arrays.quantization.recipe import KINDS
from mp_core.arrays.recorded import comes_from_input, constant, is_recorded, recordable
from mp_core.core.lookup import count_places, gather, gather_numbers
from mp_core.ops.elementwise import compared, where
from mp_core.utilities.arguments import integer, kind_of
from mp_core.utilities.docstrings import shown

__all__ = ["check_indices", "has_rows", "take_rows", "token_places"]


@recordable
def take_rows(table: Array | QuantizedArray | PackedMatrix, indices: Array, dtype: np.dtype[Any]) -> Array:
    """Return the rows of a table at `indices`, in `dtype`. Only these rows are cast or dequantized.

    Parameters
    ----------
    table : ndarray, QuantizedArray or PackedMatrix
        Floats of shape (rows, columns), or codes with one scale for each row, or for each row and group of columns. Or
        a packed matrix of shape (columns, rows) for which :func:`has_rows` is true.
    indices : ndarray of int
        From 0 to rows - 1.
    dtype : dtype
        A float type of :data:`mp_core.dtypes.ALLOWED`.

    Returns
    -------
    ndarray, shape ``(*indices.shape, columns)``

    Raises
    ------
    IndexError
        An index is outside of the table.

    Examples
    --------
    >>> take_rows(np.eye(3, dtype=np.float32), np.array([2, 0]), np.dtype("float32"))
    array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """
    if type(indices) is not np.ndarray or indices.dtype.kind not in "iu":
        _check_integers(indices, "indices")
    if isinstance(table, PackedMatrix):
        return _columns_taken(table, indices, dtype)
    if not isinstance(table, QuantizedArray) and not _is_float_array(table):
        raise TypeError(f"`table` must be an ndarray of floats or a QuantizedArray; received {kind_of(table)}")
    if len(table.shape) != 2:
        raise ValueError(f"`table` must have shape (rows, columns); received {table.shape}")
    if dtype not in _FLOATS:
        raise TypeError(f"`dtype` must be a float type of mp_core.dtypes.ALLOWED; received {dtype!r}")
    shape = (*indices.shape, table.shape[1])
    places = indices if indices.dtype.char in _INDICES and indices.flags.c_contiguous else _as_indices(indices)
    is_wide = dtype.itemsize == 8
    if not isinstance(table, QuantizedArray):
        if table.strides[1] != table.itemsize and comes_from_input(table):
            table = contiguous(table)
        if is_wide or table.dtype.itemsize == 8 or table.strides[1] != table.itemsize or not table.dtype.isnative:
            _check_rows(indices, table.shape[0])
            return cast(table[indices], dtype)
        out = np.empty(shape, dtype)
        gather(table, places, out, FORMATS[table.dtype], FORMATS[dtype])
        return out
    check_unchanged(table)
    if not is_wide and _is_gathered(table):
        group = table.shape[1] if table.group_size is None else table.group_size
        values, scale, codes = contiguous(table.values), contiguous(table.scale), CODES[name_of(table.dtype)]
        kind = KINDS[name_of(table.dtype)], codes.packed, codes.qmin < 0, 0
        zero = None if table.zero_point is None else contiguous(table.zero_point)
        out = np.empty(shape, dtype)
        gather_numbers(values, places, out, FORMATS[dtype], kind, scale, zero, max(group, 1))
        return out
    _check_rows(indices, table.shape[0])
    index = indices.reshape(-1)
    scale, zero = (x if x is None or not table.axis else x[index] for x in (table.scale, table.zero_point))
    rows = (index.size, table.shape[1])
    part = QuantizedArray(table.values[index], scale, zero, table.axis, table.group_size, table.dtype, rows)
    return dequantize(part, dtype).reshape(shape)


def has_rows(matrix: Any) -> bool:
    """Return whether :func:`take_rows` reads the columns of a packed matrix: codes with scales in float32."""
    if not isinstance(matrix, PackedMatrix) or matrix.ndim != 2 or name_of(matrix.dtype) not in _PACKED_CODES:
        return False
    scale = matrix.scale
    is_stored = any(scale is part for part in matrix.parts)  # otherwise it is decoded from bytes
    return is_stored and (matrix.zero_point is None or name_of(matrix.dtype) == "int4")


def _columns_taken(matrix: PackedMatrix, indices: Array, dtype: np.dtype[Any]) -> Array:
    (columns, rows), name, scale = matrix.shape, name_of(matrix.dtype), matrix.scale
    if not has_rows(matrix) or scale is None or dtype not in _FLOATS or dtype.itemsize == 8:
        raise TypeError(f"`table` must be packed codes with scales in float32; received {matrix} for dtype={dtype}")
    zero = None if matrix.zero_point is None else matrix.zero_point.reshape(-1, rows)
    out, kind = np.empty((*indices.shape, columns), dtype), (KINDS[name], name == "int4", True, rows)
    group = max(columns if matrix.group_size is None else matrix.group_size, 1)
    gather_numbers(matrix.data, _as_indices(indices), out, FORMATS[dtype], kind, scale.reshape(-1, rows), zero, group)
    return out


def check_indices(indices: Array, rows: int, what: str, error: type[Exception] = IndexError) -> None:
    """Raise `error`, which calls the indices `what`, if one is not from 0 to ``rows - 1``; plans check in each run."""
    if not is_recorded(indices) and indices.size and not 0 <= indices.min() <= indices.max() < rows:
        raise error(f"{what} must be from 0 to {rows - 1}; received {indices.min()} to {indices.max()}")


def _check_rows(indices: Array, rows: int) -> None:
    """Raise IndexError for the indices that kernels reject; NumPy would count negative ones from the end."""
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < rows:
        raise IndexError(f"an index is outside of the table, which has {rows} rows")


def _is_gathered(table: QuantizedArray) -> bool:
    """Return whether the kernel reads rows of this table: 8 or 4 bits, one scale per table, row, or group of a row."""
    return not CODES[name_of(table.dtype)].is_wide and table.axis in ((), (0,))


@recordable
@shown("{}(np.array([[5, 6, 1], [1, 7, 7]]), 1)", "array([[2, 3, 1],\n       [1, 2, 3]], dtype=int32)")
def token_places(ids: Array, padding: int) -> Array:
    """Return the positions of tokens: ``padding + 1``, ``padding + 2``, ... in each row, skipping padding tokens.

    The position of a padding token is `padding`, as in RoBERTa.

    Parameters
    ----------
    ids : ndarray of int, shape (n, length)
    padding : int
        The id of the padding token.

    Returns
    -------
    ndarray of int32, shape (n, length)
    """
    _check_integers(ids, "ids")
    if ids.ndim != 2:
        raise ValueError(f"`ids` must have shape (n, length); received {ids.shape}")
    if not -(2**31) <= integer(padding, "padding") < 2**31 - ids.shape[1]:
        raise ValueError(
            f"`padding` and all positions must be int32; received {padding} for a length of {ids.shape[1]}"
        )
    if comes_from_input(ids):
        tokens = contiguous(ids) if ids.dtype == np.int32 else _marked_tokens(ids, padding)
    else:
        tokens = constant(np.ascontiguousarray(ids, np.int32))
        if not np.array_equal(tokens, ids):
            raise ValueError("`ids` must fit int32; received some that do not")
    places = np.empty(ids.shape, np.int32)
    count_places(tokens, padding, places)
    return places


def _marked_tokens(ids: Array, padding: int) -> Array:
    """Return `padding` for the ids of padding tokens, and another number for all others, in int32."""
    is_padding = compared("equal", ids, constant(np.full(1, padding, np.int64)), dtype=ids.dtype)
    marks = (constant(np.full(1, number, np.int32)) for number in (padding, padding + 1))
    return where(is_padding, *marks, dtype=np.dtype(np.int32))


def _check_integers(x: Any, argument: str) -> None:
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "iu":
        raise TypeError(f"`{argument}` must be an ndarray of integers; received {kind_of(x)}")


def _is_float_array(x: Any) -> bool:
    return isinstance(x, np.ndarray) and (x.dtype in _FLOATS or is_float(x.dtype))


_FLOATS = frozenset(filter(is_float, ALLOWED.values()))
_PACKED_CODES = ("int8", "int4", "float8_e4m3fn", "float8_e5m2")
_INDICES = frozenset(np.dtype(kind).char for kind in (np.int32, np.int64))


def _as_indices(indices: Array) -> Array:
    """Return contiguous int32 or int64 indices; those beyond int64 become 2**63 - 1, which no table has."""
    if indices.dtype == np.int32:
        return contiguous(indices)
    return np.ascontiguousarray(np.minimum(indices, 2**63 - 1) if indices.dtype == np.uint64 else indices, np.int64)
