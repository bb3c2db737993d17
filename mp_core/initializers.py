"""Keras' name of :mod:`mp_core.layers.initializers`: the same module."""

import sys

from mp_core.layers import initializers
from mp_core.layers.initializers import *  # noqa: F403, which type checkers read

sys.modules[__name__] = initializers
