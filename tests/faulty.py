"""Every allocation of the C library, and every read and write, fails once: ``python faulty.py memory|files FOLDER``.

Run with tests/c/faults.c loaded before the C library. A call that is hit raises MemoryError or OSError, or returns what
it always returns; what was in the folder is there as before, with nothing beside it; and the next call is right.
"""

import ctypes
import errno
import functools
import os
import sys
import threading
from pathlib import Path

import numpy as np

import mp_core as mp
from mp_core import layers
from mp_core.autocast import AutoCastVariable
from mp_core.checkpoint import convert, open_tensors, save_tensors
from mp_core.gradients.sums import sum_rows
from mp_core.interop.keras import load_keras
from mp_core.models.multi import max_similarity

SHORT = -1
faults = ctypes.CDLL(None)
faults.calls_of_memory.restype = faults.calls_of_files.restype = ctypes.c_long
rng = np.random.default_rng(0)


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


# ---- memory

X, W, TALL = normal(9, 130), normal(130, 70), normal(200, 130)
CODES = mp.quantize(W, axis=1)
PACKED, PACKED_CODES = mp.pack(W), mp.pack(CODES)
PACKED_INT4 = mp.pack(mp.quantize(W[:128], axis=1, group_size=32, dtype="int4", symmetric=False))
Q = normal(2, 33, 2, 16)
VARIABLE = AutoCastVariable(W, name="w")


def recorded():
    return mp.compile(lambda x: mp.softmax(mp.matmul(mp.relu(x), W)), X)(TALL[:9])


def trained():
    step = mp.value_and_grad(lambda x: mp.sum(mp.tanh(mp.matmul(x, VARIABLE.value))), [VARIABLE])
    return step(X)[1][0]


CALLS = {
    "matmul": lambda: mp.matmul(TALL, W),
    "transposed": lambda: mp.matmul(X, np.ascontiguousarray(W.T).T),
    "packed": lambda: mp.matmul(TALL, PACKED, bias=W[0], activation="gelu"),
    "bfloat16": lambda: mp.matmul(mp.cast(TALL, "bfloat16"), mp.cast(W, "bfloat16")),
    "codes": lambda: mp.matmul(mp.cast(TALL, "float16"), PACKED_CODES),
    "dynamic": lambda: mp.dynamic_matmul(TALL, PACKED_CODES),
    "attention": lambda: mp.dot_product_attention(Q, Q, Q),
    "softmax": lambda: mp.softmax(TALL, axis=0),
    "layer norm": lambda: mp.layer_norm(mp.cast(TALL, "bfloat16")),
    "sum": lambda: mp.sum(TALL, 0),
    "quantize": lambda: mp.quantize(TALL, axis=1, symmetric=False).values,
    "groups": lambda: mp.quantize(TALL, axis=0, group_size=13, dtype="int8").values,
    "int4": lambda: mp.matmul(TALL[:, :128], PACKED_INT4),
    "sums of rows": lambda: sum_rows(mp.cast(TALL, "bfloat16")),
    "similarity": lambda: max_similarity([X, TALL], [X[:5], TALL]),
    "plan": recorded,
    "gradients": trained,
}


def watch_code():
    """Watch the code of all compiled modules of mp_core."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split()
        if "x" in words[1] and "mp_core" in words[-1] and ".so" in words[-1]:
            faults.watch_code(*(ctypes.c_void_p(int(end, 16)) for end in words[0].split("-")))


def in_new_thread(function):
    """Return what a call returns, or raises, in a thread that has no scratch yet."""
    outcome = []

    def run():
        with mp.config.num_threads(1):
            try:
                outcome.append(function())
            except MemoryError as error:
                outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outcome[0]


def memory(_folder):
    """Let every allocation of every call fail once; return how many did."""
    watch_code()
    failed = 0
    for name, function in CALLS.items():
        expected = in_new_thread(function)
        faults.fail_memory(ctypes.c_long(-1))
        in_new_thread(function)
        count = faults.calls_of_memory()
        for call in range(count):
            faults.fail_memory(ctypes.c_long(call))
            found = in_new_thread(function)
            faults.fail_memory(ctypes.c_long(-1))
            if isinstance(found, MemoryError):
                failed += 1
            else:
                np.testing.assert_array_equal(found, expected, name)
            np.testing.assert_array_equal(in_new_thread(function), expected, f"{name}, after allocation {call}")
        print(f"{name}: {count} allocations", flush=True)
    return failed


# ---- files


def model():
    """Return a model and one batch."""
    made = mp.Sequential([mp.Input((4,)), layers.Dense(3, activation="relu"), layers.Dense(2)])
    made.compile(optimizer="adam", loss="mse")
    return made


MODEL = model()
TENSORS = {"w": normal(70, 33), "b": normal(33)}


def read_all(path):
    tensors = open_tensors(path)
    return {n: np.array(mp.dequantize(x) if isinstance(x, mp.QuantizedArray) else x) for n, x in tensors.items()}


def numbers(path):
    return dict(enumerate(load_keras(path).get_weights()))


def loaded(path):
    other = model()
    other.load_weights(path)
    return dict(enumerate(other.get_weights()))


WRITERS = {  # name -> what writes a path, what reads it
    "a.safetensors": (lambda path: save_tensors(path, TENSORS, policy="float32"), read_all),
    "converted": (lambda path: convert(path.parent / "source", path, "int8", force=True), read_all),
    "model.keras": (lambda path: MODEL.save(path), numbers),
    "m.weights.h5": (lambda path: MODEL.save_weights(path, overwrite=True), loaded),
}


def contents(folder):
    """Path -> content of all that is in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def hit(function, call, error):
    """Let one call on files fail; return what the function raises, or None."""
    faults.fail_file(ctypes.c_long(call), error)
    try:
        function()
    except OSError as raised:
        return raised
    finally:
        faults.fail_file(ctypes.c_long(-1), 0)
    return None


def same(found, expected, what):
    assert found.keys() == expected.keys(), what
    for name, x in expected.items():
        np.testing.assert_array_equal(found[name], x, f"{what}: {name}")


def every_call(function, check, what, folder, own):
    """Let every call on files that a function makes fail once in each way; return how many raised."""
    before, raised = contents(folder), 0
    faults.fail_file(ctypes.c_long(-1), 0)
    function()
    count = faults.calls_of_files()
    for error in (errno.EIO, errno.ENOSPC, errno.EINTR, SHORT):
        for call in range(count):
            found = hit(function, call, error)
            raised += found is not None
            told = f"{what}, call {call} of {count}, {errno.errorcode.get(error, 'short')}: {found!r}"
            assert error != errno.EINTR or found is None, told
            after = contents(folder)
            assert after.keys() == before.keys(), (told, after.keys() ^ before.keys())
            assert [file for file in before if after[file] != before[file] and file != own] == [], told
            check(told)
    print(f"{what}: {count} calls", flush=True)
    return raised


def files(folder):
    """Let every call on files fail once, while files are written and read; return how many raised."""
    save_tensors(folder / "source", TENSORS, policy="float32")
    raised = 0
    for name, (write, read) in WRITERS.items():
        path = folder / name
        write(path)
        expected = read(path)

        def check(told, path=path, read=read, expected=expected):
            """The file is that of before, or a whole new one whose folder was not synchronized."""
            same(read(path), expected, told)

        faults.watch_folder(str(folder).encode())
        raised += every_call(functools.partial(write, path), check, f"writing {name}", folder, name)
        raised += every_call(functools.partial(read, path), lambda told: None, f"reading {name}", folder, name)
        faults.watch_folder(b"")
        check(name)
    return raised


if __name__ == "__main__":
    kind, where = sys.argv[1:]
    print("failed", {"memory": memory, "files": files}[kind](Path(os.path.realpath(where))))
