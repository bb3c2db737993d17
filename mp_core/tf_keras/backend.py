"""tf.keras' ``backend``: the default float type."""

from mp_core.arrays.dtypes import floatx, set_floatx

__all__ = ["floatx", "set_floatx"]
