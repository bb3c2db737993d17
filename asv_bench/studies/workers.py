"""Contenders in separate processes: each is timed while the others wait, and has its own resident memory.

As a script, this is such a process: it reads requests from its input and writes answers to its output, as pickles.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from timeit import Timer
from typing import BinaryIO

import numpy as np

Call = Callable[[np.ndarray], np.ndarray]
PRIORITY = 10  # priority of SCHED_FIFO: above all processes without real-time priority


@dataclass
class Timed:
    """Like `timeit.Timer`: returns the seconds of a number of calls."""

    timeit: Callable[[int], float]


class Worker:
    """A process that creates a contender (a function of one array), calls it and times it.

    `make` returns the contender. It is defined in a module of this folder.
    """

    def __init__(self, make: Callable[[], Call], realtime: bool) -> None:
        self.process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._tell((make, realtime))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self._ask(x, 0)

    def timer(self, x: np.ndarray) -> Timed:
        return Timed(partial(self._ask, x))

    def megabytes(self) -> float:
        """Return the resident memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 1e6

    def close(self) -> None:
        self.process.communicate()

    def _ask(self, x: np.ndarray, number: int):
        self._tell((x, number))
        return pickle.load(self.process.stdout)

    def _tell(self, what: object) -> None:
        pickle.dump(what, self.process.stdin)
        self.process.stdin.flush()


def timed(timer: Timer, realtime: bool) -> Timed:
    """Return a timer whose samples may run at real-time priority, with all threads that the process has by then."""

    def in_real_time(number: int) -> float:
        _schedule(os.SCHED_FIFO, PRIORITY)
        try:
            return timer.timeit(number)
        finally:
            _schedule(os.SCHED_OTHER, 0)

    return Timed(in_real_time if realtime else timer.timeit)


def _schedule(policy: int, priority: int) -> None:
    for thread in os.listdir("/proc/self/task"):
        os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def _serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the input ends: with the result for 0 calls, else with the seconds of the calls."""
    make, realtime = pickle.load(questions)
    call = make()
    while True:
        try:
            x, number = pickle.load(questions)
        except EOFError:
            return
        answer = timed(Timer(partial(call, x)), realtime).timeit(number) if number else call(x)
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    _serve(sys.stdin.buffer, own)
