"""Attention and its gradients, by library/attention.h."""

cimport numpy as cnp
from libc.math cimport ceil
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from mp_core.core.header cimport MP_F32, mp_element_bytes, mp_format
from mp_core.core.library cimport (
    MP_OPERATION_ATTENTION, MP_OPERATION_ATTENTION_GRADIENT, mp_arithmetic_of, mp_attention, mp_attention_work, mp_cost,
    mp_head_strides, mp_product,
)
from mp_core.core.recording cimport run_operation
from mp_core.core.run cimport refuse_huge
from mp_core.core.training cimport mp_attention_gradient, mp_head_array

cnp.import_array()


cdef mp_head_strides strides_of(cnp.ndarray x, int head, int row) noexcept:
    """Return the strides of the axes `head` and `row`, and of axis 0: the sequences, or the rows if `row` is 0."""
    cdef mp_head_strides found
    cdef cnp.npy_intp *strides = cnp.PyArray_STRIDES(x)
    found.sequence, found.head, found.row = strides[0], strides[head], strides[row]
    return found


cdef void describe(mp_attention *t, tuple operands, int fmt, int rows) noexcept:
    """Describe the products ``query[i, :, h] @ key[i, :, h].T`` and ``scores @ value[i, :, h]``, without the result.

    `rows` is the axis of the rows: 1, or 0 for ragged arrays, which have no axis of sequences. Keys and values in pages
    have no axis of heads either.
    """
    cdef cnp.ndarray query = operands[0], key = operands[1], value = operands[2]
    cdef mp_product *scores = &t.scores
    cdef mp_product *context = &t.context
    cdef Py_ssize_t size = mp_element_bytes[fmt]
    cdef int last = cnp.PyArray_NDIM(key) - 1
    scores.k, context.n = cnp.PyArray_DIM(key, last), cnp.PyArray_DIM(value, last)
    scores.a.data, scores.a.format, scores.a.size = cnp.PyArray_BYTES(query), fmt, size
    scores.a.rs, scores.a.cs = cnp.PyArray_STRIDE(query, rows), cnp.PyArray_STRIDE(query, rows + 2)
    scores.b.data, scores.b.format = cnp.PyArray_BYTES(key), fmt
    scores.b.rs, scores.b.cs = cnp.PyArray_STRIDE(key, last), cnp.PyArray_STRIDE(key, rows)
    scores.out.size, scores.common.epilogue.out_format = 4, MP_F32
    context.a.format, context.a.size, context.a.cs = fmt, size, size
    context.b.data, context.b.format = cnp.PyArray_BYTES(value), fmt
    context.b.rs, context.b.cs = cnp.PyArray_STRIDE(value, rows), cnp.PyArray_STRIDE(value, last)
    context.common.epilogue.out_format, context.out.size = <mp_format>fmt, size
    t.query, t.key, t.value = (
        strides_of(query, rows + 1, rows), strides_of(key, rows + 1, rows), strides_of(value, rows + 1, rows))
    t.heads, t.targets, t.sources = (
        cnp.PyArray_DIM(query, rows + 1), cnp.PyArray_DIM(query, rows), cnp.PyArray_DIM(key, rows))
    t.sharing = t.heads // cnp.PyArray_DIM(key, rows + 1)


cdef void add_bias(mp_attention *t, cnp.ndarray added, cnp.ndarray scales) noexcept:
    t.scale.outer, t.scores.b.scale, t.bias = 1, <const float *>cnp.PyArray_DATA(scales), strides_of(added, 1, 2)
    t.scores.residual.data, t.scores.residual.rs = cnp.PyArray_BYTES(added), t.bias.row
    t.scores.residual.size, t.scores.common.epilogue.residual_format = 4, MP_F32


cdef int add_sequences(mp_attention *t, cnp.ndarray offsets, tuple dropout, tuple pages) except -1:
    """Describe the offsets of ragged sequences, the dropout of their weights, and the pages of their keys."""
    cdef double rate
    t.ragged.offsets, t.sequences = <const int32_t *>cnp.PyArray_DATA(offsets), cnp.PyArray_DIM(offsets, 0) - 1
    if dropout is not None:
        t.dropout.key, rate = <const uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>dropout[0]), dropout[1]
        t.dropout.least, t.dropout.factor = <uint64_t>ceil(rate * 2.0**53), 1 / (1 - rate)
    if pages is not None:
        t.ragged.past, t.ragged.pages, t.ragged.starts, t.ragged.rows = (
            <const int32_t *>cnp.PyArray_DATA(<cnp.ndarray>pages[0]),
            <const int32_t *>cnp.PyArray_DATA(<cnp.ndarray>pages[1]),
            <const int32_t *>cnp.PyArray_DATA(<cnp.ndarray>pages[2]),
            <const int32_t *>cnp.PyArray_DATA(<cnp.ndarray>pages[3]))
        t.ragged.page, t.sharing = pages[4], t.heads // <Py_ssize_t>pages[5]
    return 0


cdef int describe_all(mp_attention *t, int fmt, tuple operands, tuple scale, tuple reach, cnp.ndarray keep,
                      tuple bias, tuple ragged) except -1:
    """Describe the arguments of :func:`attention`, except the result."""
    cdef float factor = scale[0], softcap = scale[1]
    t.scale.outer, t.before, t.after = factor, reach[0], reach[1]
    t.sequences = cnp.PyArray_DIM(operands[0], 0)
    describe(t, operands, fmt, 1 if ragged is None else 0)
    if ragged is not None:
        add_sequences(t, ragged[0], ragged[1], ragged[2])
    if keep is not None:
        t.keep.data, t.keep.by = <const uint8_t *>cnp.PyArray_DATA(keep), strides_of(keep, 1, 2)
    if bias is not None:
        add_bias(t, bias[0], bias[1])
    if softcap:
        t.scale.outer, t.scale.inner = softcap, factor / softcap
    return refuse_huge(max(t.scores.k, t.sources))


def attention(int fmt, tuple operands not None, cnp.ndarray out not None, tuple scale not None, tuple reach not None,
              cnp.ndarray keep=None, tuple bias=None, tuple ragged=None):
    """Compute out = softmax(scale * query @ key' + bias) @ value for each head, without masked scores.

    Parameters
    ----------
    fmt : int
        The format of operands and `out`, which have native byte order and no length 0.
    operands : tuple of ndarray
        query (n, targets, heads, size), key (n, sources, key heads, size), value (n, sources, key heads, value size).
    out : ndarray, shape (n, targets, heads, value size)
        C-contiguous.
    scale : (float, float)
        Scale and cap. A cap c other than 0 turns the scaled scores into ``c * tanh(score / c)``; then `bias` is None.
    reach : (int, int)
        (before, after): sources more than `before` rows before a target, or more than `after` rows after it, are
        masked. If one of them is less than sources - 1, the numbers of targets and sources are equal.
    keep : ndarray of bool, shape (n, heads, targets, sources), optional
        Last stride 1.
    bias : (ndarray, ndarray), optional
        An aligned float32 array of the shape of `keep` with last stride 1; and a float32 vector of `sources` elements
        that all equal the scale.
    ragged : (ndarray, tuple or None, tuple or None), optional
        (offsets, dropout, pages). Operands and `out` have no axis n then: sequence i has the rows from ``offsets[i]``
        to ``offsets[i + 1]``. Offsets are int32, ascending and not beyond the last row. `keep` is None, and the bias
        has shape (1, heads, at least the longest length, the same). Dropout is (key, rate): the key is uint32 (seed,
        draw), C-contiguous and read when the operation runs; rate, below 1, is the share of dropped weights. Pages are
        (past, pages, starts, rows, rows of a page, key heads), arrays of int32, C-contiguous, without bias and dropout:
        sequence i continues one of past[i] rows. `key` and `value` have shape (key heads * rows[0], size). The keys and
        values of a sequence, those of its own rows too, are in the pages from ``pages[starts[i]]`` to
        ``pages[starts[i + 1] - 1]`` of each head.
    """
    cdef mp_attention t
    memset(&t, 0, sizeof(t))
    describe_all(&t, fmt, operands, scale, reach, keep, bias, ragged)
    rows = 1 if ragged is None else 0
    t.context.out.data, t.context.out.rs = cnp.PyArray_BYTES(out), cnp.PyArray_STRIDE(out, rows)
    t.out = strides_of(out, rows + 1, rows)
    run_operation(MP_OPERATION_ATTENTION, &t, "attention", out,
                  mp_cost(t.sequences if t.ragged.offsets != NULL else 0, 2 * mp_attention_work(&t),
                          mp_arithmetic_of(fmt, fmt), 4 * cnp.PyArray_NBYTES(out)))


cdef mp_head_array head_array(cnp.ndarray x, int head, int row) noexcept:
    cdef mp_head_array found
    found.data, found.by = cnp.PyArray_BYTES(x), strides_of(x, head, row)
    return found


def attention_gradient(int fmt, tuple operands not None, tuple out not None, tuple scale not None, tuple reach not None,
                       cnp.ndarray keep=None, tuple bias=None, tuple ragged=None):
    """Compute the gradients of :func:`attention` with respect to its operands or its bias.

    `operands` are those of attention, then the C-contiguous gradient of the result. `out` has three arrays of the
    shapes of the operands, C-contiguous, of format `fmt`. Or it has one float32 array of zeros for the gradient of the
    bias, of shape (n or 1, heads or 1, targets, sources), summed over an axis of length 1; for ragged sequences (1,
    heads, length, length).
    """
    cdef mp_attention_gradient t
    cdef cnp.ndarray first = out[0], d = operands[3]
    cdef int rows = 1 if ragged is None else 0
    memset(&t, 0, sizeof(t))
    describe_all(&t.forward, fmt, operands, scale, reach, keep, bias, ragged)
    t.scale, t.rows, t.d = scale[0], cnp.PyArray_DIM(d, 0), head_array(d, rows + 1, rows)
    if len(out) == 1:
        t.bias = head_array(first, 1, 2)
        t.sums_sequences, t.sums_heads = cnp.PyArray_DIM(first, 0) == 1, cnp.PyArray_DIM(first, 1) == 1
        t.bias.by.sequence *= not t.sums_sequences
        t.bias.by.head *= not t.sums_heads
    else:
        t.query, t.key, t.value = (
            head_array(out[0], rows + 1, rows), head_array(out[1], rows + 1, rows), head_array(out[2], rows + 1, rows))
    run_operation(MP_OPERATION_ATTENTION_GRADIENT, &t, "gradient of attention", first,
                  mp_cost(t.forward.sequences if t.forward.ragged.offsets != NULL else 0,
                          5 * mp_attention_work(&t.forward), mp_arithmetic_of(fmt, fmt), 7 * cnp.PyArray_NBYTES(d)))
