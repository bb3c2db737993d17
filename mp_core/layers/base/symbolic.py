"""Calls of layers with symbolic arrays: they compute the shapes and dtypes of the outputs."""

import copy
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mp_core.arrays import dtypes
from mp_core.arrays.holding import run_trial
from mp_core.core.scopes import called_in
from mp_core.layers.base.building import Built, build_for, inherited_training
from mp_core.layers.base.ends import WithOrigin, note_call_of
from mp_core.layers.base.state import flat_layers
from mp_core.layers.shapes import Shape, WithSpecRule, map_shapes
from mp_core.layers.symbols import Call, KerasTensor
from mp_core.ops.specs import Spec
from mp_core.policies.dtype_policies import standardize_dtype
from mp_core.utilities.arguments import positive_integer
from mp_core.utilities.tree import leaves, leaves_by_key, map_leaves, packed_by_key

if TYPE_CHECKING:
    from mp_core.layers.layer import Layer

__all__ = ["SymbolicallyCalled", "called_symbolically", "spec_of", "symbolic_call"]

_TRIAL_LENGTHS = ((2, 32), (3, 48))
"""(length of an unknown first axis, length of unknown other axes) for the two trial runs that find output shapes."""


class SymbolicallyCalled(WithOrigin, Built):
    """Base of layers: calls with symbolic arrays."""

    _compute: Any
    _output: Any  # dtypes in which calls compute, and of the floats that they return
    _arrangement: Any = None
    """The structure of the outputs of symbolic calls, or None if it is the same as that of other calls.

    It differs if other calls return an array, and symbolic calls a list with one array.
    """

    def _specs_by_layers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the output specs by calling the layers inside symbolically; None if only a trial run finds them."""
        return None

    def compute_output_shape(self, *input_shapes: Any, **named_shapes: Any) -> Any:
        """Return the shape of the outputs for inputs of these shapes, without building the layer.

        Parameters
        ----------
        *input_shapes : sequence of (int or None), or list or dict of them
            One for each array that a call gets; None in a shape means any length.
        **named_shapes : sequence of (int or None), or list or dict of them
            The same by name: ``<argument>_shape``, or ``input_shape`` for the first argument.

        Examples
        --------
        >>> from mp_core.layers import Add, Conv1D
        >>> Conv1D(8, 3, strides=2).compute_output_shape((None, 21, 4))
        (None, 10, 8)
        >>> Add().compute_output_shape([(2, 3), (2, 1)])
        (2, 3)
        """
        first = [named_shapes.pop("input_shape")] if "input_shape" in named_shapes else []

        def symbol(shape: Any) -> KerasTensor | None:
            return None if shape is None else _symbol(self, shape, standardize_dtype(None))

        symbols = tuple(map_shapes(symbol, each) for each in (*first, *input_shapes))
        found = None if named_shapes else _shape_by_formula(self, symbols)
        if found is not None:
            return found
        named = {k.removesuffix("_shape"): map_shapes(symbol, x) for k, x in named_shapes.items()}
        return map_leaves(lambda x: x.shape, self._symbolic_outputs(symbols, named))

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Return symbolic arrays with the shapes and dtypes of the outputs, without building the layer.

        They do not result from a call, so no model can be made of them.

        Parameters
        ----------
        *args, **kwargs
            The arguments of a call, with symbolic arrays in place of arrays.

        Examples
        --------
        >>> import mp_core as mp
        >>> layer = mp.layers.Dense(4, dtype="mixed_float16")
        >>> found = layer.compute_output_spec(mp.Input((3,)))
        >>> found.shape, found.dtype, layer.built
        ((None, 4), 'float16', False)
        """
        return map_leaves(lambda x: _symbol(self, x.shape, x.dtype), self._symbolic_outputs(args, kwargs))

    def _symbolic_outputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs for symbolic arrays; a layer that is not built yet is copied first, and stays unbuilt."""
        called = cast("Layer", self if self.is_placed else copy.deepcopy(self))
        return symbolic_call(called, args, kwargs)[1]


def called_symbolically(layer: "Layer", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a layer with symbolic arrays, store the call as its first one if there was none, return the outputs."""
    call, outputs = symbolic_call(layer, args, kwargs)
    note_call_of(layer, call)
    return outputs


def symbolic_call(layer: "Layer", args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> tuple[Call, Any]:
    """Return a new :class:`Call` of a layer with symbolic arrays, and its outputs; the layer does not store it."""
    call = Call(layer, args, kwargs or {})
    options = {name: x for name, x in call.kwargs.items() if name != "training"}
    specs = _specs_of(layer, args, options)
    for x in leaves_by_key(specs):
        call.outputs.append(KerasTensor(x.shape, x.dtype, call, len(call.outputs)))
    return call, packed_by_key(specs, iter(call.outputs))


def _specs_of(layer: "Layer", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the specs of a layer's outputs: by its rule, its formula, the layers inside, or else by trial runs."""
    if isinstance(layer, WithSpecRule) and layer.has_rule():
        specs = layer.specs_after(*map_leaves(spec_of, args), **map_leaves(spec_of, kwargs))
        if not layer.built:
            layer.build(map_leaves(lambda x: getattr(x, "shape", None), args[0] if args else None))
        return specs
    shape = None if kwargs else _shape_by_formula(layer, args)
    if shape is not None and _is_formula_enough(layer, args[0]):
        if not layer.is_placed:
            build_for(layer, args, kwargs)
        return Spec(shape, layer._output)
    specs = layer._specs_by_layers(args, kwargs)
    if specs is None and type(layer).compute_output_shape is not SymbolicallyCalled.compute_output_shape:
        specs = _specs_by_user(layer, args, kwargs)
    return _specs_by_trial(layer, args, kwargs) if specs is None else specs


def _specs_by_trial(layer: "Layer", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the specs of the outputs for zeros; lengths that differ between two runs are unknown."""
    is_open = any(None in x.shape for x in leaves((args, kwargs)) if isinstance(x, KerasTensor))
    first, *others = (_trial_outputs(layer, args, kwargs, *lengths) for lengths in _TRIAL_LENGTHS[: 1 + is_open])
    second = leaves(others[0] if others else first)

    def spec(x: Any) -> Spec:
        pairs = zip(x.shape, next(second).shape, strict=True)
        return Spec(tuple(one if one == other else None for one, other in pairs), x.dtype)

    specs = map_leaves(spec, first)
    return specs if layer._arrangement is None else packed_by_key(layer._arrangement, leaves_by_key(specs))


def _is_formula_enough(layer: "Layer", x: KerasTensor) -> bool:
    """Return whether the formula of the shape is enough.

    A trial run is needed for the dtype of results that are not floats, and to check the inputs of built layers.
    """
    is_cast = layer.autocast and layer._output is not None and dtypes.is_float(dtypes.parse(x.dtype))
    return is_cast and not (layer.built and layer.weights) and next(islice(flat_layers(layer), 1, None), None) is None


def _specs_by_user(layer: "Layer", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return specs with the shapes of a user's ``compute_output_shape`` and the compute dtype, as Keras does.

    Return None if an argument is not symbolic, or if layers inside are still unbuilt after ``build``: then only a call
    builds them.
    """
    if not args or any(not isinstance(x, KerasTensor) for x in leaves((args, kwargs))):
        return None
    shapes = [map_leaves(lambda x: x.shape, x) for x in args]
    named = {f"{name}_shape": map_leaves(lambda x: x.shape, x) for name, x in kwargs.items()}
    if not layer.is_placed:
        build_for(layer, args, kwargs)
    if not all(part.built for part in flat_layers(layer)):
        return None
    found = layer.compute_output_shape(*shapes, **named)
    compute: Any = dtypes.ALLOWED.get(layer.compute_dtype)
    return map_shapes(lambda shape: Spec(tuple(shape), compute), found)


def spec_of(x: Any) -> Any:
    """Return the shape and dtype of a symbolic array; return anything else unchanged."""
    return Spec(x.shape, dtypes.parse(x.dtype)) if isinstance(x, KerasTensor) else x


def _trial_outputs(layer: "Layer", args: Any, kwargs: Any, batch: int, length: int) -> Any:
    """Return the outputs of a layer for zeros; unknown lengths of symbolic arrays become `batch` or `length`."""

    def zeros(x: Any) -> Any:
        if not isinstance(x, KerasTensor):
            return x
        return np.zeros([n or (length if axis else batch) for axis, n in enumerate(x.shape)], dtypes.parse(x.dtype))

    return called_in(inherited_training, None, run_trial, (layer, *map_leaves(zeros, args)), map_leaves(zeros, kwargs))


def _symbol(layer: SymbolicallyCalled, shape: Sequence[int | None], dtype: Any) -> KerasTensor:
    """Return a symbolic array that results from no call, so that no model can be made of it."""
    lengths = [n if n is None else positive_integer(n, "batch_shape") for n in shape]
    return KerasTensor(lengths, dtype, Call(cast("Layer", layer)))


def _shape_by_formula(layer: SymbolicallyCalled, symbols: tuple[Any, ...]) -> Shape | None:
    """Return the output shape by the layer's formula; None for several inputs, users' layers, or without a formula."""
    rule = getattr(layer, "_shape_after", None)
    is_own = type(layer).__module__.startswith("mp_core.")
    is_one = len(symbols) == 1 and isinstance(symbols[0], KerasTensor)
    found: Shape | None = rule(symbols[0].shape) if rule is not None and is_own and is_one else None
    return found
