"""The learning rate of fine-tuning: linear warmup, then linear decay to 0."""

from typing import Any

import numpy as np

from mp_core.training.optimizers.schedules import LearningRateSchedule
from mp_core.utilities.arguments import number, positive, positive_integer

__all__ = ["WarmupLinear"]


class WarmupLinear(LearningRateSchedule):
    """``peak * step / warmup`` for the first steps, then ``peak * (steps - step) / (steps - warmup)``.

    This is the ``"linear"`` schedule of transformers and sentence-transformers. `warmup` is at most `steps`.

    Examples
    --------
    >>> schedule = WarmupLinear(1.0, steps=6, warmup=2)
    >>> [float(schedule(step)) for step in range(7)]
    [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    def __init__(self, peak: float, steps: int, warmup: int = 0) -> None:
        self.peak, self.steps = positive(peak, "peak"), positive_integer(steps, "steps")
        if not 0 <= number(warmup, "warmup") <= steps:
            raise ValueError(f"`warmup` must be from 0 to {steps}, the number of steps; received {warmup!r}")
        self.warmup = int(warmup)

    def __call__(self, step: Any) -> np.float32:
        place = min(float(step), float(self.steps))
        if place < self.warmup:
            return np.float32(self.peak * place / self.warmup)
        return np.float32(self.peak * (self.steps - place) / max(self.steps - self.warmup, 1))

    def get_config(self) -> dict[str, Any]:
        return {"peak": self.peak, "steps": self.steps, "warmup": self.warmup}
