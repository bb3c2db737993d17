"""Five beginner examples in the words of Keras, written anew; mp_core runs them in the place of Keras.

With Keras itself: ``python tests/keras_examples.py``, where `keras` and `load_model` are imported from it.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np


def images(keras, load_model, folder):
    """A small convolutional network for images of digits, with Dropout; evaluated, saved and loaded."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32").reshape(-1, 8, 8, 1)
    y = keras.utils.to_categorical(y, 10)
    model = keras.Sequential([
        keras.Input(shape=(8, 8, 1)),
        keras.layers.Conv2D(16, kernel_size=(3, 3), activation="relu"),
        keras.layers.MaxPooling2D(pool_size=(2, 2)),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10, activation="softmax"),
    ])  # fmt: skip
    model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
    model.fit(x[:1500], y[:1500], batch_size=32, epochs=3, validation_split=0.1, verbose=0)
    score = model.evaluate(x[1500:], y[1500:], verbose=0)
    model.save(folder / "digits.keras")
    again = load_model(folder / "digits.keras")
    np.testing.assert_allclose(again.evaluate(x[1500:], y[1500:], verbose=0), score, rtol=1e-4)
    return score[1] > 0.7


def tables(keras, load_model, folder):
    """Rows of a table with a class of two, weighted classes, early stopping."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype("float32")
    model = keras.Sequential([
        keras.Input(shape=x.shape[1:]),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1, activation="sigmoid"),
    ])  # fmt: skip
    metrics = [keras.metrics.Precision(name="precision"), keras.metrics.Recall(name="recall"), "accuracy"]
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=metrics)
    callbacks = [keras.callbacks.EarlyStopping(monitor="val_loss", patience=3, restore_best_weights=True)]
    history = model.fit(
        x[:400], y[:400], batch_size=64, epochs=10, verbose=0, callbacks=callbacks, validation_data=(x[400:], y[400:]),
        class_weight={0: 1.5, 1: 1.0},
    )  # fmt: skip
    assert set(history.history) >= {"loss", "precision", "recall", "val_precision"}
    return model.evaluate(x[400:], y[400:], verbose=0, return_dict=True)["accuracy"] > 0.9


def functional(keras, load_model, folder):
    """The functional API: a residual block, two outputs with losses and weights of their own."""
    state = np.random.default_rng(0)
    inputs = keras.Input(shape=(16,), name="features")
    x = keras.layers.Dense(32, activation="relu")(inputs)
    block = keras.layers.Dense(32, activation="relu")(x)
    x = keras.layers.add([x, block])
    priority = keras.layers.Dense(1, name="priority")(x)
    kind = keras.layers.Dense(3, name="kind")(x)
    model = keras.Model(inputs=inputs, outputs=[priority, kind], name="tickets")
    model.compile(
        optimizer=keras.optimizers.RMSprop(1e-2),
        loss=[keras.losses.MeanSquaredError(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)],
        loss_weights=[1.0, 0.5],
    )
    features = state.standard_normal((512, 16)).astype("float32")
    targets = [features[:, :1] - features[:, 1:2], features[:, 2:5].argmax(1)]
    history = model.fit(features, targets, epochs=8, batch_size=32, verbose=0)
    first, second = model.predict(features[:5], verbose=0)
    assert first.shape == (5, 1) and second.shape == (5, 3)
    return history.history["loss"][-1] < history.history["loss"][0] / 2


def texts(keras, load_model, folder):
    """Sequences of words: an embedding, its mean, a class; the rate falls by a schedule."""
    state = np.random.default_rng(1)
    words = state.integers(1, 100, (600, 12))
    labels = (words < 30).sum(1) > 3
    inputs = keras.Input(shape=(None,), dtype="int64")
    x = keras.layers.Embedding(100, 16)(inputs)
    x = keras.layers.GlobalAveragePooling1D()(x)
    x = keras.layers.Dense(16, activation="relu")(x)
    outputs = keras.layers.Dense(1, activation="sigmoid", name="predictions")(x)
    model = keras.Model(inputs, outputs)
    rate = keras.optimizers.schedules.ExponentialDecay(0.02, decay_steps=100, decay_rate=0.9)
    model.compile(loss="binary_crossentropy", optimizer=keras.optimizers.Adam(rate), metrics=["accuracy"])
    model.fit(words[:500], labels[:500].astype("float32"), epochs=10, verbose=0)
    return model.evaluate(words[500:], labels[500:].astype("float32"), verbose=0)[1] > 0.85


def frozen(keras, load_model, folder):
    """An autoencoder; then its encoder, frozen, under a classifier, whose weights go through a file."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    encoder = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, activation="relu")])
    autoencoder = keras.Sequential([keras.Input((64,)), encoder, keras.layers.Dense(64, activation="sigmoid")])
    autoencoder.compile(optimizer="adam", loss="mse")
    autoencoder.fit(x[:1500], x[:1500], epochs=6, batch_size=64, shuffle=True, verbose=0)
    encoder.trainable = False
    classifier = keras.Sequential([keras.Input((64,)), encoder, keras.layers.Dense(10)])
    assert len(classifier.trainable_weights) == 2
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    classifier.compile(keras.optimizers.Adam(1e-2), loss=loss, metrics=["accuracy"])
    classifier.fit(x[:1500], y[:1500], epochs=10, verbose=0)
    accuracy = classifier.evaluate(x[1500:], y[1500:], verbose=0)[1]
    classifier.save_weights(folder / "head.weights.h5")
    classifier.load_weights(folder / "head.weights.h5")
    return accuracy > 0.75


EXAMPLES = {made.__name__: made for made in (images, tables, functional, texts, frozen)}

if __name__ == "__main__":
    import keras
    from keras.models import load_model

    for name in sys.argv[1:] or EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            print(name, EXAMPLES[name](keras, load_model, Path(folder)))
