"""Arrays of which shape and type alone are known: layers that are called with them become the graph of a model."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, NoReturn

import numpy as np

from mp_core import dtypes, ops
from mp_core.arrays.recorded import Symbolic, SymbolicError
from mp_core.core.scopes import called_in
from mp_core.layers.building import handed_training, unique_name
from mp_core.layers.ends import Ends, note_call_of, settle
from mp_core.layers.graph import Functional, Node, Source
from mp_core.layers.input_layer import InputLayer
from mp_core.layers.layer import Layer
from mp_core.layers.operation import Operation, index_entry, operation_of
from mp_core.layers.sequential import Sequential
from mp_core.layers.shapes import Shape
from mp_core.utilities.tree import leaves, map_leaves

__all__ = [
    "Graph", "Input", "KerasTensor", "called_with", "ends_of_graph", "ends_of_stack", "graph_between",
    "output_shapes", "tensor_of", "traced",
]  # fmt: skip

_numbers = count()
_TRIED = ((2, 32), (3, 48))
"""The lengths that an unknown first axis, and unknown others, have in the two runs that find the shapes of outputs."""


@dataclass(eq=False)
class Call:
    """One call of a layer with symbolic arrays among its arguments; that of an input layer has none."""

    layer: Layer
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    number: int = field(default_factory=lambda: next(_numbers))
    outputs: "list[KerasTensor]" = field(default_factory=list)

    def inputs(self) -> "list[KerasTensor]":
        """Return the symbolic arrays among the arguments."""
        return [x for x in leaves((self.args, self.kwargs)) if isinstance(x, KerasTensor)]


class KerasTensor(Symbolic):
    """What stands for an array while a functional model is made: :func:`Input` returns it, and layers called with it.

    Operators (``x + y``, ``x @ y``, ``x[:, 0]``), NumPy's functions of the same meaning and most functions of
    :mod:`mp_core.ops` become layers (:class:`Operation`). Everything else that needs elements raises TypeError.

    Attributes
    ----------
    shape : tuple of (int or None)
        None is any length.
    dtype : str
    call : Call
        That which returned it.
    output : int
        Which of the arrays it is that this call returned.

    Examples
    --------
    >>> import mp_core as mp
    >>> x = mp.Input((3,))
    >>> y = mp.layers.Dense(4)(x)[:, :2] * 2
    >>> y.shape, y.dtype
    ((None, 2), 'float32')
    >>> mp.Model(x, y)(np.ones((5, 3), np.float32)).shape
    (5, 2)
    """

    def __init__(self, shape: Sequence[int | None], dtype: Any, call: Call, output: int = 0) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype).name
        self.call = call
        self.output = output

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def name(self) -> str:
        """The name of the layer that returned it."""
        return self.call.layer.name

    def called(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a layer returns for arguments with symbolic arrays, as symbolic arrays."""
        call, outputs = called_with(layer, args, kwargs)
        note_call_of(layer, call)
        return outputs

    def __repr__(self) -> str:
        return f"<KerasTensor shape={self.shape}, dtype={self.dtype}, name={self.name}>"

    # ---- what computes with it

    def _without(self, what: str) -> str:
        return f"{what} of {self!r} is no layer: compute it in the `call` of a Layer, and call that with it"

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(self._without(what))

    def computed(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a function of :mod:`mp_core.ops` returns, as the layer that Keras has for it."""
        found = operation_of(function, args, kwargs)
        if found is None:
            self._refuse(f"mp_core.ops.{function.__name__}")
        name, operands, options = found
        return _operation(name, *operands, options=options)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise SymbolicError(self, self._without("a function of the elements"))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc not in _NAMES or method != "__call__" or kwargs:
            self._refuse(f"numpy.{ufunc.__name__}")
        return _operation(_NAMES[ufunc], *inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        self._refuse(f"numpy.{function.__name__}")

    def __getitem__(self, index: Any) -> Any:
        """Return a part, for an index of integers, slices, None and ``...``."""
        layer = Operation("GetItem", [None, index_entry(index)], name=unique_name("GetItem"), dtype="float32")
        return layer(self)

    def reshape(self, *newshape: Any) -> Any:
        """Return the elements in another shape."""
        return ops.reshape(self, newshape[0] if len(newshape) == 1 else newshape)

    def __iter__(self) -> Iterator[Any]:
        self._refuse("a part")

    def __bool__(self) -> NoReturn:
        self._refuse("the truth")

    def __neg__(self) -> Any:
        """Return the products with -1."""
        return _operation("Multiply", self, -1)

    def __abs__(self) -> Any:
        """Return the magnitudes."""
        return _operation("Absolute", self)


_NAMES = {
    np.add: "Add", np.subtract: "Subtract", np.multiply: "Multiply", np.true_divide: "TrueDivide",
    np.maximum: "Maximum", np.minimum: "Minimum", np.not_equal: "NotEqual", np.logical_and: "LogicalAnd",
    np.logical_or: "LogicalOr", np.negative: "Negative", np.absolute: "Absolute", np.square: "Square", np.sqrt: "Sqrt",
    np.matmul: "Matmul", np.less: "Less", np.less_equal: "LessEqual", np.greater: "Greater",
    np.greater_equal: "GreaterEqual",
}  # fmt: skip
"""NumPy's function -> Keras' name of the operation."""


def _operation(name: str, *operands: Any, options: dict[str, Any] | None = None) -> Any:
    """Return what an operation of Keras returns for symbolic arrays, lists of them, and numbers."""
    constants = [None if any(isinstance(part, KerasTensor) for part in leaves(x)) else x for x in operands]
    layer = Operation(name, constants, options, name=unique_name(name), dtype="float32")
    return layer(*(x for x, value in zip(operands, constants, strict=True) if value is None))


def _operator(name: str, reflected: bool = False) -> Callable[[Any, Any], Any]:
    def operator(self: KerasTensor, other: Any) -> Any:
        return _operation(name, *((other, self) if reflected else (self, other)))

    return operator


for _word, _name in {"lt": "Less", "le": "LessEqual", "gt": "Greater", "ge": "GreaterEqual", "pow": "Power"}.items():
    setattr(KerasTensor, f"__{_word}__", _operator(_name))
for _word, _name in {
    "add": "Add", "sub": "Subtract", "mul": "Multiply", "truediv": "TrueDivide", "matmul": "Matmul",
}.items():  # fmt: skip
    setattr(KerasTensor, f"__{_word}__", _operator(_name))
    setattr(KerasTensor, f"__r{_word}__", _operator(_name, reflected=True))


def called_with(layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> tuple[Call, Any]:
    """Return a call of a layer with symbolic arrays, which nobody notes, and what it returns."""
    call = Call(layer, args, kwargs or {})
    options = {name: x for name, x in call.kwargs.items() if name != "training"}
    is_open = any(None in x.shape for x in call.inputs())
    first, *others = (_tried(layer, args, options, *lengths) for lengths in _TRIED[: 1 + is_open])
    twins = leaves(others[0] if others else first)

    def symbol(x: Any) -> KerasTensor:
        pairs = zip(x.shape, next(twins).shape, strict=True)
        shape = [one if one == other else None for one, other in pairs]
        call.outputs.append(KerasTensor(shape, x.dtype, call, len(call.outputs)))
        return call.outputs[-1]

    return call, map_leaves(symbol, first)


def _tried(layer: Layer, args: Any, kwargs: Any, batch: int, length: int) -> Any:
    """Return what a layer returns for zeros that have these lengths where the symbolic arrays have unknown ones."""

    def zeros(x: Any) -> Any:
        if not isinstance(x, KerasTensor):
            return x
        return np.zeros([n or (length if axis else batch) for axis, n in enumerate(x.shape)], dtypes.parse(x.dtype))

    return called_in(handed_training, None, layer, *map_leaves(zeros, (args, kwargs)))


def output_shapes(layer: Layer, shapes: Sequence[Any]) -> Any:
    """Return the shapes of what a layer returns: see :meth:`Layer.compute_output_shape`."""

    def arrays(shape: Any) -> Any:
        if isinstance(shape, dict):
            return {key: arrays(part) for key, part in shape.items()}
        if isinstance(shape, list | tuple) and any(isinstance(part, list | tuple | dict) for part in shape):
            return [arrays(part) for part in shape]
        return Input(batch_shape=shape, name=layer.name)

    symbols = tuple(map(arrays, shapes))
    found = _by_formula(layer, symbols)
    if found is not None:
        return found
    called = layer if layer.built else copy.deepcopy(layer)
    _, outputs = called_with(called, symbols)
    return map_leaves(lambda x: x.shape, outputs)


def _by_formula(layer: Layer, symbols: tuple[Any, ...]) -> Shape | None:
    """Return the shape of outputs, unless there are several inputs or only a call says it: that of users' layers."""
    rule = getattr(layer, "_shape_after", None)
    is_own = type(layer).__module__.startswith("mp_core.")
    is_one = len(symbols) == 1 and isinstance(symbols[0], KerasTensor)
    found: Shape | None = rule(symbols[0].shape) if rule is not None and is_own and is_one else None
    return found


def Input(  # noqa: N802 - Keras' name
    shape: Sequence[int | None] | None = None,
    batch_size: int | None = None,
    dtype: Any = None,
    sparse: bool | None = None,
    ragged: bool | None = None,
    batch_shape: Sequence[int | None] | None = None,
    name: str | None = None,
    tensor: None = None,
    optional: bool = False,
) -> KerasTensor:
    """Return an input of a functional model: call layers with it, and make a model of what they return.

    Parameters
    ----------
    shape : sequence of (int or None), optional
        Of one sample, without the batch; None is any length.
    batch_size : int, optional
        Default: any.
    dtype : dtype, optional
        Inputs are cast to it. Default: :func:`mp_core.config.floatx`.
    batch_shape : sequence of (int or None), optional
        `batch_size` and `shape` together.
    name : str, optional
    sparse, ragged, tensor, optional
        Keras'; they must be off.

    Raises
    ------
    ValueError
        Neither or both of `shape` and `batch_shape` are there, or an argument that must be off is on.

    Examples
    --------
    >>> from mp_core.layers import Dense
    >>> x = Input((3,), name="x")
    >>> Dense(4, name="y")(x)
    <KerasTensor shape=(None, 4), dtype=float32, name=y>
    """
    if tensor is not None:
        raise ValueError("`tensor` must be None: inputs of a model are those of its call")
    switches = {"sparse": bool(sparse), "ragged": bool(ragged), "optional": optional}
    return tensor_of(InputLayer(batch_shape, dtype=dtype, name=name, shape=shape, batch_size=batch_size, **switches))


def tensor_of(layer: InputLayer) -> KerasTensor:
    """Return what an input layer stands for in a graph."""
    if not layer.built:
        layer.build(layer.batch_shape)
    if not isinstance(layer._origin, Call):
        call = Call(layer)
        call.outputs.append(KerasTensor(layer.batch_shape, dtypes.parse(layer.dtype), call))
        vars(layer)["_origin"] = call
    found: KerasTensor = layer._origin.outputs[0]
    return found


class Graph(NamedTuple):
    """What :class:`~mp_core.layers.Functional` is made of."""

    layers: list[Layer]
    nodes: dict[str, list[Node]]
    inputs: Any
    outputs: Any


def graph_between(inputs: Any, outputs: Any) -> Graph:
    """Return the graph of the calls of layers that lead from symbolic inputs to symbolic outputs.

    Layers are in Keras' order: by their greatest distance from the outputs, then as a walk from the outputs meets them.

    Parameters
    ----------
    inputs, outputs : KerasTensor, or list, tuple or dict of them
        An input may be what a layer has returned; the model gets an input layer in its place.

    Raises
    ------
    TypeError
        There is something else than symbolic arrays among them.
    ValueError
        An output needs an :func:`Input` that is not among the inputs, or an input is there twice.
    """
    for argument, tree in (("inputs", inputs), ("outputs", outputs)):
        found = list(leaves(tree))
        if not found or not all(isinstance(x, KerasTensor) for x in found):
            raise TypeError(f"`{argument}` must be what Input and layers called with it return; received {tree!r:.200}")
    given = list(leaves(inputs))
    if len({id(x) for x in given}) < len(given):
        raise ValueError(f"`inputs` must be different; received {inputs!r:.300}")
    starts = {(x.call, x.output): x if isinstance(x.call.layer, InputLayer) else _replaced(x) for x in given}
    calls, met = _walked(leaves(outputs), starts)
    order = _by_depth(calls, met, starts)
    numbers: dict[Call, int] = {}
    for call in sorted(calls, key=lambda call: call.number):
        numbers[call] = sum(other.layer is call.layer for other in numbers)

    def source(x: Any) -> Any:
        if not isinstance(x, KerasTensor):
            return x
        start = starts.get((x.call, x.output))
        return Source(x.name, numbers[x.call], x.output) if start is None else Source(start.name, 0, 0)

    nodes: dict[str, list[Node]] = {}
    for call in numbers:
        nodes.setdefault(call.layer.name, []).append(Node(*map_leaves(source, (call.args, call.kwargs))))
    return Graph(order, nodes, map_leaves(source, inputs), map_leaves(source, outputs))


def _replaced(x: KerasTensor) -> KerasTensor:
    """Return an input like what a layer has returned."""
    return Input(batch_shape=x.shape, dtype=x.dtype)


Starts = dict[tuple[Call, int], KerasTensor]


def _walked(outputs: Iterator[KerasTensor], starts: Starts) -> tuple[list[Call], dict[Layer, int]]:
    """Return the calls on the way to the outputs, each after those that it needs, and when the walk met each layer."""
    done: dict[Call, None] = {}
    met: dict[Layer, int] = {}
    for output in outputs:
        waiting = [(output, False)]
        while waiting:
            x, is_left = waiting.pop()
            if is_left:
                done[x.call] = None
                continue
            start = starts.get((x.call, x.output))
            layer = (x if start is None else start).call.layer
            if start is None and isinstance(layer, InputLayer):
                raise ValueError(f"an output needs the input {x!r}, which is not among `inputs`")
            if x.call in done or any(x.call is y.call for y, left in waiting if left):
                continue
            met.setdefault(layer, len(met))
            if start is None:
                waiting.append((x, True))
                waiting += [(y, False) for y in reversed(x.call.inputs())]
    return list(done), met


def _by_depth(calls: list[Call], met: dict[Layer, int], starts: Starts) -> list[Layer]:
    """Return the layers by their greatest distance from the outputs, those of one distance as the walk met them."""
    depths: dict[Any, int] = {}
    for call in reversed(calls):
        depth = depths[call.layer] = max(depths.get(call, 0), depths.get(call.layer, 0))
        for x in call.inputs():
            start = starts.get((x.call, x.output))
            before = x.call if start is None else start.call.layer
            depths[before] = max(depths.get(before, 0), depth + 1)
    layers = {**dict.fromkeys(met), **dict.fromkeys(x.call.layer for x in starts.values())}
    return sorted(layers, key=lambda layer: (-depths.get(layer, 0), met.get(layer, -1)))


def traced(model: Functional) -> dict[Source, KerasTensor]:
    """Return the symbolic array of each output of each call in a built functional model."""
    values = {Source(x.name, 0, 0): tensor_of(x) for x in model.layers if isinstance(x, InputLayer)}
    layers = {layer.name: layer for layer in model.layers}
    for name, index in model.order:
        args, kwargs = map_leaves(lambda x: values[x] if isinstance(x, Source) else x, tuple(model.nodes[name][index]))
        for number, output in enumerate(leaves(layers[name](*args, **kwargs))):
            values[Source(name, index, number)] = output
    return values


def ends_of_graph(model: Functional) -> Ends:
    """Return the symbolic inputs and outputs of a functional model, whose layers are called anew for that."""
    if not model.built:
        model.build()
    values = traced(model)
    for layer in model.layers:
        first = values.get(Source(layer.name, 0, 0))
        if first is not None:
            settle(model, layer, first.call)
    return Ends(*(map_leaves(values.__getitem__, sources) for sources in (model.input_sources, model.output_sources)))


def ends_of_stack(model: Sequential) -> Ends:
    """Return the symbolic input and output of a stack, whose layers are called anew for that.

    Raises
    ------
    AttributeError
        The shape of its inputs is not known.
    """
    start = _start_of(model)
    x: Any = start
    for layer in model.layers:
        call, x = called_with(layer, (x,))
        settle(model, layer, call)
    return Ends(start, x)


def _start_of(model: Sequential) -> KerasTensor:
    """Return the symbolic input of a stack, which is built; a batch may have any size."""
    if model.input_layer is not None:
        if not model.built:
            model.build()
        return tensor_of(model.input_layer)
    shape = model._build_shapes if model.built and model.layers else None
    if shape is None:
        raise AttributeError(f"'{model.name}' has no inputs yet: begin it with `Input`, or call it or `build` it first")
    return Input(batch_shape=(None, *shape[1:]), dtype=model.layers[0].compute_dtype)
