"""Make every allocation of the C library, and every read and write, fail once.

``python faulty.py memory FOLDER``, ``python faulty.py files FOLDER [EVERY [JOB ...]]``. EVERY is 1 for every call on a
file; the jobs are those of tests/faulty_files.py. Load tests/c/faults.c before the C library. A call with a fault must
raise MemoryError or OSError, or return its usual result. Existing files in the folder must be unchanged, without new
files beside them and without open descriptors; and the next call must be right.
"""

import ctypes
import errno
import gc
import os
import sys
import tempfile
import threading
from pathlib import Path

import faulty_files
import numpy as np
from fuzz import hammer
from fuzz.held import opened

import mp_core as mp
from mp_core.autocast import AutoCastVariable
from mp_core.models.multi import max_similarity
from mp_core.ops.gradients.sums import sum_rows

SHORT = -1
ERRORS = errno.EIO, errno.ENOSPC, errno.EINTR, SHORT
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
    "updates": lambda: [*faulty_files.fitted(faulty_files.made()).values()],
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


def compared(found, expected, what):
    """Raise unless two arrays, or two lists of them, are equal."""
    lists = [x if isinstance(x, list) else [x] for x in (found, expected)]
    for x, y in zip(*lists, strict=True):
        np.testing.assert_array_equal(x, y, what)


def memory(_folder, every=1):
    """Let every allocation of every call, or every so-many-th, fail once; return how many did.

    The calls are those above and, by the table of public operations, those of fuzz/hammer.py.
    """
    watch_code()
    failed = 0
    for name, function in (CALLS | hammer.calls(0)).items():
        expected = in_new_thread(function)
        faults.fail_memory(ctypes.c_long(-1))
        in_new_thread(function)
        count = faults.calls_of_memory()
        for call in range(len(name) % every, count, every):
            faults.fail_memory(ctypes.c_long(call))
            found = in_new_thread(function)
            faults.fail_memory(ctypes.c_long(-1))
            if isinstance(found, MemoryError):
                failed += 1
            else:
                compared(found, expected, name)
            compared(in_new_thread(function), expected, f"{name}, after allocation {call}")
        print(f"{name}: {count} allocations", flush=True)
    return failed


# ---- files


def contents(folder):
    """Path -> content of all that is in a folder, None for what is no file."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def hit(job, call, error):
    """Let one call on files fail; return what the job raises, in words, and what it returns."""
    faults.fail_file(ctypes.c_long(call), error)
    try:
        return None, job.call()
    except OSError as raised:
        assert raised.filename is not None, f"{raised!r} names no file"
        return repr(raised), None
    finally:
        faults.fail_file(ctypes.c_long(-1), 0)


def same(found, expected, what):
    assert found.keys() == expected.keys(), what
    for name, x in expected.items():
        np.testing.assert_array_equal(found[name], x, f"{what}: {name}")


def held_files():
    """Return what is open, without what only waits to be collected: models that read their files as they need them."""
    gc.collect()
    return opened()


def streams_of(job, folder):
    """Return streams of the files that a job replaces, each with its content: what a model that is open has mapped."""
    owned = [folder / name for name in job.own]
    paths = [path for place in owned for path in (place, *place.rglob("*")) if path.is_file()]
    return [(open(path, "rb"), path.read_bytes()) for path in paths]


def check_streams(streams, told):
    """Close streams of files; raise if any was written into, instead of replaced."""
    for stream, content in streams:
        with stream:
            assert stream.read() == content, (told, stream.name)


def check_folder(job, before, after, told):
    """Raise if something lies in the folder that was not there, or is missing or changed that the job does not own."""
    assert (after.keys() ^ before.keys()) <= {*job.loose}, (told, after.keys() ^ before.keys())
    starts = tuple(f"{own}/" for own in job.own)
    changed = {path for path in after.keys() & before.keys() if after[path] != before[path]}
    others = {path for path in changed if path not in job.own and not path.startswith(starts)}
    assert not others, (told, others)


def every_call(what, job, folder, every, first):
    """Let every call on files that a job makes, or every so-many-th, fail once in each way; return how many raised."""
    job.prepare()
    expected = job.call(), job.read()
    job.prepare()
    before, descriptors, raised = contents(folder), held_files(), 0
    faults.fail_file(ctypes.c_long(-1), 0)
    job.call()
    count = faults.calls_of_files()
    for number, (call, error) in enumerate((call, error) for call in range(count) for error in ERRORS):
        if number % every != first % every:
            continue
        job.prepare()
        streams = streams_of(job, folder)
        found, returned = hit(job, call, error)
        told = f"{what}, call {call} of {count}, {errno.errorcode.get(error, 'short')}: {found!r}"
        check_streams(streams, told)
        assert error != errno.EINTR or found is None, told
        check_folder(job, before, contents(folder), told)
        assert held_files() == descriptors, (told, held_files() - descriptors)
        same(job.read(), expected[1], told)
        if found is not None:
            raised, returned = raised + 1, job.call()
            same(job.read(), expected[1], f"after {told}")
        same(returned, expected[0], told)
    print(f"{what}: {count} calls, {raised} raised", flush=True)
    return raised


def files(folder, every=1, *names):
    """Let every call on files fail once, while files are written and read; return how many raised."""
    (folder / "tmp").mkdir()
    tempfile.tempdir = str(folder / "tmp")  # what is temporary fails too
    known = faulty_files.jobs(folder)
    faults.watch_folder(str(folder).encode())
    return sum(every_call(name, known[name], folder, every, place) for place, name in enumerate(names or known))


if __name__ == "__main__":
    kind, where, *rest = sys.argv[1:]
    given = [int(word) if word.isdecimal() else word for word in rest]
    print("failed", {"memory": memory, "files": files}[kind](Path(os.path.realpath(where)), *given))
