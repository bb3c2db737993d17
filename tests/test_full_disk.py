"""A full disk, or a limit on file sizes: an OSError with the name of the file, and existing files stay whole."""

from pathlib import Path

import numpy as np
import pytest
import tiny_bert
from processes import largest_file

import mp_core as mp
from mp_core import callbacks, checkpoint, layers
from mp_core.files.checkpoint.output import new_file
from mp_core.models import BertEncoder

pytest.importorskip("resource")

OLD = b"what was there"


@pytest.fixture(scope="module")
def model():
    made = mp.Sequential([mp.Input((64,)), layers.Dense(64), layers.Dense(64)])
    made.compile("adam", "mse")
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    made.fit(x, x, verbose=0)
    return made


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    opened = BertEncoder.from_folder(tiny_bert.write(tmp_path_factory.mktemp("full") / "model"))
    opened.enable_lora(2)
    return opened


def trained(model, *own):
    x = np.ones((8, 64), np.float32)
    model.fit(x, x, epochs=30, verbose=0, callbacks=[*own])


TENSORS = {"a": np.ones((64, 64), np.float32)}
WRITERS = {
    "m.keras": (5000, lambda path, model, encoder: model.save(path)),
    "m.weights.h5": (5000, lambda path, model, encoder: model.save_weights(path)),
    "state": (5000, lambda path, model, encoder: model.save_training_state(path)),
    "check.keras": (5000, lambda path, model, encoder: trained(model, callbacks.ModelCheckpoint(path))),
    "backup": (5000, lambda path, model, encoder: trained(model, callbacks.BackupAndRestore(path.parent / "b"))),
    "log.csv": (120, lambda path, model, encoder: trained(model, callbacks.CSVLogger(path, append=True))),
    "t.safetensors": (5000, lambda path, model, encoder: checkpoint.save_tensors(path, TENSORS, policy="float32")),
    "encoder": (5000, lambda path, model, encoder: BertEncoder.from_folder(encoder._folder).save(path)),
    "encoder of small files": (100, lambda path, model, encoder: BertEncoder.from_folder(encoder._folder).save(path)),
    "adapter": (500, lambda path, model, encoder: encoder.save_adapter(path)),
    "adapter of small files": (100, lambda path, model, encoder: encoder.save_adapter(path)),
    "converted": (5000, lambda path, model, encoder: checkpoint.convert(encoder._folder, path, "bfloat16")),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_cannot_be_written_is_an_error_by_name_and_leaves_nothing(tmp_path, model, encoder, name):
    size, write = WRITERS[name]
    path = tmp_path / name
    replaced = path.suffix and path.suffix != ".safetensors"
    if replaced:
        path.write_bytes(b"epoch,loss,val_loss\n" if name == "log.csv" else OLD)
    with largest_file(size), pytest.raises(OSError, match="File too large") as info:
        write(path, model, encoder)
    assert str(info.value.filename).startswith(str(tmp_path)) and ".tmp" not in str(info.value.filename)
    left = [found.name for found in tmp_path.rglob("*") if found.is_file()]
    assert left == ([name] if replaced else [])
    if name == "log.csv":
        assert path.stat().st_size <= size and path.read_text().endswith("\n")
    elif replaced:
        assert path.read_bytes() == OLD


def test_a_device_that_is_full_is_named():
    with pytest.raises(OSError, match="No space left on device") as info:  # noqa: SIM117
        with new_file(Path("/dev/full"), force=True) as stream:
            stream.write(b"x")
    assert str(info.value.filename) == "/dev/full"
