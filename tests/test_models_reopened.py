"""Models that were adapted, quantized or frozen after training, saved and opened again: training continues."""

import json
import warnings
import zipfile

import numpy as np
import pytest
from conftest import run_with_keras

import mp_core as mp
from mp_core import layers
from mp_core.files import hdf5

rng = np.random.default_rng(0)
X = rng.standard_normal((32, 5, 8)).astype(np.float32)
IDS = rng.integers(0, 9, (32, 5))


def _dense(policy):
    return [mp.Input((5, 8)), layers.Dense(6, "gelu", dtype=policy), layers.Dense(3, dtype=policy)], X


def _einsum(policy):
    return [mp.Input((5, 8)), layers.EinsumDense("abc,cde->abde", (None, 2, 4), bias_axes="de", dtype=policy)], X


def _table(policy):
    return [mp.Input((5,), dtype="int32"), layers.Embedding(9, 6, dtype=policy), layers.Dense(3, dtype=policy)], IDS


class Attending(layers.Layer):
    """A user's layer, whose projections are adapted below it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(2, 4, dtype=self.dtype_policy)

    def call(self, x):
        return self.attention(x, x)


def _attention(policy):
    return [mp.Input((5, 8)), Attending(dtype=policy), layers.Dense(3, dtype=policy)], X


KINDS = {"dense": _dense, "einsum": _einsum, "table": _table, "attention": _attention}


def _trained(kind="dense", policy="float32", epochs=2):
    parts, x = KINDS[kind](policy)
    model = mp.Sequential(parts)
    model.compile(mp.optimizers.Adam(0.01), "mse")
    y = np.random.default_rng(1).standard_normal(model(x[:1]).shape[1:]).astype(np.float32)
    y = np.broadcast_to(y, (len(x), *y.shape))
    model.fit(x, y, epochs=epochs, batch_size=16, verbose=0)
    return model, x, y


def _adapted(model, x, y, epochs=2):
    for layer in model.flatten():
        if hasattr(layer, "enable_lora"):
            layer.enable_lora(2, lora_alpha=3.0)
    model.compile(mp.optimizers.Adam(0.01), "mse")
    model.fit(x, y, epochs=epochs, batch_size=16, verbose=0)


def _reopened(model, path, custom=None):
    model.save(path / "m.keras")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        again = mp.load_model(path / "m.keras", {"Attending": Attending} | (custom or {}))
    return again, [str(warning.message) for warning in told]


def _same(model, again):
    assert [v.name for v in model.weights] == [v.name for v in again.weights]
    for one, other in zip(
        [*model.weights, *model.optimizer.variables], [*again.weights, *again.optimizer.variables], strict=True
    ):
        assert one.numpy().dtype == other.numpy().dtype
        assert one.numpy().tobytes() == other.numpy().tobytes(), one.path


@pytest.mark.parametrize("quantized", [None, "int8", "int4", "int4/8"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_adapted_model_is_reopened_and_trained_on_with_the_same_bits(tmp_path, kind, quantized):
    model, x, y = _trained(kind)
    if quantized:
        model.quantize(quantized)
    _adapted(model, x, y)
    again, told = _reopened(model, tmp_path)
    assert not told
    _same(model, again)
    for each in (model, again):
        each.fit(x, y, epochs=2, batch_size=16, shuffle=False, verbose=0)
    _same(model, again)
    assert model.predict(x, verbose=0).tobytes() == again.predict(x, verbose=0).tobytes()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16", "mixed_float16", "float16"])
def test_an_adapted_model_of_16_bits_is_reopened_with_the_same_bits(tmp_path, policy):
    model, x, y = _trained(policy=policy)
    _adapted(model, x, y)
    again, told = _reopened(model, tmp_path)
    assert not told
    _same(model, again)


def test_without_the_optimizer_the_file_has_the_sum_alone(tmp_path):
    model, x, y = _trained()
    _adapted(model, x, y)
    model.save(tmp_path / "sum.keras", include_optimizer=False)
    again = mp.load_model(tmp_path / "sum.keras", compile=False)
    assert not again.layers[0].lora_kernel_b.numpy().any()
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-4, atol=1e-5)


CHANGES = {
    "enable_lora": (lambda model: model.layers[0].enable_lora(2), ["layers/dense/bias", "dense_1"], ["lora", "kernel"]),
    "quantize": (lambda model: model.quantize("int8"), ["layers/dense/bias", "layers/dense_1/bias"], []),
    "trainable": (
        lambda model: setattr(model.layers[0], "trainable", False), ["layers/dense_1/kernel", "layers/dense_1/bias"],
        ["layers/dense/kernel: momentum", "layers/dense/bias: velocity"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_optimizer_keeps_of_variables_that_are_still_trained_stays_theirs(tmp_path, change):
    model, x, y = _trained()
    kept = {variable.path: variable for variable in model.trainable_variables}
    places = {id(v): [s.numpy() for s in model.optimizer._states[id(v)]] for v in model.trainable_variables}
    do, _, told_of = CHANGES[change]
    do(model)
    again, told = _reopened(model, tmp_path)
    assert len(told) == bool(told_of) and all(part in text for part in told_of for text in told)
    found = 0
    for one, other in zip(model.weights, again.weights, strict=True):
        if other.trainable and any(other is v for v in again.trainable_variables):
            states = [s.numpy() for s in again.optimizer._states[id(other)]]
            if id(one) in places and any(one is v for v in kept.values()):
                found += 1
                for state, want in zip(states, places[id(one)], strict=True):
                    assert state.tobytes() == want.tobytes() and state.any()
            else:
                assert not any(state.any() for state in states)
    assert found >= 2 and int(again.optimizer.iterations) == int(model.optimizer.iterations)
    again.fit(x, y, epochs=1, verbose=0)


def test_moments_are_never_those_of_another_variable_of_the_same_shape(tmp_path):
    def stack():
        return mp.Sequential([mp.Input((4,)), *(layers.Dense(4, name=name) for name in "abc")])

    model, x = stack(), rng.standard_normal((16, 4)).astype(np.float32)
    model.layers[0].trainable = False
    model.compile("adam", "mse")
    model.fit(x, x, epochs=1, verbose=0)
    model.layers[0].trainable, model.layers[1].trainable = True, False
    again, told = _reopened(model, tmp_path)
    assert len(told) == 1 and "layers/dense/kernel: momentum" in told[0] and "layers/dense_1/kernel" in told[0]
    a, c = (again.optimizer._states[id(again.layers[place].kernel)][0].numpy() for place in (0, 2))
    assert not a.any()
    want = model.optimizer._states[id(model.layers[2].kernel)][0].numpy()
    assert c.tobytes() == want.tobytes()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_copy_under_another_policy_is_reopened(tmp_path, policy):
    model, x, y = _trained()
    copy = model.with_policy(policy)
    again, told = _reopened(copy, tmp_path)
    assert len(told) == (policy == "mixed_float16") and all("loss scale: dynamic_scale" in text for text in told)
    inner = getattr(again.optimizer, "inner_optimizer", again.optimizer)
    for one, other in zip(model.optimizer.variables, inner.variables, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()
    again.fit(x, y, epochs=1, verbose=0)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_loss_scale_that_was_given_stays_with_its_arguments(tmp_path, policy):
    model = mp.Sequential([mp.Input((3,)), mp.layers.Dense(2, dtype=policy)], dtype=policy)
    scaled = mp.optimizers.LossScaleOptimizer(mp.optimizers.Adam(), initial_scale=8.0, dynamic_growth_steps=3)
    model.compile(scaled, "mse")
    x, y = np.ones((8, 3), np.float32), np.ones((8, 2), np.float32)
    model.fit(x, y, batch_size=2, verbose=0)
    model.save(tmp_path / "model.keras")
    found = mp.load_model(tmp_path / "model.keras").optimizer
    assert type(found) is mp.optimizers.LossScaleOptimizer
    assert (found.dynamic_growth_steps, found.dynamic_scale) == (3, 16.0)  # it grew after 3 of 4 steps
    assert mp.models.model_from_json(model.to_json()).optimizer.dynamic_growth_steps == 3


def test_a_model_whose_codes_were_trained_is_reopened(tmp_path):
    model, x, y = _trained()
    model = mp.calibrate(model, x, "int8")
    mp.prepare_qat(model)
    model.compile(mp.optimizers.Adam(0.01), "mse")
    model.fit(x, y, epochs=1, verbose=0)
    mp.convert_qat(model)
    again, told = _reopened(model, tmp_path)
    assert not told and not any("growth" in name for name in again.optimizer.saved_names({}))
    assert model.predict(x, verbose=0).tobytes() == again.predict(x, verbose=0).tobytes()
    again.fit(x, y, epochs=1, verbose=0)


_QUANTIZED = pytest.mark.parametrize(
    ("policy", "copied"), [("float32", True), ("float32", False), ("mixed_bfloat16", False), ("mixed_float16", True)]
)


@_QUANTIZED
def test_the_file_of_codes_has_no_moments_of_the_kernels_that_they_were(tmp_path, policy, copied):
    """Keras keeps them in memory and writes them, and says that it skips them when it reads the file."""
    model, x, y = _trained(policy=policy)
    small = model.with_policy("int8_from_float32") if copied else model
    if not copied:
        small.quantize("int8")
    held = len(small.optimizer.variables)
    small.save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        stored = hdf5.read(archive.read("model.weights.h5"))["optimizer"]["vars"]
        names = json.loads(archive.read("metadata.json"))["optimizer_variables"]
    assert [*stored] == [str(number) for number in range(len(names))] and len(small.optimizer.variables) == held
    assert any("bias" in name for name in names) and not any("kernel" in name for name in names)
    again, told = _reopened(small, tmp_path)
    assert not told
    bias = again.layers[0].bias
    inner, known = (getattr(m.optimizer, "inner_optimizer", m.optimizer) for m in (again, small))
    for one, other in zip(inner._states[id(bias)], known._states[id(small.layers[0].bias)], strict=True):
        assert one.numpy().any() and one.numpy().tobytes() == other.numpy().tobytes()
    again.fit(x, y, epochs=1, verbose=0)


def test_a_model_that_trains_nothing_says_so(tmp_path):
    model, x, _ = _trained()
    model.trainable = False
    again, told = _reopened(model, tmp_path)
    assert len(told) == 1 and "nothing is trained" in told[0]
    assert model.predict(x, verbose=0).tobytes() == again.predict(x, verbose=0).tobytes()


@pytest.mark.parametrize("optimizer", ["SGD", "Adafactor", "Nadam", "Muon", "Ftrl", "RMSprop"])
@pytest.mark.parametrize("options", [{}, {"use_ema": True}, {"gradient_accumulation_steps": 2}])
def test_every_variable_of_an_optimizer_has_a_name_of_its_own(tmp_path, optimizer, options):
    model, x, y = _trained()
    model.compile(getattr(mp.optimizers, optimizer)(0.01, **options), "mse")
    model.fit(x, y, epochs=1, verbose=0)
    names = model.optimizer.saved_names({})
    assert len(set(names)) == len(names) == len(model.optimizer.variables)
    again, told = _reopened(model, tmp_path)
    assert not told
    _same(model, again)


# ---- the state of training


@_QUANTIZED
def test_the_state_of_codes_is_that_of_a_model_opened_anew(tmp_path, policy, copied):
    model, x, y = _trained(policy=policy)
    small = model.with_policy("int8_from_float32") if copied else model
    if not copied:
        small.quantize("int8")
    small.fit(x, y, epochs=1, verbose=0)
    small.save_training_state(tmp_path / "state")
    again, _ = _reopened(small, tmp_path)
    again.load_training_state(tmp_path / "state")
    again.save_training_state(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "state").read_bytes()
    held = len(small.optimizer.variables)
    small.load_training_state(tmp_path / "again")
    assert len(small.optimizer.variables) == held > len(again.optimizer.variables)
    for one in (small, again):
        one.fit(x, y, epochs=3, verbose=0)
    assert [w.tobytes() for w in small.get_weights()] == [w.tobytes() for w in again.get_weights()]


OTHERS = {
    "another class": lambda model: model.compile(mp.optimizers.AdamW(0.01, use_ema=True), "mse"),
    "one slot as well": lambda model: model.compile(mp.optimizers.RMSprop(0.01), "mse"),
    "less is trained": lambda model: (setattr(model.layers[0], "trainable", False), model.compile("adam", "mse")),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("built", [False, True])
def test_the_state_of_another_optimizer_is_refused_and_changes_nothing(tmp_path, other, built):
    model, x, y = _trained()
    if other == "one slot as well":
        model.compile(mp.optimizers.SGD(0.01, momentum=0.9), "mse")
        model.fit(x, y, epochs=1, verbose=0)
    model.save_training_state(tmp_path / "state")
    OTHERS[other](model)
    if built:
        model.fit(x, y, epochs=1, verbose=0)
    else:
        model.set_weights([weight + 1 for weight in model.get_weights()])
    before = [v.numpy().tobytes() for v in (*model.weights, *model.optimizer.variables)]
    with pytest.raises(ValueError, match=r"is of another optimizer: it is of a (Adam|SGD), the model .*: layers/dense"):
        model.load_training_state(tmp_path / "state")
    assert [v.numpy().tobytes() for v in (*model.weights, *model.optimizer.variables)] == before
    assert model.optimizer.built is built
    model.layers[0].trainable = True
    if not built:
        model.fit(x, y, epochs=1, verbose=0)  # of what is trainable now


# ---- Keras' files


@pytest.fixture(scope="module")
def keras_files(tmp_path_factory):
    path = tmp_path_factory.mktemp("reopened")
    for kind in ("dense", "table"):
        model, x, y = _trained(kind)
        _adapted(model, x, y)
        model.save(path / f"ours.{kind}.keras")
        np.savez(path / f"ours.{kind}.npz", x=x, outputs=model.predict(x, verbose=0))
    run_with_keras("keras_reopened.py", path, "jax")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["dense.int8", "einsum.int4", "table.int4", "attention.int8", "attention.int4", "attention.float8"]
)
def test_files_of_what_keras_quantized_after_training_open(keras_files, name):
    want = np.load(keras_files / f"{name}.npz")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = mp.load_model(keras_files / f"{name}.keras")
    outputs = model.predict(want["x"], verbose=0)
    np.testing.assert_allclose(outputs, want["outputs"], rtol=1e-5, atol=2e-6)
    assert any(layer.quantized for layer in model.flatten() if isinstance(layer, layers.Layer))
    model.fit(want["x"], want["outputs"], epochs=1, verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("dense", "lora"),
        ("dense", "lora.int8"),
        ("table", "int8.lora"),
        ("attention", "lora"),
        ("attention", "int8.lora"),
    ],
)
def test_files_of_what_keras_adapted_open(keras_files, kind, mode):
    want = np.load(keras_files / f"{kind}.{mode}.npz")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = mp.load_model(keras_files / f"{kind}.{mode}.keras")
    outputs, exact = model.predict(want["x"], verbose=0), mode == "lora"
    scale = np.abs(want["outputs"]).max()
    # Keras writes the sum of codes and floats as codes anew
    np.testing.assert_allclose(
        outputs, want["outputs"], rtol=1e-4 if exact else 1, atol=1e-5 if exact else 0.02 * scale
    )
    adapted = [layer for layer in model.flatten() if getattr(layer, "lora_enabled", False)]
    if kind != "attention":  # Keras' configuration of it says nothing of LoRA
        assert adapted and not told
        assert len(model.optimizer.variables) == int(want["variables"])
        for place, state in enumerate(model.optimizer.variables):
            np.testing.assert_array_equal(state.numpy(), want[f"optimizer.{place}"])
        before = adapted[0]._lora_variables[0].numpy()
        model.fit(want["x"], 0.5 * outputs, epochs=2, verbose=0)
        assert (adapted[0]._lora_variables[0].numpy() != before).any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "table"])
def test_keras_opens_our_adapted_models(keras_files, kind):
    want, found = np.load(keras_files / f"ours.{kind}.npz"), np.load(keras_files / f"ours.{kind}.out.npz")
    np.testing.assert_allclose(found["outputs"], want["outputs"], rtol=1e-4, atol=1e-5)
    assert not found["told"].size
    model = mp.load_model(keras_files / f"ours.{kind}.keras")
    for place, state in enumerate(model.optimizer.variables):
        np.testing.assert_array_equal(state.numpy(), found[f"optimizer.{place}"])
