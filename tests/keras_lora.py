"""Run in a process of its own: Keras trains adapted layers.

``python keras_lora.py FOLDER`` writes KIND.MODE.npz for each case.
"""

import sys
from pathlib import Path

import keras
import lora_cases
import numpy as np

for kind, mode in lora_cases.CASES:
    np.savez(Path(sys.argv[1]) / f"{kind}.{mode}.npz", **lora_cases.computed(keras, kind, mode))
