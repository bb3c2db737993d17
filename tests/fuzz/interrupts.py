"""Interrupts at every line: ``python -m fuzz.interrupts [ACTION ...] [--every N]``, in tests/.

A signal arrives when a line is reached for the first time, for each line that an action executes in mp_core and, except
in the server, in all code that it calls. The handler raises, at once or as soon as a file is complete. Files must be as
before, or as after the whole action. When no traceback is left, no extra file, descriptor or thread may remain; and the
next action must be right.
"""

import argparse
import asyncio
import contextlib
import gc
import io
import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tiny_bert
from interrupting import interrupt_everywhere

import mp_core as mp
from fuzz.activities import normal
from fuzz.held import opened
from mp_core import cli, layers
from mp_core.checkpoint import convert, open_tensors, save_tensors
from mp_core.cli.common import DONE
from mp_core.interop.keras import load_keras
from mp_core.models import BertEncoder

__all__ = ["Action", "actions", "everywhere"]

TEXTS = ["a b c", "d", "h g f e"]
PAIRS = [("a b", "c d"), ("e", "f g"), ("h", "a")]


class Action(NamedTuple):
    """What is done with a new `prepare()`, and what `check` says of that thing afterwards: it raises if it is wrong.

    Lines count in files whose paths begin with `within`.
    """

    prepare: Callable[[], Any]
    act: Callable[[Any], object]
    check: Callable[[Any], object]
    within: str = ""


def same(found, expected):
    """Raise unless two lists of arrays are equal."""
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def written(folder, name, write, read):
    """Return the action that replaces a file: it is there before and after, and nothing lies beside it."""
    path = folder / name
    write(path)
    whole = read(path)

    def names():
        return sorted(each.name for each in folder.iterdir())

    def check(before):
        assert names() == before
        same(read(path), whole)
        write(path)
        same(read(path), whole)

    return Action(names, lambda _: write(path), check)


def asked(path, body):
    """Return a coroutine function that asks the server at a Unix socket, and lets a signal end it."""
    request = f"POST /embed HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}"

    async def client(answers):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(request.encode())
        answers.append(await reader.read())
        writer.close()
        signal.raise_signal(signal.SIGTERM)

    return client


def serving(folder, path):
    """Return the action that starts `mp-core serve`, asks it and ends it, all in this thread.

    The model is opened before: that is an action of its own. Only lines of mp_core are interrupted: an exception in
    those of logging and asyncio may leave their locks taken and their tasks forgotten.
    """
    from mp_core.serving.models import open_models  # of the extra "serve"

    command = cli._parser().parse_args(["serve", str(folder), "--unix-socket", str(path), "--quiet"])
    client, models = asked(path, json.dumps({"inputs": TEXTS})), open_models({"model": folder})

    def serve(answers):
        def started():
            tasks.append(asyncio.get_running_loop().create_task(client(answers)))

        tasks = []
        with (
            mock.patch("mp_core.cli.serve._Place.announcer", lambda *_: started),
            mock.patch("mp_core.serving.models.open_models", lambda *_: models),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            code = command.run(command)
        assert code in (DONE, 128 + signal.SIGINT, 128 + signal.SIGTERM), code  # of a second signal, if both were heard
        return [json.loads(answer.partition(b"\r\n\r\n")[2]) for answer in answers]

    whole = serve([])
    assert len(whole) == 1

    def check(answers):
        assert serve(answers[:0]) == whole

    return Action(list, serve, check, str(Path(mp.__file__).parent))


def actions(folder):
    """Return name -> action, in a folder."""
    rng = np.random.default_rng(0)
    x, w = normal(rng, 6, 13), normal(rng, 13, 7)
    save_tensors(folder / "source", {"w": w, "x": x}, policy="float32")
    codes = mp.quantize(w, axis=0)
    model_folder = tiny_bert.write(folder / "model")
    encoder = BertEncoder.from_folder(model_folder)
    embedded = [encoder.encode(TEXTS)]

    def made():
        model = mp.Sequential([mp.Input((13,)), layers.Dense(4, activation="relu"), layers.Dense(1)])
        model.compile(optimizer="adam", loss="mse")
        return model

    weights, kept = made().get_weights(), made()
    kept.set_weights(weights)

    def new():
        model = made()
        model.set_weights(weights)
        return model

    def fit(model):
        model.fit(x, x[:, :1], epochs=2, batch_size=3, shuffle=False, verbose=0)
        return model.get_weights()

    def tune(encoder):
        encoder.fit(PAIRS, batch_size=2, shuffle=False, seed=0, verbose=0)
        return [encoder.encode(TEXTS)]

    def calibrate(encoder):
        return [mp.calibrate(encoder, TEXTS, "int8").encode(TEXTS)]

    def loaded():
        return BertEncoder.from_folder(model_folder)

    fitted, tuned, calibrated = fit(new()), tune(loaded()), calibrate(encoder)

    def tensors(path):
        return [np.array(mp.dequantize(x)) for x in open_tensors(path).values()]

    def converted(path):
        convert(folder / "source", path, "int8", force=True)

    def after_fit(model):
        model.predict(x, verbose=0)
        same(fit(new()), fitted)

    def after_tune(encoder):
        assert np.isfinite(encoder.encode(TEXTS)).all()
        same(tune(loaded()), tuned)

    def after_calibrate(_):
        same([encoder.encode(TEXTS)], embedded)
        same(calibrate(encoder), calibrated)

    adapted, trained = loaded(), new()
    adapted.enable_lora(2, seed=0)
    fit(trained)

    def restored(path):
        model = made()
        model.load_training_state(path)
        return model.get_weights()

    def encode(encoder):
        return [encoder.encode(TEXTS)]

    def beside_others():
        return [pool.submit(encode, encoder) for _ in range(2)]

    def by_threads(_=None):
        with mp.config.num_threads(3):
            return encode(encoder)

    def after_threads(others):
        for found in (*(other.result() for other in others), by_threads()):
            same(found, embedded)

    def in_folder(path):
        return [BertEncoder.from_folder(path).encode(TEXTS)]

    room, pool, both = folder / "room", ThreadPoolExecutor(2), threading.Barrier(2)
    list(pool.map(lambda _: both.wait(), range(2)))  # its threads run from here on
    room.mkdir()
    return {
        "convert": written(
            room, "converted", lambda path: convert(folder / "source", path, "int8", force=True), tensors
        ),
        "save": written(room, "m.keras", lambda path: kept.save(path), lambda path: load_keras(path).get_weights()),
        "state": written(room, "m.state", trained.save_training_state, restored),
        "restore": Action(lambda: room / "m.state", restored, lambda path: same(restored(path), trained.get_weights())),
        "folder": written(room, "saved", lambda path: encoder.save(path, force=True), in_folder),
        "adapter": written(
            room,
            "adapter",
            lambda path: adapted.save_adapter(path, force=True),
            lambda path: [encoder.with_adapter(path).encode(TEXTS)],
        ),
        "load": Action(lambda: model_folder, in_folder, lambda path: same(in_folder(path), embedded)),
        "encode": Action(lambda: encoder, encode, lambda encoder: same(encode(encoder), embedded)),
        "threads": Action(beside_others, by_threads, after_threads),
        "tensors": written(
            room, "a.safetensors", lambda path: save_tensors(path, {"w": codes}, policy="int8_from_float32"), tensors
        ),
        "calibrate": Action(lambda: encoder, calibrate, after_calibrate),
        "fit": Action(new, fit, after_fit),
        "tune": Action(loaded, tune, after_tune),
    } | ({"serve": serving(model_folder, folder / "socket")} if find_spec("uvicorn") else {})


@contextlib.contextmanager
def handled():
    """Let SIGINT raise KeyboardInterrupt, also in a process that was started so that it ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def by_signal():
    """Interrupt by SIGINT, which waits where a file is put in its place."""
    signal.raise_signal(signal.SIGINT)


def everywhere(action, every=1):
    """Interrupt an action at its lines, or at every so-many-th; return how many interrupts there were."""
    with ThreadPoolExecutor(1) as other, handled():
        other.submit(int).result()
        before, threads = opened(), threading.active_count()
        count = interrupt_everywhere(other, "line", *action, every=every, ring=by_signal, drop=True)
        gc.collect()
        left, more = opened() - before, threading.active_count() - threads  # what earlier tests left may end meanwhile
        assert not left and more <= 0, f"left open: {dict(left)}; {more} threads more"
    return count


def main():
    parser = argparse.ArgumentParser(prog="interrupts", description=__doc__.splitlines()[0])
    parser.add_argument("actions", nargs="*", metavar="ACTION")
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        known = actions(Path(folder))
        for name in options.actions or known:
            start = time.monotonic()
            count = everywhere(known[name], options.every)
            print(f"{name:12} {count:6} interrupts {time.monotonic() - start:7.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
