"""What a soak does: activities that return the same arrays whenever they are called, in any thread or process."""

import asyncio
import io
import itertools
import signal

import numpy as np
import servers
import tiny_bert
from interrupting import Interrupt

import mp_core as mp
from mp_core import layers
from mp_core.checkpoint import convert, open_tensors, save_tensors
from mp_core.interop.keras import load_keras
from mp_core.models import BertEncoder
from mp_core.serving.logs import Log
from mp_core.serving.models import Encoder

__all__ = ["UNINTERRUPTED", "activities", "interrupted"]

TEXTS = ["a b c", "d", "a b c d e f g h", "h g f e", ""]
POLICIES = ("mixed_bfloat16", "mixed_float16", "int8", "int4/8")
UNINTERRUPTED = ("serve",)  # the server has handlers of signals of its own


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def products(rng):
    """Return activities of single operations and of plans."""
    x, w, q = normal(rng, 60, 130), normal(rng, 130, 70), normal(rng, 2, 33, 2, 16)
    codes = mp.pack(mp.quantize(w, axis=1))
    plan = mp.compile(lambda x: mp.softmax(mp.matmul(mp.gelu(x), w)), x)
    return {
        "products": lambda: [mp.matmul(x, w), mp.matmul(mp.cast(x, "bfloat16"), mp.cast(w, "bfloat16"))],
        "dynamic products": lambda: [mp.dynamic_matmul(x, codes)],
        "attention": lambda: [mp.dot_product_attention(q, q, q)],
        "rows": lambda: [mp.layer_norm(x), mp.softmax(x, axis=0), mp.sum(x, 0)],
        "replay": lambda: [plan(x)],
        "recording": lambda: [mp.compile(lambda x: mp.relu(mp.matmul(x, w)), x)(x)],
    }


def texts(folder):
    """Return activities of encoders: as they are, under policies, calibrated, and asked over HTTP."""
    from mp_core.serving.front import create_app  # of the extra "serve"

    path = tiny_bert.write(folder / "model")
    encoder = BertEncoder.from_folder(path)
    others = [BertEncoder.from_folder(path, policy) for policy in POLICIES]

    async def asked():
        async with servers.running(create_app([Encoder("model", encoder)], log=Log(stream=io.StringIO()))) as ask:
            answers = [await ask("/embed", {"inputs": TEXTS}), await ask("/embed", {"inputs": 1})]
        assert [status for status, _, _ in answers] == [200, 422]
        return np.array(answers[0][2], np.float32)

    return {
        "encode": lambda: [encoder.encode(TEXTS)],
        "load": lambda: [BertEncoder.from_folder(path, "int8").encode(TEXTS)],
        "policies": lambda: [other.encode(TEXTS) for other in others],
        "calibrate": lambda: [mp.calibrate(encoder, TEXTS[:3], "int8").encode(TEXTS)],
        "serve": lambda: [asyncio.run(asked())],
    }


def files(folder, rng):
    """Return activities that write files and read them."""
    x, w, numbers = normal(rng, 60, 130), normal(rng, 130, 70), itertools.count()
    save_tensors(folder / "source", {"w": w, "x": x}, policy="float32")

    def made():
        model = mp.Sequential([mp.Input((130,)), layers.Dense(8, activation="relu"), layers.Dense(1)])
        model.compile(optimizer="adam", loss="mse")
        return model

    weights = made().get_weights()

    def converted():
        target = folder / f"out{next(numbers)}"
        try:
            convert(folder / "source", target, "int8")
            return [mp.dequantize(x) for x in open_tensors(target).values()]
        finally:
            target.unlink(missing_ok=True)

    def fitted():
        model = made()
        model.set_weights(weights)
        model.fit(x, x[:, :1], epochs=2, batch_size=20, shuffle=False, verbose=0)
        return model.get_weights()

    def saved():
        path, model = folder / f"model{next(numbers)}.keras", made()
        model.set_weights(weights)
        try:
            model.save(path)
            return load_keras(path).get_weights()
        finally:
            path.unlink(missing_ok=True)

    return {"convert": converted, "fit": fitted, "save": saved}


def activities(folder):
    """Return name -> what is done."""
    rng = np.random.default_rng(0)
    return {**products(rng), **texts(folder), **files(folder, rng)}


def interrupted(function, seconds):
    """Call a function in the main thread, and raise Interrupt in it after some seconds unless it has returned."""

    def ring(*_):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        function()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
