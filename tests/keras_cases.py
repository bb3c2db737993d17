"""What `keras_layers.py` computes with Keras and `test_layers_keras_table.py` with mp_core: names and arguments."""

import itertools

MIXED = ("mixed_bfloat16", "mixed_float16")

# ---- the dtypes of inputs

WAYS = ("stack", "stack in a stack", "functional in a stack", "stack in a functional")
FIRST = ("floats to an Embedding", "integers to an Embedding", "1e5 to a LayerNormalization", "1e5 to a float32 Dense",
         "integers to a Softmax", "booleans to a Dense", "float64 to an Identity")  # fmt: skip
DTYPES = {"floats to an Embedding": ("float32", "int32", "bfloat16"), "integers to an Embedding": ("float32", "int32")}
INPUTS = [
    (policy, way, first, dtype)
    for policy, way, first in itertools.product(MIXED, WAYS, FIRST)
    for dtype in DTYPES.get(first, ("float32", "float16"))
]
"""Policy, arrangement, first layer with its inputs, dtype of the Input."""


def name_of(case):
    """Return the name of a case, which its files have."""
    return "-".join(map(str, case)).replace(" ", "_")
