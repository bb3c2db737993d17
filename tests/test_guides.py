"""Keras' guides of text classification, transfer learning and custom training, run with mp_core and with Keras.

Each test is the code of a guide on tiny data. It must run with `import mp_core as keras`, and with Keras, which shows
that it is valid Keras code.
"""

import os

import numpy as np
import pytest

import mp_core as mp

os.environ.setdefault("KERAS_BACKEND", "torch")
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of torch
    pytest.mark.filterwarnings("ignore::UserWarning:keras"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]

RNG = np.random.default_rng(0)
X = RNG.standard_normal((64, 20)).astype(np.float32)
CLASSES = RNG.integers(0, 2, 64)
Y = CLASSES.reshape(-1, 1).astype(np.float32)
IDS = RNG.integers(0, 50, (64, 12))
IMAGES = RNG.standard_normal((16, 16, 16, 3)).astype(np.float32)


@pytest.fixture(params=["mp_core", "keras"])
def keras(request):
    return mp if request.param == "mp_core" else pytest.importorskip("keras")


def classifier(keras):
    layers = keras.layers
    return keras.Sequential(
        [layers.Input((20,)), layers.Dense(8, activation="relu"), layers.Dense(1, activation="sigmoid")]
    )


# ---- text classification


def test_convolutions_over_texts(keras):
    layers = keras.layers
    inputs = keras.Input(shape=(None,), dtype="int64")
    x = layers.Dropout(0.5)(layers.Embedding(50, 16)(inputs))
    x = layers.Conv1D(16, 3, padding="valid", activation="relu", strides=3)(x)
    x = layers.Dense(16, activation="relu")(layers.GlobalMaxPooling1D()(x))
    predictions = layers.Dense(1, activation="sigmoid", name="predictions")(layers.Dropout(0.5)(x))
    model = keras.Model(inputs, predictions)
    model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
    history = model.fit(IDS, Y, validation_data=(IDS, Y), epochs=1, verbose=0).history
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert len(model.evaluate(IDS, Y, verbose=0)) == 2


def test_recurrent_networks_over_texts(keras):
    layers = keras.layers
    inputs = keras.Input(shape=(None,), dtype="int32")
    x = layers.Embedding(50, 8)(inputs)
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
    x = layers.Bidirectional(layers.LSTM(4))(x)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    assert np.isfinite(model.fit(IDS, Y, batch_size=32, epochs=1, verbose=0).history["loss"]).all()


def transformer_classes(keras):
    layers, ops = keras.layers, keras.ops

    class TransformerBlock(layers.Layer):
        def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1):
            super().__init__()
            self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
            self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
            self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
            self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
            self.dropout1, self.dropout2 = layers.Dropout(rate), layers.Dropout(rate)

        def call(self, inputs):
            attended = self.layernorm1(inputs + self.dropout1(self.att(inputs, inputs)))
            return self.layernorm2(attended + self.dropout2(self.ffn(attended)))

    class TokenAndPositionEmbedding(layers.Layer):
        def __init__(self, maxlen, vocab_size, embed_dim):
            super().__init__()
            self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
            self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)

        def call(self, x):
            positions = ops.arange(start=0, stop=ops.shape(x)[-1], step=1)
            return self.token_emb(x) + self.pos_emb(positions)

    return TransformerBlock, TokenAndPositionEmbedding


def test_a_transformer_of_layers_of_ones_own(keras):
    layers = keras.layers
    block, embedding = transformer_classes(keras)
    inputs = layers.Input(shape=(12,))  # of floats, as the guide has it
    x = block(16, 2, 16)(embedding(12, 50, 16)(inputs))
    x = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(x))
    x = layers.Dropout(0.1)(layers.Dense(20, activation="relu")(x))
    model = keras.Model(inputs=inputs, outputs=layers.Dense(2, activation="softmax")(x))
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    before = model.get_weights()
    model.fit(IDS, CLASSES, batch_size=32, epochs=1, validation_data=(IDS, CLASSES), verbose=0)
    assert all(np.any(one != other) for one, other in zip(model.get_weights(), before, strict=True))


# ---- transfer learning


def test_a_frozen_base_is_trained_after_its_head(keras):
    layers = keras.layers
    base = keras.Sequential([
        keras.Input((16, 16, 3)), layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization(),
        layers.GlobalAveragePooling2D(),
    ])  # fmt: skip
    base.trainable = False
    inputs = keras.Input(shape=(16, 16, 3))
    x = base(layers.Rescaling(scale=1 / 127.5, offset=-1)(inputs), training=False)
    model = keras.Model(inputs, layers.Dense(1)(layers.Dropout(0.2)(x)))
    for rate, trained in ((1e-3, 2), (1e-5, 6)):
        model.compile(
            optimizer=keras.optimizers.Adam(rate), loss=keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[keras.metrics.BinaryAccuracy()],
        )  # fmt: skip
        assert len(model.trainable_weights) == trained
        model.fit(IMAGES, Y[:16], epochs=1, verbose=0)
        base.trainable = True


def test_weights_and_features_of_trained_layers_are_taken(keras):
    source, target = classifier(keras), classifier(keras)
    for one, other in zip(source.layers, target.layers, strict=True):
        other.set_weights(one.get_weights())
    np.testing.assert_array_equal(source.predict(X, verbose=0), target.predict(X, verbose=0))
    features = keras.Model(inputs=source.inputs, outputs=[layer.output for layer in source.layers])
    assert [tuple(each.shape) for each in features(X)] == [(64, 8), (64, 1)]
    source.pop()
    source.add(keras.layers.Dense(3))
    assert source.output_shape == (None, 3)


# ---- custom training


def test_losses_and_metrics_of_ones_own(keras):
    ops = keras.ops

    class CustomMSE(keras.losses.Loss):
        def __init__(self, regularization_factor=0.1, name="custom_mse"):
            super().__init__(name=name)
            self.regularization_factor = regularization_factor

        def call(self, y_true, y_pred):
            error = ops.mean(ops.square(y_true - y_pred), axis=-1)
            return error + ops.mean(ops.square(0.5 - y_pred), axis=-1) * self.regularization_factor

    class TruePositives(keras.metrics.Metric):
        def __init__(self, name="true_positives", **kwargs):
            super().__init__(name=name, **kwargs)
            self.true_positives = self.add_variable(shape=(), name="ctp", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            values = ops.cast(ops.cast(y_true, "int32") == ops.cast(y_pred > 0.5, "int32"), "float32")
            self.true_positives.assign_add(ops.sum(values))

        def result(self):
            return self.true_positives.value

        def reset_state(self):
            self.true_positives.assign(0.0)

    model = classifier(keras)
    model.compile(optimizer=keras.optimizers.Adam(), loss=CustomMSE(), metrics=[TruePositives()])
    assert model.fit(X, Y, verbose=0).history["true_positives"][0] <= 64


def test_a_layer_that_ends_a_model_with_its_loss(keras):
    class LogisticEndpoint(keras.layers.Layer):
        def __init__(self, name=None):
            super().__init__(name=name)
            self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

        def call(self, targets, logits, sample_weights=None):
            self.add_loss(self.loss_fn(targets, logits, sample_weights))
            return keras.ops.softmax(logits)

    inputs, targets = keras.Input(shape=(3,), name="inputs"), keras.Input(shape=(10,), name="targets")
    predictions = LogisticEndpoint(name="predictions")(targets, keras.layers.Dense(10)(inputs))
    model = keras.Model(inputs=[inputs, targets], outputs=predictions)
    model.compile(optimizer="adam")
    data = {"inputs": RNG.random((3, 3)), "targets": RNG.random((3, 10))}
    assert model.fit(data, verbose=0).history["loss"][0] > 0


def test_a_variational_autoencoder(keras):
    layers, ops = keras.layers, keras.ops

    class Sampling(layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.seed_generator = keras.random.SeedGenerator(1337)

        def call(self, inputs):
            mean, log_var = inputs
            epsilon = keras.random.normal(shape=ops.shape(mean), seed=self.seed_generator)
            return mean + ops.exp(0.5 * log_var) * epsilon

    class VAE(keras.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.hidden, self.mean, self.log_var = layers.Dense(8, "relu"), layers.Dense(4), layers.Dense(4)
            self.sampling, self.decoder = Sampling(), layers.Dense(20)

        def call(self, inputs):
            x = self.hidden(inputs)
            mean, log_var = self.mean(x), self.log_var(x)
            self.add_loss(-0.5 * ops.mean(log_var - ops.square(mean) - ops.exp(log_var) + 1))
            return self.decoder(self.sampling((mean, log_var)))

    model = VAE()
    model.compile(keras.optimizers.Adam(1e-2), loss=keras.losses.MeanSquaredError())
    losses = model.fit(X, X, epochs=8, batch_size=16, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_steps_of_ones_own(keras):
    class CustomModel(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.loss_tracker = keras.metrics.Mean(name="loss")
            self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
            self.loss_fn = keras.losses.MeanSquaredError()

        def test_step(self, data):
            x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
            y_pred = self(x, training=False)
            self.loss_tracker.update_state(self.loss_fn(y, y_pred))
            self.mae_metric.update_state(y, y_pred)
            return {metric.name: metric.result() for metric in self.metrics}

        @property
        def metrics(self):
            return [self.loss_tracker, self.mae_metric]

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean(keras.ops.abs(y - y_pred))

    inputs = keras.Input((20,))
    model = CustomModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile(optimizer="adam")
    model.fit(X, Y, verbose=0)
    assert set(model.evaluate(X, Y, verbose=0, return_dict=True)) == {"loss", "mae"}


def test_a_loop_of_ones_own():
    """Gradients are the part in which the guides differ from backend to backend."""
    model, optimizer = classifier(mp), mp.optimizers.Adam(0.01)
    loss_fn, metric = mp.losses.BinaryCrossentropy(), mp.metrics.BinaryAccuracy()
    step = mp.value_and_grad(lambda x, y: loss_fn(y, model(x, training=True)), model.trainable_variables)
    losses = []
    for _ in range(5):
        for start in range(0, len(X), 16):
            x, y = X[start : start + 16], Y[start : start + 16]
            loss, gradients = step(x, y)
            optimizer.apply(gradients, model.trainable_variables)
            metric.update_state(y, model(x, training=False))
        losses.append(float(loss))
        assert 0 <= float(metric.result()) <= 1
        metric.reset_state()
    assert losses[-1] < losses[0]


def test_models_come_and_go_by_the_imports_of_guides(tmp_path):
    from mp_core.models import Model, Sequential, clone_model, load_model

    model = Sequential([mp.Input((20,)), mp.layers.Dense(1)])
    model.compile("adam", "mse")
    model.save(tmp_path / "m.keras")
    assert isinstance(load_model(tmp_path / "m.keras"), Model)
    assert isinstance(clone_model(model), Sequential)


def test_random_numbers_of_layers_are_those_of_passes_and_need_a_generator_in_steps():
    class Noisy(mp.layers.Layer):
        def __init__(self, seed_generator):
            super().__init__()
            self.seed_generator, self.dense = seed_generator, mp.layers.Dense(3)

        def call(self, x, training=False):
            y = self.dense(x)
            noise = mp.random.uniform(y.shape, -1.0, 1.0, seed=self.seed_generator)
            return mp.random.dropout(y + noise, 0.5, seed=self.seed_generator) if training else y

    def trained(passes, generator):
        model = mp.Sequential([mp.Input((3,)), Noisy(generator)])
        model.set_weights([np.ones((3, 3)), np.ones(3)])
        model.compile("sgd", "mse")
        x = np.random.default_rng(0).standard_normal((4096, 3)).astype(np.float32)
        model.fit(x, x, batch_size=4096, epochs=2, passes=passes, shuffle=False, verbose=0)
        return model.get_weights()

    once, twice = (trained(passes, mp.random.SeedGenerator(3)) for passes in (1, 2))
    assert all(np.array_equal(one, other) for one, other in zip(once, twice, strict=True))
    with pytest.raises(ValueError, match="`seed` must be a SeedGenerator"):
        trained(1, None)
