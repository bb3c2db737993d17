"""Forward passes of a model by plans: one for each arrangement of shapes and types."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core.plans import ForwardPlan, UnseenError
from mp_core.utilities.tree import map_leaves

__all__ = ["ForwardPasses", "signature"]

_KEPT = 8
"""How many plans of one model are kept: a fit has two shapes of batches, and two more for validation."""


def signature(tree: Any) -> Any:
    """Return what plans depend on: how arrays are arranged, their shapes and types."""
    kinds = map_leaves(lambda x: (x.shape, x.dtype) if isinstance(x, np.ndarray) else x, tree)
    return _hashable(kinds)


def _hashable(tree: Any) -> Any:
    if isinstance(tree, dict):
        return tuple((key, _hashable(value)) for key, value in tree.items())
    return tuple(map(_hashable, tree)) if isinstance(tree, list | tuple) else tree


class ForwardPasses:
    """Calls of a model in inference, by a plan from the second call with arrays of some shapes on.

    What plans cannot see (functions of NumPy, float64) runs call by call.
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        self._model = model
        self._plans: OrderedDict[Any, ForwardPlan[Any] | None] = OrderedDict()

    def __call__(self, x: Any) -> Any:
        """Return the outputs for some inputs, as arrays that nobody else has."""
        key = signature(x)
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
