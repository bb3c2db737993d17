"""Optimizers: the protocol, plain gradient descent, and Keras 3's loss scale around any of them."""

import inspect
import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from mp_core.arguments import number, positive, positive_integer
from mp_core.arrays import cast
from mp_core.autocast import AutoCastVariable
from mp_core.dtype_policies.lookup import class_and_config
from mp_core.loss_scale.state import DynamicLossScale, LossScale, all_finite, multiply

__all__ = ["SGD", "LossScaleOptimizer", "Optimizer", "deserialize_optimizer", "serialize_optimizer"]

GradientsAndVariables = Iterable[tuple[Any, AutoCastVariable]]


@runtime_checkable
class Optimizer(Protocol):
    """What a loss scale optimizer needs of the optimizer that it wraps."""

    iterations: int
    """The steps taken."""

    def apply_gradients(self, grads_and_vars: GradientsAndVariables) -> None:
        """Update the variables by their gradients, where these are not None, and count the step."""

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""


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
        `learning_rate` is no number, or `loss_scale_factor` no finite one above 0.

    Examples
    --------
    >>> variable = AutoCastVariable([1.0, 2.0])
    >>> SGD(0.5).apply_gradients([(np.array([1.0, 0.0], np.float16), variable)])
    >>> variable.numpy()
    array([0.5, 2. ], dtype=float32)
    """

    def __init__(self, learning_rate: float = 0.01, loss_scale_factor: float | None = None) -> None:
        self.learning_rate = number(learning_rate, "learning_rate")
        self.loss_scale_factor = None if loss_scale_factor is None else positive(loss_scale_factor, "loss_scale_factor")
        self.iterations = 0

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss from which to compute the gradients."""
        return LossScale(self.loss_scale_factor or 1.0).scale(loss)

    def apply_gradients(self, grads_and_vars: GradientsAndVariables) -> None:
        """Update the variables by their gradients, where these are not None, and count the step."""
        step = self.learning_rate / (self.loss_scale_factor or 1.0)
        for gradient, variable in grads_and_vars:
            if gradient is not None and variable.overwrite_with_gradient:
                variable.assign(gradient)
            elif gradient is not None:
                variable.assign_sub(multiply(cast(gradient, variable.true_dtype), step))
        self.iterations += 1

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"learning_rate": self.learning_rate, "loss_scale_factor": self.loss_scale_factor}


def serialize_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """Return the class name and the configuration of an optimizer."""
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
        for key in arguments.keys() - own.keys() - {"name"}:
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
    ValueError
        An argument belongs to the inner optimizer, or does not exist; `initial_scale` is no finite number above 0, or
        `dynamic_growth_steps` no positive integer.

    Examples
    --------
    >>> variable = AutoCastVariable([1.0])
    >>> optimizer = LossScaleOptimizer(SGD(0.5), initial_scale=1024.0)
    >>> optimizer.scale_loss(np.float16(0.25))
    np.float16(256.0)
    >>> optimizer.apply([np.array([1024.0], np.float16)], [variable])
    >>> optimizer.apply([np.array([np.inf], np.float16)], [variable])
    >>> variable.numpy(), optimizer.dynamic_scale, optimizer.iterations
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
        inner_optimizer.loss_scale_factor = None  # type: ignore[attr-defined]
        self.inner_optimizer = inner_optimizer
        self.initial_scale = positive(initial_scale, "initial_scale")
        self.dynamic_growth_steps = positive_integer(dynamic_growth_steps, "dynamic_growth_steps")
        self.name = name or "loss_scale_optimizer"
        self.state = DynamicLossScale(
            self.initial_scale, period=self.dynamic_growth_steps, min_loss_scale=0.0, max_loss_scale=math.inf
        )

    @property
    def dynamic_scale(self) -> float:
        """The scale at this step."""
        return self.state.loss_scale

    @property
    def step_counter(self) -> int:
        """The finite steps since the scale last changed."""
        return self.state.counter

    @property
    def iterations(self) -> int:
        """The steps that the inner optimizer took; skipped ones do not count."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's."""
        return self.inner_optimizer.learning_rate  # type: ignore[attr-defined]

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value  # type: ignore[attr-defined]

    def build(self, trainable_variables: Sequence[AutoCastVariable]) -> None:
        """Let the inner optimizer, if it has this, create what it keeps for the variables."""
        if hasattr(self.inner_optimizer, "build"):
            self.inner_optimizer.build(trainable_variables)

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss from which to compute the gradients."""
        return self.state.scale(loss)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[AutoCastVariable]) -> None:
        """Divide the gradients by the scale in float32 and hand them on if they are finite; adjust the scale."""
        if len(grads) != len(trainable_variables):
            raise ValueError(
                "`grads` and `trainable_variables` must be equally long; "
                f"received {len(grads)} and {len(trainable_variables)}"
            )
        finite = all_finite(list(grads))
        if finite:
            scale = np.float32(self.dynamic_scale)
            pairs = zip(grads, trainable_variables, strict=True)
            self.inner_optimizer.apply_gradients([(_divided(g, v, scale), v) for g, v in pairs])
        self.state = self.state.adjust(finite)

    def apply_gradients(self, grads_and_vars: GradientsAndVariables) -> None:
        """Call :meth:`apply` with pairs of gradient and variable."""
        pairs = list(grads_and_vars)
        self.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])

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
        """Return the optimizer of a configuration."""
        return cls(**config | {"inner_optimizer": deserialize_optimizer(config.get("inner_optimizer"), custom_objects)})


def _divided(gradient: Any, variable: AutoCastVariable, scale: np.float32) -> Any:
    """Return the gradient without the scale; a variable that is overwritten with its gradient has none in it."""
    if gradient is None or variable.overwrite_with_gradient:
        return gradient
    return np.divide(gradient, scale)
