"""Regression with normalized inputs, early stopping and a checkpoint of the best weights."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_diabetes

keras.utils.set_random_seed(0)

x, y = load_diabetes(return_X_y=True)
order = np.random.default_rng(0).permutation(len(x))
x, y = x[order].astype("float32"), (y[order, None] / 100).astype("float32")

normalizer = layers.Normalization(axis=-1)
normalizer.adapt(x[:350])
model = keras.Sequential([keras.Input((10,)), normalizer, layers.Dense(32, activation="relu"), layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.005), loss="mean_absolute_error", metrics=["mse"])
history = model.fit(
    x[:350],
    y[:350],
    epochs=200,
    verbose=0,
    validation_split=0.2,
    callbacks=[
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=20, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint("best.weights.h5", save_best_only=True, save_weights_only=True),
    ],
)
assert len(history.history["val_loss"]) == len(history.epoch)
results = model.evaluate(x[350:], y[350:], verbose=0, return_dict=True)
model.load_weights("best.weights.h5")
print("SCORE", results["loss"])
assert results["loss"] < 0.6
