"""Run in a process of its own: Keras trains the models that mp_core wrote, and notes the loss of each step.

``python keras_training.py FOLDER``: NAME.keras -> NAME.losses.npy.
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
