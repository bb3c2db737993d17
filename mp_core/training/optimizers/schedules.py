"""Learning rates that change from step to step, as Keras computes them."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Self

import numpy as np

from mp_core.policies.autocast import AutoCastVariable
from mp_core.utilities.arguments import boolean, finite, number, positive
from mp_core.utilities.docstrings import documented
from mp_core.utilities.registry import class_and_config, known_classes, own_config
from mp_core.utilities.serialization import serialize_keras_object

__all__ = [
    "CosineDecay", "CosineDecayRestarts", "ExponentialDecay", "InverseTimeDecay", "LearningRateSchedule",
    "PiecewiseConstantDecay", "PolynomialDecay", "deserialize", "serialize",
]  # fmt: skip


class LearningRateSchedule:
    """The base of the schedules: a subclass defines ``__call__(step)`` and ``get_config()``.

    Built-in schedules compute in float64 and round once to float32. The interval of a step is determined exactly: an
    argument such as 0.1 counts as the decimal number 1/10.

    >>> class Halving(LearningRateSchedule):
    ...     def __call__(self, step):
    ...         return 0.5 ** (float(step) // 100)
    >>> schedule = Halving()
    >>> schedule(0), schedule(99), schedule(100), schedule(250)
    (1.0, 1.0, 0.5, 0.25)
    """

    def __call__(self, step: Any) -> Any:
        """Return the learning rate of a step; the first step is 0."""
        raise NotImplementedError(
            f"Learning rate schedule '{type(self).__name__}' must override `__call__(self, step)`."
        )

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        raise NotImplementedError(
            f"Learning rate schedule '{type(self).__name__}' must override `get_config()` in order to be serializable."
        )

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the schedule with these arguments."""
        return cls(**own_config(config, cls.__name__))


class _ConfiguredSchedule(LearningRateSchedule):
    """A schedule that stores its arguments as attributes and returns them as its configuration."""

    names: tuple[str, ...] = ()

    def _set_arguments(self, name: str, **arguments: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"`name` must be a string; received name={name!r}")
        self.names = (*arguments, "name")
        vars(self).update(arguments, name=name)

    def __call__(self, step: Any) -> np.float32:
        return np.float32(self._rate(float(step)))

    def _rate(self, step: float) -> float:
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.names}


def _rate(value: Any, argument: str) -> float:
    """Return a rate as a float; if it is an optimizer's ``learning_rate`` variable, its current value."""
    return number(value.numpy()[()] if isinstance(value, AutoCastVariable) else value, argument)


def _as_fraction(value: float) -> Fraction:
    """Return the shortest decimal number of a float as a fraction: 11/10 for 1.1."""
    return Fraction(repr(value))


def _quotient(step: float, steps: float) -> Any:
    """Return ``step / steps``, as a fraction if a float would make :func:`math.floor` or :func:`math.ceil` wrong."""
    return step / steps if step.is_integer() and steps.is_integer() else Fraction(step) / _as_fraction(steps)


_DECAY = documented("""
    Parameters
    ----------
    initial_learning_rate, decay_steps, decay_rate : float
        `decay_steps` must be above 0.
    staircase : bool
        Whether ``step / decay_steps`` is rounded down to an integer.
    name : str
""")


@_DECAY
class ExponentialDecay(_ConfiguredSchedule):
    """``initial_learning_rate * decay_rate ** (step / decay_steps)``.

    >>> float(ExponentialDecay(1.0, decay_steps=10, decay_rate=0.5)(20))
    0.25
    """

    initial_learning_rate: float
    decay_steps: float
    decay_rate: float
    staircase: bool

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "ExponentialDecay",
    ) -> None:
        self._set_arguments(
            name,
            initial_learning_rate=_rate(initial_learning_rate, "initial_learning_rate"),
            decay_steps=positive(decay_steps, "decay_steps"),
            decay_rate=number(decay_rate, "decay_rate"),
            staircase=boolean(staircase, "staircase"),
        )

    def _exponent(self, step: float) -> float:
        return math.floor(_quotient(step, self.decay_steps)) if self.staircase else step / self.decay_steps

    def _rate(self, step: float) -> float:
        rate: float = self.initial_learning_rate * self.decay_rate ** self._exponent(step)
        return rate


@_DECAY
class InverseTimeDecay(ExponentialDecay):
    """``initial_learning_rate / (1 + decay_rate * step / decay_steps)``.

    >>> float(InverseTimeDecay(1.0, decay_steps=1, decay_rate=1.0)(3))
    0.25
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "InverseTimeDecay",
    ) -> None:
        super().__init__(initial_learning_rate, decay_steps, decay_rate, staircase, name)

    def _rate(self, step: float) -> float:
        return self.initial_learning_rate / (1 + self.decay_rate * self._exponent(step))


class PiecewiseConstantDecay(_ConfiguredSchedule):
    """``values[i]``, where i is the number of boundaries below the step.

    Parameters
    ----------
    boundaries : sequence of number
        Steps, ascending.
    values : sequence of float
        One element more than `boundaries`.
    name : str

    Examples
    --------
    >>> schedule = PiecewiseConstantDecay([10], [1.0, 0.5])
    >>> float(schedule(10)), float(schedule(11))
    (1.0, 0.5)
    """

    boundaries: list[float]
    values: list[float]

    def __init__(self, boundaries: Sequence[float], values: Sequence[float], name: str = "PiecewiseConstant") -> None:
        if len(boundaries) != len(values) - 1:
            raise ValueError(
                "`values` must be one more than `boundaries`; "
                f"received {len(boundaries)} boundaries and {len(values)} values"
            )
        for each in boundaries:
            number(each, "boundaries")
        self._set_arguments(name, boundaries=list(boundaries), values=[number(value, "values") for value in values])

    def _rate(self, step: float) -> float:
        passed = sum(step > boundary for boundary in self.boundaries)
        return self.values[passed]


class PolynomialDecay(_ConfiguredSchedule):
    """``(initial - end) * (1 - step / decay_steps) ** power + end``; constant after `decay_steps`, unless `cycle`.

    Parameters
    ----------
    initial_learning_rate, decay_steps, end_learning_rate, power : float
    cycle : bool
        Replace `decay_steps` in the formula by its smallest multiple that is not below the step.
    name : str

    Examples
    --------
    >>> float(PolynomialDecay(1.0, decay_steps=4, end_learning_rate=0.0)(1))
    0.75
    """

    initial_learning_rate: float
    decay_steps: float
    end_learning_rate: float
    power: float
    cycle: bool

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        name: str = "PolynomialDecay",
    ) -> None:
        self._set_arguments(
            name,
            initial_learning_rate=_rate(initial_learning_rate, "initial_learning_rate"),
            decay_steps=positive(decay_steps, "decay_steps"),
            end_learning_rate=_rate(end_learning_rate, "end_learning_rate"),
            power=number(power, "power"),
            cycle=boolean(cycle, "cycle"),
        )

    def _rate(self, step: float) -> float:
        steps, end = self.decay_steps, self.end_learning_rate
        cycles = max(1, math.ceil(_quotient(step, steps))) if self.cycle else 1
        share = max(0.0, 1 - step / (steps * cycles))
        rate: float = (self.initial_learning_rate - end) * share**self.power + end
        return rate


class CosineDecay(_ConfiguredSchedule):
    """Half a cosine from the initial learning rate down to `alpha` times that rate, after an optional linear warm-up.

    Parameters
    ----------
    initial_learning_rate : float
    decay_steps : float
        The length of the decay, without the warm-up.
    alpha : float
        Final learning rate / learning rate before the decay.
    name : str
    warmup_target : float, optional
        The learning rate after the warm-up, from which it decays; None: no warm-up.
    warmup_steps : float

    Examples
    --------
    >>> schedule = CosineDecay(0.0, decay_steps=10, warmup_target=1.0, warmup_steps=4)
    >>> [float(schedule(step)) for step in (0, 1, 4, 9, 14)]
    [0.0, 0.25, 1.0, 0.5, 0.0]
    """

    initial_learning_rate: float
    decay_steps: float
    alpha: float
    warmup_target: float | None
    warmup_steps: float

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        alpha: float = 0.0,
        name: str = "CosineDecay",
        warmup_target: float | None = None,
        warmup_steps: float = 0,
    ) -> None:
        self._set_arguments(
            name,
            initial_learning_rate=_rate(initial_learning_rate, "initial_learning_rate"),
            decay_steps=positive(decay_steps, "decay_steps"),
            alpha=number(alpha, "alpha"),
            warmup_target=None if warmup_target is None else _rate(warmup_target, "warmup_target"),
            warmup_steps=number(warmup_steps, "warmup_steps", 0),
        )

    def _rate(self, step: float) -> float:
        start, target = self.initial_learning_rate, self.warmup_target
        if target is not None:
            if step < self.warmup_steps:
                return (target - start) * step / self.warmup_steps + start
            start, step = target, step - self.warmup_steps
        return start * _cosine(min(step, self.decay_steps) / self.decay_steps, self.alpha)


class CosineDecayRestarts(_ConfiguredSchedule):
    """Half a cosine that restarts: cycle i has ``first_decay_steps * t_mul**i`` steps and the height ``m_mul**i``.

    Parameters
    ----------
    initial_learning_rate, first_decay_steps, t_mul, m_mul : float
        `t_mul` must be at least 1.
    alpha : float
        The lowest learning rate is ``alpha * initial_learning_rate``.
    name : str

    Examples
    --------
    >>> schedule = CosineDecayRestarts(1.0, first_decay_steps=2, m_mul=0.5)
    >>> [float(schedule(step)) for step in (0, 1, 2)]
    [1.0, 0.5, 0.5]
    """

    initial_learning_rate: float
    first_decay_steps: float
    t_mul: float
    m_mul: float
    alpha: float

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: float,
        t_mul: float = 2.0,
        m_mul: float = 1.0,
        alpha: float = 0.0,
        name: str = "SGDRDecay",
    ) -> None:
        self._set_arguments(
            name,
            initial_learning_rate=_rate(initial_learning_rate, "initial_learning_rate"),
            first_decay_steps=positive(first_decay_steps, "first_decay_steps"),
            t_mul=number(finite(t_mul, "t_mul"), "t_mul", 1),
            m_mul=number(m_mul, "m_mul"),
            alpha=number(alpha, "alpha"),
        )
        self._cycle = self._cycle_at(Fraction(0))

    def _rate(self, step: float) -> float:
        first, last, *cycle = self._cycle
        if not (first <= step < last and step.is_integer()):
            first, last, *cycle = self._cycle = self._cycle_at(Fraction(step))
        restarts, start, length = cycle
        share = (step - start) / length
        return self.initial_learning_rate * _cosine(share, self.alpha, self.m_mul**restarts)

    def _cycle_at(self, step: Fraction) -> tuple[int, int, int, float, float]:
        """Return first step, end (exclusive), index, exact start and exact length of the cycle of a step."""
        restarts = self._restarts_by(float(step))
        while self._start(restarts) > step:
            restarts -= 1
        while self._start(restarts + 1) <= step:
            restarts += 1
        start, end = self._start(restarts), self._start(restarts + 1)
        return math.ceil(start), math.ceil(end), restarts, float(start), float(end - start)

    def _restarts_by(self, step: float) -> int:
        """Return an estimate of the number of restarts before a step."""
        share, t = step / self.first_decay_steps, self.t_mul
        return math.floor(share if t == 1 else math.log(1 + share * (t - 1)) / math.log(t))

    def _start(self, restarts: int) -> Fraction:
        """Return the step of a restart, exact up to :data:`_MAX_EXACT_RESTARTS`; later fractions would be too long."""
        first, t = _as_fraction(self.first_decay_steps), _as_fraction(self.t_mul)
        if t == 1:
            return first * restarts
        if restarts > _MAX_EXACT_RESTARTS:
            return Fraction(self.first_decay_steps * (self.t_mul**restarts - 1) / (self.t_mul - 1))
        return first * (t**restarts - 1) / (t - 1)


def _cosine(share: float, alpha: float, height: float = 1.0) -> float:
    return (1 - alpha) * 0.5 * height * (1 + math.cos(math.pi * share)) + alpha


_MAX_EXACT_RESTARTS = 256
"""Up to this restart, :class:`CosineDecayRestarts` computes steps as fractions, later in float64."""

_CLASSES = {
    found.__name__: found
    for found in (
        CosineDecay, CosineDecayRestarts, ExponentialDecay, InverseTimeDecay, PiecewiseConstantDecay, PolynomialDecay,
    )
}  # fmt: skip


def serialize(learning_rate_schedule: LearningRateSchedule) -> dict[str, Any]:
    """Return the class name and the configuration of a schedule, as Keras writes them.

    >>> config = serialize(ExponentialDecay(0.1, decay_steps=10, decay_rate=0.5))
    >>> config["class_name"], config["config"]["decay_steps"]
    ('ExponentialDecay', 10.0)
    """
    if not isinstance(learning_rate_schedule, LearningRateSchedule):
        raise TypeError(f"`learning_rate_schedule` must be a LearningRateSchedule; received {learning_rate_schedule!r}")
    return serialize_keras_object(learning_rate_schedule)  # type: ignore[no-any-return]


def deserialize(config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> LearningRateSchedule:
    """Return the schedule of a :func:`serialize` dictionary.

    >>> config = {"initial_learning_rate": 8.0, "decay_steps": 1, "decay_rate": 0.5}
    >>> deserialize({"class_name": "ExponentialDecay", "config": config})(3)  # 8 * 0.5**3
    np.float32(1.0)
    """
    classes = known_classes(LearningRateSchedule, _CLASSES, custom_objects)
    found, own = class_and_config(config, classes, "learning rate schedule")
    schedule: LearningRateSchedule = found.from_config(own)
    return schedule
