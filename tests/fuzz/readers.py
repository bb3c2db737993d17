"""The table of readers: files of weights and of models, texts of policies, command lines, bodies of requests."""

import contextlib
import io
import json

import hostile_files
import numpy as np
from safetensors.numpy import save_file

import mp_core as mp
from fuzz.model_files import MODEL_FILES
from fuzz.reading import REFUSALS, Reader
from fuzz.training_files import TRAINING_FILES
from mp_core import cli, layers
from mp_core.checkpoint import convert, open_tensors, save_tensors, stored_policies
from mp_core.dtype_policies import DTypePolicy
from mp_core.files import hdf5
from mp_core.files.checkpoint.errors import Threshold
from mp_core.files.checkpoint.torch_file import open_torch
from mp_core.interop.keras import load_keras

__all__ = ["READERS"]

# ---- files


def _write_tensors(folder):
    x = np.linspace(-3, 3, 3 * 70, dtype=np.float32).reshape(3, 70)
    save_file({"w": x, "b": x[0].copy(), "h": x.astype(np.float16), "i": np.arange(5)}, folder / "float")
    convert(folder / "float", folder / "int4", "int4/32", map={"h": "float8_e5m2/32"})
    fixed = {"w": mp.quantize(np.ones((3, 70), np.float32)), "w.inputs_scale": np.ones(70, np.float32)}
    fixed["w.inputs_zero_point"] = np.arange(70, dtype=np.int8)
    save_tensors(folder / "fixed", fixed, policy="int8/fixed/tensor", policies={"w": "int8/fixed"})


def _read_tensors(path):
    stored_policies(path)
    for array in open_tensors(path).values():
        np.asarray(mp.dequantize(array) if isinstance(array, mp.QuantizedArray) else array).tobytes()


def _write_index(folder):
    for name in ("a", "b"):
        save_file({name: np.ones((2, 3), np.float32)}, folder.parent / f"{name}.safetensors")
    index = {"metadata": {"total_size": 48}, "weight_map": {name: f"{name}.safetensors" for name in ("a", "b")}}
    (folder / "index").write_text(json.dumps(index))


def _read_index(path):
    for name in ("a", "b"):
        (path.parent / f"{name}.safetensors").write_bytes((path.parents[1] / f"{name}.safetensors").read_bytes())
    _read_tensors(path.rename(path.with_name("model.safetensors.index.json")))


def _write_torch(folder):
    import torch

    base = torch.arange(60.0).reshape(5, 12)
    tensors = {
        "turned": base.T,
        "part": base[1:4, 2::3],
        "half": base.half(),
        "ids": torch.arange(4),
        "shared": base[2],
    }
    torch.save(tensors, folder / "tensors")


def _read_torch(path):
    for array in open_torch(path).values():
        if array.size:  # a view, which may be stretched to far more elements than the file has: so its corners only
            array[(0,) * array.ndim].tobytes() + array[(-1,) * array.ndim].tobytes()


def _bytes(make):
    def write(folder):
        (folder / "file").write_bytes(make())

    return write


def _write_h5(folder):
    tree = {f"layer_{i}": {"vars": {"0": np.ones((3, 4), np.float32), "1": np.arange(3)}} for i in range(9)}
    parts = hdf5.chunks(tree | {"empty": {}})
    (folder / "weights").write_bytes(b"".join(part if isinstance(part, bytes) else part.tobytes() for part in parts))


def _read_h5(path):
    def arrays(tree):
        for part in tree.values():
            arrays(part) if isinstance(part, dict) else np.asarray(part).tobytes()

    arrays(hdf5.read(path.read_bytes()))


def _write_keras(folder):
    x = mp.Input((4,), name="x")
    h = layers.Dense(3, activation="relu", dtype="mixed_bfloat16")(x)
    model = mp.Model(x, layers.Activation("softmax", dtype="float32")(layers.LayerNormalization()(h) * 2))
    model.compile(optimizer="adam", loss="mse")
    model.save(folder / "model.keras")
    ids = mp.Sequential([mp.Input((3,), dtype="int32"), layers.Embedding(5, 2), layers.Flatten(), layers.Dense(2)])
    ids.quantize("int8")
    ids.save(folder / "quantized.keras")


# ---- texts


def _texts(*texts):
    def write(folder):
        for place, text in enumerate(texts):
            (folder / str(place)).write_text(text)

    return write


def _read_policy(path):
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    for parse in (DTypePolicy, Threshold.parse):
        with contextlib.suppress(ValueError):
            parse(text)


def _read_map(path):
    source = path.parents[1] / "float"
    if not source.exists():
        _write_tensors(path.parents[1])
    policies = json.loads(path.read_bytes().decode("utf-8", "replace"))
    with contextlib.suppress(TypeError):  # of what is no map of texts
        convert(source, path.parent / "out", "int8", map=policies, force=True)


COMMANDS = (
    "inspect float", "convert float -o out --policy int8/32 --force", "verify float float --fail max_abs=1",
    "plan 1x64x64 --dtype bfloat16", "info", "policies", "help convert", "inspect float --json",
)  # fmt: skip


def _read_command(path):
    """A line of words; a command ends with 0, or with one line of error and 1, 2 or 3."""
    source = path.parents[1] / "float"
    if not source.exists():
        _write_tensors(path.parents[1])
    words = path.read_bytes().decode("utf-8", "surrogateescape").replace("\0", "").split()
    if words and words[0] in ("demo", "serve", "bench", "benchmark", "profile", "calibrate"):  # they take long
        return
    words = [str(source) if word == "float" else str(path.parent / "out") if word == "out" else word for word in words]
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), contextlib.chdir(path.parent):
        try:
            code = cli.main(words)
        except SystemExit as stopped:
            code = stopped.code
    assert code in (0, 1, 2, 3), (words, code, error.getvalue())
    assert "Traceback" not in error.getvalue(), (words, error.getvalue())


READERS = {
    "safetensors": Reader(_write_tensors, _read_tensors),
    "index": Reader(_write_index, _read_index),
    "pickles": Reader(_write_torch, _read_torch),
    "gguf": Reader(_bytes(hostile_files.gguf_base), hostile_files.read_gguf),
    "onnx": Reader(_bytes(hostile_files.onnx_base), hostile_files.read_onnx),
    "h5": Reader(_write_h5, _read_h5),
    "keras": Reader(_write_keras, load_keras, 64 << 20, (*REFUSALS, NotImplementedError)),
    "policies": Reader(_texts("int8/64/dynamic", "mixed_bfloat16", "int4/128", "max_abs=0.5", "w*:int8"), _read_policy),
    "maps": Reader(
        _texts('{"w": "int4/32", "h": "float8_e5m2/32"}', '{"*": "float16", "b": "float32"}'), _read_map, 64 << 20
    ),
    "commands": Reader(_texts(*COMMANDS), _read_command, 64 << 20),
    **MODEL_FILES,
    **TRAINING_FILES,
}
