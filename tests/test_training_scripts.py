"""Scripts as users of Keras write them, run with mp_core and with Keras from the same weights."""

import os

import numpy as np
import pytest

import mp_core as mp

os.environ.setdefault("KERAS_BACKEND", "torch")  # on JAX the values are the same, and each new shape takes a second
keras = pytest.importorskip("keras")

rng = np.random.default_rng(0)
IDS = rng.integers(0, 5, (16, 7))
FLOAT_IDS = IDS.astype(np.float32) + np.float32(0.25)
X = rng.standard_normal((16, 8)).astype(np.float32)
Y = rng.standard_normal((16, 1)).astype(np.float32)


def with_weights(model):
    state = np.random.default_rng(1)
    model.set_weights([state.uniform(-0.5, 0.5, w.shape) if w.ndim > 1 else w for w in model.get_weights()])
    return model


def trained(k, model, x, y=Y, loss="mse", **options):
    """Return the logs of a model and its weights after six steps of Adam."""
    with_weights(model).compile(k.optimizers.Adam(0.01), loss, **options)
    history = model.fit(x, y, epochs=3, batch_size=8, shuffle=False, verbose=0).history
    return {**history, **{f"weight {i}": w for i, w in enumerate(model.get_weights())}}


def joined_masks(k, axis, second_has_mask=True):
    a, b, table = k.Input((7,), dtype="int32"), k.Input((7,), dtype="int32"), k.layers.Embedding(5, 4, mask_zero=True)
    other = table(b) if second_has_mask else k.layers.Embedding(5, 4)(b)
    hidden = k.layers.GlobalAveragePooling1D()(k.layers.Concatenate(axis)([table(a), other]))
    return trained(k, k.Model([a, b], k.layers.Dense(1)(hidden)), [IDS, IDS[::-1]])


def indices(k, dtype, ids=FLOAT_IDS):
    layers = [k.layers.Embedding(5, 4), k.layers.Flatten(), k.layers.Dense(1)]
    model = k.Sequential([k.Input((7,), dtype=dtype), *layers])
    logs = trained(k, model, ids)
    return logs | {"outputs": model.predict(IDS.astype(np.float64), verbose=0)}


def float_indices_by_name(k):
    ids, x = k.Input((7,), dtype="int64", name="ids"), k.Input((8,), name="x")
    vectors = k.layers.Flatten()(k.layers.Embedding(5, 4)(ids))
    model = k.Model({"ids": ids, "x": x}, k.layers.Dense(1)(k.layers.Concatenate()([vectors, x])))
    return trained(k, model, {"x": X, "ids": IDS.astype(np.float32)})


def any_length(k):
    layers = [k.layers.Embedding(5, 4), k.layers.Conv1D(3, 3), k.layers.GlobalMaxPooling1D(), k.layers.Dense(1)]
    return trained(k, k.Sequential([k.Input((None,), dtype="int64"), *layers]), IDS)


def categories(k, mode):
    encode = k.layers.CategoryEncoding(num_tokens=5, output_mode=mode)
    return trained(k, k.Sequential([k.Input((7,), dtype="int32"), encode, k.layers.Dense(1)]), IDS)


def windows(k):
    layers = [k.layers.Reshape((4, 2, 1)), k.layers.MaxPooling2D(), k.layers.Flatten(), k.layers.Dense(1)]
    return trained(k, k.Sequential([k.Input((8,)), *layers]), X)


def two_losses(k):
    x = k.Input((8,))
    model = k.Model(x, [k.layers.Dense(1, name="a")(x), k.layers.Dense(1, name="b")(x)])
    return trained(k, model, X, [Y, 2 * Y], loss=["mse", ["mae"]], loss_weights=[0.25, 3.0])


def an_output_without_loss(k):
    x = k.Input((8,))
    return trained(k, k.Model(x, [k.layers.Dense(1)(x), k.layers.Dense(1)(x)]), X, [Y, Y], loss=["mse", None])


def own_metrics(k):
    class Counted(k.metrics.Metric):
        def __init__(self):
            super().__init__(name="counted")
            self.samples = self.add_variable(shape=(), initializer="zeros", name="samples")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.samples.assign(self.samples + 1.0)

        def result(self):
            return self.samples

    class Followed(k.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.batches = k.metrics.Sum(name="batches")

        def train_step(self, data):
            self.batches.update_state(1.0)
            return super().train_step(data)

    x = k.Input((8,))
    return trained(k, Followed(x, k.layers.Dense(1)(x)), X, metrics=[Counted()])


def a_rate_by_the_epoch_alone(k):
    model = with_weights(k.Sequential([k.Input((8,)), k.layers.Dense(1)]))
    model.compile("sgd", "mse")
    scheduler = k.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
    return model.fit(X, Y, epochs=3, shuffle=False, verbose=0, callbacks=[scheduler]).history


def batches_by_hand(k):
    model = with_weights(k.Sequential([k.Input((8,)), k.layers.Dense(1)]))
    model.compile("adam", "mse")
    means = [float(model.train_on_batch(X[:8], Y[:8])), float(model.train_on_batch(X[8:], Y[8:]))]
    return {"trained": means, "tested": [float(model.test_on_batch(X, Y))]}


def a_generator_for_validation(k):
    def batches():
        number = 0
        while True:
            number += 1
            yield X, number * Y

    model = with_weights(k.Sequential([k.Input((8,)), k.layers.Dense(1)]))
    model.compile("sgd", "mse")
    return model.fit(X, Y, epochs=3, shuffle=False, verbose=0, validation_data=batches(), validation_steps=2).history


def model_of_a_configuration(k):
    x = k.Input((8,))
    model = with_weights(k.Model(x, k.layers.Dense(1)(k.layers.Dense(4, activation="relu")(x))))
    again = k.Model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    return trained(k, again, X)


SCRIPTS = {
    "masks side by side": lambda k: joined_masks(k, -1),
    "masks behind each other": lambda k: joined_masks(k, 1),
    "a mask beside none": lambda k: joined_masks(k, -1, second_has_mask=False),
    "a mask, and none behind it": lambda k: joined_masks(k, 1, second_has_mask=False),
    "floats for an input of integers": lambda k: indices(k, "int32"),
    "floats that an embedding reads": lambda k: indices(k, "float32"),
    "bytes for an input of integers": lambda k: indices(k, "int32", IDS.astype(np.uint8)),
    "bytes that an embedding reads": lambda k: indices(k, "float32", IDS.astype(np.int8)),
    "floats for an input of integers, by name": float_indices_by_name,
    "a convolution over any length": any_length,
    "categories as one vector": lambda k: categories(k, "multi_hot"),
    "counted categories": lambda k: categories(k, "count"),
    "windows of two": windows,
    "losses with weights": two_losses,
    "an output without a loss": an_output_without_loss,
    "metrics of one's own": own_metrics,
    "a rate by the epoch alone": a_rate_by_the_epoch_alone,
    "batches by hand": batches_by_hand,
    "a generator for validation": a_generator_for_validation,
    "a model of a configuration": model_of_a_configuration,
}


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")  # of Keras
@pytest.mark.filterwarnings("ignore:Layer 'flatten:UserWarning")  # destroys the mask
def test_a_script_computes_what_keras_computes(name):
    mine, theirs = (SCRIPTS[name](k) for k in (mp, keras))
    assert mine.keys() == theirs.keys()
    for key, values in theirs.items():
        np.testing.assert_allclose(mine[key], values, rtol=2e-5, atol=2e-6, err_msg=key)
