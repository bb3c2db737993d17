"""tf.keras' ``models``."""

from mp_core.tf_keras.layers import Model, Sequential

__all__ = ["Model", "Sequential"]
