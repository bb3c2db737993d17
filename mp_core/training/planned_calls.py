"""Calls of a model in inference by plans: one for each arrangement of shapes and types."""

from collections.abc import Callable
from typing import Any

from mp_core.plans import ForwardPlan, UnseenError
from mp_core.plans.cache import Cache
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
        self._calls: Cache[Callable[[Any], Any]] = Cache(_KEPT)

    def __call__(self, x: Any) -> Any:
        """Return the outputs for some inputs, as arrays that nobody else has."""
        key = plan_key(x, {})
        call = self._calls.get(key)
        if call is None:
            self._calls.put(key, self._call_and_plan)
            call = self._call_directly
        return call(x)

    def _call_directly(self, x: Any) -> Any:
        return self._model(x, training=False)

    def _call_and_plan(self, x: Any) -> Any:
        """Return the outputs by a plan, which later calls with such inputs run."""
        call: Callable[[Any], Any]
        try:
            call = ForwardPlan(self._model, (x,), {"training": False})
        except UnseenError:
            call = self._call_directly
        return self._calls.put(plan_key(x, {}), call)(x)
