"""Keras' name of :mod:`mp_core.layers.activations`: importing it returns that module."""

import sys

from mp_core.layers import activations
from mp_core.layers.activations import *  # noqa: F403, for type checkers

sys.modules[__name__] = activations
