"""The public name of :mod:`mp_core.training.optimizers`."""

import sys
from typing import TYPE_CHECKING

from mp_core.training import optimizers
from mp_core.training.optimizers import *  # noqa: F403
from mp_core.utilities.faces import face_of

if not TYPE_CHECKING:  # a type checker reads the star import
    __doc__, __all__, __dir__, __getattr__ = face_of(optimizers)
    sys.modules[f"{__name__}.schedules"] = optimizers.schedules  # `import mp_core.optimizers.schedules`, as from Keras
