"""Keras' name of :mod:`mp_core.layers.activations`: the same module."""

import sys

from mp_core.layers import activations
from mp_core.layers.activations import *  # noqa: F403, which type checkers read

sys.modules[__name__] = activations
