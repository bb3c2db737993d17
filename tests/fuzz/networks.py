"""Random layers from a table of all layers, with any policy, set, threads and layout; in a plan; and recreated.

A layer must give the bits of the portable set and of contiguous inputs. Its plan must give the same bits, and so must a
layer that is created from its configuration with its weights. tests/test_layers_keras_table.py compares values with
Keras.
"""

import numpy as np
from keras_cases import FIRST_CHANNELS, IMAGE, LAYERS, LINE, RGB, ROW
from oracles import assert_same_bits

import mp_core as mp
from fuzz.arrays import contiguous
from fuzz.check import on_isa
from mp_core import layers
from mp_core.core import cpu
from mp_core.plans import UnseenError

__all__ = ["CASES", "UNDRAWN", "run"]

WORDS = (5,)
CASES = [
    *LAYERS,
    ("Dense", {"units": 9}, ROW), ("Dense", {"units": 33, "activation": "gelu"}, LINE),
    ("EinsumDense", {"equation": "abc,cd->abd", "output_shape": (None, 9), "bias_axes": "d"}, LINE),
    ("Embedding", {"input_dim": 40, "output_dim": 7}, WORDS, "int32"),
    ("Conv1D", {"filters": 5, "kernel_size": 3}, LINE),
    ("Conv1D", {"filters": 4, "kernel_size": 2, "padding": "causal", "dilation_rate": 2}, LINE),
    ("Conv2D", {"filters": 5, "kernel_size": 3, "padding": "same", "activation": "relu"}, IMAGE),
    ("Conv2D", {"filters": 4, "kernel_size": (2, 3), "strides": 2, "groups": 2}, IMAGE),
    ("DepthwiseConv2D", {"kernel_size": 3, "padding": "same"}, IMAGE),
    ("LayerNormalization", {}, LINE), ("RMSNormalization", {}, LINE), ("BatchNormalization", {}, IMAGE),
    ("Softmax", {}, LINE), ("Softmax", {"axis": 1}, LINE), ("ReLU", {"max_value": 1.0}, LINE), ("LeakyReLU", {}, LINE),
    ("ELU", {}, LINE), ("Identity", {}, IMAGE), ("Flatten", {}, IMAGE), ("Flatten", {**FIRST_CHANNELS}, IMAGE),
    *((kind, {"units": 5}, LINE) for kind in ("LSTM", "GRU", "SimpleRNN")),
    ("GRU", {"units": 3, "reset_after": False, "return_sequences": True, "go_backwards": True}, LINE),
    ("Reshape", {"target_shape": (4, -1)}, IMAGE), ("ActivityRegularization", {"l2": 0.1}, LINE),
    *((f"Global{kind}Pooling{axes}", {}, shape)
      for kind in ("Max", "Average") for axes, shape in (("1D", LINE), ("2D", IMAGE))),
    *((f"{kind}Pooling{axes}", {"pool_size": 2}, shape)
      for kind in ("Max", "Average") for axes, shape in (("1D", LINE), ("2D", IMAGE))),
    ("MaxPooling2D", {"pool_size": (2, 3), "strides": 1, "padding": "same"}, IMAGE),
    *((name, {}, [LINE, LINE, LINE]) for name in ("Add", "Average", "Maximum", "Minimum", "Multiply", "Concatenate")),
    ("Subtract", {}, [LINE, (1, 4)]), ("Concatenate", {"axis": 1}, [LINE, (2, 4)]),
    *((name, {"rate": 0.5}, LINE) for name in ("Dropout", "AlphaDropout", "GaussianDropout", "SpatialDropout1D")),
    ("GaussianNoise", {"stddev": 0.5}, IMAGE), ("RandomFlip", {}, RGB),
]  # fmt: skip
"""Class, arguments, shape of the inputs behind the batch axis (a list: of each), and their dtype."""

UNDRAWN = {
    **dict.fromkeys(("Functional", "Sequential"), 'the models of the subject "keras" are of these classes'),
    "TimeDistributed": "takes a layer; tests/test_time_distributed.py draws what it holds",
    "SpectralNormalization": "takes a layer; tests/test_spectral_normalization.py has its kinds",
    **dict.fromkeys(
        ("MultiHeadAttention", "GroupedQueryAttention"),
        "takes queries and values as two arguments; its products and softmax are drawn",
    ),
    **dict.fromkeys(
        ("RNN", "StackedRNNCells", "Bidirectional", "LSTMCell", "GRUCell", "SimpleRNNCell"),
        "takes a layer, or states; the layers with these cells are drawn",
    ),
    **dict.fromkeys(("Input", "InputLayer", "Layer", "Lambda"), "compute nothing"),
    **dict.fromkeys(
        ("add", "average", "concatenate", "dot", "maximum", "minimum", "multiply", "subtract"),
        "call the layer of that name",
    ),
}
"""Public names without a case, and why."""


def drawn(rng, lengths, dtype):
    """Return inputs of a type: integers from 0 on, or numbers around 0."""
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 9, lengths).astype(dtype)
    return rng.standard_normal(lengths).astype(np.float32)


def by_plan(layer, x):
    """Return what a plan of the layer gives, or None if it cannot be recorded."""
    try:
        return mp.compile(layer, contiguous_all(x))(x)
    except (UnseenError, TypeError):
        return None


def contiguous_all(x):
    return [contiguous(each) for each in x] if isinstance(x, list) else contiguous(x)


def run(memory, rng):
    """Check one layer."""
    memory.again()
    name, arguments, shapes, *dtype = CASES[int(rng.integers(len(CASES)))]
    policy, batch = str(rng.choice(("float32", "mixed_bfloat16", "mixed_float16"))), int(rng.choice((1, 2, 7)))
    several = isinstance(shapes, list)
    given = [memory.laid(rng, drawn(rng, (batch, *each), *dtype or ["float32"]))
             for each in (shapes if several else [shapes])]  # fmt: skip
    x = given if several else given[0]
    kind = getattr(layers, name)
    layer = kind(**arguments, dtype=policy)
    with np.errstate(all="ignore"):
        with on_isa("scalar"), mp.config.num_threads(1):
            expected = layer(contiguous_all(x))
        with on_isa(str(rng.choice(cpu.available_isas()))), mp.config.num_threads(int(rng.integers(1, 4))):
            assert_same_bits(layer(x), expected)
            planned = by_plan(layer, x) if rng.random() < 0.3 else None
            again = kind.from_config(layer.get_config())
            again.build([each.shape for each in x] if several else x.shape)
            again.set_weights(layer.get_weights())
            assert_same_bits(again(x), expected)
    if planned is not None:
        assert_same_bits(planned, expected)
