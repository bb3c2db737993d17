"""The oracle of 16-bit functions, against 600 bits for every input of 8 bits and a sample of those of 16 bits."""

import math

import mpmath
import numpy as np
import pytest
from exact import BITS, FORMULAS, exact, power
from oracles import NARROW, assert_same_bits, codes, exactly

NAMES = (*FORMULAS, "power 0.5", "power 2", "power -3", "power -1.7")


def rounded(y, dtype):
    """An mpf or a float, rounded to a type by comparison with every boundary, as exact rationals."""
    values = exactly(codes(dtype)[: 2 ** (8 * np.dtype(dtype).itemsize - 1)], np.float64)
    values = values[np.isfinite(values)]
    boundaries = np.append((values[:-1] + values[1:]) / 2, values[-1] + (values[-1] - values[-2]) / 2)
    size, low, high = abs(y), 0, len(boundaries)
    while low < high:
        middle = (low + high) // 2
        if size > boundaries[middle] or (size == boundaries[middle] and middle % 2 == 1):
            low = middle + 1
        else:
            high = middle
    code = low if low < len(boundaries) else {"float8_e4m3fn": 0x7F}.get(dtype, low)
    return math.copysign(float(exactly(codes(dtype)[code : code + 1], np.float64)[0]), y)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", NAMES)
def test_the_oracle_rounds_as_600_bits_do(name, dtype, rng):
    x, y = exact(name, dtype)
    formula = power(float(name.split()[1]))[0] if name.startswith("power ") else FORMULAS[name]
    wide, found = exactly(x, np.float64), exactly(y, np.float64)
    chosen = np.flatnonzero(np.isfinite(wide) & (wide != 0) & ~np.isnan(found))
    for i in rng.choice(chosen, min(20, chosen.size), replace=False):
        with mpmath.workprec(BITS):
            exactly_there = formula(mpmath.mp, mpmath.mpf(wide[i]))
            sign = -1.0 if exactly_there < 0 else math.copysign(1.0, found[i])
            expected = rounded(abs(exactly_there), dtype) * sign
        assert found[i] == expected and math.copysign(1.0, found[i]) == sign, (name, wide[i])
