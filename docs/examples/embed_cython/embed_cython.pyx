# cython: language_level=3
"""A module in Cython that calls the kernels of mp_core without the interpreter lock: the softmax of a mixture of
experts, and a round trip through int8 codes."""

from libc.stdint cimport int8_t
from libc.string cimport memset

from mp_core.core cimport (
    MP_CORE_COLUMN_SCALES, MP_CORE_FLOAT32, MP_CORE_INT8, MP_CORE_OK, MP_CORE_ROW_SCALES, import_mp_core, mp_core_api,
    mp_core_quantization, mp_core_rows,
)

import_mp_core()


cdef int check(int status) except -1:
    if status != MP_CORE_OK:
        raise ValueError(mp_core_api.status_text(status).decode())
    return 0


def gate(float[:, ::1] x not None, float[:, ::1] out not None, float temperature, int threads=1):
    """out = softmax(x / temperature) over the last axis."""
    cdef mp_core_rows rows
    cdef int status
    if x.shape[0] != out.shape[0] or x.shape[1] != out.shape[1]:
        found = f"{(out.shape[0], out.shape[1])} and {(x.shape[0], x.shape[1])}"
        raise ValueError(f"`out` must have the shape of `x`; received {found}")
    memset(&rows, 0, sizeof(rows))
    rows.size, rows.rows, rows.n, rows.type = sizeof(rows), x.shape[0], x.shape[1], MP_CORE_FLOAT32
    if rows.rows == 0 or rows.n == 0:
        return
    rows.x, rows.ldx, rows.out, rows.ldo = &x[0, 0], rows.n, &out[0, 0], rows.n
    with nogil:
        status = mp_core_api.softmax(&rows, 1 / temperature, NULL, 0, threads)
    check(status)


def round_trip(float[:, ::1] x not None, int8_t[:, ::1] codes not None, float[::1] scale not None, bint by_column,
               int threads=1):
    """Quantize x to int8 with a scale for each row or column, and write the dequantized codes into x."""
    cdef mp_core_quantization q
    cdef int status
    if codes.shape[0] != x.shape[0] or codes.shape[1] != x.shape[1] or scale.shape[0] != x.shape[by_column]:
        raise ValueError("`codes` must have the shape of `x`, and `scale` a number for each row or column")
    memset(&q, 0, sizeof(q))
    q.size, q.rows, q.cols, q.x_type, q.q_type = sizeof(q), x.shape[0], x.shape[1], MP_CORE_FLOAT32, MP_CORE_INT8
    q.scales = MP_CORE_COLUMN_SCALES if by_column else MP_CORE_ROW_SCALES
    if q.rows == 0 or q.cols == 0:
        return
    q.x, q.q, q.scale = &x[0, 0], &codes[0, 0], &scale[0]
    with nogil:
        status = mp_core_api.quantize(&q, threads)
        if status == MP_CORE_OK:
            status = mp_core_api.dequantize(&q, threads)
    check(status)
