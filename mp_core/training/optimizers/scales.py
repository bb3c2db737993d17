"""Loss scales as immutable states: the state machine of the loss scales of Keras 3 and tf.keras."""

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
    """Raise TypeError unless all leaves are floating-point numbers or arrays: other types would not be scaled."""
    for leaf in leaves(tree):
        dtype = getattr(leaf, "dtype", None)
        floating = dtypes.is_float(dtype) if isinstance(dtype, np.dtype) else isinstance(leaf, float)
        if not floating and not (allow_none and leaf is None):
            received = f"{leaf!r} (of type {type(leaf).__name__})" if dtype is None else f"dtype {dtype}"
            raise TypeError(f"`{argument}` must hold floating-point numbers; received {received}")


def scale_number(value: Any, argument: str) -> float:
    """Return `value` as a float; raise ValueError unless it is finite and above 0 in float32."""
    found = positive(value, argument)
    if not 0 < _float32(found) < math.inf:
        raise ValueError(f"`{argument}` must be a finite number above 0 in float32; received {argument}={value!r}")
    return found


def multiplied(tree: Any, factor: float) -> Any:
    """Multiply the floating-point leaves of `tree` by `factor`; dtypes do not change, and overflow raises no error.

    16-bit leaves are multiplied in float32, because `factor` may be outside the range of their type.
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
    """A fixed loss scale; 1 has no effect.

    Parameters
    ----------
    loss_scale : float
        Above 0 and finite in float32, or infinity: a dynamic scale may grow to infinity.

    Examples
    --------
    >>> loss_scale = LossScale(1024.0)
    >>> loss_scale.unscale(loss_scale.scale({"loss": np.float16(0.5), "step": 3}))
    {'loss': np.float16(0.5), 'step': 3}
    """

    loss_scale: float = 1.0
    counter = 0
    """The number of finite steps since the last change."""
    skips = False
    """Whether to skip a step with gradients that are not finite."""

    def __post_init__(self) -> None:
        grown = self.loss_scale == math.inf  # possible in Keras
        self._set_numbers(loss_scale=math.inf if grown else scale_number(self.loss_scale, "loss_scale"))

    def _set_numbers(self, **numbers: float) -> None:
        """Store Python numbers: NumPy scalars would compute, and overflow, in their own dtype."""
        for name, value in numbers.items():
            object.__setattr__(self, name, value)

    def scale(self, tree: Any) -> Any:
        """Multiply the floating-point leaves of `tree` by the scale; dtypes do not change."""
        return multiplied(tree, self.loss_scale)

    def unscale(self, tree: Any) -> Any:
        """Multiply the floating-point leaves of `tree` by the reciprocal of the scale; dtypes do not change."""
        return multiplied(tree, 1.0 / self.loss_scale)

    def adjust(self, grads_finite: bool) -> Self:
        """Return the loss scale of the next step; `grads_finite` says whether this step's gradients were finite."""
        return self

    def restored(self, loss_scale: float, counter: int) -> Self:
        """Return the loss scale with a stored value and counter; a fixed scale ignores them."""
        return self


@dataclass(frozen=True)
class DynamicLossScale(LossScale):
    """A loss scale that grows after `period` finite steps in a row, and shrinks after each step that is not finite.

    After its first change the scale is a float32 number. The defaults are tf.keras'; Keras 3 has no limits
    (``min_loss_scale=0, max_loss_scale=math.inf``).

    Parameters
    ----------
    loss_scale : float
        The current scale.
    counter : int
        The number of finite steps since the last change.
    period : int
    factor : float
        The scale is multiplied or divided by it. Above 1.
    min_loss_scale, max_loss_scale : float
        The scale never shrinks to 0. If the next scale would exceed the upper limit, the scale does not change, but
        `counter` is reset.

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
        self._set_numbers(
            counter=whole(number(self.counter, "counter", 0)),
            period=positive_integer(self.period, "period"),
            factor=positive(self.factor, "factor"),
            min_loss_scale=number(self.min_loss_scale, "min_loss_scale", 0),
            max_loss_scale=number(self.max_loss_scale, "max_loss_scale", 0),
        )
        if not self.factor > 1:
            raise ValueError(f"`factor` must be above 1; received factor={self.factor!r}")

    def adjust(self, grads_finite: bool) -> Self:
        if not grads_finite:
            smaller = _float32(self.loss_scale / self.factor)
            return replace(self, loss_scale=max(smaller, self.min_loss_scale) or self.loss_scale, counter=0)
        if self.counter + 1 < self.period:
            return self._with_one_more_step()
        larger = _float32(self.loss_scale * self.factor)
        return replace(self, loss_scale=larger if larger <= self.max_loss_scale else self.loss_scale, counter=0)

    def restored(self, loss_scale: float, counter: int) -> Self:
        """Return the loss scale with a stored value and counter."""
        return replace(self, loss_scale=loss_scale, counter=counter)

    def _with_one_more_step(self) -> Self:
        """Return a copy with the counter increased by 1, without checking the other numbers again."""
        state = object.__new__(type(self))
        vars(state).update(vars(self) | {"counter": self.counter + 1})
        return state
