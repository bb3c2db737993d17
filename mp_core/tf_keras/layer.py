"""The base class of layers under tf.keras' rules."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mp_core import layers
from mp_core.arrays import dtypes
from mp_core.policies.dtype_policies import standardize_dtype
from mp_core.tf_keras.mixed_precision.policy import Policy, get, serialize, standardize
from mp_core.tf_keras.mixed_precision.variable import AutoCastVariable
from mp_core.utilities.arguments import boolean
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["Layer"]

_WITHOUT_USE = ("collections", "caching_device", "getter", "layout", "partitioner")
"""Arguments of TensorFlow 1 that :meth:`Layer.add_weight` accepts if they are None."""


class Layer(layers.Layer):
    """A function with variables, computed under a dtype policy by the rules of tf.keras.

    Only arrays in the first argument of ``call`` are cast, and only if the compute dtype is floating-point. Variables
    are read in the compute dtype if it differs from the variable dtype.

    Parameters
    ----------
    **kwargs
        See :class:`mp_core.layers.Layer`; ``dtype`` defaults to
        :func:`~mp_core.tf_keras.mixed_precision.global_policy`.

    Examples
    --------
    >>> class Scale(Layer):
    ...     def build(self, input_shape):
    ...         self.scale = self.add_weight("scale", (input_shape[-1],), initializer="ones")
    ...
    ...     def call(self, inputs, offset):
    ...         return inputs * self.scale, offset
    >>> layer = Scale(dtype="mixed_float16")
    >>> layer(np.array([1.0, 2.0]), np.array([3.0]))
    (array([1., 2.], dtype=float16), array([3.]))
    >>> layer.scale.dtype, layer.dtype
    (dtype('float32'), 'float32')
    """

    _face = "tf_keras.layers"
    _get_policy = staticmethod(get)
    _variable_type = AutoCastVariable

    def add_weight(  # type: ignore[override]
        self,
        name: str | None = None,
        shape: Any = None,
        dtype: DTypeLike | None = None,
        initializer: Any = None,
        regularizer: Callable[[AutoCastVariable], Any] | None = None,
        trainable: bool | None = True,
        constraint: Any = None,
        use_resource: bool | None = None,
        synchronization: Any = None,
        aggregation: Any = None,
        *,
        experimental_autocast: bool = True,
        autocast: bool | None = None,
        **unknown: Any,
    ) -> AutoCastVariable:
        """Create a variable of this layer.

        Parameters
        ----------
        name : str, optional
        shape : int or sequence of int, optional
            Default: a scalar.
        dtype : dtype, optional
            Default: the layer's variable dtype. A layer that infers its policy infers it from this dtype.
        initializer : str, dict or callable, optional
            See :meth:`mp_core.layers.Layer.add_weight`.
        regularizer, constraint : callable, optional
            A function of the variable whose result is in :attr:`losses`; one that is applied to it after each update.
        trainable : bool, optional
            Whether the variable comes first in :attr:`weights`; None means True.
        use_resource, synchronization, aggregation
            Arguments of TensorFlow without effect: there is one process, and its variables are arrays.
        experimental_autocast, autocast : bool
            Whether reading a floating-point variable casts it to the compute dtype, if that differs from the variable
            dtype. `autocast` takes precedence.
        """
        for key, value in unknown.items():
            if key not in _WITHOUT_USE or value is not None:
                raise TypeError(f"Unknown keyword argument: {key}")
        target = standardize(dtype or self.dtype)
        if self.dtype_policy.name == "_infer":
            self.dtype_policy = Policy(target)
        follows = boolean(experimental_autocast if autocast is None else autocast, "autocast")
        return super().add_weight(  # type: ignore[return-value]  # it is of `_variable_type`
            shape=() if shape is None else shape,
            initializer=initializer,
            dtype=target,
            trainable=trainable is None or trainable,
            autocast=follows and self.compute_dtype != self.variable_dtype,
            regularizer=regularizer,
            constraint=constraint,
            name=name or "variable",
        )

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"dtype": serialize(self.dtype_policy)}

    @classmethod
    def _with_policy_of_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        return config  # tf.keras passes policies to constructors as they are in configurations

    def _apply_policy(self) -> None:
        super()._apply_policy()
        floating = self._compute is not None and dtypes.is_float(self._compute)
        self._outer_scope = self._nested_scope = self._compute if floating else None

    def _first_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = self._cast_inputs(args, kwargs)
        if self.dtype_policy.name == "_infer":
            first = next(leaves(args[0]), None)
            if first is None:
                raise ValueError(f"The first argument of {self.name} must contain an array; received {args[0]!r}")
            self.dtype_policy = Policy(first.dtype.name)
        return super()._first_call(args, kwargs)

    def _cast_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not args:
            name = _first_argument(type(self).call)
            if name not in kwargs:
                raise ValueError(f"The first argument of {type(self).__name__}.call, `{name}`, must be passed.")
            args, kwargs = (kwargs[name],), {key: value for key, value in kwargs.items() if key != name}
        return (map_leaves(self._cast_input, args[0]), *args[1:]), kwargs

    def _cast_input(self, x: Any) -> Any:
        if type(x) in (bool, int, float):
            x = np.asarray(x, standardize_dtype(type(x)))
        return super()._cast_input(x)


@cache
def _first_argument(call: Callable[..., Any]) -> str:
    return list(inspect.signature(call).parameters)[1]
