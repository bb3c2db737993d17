"""Loss scales as immutable states: the one state machine behind the loss scales of all faces."""

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from mp_core.arrays import cast, dtypes
from mp_core.utilities.arguments import number, positive, positive_integer, whole
from mp_core.utilities.tree import leaves, map_leaves

__all__ = [
    "FLOAT32_MAX",
    "DynamicLossScale",
    "LossScale",
    "check_floating",
    "multiplied",
    "scale_number",
]

FLOAT32_MAX = float(np.finfo(np.float32).max)


def check_floating(tree: Any, argument: str, *, allow_none: bool = False) -> None:
    """Raise TypeError unless all leaves are floating-point numbers or arrays: others would keep their scale."""
    for leaf in leaves(tree):
        dtype = getattr(leaf, "dtype", None)
        floating = dtypes.is_float(dtype) if isinstance(dtype, np.dtype) else isinstance(leaf, float)
        if not floating and not (allow_none and leaf is None):
            received = f"{leaf!r} (of type {type(leaf).__name__})" if dtype is None else f"dtype {dtype}"
            raise TypeError(f"`{argument}` must hold floating-point numbers; received {received}")


def scale_number(value: Any, argument: str) -> float:
    """Return `value` as a float; raise ValueError unless float32 holds it as a finite number above 0."""
    found = positive(value, argument)
    if not 0 < _float32(found) < math.inf:
        raise ValueError(f"`{argument}` must be a finite number above 0 in float32; received {argument}={value!r}")
    return found


def multiplied(tree: Any, factor: float) -> Any:
    """Return `tree`, its floating-point leaves multiplied by `factor`, each in its own dtype; overflow is no error.

    Leaves of 16 bits are multiplied in float32: `factor` need not be a number of theirs.
    """

    def scaled(x: Any) -> Any:
        if not hasattr(x, "dtype"):
            return x * factor if isinstance(x, float) else x
        if not dtypes.is_float(x.dtype):
            return x
        if x.dtype.itemsize >= 4:
            return x * x.dtype.type(factor)
        return cast(cast(x, "float32") * np.float32(factor), x.dtype)[()]

    with np.errstate(over="ignore", invalid="ignore"):
        return tree if factor == 1.0 else map_leaves(scaled, tree)


def _float32(x: float) -> float:
    return float(cast(x, "float32"))


@dataclass(frozen=True)
class LossScale:
    """A loss scale that stays as it is; 1 does nothing.

    Parameters
    ----------
    loss_scale : float
        The factor.

    Raises
    ------
    ValueError
        `loss_scale` is not a number above 0, or float32 holds it only as 0 or infinity. Infinity itself is allowed: a
        scale may grow to it.

    Examples
    --------
    >>> loss_scale = LossScale(1024.0)
    >>> loss_scale.unscale(loss_scale.scale({"loss": np.float16(0.5), "step": 3}))
    {'loss': np.float16(0.5), 'step': 3}
    """

    loss_scale: float = 1.0
    counter = 0
    """The finite steps since the last change."""
    skips = False
    """Whether a step whose gradients are not finite is to be skipped."""

    def __post_init__(self) -> None:
        grown = self.loss_scale == math.inf  # as Keras' scale may
        self._keep(loss_scale=math.inf if grown else scale_number(self.loss_scale, "loss_scale"))

    def _keep(self, **numbers: float) -> None:
        """Keep numbers as Python's: those of NumPy would compute, and overflow, in their own dtype."""
        for name, value in numbers.items():
            object.__setattr__(self, name, value)

    def scale(self, tree: Any) -> Any:
        """Return `tree` with its floating-point leaves multiplied by the factor, each in its own dtype."""
        return multiplied(tree, self.loss_scale)

    def unscale(self, tree: Any) -> Any:
        """Return `tree` with its floating-point leaves multiplied by the reciprocal, each in its own dtype."""
        return multiplied(tree, 1.0 / self.loss_scale)

    def adjust(self, grads_finite: bool) -> Self:
        """Return the state of the next step, now that this step's gradients were finite or not."""
        return self

    def restored(self, loss_scale: float, counter: int) -> Self:
        """Return the state with the progress of another one: a scale that stays as it is has none."""
        return self


@dataclass(frozen=True)
class DynamicLossScale(LossScale):
    """A loss scale that grows after `period` finite steps in a row and shrinks after every other step.

    The factor is a float32 number after its first change. The defaults are tf.keras'; Keras 3 has neither limit
    (``min_loss_scale=0, max_loss_scale=math.inf``).

    Parameters
    ----------
    loss_scale : float
        The factor at this step.
    counter : int
        The finite steps since the last change.
    period : int
        How many of them make it grow.
    factor : float
        By which it grows and shrinks.
    min_loss_scale : float
        It shrinks no further than to this, and never to 0.
    max_loss_scale : float
        It does not grow if it would exceed this; the count starts again all the same.

    Raises
    ------
    ValueError
        `loss_scale` is as :class:`LossScale` refuses it, `counter` or a limit is not a number of at least 0, `period`
        is not a positive integer, or `factor` is not above 1.

    Examples
    --------
    >>> loss_scale = DynamicLossScale(4.0, period=2)
    >>> loss_scale.adjust(True).adjust(True).loss_scale, loss_scale.adjust(False).loss_scale
    (8.0, 2.0)
    """

    loss_scale: float = 2.0**15
    counter: int = 0
    period: int = 2000
    factor: float = 2.0
    min_loss_scale: float = 1.0
    max_loss_scale: float = FLOAT32_MAX
    skips = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._keep(
            counter=whole(number(self.counter, "counter", 0)),
            period=positive_integer(self.period, "period"),
            factor=positive(self.factor, "factor"),
            min_loss_scale=number(self.min_loss_scale, "min_loss_scale", 0),
            max_loss_scale=number(self.max_loss_scale, "max_loss_scale", 0),
        )
        if not self.factor > 1:
            raise ValueError(f"`factor` must be above 1; received factor={self.factor!r}")

    def adjust(self, grads_finite: bool) -> Self:
        """Return the state of the next step, now that this step's gradients were finite or not."""
        if not grads_finite:
            smaller = _float32(self.loss_scale / self.factor)
            return replace(self, loss_scale=max(smaller, self.min_loss_scale) or self.loss_scale, counter=0)
        if self.counter + 1 < self.period:
            return self._counted()
        larger = _float32(self.loss_scale * self.factor)
        return replace(self, loss_scale=larger if larger <= self.max_loss_scale else self.loss_scale, counter=0)

    def restored(self, loss_scale: float, counter: int) -> Self:
        """Return the state with the progress of another one."""
        return replace(self, loss_scale=loss_scale, counter=counter)

    def _counted(self) -> Self:
        """Return this state after one finite step more; nothing else has changed, so nothing is checked again."""
        state = object.__new__(type(self))
        vars(state).update(vars(self) | {"counter": self.counter + 1})
        return state
