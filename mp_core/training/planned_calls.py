"""Inference calls of a model by plans: one plan for each combination of input shapes and dtypes."""

from collections.abc import Callable
from typing import Any

from mp_core.layers.plans import ForwardPlan, UnseenError
from mp_core.layers.plans.cache import Cache
from mp_core.layers.plans.examples import has_array
from mp_core.layers.plans.plan import plan_key

__all__ = ["PlannedCalls"]

_KEPT = 8
"""Plans cached per model: a fit has two batch shapes (full and last batch), validation two more."""
_INFERENCE = {"training": False}


class PlannedCalls:
    """Call a model in inference; from the second call with the same shapes and dtypes on, by a plan.

    A model that a plan cannot record (it calls NumPy, or computes in float64) runs without a plan.
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        self._model = model
        self._calls: Cache[Callable[..., Any]] = Cache(_KEPT)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Return the outputs as new arrays."""
        if not has_array((inputs, named)):
            return self._call_directly(*inputs, **named)
        key = plan_key(inputs, named)
        call = self._calls.get(key)
        if call is None:
            self._calls.put(key, self._call_and_plan)
            call = self._call_directly
        return call(*inputs, **named)

    def _call_directly(self, *inputs: Any, **named: Any) -> Any:
        return self._model(*inputs, **named, **_INFERENCE)

    def _call_and_plan(self, *inputs: Any, **named: Any) -> Any:
        """Record a plan for later calls with the same shapes and dtypes, and return its outputs."""
        call: Callable[..., Any]
        try:
            call = ForwardPlan(self._model, inputs, named | _INFERENCE)
        except UnseenError:
            call = self._call_directly
        return self._calls.put(plan_key(inputs, named), call)(*inputs, **named)
