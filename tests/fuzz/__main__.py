"""Fuzz: ``python -m fuzz [SUBJECT ...] [--seconds N] [--seed N] [--first N] [--cases N]`` in tests/, or ``make fuzz``.

Every subject runs in a separate process, so that a crash is a finding like any other. The process writes the number of
each case before the case begins; after a crash, another process continues with the next case. A case of more than 5
seconds of CPU time is a finding too. The seed and the number of a case determine it: ``python -m fuzz operations
--seed 7 --first 1234 --cases 1`` repeats one. The exit status is 1 if anything was found. Each fix adds a test.
"""

import argparse
import faulthandler
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

from fuzz.limits import counting

COMMAND = [sys.executable, "-m", "fuzz"]  # what starts the process of a subject
LONGEST = 5  # seconds of CPU time of a case
MEMORY = 4 << 30  # bytes of addresses that a process may take beyond those at its first case
STUCK = 600  # seconds beyond its time after which a process is ended, on a busy machine too


def parsed():
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT")
    parser.add_argument("--seconds", type=float, default=30, help="of each subject (default: 30)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="the most of each subject")
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)  # in a process of one subject
    return parser.parse_args()


# ---- the process of one subject


def slow(_signal, _frame):
    """End a case that takes too long."""
    raise TimeoutError(f"took more than {LONGEST} seconds of CPU time")


def limit_memory():
    """Let no case take more than MEMORY."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def run_cases(name, options):
    """Run cases until time is up; print what they raise, and lastly how many there were and how many failed."""
    from fuzz.subjects import SUBJECTS

    faulthandler.enable()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, slow)
    failed, number, end = 0, options.first, time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder, options.log.open("w") as log:
        subject = SUBJECTS[name]
        state = subject.make(Path(folder))
        limit_memory()
        while number < options.first + options.cases and (number == options.first or time.monotonic() < end):
            log.seek(0)
            log.write(f"{number}\n")
            log.flush()
            signal.setitimer(signal.ITIMER_PROF, LONGEST)
            try:
                subject.run(state, np.random.default_rng([options.seed, number]))
            except Exception:
                failed += 1
                print(f"{name}, seed {options.seed}, case {number}:\n{traceback.format_exc(limit=-8)}", flush=True)
            signal.setitimer(signal.ITIMER_PROF, 0)
            number += 1
    print(f"cases {number - options.first} failed {failed}", flush=True)


# ---- all subjects


def ended(command, seconds, environment):
    """Run a process for so long at most; return what it printed, and its exit status, or that time was up."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            return process.communicate(timeout=seconds)[0], process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0], f"its time, after {seconds:.0f} seconds"


def fuzz(name, options, log, environment):
    """Run a subject in processes; print what is found; return the numbers of cases and findings."""
    first, cases, found, end = options.first, 0, 0, time.monotonic() + options.seconds
    last = options.first + options.cases
    while first < last and (first == options.first or time.monotonic() < end):
        seconds = max(1.0, end - time.monotonic())
        given = ["--seconds", seconds, "--seed", options.seed, "--first", first, "--cases", last - first, "--log", log]
        command = [*COMMAND, name, *map(str, given)]
        log.write_text(f"{first}\n")
        printed, status = ended(command, seconds + STUCK, environment)
        *told, summary = printed.splitlines() or [""]
        print(*told, sep="\n", end="\n" if told else "", flush=True)
        words = summary.split()
        if status == 0 and words[::2] == ["cases", "failed"]:
            return cases + int(words[1]), found + int(words[3])
        number = int(log.read_text().split()[0])  # the case that ended the process
        print(f"{name}, seed {options.seed}, case {number}: the process ended with {status}", flush=True)
        cases, found, first = cases + number + 1 - first, found + 1, number + 1
    return cases, found


def main():
    """Fuzz each subject, and print a line about it; return the exit status."""
    options = parsed()
    if options.log:
        run_cases(options.subjects[0], options)
        return 0
    from fuzz.subjects import SUBJECTS

    unknown = set(options.subjects) - set(SUBJECTS)
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; expected some of {', '.join(SUBJECTS)}", file=sys.stderr)
        return 2
    all_found = 0
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = counting(Path(folder))
        for name in options.subjects or SUBJECTS:
            start = time.monotonic()
            cases, found = fuzz(name, options, Path(folder, "log"), environment)
            all_found += found
            print(f"{name:12} {cases:8} cases {time.monotonic() - start:7.1f} s {found:4} found", flush=True)
    return int(all_found > 0)


if __name__ == "__main__":
    sys.exit(main())
