/* Included by quantize.c: what happens to a part of an array: its ranges, its scales, its codes. */

/* A part from element `at` of the array on, with rows `ld` elements apart; the caller sets rows and columns. */
static mp_part part_at(const mp_quantization *z, ptrdiff_t at, ptrdiff_t ld) {
    return (mp_part){.x = (float *)(z->x + at * z->size), .q = z->q + (at >> z->codes.nibbles), .ldx = ld, .ldq = ld,
                     .qmin = z->codes.qmin, .qmax = z->codes.qmax, .mode = z->mode};
}

/* ---- a chunk: what passes through buffers at a time if numbers are not float32 or codes are packed two to a byte */

static ptrdiff_t rows_of_chunk(const mp_part *p) { return MP_CHUNK / mp_max(1, mp_min(p->cols, MP_CHUNK)); }

/* How many chunks a part has. A chunk has at most MP_CHUNK elements: some whole rows, or a piece of one. */
static ptrdiff_t chunks_of(const mp_part *p) {
    return mp_ceil_div(p->rows, rows_of_chunk(p)) * mp_ceil_div(p->cols, MP_CHUNK);
}

/* Chunk number `index` of p, row by row; set (i, j) to its first element. The caller sets its x and q. */
static mp_part chunk_of(const mp_part *p, ptrdiff_t index, ptrdiff_t *i, ptrdiff_t *j) {
    mp_part chunk = *p;
    const ptrdiff_t across = mp_ceil_div(p->cols, MP_CHUNK), rows = rows_of_chunk(p);
    *i = index / across * rows, *j = index % across * MP_CHUNK;
    const ptrdiff_t at = *i * p->by_row + *j * p->by_column;
    chunk.rows = mp_min(p->rows - *i, rows), chunk.cols = mp_min(p->cols - *j, MP_CHUNK);
    chunk.ldx = chunk.ldq = chunk.cols, chunk.mode = p->mode & MP_WITHIN, chunk.prefetch_distance = 0;
    if (p->scale) chunk.scale = p->scale + at;
    if (p->zero_point) chunk.zero_point = p->zero_point + at;
    return chunk;
}

static void widen(const mp_quantization *z, const mp_part *p, ptrdiff_t i, ptrdiff_t j, const mp_part *chunk) {
    for (ptrdiff_t r = 0; r < chunk->rows; r++)
        z->kernels->casts->widen[z->format]((char *)p->x + ((i + r) * p->ldx + j) * z->size, chunk->x + r * chunk->ldx,
                                            chunk->cols, 0);
}

static void convert_in(const mp_quantization *z, const mp_part *p) {
    const mp_quantizers *quantizers = z->kernels->quantizers;
    (z->back ? quantizers->dequantize : quantizers->quantize)[z->codes.kind](p);
}

static void convert_chunk(const mp_quantization *z, const mp_part *p, ptrdiff_t index, int is_last) {
    const mp_quantizers *quantizers = z->kernels->quantizers;
    mp_chunk_floats numbers;
    mp_chunk_codes codes;
    ptrdiff_t i, j;
    mp_part chunk = chunk_of(p, index, &i, &j);
    if (z->format != MP_F32) {
        chunk.x = numbers.at;
    } else {
        chunk.x = p->x + i * p->ldx + j, chunk.ldx = p->ldx, chunk.prefetch_distance = p->prefetch_distance;
        chunk.mode = !z->back ? p->mode & ~MP_STREAM : is_last ? p->mode : p->mode | MP_MORE;
    }
    if (z->codes.nibbles) chunk.q = codes.at;
    else chunk.q = p->q + i * p->ldq + j, chunk.ldq = p->ldq;
    const ptrdiff_t cols = chunk.cols;
    if (z->back && z->codes.nibbles)
        for (ptrdiff_t r = 0; r < chunk.rows; r++)
            quantizers->unpack_nibbles(p->q + (((i + r) * p->ldq + j) >> 1), cols, z->codes.qmin < 0, codes.at + r * cols);
    else if (!z->back && z->format != MP_F32)
        widen(z, p, i, j, &chunk);
    convert_in(z, &chunk);
    if (z->back && z->format != MP_F32)
        for (ptrdiff_t r = 0; r < chunk.rows; r++)
            z->kernels->casts->narrow[z->format](numbers.at + r * cols, (char *)p->x + ((i + r) * p->ldx + j) * z->size,
                                                 cols, 0);
    else if (!z->back && z->codes.nibbles)
        for (ptrdiff_t r = 0; r < chunk.rows; r++)
            quantizers->pack_nibbles(codes.at + r * cols, cols, p->q + (((i + r) * p->ldq + j) >> 1));
}

/* ---- a part */

static void find_in(const mp_quantization *z, const mp_part *p, float *lo, float *hi) {
    if (z->how == MP_SYMMETRIC) z->kernels->quantizers->amax(p, hi);
    else z->kernels->quantizers->range(p, lo, hi);
}

/* Extend [lo, hi] to the elements of p, for each of its scales. Of symmetric ones, hi is amax and lo is not used. */
static void find_ranges(const mp_quantization *z, const mp_part *p, float *lo, float *hi) {
    mp_chunk_floats numbers;
    if (z->format == MP_F32) {
        find_in(z, p, lo, hi);
        return;
    }
    for (ptrdiff_t index = 0, chunks = chunks_of(p); index < chunks; index++) {
        ptrdiff_t i, j;
        mp_part chunk = chunk_of(p, index, &i, &j);
        chunk.x = numbers.at;
        widen(z, p, i, j, &chunk);
        const ptrdiff_t at = i * p->by_row + j * p->by_column;
        find_in(z, &chunk, lo + at, hi + at);
    }
}

/* Compute the n scales from number `first` on, and their zero points, from their ranges. */
static void make_scales(const mp_quantization *z, const float *lo, const float *hi, ptrdiff_t first, ptrdiff_t n) {
    const mp_quantizers *quantizers = z->kernels->quantizers;
    if (z->how == MP_ASYMMETRIC)
        quantizers->asymmetric_scales(lo, hi, n, z->codes.qmin, z->codes.qmax, z->scale + first, z->zero_point + first);
    else
        quantizers->symmetric_scales(hi, n, z->codes.largest, z->scale + first);
}

/* Turn the numbers of a part into codes, or back, by the scales from number `first` on. */
static void convert(const mp_quantization *z, mp_part *p, ptrdiff_t first) {
    p->scale = z->scale + first;
    if (z->zero_point) p->zero_point = z->zero_point + first;
    if (z->format == MP_F32 && !z->codes.nibbles) {
        convert_in(z, p);
        return;
    }
    const ptrdiff_t chunks = chunks_of(p);
    for (ptrdiff_t index = 0; index < chunks; index++) convert_chunk(z, p, index, index + 1 == chunks);
}

/* Compute the codes (or numbers) of a part by the scales from number `first` on, found first if not given. At most MP_CHUNK
 * scales are found. */
static void quantize_part(const mp_quantization *z, mp_part *p, ptrdiff_t first) {
    mp_chunk_floats lo, hi;
    const ptrdiff_t n = p->by_row ? p->rows : p->by_column ? p->cols : 1;
    if (z->how != MP_GIVEN) {
        memset(lo.at, 0, (size_t)n * sizeof(float));
        memset(hi.at, 0, (size_t)n * sizeof(float));
        find_ranges(z, p, lo.at, hi.at);
        make_scales(z, lo.at, hi.at, first, n);
        if (z->passage.prefetch_next) p->prefetch_distance = p->rows * p->ldx;
    }
    convert(z, p, first);
}
