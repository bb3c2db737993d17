"""Only one interpreter of a process can use NumPy, and so mp_core: others get an error, and the first one continues."""

import re
import sys

import numpy as np
import processes
import pytest

NEW = sys.version_info >= (3, 13)
MODULE = "_interpreters" if NEW else "_xxsubinterpreters"
pytest.importorskip(MODULE)
ONCE = "cannot load module more than once per process|can only be loaded into one interpreter"
LOCKED = "does not support loading in subinterpreters|Error importing numpy"  # with locks of their own, or without any

COMPUTE = """
import warnings
warnings.simplefilter("ignore")  # NumPy warns of every subinterpreter
import numpy as np, mp_core as mp
x = np.eye(3, dtype="float32")
assert (mp.matmul(x, x) == x).all()
"""


def told(before, shared_lock=True):
    """Compute in a subinterpreter, between two times that the main one does `before`; return what was raised there."""
    kind = f"{'legacy' if shared_lock else 'isolated'!r}" if NEW else f"isolated={not shared_lock}"
    code = f"""{before}
import {MODULE} as interpreters
made = interpreters.create({kind})
try:
    found = interpreters.run_string(made, {COMPUTE!r})  # from Python 3.13 on: what was raised there, or None
    print(found.formatted if found else "nothing")
except Exception as error:
    print(error)
{before}
"""
    done = processes.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_second_interpreter_is_refused_and_the_first_goes_on():
    assert re.search(f"{ONCE}|{LOCKED}", told(COMPUTE))  # by NumPy, or by mp_core where NumPy, 2.0, only warns


@pytest.mark.skipif(NEW, reason="the next test")
def test_a_subinterpreter_alone_computes():
    assert told("").strip() == "nothing"


@pytest.mark.skipif(not NEW, reason="the test before")
def test_a_subinterpreter_alone_is_refused():
    """Python loads the module of ml_dtypes in the main interpreter first, which cannot have NumPy beside the other."""
    assert re.search("(Import|Runtime)Error: ", told(""))  # NumPy, 2.1, says that its tracer is there already


@pytest.mark.skipif(sys.version_info < (3, 12), reason="subinterpreters share the lock")
@pytest.mark.skipif(
    sys.version_info[:2] == (3, 13) and np.__version__ < "2.4", reason="it ends CPython 3.13.0, without mp_core too"
)
def test_a_lock_of_its_own_is_refused():
    """NumPy 2.0 wants datetime, which CPython 3.12.1 does not have there."""
    assert re.search(f"{LOCKED}|datetime_CAPI", told("", shared_lock=False))
