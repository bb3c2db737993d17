"""Time contenders in turns, and format the results as tables."""

import time
from collections.abc import Mapping
from timeit import Timer
from typing import Any

from mp_core.utilities.tables import aligned

__all__ = ["effort", "measure", "table"]

_SLOW = 0.5  # seconds per call: slower contenders are timed once
# Untimed calls before the timed ones, so that the caches have the data of this contender and not of the previous one.
# On Zen 3, the second call of a packed 1x1024x1024 product (4 MiB, from L3) is half as fast as all later calls.
_UNTIMED = 2


def measure(
    timers: Mapping[str, Timer], *, budget: float = 1.0, rounds: int = 15, sample: float = 200e-6
) -> dict[str, list[float]]:
    """Time all contenders in turns, and return the seconds per call of each contender: one entry per round.

    Parameters
    ----------
    timers : mapping of str to timeit.Timer
        Name of a contender -> its timer.
    budget : float
        Seconds to spend; more if `rounds` rounds take longer.
    rounds : int
        The least number of rounds (the most is 301). Contenders slower than 0.5 s a call are timed only once; every
        round gets that result.
    sample : float
        Seconds: enough calls to take this long are timed together, after two untimed calls.

    Examples
    --------
    >>> from timeit import Timer
    >>> taken = measure({"add": Timer("1 + 1"), "pass": Timer()}, budget=0, rounds=3)
    >>> {name: len(seconds) for name, seconds in taken.items()}
    {'add': 3, 'pass': 3}
    """
    calls, slow = {}, {}
    for name, timer in timers.items():
        calls[name] = 1
        while (taken := timer.timeit(calls[name])) < sample:
            calls[name] = max(2 * calls[name], int(1.2 * sample / taken * calls[name]))
        if calls[name] == 1 and taken > _SLOW:
            slow[name] = taken
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + budget
    for done in range(301):
        if done >= rounds and time.perf_counter() > end:
            break
        for name, timer in timers.items():
            if name in slow:
                seconds[name].append(slow[name])
                continue
            timer.timeit(_UNTIMED)
            seconds[name].append(timer.timeit(calls[name]) / calls[name])
    return seconds


def effort(quick: bool) -> dict[str, Any]:
    """Return the arguments of :func:`measure` for a thorough run, or for a quick one."""
    return {"budget": 0.0, "rounds": 3} if quick else {"budget": 0.5}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results of :func:`limits` or :func:`run` as an aligned text table.

    >>> print(table([{"limit": "read, memory", "unit": "GB/s", "rates": {"1": 34.5}}]))
    limit         unit     1
    ------------------------
    read, memory  GB/s  34.5
    """
    heads = [head for head in rows[0] if head not in ("rates", "speedup")]
    contenders = list(dict.fromkeys(name for row in rows for name in row["rates"]))
    lines = [heads + contenders + ["speedup"] * ("speedup" in rows[0])]
    for row in rows:
        cells = [row[head] for head in heads] + [_number(row["rates"].get(name), ".1f") for name in contenders]
        lines.append(cells + [_number(row.get("speedup"), ".2f")] * ("speedup" in row))
    return aligned(lines, left=range(len(heads)))


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
