"""Transfer learning: pretrained layers are frozen under a new head, then trained too, at a low learning rate."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
first, second = y < 5, y >= 5

base = keras.Sequential([keras.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(32, activation="relu")])
source = keras.Sequential([base, layers.Dense(5)])
source.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
source.fit(x[first], y[first], epochs=10, verbose=0)

base.trainable = False
inputs = keras.Input(shape=(64,))
model = keras.Model(inputs, layers.Dense(5)(base(inputs, training=False)))
assert len(model.trainable_weights) == 2
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss, metrics=[keras.metrics.SparseCategoricalAccuracy()])
before = base.get_weights()
model.fit(x[second], y[second] - 5, epochs=20, verbose=0)
assert all(np.array_equal(now, then) for now, then in zip(base.get_weights(), before, strict=True))

base.trainable = True
model.compile(keras.optimizers.Adam(1e-3), loss, metrics=[keras.metrics.SparseCategoricalAccuracy()])
model.fit(x[second], y[second] - 5, epochs=5, verbose=0)
assert not np.array_equal(base.get_weights()[0], before[0])
accuracy = model.evaluate(x[second], y[second] - 5, verbose=0)[1]
print("SCORE", accuracy)
assert accuracy > 0.95
