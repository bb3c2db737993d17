"""Runs in a separate process: Keras' NumPy backend, plain and accelerated, on the models of `keras_models.py`.

``python keras_accelerated.py FOLDER`` writes accelerated.json, with the result of each check.
"""

import json
import logging
import os
import sys
import threading

os.environ["KERAS_BACKEND"] = "numpy"

import keras
import ml_dtypes
import numpy as np
from keras.src.backend.numpy import core, nn
from keras.src.backend.numpy import numpy as knumpy

from mp_core.interop.keras import accelerate, accelerated, acceleration

FOLDER = sys.argv[1]
MODELS = ("digits", "digits_mixed_bfloat16", "digits_mixed_float16", "digits_int8", "mixed_float16_attention", "masked")
FOUND = {}
MESSAGES = []


class _Kept(logging.Handler):
    def emit(self, record):
        MESSAGES.append(record.getMessage())


logging.getLogger("mp_core").addHandler(_Kept())


def functions():
    """Return everything that Keras' modules hold, by module and name."""
    return {
        (name, attribute): id(value)
        for name, module in sorted(sys.modules.items())
        if name.startswith("keras")
        for attribute, value in list(vars(module).items())
    }


def outputs(name):
    model = keras.saving.load_model(f"{FOLDER}/{name}.keras")
    with np.load(f"{FOLDER}/{name}.npz") as arrays:
        x, want = arrays["x0"], arrays["want0"]

    def first():
        return keras.tree.flatten(model.predict(x, verbose=0))[0].astype(np.float64)

    plain = first()
    with accelerated():
        fast = first()
    again = first()
    assert np.array_equal(plain, again, equal_nan=True)
    return [float(np.abs(fast - other).max()) for other in (plain, want)]


def in_place():
    before = functions()
    original = knumpy.matmul
    with accelerated():
        replaced = [key for key, value in functions().items() if before.get(key, value) != value]
        with accelerated():
            pass
        inner = knumpy.matmul is not original
    kept = functions()
    FOUND["undone"] = {key: kept.get(key) for key in before} == before
    FOUND["replaced"] = sorted({f"{module}.{name}" for module, name in replaced if ".backend.numpy." in module})
    FOUND["inner"] = inner
    try:
        with accelerated():
            raise KeyError
    except KeyError:
        FOUND["undone after an error"] = knumpy.matmul is original
    barrier, seen = threading.Barrier(4), []

    def enter():
        for _ in range(20):
            with accelerated():
                barrier.wait()
                seen.append(knumpy.matmul is not original)
                barrier.wait()

    threads = [threading.Thread(target=enter) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    FOUND["threads"] = all(seen) and len(seen) == 80 and knumpy.matmul is original


def values():
    rng = np.random.default_rng(0)
    bf = ml_dtypes.bfloat16
    a, b = rng.standard_normal((5, 7)).astype(bf), rng.standard_normal((7, 3)).astype(bf)
    codes = rng.integers(-127, 128, (5, 7)).astype(np.int8)
    variable = keras.Variable(b.astype(np.float32))
    nothing = np.zeros((1, 1, 4, 4), bool)
    heads = rng.standard_normal((1, 4, 2, 8)).astype(np.float32)
    special = np.array([[np.inf, 1.0], [-np.inf, -np.inf], [np.nan, 0.0]], np.float32)
    calls = {
        "bfloat16": lambda: knumpy.matmul(a, b),
        "mixed types": lambda: knumpy.matmul(a, b.astype(np.float32)),
        "a variable": lambda: knumpy.matmul(a.astype(np.float32), variable),
        "int8": lambda: knumpy.matmul(codes, codes.T),
        "vectors": lambda: knumpy.matmul(a[0], b),
        "lists": lambda: knumpy.matmul([[1.0, 2.0]], [[3.0], [4.0]]),
        "three operands": lambda: knumpy.einsum("ij,jk,kl->il", a, b, b.T),
        "one operand": lambda: knumpy.einsum("ij->ji", a),
        "an empty sum": lambda: knumpy.matmul(a[:, :0], b[:0]),
        "softmax over two axes": lambda: nn.softmax(special[:1], axis=(0, 1)),
        "softmax of what is not finite": lambda: nn.softmax(special),
        "attention to nothing": lambda: nn.dot_product_attention(heads, heads, heads, mask=nothing),
        "causal": lambda: nn.dot_product_attention(heads, heads, heads, is_causal=True),
        "numbers": lambda: nn.silu(np.float32(2)),
        "a cast of integers": lambda: core.convert_to_tensor(codes, "bfloat16"),
        "a copy": lambda: core.convert_to_tensor(a, "bfloat16"),
    }  # fmt: skip
    with np.errstate(all="ignore"):
        plain = {name: np.asarray(call()) for name, call in calls.items()}
        with accelerated():
            fast = {name: np.asarray(call()) for name, call in calls.items()}
            copy = core.convert_to_tensor(a, "bfloat16")
            FOUND["copies"] = not np.shares_memory(copy, a)
            try:
                knumpy.matmul(a, a)
            except ValueError as error:
                FOUND["error"] = str(error)
    FOUND["values"] = {
        name: [
            str(plain[name].dtype) == str(fast[name].dtype),
            bool(
                np.allclose(*(x[name].astype(np.float64) for x in (plain, fast)), rtol=2**-6, atol=1e-6, equal_nan=True)
            ),
        ]
        for name in calls
    }


def fallbacks():
    original = knumpy.matmul
    kept = acceleration.REPLACEMENTS, dict(acceleration._state.checked), keras.__version__
    wrong = acceleration.Replacement(
        knumpy.__name__, "matmul", lambda f: lambda x1, x2: f(x1, x2) * 2, kept[0][1].cases
    )
    gone = acceleration.Replacement(knumpy.__name__, "no_such_function", lambda f: f, kept[0][1].cases)
    raising = acceleration.Replacement(knumpy.__name__, "dot", lambda f: lambda x1, x2: 1 / 0, kept[0][1].cases)
    acceleration._state.checked.clear()
    acceleration.REPLACEMENTS = (wrong, gone, raising)
    with accelerated():
        FOUND["a wrong one stays"] = knumpy.matmul is original
    FOUND["messages"] = list(MESSAGES)
    MESSAGES.clear()
    acceleration.REPLACEMENTS = kept[0]
    acceleration._state.checked = kept[1]
    keras.__version__ = "4.0.0"
    with accelerated():
        FOUND["an unknown version stays"] = knumpy.matmul is original
    FOUND["version"] = list(MESSAGES)
    keras.__version__ = kept[2]


def main():
    in_place()
    FOUND["quiet"] = list(MESSAGES)
    values()
    FOUND["models"] = {name: outputs(name) for name in MODELS}
    fallbacks()
    original = knumpy.matmul
    accelerate()
    accelerate()
    with accelerated():
        pass
    FOUND["for good"] = knumpy.matmul is not original and np.matmul is not knumpy.matmul
    with open(f"{FOLDER}/accelerated.json", "w") as file:
        json.dump(FOUND, file)


main()
