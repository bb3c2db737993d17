"""Masks in training: losses and metrics count unmasked elements; and the names of metrics in the logs."""

import copy
import os

import numpy as np
import pytest

import mp_core as mp
from mp_core import layers

os.environ.setdefault("KERAS_BACKEND", "torch")  # on JAX the values are the same, and each new shape takes a second
keras = pytest.importorskip("keras")

rng = np.random.default_rng(0)


def tagger(library):
    """Return a model with an output for each token, which has the mask of the tokens, and one for all."""
    layers = library.layers
    ids = library.Input((5,), dtype="int32")
    hidden = layers.Dense(4, activation="tanh")(layers.Embedding(7, 4, mask_zero=True)(ids))
    outputs = [layers.Dense(3, name="tokens")(hidden), layers.Dense(2, name="all")(layers.GlobalMaxPooling1D()(hidden))]
    found, state = library.Model(ids, outputs), np.random.default_rng(1)
    found.set_weights([state.standard_normal(w.shape).astype(np.float32) for w in found.get_weights()])
    losses = [library.losses.SparseCategoricalCrossentropy(from_logits=True), "mse"]
    metrics = {"metrics": [["accuracy"], ["mae"]], "weighted_metrics": [["accuracy"], []]}
    found.compile(library.optimizers.SGD(0.1), losses, **metrics)
    return found


IDS = np.array([[1, 2, 0, 0, 0], [3, 4, 5, 6, 0], [1, 1, 1, 1, 1], [2, 0, 0, 0, 0]])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.filterwarnings("ignore:Layer 'global_max:UserWarning")  # destroys the mask
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
def test_losses_and_metrics_count_what_a_mask_has_as_in_keras(weighted):
    y, z = rng.integers(0, 3, (4, 5)), rng.standard_normal((4, 2)).astype(np.float32)
    weights = [rng.uniform(0, 1, (4, 5)).astype(np.float32), rng.uniform(0, 1, 4).astype(np.float32)]
    given = {"sample_weight": weights} if weighted else {}
    mine, other = tagger(mp), tagger(keras)
    logs, theirs = (
        m.fit(IDS, [y, z], batch_size=2, epochs=3, shuffle=False, verbose=0, **given).history for m in (mine, other)
    )
    assert logs.keys() == theirs.keys()
    for name, values in theirs.items():
        np.testing.assert_allclose(logs[name], values, rtol=1e-4, err_msg=name)
    after, expected = (m.evaluate(IDS, [y, z], verbose=0, return_dict=True, **given) for m in (mine, other))
    assert after == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match="outputs with a mask, so `passes` must be 1"):
        mine.train_on_batch(IDS, [y, z], passes=2)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
def test_attention_trains_under_masks_as_in_keras():
    def attending(library):
        ids = library.Input((5,), dtype="int32")
        vectors = library.layers.Embedding(7, 4, mask_zero=True)(ids)
        attended = library.layers.MultiHeadAttention(2, 3)(vectors, vectors, use_causal_mask=True)
        found, state = library.Model(ids, library.layers.Dense(2)(attended)), np.random.default_rng(1)
        found.set_weights([state.uniform(-0.5, 0.5, w.shape).astype(np.float32) for w in found.get_weights()])
        found.compile(library.optimizers.SGD(0.05), "mse")
        return found

    y = rng.standard_normal((4, 5, 2)).astype(np.float32)
    mine, theirs = (attending(library).fit(IDS, y, epochs=4, verbose=0).history["loss"] for library in (mp, keras))
    assert mine == pytest.approx(theirs, rel=1e-4) and mine[-1] < mine[0]


class Positive(layers.Layer):
    """A layer of a user that makes a mask."""

    supports_masking = True

    def call(self, inputs):
        return inputs

    def compute_mask(self, inputs, previous_mask=None):
        return mp.ops.greater(mp.ops.max(inputs, axis=-1), 0.0)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
def test_a_graph_has_the_masks_that_its_layers_make():
    def made(library, layer):
        inputs = library.Input((4, 2))
        found = library.Model(inputs, library.layers.Dense(1)(layer(inputs)))
        found.set_weights([np.full((2, 1), 0.5, np.float32), np.zeros(1, np.float32)])
        found.compile(library.optimizers.SGD(0.1), "mse", metrics=["mae"])
        return found

    x, y = rng.uniform(0.1, 1, (3, 4, 2)).astype(np.float32), np.ones((3, 4, 1), np.float32)
    x[0, 2:] = x[1, 1:] = 0
    expected = made(keras, keras.layers.Masking()).fit(x, y, epochs=2, verbose=0).history
    for layer in (layers.Masking(), mp.Sequential([layers.Masking()]), Positive()):
        found = made(mp, layer).fit(x, y, epochs=2, verbose=0).history
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)


def test_masks_run_no_layer_whose_outputs_they_do_not_need():
    calls = []

    class Counted(layers.Dense):
        def call(self, inputs):
            calls.append(self.name)
            return super().call(inputs)

    ids = mp.Input((5,), dtype="int32")
    hidden = layers.Embedding(7, 4, mask_zero=True)(ids)
    added = layers.Add()([hidden, Counted(4)(hidden)])
    model = mp.Model(ids, Counted(3)(added))
    calls.clear()
    assert model.compute_mask(IDS).tolist() == (IDS != 0).tolist() and not calls
    model.compile("sgd", "mse")
    model.train_on_batch(IDS, np.ones((4, 5, 3)))
    (step,) = model._training_state._step._plans._kept.values()
    assert [note.name for note in step._current().notes].count("not_equal") == 2  # forward, and in the loss


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
def test_masks_that_meet_train_as_in_keras():
    def made(library):
        inputs = [library.Input((5,), dtype="int32") for _ in range(2)]
        vectors = [library.layers.Embedding(7, 4, mask_zero=True)(each) for each in inputs]
        found, state = (
            library.Model(inputs, library.layers.Dense(3)(library.layers.Add()(vectors))),
            np.random.default_rng(2),
        )
        found.set_weights([state.standard_normal(w.shape).astype(np.float32) for w in found.get_weights()])
        found.compile(library.optimizers.SGD(0.1), "mse", metrics=["mae"])
        return found

    y = rng.standard_normal((4, 5, 3)).astype(np.float32)
    mine, other = (made(library).fit([IDS, IDS[::-1].copy()], y, epochs=3, shuffle=False, verbose=0).history
                   for library in (mp, keras))  # fmt: skip
    for name, values in other.items():
        np.testing.assert_allclose(mine[name], values, rtol=1e-4, err_msg=name)


def test_the_mask_beside_attention_stays_unlike_in_keras():
    """docs/different.md says so."""
    vectors = layers.Embedding(7, 4, mask_zero=True)(ids := mp.Input((5,), dtype="int32"))
    added = layers.Add()([vectors, layers.MultiHeadAttention(2, 3)(vectors, vectors)])
    model = mp.Model(ids, added)
    model.compile("sgd", "mse")
    found = model.evaluate(IDS, np.ones((4, 5, 4), np.float32), verbose=0)
    kept = IDS != 0
    np.testing.assert_allclose(found, np.mean((model.predict(IDS, verbose=0)[kept] - 1) ** 2), rtol=1e-5)


def test_a_stack_with_a_mask_learns_from_what_counts():
    trained = mp.Sequential([mp.Input((5,), dtype="int32"), layers.Embedding(7, 4, mask_zero=True), layers.Dense(3)])
    trained.compile("sgd", mp.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    y = np.where(IDS == 0, 0, 1 + IDS % 2)
    changed = np.where(IDS == 0, 2, y)  # where nothing counts
    first, second = trained.evaluate(IDS, y, verbose=0), trained.evaluate(IDS, changed, verbose=0)
    assert first == second
    other = copy.deepcopy(trained)
    trained.fit(IDS, y, verbose=0)
    other.fit(IDS, changed, verbose=0)
    for mine, theirs in zip(trained.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_metrics_of_one_name_are_all_in_the_logs():
    trained = mp.Sequential([mp.Input((4,)), layers.Dense(2)])
    trained.compile("sgd", "mse", metrics=["mae", mp.metrics.MeanAbsoluteError(name="mae")], weighted_metrics=["mae"])
    x, y = rng.standard_normal((8, 4)), rng.standard_normal((8, 2))
    found = trained.evaluate(x, y, verbose=0, return_dict=True)
    assert list(found) == ["loss", "mae", "mae_1", "weighted_mae"]
    assert found["mae"] == found["mae_1"] == found["weighted_mae"]


@pytest.mark.parametrize(
    ("shape", "of_mask"),
    [((3, 4, 2), (3, 1)), ((3, 4, 2), (1, 4)), ((3, 4, 2), (1, 1)), ((3, 4, 5, 2), (3, 1, 1)),
     ((3, 4, 5, 2), (3, 1, 5)), ((3, 4, 5, 2), (1, 4, 5)), ((6, 2), (1,)), ((3, 4, 2), (3, 4))],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
def test_batch_normalization_takes_masks_that_broadcast_as_in_keras(shape, of_mask):
    x, mask = rng.standard_normal(shape).astype(np.float32), rng.uniform(size=of_mask) > 0.4
    mask.flat[0] = True
    mine, theirs = layers.BatchNormalization(), keras.layers.BatchNormalization()
    found, expected = (
        mine(x, training=True, mask=mask),
        theirs(x, training=True, mask=keras.ops.convert_to_tensor(mask)),
    )
    np.testing.assert_allclose(found, keras.ops.convert_to_numpy(expected), rtol=1e-4, atol=1e-5)
    for name in ("moving_mean", "moving_variance"):
        moved = keras.ops.convert_to_numpy(getattr(theirs, name))
        np.testing.assert_allclose(getattr(mine, name).numpy(), moved, rtol=1e-5, atol=1e-7)


def test_batch_normalization_trains_under_a_mask_that_broadcasts():
    """A plan and a call that nobody records have the same bits."""

    class Rows(layers.Layer):
        def __init__(self):
            super().__init__()
            self.normalization = layers.BatchNormalization()

        def call(self, inputs, training=False):
            mask = mp.ops.greater(mp.ops.max(inputs, axis=(1, 2), keepdims=True)[..., 0], 0.0)
            return self.normalization(inputs, training=training, mask=mask)

    x = rng.standard_normal((4, 5, 3)).astype(np.float32)
    x[2] = -1.0
    layer, model = Rows(), mp.Sequential([mp.Input((5, 3)), Rows()])
    model.compile(mp.optimizers.SGD(0.0), "mse")
    model.train_on_batch(x, np.zeros_like(x))
    layer(x, training=True)
    for mine, recorded in zip(layer.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, recorded)
    kept = x[[0, 1, 3]].reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(layer.normalization.moving_mean.numpy(), 0.01 * kept.mean(0), rtol=1e-5)


@pytest.mark.parametrize("of_mask", [(4,), (3,), (3, 4, 1), (2, 4), (3, 4, 2)])
def test_batch_normalization_refuses_a_mask_that_does_not(of_mask):
    with pytest.raises(ValueError, match=r"`mask` must broadcast to \(3, 4\), with as many axes; received"):
        layers.BatchNormalization()(np.ones((3, 4, 2), np.float32), training=True, mask=np.ones(of_mask, bool))
