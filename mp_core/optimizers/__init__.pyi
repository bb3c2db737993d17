# For type checkers only: Python imports optimizers.py, which makes `import mp_core.optimizers.schedules` work.
from mp_core.training.optimizers import *  # noqa: F403
from mp_core.training.optimizers import schedules as schedules
