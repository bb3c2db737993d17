"""Runs in a separate process: Keras trains the models that mp_core wrote, and records the loss of each step.

``python keras_training.py FOLDER``: NAME.keras -> NAME.losses.npy; NAME.SEED.weights.h5 -> NAME.scores.npy.
"""

import sys
from pathlib import Path

import keras
import numpy as np
import training_cases as cases

for name in cases.CASES:
    path = Path(sys.argv[1]) / f"{name}.keras"
    model = keras.saving.load_model(path)
    np.save(path.with_suffix(".losses.npy"), cases.losses(keras, model, name))
    found = []
    for seed in cases.SEEDS:
        model = cases.compiled(keras, cases.model(keras, name), name)
        model.load_weights(path.with_suffix(f".{seed}.weights.h5"))
        found.append(cases.score(model, name))
    np.save(path.with_suffix(".scores.npy"), found)
