"""Calls of layers: cast the inputs, build the layer on its first call, read variables in the compute dtype."""

from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np

from mp_core import ops
from mp_core.arrays import dtypes, refuse_masked
from mp_core.arrays.recorded import note_call
from mp_core.core.scopes import Scopes, called_in, called_under, innermost
from mp_core.layers.base.building import Built, build_for, enclosing_path, has_argument, inherited_training
from mp_core.layers.base.losses import forget_added, in_layer_call
from mp_core.layers.base.quantization import UNSCOPED
from mp_core.layers.base.symbolic import SymbolicallyCalled, called_symbolically
from mp_core.layers.masks import from_masks
from mp_core.policies.autocast import scope_dtype
from mp_core.utilities.system import lock_for_forks
from mp_core.utilities.tree import map_leaves

if TYPE_CHECKING:
    from mp_core.layers.layer import Layer

__all__ = ["Called", "array_arguments", "returns_list", "samples_are_independent"]

Outputs = TypeVar("Outputs", covariant=True)


class _Called(Protocol[Outputs]):
    """Type checkers only: a call of a layer returns the type that its method :meth:`Layer.call` returns."""

    _may_add_loss: bool

    @property
    def call(self) -> Callable[..., Outputs]: ...

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


_build_locks = lock_for_forks(RLock)


class Called(SymbolicallyCalled):
    """Base of layers: ``layer(x)``."""

    _arrays: tuple[str, ...] = ()
    """The names of the first arguments of :meth:`call`, if they must be arrays; set it beside each :meth:`call`."""
    supports_masking: bool = False
    """Whether outputs get the mask that :meth:`compute_mask` returns; if False, a Sequential drops the mask."""
    _sample_independence: str = "unknown"
    """When the outputs of a sample are independent of the rest of its batch: "always", "in inference" or "unknown".

    Set it beside each :meth:`call`.
    """
    _returns_list: bool = False  # whether the number of outputs is known only after a call

    @from_masks
    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the outputs, given that of the inputs or None. It is used if :attr:`supports_masking`."""
        return previous_mask

    def __call__(self: _Called[Outputs], *args: Any, **kwargs: Any) -> Outputs:
        """Cast the inputs, build on the first call, and run :meth:`call` in the scope of the compute dtype.

        ``training`` is passed to :meth:`call`, if it has that argument, and to the layers that it calls.
        """
        if self._may_add_loss and not in_layer_call.get():
            return called_in(in_layer_call, True, self._enter, (args, kwargs))  # type: ignore[no-any-return]
        training = inherited_training.get()
        if training is None and "training" not in kwargs:
            return self._run(args, kwargs)  # type: ignore[no-any-return]
        given = kwargs.pop("training", None)
        training = training if given is None else given
        if training is not None and has_argument(type(self).call, "training"):
            kwargs["training"] = training
        return called_in(inherited_training, training, self._run, (args, kwargs))  # type: ignore[no-any-return]

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an outermost call: drop the losses of the previous one first."""
        forget_added(self, (args, kwargs))
        return Called.__call__(self, *args, **kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.built or self._path is None or kwargs or len(args) != 1 or type(args[0]) is not np.ndarray:
            symbolic = note_call(self, (args, kwargs))
            if symbolic is not None:
                return called_symbolically(cast("Layer", self), args, kwargs)
            if not self.is_placed:
                return self._first_call(args, kwargs)
            args, kwargs = self._cast_inputs(args, kwargs)
        elif args[0].dtype is not self._compute:
            args = (self._cast_input(args[0]),)
        outer = scope_dtype.get(UNSCOPED)
        if type(outer) is Scopes:
            outer = innermost(outer, UNSCOPED)
        scope = self._outer_scope if outer is UNSCOPED else self._nested_scope
        if scope is outer:
            outputs = self.call(*args, **kwargs)
        else:
            outputs = called_in(scope_dtype, scope, self.call, args, kwargs)
        if self._output is not self._compute:
            outputs = map_leaves(self._cast_output, outputs)
        if self._penalties:
            self._add_activity(outputs)
        return outputs

    def _first_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        called_under(_build_locks[0], self._build_for, args, kwargs)
        return called_in(enclosing_path, self._path or "", self._run, (args, kwargs))

    def _build_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Build the layer for the arguments of a call, unless another thread has done so."""
        if self.is_placed:
            return
        if self.built and type(self).build is not Built.build:  # the constructor set `built`
            Built.build(self, None)
        else:
            build_for(self, *self._cast_inputs(args, kwargs))

    def _cast_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        found = map_leaves(self._cast_positional, args), map_leaves(self._cast_input, kwargs)
        given = dict(zip(self._arrays, found[0], strict=False)) | found[1]
        for name in self._arrays:
            if name in given and not isinstance(given[name], np.ndarray):
                raise TypeError(f"`{name}` of layer '{self.name}' must be an array; received {given[name]!r}")
        return found

    def _cast_positional(self, x: Any) -> Any:
        x = self._cast_input(x)
        if x is None or isinstance(x, np.ndarray):
            return x
        raise ValueError(
            "Only input tensors may be passed as positional arguments. The following argument value should be "
            f"passed as a keyword argument: {x} (of type {type(x)})"
        )

    def _cast_input(self, x: Any) -> Any:
        if type(x) is np.ndarray and x.dtype is self._compute:
            return x
        refuse_masked(x, "inputs")
        return self._convert_input(x, *self._casting)

    def _cast_output(self, x: Any) -> Any:
        floating = isinstance(x, np.ndarray) and dtypes.is_float(x.dtype)
        return ops.cast(x, self._output) if floating and x.dtype is not self._output else x


def array_arguments(layer: Called) -> tuple[str, ...]:
    """Return the names of the first arguments of a layer's ``call`` that must be arrays."""
    return layer._arrays


def returns_list(layer: Called) -> bool:
    """Return whether the number of a layer's outputs is known only after a call."""
    return layer._returns_list


def samples_are_independent(layer: Called, training: bool) -> bool:
    """Return whether the class of a layer declares that samples of a batch are computed independently."""
    return layer._sample_independence == "always" or (layer._sample_independence == "in inference" and not training)
