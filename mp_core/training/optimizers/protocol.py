"""The interface of optimizers that can be wrapped for loss scaling, and checks of their arguments."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from mp_core.policies.autocast import AutoCastVariable

__all__ = ["GradientsAndVariables", "OptimizerLike", "check_optimizer", "checked_pairs", "paired"]

GradientsAndVariables = Iterable[tuple[Any, AutoCastVariable]]

_UNBUILT = (
    "When passing `grads` without `variables`, the optimizer must already be built on a list of variables. "
    "Call `optimizer.build(trainable_variables)` first."
)


@runtime_checkable
class OptimizerLike(Protocol):
    """The interface that a loss scale optimizer requires of the optimizer that it wraps, built-in or your own.

    >>> from mp_core import optimizers
    >>> isinstance(optimizers.Adam(), OptimizerLike), isinstance("adam", OptimizerLike)
    (True, False)
    """

    iterations: Any
    """The number of steps: a variable, as in Keras, or an integer."""

    def apply_gradients(self, grads_and_vars: GradientsAndVariables) -> Any:
        """Update the variables whose gradients are not None, and count the step."""

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""


def check_optimizer(optimizer: Any, argument: str) -> OptimizerLike:
    """Check that `optimizer` has the interface of an optimizer, and return it; otherwise raise TypeError."""
    if not isinstance(optimizer, OptimizerLike) or isinstance(optimizer, type):
        raise TypeError(
            f'"{argument}" must have `iterations`, `apply_gradients` and `get_config`, but got: '
            f"{optimizer!r} (of type {type(optimizer).__name__})"
        )
    return optimizer


def checked_pairs(grads_and_vars: GradientsAndVariables) -> list[tuple[Any, Any]]:
    """Return pairs of gradient and variable as a list; not all gradients may be None."""
    if not isinstance(grads_and_vars, Iterable):
        raise TypeError(f"`grads_and_vars` must hold pairs of gradient and variable; received {grads_and_vars!r}")
    pairs = list(grads_and_vars)
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"`grads_and_vars` must hold pairs of gradient and variable; received {pair!r} in it")
    if pairs and all(gradient is None for gradient, _ in pairs):
        raise ValueError("No gradients provided for any variable.")
    return pairs


def paired(grads: Sequence[Any], variables: Sequence[Any] | None, built: Sequence[Any] | None) -> GradientsAndVariables:
    """Return pairs of gradient and variable; if `variables` is None, those that the optimizer was built for."""
    if variables is None:
        if built is None:
            raise ValueError(_UNBUILT)
        variables = built
    if len(grads) != len(variables):
        raise ValueError(
            f"`grads` and `trainable_variables` must be equally long; received {len(grads)} and {len(variables)}"
        )
    return zip(grads, variables, strict=True)
