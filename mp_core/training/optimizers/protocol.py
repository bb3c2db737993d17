"""What the loss scale optimizers need of an optimizer, and the checks of what they are given."""

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
    """What a loss scale optimizer needs of the optimizer that it wraps: one of these, or of your own.

    Examples
    --------
    >>> from mp_core import optimizers
    >>> isinstance(optimizers.Adam(), OptimizerLike), isinstance("adam", OptimizerLike)
    (True, False)
    """

    iterations: Any
    """The steps taken: a variable, as Keras has it, or an integer."""

    def apply_gradients(self, grads_and_vars: GradientsAndVariables) -> Any:
        """Update the variables by their gradients, where these are not None, and count the step."""

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""


def check_optimizer(optimizer: Any, argument: str) -> OptimizerLike:
    """Return an optimizer as it is; raise TypeError for everything else."""
    if not isinstance(optimizer, OptimizerLike) or isinstance(optimizer, type):
        raise TypeError(
            f'"{argument}" must have `iterations`, `apply_gradients` and `get_config`, but got: '
            f"{optimizer!r} (of type {type(optimizer).__name__})"
        )
    return optimizer


def checked_pairs(grads_and_vars: GradientsAndVariables) -> list[tuple[Any, Any]]:
    """Return pairs of gradient and variable as a list.

    Raises
    ------
    TypeError
        These are no pairs.
    ValueError
        There are pairs, and every gradient is None.
    """
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
    """Return pairs of gradient and variable, of those that an optimizer was built for where `variables` is None."""
    if variables is None:
        if built is None:
            raise ValueError(_UNBUILT)
        variables = built
    if len(grads) != len(variables):
        raise ValueError(
            f"`grads` and `trainable_variables` must be equally long; received {len(grads)} and {len(variables)}"
        )
    return zip(grads, variables, strict=True)
