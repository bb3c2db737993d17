"""tf.keras' ``models``: the stack of layers."""

from mp_core.tf_keras.layers import Sequential

__all__ = ["Sequential"]
