"""Readers of files that training and jobs write: an error must not change the bits of a model or any other file."""

import functools
import json
import shutil

import numpy as np

import mp_core as mp
from fuzz.reading import Reader
from mp_core import layers
from mp_core.interop.manifest import Manifest, OutputPart

__all__ = ["TRAINING_FILES"]

X, Y = np.ones((8, 3), np.float32), np.zeros((8, 2), np.float32)
_ROOM = 16 << 20  # bytes that a load may take beside its file: copies of what it replaces, and the first step's plans


@functools.cache
def _model():
    model = mp.Sequential([mp.Input((3,)), layers.Dense(4, "tanh"), layers.Dropout(0.5), layers.Dense(2)])
    model.compile(mp.optimizers.LossScaleOptimizer(mp.optimizers.Adam(0.01)), "mse", metrics=["mae"])
    model.fit(X, Y, verbose=0)
    return model


def _bits(model):
    store = {}
    model.optimizer.save_own_variables(store)
    means = [tuple(map(repr, tracker.state)) for tracker in model._training_state.losses]
    arrays = [*model.get_weights(), *store.values(), *(v.numpy() for v in model.metrics_variables)]
    return [np.asarray(x).tobytes() for x in arrays], means, model._training_state.place, model._training_state.seed


def _all_or_nothing(load):
    """Return a reader that raises AssertionError if a file that is refused has changed the model."""

    def read(path):
        model = _model()
        before = _bits(model)
        try:
            load(model, path)
        except (OSError, ValueError):
            assert _bits(model) == before
            raise

    return read


def _write_state(folder):
    model = _model()
    model.save_training_state(folder / "between epochs")
    model._training_state.place = type(model._training_state.place)(0, 1)
    model.save_training_state(folder / "within an epoch")
    model._training_state.place = type(model._training_state.place)(1, 0)


def _load_weights(model, path):
    model.load_weights(path.rename(path.with_name("input.weights.h5")))


def _write_weights(folder):
    _model().save_weights(folder / "model.weights.h5")


# ---- journals

_JOB = {"job": "embed", "model": "a digest"}


def _write_journal(folder):
    names = ("part-000000.npy", "below/part-000001.npy", "../precious.npy", "part-000002.npy")
    lines = [_JOB, *({"part": name, "key": "x", "size": 4, "texts": 1} for name in names)]
    (folder / "journal").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / "of another job").write_text("".join(f"{json.dumps(line)}\n" for line in [{"job": "other"}, *lines[1:]]))


def _read_journal(path):
    """Begin a job in a folder with a journal: files outside stay, and of those in it all that are called otherwise."""
    outside = path.parents[1] / "outside"
    folder = outside / "job"
    shutil.rmtree(outside, ignore_errors=True)
    (folder / "below").mkdir(parents=True)
    kept = [outside / "precious.npy", folder / "notes.txt", folder / "below" / "notes.txt"]
    for place in (*kept, folder / "part-000000.npy", folder / "below" / "part-000001.npy"):
        place.write_bytes(b"mine")
    shutil.copyfile(path, folder / ".mp_core_manifest.jsonl")
    try:
        with Manifest(folder, _JOB, "part-*", force=True) as manifest:
            manifest.begin([OutputPart("part-000000.npy", "x")])
    finally:
        assert all(place.read_bytes() == b"mine" for place in kept)


TRAINING_FILES = {
    "states": Reader(_write_state, _all_or_nothing(lambda model, path: model.load_training_state(path)), _ROOM),
    "loads": Reader(_write_weights, _all_or_nothing(_load_weights), _ROOM),
    "journals": Reader(_write_journal, _read_journal),
}
"""Name of a reader -> how its files are written and read."""
