"""The activities of a soak: each returns the same arrays at every call, in any thread or process."""

import asyncio
import io
import itertools
import json
import signal

import numpy as np
import servers
import tiny_bert
from hostile_files import pickled_archive, torch_parts
from interrupting import Interrupt

import mp_core as mp
from mp_core import layers
from mp_core.checkpoint import convert, open_tensors, save_tensors
from mp_core.interop.keras import load_keras
from mp_core.models import BertEncoder, Classifier, M3Encoder, Reranker
from mp_core.serving.logs import Log
from mp_core.serving.models import open_models

__all__ = ["UNINTERRUPTED", "activities", "interrupted"]

TEXTS = ["a b c", "d", "a b c d e f g h", "h g f e", ""]
PAIRS = [("a b", "c d"), ("e", "f g h"), ("b c d", "a")]
LABELLED = [(*pair, score) for pair, score in zip(PAIRS, (0.0, 1.0, 0.5), strict=True)]
POLICIES = ("mixed_bfloat16", "mixed_float16", "int8", "int4/8")
UNINTERRUPTED = ("serve",)  # the server has handlers of signals of its own


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def products(rng):
    """Return activities of single operations and of plans."""
    x, w, q = normal(rng, 60, 130), normal(rng, 130, 70), normal(rng, 2, 33, 2, 16)
    codes = mp.pack(mp.quantize(w, axis=1))
    nibbles = mp.pack(mp.quantize(w, dtype="int4", axis=1, group_size=32))
    kernel = mp.AutoCastVariable(w)
    plan = mp.compile(lambda x: mp.softmax(mp.matmul(mp.gelu(x), w)), x)
    return {
        "products": lambda: [mp.matmul(x, w), mp.matmul(mp.cast(x, "bfloat16"), mp.cast(w, "bfloat16"))],
        "dynamic products": lambda: [mp.dynamic_matmul(x, codes)],
        "int4 products": lambda: [mp.matmul(x[:rows], nibbles) for rows in (1, 5, 60)],
        "attention": lambda: [mp.dot_product_attention(q, q, q)],
        "rows": lambda: [mp.layer_norm(x), mp.softmax(x, axis=0), mp.sum(x, 0)],
        "replay": lambda: [plan(x)],
        "recording": lambda: [mp.compile(lambda x: mp.relu(mp.matmul(x, w)), x)(x)],
        "gradients": lambda: mp.grad(lambda x: mp.mean(mp.tanh(mp.matmul(x, kernel))), [kernel])(x),
    }


def three_kinds(folder):
    """Write a random encoder with the heads of BGE-M3."""
    rng = np.random.default_rng(4)
    tiny_bert.write(folder, model_type="xlm-roberta", pad_token_id=0)
    for name, units in (("sparse_linear.pt", 1), ("colbert_linear.pt", 8)):
        head = {"weight": normal(rng, units, tiny_bert.WIDTH), "bias": normal(rng, units) + 1}
        (folder / name).write_bytes(pickled_archive(*torch_parts(head)))
    return folder


def texts(folder):
    """Return activities of encoders: as they are, under policies, calibrated and fine-tuned."""
    path = tiny_bert.write(folder / "model")
    encoder = BertEncoder.from_folder(path)
    others = [BertEncoder.from_folder(path, policy) for policy in POLICIES]
    adapted = BertEncoder.from_folder(path)
    adapted.enable_lora(2)
    adapted.save_adapter(folder / "adapter")

    def tuned(policy="float32", adapter=None):
        tuning = BertEncoder.from_folder(path, policy)
        if adapter is not None:
            tuning.load_adapter(adapter)
        tuning.fit(PAIRS, batch_size=2, learning_rate=1e-2, seed=0, verbose=0)
        return [tuning.encode(TEXTS)]

    return {
        "encode": lambda: [encoder.encode(TEXTS)],
        "load": lambda: [BertEncoder.from_folder(path, "int8").encode(TEXTS)],
        "policies": lambda: [other.encode(TEXTS) for other in others],
        "calibrate": lambda: [mp.calibrate(encoder, TEXTS[:3], "int8").encode(TEXTS)],
        "tune": tuned,
        "tune with LoRA": lambda: tuned("int8", folder / "adapter"),
    }


def heads(folder):
    """Return activities of models with heads: three kinds of vectors, scores, labels."""
    m3 = M3Encoder.from_folder(three_kinds(folder / "m3"))
    scorer = servers.scorer(folder / "reranker", 1)
    reranker = Reranker.from_folder(scorer)
    classifier = Classifier.from_folder(servers.scorer(folder / "classifier", 3))

    def kinds():
        found = m3.encode_all(TEXTS)
        return [found.dense, found.sparse.toarray(), *found.multi]

    def tuned():
        tuning = Reranker.from_folder(scorer)
        tuning.fit(LABELLED, batch_size=2, learning_rate=1e-2, seed=0, verbose=0)
        return [tuning.predict(PAIRS)]

    return {
        "three kinds of vectors": kinds,
        "rerank": lambda: [reranker.predict(PAIRS)],
        "classify": lambda: [classifier.probabilities(TEXTS[:4])],
        "tune a reranker": tuned,
    }


REQUESTS = {
    "/v1/embeddings": {"input": TEXTS[:2], "model": "model", "encoding_format": "base64"},
    "/v1/rerank": {"query": "a b", "documents": TEXTS[:4]},
    "/embed": {"inputs": TEXTS, "model": "model"},
    "/embed_sparse": {"inputs": TEXTS},
    "/embed_all": {"inputs": TEXTS},
    "/rerank": {"query": "a b", "texts": TEXTS[:4]},
    "/predict": {"inputs": TEXTS[:1], "model": "classifier"},
    "/": {"inputs": TEXTS[:2], "model": "model"},
    "/embeddings": {"input": TEXTS[:2], "model": "model"},
    "/similarity": {"inputs": {"source_sentence": "a b", "sentences": TEXTS[:2]}, "model": "model"},
    "/tokenize": {"inputs": TEXTS[:2], "model": "model"},
    "/decode": {"ids": [[4, 5], [6]], "model": "model"},
}


def serving(folder):
    """Return the activity that starts a server of several models, and asks each of its paths well and badly."""
    from mp_core.serving.completions import COMPLETIONS  # of the extra "serve"
    from mp_core.serving.front import create_app
    from mp_core.serving.routes import ROUTES

    assert REQUESTS.keys() == ROUTES.keys() - COMPLETIONS.keys()  # fuzz/generating.py asks for completions
    models = open_models({name: folder / name for name in ("model", "m3", "reranker", "classifier")})

    async def asked():
        async with servers.running(create_app(models, log=Log(stream=io.StringIO()))) as ask:
            answers = [await ask(path, body) for path, body in REQUESTS.items()]
            refused = [await ask(path, {"inputs": 1}) for path in REQUESTS]
            told = [await ask(path) for path in ("/health", "/ready", "/metrics", "/info", "/v1/models")]
        assert {status for status, _, _ in answers + told} == {200}
        assert {status for status, _, _ in refused} <= {400, 422}
        return json.dumps([body for _, _, body in answers]).encode()

    return {"serve": lambda: [np.frombuffer(asyncio.run(asked()), np.uint8)]}


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

    def fitted(scheme=None):
        model = made()
        model.set_weights(weights)
        if scheme is not None:
            model.quantize(scheme)
            model.layers[0].enable_lora(2, a_initializer="ones")
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

    return {"convert": converted, "fit": fitted, "fit LoRA": lambda: fitted("int8"), "save": saved}


def activities(folder):
    """Return name -> what is done."""
    rng = np.random.default_rng(0)
    return {**products(rng), **texts(folder), **heads(folder), **serving(folder), **files(folder, rng)}


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
