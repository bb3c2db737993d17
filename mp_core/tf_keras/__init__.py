"""The API of tf.keras: its policies, loss scaling and rules of layers. It shares the default policy and variables.

It imports training and the rooms below it; no room imports it.

Names are those of tf.keras; for quantized layers those of Keras, whose scales divide codes while mp_core's multiply.

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
        """Import the tape at its first use, because it imports all gradients."""
        if name != "GradientTape":
            raise AttributeError(f"module 'mp_core.tf_keras' has no attribute {name!r}")
        from mp_core.tf_keras.tape import GradientTape  # imports the gradients

        return GradientTape
