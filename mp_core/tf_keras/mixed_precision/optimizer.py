"""tf.keras' loss scale optimizer."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self
from weakref import WeakValueDictionary

import numpy as np

from mp_core.policies.autocast import AutoCastVariable
from mp_core.training.optimizers import deserialize as deserialize_optimizer
from mp_core.training.optimizers import serialize as serialize_optimizer
from mp_core.training.optimizers.loss_scale import ScaledOptimizer
from mp_core.training.optimizers.protocol import OptimizerLike, checked_pairs
from mp_core.training.optimizers.scales import DynamicLossScale, LossScale, check_floating, scale_number
from mp_core.utilities.arguments import positive_integer, whole
from mp_core.utilities.registry import class_and_config, own_config

__all__ = ["LossScaleOptimizer", "arguments_of"]

_logger = logging.getLogger(__name__)
_wrapped: WeakValueDictionary[int, Any] = WeakValueDictionary()  # id -> inner optimizers that are wrapped


class LossScaleOptimizer(ScaledOptimizer):
    """Scales the loss of an inner optimizer, and skips steps whose gradients are not finite.

    Scale the loss with :meth:`get_scaled_loss`, compute gradients, unscale them with :meth:`get_unscaled_gradients`,
    and pass them to :meth:`apply_gradients`. A dynamic scale doubles after `dynamic_growth_steps` finite steps in a row
    (unless it would become infinite), and halves after a step that is not finite, but not below 1.

    Parameters
    ----------
    inner_optimizer : Optimizer
        An optimizer that no other loss scale optimizer wraps, and that is none itself.
    dynamic : bool
        Whether the scale changes.
    initial_scale : float, optional
        Above 0. Required for a fixed scale. Default for a dynamic scale: 2**15.
    dynamic_growth_steps : int, optional
        For a dynamic scale only. Default: 2000.

    Examples
    --------
    >>> from mp_core.loss_scale import SGD
    >>> variable = AutoCastVariable([1.0])
    >>> optimizer = LossScaleOptimizer(SGD(0.5), initial_scale=1024)
    >>> optimizer.get_scaled_loss(np.float16(0.25))
    np.float16(256.0)
    >>> gradients = optimizer.get_unscaled_gradients([np.array([1024.0], np.float16)])
    >>> int(optimizer.apply_gradients(zip(gradients, [variable])))
    1
    >>> variable.numpy()
    array([0.5], dtype=float32)
    """

    def __init__(
        self,
        inner_optimizer: OptimizerLike,
        dynamic: bool = True,
        initial_scale: float | None = None,
        dynamic_growth_steps: int | None = None,
    ) -> None:
        if not isinstance(dynamic, bool):
            raise TypeError(f'"dynamic" argument to LossScaleOptimizer.__init__ must be a bool, but got: {dynamic!r}')
        if not dynamic and initial_scale is None:
            raise ValueError('"initial_scale" must be specified if "dynamic" is False')
        if not dynamic and dynamic_growth_steps is not None:
            raise ValueError(
                f'"dynamic_growth_steps" must be None if "dynamic" is False, but got: {dynamic_growth_steps}'
            )
        state = LossScale(scale_number(2.0**15 if initial_scale is None else initial_scale, "initial_scale"))
        if dynamic:
            growth = 2000 if dynamic_growth_steps is None else dynamic_growth_steps
            state = DynamicLossScale(state.loss_scale, period=positive_integer(whole(growth), "dynamic_growth_steps"))
        super().__init__(inner_optimizer, state)
        self._missed = ["get_scaled_loss", "get_unscaled_gradients"]
        if id(inner_optimizer) in _wrapped:
            raise ValueError('"inner_optimizer" is already wrapped by a LossScaleOptimizer.')
        _wrapped[id(inner_optimizer)] = inner_optimizer

    @property
    def dynamic(self) -> bool:
        """Whether the scale changes."""
        return self.state.skips

    @property
    def dynamic_counter(self) -> int | None:
        """The number of finite steps since the scale last changed; None for a fixed scale."""
        return self.state.counter if self.dynamic else None

    @property
    def iterations(self) -> Any:
        """The number of steps, skipped ones included: the attribute of the inner optimizer."""
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, value: Any) -> None:
        self.inner_optimizer.iterations = value

    lr = ScaledOptimizer.learning_rate

    def get_scaled_loss(self, loss: Any) -> Any:
        """Return the loss times the scale, in its own dtype; for a function that returns a loss, return a function."""
        scaled = (lambda: self.scale_loss(loss())) if callable(loss) else self.scale_loss(loss)
        self._called("get_scaled_loss")
        return scaled

    def get_unscaled_gradients(self, grads: Sequence[Any]) -> list[Any]:
        """Return the gradients times the reciprocal of the scale, each in its own dtype; None stays None."""
        if not isinstance(grads, Iterable):
            raise TypeError(f"`grads` must be a list of gradients; received {grads!r}")
        grads = list(grads)
        check_floating(grads, "grads", allow_none=True)
        self._called("get_unscaled_gradients")
        unscaled: list[Any] = self.state.unscale(grads)
        return unscaled

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[AutoCastVariable] | None = None) -> None:
        """Take a step with gradients of a scaled loss, for these variables or for those of :meth:`build`."""
        self._called("get_scaled_loss")  # training scales the loss by :attr:`loss_scale` itself
        super().apply(self.get_unscaled_gradients(grads), trainable_variables)

    def minimize(
        self,
        loss: Any,
        var_list: Sequence[AutoCastVariable] | Callable[[], Sequence[AutoCastVariable]],
        grad_loss: Any = None,
        name: str | None = None,
        tape: Any = None,
    ) -> Any:
        """Compute the gradients of a loss and apply them. The method scales and unscales; the caller must not.

        Parameters
        ----------
        loss : callable or array
            A function without arguments that returns the loss; or the loss that was computed in the block of `tape`.
        var_list : sequence of AutoCastVariable, or a function that returns one
        grad_loss : array, optional
            Factors of the elements of the loss. Default: 1.
        name : str, optional
            An argument of tf.keras without effect.
        tape : GradientTape, optional
            Required if `loss` is an array.
        """
        from mp_core.tf_keras.tape import GradientTape  # imports the rules of gradients

        if tape is None and not callable(loss):
            raise ValueError("`tape` is required when a `Tensor` loss is passed.")
        tape = GradientTape() if tape is None else tape
        if callable(loss):
            with tape:
                loss = loss()
        variables = list(var_list() if callable(var_list) else var_list)
        scale = self.loss_scale if grad_loss is None else self.state.scale(np.asarray(grad_loss, loss.dtype))
        self._called("get_scaled_loss")
        gradients = tape.gradient(loss, variables, output_gradients=scale)
        return self.apply_gradients(zip(self.get_unscaled_gradients(gradients), variables, strict=True))

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, AutoCastVariable]]) -> Any:
        """Apply unscaled gradients with the inner optimizer; a dynamic scale skips gradients that are not finite."""
        pairs = checked_pairs(grads_and_vars)
        self._warn_of_missed_calls()
        if not self._step(pairs, None):
            _count_step(self.inner_optimizer)
        return self.iterations

    def _called(self, method: str) -> None:
        self._missed = [name for name in self._missed if name != method]

    def _warn_of_missed_calls(self) -> None:
        if self._missed:
            calls = " and ".join(f"LossScaleOptimizer.{name}()" for name in self._missed)
            _logger.warning(
                "You forgot to call %s before calling LossScaleOptimizer.apply_gradients(): small gradients become 0, "
                "or all gradients are too large.",
                calls,
            )
            self._missed = []  # warn only once

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {
            "inner_optimizer": serialize_optimizer(self.inner_optimizer),
            "dynamic": self.dynamic,
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Self:
        """Return the optimizer of a configuration, also of TensorFlow 2.3 (with ``optimizer`` and ``loss_scale``)."""
        if "loss_scale" in own_config(config, "LossScaleOptimizer"):
            kinds = {"FixedLossScale": False, "DynamicLossScale": True}
            refusal = (
                "Cannot deserialize LossScaleOptimizer with a DynamicLossScale whose multiplier is not 2. "
                "Got DynamicLossScale: "
            )
            arguments = arguments_of(*class_and_config(config["loss_scale"], kinds, "loss scale"), refusal)
            config = {"inner_optimizer": config.get("optimizer"), **arguments}
        optimizer = cls.__new__(cls)
        inner = deserialize_optimizer(config.get("inner_optimizer"), custom_objects)
        LossScaleOptimizer.__init__(optimizer, **config | {"inner_optimizer": inner})
        return optimizer


def _count_step(optimizer: OptimizerLike) -> None:
    """Add 1 to the iterations of an optimizer, which are a variable or an integer."""
    if isinstance(optimizer.iterations, AutoCastVariable):
        optimizer.iterations.assign_add(1)
    else:
        optimizer.iterations += 1


def arguments_of(dynamic: bool, values: dict[str, Any], refusal: str) -> dict[str, Any]:
    """Convert the arguments of an experimental loss scale to those of :class:`LossScaleOptimizer`.

    If the multiplier of a dynamic scale is not 2, raise a ValueError with `refusal` and the scale.
    """
    if not dynamic:
        return {"dynamic": False, "initial_scale": values.get("loss_scale_value")}
    if values.get("multiplier") != 2:
        raise ValueError(f"{refusal}DynamicLossScale({', '.join(f'{key}={value}' for key, value in values.items())})")
    return {"initial_scale": values.get("initial_loss_scale"), "dynamic_growth_steps": values.get("increment_period")}
