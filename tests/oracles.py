"""References of the tests: exact rounding by search, error bounds by theorem, formulas, equality of bits."""

import hashlib
import math

import ml_dtypes
import numpy as np

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # unit roundoff
NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
FLOATS = ("float32", *NARROW)  # what products multiply


def codes(dtype):
    """All values of a format of 8 or 16 bits, by code."""
    dtype = np.dtype(dtype)
    return np.arange(2 ** (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}").view(dtype)


def exactly(x, dtype):
    """x.astype(dtype) by NumPy and ml_dtypes, without the warnings about infinities and signaling NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(dtype)


def bits(x):
    return x.view(f"u{x.itemsize}")


def digest(arrays):
    """A hash of the bits of arrays."""
    return hashlib.blake2b(b"".join(np.ascontiguousarray(x).tobytes() for x in arrays), digest_size=8).hexdigest()


def assert_same_bits(actual, expected):
    """Equal dtype, shape and bits; of NaN only the positions count."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    actual, expected = np.ascontiguousarray(actual).reshape(-1), np.ascontiguousarray(expected).reshape(-1)
    if actual.dtype.kind not in "iub":
        with np.errstate(invalid="ignore"):
            nan = np.isnan(expected)
            np.testing.assert_array_equal(np.isnan(actual), nan)
        actual, expected = actual[~nan], expected[~nan]
    np.testing.assert_array_equal(bits(actual), bits(expected))


def nearest(x, dtype):
    """float64 `x` rounded once to `dtype`, to nearest even, by search among all its finite values.

    The values and their midpoints are exact in float64. Beyond half a step above the largest finite value comes
    infinity, or NaN where the format has none; NaN keeps its sign.
    """
    dtype = np.dtype(dtype)
    values = codes(dtype)
    order = np.arange(values.size // 2)
    positive = exactly(values[order], np.float64)
    finite = np.isfinite(positive)
    positive, order = positive[finite], order[finite]
    magnitude = np.abs(x)
    above = np.clip(np.searchsorted(positive, magnitude), 1, positive.size - 1)
    middle = (positive[above - 1] + positive[above]) / 2
    up = (magnitude > middle) | ((magnitude == middle) & (order[above] % 2 == 0))
    code = np.where(up, order[above], order[above - 1])
    last_step = positive[-1] - positive[-2]
    limit = positive[-1] + last_step / 2
    over = (magnitude > limit) | ((magnitude == limit) & (order[-1] % 2 == 1))
    top = {"float8_e4m3fn": 0x7F}.get(dtype.name, order[-1] + 1)
    code = np.where(over, top, code)
    code = np.where(np.isnan(x), 2 ** (8 * dtype.itemsize - 1) - 1, code)
    code = code | (np.signbit(x).astype(np.int64) << (8 * dtype.itemsize - 1))
    return code.astype(f"u{dtype.itemsize}").view(dtype)


def gamma(n):
    """Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1: n u / (1 - n u)."""
    u = UNIT["float32"]
    return n * u / (1 - n * u)


def product_bound(a, b, dtype, out_dtype="float32"):
    """Bound of |C - A B| element by element, for operands that are exact in `dtype`.

    That of docs/numerics.md, for blocks of b along k: gamma(min(k, b) + ceil(k / b) - 1) |A| |B|.
    Flushed subnormals (bfloat16, float8) add at most 2 K 2^-126 max(1, |A|, |B|); a last narrowing adds half a step of
    the result.
    """
    a64, b64 = np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64))
    k = a64.shape[-1]
    pairs = dtype == "bfloat16" or "float8" in dtype
    block = 2048 if pairs else 1024
    bound = gamma(max(min(k, block) + -(-k // block) - 1, 0)) * (a64 @ b64)
    if pairs:
        bound += 2 * k * 2.0**-126 * max(1.0, a64.max(initial=0), b64.max(initial=0))
    if out_dtype != "float32":
        exact = np.abs(a.astype(np.float64) @ b.astype(np.float64)) + bound
        limits = ml_dtypes.finfo(out_dtype)
        bound += exact * float(limits.eps) / 2 + float(limits.smallest_subnormal) / 2
    return bound


def scaled_bound(a, codes, scale, pairs, group=None):
    """Bound of |C - A (codes * scale)|, by docs/numerics.md: scale (1, n), or (ceil(k / group), n) by groups of k."""
    a, codes, scale = (np.abs(x.astype(np.longdouble)) for x in (a, codes, scale))
    k = a.shape[-1]
    block = group or (2048 if pairs else 1024)
    blocks, groups = -(-k // block), len(scale)
    least = np.longdouble(2) ** (-126 if pairs else -150)
    rows = np.repeat(scale, group or k, 0)[:k]
    lost = k * (1 + max(a.max(), codes.max())) + blocks if pairs else k
    scaled = least * (groups + (a @ codes if pairs else 0))
    return gamma(min(k, block) + blocks) * (a @ (codes * rows)) + scale.max(0) * least * lost + scaled


def integers(rng, shape, dtype="int8"):
    """Of all values that the type has."""
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def values(rng, shape, dtype, exponents=4):
    """Normal deviates times random powers of two, exact in `dtype`."""
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-exponents, exponents + 1, shape)
    return x.astype(np.float32).astype(np.dtype(dtype))


# ---- activations


def rows_of_every_size(rng, dtype, k):
    """Rows whose largest magnitudes are all powers of two of float32 and its largest number, each beside ordinary ones.

    They are cast to `dtype`, what is beyond it to its largest number.
    """
    largest = np.append(2.0 ** np.arange(-149, 128), np.finfo(np.float32).max)[:, None]
    rows = rng.uniform(-1, 1, (largest.size, k))
    rows[np.arange(largest.size), rng.integers(k, size=largest.size)] = rng.choice([-1, 1], largest.size)
    extreme, ordinary = rows * largest, rng.standard_normal((largest.size, k))
    limit = float(ml_dtypes.finfo(dtype).max)
    return np.stack([extreme, ordinary], axis=1).reshape(-1, k).clip(-limit, limit).astype(np.float32).astype(dtype)


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def times(x, factor):
    """x * factor, but 0 where the factor is: -Inf times 0 is the limit here."""
    return np.where(factor == 0, 0, x) * factor


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "gelu": lambda x: times(x, 0.5 * np.vectorize(math.erfc, otypes=[float])(x * -math.sqrt(0.5))),
    "gelu_tanh": lambda x: times(x, sigmoid(2 * math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x))),
    "silu": lambda x: times(x, sigmoid(x)),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "elu": lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x),
    "softplus": lambda x: np.logaddexp(x, 0),
    "exponential": np.exp,
}


# ---- rows and attention


def exact_softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=axis, keepdims=True)


def exact_layer_norm(x, epsilon):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


def exact_attention(q, k, v, bias=None, mask=None, scale=None, softcap=None):
    """Attention in float64; zeros where nothing is kept."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    scores = np.einsum("nthd,nshd->nhts", q, k) * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
    scores = scores if bias is None else scores + bias
    scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
    keep = np.broadcast_to(True if mask is None else mask, scores.shape)
    scores = np.where(keep, scores, -np.inf)
    peak = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isinf(peak), 0, peak))
    total = e.sum(-1, keepdims=True)
    return np.einsum("nhts,nshd->nthd", e / np.where(total == 0, 1, total), v)


# ---- quantization

LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}
LARGEST = {
    "int8": 127,
    "int4": 7,
    "uint8": 255,
    "uint4": 15,
    "float8_e4m3fn": 448,
    "float8_e5m2": 57344,
}  # of symmetric codes


def onnx_quantize(x, scale, zero_point, qmin, qmax):
    """ONNX QuantizeLinear: saturate(round_half_even(x / scale) + zero_point), in float32."""
    return np.clip(np.rint(x / scale) + zero_point, qmin, qmax)


def onnx_qlinear_matmul(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero, dtype):
    """ONNX QLinearMatMul as its reference implementation has it, with arrays of float32 scales."""
    total = np.matmul(a.astype(np.int32) - np.int32(a_zero), b.astype(np.int32) - np.asarray(b_zero, np.int32))
    y = total * (np.asarray(a_scale) * b_scale / np.float32(y_scale)).astype(np.float64) + y_zero
    return np.clip(np.rint(y), *LIMITS[dtype]).astype(dtype)


def onnx_reshaped(part, shape, axis, block_size):
    """A scale or zero point of ONNX, one for each element: blocks along `axis`, an index of `axis` each, or one."""
    part = np.asarray(part)
    if block_size:
        return np.repeat(part, block_size, axis)[tuple(map(slice, shape))]
    return part if part.size == 1 else part.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])


def unpacked(packed, length, is_signed=True):
    """The codes of half a byte, by NumPy: the even index is the low half."""
    pairs = np.stack([packed & 15, packed >> 4], axis=-1)
    codes = pairs.reshape(*packed.shape[:-1], 2 * packed.shape[-1])[..., :length].astype(np.int8)
    return np.where(codes > 7, codes - 16, codes) if is_signed else codes


def kept_weights(key, rate, head, targets, sources):
    """Which weights of attention dropout keeps, by NumPy's generator: a row for each target."""
    words = [np.random.Philox(key=key, counter=[0, head, target, 2]).random_raw(sources) for target in targets]
    return (np.array(words) >> np.uint64(11)) * 2.0**-53 >= rate


def stated_sum(*terms, add=np.add):
    """Return the sum of rows of float32 as docs/numerics.md states it: 16 lanes, blocks of 4096, pairs of blocks.

    `add` is what a lane does with a term of each row.
    """

    def of(blocks):
        if len(blocks) == 1:
            return blocks[0]
        first = 1 << (len(blocks) - 1).bit_length() - 1  # the largest power of two below
        return of(blocks[:first]) + of(blocks[first:])

    blocks = []
    for first in range(0, len(terms[0]), 4096):
        lanes = np.zeros(16, np.float32)
        parts = [row[first : first + 4096] for row in terms]
        for vectors in zip(*(np.pad(part, (0, -len(part) % 16)).reshape(-1, 16) for part in parts), strict=True):
            lanes = add(lanes, *vectors)
        blocks.append(lanes)
    lanes = of(blocks)
    for half in (8, 4, 2, 1):
        lanes = lanes[:half] + lanes[half:]
    return lanes[0]
