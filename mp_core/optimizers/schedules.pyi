from mp_core.training.optimizers.schedules import *  # noqa: F403
