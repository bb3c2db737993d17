"""Functions of targets and outputs by name, and MeanMetricWrapper, the mean of such a function."""

from collections.abc import Callable
from typing import Any, Self

from mp_core.training import losses
from mp_core.training.metrics import accuracies, correlations, means
from mp_core.training.metrics.metric import NAMED, Mean
from mp_core.utilities.docstrings import documented
from mp_core.utilities.names import snake_case
from mp_core.utilities.registry import named_function, own_config

__all__ = ["FUNCTIONS", "MeanMetricWrapper", "class_of", "direction_of"]

_HOMES = (accuracies, correlations, means)
FUNCTIONS: dict[str, Any] = {
    **losses.registry.FUNCTIONS,
    **{name: getattr(home, name) for home in _HOMES for name in home.__all__ if name[0].islower()},
}
"""Name -> function of targets and outputs; losses are included."""

_KINDS = [getattr(home, name) for home in _HOMES for name in home.__all__ if name[0].isupper()]


def class_of(function: Any) -> Any:
    """Return the metric class for the mean of a function; None if there is none."""
    return next((kind for kind in _KINDS if kind.function is function), None)


def direction_of(function: Any) -> str | None:
    """Return the direction of better values, ``"up"`` or ``"down"``; ``"down"`` for losses; None if unknown."""
    kind = class_of(function)
    if kind is not None:
        return kind._direction  # type: ignore[no-any-return]
    is_loss = isinstance(function, losses.Loss) or any(function is each for each in losses.registry.FUNCTIONS.values())
    return "down" if is_loss else None


@documented(NAMED)
class MeanMetricWrapper(Mean):
    """The mean over samples of a function of targets and outputs.

    Parameters
    ----------
    fn : callable
        Called with targets, outputs and `kwargs`; it may be a loss. 16-bit and 8-bit floats are passed as float32.
    name : str, optional
        Default: the name of the function.
    **kwargs
        Further arguments of the function.

    Examples
    --------
    >>> import numpy as np
    >>> def above(y_true, y_pred, by):
    ...     return y_pred > y_true + by
    >>> MeanMetricWrapper(above, by=1.0)(np.float32([0, 0]), np.float32([0.5, 1.5]))
    np.float32(0.5)
    """

    def __init__(self, fn: Callable[..., Any], name: str | None = None, dtype: Any = None, **kwargs: Any) -> None:
        if not callable(fn):
            raise TypeError(f"`fn` must be a function of targets and outputs; received {fn!r}")
        own = getattr(fn, "name", None) or getattr(fn, "__name__", None) or snake_case(type(fn).__name__)
        super().__init__(own if name is None else name, dtype)
        self._fn, self._given, self._direction = fn, kwargs, direction_of(fn)

    def update_state(  # type: ignore[override]
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        values = self._fn(y_true, y_pred, **self._given)
        if values is None or isinstance(values, str):
            raise TypeError(f"the metric '{self.name}' must return numbers; received {values!r}")
        super().update_state(values, sample_weight)

    def get_config(self) -> dict[str, Any]:
        fn = losses.serialize(self._fn)
        return super().get_config() | {"fn": fn} | self._given

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        given = dict(own_config(config, cls.__name__))
        fn = named_function(given.pop("fn", None))
        if isinstance(fn, str) and fn not in FUNCTIONS:
            raise ValueError(f"`fn` must be the name of a known or registered function; received {fn!r}")
        return cls(FUNCTIONS[fn] if isinstance(fn, str) else losses.get(fn), **given)
