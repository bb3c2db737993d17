"""A user's file for type checkers: tests/test_types.py runs them over it in strict mode."""

from typing import Any, assert_type

import numpy as np

import mp_core as mp
from mp_core.optimizers.schedules import CosineDecay

Array = np.ndarray[Any, Any]

x = np.ones((2, 3), np.float32)
layer = mp.layers.Dense(2, dtype="mixed_bfloat16")
assert_type(layer(x), Array)
plan = mp.compile(layer, x)
assert_type(plan(x), Array)
assert_type(plan.memory.arena, int)
assert_type(mp.cast(x, "bfloat16"), Array)
assert_type(mp.matmul(x, mp.pack(x.T)), Array)
assert_type(mp.quantize(x), mp.QuantizedArray)
assert_type(mp.quantize(x).values, Array)
assert_type(layer.kernel, mp.AutoCastVariable)
encoder = mp.models.TextEncoder.from_folder("folder", "int8")
assert_type(encoder.encode(["text"]), Array)


class Twice(mp.layers.Layer):
    def call(self, inputs: Array) -> tuple[Array, int]:
        return inputs + inputs, 2


assert_type(Twice()(x), tuple[Array, int])
mp.quantise(x)  # type: ignore[attr-defined]
layer.quantise("int8")  # type: ignore[attr-defined]
mp.matmul(x)  # type: ignore[call-arg]
assert_type(mp.optimizers.Adam(CosineDecay(0.1, 10)), mp.optimizers.Adam)
assert_type(CosineDecay(0.1, 10), mp.optimizers.schedules.CosineDecay)
model = mp.Sequential([mp.Input((3,)), layer])
assert_type(model.fit(x, x), mp.callbacks.History)
assert_type(model.fit(x, x).history, dict[str, list[Any]])
assert_type(mp.load_model("model.keras"), mp.Model)
assert_type(mp.saving.load_model("model.keras").fit(x, x), mp.callbacks.History)
assert_type(mp.models.load_model("model.keras"), mp.Model)
assert_type(mp.models.clone_model(model), mp.Model)
