"""Files of models: Keras opens them, and the reverse; they are written completely or not at all."""

import sys
import zipfile

import numpy as np
import processes
import pytest
from conftest import run_with_keras

import mp_core as mp
from mp_core import layers
from mp_core.interop.keras import load_keras

rng = np.random.default_rng(0)


def _x(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def _shaken(model):
    model.set_weights([w + 0.1 * rng.random(w.shape).astype(w.dtype) for w in model.get_weights()])
    return model


def images():
    x = mp.Input((8, 8, 1), name="x")
    h = layers.BatchNormalization()(layers.Conv2D(4, 3, activation="relu")(x))
    h = layers.Flatten()(layers.MaxPooling2D(2)(h))
    both = layers.Dense(3, dtype="mixed_bfloat16")(h) * 2 + layers.Dense(3)(h)
    return mp.Model(x, layers.Activation("softmax", dtype="float32")(both)), [_x(5, 8, 8, 1)]


def attention():
    ids = mp.Input((6,), dtype="int32")
    rows = layers.Embedding(9, 8)(ids)
    rows = layers.LayerNormalization()(rows + layers.MultiHeadAttention(2, 4)(rows, rows))
    head = mp.Sequential([mp.Input((8,)), layers.Dense(2)], name="head")
    return mp.Model(ids, head(layers.GlobalAveragePooling1D()(rows))), [rng.integers(0, 9, (5, 6))]


def two():
    a, b = mp.Input((3,), name="a"), mp.Input((3,), name="b")
    shared = layers.Dense(4)
    one, other = shared(a), shared(b)
    return mp.Model([a, b], [one - other, layers.Concatenate()([one, other])]), [_x(4, 3), _x(4, 3)]


def stack():
    return mp.Sequential([mp.Input((5,)), layers.Dense(4, "gelu"), layers.Dropout(0.1), layers.Dense(2)]), [_x(4, 5)]


def lengths():
    model = mp.Sequential([layers.Dense(4), layers.Dense(2)])
    model.build((None, None, 5))
    return model, [_x(4, 7, 5)]


MODELS = {make.__name__: make for make in (images, attention, two, stack, lengths)}


def _outputs(model, inputs):
    outputs = model.predict(inputs[0] if len(inputs) == 1 else inputs, verbose=0)
    return outputs if isinstance(outputs, list) else [outputs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The models in files, and what Keras makes of them."""
    path = tmp_path_factory.mktemp("archives")
    found = {}
    for name, make in MODELS.items():
        model, inputs = make()
        _shaken(model).save(path / f"{name}.keras")
        np.savez(path / f"{name}.npz", *inputs)
        found[name] = model, inputs
    run_with_keras("keras_archives.py", path, "jax")
    return path, found


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_keras_opens_the_file_and_computes_the_same(folder, name):
    path, found = folder
    want = [*np.load(path / f"{name}.out.npz").values()]
    for got, other in zip(_outputs(*found[name]), want, strict=True):
        np.testing.assert_allclose(got, other, rtol=1e-5, atol=2e-2 if name == "images" else 1e-6)  # bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_file_and_that_of_keras_give_back_the_model(folder, name):
    path, found = folder
    model, inputs = found[name]
    for file in (f"{name}.keras", f"{name}.again.keras"):
        again = load_keras(path / file)
        assert type(again) is type(model)
        for got, want in zip(_outputs(again, inputs), _outputs(model, inputs), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_weights_of_keras_are_loaded(folder, name):
    path, found = folder
    model, _ = found[name]
    other, _ = MODELS[name]()
    other.load_weights(path / f"{name}.weights.h5")
    for got, want in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_files_are_written_and_read_without_h5py(tmp_path):
    model, _ = stack()
    model.save(tmp_path / "m.keras")
    code = (
        "import sys; sys.modules['h5py'] = None; import numpy as np; from mp_core.interop.keras import load_keras; "
        f"model = load_keras({str(tmp_path / 'm.keras')!r}); model.save_weights({str(tmp_path / 'm.weights.h5')!r}); "
        f"model.load_weights({str(tmp_path / 'm.weights.h5')!r})"
    )
    processes.run([sys.executable, "-c", code], check=True)


class Own(mp.Model):
    def __init__(self):
        super().__init__()
        self.first = layers.Dense(3)
        self.blocks = [layers.Dense(3), layers.Dense(3)]

    def call(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def test_weights_of_a_subclass_go_through_a_file(tmp_path):
    model, other, x = Own(), Own(), _x(4, 5)
    want = model(x)
    model.save_weights(tmp_path / "own.weights.h5")
    other(x)
    other.load_weights(tmp_path / "own.weights.h5")
    np.testing.assert_array_equal(other(x), want)


def test_weights_of_16_bits_are_in_the_file_exactly(tmp_path):
    model = mp.Sequential([mp.Input((5,)), layers.Dense(4, dtype="bfloat16")])
    model.save_weights(tmp_path / "m.weights.h5")
    before = model.get_weights()
    model.set_weights([np.zeros_like(w) for w in before])
    model.load_weights(tmp_path / "m.weights.h5")
    for got, want in zip(model.get_weights(), before, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_weights_of_another_model_change_nothing(tmp_path):
    model = mp.Sequential([mp.Input((5,)), layers.Dense(4, name="one"), layers.Dense(2, name="two")])
    other = mp.Sequential([mp.Input((5,)), layers.Dense(4), layers.Dense(3)])
    other.save_weights(tmp_path / "other.weights.h5")
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"layer 'two' needs weights of shapes .*it is of another model"):
        model.load_weights(tmp_path / "other.weights.h5")
    assert all(np.array_equal(got, want) for got, want in zip(model.get_weights(), before, strict=True))
    with pytest.warns(UserWarning, match="layer 'two'.*skipped"):
        model.load_weights(tmp_path / "other.weights.h5", skip_mismatch=True)
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), other.layers[0].kernel.numpy())


def test_a_write_that_fails_leaves_the_file_of_before(tmp_path, monkeypatch):
    model, _ = stack()
    path = tmp_path / "m.keras"
    model.save(path)
    before = path.read_bytes()
    monkeypatch.setattr("mp_core.files.hdf5.write", lambda *_: (_ for _ in ()).throw(ValueError("disk full")))
    with pytest.raises(ValueError, match="disk full"):
        model.save(path)
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]


def test_an_interrupt_between_the_members_of_a_file_is_that_interrupt(tmp_path, monkeypatch):
    model = images()[0]
    model.save(tmp_path / "model.keras")
    before = (tmp_path / "model.keras").read_bytes()

    def interrupted(member):
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile._ZipWriteFile, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.save(tmp_path / "model.keras")
    assert (tmp_path / "model.keras").read_bytes() == before


def test_bad_paths_and_states_are_refused(tmp_path):
    model, _ = stack()
    for call, error, message in (
        (lambda: model.save(tmp_path / "m.h5"), ValueError, "must end in .keras"),
        (lambda: model.save_weights(tmp_path / "m.h5"), ValueError, "must end in .weights.h5"),
        (
            lambda: mp.Sequential([layers.Dense(2)]).load_weights(tmp_path / "x.weights.h5"),
            ValueError,
            "no weights yet",
        ),
        (lambda: model.load_weights(tmp_path / "none.weights.h5"), FileNotFoundError, "none"),
    ):
        with pytest.raises(error, match=message):
            call()
    (tmp_path / "bad.weights.h5").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"must be a .weights.h5 or .keras file"):
        model.load_weights(tmp_path / "bad.weights.h5")
    model.save(tmp_path / "m.keras")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        model.save(tmp_path / "m.keras", overwrite=False)
