"""Learning rates at the end of an interval: exact rational numbers decide, and Keras agrees elsewhere."""

import math
import os
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import mp_core as mp
from mp_core.optimizers import schedules

os.environ.setdefault("KERAS_BACKEND", "torch")


def restarts(first, t_mul, m_mul, alpha, last):
    """Yield step and rate of each step up to the last one, by cycles one after the other."""
    start, length, height = Fraction(0), Fraction(Decimal(str(first))), 1.0
    for step in range(last + 1):
        while step >= start + length:
            start, length, height = start + length, length * Fraction(Decimal(str(t_mul))), height * m_mul
        share = float((step - start) / length)
        yield step, (1 - alpha) * 0.5 * height * (1 + math.cos(math.pi * share)) + alpha


CASES = [
    (100, 3.0, 1.0, 0.0), (100, 2.0, 0.5, 0.1), (10, 1.5, 0.75, 0.0), (100, 1.1, 1.0, 0.0), (7, 1.0, 0.5, 0.0),
    (1000, 1.01, 1.0, 0.0), (3.3, 1.0, 1.0, 0.0), (1, 2.0, 1.0, 0.0), (0.7, 1.0, 1.0, 0.0), (81, 9.0, 1.0, 0.0),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_cosine_starts_again_at_the_exact_step(case):
    schedule, again = schedules.CosineDecayRestarts(1.0, *case), schedules.CosineDecayRestarts(1.0, *case)
    wanted = dict(restarts(*case, 5_000))
    for step, rate in wanted.items():
        assert float(schedule(step)) == pytest.approx(rate, rel=1e-6, abs=1e-9), step
    for step in (0, 3_000, 100, 99, 5_000, 400, 399):  # in any order
        assert float(again(step)) == pytest.approx(wanted[step], rel=1e-6, abs=1e-9), step


def test_the_first_step_of_a_cycle_has_its_highest_rate():
    for first, t_mul in ((100, 3), (1000, 2), (10, 10), (5, 5), (3, 7)):
        schedule, start, length = schedules.CosineDecayRestarts(1.0, first, t_mul=float(t_mul)), 0, first
        while start < 2**31:
            assert float(schedule(start)) == 1.0
            before = schedule(start + length - 1)
            assert float(before) == np.float32(0.5 + 0.5 * math.cos(math.pi * (1 - 1 / length)))
            start, length = start + length, length * t_mul


@pytest.mark.parametrize("case", CASES)
def test_restarts_are_those_of_keras_but_for_its_rounding(case):
    keras = pytest.importorskip("keras")
    ours, theirs = schedules.CosineDecayRestarts(1.0, *case), keras.optimizers.schedules.CosineDecayRestarts(1.0, *case)
    found = np.array([float(ours(step)) for step in range(600)])
    apart = np.abs(found - np.asarray(theirs(np.arange(600)))) > 2e-3  # Keras decides in float32
    assert apart.sum() <= 12


@pytest.mark.parametrize("steps", [0.1, 0.3, 0.7, 1.1, 3.3, 4.9, 10, 100, 2.5e-3])
def test_stairs_and_cycles_end_at_the_exact_step(steps):
    exact = Fraction(Decimal(str(steps)))
    exponential = schedules.ExponentialDecay(1.0, steps, 0.999, staircase=True)
    inverse = schedules.InverseTimeDecay(1.0, steps, 0.5, staircase=True)
    cycles = schedules.PolynomialDecay(1.0, steps, 0.25, cycle=True)
    for step in range(600):
        stair, share = step // exact, step / exact
        assert float(exponential(step)) == np.float32(0.999**stair), step
        assert float(inverse(step)) == np.float32(1 / (1 + 0.5 * stair)), step
        rest = 1 - float(share / max(1, math.ceil(share)))
        assert float(cycles(step)) == pytest.approx(0.25 + 0.75 * rest, rel=1e-6), step


def test_a_restart_beyond_hundreds_is_found_at_once():
    schedule = schedules.CosineDecayRestarts(1.0, 10, t_mul=1.0000001)
    rates = [float(schedule(step)) for step in range(10**9, 10**9 + 200)]
    assert max(rates) > 0.99
    assert min(rates) < 0.01
    with pytest.raises(ValueError, match="`t_mul` must be finite"):
        schedules.CosineDecayRestarts(1.0, 10, t_mul=math.inf)


def test_a_schedule_goes_through_files_and_copies():
    schedule = schedules.CosineDecayRestarts(0.4, 100, 3.0)
    assert float(schedule(450)) > 0
    again = schedules.deserialize(schedules.serialize(schedule))
    assert again.get_config() == schedule.get_config() == schedules.CosineDecayRestarts(0.4, 100, 3.0).get_config()
    optimizer = mp.optimizers.deserialize(mp.optimizers.serialize(mp.optimizers.SGD(schedule)))
    assert float(optimizer.learning_rate) == np.float32(0.4)


def test_a_schedule_begins_with_the_rate_that_an_optimizer_has():
    optimizer = mp.optimizers.Adam(0.25)
    optimizer.learning_rate = mp.optimizers.schedules.PolynomialDecay(optimizer.learning_rate, 4, end_learning_rate=0.0)
    assert [float(optimizer.learning_rate), len(optimizer.variables)] == [0.25, 1]
    optimizer.iterations.assign(2)
    assert float(optimizer.learning_rate) == 0.125
    assert optimizer.get_config()["learning_rate"]["config"]["initial_learning_rate"] == 0.25
