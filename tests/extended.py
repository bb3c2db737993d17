"""Use what a diff of docs/extending.md adds: `python extended.py RECIPE FOLDER FILE...`, which imports the copy.

The files are those that the diff changes: the examples of their docstrings run.

`overlay` returns the code that makes a process import Python files from the copy. Compiled modules are those of mp_core
as it is installed.
"""

import doctest
import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np

import mp_core as mp

OVERLAY = """
import importlib.util, sys
from pathlib import Path

COPY, INSTALLED = {copy!r}, {installed!r}


class Overlay:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] != "mp_core":
            return None
        place = Path(COPY, *name.split("."))
        if (place / "__init__.py").exists():
            folders = [str(place), str(Path(INSTALLED, *name.split(".")))]
            return importlib.util.spec_from_file_location(
                name, place / "__init__.py", submodule_search_locations=folders)
        file = place.with_suffix(".py")
        return importlib.util.spec_from_file_location(name, file) if file.exists() else None


sys.meta_path.insert(0, Overlay)
"""
RNG = np.random.default_rng(0)
X = RNG.standard_normal((64, 3), np.float32)
Y = (X @ np.float32([[1], [-2], [0.5]])).astype(np.float32)


def overlay(copy, installed):
    """Return the text of a `sitecustomize.py`."""
    return OVERLAY.format(copy=str(copy), installed=str(installed))


def fitted(*layers, optimizer=None, loss="mse", epochs=2, **options):
    """Return a model of these layers, always with the same first weights, and what `fit` returns."""
    metrics, optimizer = options.pop("metrics", None), optimizer or mp.optimizers.SGD(0.1)
    mp.utils.set_random_seed(0)
    model = mp.Sequential([mp.Input((3,)), *layers])
    model.compile(optimizer, loss, metrics=metrics)
    return model, model.fit(X, Y, epochs=epochs, verbose=0, **options)


def a_layer(folder):
    layer = mp.layers.LayerScale(0.5)
    np.testing.assert_array_equal(layer(X), X * np.float32(0.5))
    np.testing.assert_array_equal(mp.compile(layer, X)(-X), -X * np.float32(0.5))
    assert layer.compute_output_shape((None, 7)) == (None, 7)
    half = mp.layers.LayerScale.from_config(layer.get_config() | {"dtype": "mixed_bfloat16"})
    assert half(X).dtype == "bfloat16" and half.scale.dtype == "float32"
    model, history = fitted(layer, mp.layers.Dense(1), epochs=20)
    assert history.history["loss"][-1] < 0.5 * history.history["loss"][0] and (layer.scale.numpy() != 0.5).any()
    model.save(folder / "model.keras")
    np.testing.assert_array_equal(
        mp.load_model(folder / "model.keras").predict(X, verbose=0), model.predict(X, verbose=0)
    )


def the_gradient_of_an_operation(folder):
    for dtype in ("float32", "bfloat16", "float64"):
        x = mp.AutoCastVariable(mp.cast([3.0, 4.0], dtype), autocast=False)
        value, (gradient,) = mp.value_and_grad(lambda x=x: mp.sum(mp.ops.scale_gradient(x, -0.5) * x.numpy()), [x])()
        assert float(value) == 25 and gradient.dtype == dtype
        np.testing.assert_array_equal(gradient.astype(np.float32), [1.5, 2.0])  # (1 - 0.5) x


def an_optimizer(folder):
    optimizer = mp.optimizers.get({"class_name": "Signum", "config": {"learning_rate": 0.5, "beta": 0.75}})
    assert mp.optimizers.deserialize(mp.optimizers.serialize(optimizer)).beta == 0.75
    variable = mp.AutoCastVariable([1.0, 1.0, 1.0])
    w, m = np.ones(3, np.float32), np.zeros(3, np.float32)
    for gradient in np.float32([[1, -1, 0], [-8, -1, 0]]):
        optimizer.apply([gradient], [variable])
        m += (gradient - m) * np.float32(0.25)
        w -= np.sign(m) * np.float32(0.5)
    np.testing.assert_array_equal(variable.numpy(), w)
    assert w.tolist() == [1, 2, 1]
    _, history = fitted(mp.layers.Dense(1), optimizer=mp.optimizers.Signum(0.05), epochs=20)
    assert history.history["loss"][-1] < 0.5 * history.history["loss"][0]


def a_loss(folder):
    found = mp.losses.get("pinball")(Y, np.zeros_like(Y), 0.9)
    np.testing.assert_allclose(found, np.where(Y > 0, 0.9 * Y, -0.1 * Y)[:, 0], rtol=1e-5)
    loss = mp.losses.deserialize(mp.losses.serialize(mp.losses.Pinball(quantile=0.9)))
    _, history = fitted(mp.layers.Dense(1), loss=loss, optimizer="adam", epochs=20)
    assert history.history["loss"][-1] < history.history["loss"][0]


def a_metric(folder):
    metric = mp.metrics.get("max_error")
    metric.update_state(Y, np.zeros_like(Y))
    assert metric.result() == np.abs(Y).max()
    metric.update_state([[9.0], [0.0]], [[0.0], [9.5]], sample_weight=[1.0, 0.0])
    assert metric.result() == 9 and type(metric.result()) is np.float32
    stop = mp.callbacks.EarlyStopping("max_error", patience=3)
    model, history = fitted(mp.layers.Dense(1), metrics=["max_error"], callbacks=[stop])
    assert len(history.history["max_error"]) == 2 and model.direction_of("max_error") == "down"


def a_callback(folder):
    limit = mp.callbacks.Deadline(3600.0)
    _, history = fitted(mp.layers.Dense(1), callbacks=[limit])
    assert len(history.epoch) == 2 and 0 < limit.spent < 3600 and limit.get_state() == {"spent": limit.spent}
    assert len(fitted(mp.layers.Dense(1), epochs=9, callbacks=[mp.callbacks.Deadline(0)])[1].epoch) == 1
    limit.set_state({"spent": 7200.0})
    limit.set_model(mp.Sequential([mp.layers.Dense(1)]))
    limit.on_epoch_end(0)
    assert limit.model.stop_training
    try:
        limit.set_state({"spent": "long"})
    except ValueError as error:
        assert "spent" in str(error)
    else:
        raise AssertionError("a wrong state was taken")


def an_architecture(folder):
    import random_models

    random_models.ARCHITECTURES["data2vec-text"] = ("Data2VecText", {"pad_token_id": 1})
    network = random_models.made("data2vec-text")
    model = mp.models.TextEncoder.from_folder(random_models.save(network, folder)).model
    ids, mask = random_models.ragged(1)
    expected, received = random_models.outputs(network, ids, mask)[mask > 0], model(ids, mask=mask)[mask > 0]
    errors = np.linalg.norm(received - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert errors.max() < 1e-5  # as in test_architectures.py
    sys.path.insert(0, str(copied("docs")))
    rows = importlib.import_module("models_table").rows()
    assert "\n".join(rows) in copied("docs/models.md").read_text()


def a_command(folder):
    from mp_core import cli

    assert cli.main(["formats", f"--json={folder / 'formats'}"]) == 0
    found = json.loads((folder / "formats").read_text())["formats"]
    assert found["float8_e4m3fn"] == {"bits": 8, "largest": 448.0, "smallest": 2**-9}
    assert found["bfloat16"]["largest"] == float(mp.dtypes.finfo("bfloat16").max)
    assert "## `mp-core formats`" in copied("docs/cli.md").read_text()


def a_route(folder):
    import servers
    import tiny_bert

    server = servers.Server(tiny_bert.write(folder / "encoder"), log=folder / "log")
    try:
        body = {"inputs": ["a b", "", "c"]}
        counts = server.get("/count", body)
        assert counts == list(map(len, server.get("/tokenize", body))) and counts[0] > counts[1]
        assert server.ask("/count", {"inputs": 1})[0] == 422
    finally:
        server.stop()


def a_policy(folder):
    from mp_core import cli

    layer = mp.layers.Dense(8, use_bias=False, dtype="float32")
    floats = layer(X)
    layer = layer.with_policy("int4/dynamic/tensor_from_float32")
    assert layer.matrix.scale.size == 1 and layer.matrix.dtype == "int4"
    rows = mp.dequantize(mp.quantize(X, axis=0))
    np.testing.assert_allclose(layer(X), rows @ mp.dequantize(layer.matrix).T, rtol=1e-5, atol=1e-5)
    assert np.abs(layer(X) - floats).max() < 0.2 * np.abs(floats).max()
    assert cli.main(["help", "policies"]) == 0


def copied(name):
    """Return a path in the copy that this process imports."""
    return Path(mp.__file__).parents[1] / name


def check_api_page():
    """Check that every public name of the rooms has a line on the page of the API."""
    names = set(re.findall(r"^   ~(mp_core\.\S+)$", copied("docs/api.md").read_text(), re.M))
    for room in ("callbacks", "layers", "losses", "metrics", "optimizers"):
        module = importlib.import_module(f"mp_core.{room}")
        public = {f"mp_core.{room}.{name}" for name in module.__all__ if isinstance(getattr(module, name), type)}
        pages = {id(getattr(module, name.rpartition(".")[2], None)) for name in names}
        assert {name for name in public - names if id(getattr(module, name.rpartition(".")[2])) not in pages} == set()


def check_examples(file):
    """Run the examples of the docstrings of a module."""
    name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    module, runner = importlib.import_module(name), doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder().find(module, name, extraglobs={"__name__": "__main__"}):
        assert not runner.run(test).failed


if __name__ == "__main__":
    recipe, folder, *files = sys.argv[1:]
    globals()[recipe.lower().replace(" ", "_")](Path(folder))
    check_api_page()
    for file in files:
        check_examples(file)
