"""The face of tf.keras: its policies, loss scaling and layer rules, over the same default policy and variables.

It imports training and the rooms below it; no room imports it.

Words are those of tf.keras and, for quantized layers, of Keras: their scales divide codes, where ours multiply them.

Examples
--------
>>> mixed_precision.set_global_policy("mixed_float16")
>>> layers.Dense(10).dtype_policy
<Policy "mixed_float16">
>>> mixed_precision.set_global_policy("float32")
"""

from typing import TYPE_CHECKING, Any

from mp_core.layers.input_layer import Input
from mp_core.tf_keras import backend, layers, mixed_precision, models, utils
from mp_core.tf_keras.layer import Layer
from mp_core.tf_keras.models import Model, Sequential

if TYPE_CHECKING:
    from mp_core.tf_keras.tape import GradientTape

__all__ = [
    "GradientTape",
    "Input",
    "Layer",
    "Model",
    "Sequential",
    "backend",
    "layers",
    "mixed_precision",
    "models",
    "utils",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import the tape at its first use: who only computes values loads no gradients."""
        if name != "GradientTape":
            raise AttributeError(f"module 'mp_core.tf_keras' has no attribute {name!r}")
        from mp_core.tf_keras.tape import GradientTape  # it loads the gradients

        return GradientTape
