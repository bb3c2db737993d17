"""Signals while C computes: their handlers run, and an exception of a handler ends the operation early."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import processes
import pytest

import mp_core as mp
from mp_core.autocast import AutoCastVariable
from mp_core.config import num_threads

pytestmark = [
    pytest.mark.slow,  # waits for timers
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer of that kind"),
]
AFTER = 0.12  # seconds until the signal: each of CALLS takes several times as long on any CPU

rng = np.random.default_rng(0)
X, SMALL = rng.standard_normal((4096, 4096), dtype=np.float32), rng.standard_normal((200, 300), dtype=np.float32)
PACKED = mp.pack(X)
TALL = X[:3072]
MANY = np.broadcast_to(X, (8, *X.shape))  # integers are multiplied faster
EXPECTED = mp.matmul(SMALL, SMALL.T)


class Alarm(Exception):
    """What the handler raises."""


def raising(*_):
    raise Alarm


def with_alarm(handler, function):
    """Call a function in the main thread, and a signal handler meanwhile."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, AFTER)
    try:
        return function()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def gradients():
    w = AutoCastVariable(X, name="w")
    step = mp.value_and_grad(lambda x: mp.sum(mp.tanh(mp.matmul(x, w.value))), [w])
    return lambda: step(X)


def product(a, b):
    out = np.full((a.shape[0], b.shape[1]), np.nan, np.float32)

    def act():
        try:
            mp.matmul(a, b, out=out)
        except Alarm:
            assert np.isnan(out).any(), "the product ended as if there had been no signal"
            raise

    return act


def attention():
    q = rng.standard_normal((1, 4096, 16, 64), dtype=np.float32)
    return lambda: mp.dot_product_attention(q, q, q)


def integers():
    codes = mp.pack(mp.quantize(X, axis=1))
    return lambda: mp.dynamic_matmul(MANY, codes)


def replay():
    plan = mp.compile(lambda x: mp.matmul(mp.relu(x), PACKED), X)
    return lambda: plan(X)


CALLS = {
    "rows": lambda: product(X, X),
    "packed": lambda: product(X, PACKED),
    "transposed": lambda: product(X, X.T),
    "int8": integers,
    "attention": attention,
    "plan": replay,
    "gradients": gradients,
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("call", CALLS)
def test_an_exception_of_a_signal_handler_ends_an_operation(call, threads):
    with num_threads(threads):
        act = CALLS[call]()
        with pytest.raises(Alarm):
            with_alarm(raising, act)
        np.testing.assert_array_equal(mp.matmul(SMALL, SMALL.T), EXPECTED)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_handler_may_compute_and_the_operation_goes_on(threads):
    """The scratch of the task in whose midst it is called stays as it was: rows of bfloat16 are copied there."""
    a, b = mp.cast(X[:2048], "bfloat16").T, mp.pack(X[:2048])
    found = []

    def handler(*_):
        found.append(mp.matmul(SMALL, SMALL.T))
        signal.setitimer(signal.ITIMER_REAL, AFTER)

    with num_threads(threads):
        expected = mp.matmul(a, b)
        results = [with_alarm(handler, lambda: mp.matmul(a, b)) for _ in range(2)]
    assert found
    for result in results:
        np.testing.assert_array_equal(result, expected)
    for result in found:
        np.testing.assert_array_equal(result, EXPECTED)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_child_of_a_fork_in_a_handler_is_told_and_its_parent_goes_on(threads):
    children = []

    def handler(*_):
        children.append(os.fork())

    with num_threads(threads):
        expected = mp.matmul(TALL, PACKED)
        try:
            found = with_alarm(handler, lambda: mp.matmul(TALL, PACKED))
        except RuntimeError as error:
            told = children == [0] and "has forked" in str(error)
            os._exit(0 if told and np.array_equal(mp.matmul(SMALL, SMALL.T), EXPECTED) else 1)
        except BaseException:
            os._exit(2)
        if children == [0]:
            os._exit(3)
    assert os.waitpid(children[0], 0)[1] == 0
    np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the C library by its name on Linux")
def test_a_forked_child_does_not_wait_for_a_task_that_a_helper_of_its_parent_runs():
    """The fork comes when the caller has no task left: it waits for the helper, and asks for signals meanwhile."""
    library = ctypes.CDLL(find_spec("mp_core.core.libmp_core").origin)
    caller, began, asked, children = threading.get_ident(), threading.Event(), threading.Event(), []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t)
    def run(_context, _index):
        if threading.get_ident() == caller:
            began.wait(10)
        else:
            began.set()
            asked.wait(10)

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def ask(_context):
        if not children:
            children.append(os.fork())
        asked.set()
        return children == [0]

    listener = ctypes.create_string_buffer(64)  # an mp_listener is smaller
    library.mp_listen(listener, ask, None)
    library.mp_parallel_for(2, ctypes.c_ssize_t(2), run, None)
    library.mp_end_listening(listener)
    if children[0] == 0:
        os._exit(0)
    for _ in range(100):
        if os.waitpid(children[0], os.WNOHANG)[0]:
            return
        time.sleep(0.1)
    os.kill(children[0], signal.SIGKILL)
    os.waitpid(children[0], 0)
    pytest.fail("the child does not end")


def test_other_threads_compute_to_the_end():
    """Python runs handlers in the main thread only."""
    results = []
    worker = threading.Thread(target=lambda: results.append(mp.matmul(TALL, PACKED)))
    called = []
    with num_threads(1):
        expected = mp.matmul(TALL, PACKED)

    def wait():
        worker.start()
        worker.join()

    with_alarm(lambda *_: called.append(threading.current_thread()), wait)
    assert called == [threading.main_thread()]
    np.testing.assert_array_equal(results[0], expected)


CHILD = """
import sys
from pathlib import Path

import numpy as np
import tiny_bert

import mp_core as mp
from mp_core import layers
from mp_core.checkpoint import convert, open_tensors, save_tensors
from mp_core.models import BertEncoder

folder, texts = Path(sys.argv[2]), ["a b c", "d", "h g f e"]
x = np.random.default_rng(0).standard_normal((64, 13), dtype=np.float32)
save_tensors(folder / "source", {f"t{i}": x for i in range(300)}, policy="float32")
encoder = BertEncoder.from_folder(tiny_bert.write(folder / "model"))
model = mp.Sequential([mp.Input((13,)), layers.Dense(4, activation="relu"), layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")

def converted():
    convert(folder / "source", folder / "out", "int8", force=True)
    return [np.array(mp.dequantize(open_tensors(folder / "out")["t299"])), sorted(p.name for p in folder.iterdir())]

act, again = {
    "convert": (converted, converted),
    "calibrate": (lambda: mp.calibrate(encoder, texts * 2000, "int8"), lambda: encoder.encode(texts)),
    "encode": (lambda: encoder.encode(texts * 20000), lambda: encoder.encode(texts)),
    "fit": (lambda: model.fit(x, x[:, :1], epochs=10**6, verbose=0), lambda: encoder.encode(texts)),
}[sys.argv[1]]
expected = again()
try:
    print("ready", flush=True)  # an interrupt that comes after this word is caught below
    while True:
        act()
except KeyboardInterrupt:
    found = again()
    print("right" if all(np.array_equal(x, y) for x, y in zip(found, expected, strict=True)) else "wrong")
"""


@pytest.mark.parametrize("what", ["convert", "calibrate", "encode", "fit"])
def test_ctrl_c_ends_what_takes_long_and_the_next_call_is_right(what, tmp_path):
    command = [sys.executable, "-c", CHILD, what, str(tmp_path)]
    with processes.Process(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        time.sleep(AFTER)
        child.send_signal(signal.SIGINT)
        assert child.stdout.read() == "right\n"
        assert child.wait() == 0
