"""Keras' models as layers: the same outputs, names, policies and weights; and damaged or hostile files."""

import io
import json
import os
import pickle
import struct
import sys
import tracemalloc
import zipfile

import numpy as np
import processes
import pytest

import mp_core as mp
from mp_core.interop.keras import load_keras

h5py = pytest.importorskip("h5py")

EPSILON = {"mixed_bfloat16": 2.0**-8, "bfloat16": 2.0**-8, "mixed_float16": 2.0**-11}
"""Policy -> half the distance of two numbers from 1 on, by which a layer rounds its outputs."""
DEEPEST = 8
MODELS = [
    "digits", "digits_mixed_bfloat16", "digits_mixed_float16", "digits_int8", "first", "nested", "masked", "int8",
    "int8_table", "int8_attention", "int4", "int4_table", "int4_attention", "float8",
    *(f"{policy}_{kind}" for policy in ("float32", *EPSILON) for kind in ("images", "sequences", "attention")),
]  # fmt: skip
NOT_IN_FILES = ("int8_attention", "int4_attention")
"""Keras' files do not say that projections are quantized: Keras itself cannot load them."""


@pytest.fixture
def folder(keras_folder):
    return keras_folder


def _arrays(folder, name, kind):
    with np.load(folder / f"{name}.npz") as arrays:
        return [arrays[f"{kind}{i}"] for i in range(len(arrays)) if f"{kind}{i}" in arrays]


def _bound(name):
    """Return how far outputs may be apart, as a share of the largest: a rounding of each layer here and there."""
    if name.startswith(("int8", "digits_int8")):
        return 2 / 127  # an input between two codes may fall to either
    return next((2 * DEEPEST * e for policy, e in EPSILON.items() if policy in name), 1e-5)


def _flat(outputs):
    if isinstance(outputs, dict):
        return [outputs[key] for key in sorted(outputs)]
    return outputs if isinstance(outputs, list | tuple) else [outputs]


def _close(got, want, bound):
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one.astype(np.float64), other, rtol=0, atol=bound * max(1, np.abs(other).max()))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_outputs_are_those_of_keras(folder, name):
    want = _arrays(folder, name, "want")
    _close(_arrays(folder, name, "got"), want, _bound(name))
    if name not in NOT_IN_FILES:
        x = _arrays(folder, name, "x")
        _close(_flat(load_keras(folder / f"{name}.keras")(x[0] if len(x) == 1 else x)), want, _bound(name))


def test_names_policies_shapes_and_types_are_those_of_keras(folder):
    names = json.loads((folder / "names.json").read_text())["names"]
    assert set(MODELS) <= set(names)
    for name, (theirs, mine, types, wanted) in names.items():
        assert mine == theirs, name
        assert types == wanted, name


def test_files_are_read_without_keras(folder):
    code = (
        "import sys, numpy as np; from mp_core.interop.keras import load_keras; "
        f"load_keras({str(folder / 'digits.keras')!r}); "
        "assert not {'keras', 'torch', 'jax', 'tensorflow'} & set(sys.modules)"
    )
    processes.run([sys.executable, "-c", code], check=True)


def test_a_trained_model_is_right_in_every_policy(folder):
    labels = np.load(folder / "labels.npy")
    for policy in ("", "_mixed_bfloat16", "_mixed_float16", "_int8"):
        model = load_keras(folder / f"digits{policy}.keras")
        outputs = model(_arrays(folder, "digits", "x")[0])
        assert (outputs.astype(np.float32).argmax(axis=-1) == labels).mean() > 0.8


REFUSED = {
    "several": [
        "NotImplementedError",
        "3 of the layers",
        "'l' ('CenterCrop')",
        "'m' ('Lambda')",
        "activation function: 'erf'",
    ],
    "renorm": ["NotImplementedError", "'renormalized' ('BatchNormalization')", "`renorm`"],
    "unbuilt": ["ValueError", "`model` must be built"],
    "subclass": ["ValueError", "`model` must be built"],
    "layer": ["TypeError", "a model of Keras 3; received Dense"],
    "training": ["NotImplementedError", "'always'", "training"],
    "operation": ["NotImplementedError", "'Cumprod'", "NotEqual"],
}


def test_what_cannot_run_is_refused_by_name(folder):
    refused = json.loads((folder / "names.json").read_text())["refused"]
    assert set(refused) == set(REFUSED)
    for name, (kind, *words) in REFUSED.items():
        assert refused[name][0] == kind
        assert all(word in refused[name][1] for word in words), refused[name][1]


# ---- they are layers like others


def test_loaded_models_are_quantized_calibrated_saved_and_pickled(folder):
    x = _arrays(folder, "nested", "x")
    model = load_keras(folder / "nested.keras")
    want = _flat(model(x))
    again = mp.saving.deserialize_keras_object(json.loads(json.dumps(mp.saving.serialize_keras_object(model))))
    again(x)
    by_path = {layer.path: layer.get_weights() for layer in model.flatten() if layer.own_variables()}
    for layer in again.flatten():
        if layer.own_variables():
            layer.set_weights(by_path[layer.path])
    for copy in (again, pickle.loads(pickle.dumps(model))):
        for one, other in zip(_flat(copy(x)), want, strict=True):
            np.testing.assert_array_equal(one, other)
    half = model.with_policy({"class_name": "DTypePolicy", "config": {"name": "mixed_float16"}})
    _close(_flat(half(x)), [w.astype(np.float64) for w in want], 2.0**-7)
    model.quantize("int8")
    _close(_flat(model(x)), [w.astype(np.float64) for w in want], 0.05)
    assert [layer.path for layer in model.flatten() if layer.quantized and layer.own_variables()] == [
        "one", "two", "head/three",
    ]  # fmt: skip


def test_loaded_models_are_calibrated(folder):
    x = _arrays(folder, "digits", "x")[0]
    model = load_keras(folder / "digits.keras")
    want = model(x)
    calibrated = mp.calibrate(model, [x[:100]], "int8/fixed")
    assert np.abs(calibrated(x) - want).mean() < 0.02


def test_inputs_may_be_a_list_or_a_dict_by_name(folder):
    i, j = _arrays(folder, "nested", "x")
    model = load_keras(folder / "nested.keras")
    for one, other in zip(_flat(model([i, j])), _flat(model({"j": j, "i": i})), strict=True):
        np.testing.assert_array_equal(one, other)
    for wrong in (i, [i], {"i": i, "k": j}):
        with pytest.raises(ValueError, match=r"must be arranged as \['i', 'j'\]"):
            model(wrong)
    with pytest.raises(ValueError, match=r"Input 'i' must have shape \(None, 5\); received \(3, 4\)"):
        model([i[:, :4], j])


# ---- hostile files


@pytest.fixture
def entries(folder):
    with zipfile.ZipFile(folder / "nested.keras") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _written(tmp_path, entries, **options):
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def _changed(entries, change):
    config = json.loads(entries["config.json"])
    change(config, config["config"]["layers"])
    return entries | {"config.json": json.dumps(config)}


def _weights(entries, change):
    buffer = io.BytesIO(entries["model.weights.h5"])
    with h5py.File(buffer, "r+") as file:
        change(file)
    return entries | {"model.weights.h5": buffer.getvalue()}


def _inner(layers, name="one"):
    return next(part for part in layers[2]["config"]["layers"] if part["name"] == name)


def _lambda(config, layers):
    _inner(layers) | {"class_name": "Lambda"}
    _inner(layers)["class_name"] = "Lambda"


def _custom(config, layers):
    _inner(layers).update(module="os", class_name="system", registered_name="system")


def _as_dense_of_others(config, layers):
    _inner(layers).update(module="evil", class_name="Dense")


def _huge(config, layers):
    _inner(layers)["config"]["units"] = 10**13


def _huge_inputs(config, layers):
    _inner(layers)["build_config"]["input_shape"] = [None, 10**12]


def _negative(config, layers):
    _inner(layers)["build_config"]["input_shape"] = [None, -5]


def _other_width(config, layers):
    _inner(layers)["config"]["units"] = 3


def _no_source(config, layers):
    layers[2]["inbound_nodes"][0]["args"][0]["config"]["keras_history"] = ["nobody", 0, 0]


def _cycle(config, layers):
    layers[2]["inbound_nodes"][0]["args"][0]["config"]["keras_history"] = ["inner", 0, 0]


def _no_output(config, layers):
    layers[2]["inbound_nodes"][0]["args"][0]["config"]["keras_history"] = ["i", 0, 1]


def _no_output_of_a_model(config, layers):
    next(part for part in layers if part["name"] == "head")["inbound_nodes"][0]["args"][0]["config"][
        "keras_history"
    ] = ["inner", 0, 2]


def _odd_history(config, layers):
    layers[2]["inbound_nodes"][0]["args"][0]["config"]["keras_history"] = ["i", "0", None]


def _no_layers(config, layers):
    config["config"]["layers"] = 3


def _twice(config, layers):
    layers[1]["config"]["name"] = layers[1]["name"] = "i"


CONFIGS = [
    (_lambda, NotImplementedError, "'one' .'Lambda'.: Lambda is not a layer of mp_core"),
    (_custom, NotImplementedError, "'one' .'system'.: there is no such layer in mp_core .module os"),
    (_as_dense_of_others, NotImplementedError, "module evil"),
    (_huge, ValueError, "layer 'one' has a length of 10000000000000, but"),
    (_huge_inputs, ValueError, "layer 'one' has a length of 1000000000000, but"),
    (_negative, ValueError, "a shape must be integers and None; received -5"),
    (_other_width, ValueError, r"layer 'one' needs weights \(kernel, bias\) of shapes .*3.*the stored shapes are"),
    (_no_source, NotImplementedError, "has no output Source.*nobody"),
    (_no_output, NotImplementedError, r"has no output Source\(layer='i', node=0, output=1\)"),
    (_no_output_of_a_model, NotImplementedError, r"has no output Source\(layer='inner', node=0, output=2\)"),
    (_cycle, NotImplementedError, "has a cycle among"),
    (_odd_history, NotImplementedError, r"must be \[layer, node, output\]"),
    (_no_layers, NotImplementedError, "must have a list of `layers`; received 3"),
    (_twice, NotImplementedError, "must have different names"),
]


@pytest.mark.parametrize(("change", "error", "match"), CONFIGS, ids=[row[0].__name__ for row in CONFIGS])
def test_hostile_configurations_are_refused(tmp_path, entries, change, error, match):
    with pytest.raises(error, match=match):
        load_keras(_written(tmp_path, _changed(entries, change)))


def _missing(file):
    del file["layers/sequential/layers/dense/vars/1"]


def _link(file):
    del file["layers/sequential/layers/dense"]
    file["layers/sequential/layers/dense"] = h5py.ExternalLink("/etc/passwd", "/")


def _bomb(file):
    group = file["layers/sequential/layers/dense/vars"]
    del group["0"]
    group.create_dataset("0", (4, 5 * 10**6), "f4", chunks=(4, 1000), compression="gzip")


def _text(file):
    group = file["layers/sequential/layers/dense/vars"]
    del group["1"]
    group["1"] = np.array([b"a"] * 5)


def _array_for_group(file):
    del file["layers/sequential/layers/dense/vars"]
    file["layers/sequential/layers/dense/vars"] = np.ones(3)


def _sparse(file):
    group = file["layers/sequential/layers/dense/vars"]
    del group["0"]
    group.create_dataset("0", (4, 5), "f4", chunks=(4, 5))


WEIGHTS = [
    (_missing, r"layer 'three' needs weights \(kernel, bias\) of shapes .* the stored shapes are \[\(4, 5\)\]"),
    (_link, "is neither a group nor an array"),
    (_bomb, "its arrays are chunked or compressed, which Keras does not write"),
    (_text, "its arrays have elements of class 3"),
    (_array_for_group, "must be a group of arrays"),
    (_sparse, "its arrays are chunked"),
]


@pytest.mark.parametrize(("change", "match"), WEIGHTS, ids=[row[0].__name__ for row in WEIGHTS])
def test_hostile_weights_are_refused(tmp_path, entries, change, match):
    with pytest.raises(ValueError, match=match):
        load_keras(_written(tmp_path, _weights(entries, change)))


def test_damaged_archives_are_refused(tmp_path, folder, entries):
    whole = (folder / "nested.keras").read_bytes()
    for content in (b"", b"no zip", whole[: len(whole) // 2], whole[:-1]):
        path = tmp_path / "damaged.keras"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"must be a \.keras file"):
            load_keras(path)
    for name in ("config.json", "model.weights.h5"):
        with pytest.raises(ValueError, match=f"has no entry {name}"):
            load_keras(_written(tmp_path, {key: value for key, value in entries.items() if key != name}))
    for content, match in ((b"{", r"must be a \.keras file"), (b"[" * 10**5, "nested"), (b"[]", "with a `class_name`")):
        with pytest.raises(ValueError, match=match):
            load_keras(_written(tmp_path, entries | {"config.json": content}))
    with pytest.raises(ValueError, match=r"model.weights.h5 of .*m\.keras: .*truncated"):
        load_keras(_written(tmp_path, entries | {"model.weights.h5": entries["model.weights.h5"][:3000]}))
    with pytest.raises(ValueError, match="would have"):
        load_keras(_written(tmp_path, entries | {"config.json": b" " * 10**8}, compression=zipfile.ZIP_DEFLATED))
    with pytest.raises(FileNotFoundError):
        load_keras(tmp_path / "none.keras")
    os.mkfifo(tmp_path / "pipe.keras")
    with pytest.raises(ValueError, match=r"pipe\.keras is not a regular file"):
        load_keras(tmp_path / "pipe.keras")
    with pytest.raises(TypeError, match="`path` must be a path"):
        load_keras(3)


@pytest.mark.parametrize("twice", ["config.json", "metadata.json", "model.weights.h5"])
def test_an_archive_with_two_entries_of_one_name_is_refused(tmp_path, twice):
    path = tmp_path / "m.keras"
    mp.Sequential([mp.layers.Input((2,)), mp.layers.Dense(1)]).save(path)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(twice, archive.read(twice))
    with pytest.raises(ValueError, match=rf"m\.keras: it has two entries {twice}; expected one"):
        load_keras(path)


METHODS = {zipfile.ZIP_DEFLATED: "Bad CRC", zipfile.ZIP_BZIP2: "method 12", zipfile.ZIP_LZMA: "method 14"}


@pytest.mark.parametrize("method", METHODS)
def test_an_entry_that_lies_about_its_size_takes_no_more_memory_than_it_says(tmp_path, method):
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", bytes(1 << 28), method)
        found = archive.getinfo("model.weights.h5")
    content = bytearray(path.read_bytes())
    claimed = min(90 * found.compress_size, found.file_size)
    struct.pack_into("<I", content, content.rfind(b"PK\1\2") + 24, claimed)  # the length in the directory
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ValueError, match=METHODS[method]):
        load_keras(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.5 * claimed + (1 << 23)


def _flipped(content, place, bit):
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    return bytes(changed)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_flipped_bit_of_an_archive_is_one_error_that_names_the_file(tmp_path, folder, method):
    with zipfile.ZipFile(folder / "int8_table.keras") as archive:
        path = _written(tmp_path, {name: archive.read(name) for name in archive.namelist()}, compression=method)
    whole, random = path.read_bytes(), np.random.default_rng(method)
    for place in random.integers(0, len(whole), 60):
        path.write_bytes(_flipped(whole, place, random.integers(8)))
        try:
            load_keras(path)  # a bit that nothing reads, such as that of a date
        except ValueError as error:
            assert str(path) in str(error)


@pytest.mark.parametrize("name", ["masked", "int4", "digits"])
def test_flipped_bits_of_weights_are_one_error_that_names_the_file(tmp_path, folder, name):
    with zipfile.ZipFile(folder / f"{name}.keras") as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    weights, random, refused = entries["model.weights.h5"], np.random.default_rng(1), 0
    for _ in range(40):
        changed = weights
        for place in random.integers(0, len(weights), 20):
            changed = _flipped(changed, place, random.integers(8))
        path = _written(tmp_path, entries | {"model.weights.h5": changed})
        try:
            load_keras(path)  # flipped bits of the weights themselves are other weights
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused


JUNK = [None, True, -1, 2**63, 10**30, 0.5, "", "x", [], {}, [[]], {"class_name": "Dense", "config": {}}, ["x", 0, 1]]


def _places(tree, path=()):
    """Yield the path of everything in a configuration."""
    for key in tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield (*path, key)
        yield from _places(tree[key], (*path, key))


@pytest.mark.filterwarnings("ignore:layer .* loads without")
@pytest.mark.parametrize("name", ["nested", "masked", "float32_attention"])
def test_changed_configurations_load_or_are_one_error_that_names_the_file(tmp_path, folder, name):
    with zipfile.ZipFile(folder / f"{name}.keras") as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    places, random, refused = list(_places(json.loads(entries["config.json"]))), np.random.default_rng(2), 0
    for number in random.integers(0, len(places), 60):
        config = part = json.loads(entries["config.json"])
        *above, last = places[number]
        for key in above:
            part = part[key]
        part[last] = JUNK[random.integers(len(JUNK))]
        path = _written(tmp_path, entries | {"config.json": json.dumps(config)})
        try:
            load_keras(path)
        except (ValueError, NotImplementedError) as error:
            assert str(path) in str(error)
            refused += 1
    assert refused


def test_other_entries_are_not_unpacked(tmp_path, entries):
    load_keras(_written(tmp_path, entries | {"../outside.txt": b"x", "/absolute.txt": b"y"}))
    assert [path.name for path in tmp_path.iterdir()] == ["m.keras"]
    assert not (tmp_path.parent / "outside.txt").exists()


def test_compressed_files_load(tmp_path, folder, entries):
    x = _arrays(folder, "nested", "x")
    model = load_keras(_written(tmp_path, entries, compression=zipfile.ZIP_DEFLATED))
    _close(_flat(model(x)), _arrays(folder, "nested", "want"), 1e-5)


def test_int4_of_an_older_keras_is_refused(tmp_path, folder):
    with zipfile.ZipFile(folder / "int4.keras") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    entries["metadata.json"] = json.dumps({"keras_version": "3.12.1"})
    with pytest.raises(ValueError, match=r"int4 weights need a file of Keras 3\.14 or newer"):
        load_keras(_written(tmp_path, entries))


def test_users_bring_layers_for_their_classes(tmp_path, folder, entries):
    class Mine(mp.layers.Dense):
        pass

    changed = _changed(entries, lambda config, layers: _inner(layers).update(module="mine", class_name="Mine"))
    with h5py.File(io.BytesIO(changed["model.weights.h5"])) as file:
        assert "dense" in file["layers/functional/layers"]
    renamed = _weights(changed, lambda file: file["layers/functional/layers"].move("dense", "mine"))
    renamed = _weights(renamed, lambda file: file["layers/functional/layers"].move("dense_1", "dense"))
    model = load_keras(_written(tmp_path, renamed), custom_objects={"Mine": Mine})
    assert any(isinstance(layer, Mine) for layer in model.flatten())
    _close(_flat(model(_arrays(folder, "nested", "x"))), _arrays(folder, "nested", "want"), 1e-5)
