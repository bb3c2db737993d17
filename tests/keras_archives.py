"""Runs in a separate process: Keras opens the files that mp_core wrote, and writes its own.

``python keras_archives.py FOLDER``: for each NAME.keras and NAME.npz with inputs (x0 ...), writes Keras' outputs
(NAME.out.npz), its own file of the model (NAME.again.keras) and of the weights (NAME.weights.h5).
"""

import sys
from pathlib import Path

import keras
import numpy as np

for path in sorted(Path(sys.argv[1]).glob("*.keras")):
    model = keras.saving.load_model(path)
    inputs = [*np.load(path.with_suffix(".npz")).values()]
    outputs = keras.tree.flatten(model(inputs[0] if len(inputs) == 1 else inputs))
    floats = [np.asarray(keras.ops.convert_to_numpy(x)).astype(np.float32) for x in outputs]
    np.savez(path.with_suffix(".out.npz"), *floats)
    model.save_weights(path.with_suffix(".weights.h5"))
    model.save(path.with_suffix(".again.keras"))
