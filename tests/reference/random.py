"""Random numbers, by this section of docs/numerics.md: Philox4x64-10 in Python's integers."""

import numpy as np

from .functions import FLOAT32

F32 = np.float32
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
INCREMENTS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
WORD = (1 << 64) - 1


def block(key, counter):
    """Return the four words of a counter."""
    key, c = [int(k) for k in key], [int(n) for n in counter]
    for _ in range(10):
        left, right = MULTIPLIERS[0] * c[0], MULTIPLIERS[1] * c[2]
        c = [right >> 64 ^ c[1] ^ key[0], right & WORD, left >> 64 ^ c[3] ^ key[1], left & WORD]
        key = [(k + increment) & WORD for k, increment in zip(key, INCREMENTS, strict=True)]
    return c


def words(key, blocks, first=0, rest=(0, 0, 0)):
    """Return the words of blocks of a key: the counters (first + 1, *rest), (first + 2, *rest), ..."""
    return np.array([w for i in range(blocks) for w in block(key, [first + i + 1, *rest])], np.uint64)


def word_of_each(key, n):
    """Return the first n words of a key."""
    return words(key, -(-n // 4))[:n]


def dropped(x, rate, word):
    """Return x after dropout, in float32."""
    kept = (word >> np.uint64(11)).astype(np.float64) * 2.0**-53 >= rate
    return np.where(kept & (rate < 1), x * F32(1 / (1 - rate) if rate < 1 else 0), F32(0))


def dropout(x, key, rate):
    """Return dropout of an array in float32."""
    return dropped(x, rate, word_of_each(key, x.size).reshape(x.shape))


def uniform(key, n):
    """Return n numbers from 0 to below 1."""
    return (word_of_each(key, n) >> np.uint64(40)).astype(F32) * F32(2.0**-24)


def normal(key, n):
    """Return n normally distributed numbers."""
    return np.array([one_normal(key, i) for i in range(n)], F32)


def one_normal(key, i):
    """Return normal number i: the first pair of numbers in the unit circle."""
    for t in range(1 << 20):
        w = np.array(block(key, [i + 1, t, 0, 1]), np.uint64) >> np.uint64(40)
        numbers = (2 * w.astype(np.int64) + 1 - (1 << 24)).astype(F32) * F32(2.0**-24)
        for x, y in (numbers[:2], numbers[2:]):
            s = F32(np.float64(x) * x + np.float64(y) * y)
            if s < 1:
                return x * np.sqrt(F32(-2) * FLOAT32["log"](s[None])[0] / s)
    raise AssertionError("unreachable")
