"""The public name of :mod:`mp_core.training.optimizers`."""

import sys
from typing import TYPE_CHECKING

from mp_core.training.optimizers import *  # noqa: F403
from mp_core.training.optimizers import __all__ as __all__

if not TYPE_CHECKING:  # to a type checker, a name that is not imported above is an error
    pass

sys.modules[f"{__name__}.schedules"] = schedules  # noqa: F405 - as Keras has it, also for `import`
