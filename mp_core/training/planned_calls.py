"""Calls of a model in inference by plans: one for each arrangement of shapes and types."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from mp_core.plans import ForwardPlan, UnseenError
from mp_core.plans.plan import plan_key

__all__ = ["PlannedCalls"]

_KEPT = 8
"""How many plans of one model are kept: a fit has two shapes of batches, and two more for validation."""


class PlannedCalls:
    """Calls of a model in inference, by a plan from the second call with arrays of some shapes on.

    What plans cannot see (functions of NumPy, float64) runs call by call.
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        self._model = model
        self._plans: OrderedDict[Any, ForwardPlan[Any] | None] = OrderedDict()

    def __call__(self, x: Any) -> Any:
        """Return the outputs for some inputs, as arrays that nobody else has."""
        key = plan_key(x, {})
        if key not in self._plans:
            self._plans[key] = None
            while len(self._plans) > _KEPT:
                self._plans.popitem(last=False)
            return self._model(x, training=False)
        self._plans.move_to_end(key)
        plan = self._plans[key]
        if plan is None:
            plan = self._plans[key] = self._planned(x)
        return plan(x)

    def _planned(self, x: Any) -> Any:
        try:
            return ForwardPlan(self._model, (x,), {"training": False})
        except UnseenError:
            return lambda inputs: self._model(inputs, training=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"_model": self._model, "_plans": OrderedDict()}
