# What happens to a part of an array: its ranges, its scales, its codes. Included by quantize.pyx.

cdef mp_part part_at(const Quantization *z, Py_ssize_t at, Py_ssize_t ld) noexcept nogil:
    """A part from element `at` of the array on, with rows `ld` elements apart; the caller sets rows and columns."""
    cdef mp_part p
    memset(&p, 0, sizeof(p))
    p.x, p.q, p.ldx, p.ldq = <float *>(z.x + at * z.size), z.q + (at >> z.codes.packed), ld, ld
    p.qmin, p.qmax, p.mode = z.codes.qmin, z.codes.qmax, z.mode
    return p


cdef void quantize_part(const Quantization *z, mp_part *p, Py_ssize_t first) noexcept nogil:
    """Compute the codes (or numbers) of a part by the scales from number `first` on, found first if not given.

    At most MP_CHUNK scales are found.
    """
    cdef mp_chunk_floats lows, highs
    cdef float *lo = lows.at
    cdef float *hi = highs.at
    cdef Py_ssize_t n = p.rows if p.by_row else p.cols if p.by_column else 1
    if z.how != GIVEN:
        memset(lo, 0, n * sizeof(float))
        memset(hi, 0, n * sizeof(float))
        find_ranges(z, p, lo, hi)
        make_scales(z, lo, hi, first, n)
        if z.way.prefetch_next:
            p.prefetch_distance = p.rows * p.ldx
    convert(z, p, first)


cdef void find_ranges(const Quantization *z, const mp_part *p, float *lo, float *hi) noexcept nogil:
    """Widen [lo, hi] by the elements of p, for each of its scales. Of symmetric ones, hi is amax and lo is not used."""
    cdef mp_chunk_floats numbers
    cdef mp_part chunk
    cdef Py_ssize_t i, j, at, index
    if z.format == MP_F32:
        find_in(z, p, lo, hi)
        return
    for index in range(chunks_of(p)):
        chunk = chunk_of(p, index, &i, &j)
        chunk.x = numbers.at
        widen(z, p, i, j, &chunk)
        at = i * p.by_row + j * p.by_column
        find_in(z, &chunk, lo + at, hi + at)


cdef void find_in(const Quantization *z, const mp_part *p, float *lo, float *hi) noexcept nogil:
    if z.how == SYMMETRIC:
        z.kernels.quantizers.amax(p, hi)
    else:
        z.kernels.quantizers.range(p, lo, hi)


cdef void make_scales(const Quantization *z, const float *lo, const float *hi, Py_ssize_t first,
                      Py_ssize_t n) noexcept nogil:
    """Compute the n scales from number `first` on, and their zero points, from their ranges."""
    if z.how == ASYMMETRIC:
        z.kernels.quantizers.asymmetric_scales(lo, hi, n, z.codes.qmin, z.codes.qmax, z.scale + first,
                                               z.zero_point + first)
    else:
        z.kernels.quantizers.symmetric_scales(hi, n, z.codes.largest, z.scale + first)


cdef void convert(const Quantization *z, mp_part *p, Py_ssize_t first) noexcept nogil:
    """Turn the numbers of a part into codes, or back, by the scales from number `first` on."""
    cdef Py_ssize_t index, chunks
    p.scale = z.scale + first
    if z.zero_point != NULL:
        p.zero_point = z.zero_point + first
    if z.format == MP_F32 and not z.codes.packed:
        convert_in(z, p)
        return
    chunks = chunks_of(p)
    for index in range(chunks):
        convert_chunk(z, p, index, index + 1 == chunks)


cdef void convert_in(const Quantization *z, const mp_part *p) noexcept nogil:
    if z.back:
        z.kernels.quantizers.dequantize[z.codes.kind](p)
    else:
        z.kernels.quantizers.quantize[z.codes.kind](p)


# ---- a chunk: what passes through buffers at a time if numbers are not float32 or codes are packed two to a byte

cdef Py_ssize_t rows_of_chunk(const mp_part *p) noexcept nogil:
    return MP_CHUNK // max(1, min(p.cols, <Py_ssize_t>MP_CHUNK))


cdef Py_ssize_t chunks_of(const mp_part *p) noexcept nogil:
    """How many chunks a part has. A chunk has at most MP_CHUNK elements: some whole rows, or a piece of one."""
    return ceil_div(p.rows, rows_of_chunk(p)) * ceil_div(p.cols, MP_CHUNK)


cdef mp_part chunk_of(const mp_part *p, Py_ssize_t index, Py_ssize_t *i, Py_ssize_t *j) noexcept nogil:
    """Chunk number `index` of p, row by row; set (i, j) to its first element. The caller sets its x and q."""
    cdef mp_part chunk = p[0]
    cdef Py_ssize_t across = ceil_div(p.cols, MP_CHUNK), rows = rows_of_chunk(p), at
    i[0], j[0] = index // across * rows, index % across * MP_CHUNK
    at = i[0] * p.by_row + j[0] * p.by_column
    chunk.rows, chunk.cols = min(p.rows - i[0], rows), min(p.cols - j[0], <Py_ssize_t>MP_CHUNK)
    chunk.ldx, chunk.ldq, chunk.mode, chunk.prefetch_distance = chunk.cols, chunk.cols, p.mode & MP_WITHIN, 0
    if p.scale != NULL:
        chunk.scale = p.scale + at
    if p.zero_point != NULL:
        chunk.zero_point = p.zero_point + at
    return chunk


cdef void widen(const Quantization *z, const mp_part *p, Py_ssize_t i, Py_ssize_t j,
                const mp_part *chunk) noexcept nogil:
    cdef Py_ssize_t r
    for r in range(chunk.rows):
        z.kernels.casts.widen[z.format](<char *>p.x + ((i + r) * p.ldx + j) * z.size, chunk.x + r * chunk.ldx,
                                        chunk.cols, 0)


cdef void convert_chunk(const Quantization *z, const mp_part *p, Py_ssize_t index, bint is_last) noexcept nogil:
    cdef mp_chunk_floats numbers
    cdef mp_chunk_codes codes
    cdef Py_ssize_t i, j, r
    cdef mp_part chunk = chunk_of(p, index, &i, &j)
    if z.format != MP_F32:
        chunk.x = numbers.at
    else:
        chunk.x, chunk.ldx, chunk.prefetch_distance = p.x + i * p.ldx + j, p.ldx, p.prefetch_distance
        chunk.mode = p.mode & ~MP_STREAM if not z.back else p.mode if is_last else p.mode | MP_MORE
    if z.codes.packed:
        chunk.q = codes.at
    else:
        chunk.q, chunk.ldq = p.q + i * p.ldq + j, p.ldq
    if z.back and z.codes.packed:
        for r in range(chunk.rows):
            z.kernels.quantizers.unpack_nibbles(p.q + (((i + r) * p.ldq + j) >> 1), chunk.cols, z.codes.qmin < 0,
                                                codes.at + r * chunk.cols)
    elif not z.back and z.format != MP_F32:
        widen(z, p, i, j, &chunk)
    convert_in(z, &chunk)
    if z.back and z.format != MP_F32:
        for r in range(chunk.rows):
            z.kernels.casts.narrow[z.format](numbers.at + r * chunk.cols, <char *>p.x + ((i + r) * p.ldx + j) * z.size,
                                             chunk.cols, 0)
    elif not z.back and z.codes.packed:
        for r in range(chunk.rows):
            z.kernels.quantizers.pack_nibbles(codes.at + r * chunk.cols, chunk.cols,
                                              p.q + (((i + r) * p.ldq + j) >> 1))
