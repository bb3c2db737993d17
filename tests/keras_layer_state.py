"""Runs in a separate process: Keras trains models whose layers assign to their variables.

``python keras_layer_state.py FOLDER`` writes NAME.npy: the weights after each step.
"""

import sys
from pathlib import Path

import keras
import layer_state_cases as cases
import numpy as np

for name in cases.CASES:
    np.save(Path(sys.argv[1]) / f"{name}.npy", cases.run(cases.model_of(keras, name), name))
