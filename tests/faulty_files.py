"""The jobs of tests/faulty.py on files: reading and writing by the commands of mp-core, models and training."""

import contextlib
import errno
import io
import json
import shutil
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import hostile_files
import numpy as np
import servers
import tiny_bert
from fuzz import folders
from fuzz.activities import three_kinds
from fuzz.tuning import interrupted

import mp_core as mp
from mp_core import callbacks, cli, layers
from mp_core.checkpoint import open_tensors, save_tensors
from mp_core.cli import tuned
from mp_core.cli.common import BAD_INPUT, DONE, INTERRUPTED, USAGE
from mp_core.cli.policies import policy_map
from mp_core.interop.keras import load_keras
from mp_core.models import BertEncoder
from mp_core.models.fitting import selection
from mp_core.models.opening import class_of

__all__ = ["Job", "jobs"]

selection._ROUNDS, selection._LEAST = 1, 0.0  # which policy `choose` finds does not matter here
rng = np.random.default_rng(0)
TEXTS = ["a b c", "d", "h g f e"]
ROWS = [{"query": "a b", "answer": "c d"}, {"query": "e", "answer": "f g"}, {"query": "h", "answer": "a"}]
TENSORS = {"w": rng.standard_normal((70, 33)).astype(np.float32), "b": np.ones(33, np.float32)}
X = rng.standard_normal((6, 4)).astype(np.float32)


class Job(NamedTuple):
    """Something that is done with files.

    Attributes
    ----------
    call : callable
        Does it. It raises OSError, or returns the same arrays, by name, as ever.
    read : callable
        Returns the arrays of what it has written, by name: before, after an error and after the next call the same.
    own : tuple of str
        The files and folders that it replaces.
    loose : tuple of str
        Files that may be there or not after an error: what the next call goes on from.
    prepare : callable
        Puts the folder in order before.
    """

    call: Callable[[], dict[str, np.ndarray]]
    read: Callable[[], dict[str, np.ndarray]] = dict
    own: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()
    prepare: Callable[[], object] = dict


def writing(write, read, *own):
    """Return the job of a function that returns nothing worth comparing."""

    def call():
        write()
        return {}

    return Job(call, read, own)


def arrays_in(path):
    """Return the tensors of a file or folder, codes as the numbers that they stand for."""
    tensors = open_tensors(path)
    return {n: np.array(mp.dequantize(x) if isinstance(x, mp.QuantizedArray) else x) for n, x in tensors.items()}


def vectors(folder):
    """Return what the model in a folder, of any kind, makes of texts."""
    model = class_of(folder).from_folder(folder)
    for name, given in (("encode_all", TEXTS), ("encode_sparse", TEXTS), ("encode_multi", TEXTS), ("encode", TEXTS)):
        if hasattr(model, name):
            return plain(getattr(model, name)(given))
    return {"scores": model.predict([("a b", "c"), ("d", "e f")])}


def plain(found):
    """Return vectors of any kind as arrays by name."""
    if hasattr(found, "dense"):
        return {"dense": found.dense} | plain(found.sparse) | plain(found.multi)
    if hasattr(found, "toarray"):
        return {"sparse": found.toarray()}
    return dict(enumerate(found))


def map_in(path):
    """Read a map of policies. What it holds depends on what was fast."""
    policy_map(path)
    return {}


def bytes_of(path):
    return lambda: {"bytes": np.frombuffer(path.read_bytes(), np.uint8)}


def command(folder):
    """Return a function that runs mp-core in this process, and raises OSError for what it refuses by exit status 3."""

    def run(*words, code=DONE):
        out, error = io.TextIOWrapper(io.BytesIO()), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            try:
                found = cli.main([*map(str, words)])
            except SystemExit as stopped:
                found = stopped.code
            except io.UnsupportedOperation as wrong:  # it would write no more to what is no file here
                raise AssertionError("an error that names no file is taken for one of standard output") from wrong
        if found in (BAD_INPUT, USAGE):  # where it cannot listen is an argument, and there is a line of help
            option = "argument --unix-socket: " * (found == USAGE)
            said, *rest = error.getvalue().splitlines()
            assert f"error: {option}{folder}" in said and len(rest) == (found == USAGE), error.getvalue()
            raise OSError(errno.EIO, error.getvalue(), "the one that it says")
        assert found == code, (words, found, error.getvalue())

    return run


# ---- tensors, and models in one file


def made():
    """Return a model whose weights are always the same."""
    model = mp.Sequential([mp.Input((4,)), layers.Dense(3, activation="relu"), layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    draw = np.random.default_rng(1)
    model.set_weights([draw.standard_normal(v.shape).astype(np.float32) for v in model.weights])
    return model


def fitted(model, *chosen):
    model.fit(X, X[:, :1], epochs=2, batch_size=3, shuffle=False, verbose=0, callbacks=list(chosen))
    return dict(enumerate(model.get_weights()))


def numbers(path):
    return dict(enumerate(load_keras(path).get_weights()))


def state_of(path):
    """Return the weights of a new model after it has taken up the state of a file; an error changes nothing."""
    model = made()
    before = model.get_weights()
    try:
        model.load_training_state(path)
    except OSError:
        assert all(map(np.array_equal, model.get_weights(), before))
        raise
    return dict(enumerate(model.get_weights()))


def loaded(path):
    """Return the weights that a new model reads."""
    model = made()
    model.load_weights(path)
    return dict(enumerate(model.get_weights()))


def single_files(folder):
    """Return the jobs of tensors and of models of layers."""
    path = {name: folder / name for name in ("a.safetensors", "m.keras", "m.weights.h5", "m.state", "best.keras")}
    model, best = made(), callbacks.ModelCheckpoint(path["best.keras"], save_freq=4)  # of all batches, the last
    fitted(model)
    writers = {
        "a.safetensors": (lambda path: save_tensors(path, TENSORS, policy="float32"), arrays_in),
        "m.keras": (model.save, numbers),
        "m.weights.h5": (lambda path: model.save_weights(path, overwrite=True), loaded),
        "m.state": (model.save_training_state, state_of),
    }
    found = {}
    for name, (write, read) in writers.items():
        write(path[name])
        found[f"writing {name}"] = writing(lambda n=name, f=write: f(path[n]), lambda n=name, f=read: f(path[n]), name)
        found[f"reading {name}"] = Job(lambda n=name, f=read: f(path[n]))
    backup = folder / "backup/training.state"
    resuming = callbacks.BackupAndRestore(folder / "backup", save_freq=1)
    return found | {
        "fit, the best model": Job(
            lambda: fitted(made(), best), lambda: numbers(path["best.keras"]), ("best.keras",)
        ),
        "fit, its state": Job(
            lambda: fitted(made(), resuming), own=("backup",), loose=("backup", "backup/training.state"),
            prepare=lambda: backup.unlink(missing_ok=True),
        ),
    }  # fmt: skip


# ---- folders of text models


def text_models(folder):
    """Write a model of each kind; return their folders by name."""
    written = {"encoder": tiny_bert.write(folder / "encoder"), "m3": three_kinds(folder / "m3")}
    written["reranker"] = servers.scorer(folder / "reranker", 1)
    for kind in ("sparse", "tokens", "routes"):
        written[kind] = folders.write(folder / kind, "bert", kind, rng)
    old = tiny_bert.write(folder / "old")
    (old / "model.safetensors").unlink()
    (old / "pytorch_model.bin").write_bytes(
        hostile_files.pickled_archive(*hostile_files.torch_parts(tiny_bert.tensors()))
    )
    return written | {"old": old}


def model_folders(folder, models):
    """Return the jobs of what reads and writes folders of text models, and adapters."""
    found = {}
    for name, place in models.items():
        model, saved = class_of(place).from_folder(place), folder / f"{name} again"
        model.save(saved)
        found[f"reading {name}"] = Job(lambda place=place: vectors(place))
        found[f"writing {name}"] = writing(
            lambda model=model, saved=saved: model.save(saved, force=True), lambda saved=saved: vectors(saved),
            saved.name,
        )  # fmt: skip
    adapted, plain_encoder = (BertEncoder.from_folder(models["encoder"]) for _ in range(2))
    adapted.enable_lora(2, seed=0)
    adapted.fit([(row["query"], row["answer"]) for row in ROWS], batch_size=2, learning_rate=1e-2, seed=0, verbose=0)
    adapted.save_adapter(folder / "adapter")

    def with_adapter():
        return plain(plain_encoder.with_adapter(folder / "adapter").encode(TEXTS))

    return found | {
        "writing an adapter": writing(
            lambda: adapted.save_adapter(folder / "adapter", force=True), with_adapter, "adapter"
        ),
        "reading an adapter": Job(with_adapter),
    }


# ---- commands


def conversions(folder, run):
    """Return the jobs of commands that convert checkpoints and compare them."""
    (folder / "a.gguf").write_bytes(hostile_files.gguf_base())
    (folder / "a.onnx").write_bytes(hostile_files.onnx_base())
    sources = {
        "encoder": ("float16",), "old": ("int8",), "a.gguf": ("float32",), "a.onnx": ("float32",),
        "encoder, calibrated": ("int8", "--calibrate", folder / "texts.txt"),
    }  # fmt: skip
    found = {}
    for name, (policy, *options) in sources.items():
        source = folder / name.partition(",")[0]
        target = f"converted {name.replace('.', ' ')}{'.safetensors' if source.is_file() else ''}"
        words = "convert", source, "-o", folder / target, "--policy", policy, *options, "--force", "--quiet"
        run(*words)
        found[f"convert {name}"] = writing(
            lambda words=words: run(*words), lambda target=target: arrays_in(folder / target), target
        )
    choice = "choose", folder / "encoder", "--texts", folder / "texts.txt", "--max-error", 1, "--policies", "int8"
    choice = *choice, "--output", folder / "map.json", "--force", "--quiet"
    run(*choice)
    return found | {
        "choose": writing(lambda: run(*choice), lambda: map_in(folder / "map.json"), "map.json"),
        "convert by a map": writing(
            lambda: run("convert", folder / "encoder", "-o", folder / "mapped", "--map", folder / "map.json",
                        "--force", "--quiet"),
            lambda: vectors(folder / "mapped"), "mapped",
        ),
        "verify": writing(
            lambda: run("verify", folder / "encoder", folder / "encoder again", "--json", folder / "report.json"),
            bytes_of(folder / "report.json"), "report.json",
        ),
    }  # fmt: skip


def embeddings(folder, run):
    """Return the jobs of ``mp-core embed``: each kind of vectors in each format."""
    outputs = {
        "vectors.npy": ("encoder",), "vectors.tsv": ("encoder", "--map", folder / "map.json"),
        "vectors.jsonl": ("routes", "--task", "query"), "m3.jsonl": ("m3", "--kind", "sparse"),
        "sparse.jsonl": ("sparse",), "tokens.jsonl": ("tokens",),
    }  # fmt: skip
    return {
        f"embed, {name}": writing(
            lambda name=name, model=model, options=options: run(
                "embed", folder / model, folder / "texts.txt", "--output", folder / name, *options, "--force", "--quiet"
            ),
            bytes_of(folder / name),
            name,
        )
        for name, (model, *options) in outputs.items()
    }


def tunings(folder, run):
    """Return the jobs of ``mp-core tune``: folders, adapters, and the state from which another run goes on."""
    (folder / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    words = "tune", folder / "encoder", folder / "pairs.jsonl", "--batch-size", 2, "--force", "--quiet"
    adapter = "--lora", 2, "--policy", "int8", "--adapter-only"
    resumed = *words, "--epochs", 2, "-o", folder / "resumed", "--resume", folder / "state"
    state = folder / "state/training.state"
    run(*resumed)
    with interrupted(2):
        run(*resumed, code=INTERRUPTED)
    shutil.copyfile(state, folder / "half.state")

    def again():
        run(*resumed)
        return {}

    def tensors():
        return arrays_in(folder / "resumed")

    owned = "resumed", "state"
    return {
        "tune": writing(
            lambda: run(*words, "-o", folder / "tuned", "--eval", folder / "pairs.jsonl", "--policy", "int8",
                        "--distill", 1, "--json", folder / "tuned.json"),
            lambda: arrays_in(folder / "tuned"), "tuned", "tuned.json",
        ),
        "tune an adapter": writing(
            lambda: run(*words, "-o", folder / "tuned adapter", *adapter),
            lambda: arrays_in(folder / "tuned adapter/adapter_model.safetensors"), "tuned adapter",
        ),
        "tune, its state": Job(again, tensors, owned, (f"state/{state.name}",), lambda: state.unlink(missing_ok=True)),
        "tune, resumed": Job(
            again, tensors, owned, (f"state/{state.name}",), lambda: shutil.copyfile(folder / "half.state", state)
        ),
    }  # fmt: skip


def servings(folder, run):
    """Return the jobs of what ``mp-core serve`` reads before it answers."""
    (folder / "keys").write_text("secret\n")

    def started(*words):
        def call():
            with mock.patch("mp_core.serving.server.serve", lambda *_, **options: options["started"]() or 0):
                run("serve", *words, "--unix-socket", folder / "socket", "--api-key-file", folder / "keys", "--quiet")
            return {}

        return Job(call, loose=("socket",))  # if it cannot be removed

    kinds = [folder / name for name in ("m3", "reranker", "sparse", "tokens")]
    return {
        "serve": started(*kinds),
        "serve adapters": started(folder / "encoder", "--adapter", f"other={folder / 'adapter'}"),
    }


def jobs(folder):
    """Return name -> job, in a folder."""
    tuned._SAVE_EVERY = 1  # so that there is a state between two steps
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    run, models = command(folder), text_models(folder)
    return {
        **single_files(folder), **model_folders(folder, models), **conversions(folder, run),
        **embeddings(folder, run), **tunings(folder, run), **servings(folder, run),
    }  # fmt: skip
