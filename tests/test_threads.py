"""The number of threads, and that no result depends on it: contexts, environment, fork, concurrent callers."""

import asyncio
import ctypes
import multiprocessing
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import processes
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import config
from mp_core.core.replay import awake


@pytest.fixture
def operands(rng):
    return tuple(rng.standard_normal((300, 300)).astype(np.float32) for _ in range(2))


def test_a_scope_ends_and_nests():
    outer = config.get_num_threads()
    with config.num_threads(3):
        assert config.get_num_threads() == 3
        with config.num_threads(1):
            assert config.get_num_threads() == 1
        assert config.get_num_threads() == 3
    assert config.get_num_threads() == outer


def test_a_scope_ends_on_an_error():
    outer = config.get_num_threads()
    with pytest.raises(KeyError), config.num_threads(7):
        raise KeyError
    assert config.get_num_threads() == outer


def test_a_scope_belongs_to_its_thread_and_task():
    seen, outer = [], config.get_num_threads()
    with config.num_threads(5):
        thread = threading.Thread(target=lambda: seen.append(config.get_num_threads()))
        thread.start()
        thread.join()
    assert seen == [5 if getattr(sys.flags, "thread_inherit_context", False) else outer]

    async def scoped(count):
        with config.num_threads(count):
            await asyncio.sleep(0.01)
            return config.get_num_threads()

    async def both():
        return await asyncio.gather(scoped(2), scoped(4))

    assert asyncio.run(both()) == [2, 4]


def test_helpers_round_as_their_caller_does(rng):
    """Whoever had them started: the mode is the thread's own, and theirs follows it."""
    fesetround, upward = ctypes.CDLL("libm.so.6").fesetround, 0x800
    x = rng.standard_normal((2048, 512), np.float32)
    expected = mp.softmax(x)
    if fesetround(upward):
        pytest.skip("another architecture's number for this rounding")
    try:
        with config.num_threads(1):
            alone = mp.softmax(x)
        with config.num_threads(7):
            together = [mp.softmax(x) for _ in range(5)]
    finally:
        assert fesetround(0) == 0
    for result in together:
        assert_same_bits(result, alone)
    assert np.any(alone != expected)
    with config.num_threads(7):
        assert_same_bits(mp.softmax(x), expected)


def test_idle_helpers_sleep(operands):
    with config.num_threads(3):
        expected = mp.matmul(*operands)
    assert spent_in_sleep() < 0.1
    with awake(), config.num_threads(3):
        assert_same_bits(mp.matmul(*operands), expected)
        assert spent_in_sleep() < 0.1  # they wait awake, but not for long
    with pytest.raises(KeyError), awake(), awake():
        raise KeyError


WAKES = """
import os, time
import numpy as np
import mp_core as mp

def sleeps():
    others = (t for t in os.listdir("/proc/self/task") if int(t) != os.getpid())
    lines = (line for t in others for line in open(f"/proc/self/task/{t}/status") if line.startswith("voluntary"))
    return sum(int(line.split()[1]) for line in lines)

def wakes(width):
    x = np.ones((8, width), np.float32)
    plan = mp.compile(mp.layers.Sequential([mp.layers.Dense(width), mp.layers.LayerNormalization()]), x)
    plan(x)
    time.sleep(0.1)
    before = sleeps()
    for _ in range(5):
        plan(x)
        time.sleep(0.02)
    return sleeps() - before

mp.config.set_num_threads(2)
print(wakes(16), wakes(2048))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system counts how often a thread slept")
def test_a_plan_of_small_operations_wakes_no_helper():
    run = processes.run([sys.executable, "-c", WAKES], capture_output=True, text=True, check=True)
    small, large = map(int, run.stdout.split())
    assert small == 0
    assert large > 0


def spent_in_sleep():
    """Return the CPU time in seconds that this process spends while its caller sleeps, 0.2 s long."""
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.2)
    return time.process_time() - before


@pytest.mark.parametrize("bad", [0, -1, 1025, "2", None, 1.5, np.float32(2.5)])
def test_a_bad_count_is_refused(bad):
    with pytest.raises(ValueError, match="`count` must be an integer from 1 to 1024"):
        config.set_num_threads(bad)
    with pytest.raises(ValueError, match="`count` must be an integer from 1 to 1024"), config.num_threads(bad):
        pass


def reported(**environment):
    clean = {key: value for key, value in os.environ.items() if key not in ("MP_CORE_NUM_THREADS", "OMP_NUM_THREADS")}
    code = "from mp_core.core.cpu import threads_and_reason as t; print(*t(), sep='|')"
    return processes.run([sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MP_CORE_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, "3|MP_CORE_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "5"}, "5|OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "4,2"}, "4|OMP_NUM_THREADS"),
        ({"MP_CORE_NUM_THREADS": "", "OMP_NUM_THREADS": "5000"}, "1024|OMP_NUM_THREADS"),
    ],
)
def test_the_environment_decides(environment, expected):
    assert reported(**environment).stdout.strip() == expected


@pytest.mark.parametrize("text", ["many", "0", "9" * 5000])  # Python reads no integer as long
def test_a_bad_environment_variable_is_refused(text):
    run = reported(MP_CORE_NUM_THREADS=text)
    assert (
        run.returncode and f"`MP_CORE_NUM_THREADS` must be an integer from 1 to 1024; received '{text}'" in run.stderr
    )


def test_a_number_without_end_is_no_count():
    assert "OMP" not in reported(OMP_NUM_THREADS="9" * 5000).stdout


def test_the_default_is_what_this_process_may_use():
    count, reason = reported().stdout.strip().split("|")
    assert 1 <= int(count) <= len(os.sched_getaffinity(0)) and reason in ("CPU affinity", "cgroup CPU quota")


def test_the_default_follows_the_affinity():
    """Of the thread that asks: a pool of workers that each have a CPU of their own starts no others."""
    code = """if True:
        import os
        from mp_core.config import get_num_threads
        cpus = sorted(os.sched_getaffinity(0))
        before = get_num_threads()
        os.sched_setaffinity(0, cpus[:1])
        alone = get_num_threads()
        os.sched_setaffinity(0, cpus)
        print(alone, get_num_threads() == before)
    """
    clean = {key: value for key, value in os.environ.items() if key not in ("MP_CORE_NUM_THREADS", "OMP_NUM_THREADS")}
    run = processes.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True)
    assert run.stdout.split() == ["1", "True"], run.stderr


def test_concurrent_callers_get_the_same_bits(operands):
    a, b = operands
    packed, q = mp.pack(b, dtype="bfloat16"), mp.cast(a, "bfloat16")
    work = {
        "float32": lambda: mp.matmul(a, b),
        "packed": lambda: mp.matmul(q, packed),
        "softmax": lambda: mp.softmax(a),
        "quantize": lambda: mp.quantize(a, axis=0).values,
        "float16": lambda: mp.matmul(mp.cast(a, "float16"), mp.cast(b, "float16")),
    }
    expected = {name: run() for name, run in work.items()}
    names = list(work) * 16
    with ThreadPoolExecutor(8) as pool:
        for name, result in zip(names, pool.map(lambda name: work[name](), names), strict=True):
            assert_same_bits(result, expected[name])


def _product_in_child(operands, connection):
    with config.num_threads(4):
        connection.send(mp.matmul(*operands))
    connection.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12+: fork with threads
def test_a_forked_child_computes_instead_of_hanging(operands):
    """fork() copies the caller's thread only: the child makes helpers of its own."""
    with config.num_threads(4):
        expected = mp.matmul(*operands)  # the parent has helpers now
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_product_in_child, args=(operands, sender))
    child.start()
    assert receiver.poll(60), "the child hangs"
    assert_same_bits(receiver.recv(), expected)
    child.join(60)
    assert child.exitcode == 0


def test_show_config_reports_what_is_in_use(capsys):
    report = config.show_config(as_dict=True)
    assert report["isa"] == config.isa() and report["threads"] == config.get_num_threads()
    assert all(report["isa"] in kernel for kernel in report["kernels"].values())
    assert config.show_config() is None
    assert "thread_reason  " in capsys.readouterr().out
