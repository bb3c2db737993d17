"""Keras' name of :mod:`mp_core.layers.initializers`: importing it returns that module."""

import sys

from mp_core.layers import initializers
from mp_core.layers.initializers import *  # noqa: F403, for type checkers

sys.modules[__name__] = initializers
