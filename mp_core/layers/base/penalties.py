"""Regularizers and constraints among the arguments of layers: ``kernel_regularizer``, ``bias_constraint`` ..."""

from typing import Any

__all__ = ["module_of", "penalties_in", "penalty_of", "serialized"]

_KINDS = ("regularizer", "constraint")


def _variables(options: tuple[str, ...]) -> list[str]:
    """Return the names of the variables with an initializer: these may have a regularizer and a constraint too."""
    return [option.removesuffix("_initializer") for option in options if option.endswith("_initializer")]


def penalties_in(arguments: dict[str, Any], options: tuple[str, ...]) -> dict[str, Any]:
    """Remove the regularizers and constraints from the arguments of a layer with these options, and return them."""
    found = {}
    for variable in _variables(options):
        for kind in _KINDS:
            value = arguments.pop(f"{variable}_{kind}", None)
            if value is not None:
                found[f"{variable}_{kind}"] = module_of(kind).get(value)
    activity = arguments.pop("activity_regularizer", None)
    return found if activity is None else found | {"activity_regularizer": module_of("regularizer").get(activity)}


_ARGUMENTS = {
    "kernel": "depthwise", "depthwise_kernel": "depthwise", "pointwise_kernel": "pointwise",
    "recurrent_kernel": "recurrent",
}  # fmt: skip
"""Name of a variable -> its prefix in Keras' arguments. The ``kernel`` here is that of a depthwise convolution."""


def penalty_of(penalties: Any, variable: str, kind: str) -> Any:
    """Return the regularizer or constraint of the variable of that name."""
    own = penalties.get(f"{variable}_{kind}")
    return penalties.get(f"{_ARGUMENTS.get(variable)}_{kind}") if own is None else own


def serialized(penalties: Any) -> dict[str, Any]:
    """Return the configurations of regularizers and constraints by the names of the arguments."""
    return {name: module_of(name.rpartition("_")[2]).serialize(value) for name, value in penalties.items()}


def module_of(kind: str) -> Any:
    """Return the module of regularizers or constraints, which inference does not load."""
    from mp_core.layers import constraints, regularizers  # which inference does not load

    return regularizers if kind == "regularizer" else constraints
