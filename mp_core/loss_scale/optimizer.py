"""Optimizers: the protocol, plain gradient descent, and Keras 3's loss scale around any of them."""

import inspect
import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from mp_core.arrays import asarray, cast
from mp_core.autocast import AutoCastVariable
from mp_core.dtype_policies.lookup import class_and_config, own_config
from mp_core.loss_scale.state import (
    DynamicLossScale,
    LossScale,
    are_finite,
    check_floating,
    multiply,
    scale_number,
)
from mp_core.utilities.arguments import number, positive_integer

__all__ = [
    "SGD",
    "LossScaleOptimizer",
    "Optimizer",
    "check_optimizer",
    "checked_pairs",
    "deserialize_optimizer",
    "serialize_optimizer",
]

GradientsAndVariables = Iterable[tuple[Any, AutoCastVariable]]

_UNBUILT = (
    "When passing `grads` without `variables`, the optimizer must already be built on a list of variables. "
    "Call `optimizer.build(trainable_variables)` first."
)


@runtime_checkable
class Optimizer(Protocol):
    """What a loss scale optimizer needs of the optimizer that it wraps."""

    iterations: Any
    """The steps taken: a variable, as Keras has it, or an integer."""

    def apply_gradients(self, grads_and_vars: GradientsAndVariables) -> Any:
        """Update the variables by their gradients, where these are not None, and count the step."""

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""


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


def paired(grads: Sequence[Any], variables: Sequence[Any] | None, built: Sequence[Any] | None) -> list[tuple[Any, Any]]:
    """Return pairs of gradient and variable, of those that an optimizer was built for where `variables` is None."""
    if variables is None:
        if built is None:
            raise ValueError(_UNBUILT)
        variables = built
    if len(grads) != len(variables):
        raise ValueError(
            f"`grads` and `trainable_variables` must be equally long; received {len(grads)} and {len(variables)}"
        )
    return checked_pairs(zip(grads, variables, strict=True))


class SGD:
    """Plain gradient descent, ``variable -= learning_rate * gradient`` in the dtype in which the variable is stored.

    Parameters
    ----------
    learning_rate : float
    loss_scale_factor : float, optional
        A fixed loss scale: :meth:`scale_loss` multiplies by it, and gradients are divided by it.

    Raises
    ------
    ValueError
        `learning_rate` is not a number, or `loss_scale_factor` is not a number above 0 that float32 holds.

    Examples
    --------
    >>> variable = AutoCastVariable([1.0, 2.0])
    >>> optimizer = SGD(0.5)
    >>> int(optimizer.apply_gradients([(np.array([1.0, 0.0], np.float16), variable)]))
    1
    >>> variable.numpy()
    array([0.5, 2. ], dtype=float32)
    """

    def __init__(self, learning_rate: float = 0.01, loss_scale_factor: float | None = None) -> None:
        self.learning_rate = number(learning_rate, "learning_rate")
        self.loss_scale_factor = (
            None if loss_scale_factor is None else scale_number(loss_scale_factor, "loss_scale_factor")
        )
        self._iterations = AutoCastVariable(np.int32(0), trainable=False, name="iteration")
        self._built: list[AutoCastVariable] | None = None

    @property
    def iterations(self) -> AutoCastVariable:
        """The steps taken: an int32 variable, whose value can be set."""
        return self._iterations

    @iterations.setter
    def iterations(self, value: int) -> None:
        self._iterations.assign(value)

    def build(self, trainable_variables: Sequence[AutoCastVariable]) -> None:
        """Remember the variables for :meth:`apply` without any."""
        self._built = list(trainable_variables)

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss from which to compute the gradients."""
        check_floating(loss, "loss")
        return LossScale(self.loss_scale_factor or 1.0).scale(loss)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[AutoCastVariable] | None = None) -> None:
        """Call :meth:`apply_gradients` with the gradients of these variables, or of those of :meth:`build`."""
        self.apply_gradients(paired(grads, trainable_variables, self._built))

    def apply_gradients(self, grads_and_vars: GradientsAndVariables) -> AutoCastVariable:
        """Update the variables by their gradients, where these are not None; count the step unless there are no pairs.

        Raises
        ------
        TypeError
            These are no pairs of gradient and variable.
        ValueError
            Every gradient is None, or one has another shape than its variable. In no case a variable has changed.
        """
        pairs = checked_pairs(grads_and_vars)
        updates = [(gradient, variable) for gradient, variable in map(_checked_update, pairs) if gradient is not None]
        step = float(self.learning_rate) / float(self.loss_scale_factor or 1.0)  # either may have been set since
        for gradient, variable in updates:
            if variable.overwrite_with_gradient:
                variable.assign(gradient)
            else:
                variable.assign_sub(multiply(cast(gradient, variable.true_dtype), step))
        if pairs:
            self._iterations.assign_add(1)
        return self._iterations

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"learning_rate": self.learning_rate, "loss_scale_factor": self.loss_scale_factor}


def _checked_update(pair: tuple[Any, Any]) -> tuple[Any, AutoCastVariable]:
    """Return a pair whose gradient is None, or an array of the shape of the variable or of one number for all of it."""
    gradient, variable = pair
    if not isinstance(variable, AutoCastVariable):
        raise TypeError(
            "SGD updates variables, which are AutoCastVariable; received one of type "
            f"{type(variable).__name__} in `grads_and_vars`"
        )
    if gradient is not None:
        gradient = asarray(gradient, "grads_and_vars")
        one = gradient.ndim == 0 and not variable.overwrite_with_gradient
        if gradient.shape != variable.shape and not one:
            raise ValueError(
                f"The gradient of variable '{variable.name}' must have its shape {variable.shape}; "
                f"received {gradient.shape}"
            )
    return gradient, variable


def check_optimizer(optimizer: Any, argument: str) -> Optimizer:
    """Return an optimizer as it is; raise TypeError for everything else."""
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, type):
        raise TypeError(
            f'"{argument}" must have `iterations`, `apply_gradients` and `get_config`, but got: '
            f"{optimizer!r} (of type {type(optimizer).__name__})"
        )
    return optimizer


def serialize_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """Return the class name and the configuration of an optimizer.

    Raises
    ------
    TypeError
        `optimizer` is not an optimizer.
    """
    check_optimizer(optimizer, "optimizer")
    return {"class_name": type(optimizer).__name__, "config": optimizer.get_config()}


def deserialize_optimizer(config: dict[str, Any] | None, custom_objects: dict[str, Any] | None = None) -> Optimizer:
    """Return the optimizer of a :func:`serialize_optimizer` dictionary.

    Raises
    ------
    ValueError
        `config` is no such dictionary, ``class_name`` is neither ``"SGD"`` nor in `custom_objects`, or an argument of
        Keras' that SGD here does not have is on.
    """
    classes: dict[str, Any] = {"SGD": SGD} | (custom_objects or {})
    found, arguments = class_and_config(config, classes, "optimizer")
    if found is SGD:
        own = inspect.signature(SGD).parameters
        for key in arguments.keys() - own.keys() - {"name", "jit_compile"}:
            if arguments[key] and arguments[key] != _INNER_ARGUMENTS.get(key):
                raise ValueError(f"SGD has no argument `{key}`; received {key}={arguments[key]!r}")
        arguments = {key: value for key, value in arguments.items() if key in own}
    optimizer: Optimizer = found(**arguments)
    return optimizer


# Arguments of Keras' base optimizer with their defaults: what the wrapped optimizer does is set there.
_INNER_ARGUMENTS = {
    "weight_decay": None,
    "clipnorm": None,
    "clipvalue": None,
    "global_clipnorm": None,
    "use_ema": False,
    "ema_momentum": 0.99,
    "ema_overwrite_frequency": None,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
}


def _check_arguments(arguments: dict[str, Any]) -> None:
    if not arguments.pop("dynamic", True):
        raise ValueError(
            "LossScaleOptimizer always adjusts its loss scale; for a fixed one, set `loss_scale_factor` on the "
            "optimizer itself. Received: dynamic=False"
        )
    unknown = [name for name in arguments if name not in _INNER_ARGUMENTS]
    if unknown:
        raise ValueError(f"LossScaleOptimizer has no arguments: {', '.join(f'`{name}`' for name in unknown)}")
    for name, value in arguments.items():
        if value != _INNER_ARGUMENTS[name]:
            raise ValueError(f"Set `{name}` on the `inner_optimizer`. Received: {name}={value!r}")


class LossScaleOptimizer:
    """Keras 3's dynamic loss scale around an optimizer: doubled after finite steps, halved and skipped otherwise.

    Parameters
    ----------
    inner_optimizer : Optimizer
        Its own ``loss_scale_factor`` is set to None.
    initial_scale : float
    dynamic_growth_steps : int
        How many finite steps in a row double the scale.
    name : str, optional
    **kwargs
        Arguments of Keras' base optimizer, accepted with their defaults only.

    Attributes
    ----------
    state : DynamicLossScale

    Raises
    ------
    TypeError
        `inner_optimizer` is no optimizer or scales losses itself, or `name` no string.
    ValueError
        An argument belongs to the inner optimizer, or does not exist; `initial_scale` is no finite number above 0 in
        float32, or `dynamic_growth_steps` no positive integer.

    Examples
    --------
    >>> variable = AutoCastVariable([1.0])
    >>> optimizer = LossScaleOptimizer(SGD(0.5), initial_scale=1024.0)
    >>> optimizer.scale_loss(np.float16(0.25))
    np.float16(256.0)
    >>> optimizer.apply([np.array([1024.0], np.float16)], [variable])
    >>> optimizer.apply([np.array([np.inf], np.float16)], [variable])
    >>> variable.numpy(), optimizer.dynamic_scale, int(optimizer.iterations)
    (array([0.5], dtype=float32), 512.0, 1)
    """

    def __init__(
        self,
        inner_optimizer: Optimizer,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        _check_arguments(kwargs)
        if name is not None and not isinstance(name, str):
            raise TypeError(f"`name` must be a string; received name={name!r}")
        check_optimizer(inner_optimizer, "inner_optimizer")
        if isinstance(inner_optimizer, LossScaleOptimizer):
            raise TypeError(f"LossScaleOptimizer cannot wrap another LossScaleOptimizer, but got: {inner_optimizer}")
        self.initial_scale = scale_number(initial_scale, "initial_scale")
        self.dynamic_growth_steps = positive_integer(dynamic_growth_steps, "dynamic_growth_steps")
        self.name = name or "loss_scale_optimizer"
        self.state = DynamicLossScale(
            self.initial_scale, period=self.dynamic_growth_steps, min_loss_scale=0.0, max_loss_scale=math.inf
        )
        inner_optimizer.loss_scale_factor = None  # type: ignore[attr-defined]
        self.inner_optimizer = inner_optimizer
        self._built: list[AutoCastVariable] | None = None

    @property
    def dynamic_scale(self) -> float:
        """The scale at this step."""
        return self.state.loss_scale

    @property
    def step_counter(self) -> int:
        """The finite steps since the scale last changed."""
        return self.state.counter

    @property
    def iterations(self) -> Any:
        """The steps that the inner optimizer took, its own attribute; skipped ones do not count."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's."""
        return self.inner_optimizer.learning_rate  # type: ignore[attr-defined]

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value  # type: ignore[attr-defined]

    def build(self, trainable_variables: Sequence[AutoCastVariable]) -> None:
        """Remember the variables for :meth:`apply`, and build the inner optimizer for them, if it has this."""
        self._built = list(trainable_variables)
        if hasattr(self.inner_optimizer, "build"):
            self.inner_optimizer.build(trainable_variables)

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss from which to compute the gradients."""
        check_floating(loss, "loss")
        return self.state.scale(loss)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[AutoCastVariable] | None = None) -> None:
        """Call :meth:`apply_gradients` with the gradients of these variables, or of those of :meth:`build`."""
        self.apply_gradients(paired(grads, trainable_variables, self._built))

    def apply_gradients(self, grads_and_vars: GradientsAndVariables) -> Any:
        """Divide the gradients by the scale in float32 and hand them on if they are finite; adjust the scale.

        Returns
        -------
        iterations : AutoCastVariable or int
            :attr:`iterations`.

        Raises
        ------
        TypeError
            These are no pairs of gradient and variable.
        ValueError
            Every gradient is None.
        """
        pairs = checked_pairs(grads_and_vars)
        finite = are_finite([gradient for gradient, _ in pairs], "grads_and_vars")
        if finite:
            scale = np.float32(self.dynamic_scale)
            self.inner_optimizer.apply_gradients([(_divided(g, v, scale), v) for g, v in pairs])
        self.state = self.state.adjust(finite)
        return self.iterations

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {
            "name": self.name,
            "inner_optimizer": serialize_optimizer(self.inner_optimizer),
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Self:
        """Return the optimizer of a configuration.

        Raises
        ------
        TypeError, ValueError
            `config` is no dictionary of the constructor's arguments.
        """
        config = own_config(config, "LossScaleOptimizer")
        return cls(**config | {"inner_optimizer": deserialize_optimizer(config.get("inner_optimizer"), custom_objects)})


def _divided(gradient: Any, variable: Any, scale: np.float32) -> Any:
    """Return the gradient without the scale; a variable that is overwritten with its gradient has none in it."""
    if gradient is None or getattr(variable, "overwrite_with_gradient", False):
        return gradient
    return np.divide(gradient, scale)
