"""Runs in a separate process: Keras opens mp_core's models of users' classes, and writes its own.

``python keras_users.py FOLDER`` writes opened.NAME.npz for each ours.NAME.keras, keras.NAME.keras and keras.NAME.npz.
"""

import sys
from pathlib import Path

import keras
import numpy as np
from users_models import make_classes

folder, classes = Path(sys.argv[1]), make_classes(keras)
X = np.load(folder / "x.npz")["x"]

for path in sorted(folder.glob("ours.*.keras")):
    name = path.name.split(".")[1]
    x = {"left": X, "right": X[:, :3]} if name == "OfDict" else X
    model = keras.saving.load_model(path, classes)
    np.savez(folder / f"opened.{name}.npz", model.predict(x, verbose=0))
    model = classes[name]()  # of a Model Keras saves the defaults, whatever it was made with
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.fit(x, X[:, :2], batch_size=8, epochs=3, verbose=0)
    model.save(folder / f"keras.{name}.keras")
    model.save_weights(folder / f"keras.{name}.weights.h5")
    np.savez(folder / f"keras.{name}.npz", model.predict(x, verbose=0))
