"""Keras 3's LossScaleOptimizer, its base class, and the rule that decides when to use one."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, Self, TypeGuard

import numpy as np

from mp_core.arrays.finite import are_finite
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.training.optimizers.base import Optimizer
from mp_core.training.optimizers.protocol import (
    GradientsAndVariables,
    OptimizerLike,
    check_optimizer,
    checked_pairs,
    paired,
)
from mp_core.training.optimizers.registry import CLASSES, deserialize, serialize
from mp_core.training.optimizers.scales import DynamicLossScale, LossScale, check_floating, scale_number
from mp_core.training.optimizers.state import Common
from mp_core.utilities.arguments import boolean, positive_integer
from mp_core.utilities.registry import own_config

__all__ = ["LossScaleOptimizer", "ScaledOptimizer", "check_wrapping", "wrap_optimizer"]

_INNER_ARGUMENTS = {
    name: argument.default
    for name, argument in signature(Optimizer).parameters.items()
    if name in Common.__annotations__ and name != "name"
}
"""Arguments of all optimizers -> their defaults. Other values must be set on the wrapped optimizer."""
_SCALE_VARIABLES = ("iteration", "learning_rate", "step_counter", "dynamic_scale")
"""Names of the values that files have before the variables of the inner optimizer."""


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


class ScaledOptimizer(ABC):
    """The base of the loss scale optimizers of Keras 3 and tf.keras: wraps an optimizer.

    :meth:`scale_loss` scales a loss; :meth:`apply` takes the gradients of the scaled loss. `state` is the current
    :class:`LossScale`, at first the argument. A dynamic scale grows after `dynamic_growth_steps` finite steps in a row;
    of a fixed scale this is None.
    """

    state: LossScale

    def __init__(self, inner_optimizer: OptimizerLike, state: LossScale) -> None:
        check_optimizer(inner_optimizer, "inner_optimizer")
        if isinstance(inner_optimizer, ScaledOptimizer):
            raise TypeError(f"LossScaleOptimizer cannot wrap another LossScaleOptimizer, but got: {inner_optimizer}")
        self.inner_optimizer, self.state, self.initial_scale = inner_optimizer, state, state.loss_scale
        self.dynamic_growth_steps = state.period if isinstance(state, DynamicLossScale) else None
        self._built_for: list[AutoCastVariable] | None = None

    # ---- the loss scale

    @property
    def loss_scale(self) -> np.float32:
        """The current scale."""
        return np.float32(self.state.loss_scale)

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss, which must be floating-point, times the scale; compute the gradients from it."""
        check_floating(loss, "loss")
        return self.state.scale(loss)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[AutoCastVariable] | None = None) -> None:
        """Take a step with the gradients of a scaled loss; default: gradients of the variables of :meth:`build`."""
        self.apply_gradients(paired(grads, trainable_variables, self._built_for))

    @abstractmethod
    def apply_gradients(self, grads_and_vars: GradientsAndVariables) -> Any:
        """Take a step with pairs of gradient and variable; return :attr:`iterations`."""

    def _step(self, pairs: list[tuple[Any, Any]], scale: np.float32 | None) -> bool:
        """Let the inner optimizer take a step; return False if a dynamic scale skips it: a gradient is not finite.

        Gradients are divided by `scale` in float32; None: they are unscaled already.
        """
        if not self.built and pairs:
            self.build([variable for _, variable in pairs])
        inner, skips = self.inner_optimizer, self.state.skips
        if supports_proposals(inner):
            factor = (inner.loss_scale_factor or 1.0) if scale is None else float(scale)
            proposal = inner.proposed(pairs, factor) if pairs else None
            finite = proposal is None or proposal.finite
            if proposal is not None and (finite or not skips):
                proposal.commit()
        else:
            finite = not skips or are_finite([gradient for gradient, _ in pairs], "grads_and_vars")
            if finite:
                inner.apply_gradients(pairs if scale is None else [(_unscaled(g, v, scale), v) for g, v in pairs])
        self.state = self.state.adjust(finite)
        return finite or not skips

    # ---- the inner optimizer

    @property
    def in_files(self) -> Any:
        """The optimizer that files store: the inner one, or the wrapper if Keras 3 has its class."""
        return self.inner_optimizer

    @property
    def iterations(self) -> Any:
        """The number of steps of the inner optimizer: its own attribute."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the inner optimizer."""
        return self.inner_optimizer.learning_rate  # type: ignore[attr-defined]

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value  # type: ignore[attr-defined]

    @property
    def variables(self) -> list[AutoCastVariable]:
        """The variables of the inner optimizer; the loss scale is not among them, but in :attr:`state`."""
        return list(getattr(self.inner_optimizer, "variables", ()))

    @property
    def built(self) -> bool:
        """Whether the optimizer knows the variables that it updates."""
        return self._built_for is not None

    def build(self, trainable_variables: Sequence[AutoCastVariable]) -> None:
        """Build the inner optimizer, if it has ``build``, and store the variables for :meth:`apply`."""
        if hasattr(self.inner_optimizer, "build"):
            self.inner_optimizer.build(trainable_variables)
        self._built_for = list(trainable_variables)

    def finalize_variable_values(self, var_list: Sequence[AutoCastVariable]) -> None:
        """Assign the averages to the variables at the end of training, if the inner optimizer has averages."""
        if hasattr(self.inner_optimizer, "finalize_variable_values"):
            self.inner_optimizer.finalize_variable_values(var_list)

    def save_own_variables(self, store: Any) -> None:
        """Write the loss scale and the inner optimizer's variables into a mapping, in Keras' order.

        The first two values, an unused number of steps and learning rate of Keras, are zeros.
        """
        inner: dict[str, Any] = {}
        self.inner_optimizer.save_own_variables(inner)  # type: ignore[attr-defined]
        own = np.int32(0), np.float32(0), np.int32(self.state.counter), self.loss_scale
        for i, value in enumerate([*map(np.asarray, own), *inner.values()]):
            store[str(i)] = value

    def saved_names(self, places: Mapping[int, str]) -> list[str]:
        """Return the names of the values of :meth:`save_own_variables`: see :meth:`Optimizer.saved_names`."""
        inner = getattr(self.inner_optimizer, "saved_names", None)
        return [] if inner is None else [f"loss scale: {part}" for part in _SCALE_VARIABLES] + inner(places)

    def saved_owners(self) -> list[AutoCastVariable | None]:
        """Return the model variable that each value of :meth:`save_own_variables` belongs to, or None."""
        inner = getattr(self.inner_optimizer, "saved_owners", None)
        return [] if inner is None else [None] * len(_SCALE_VARIABLES) + inner()

    def load_own_variables(self, store: Any) -> None:
        """Load the loss scale, unless it is fixed, and the inner optimizer's variables."""
        values = [np.asarray(store[str(i)]) for i in range(len(store.keys()))]
        if len(values) < 4 or any(value.shape for value in values[:4]):
            raise ValueError(f"The file has no variables of a LossScaleOptimizer: {len(values)} arrays")
        if values[2].dtype.kind not in "iu":
            raise TypeError(f"The steps since the last change of the loss scale must be an integer; found {values[2]}")
        state = self.state.restored(float(values[3]), int(values[2]))
        rest = {str(i): value for i, value in enumerate(values[4:])}
        self.inner_optimizer.load_own_variables(rest)  # type: ignore[attr-defined]
        self.state = state

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Assign `weights`, in the order of :attr:`variables`, to the inner optimizer; the scale does not change."""
        self.inner_optimizer.set_weights(weights)  # type: ignore[attr-defined]


def _unscaled(gradient: Any, variable: Any, scale: np.float32) -> Any:
    """Divide a gradient by the scale, unless its variable is overwritten with it: such gradients are not scaled."""
    if gradient is None or getattr(variable, "overwrite_with_gradient", False):
        return gradient
    return np.divide(gradient, scale)


def supports_proposals(optimizer: Any) -> TypeGuard[Optimizer]:
    """Whether the optimizer can compute a step without assigning it, so that the step can be dropped."""
    return isinstance(optimizer, Optimizer) and type(optimizer).apply_gradients is Optimizer.apply_gradients


class LossScaleOptimizer(ScaledOptimizer):
    """Keras 3's dynamic loss scale around an optimizer.

    After `dynamic_growth_steps` finite steps in a row the scale is doubled. A step with a gradient that is not finite
    is skipped, and halves the scale.

    Parameters
    ----------
    inner_optimizer : Optimizer
        Its ``loss_scale_factor`` is set to None.
    initial_scale : float
        Above 0 and finite in float32.
    dynamic_growth_steps : int
    name : str, optional
    **kwargs
        Arguments of Keras' base optimizer; only their defaults are accepted. Set others on the inner optimizer.

    Examples
    --------
    >>> from mp_core.optimizers import SGD
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
        inner_optimizer: OptimizerLike,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        _check_arguments(kwargs)
        if name is not None and not isinstance(name, str):
            raise TypeError(f"`name` must be a string; received name={name!r}")
        scale = scale_number(initial_scale, "initial_scale")
        growth = positive_integer(dynamic_growth_steps, "dynamic_growth_steps")
        state = DynamicLossScale(scale, period=growth, min_loss_scale=0.0, max_loss_scale=math.inf)
        super().__init__(inner_optimizer, state)
        self.name = name or "loss_scale_optimizer"
        inner_optimizer.loss_scale_factor = None  # type: ignore[attr-defined]

    @property
    def dynamic_scale(self) -> float:
        """The current scale."""
        return self.state.loss_scale

    @property
    def step_counter(self) -> int:
        """The number of finite steps since the scale last changed."""
        return self.state.counter

    @property
    def in_files(self) -> Any:
        return self

    def apply_gradients(self, grads_and_vars: GradientsAndVariables) -> Any:
        """Divide the gradients by the scale in float32, let the inner optimizer apply them, and adjust the scale.

        If a gradient is not finite, the step is skipped. Return :attr:`iterations`, which does not count skipped steps.
        """
        self._step(checked_pairs(grads_and_vars), self.loss_scale)
        return self.iterations

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {
            "name": self.name,
            "inner_optimizer": serialize(self.inner_optimizer),
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Self:
        """Return the optimizer of a configuration."""
        config = own_config(config, "LossScaleOptimizer")
        return cls(**config | {"inner_optimizer": deserialize(config.get("inner_optimizer"), custom_objects)})


CLASSES["LossScaleOptimizer"] = LossScaleOptimizer


def wrap_optimizer(optimizer: Any, policy: DTypePolicy, auto_scale_loss: bool = True) -> Any:
    """Return the optimizer that Keras 3's ``Model.compile`` uses under a policy.

    If the policy's name is ``"mixed_float16"``, the optimizer is wrapped in a :class:`LossScaleOptimizer`, unless it is
    a loss scale optimizer or `auto_scale_loss` is False. The policies of layers do not count.

    Parameters
    ----------
    optimizer : Optimizer
    policy : DTypePolicy
    auto_scale_loss : bool

    Examples
    --------
    >>> from mp_core import DTypePolicy
    >>> from mp_core.optimizers import SGD
    >>> type(wrap_optimizer(SGD(), DTypePolicy("mixed_float16"))).__name__
    'LossScaleOptimizer'
    >>> type(wrap_optimizer(SGD(), DTypePolicy("mixed_bfloat16"))).__name__
    'SGD'
    """
    check_wrapping(optimizer, policy)
    scales = boolean(auto_scale_loss, "auto_scale_loss") and policy.name == "mixed_float16"
    return LossScaleOptimizer(optimizer) if scales and not isinstance(optimizer, ScaledOptimizer) else optimizer


def check_wrapping(optimizer: Any, policy: Any) -> None:
    """Raise TypeError unless `optimizer` is an optimizer and `policy` is a policy object."""
    check_optimizer(optimizer, "optimizer")
    if not isinstance(policy, DTypePolicy):
        raise TypeError(f"`policy` must be a policy, such as DTypePolicy('mixed_float16'); received {policy!r}")
