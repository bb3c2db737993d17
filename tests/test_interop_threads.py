"""Other programs' threads and processes: threadpoolctl, fork, spawn, joblib."""

import multiprocessing
import sys
from pathlib import Path

import joblib
import numpy as np
import processes
import pytest
from oracles import assert_same_bits
from threadpoolctl import threadpool_info, threadpool_limits

import mp_core as mp
from mp_core import config
from mp_core.core import cpu
from mp_core.interop.threads import register

register()


@pytest.fixture
def default():
    """Whatever a test sets for the process ends with it."""
    before = config.get_num_threads()
    yield before
    config.set_num_threads(before)
    assert config.get_num_threads() == before


def seen(**options):
    (found,) = [library for library in threadpool_info(**options) if library["user_api"] == "mp_core"]
    return found


def test_threadpool_info_lists_mp_core_once_however_often_it_is_registered():
    register()
    found = seen()
    assert found["num_threads"] == config.get_num_threads()
    assert found["version"] == mp.__version__ and found["internal_api"] == "mp_core"
    assert Path(found["filepath"]).name == "libmp_core.so"


def test_a_limit_is_of_the_calling_thread():
    assert seen(debugging_info=True)["thread_limit_scope"] == "current_thread"


def test_a_limit_holds_within_its_block_and_changes_no_bit(rng, default):
    a, b = (rng.standard_normal((300, 300), np.float32) for _ in range(2))
    with config.num_threads(3):
        expected = mp.matmul(a, b)
    with threadpool_limits(1):
        assert cpu.threads_and_reason() == (1, "threadpool_limits()")
        assert_same_bits(mp.matmul(a, b), expected)
        with threadpool_limits(3):
            assert_same_bits(mp.matmul(a, b), expected)
        assert config.get_num_threads() == 1
    assert config.get_num_threads() == default


def test_what_a_limit_leaves_behind_is_nothing(default):
    """The number before it is not fixed: it follows the process again."""
    with threadpool_limits(default + 1):
        assert config.get_num_threads() == default + 1
    config.set_num_threads(default + 2)
    assert config.get_num_threads() == default + 2
    with threadpool_limits(1):
        config.set_num_threads(default + 3)
        assert config.get_num_threads() == 1


def test_the_innermost_of_limits_and_scopes_decides():
    outer = config.get_num_threads()
    with config.num_threads(5):
        with threadpool_limits(2):
            assert config.get_num_threads() == 2
            with config.num_threads(7):
                assert config.get_num_threads() == 7
            assert config.get_num_threads() == 2
        assert config.get_num_threads() == 5
        threadpool_limits(3)  # ends with the scope
        assert config.get_num_threads() == 3
    assert config.get_num_threads() == outer


@pytest.mark.parametrize("limits", [{"mp_core": 6}, {"libmp_core": 6}, [{"prefix": "libmp_core", "num_threads": 6}]])
def test_a_limit_may_name_mp_core_alone(limits):
    others = [library["num_threads"] for library in threadpool_info() if library["user_api"] != "mp_core"]
    with threadpool_limits(limits):
        assert config.get_num_threads() == 6
        assert others == [library["num_threads"] for library in threadpool_info() if library["user_api"] != "mp_core"]


def test_a_limit_of_other_libraries_is_none_of_mp_core(default):
    with threadpool_limits(default + 1, user_api="blas"):
        assert config.get_num_threads() == default


@pytest.mark.parametrize("bad", [0, -1, True, "2", 1.5])
def test_a_bad_limit_is_refused(bad):
    before = config.get_num_threads()
    with pytest.raises(ValueError, match="`count` must be an integer from 1 to 1024"):
        threadpool_limits({"mp_core": bad})
    assert config.get_num_threads() == before


def test_a_limit_may_be_larger_than_any_number_of_threads():
    with threadpool_limits({"mp_core": 10**6}):
        assert config.get_num_threads() == 1024


# ---- processes

FORKS = """
import os, signal, sys, threading, warnings
import numpy as np
import mp_core as mp

warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: a fork beside threads
rng = np.random.default_rng(28)
x, y = (rng.standard_normal((300, 300), np.float32) for _ in range(2))
layer = mp.layers.Sequential([mp.layers.Dense(300, activation="gelu"), mp.layers.Dense(7)])
layer(x)
plan = mp.compile(layer, x)

def results():
    with mp.config.num_threads(3):
        return [mp.matmul(x, y).tobytes(), mp.softmax(x).tobytes(), layer(x).tobytes(), plan(x).tobytes()]

expected, ended = results(), threading.Event()

def call():
    while not ended.is_set():
        if results() != expected:
            os._exit(3)

callers = [threading.Thread(target=call) for _ in range(int(sys.argv[2]))]
for caller in callers:
    caller.start()
for number in range(int(sys.argv[1])):
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends a child that hangs
        os._exit(results() != expected)
    assert os.waitpid(child, 0)[1] == 0, number
ended.set()
for caller in callers:
    caller.join()
"""


@pytest.mark.parametrize(("forks", "callers"), [(100, 0), (50, 2)], ids=["after calls", "during calls"])
def test_forks_in_a_row_have_the_right_bits_and_do_not_hang(forks, callers):
    run = processes.run([sys.executable, "-c", FORKS, str(forks), str(callers)], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


AWAKE = """
import os, threading, time
import numpy as np
import mp_core as mp
from mp_core.core.replay import awake

x = np.ones((300, 300), np.float32)
inside, ended = threading.Event(), threading.Event()

def stay():
    with awake():
        inside.set()
        ended.wait()

thread = threading.Thread(target=stay)
thread.start()
inside.wait()
child = os.fork()
if not child:
    spent = 0
    with mp.config.num_threads(2):
        for _ in range(200):
            mp.matmul(x, x)
            before = time.process_time()
            time.sleep(0.002)
            spent += time.process_time() - before
    os._exit(min(255, int(spent * 1000)))  # milliseconds: 10, or 200 if the helper waits awake
ended.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_does_not_wait_awake_for_a_call_of_its_parent():
    run = processes.run([sys.executable, "-W", "ignore", "-c", AWAKE], capture_output=True, text=True)
    assert run.stderr == "" and int(run.stdout) < 100


BUILDING = """
import os, signal, threading
import numpy as np
import mp_core as mp

class Slow(mp.layers.Dense):
    def add_weight(self, *args, **kwargs):
        began.set()
        ended.wait()
        return super().add_weight(*args, **kwargs)

x = np.ones((3, 5), np.float32)
began, ended = threading.Event(), threading.Event()
slow = mp.layers.Sequential([Slow(4)])
thread = threading.Thread(target=slow, args=(x,))
thread.start()
began.wait()
child = os.fork()
if not child:
    signal.alarm(20)  # ends a child that hangs
    shape = mp.layers.Dense(2)(x).shape
    try:
        slow(x)
    except RuntimeError as error:
        os._exit(shape != (3, 2) or "when this process was forked" not in str(error))
    os._exit(2)
ended.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), slow(x).shape)
"""


def test_a_child_builds_layers_although_a_thread_of_its_parent_was_building_one():
    run = processes.run([sys.executable, "-W", "ignore", "-c", BUILDING], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("0 (3, 4)\n", "")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_multiprocessing_pools_compute_the_same_bits(method, rng):
    x = rng.standard_normal((4, 200, 200), np.float32)
    with config.num_threads(2):
        expected = [mp.matmul(a, a) for a in x]
    with multiprocessing.get_context(method).Pool(2) as pool:
        received = pool.map_async(square, x).get(120)
    for result, right in zip(received, expected, strict=True):
        assert_same_bits(result, right)


def square(x):
    with config.num_threads(2):
        return mp.matmul(x, x)


@pytest.mark.parametrize("inner", [1, 2])
def test_the_workers_of_loky_have_as_many_threads_as_joblib_gives_them(inner, rng, monkeypatch):
    monkeypatch.delenv("MP_CORE_NUM_THREADS", raising=False)
    x = rng.standard_normal((4, 200, 200), np.float32)
    expected = [square(a) for a in x]
    with joblib.parallel_config("loky", n_jobs=2, inner_max_num_threads=inner):
        received = joblib.Parallel()(joblib.delayed(counted_square)(a) for a in x)
    assert [count for count, _ in received] == [(inner, "OMP_NUM_THREADS")] * 4
    for (_, result), right in zip(received, expected, strict=True):
        assert_same_bits(result, right)


def counted_square(x):
    return cpu.threads_and_reason(), mp.matmul(x, x)
