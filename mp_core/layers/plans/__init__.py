"""Plans: the forward pass of a layer for inputs of certain shapes, recorded once and run by compiled code."""

from mp_core.arrays.recorded import UnseenError
from mp_core.layers.plans.costs import Memory, Operation
from mp_core.layers.plans.plan import ForwardPlan, compile
from mp_core.layers.plans.scopes import eager, is_eager

__all__ = ["ForwardPlan", "Memory", "Operation", "UnseenError", "compile", "eager", "is_eager"]
