"""Calls of layers with symbolic arrays, which say the shapes and dtypes of what layers return."""

import copy
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mp_core import dtypes
from mp_core.arrays.holding import run_trial
from mp_core.core.scopes import called_in
from mp_core.dtype_policies import standardize_dtype
from mp_core.layers.base.building import Built, build_for, handed_training
from mp_core.layers.base.ends import WithOrigin, note_call_of
from mp_core.layers.shapes import Ruled, Shape, map_shapes
from mp_core.layers.symbols import Call, KerasTensor
from mp_core.ops.specs import Spec
from mp_core.utilities.arguments import positive_integer
from mp_core.utilities.tree import leaves, leaves_by_key, map_leaves, packed_by_key

if TYPE_CHECKING:
    from mp_core.layers.layer import Layer

__all__ = ["Described", "called_symbolically", "called_with", "spec_of"]

_TRIED = ((2, 32), (3, 48))
"""The lengths that an unknown first axis, and unknown others, have in the two runs that find the shapes of outputs."""


class Described(WithOrigin, Built):
    """The part of a layer that is called with symbolic arrays."""

    _compute: Any
    _output: Any  # the types in which calls compute, and of the floats that they return
    _arrangement: Any = None
    """How the outputs of symbolic calls are arranged, for a layer whose other calls leave out a list of one."""

    def _specs_by_layers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the specs of what the layers inside return for symbolic arrays; None if only a run of them says it."""
        return None

    def compute_output_shape(self, *input_shapes: Any, **named_shapes: Any) -> Any:
        """Return the shape of the outputs for inputs of these shapes, without building the layer.

        Parameters
        ----------
        *input_shapes : sequence of (int or None), or list or dict of them
            One for each array that a call gets; None is any length.
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
        found = None if named_shapes else _by_formula(self, symbols)
        if found is not None:
            return found
        named = {k.removesuffix("_shape"): map_shapes(symbol, x) for k, x in named_shapes.items()}
        return map_leaves(lambda x: x.shape, self._described(symbols, named))

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Return symbolic arrays with the shapes and dtypes of the outputs, without building the layer.

        A model cannot be made of them: they stand for what a call would return, and there was none.

        Parameters
        ----------
        *args, **kwargs
            Those of a call, with symbolic arrays in the place of arrays.

        Examples
        --------
        >>> import mp_core as mp
        >>> layer = mp.layers.Dense(4, dtype="mixed_float16")
        >>> found = layer.compute_output_spec(mp.Input((3,)))
        >>> found.shape, found.dtype, layer.built
        ((None, 4), 'float16', False)
        """
        return map_leaves(lambda x: _symbol(self, x.shape, x.dtype), self._described(args, kwargs))

    def _described(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a call returns for symbolic arrays; a layer that is not placed stays so."""
        called = cast("Layer", self if self.is_placed else copy.deepcopy(self))
        return called_with(called, args, kwargs)[1]


def called_symbolically(layer: "Layer", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a layer returns for arguments with symbolic arrays, as symbolic arrays, and note the call."""
    call, outputs = called_with(layer, args, kwargs)
    note_call_of(layer, call)
    return outputs


def called_with(layer: "Layer", args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> tuple[Call, Any]:
    """Return a call of a layer with symbolic arrays, which nobody notes, and what it returns."""
    call = Call(layer, args, kwargs or {})
    options = {name: x for name, x in call.kwargs.items() if name != "training"}
    specs = _specs_of(layer, args, options)
    for x in leaves_by_key(specs):
        call.outputs.append(KerasTensor(x.shape, x.dtype, call, len(call.outputs)))
    return call, packed_by_key(specs, iter(call.outputs))


def _specs_of(layer: "Layer", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return shapes and types of what a layer returns: by its rule or formula, those of its layers, or trial runs."""
    if isinstance(layer, Ruled) and layer.has_rule():
        specs = layer.specs_after(*map_leaves(spec_of, args), **map_leaves(spec_of, kwargs))
        if not layer.built:
            layer.build(map_leaves(lambda x: getattr(x, "shape", None), args[0] if args else None))
        return specs
    shape = None if kwargs else _by_formula(layer, args)
    if shape is not None and _is_formula_enough(layer, args[0]):
        if not layer.is_placed:
            build_for(layer, args, kwargs)
        return Spec(shape, layer._output)
    found = layer._specs_by_layers(args, kwargs)
    if found is not None:
        return found
    if type(layer).compute_output_shape is not Described.compute_output_shape:
        stated = _stated(layer, args, kwargs)
        if stated is not None:
            return stated
    is_open = any(None in x.shape for x in leaves((args, kwargs)) if isinstance(x, KerasTensor))
    first, *others = (_tried(layer, args, kwargs, *lengths) for lengths in _TRIED[: 1 + is_open])
    twins = leaves(others[0] if others else first)

    def spec(x: Any) -> Spec:
        pairs = zip(x.shape, next(twins).shape, strict=True)
        return Spec(tuple(one if one == other else None for one, other in pairs), x.dtype)

    found = map_leaves(spec, first)
    return found if layer._arrangement is None else packed_by_key(layer._arrangement, leaves_by_key(found))


def _is_formula_enough(layer: "Layer", x: KerasTensor) -> bool:
    """Whether a shape by formula says all: a run gives the type of other results than floats, checks built layers."""
    is_cast = layer.autocast and layer._output is not None and dtypes.is_float(dtypes.parse(x.dtype))
    return is_cast and not (layer.built and layer.weights) and next(islice(layer.flatten(), 1, None), None) is None


def _stated(layer: "Layer", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a user's ``compute_output_shape`` says of the outputs, in the compute dtype, as Keras does.

    None unless the arguments are symbolic arrays, and what the layer consists of is built then: only a call builds
    layers inside of one without a ``build``.
    """
    if not args or any(not isinstance(x, KerasTensor) for x in leaves((args, kwargs))):
        return None
    shapes = [map_leaves(lambda x: x.shape, x) for x in args]
    named = {f"{name}_shape": map_leaves(lambda x: x.shape, x) for name, x in kwargs.items()}
    if not layer.is_placed:
        build_for(layer, args, kwargs)
    if not all(part.built for part in layer.flatten()):
        return None
    found = layer.compute_output_shape(*shapes, **named)
    compute: Any = dtypes.ALLOWED.get(layer.compute_dtype)
    return map_shapes(lambda shape: Spec(tuple(shape), compute), found)


def spec_of(x: Any) -> Any:
    """Return what is known of a symbolic array, and everything else as it is."""
    return Spec(x.shape, dtypes.parse(x.dtype)) if isinstance(x, KerasTensor) else x


def _tried(layer: "Layer", args: Any, kwargs: Any, batch: int, length: int) -> Any:
    """Return what a layer returns for zeros that have these lengths where the symbolic arrays have unknown ones."""

    def zeros(x: Any) -> Any:
        if not isinstance(x, KerasTensor):
            return x
        return np.zeros([n or (length if axis else batch) for axis, n in enumerate(x.shape)], dtypes.parse(x.dtype))

    return called_in(handed_training, None, run_trial, (layer, *map_leaves(zeros, args)), map_leaves(zeros, kwargs))


def _symbol(layer: Described, shape: Sequence[int | None], dtype: Any) -> KerasTensor:
    """Return a symbolic array that stands for itself: no model can be made of it."""
    lengths = [n if n is None else positive_integer(n, "batch_shape") for n in shape]
    return KerasTensor(lengths, dtype, Call(cast("Layer", layer)))


def _by_formula(layer: Described, symbols: tuple[Any, ...]) -> Shape | None:
    """Return the shape of outputs, unless there are several inputs or only a call says it: that of users' layers."""
    rule = getattr(layer, "_shape_after", None)
    is_own = type(layer).__module__.startswith("mp_core.")
    is_one = len(symbols) == 1 and isinstance(symbols[0], KerasTensor)
    found: Shape | None = rule(symbols[0].shape) if rule is not None and is_own and is_one else None
    return found
