"""Symbolic arrays: they have a shape and a dtype only. Calls of layers with them form the graph of a model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from mp_core import ops
from mp_core.arrays.recorded import Symbolic, SymbolicError
from mp_core.layers.base.building import unique_name
from mp_core.ops.registry import row_of
from mp_core.utilities.tree import leaves, leaves_by_key

if TYPE_CHECKING:
    from mp_core.layers.layer import Layer

__all__ = ["EAGER_ONLY", "Call", "KerasTensor", "checked_index", "constant_of"]

EAGER_ONLY: dict[str, str] = {
    "PackedMatrix": "a class: the packed form of a constant",
    "pack": "packs a constant, once, before the model is called",
    "shape": "returns a tuple of Python: `x.shape` of a symbolic array, where None is an unknown length",
    "dynamic_matmul": "quantizes rows as it multiplies: use a quantized Dense, which stores the codes",
    "fixed_matmul": "quantizes rows by fixed scales as it multiplies: use a quantized Dense, which stores them",
    "qlinear_matmul": "ONNX's product of codes: use a quantized Dense, which stores them",
    "gate": "a product with an activation, fused: write `activation(x) * y`",
    "layer_norm": "its weights belong to a layer: use LayerNormalization",
    "rms_norm": "its weights belong to a layer: use RMSNormalization",
    "pad_zeros": "use `pad` with 0.0",
    "rotary": "Keras has no such operation: call it in a layer",
    "convert_to_numpy": "gives elements: a symbolic array has none",
    "gather_nd": "Keras has no such operation: call it in a layer",
    "put_along_axis": "Keras has no such operation: use scatter_update, or call it in a layer",
    "take_rows": "its table belongs to a layer: use Embedding",
    "token_places": "Keras has no such operation: call it in a layer",
    "ragged_attention": "functional models cannot have concatenated texts as inputs: call it in a layer",
    "ragged_pool": "as ragged_attention",
    "ragged_rotary": "as ragged_attention",
    "resize": "resizes by formulas of ONNX: Keras' UpSampling2D repeats",
    "batch_normalization": "its statistics belong to a layer: use BatchNormalization",
    "group_normalization": "its weights belong to a layer: use GroupNormalization",
    "local_response_normalization": "Keras has no such operation: call it in a layer",
    "gru": "its weights belong to a layer: use GRU",
    "lstm": "its weights belong to a layer: use LSTM",
    "simple_rnn": "its weights belong to a layer: use SimpleRNN",
    "dequantize_linear": "ONNX's quantization: use a quantized Dense, which stores codes",
    "dynamic_quantize_linear": "ONNX's quantization: use a quantized Dense, which stores codes",
    "matmul_integer": "ONNX's quantization: use a quantized Dense, which stores codes",
    "quantize_linear": "ONNX's quantization: use a quantized Dense, which stores codes",
    **dict.fromkeys(("arange", "eye", "full", "linspace", "ones", "zeros"), "takes no array, and returns a constant"),
    "window_maxima": "use max_pool",
    "window_sums": "use average_pool",
}
"""Function of :mod:`mp_core.ops` that rejects symbolic arrays -> the reason, or what to use instead."""

_numbers = count()


@dataclass(eq=False)
class Call:
    """One call of a layer with symbolic arrays; the call of an input layer has no arguments."""

    layer: "Layer"
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    number: int = field(default_factory=lambda: next(_numbers))
    outputs: "list[KerasTensor]" = field(default_factory=list)

    def inputs(self) -> "list[KerasTensor]":
        """Return the symbolic arrays among the arguments."""
        return [x for x in leaves_by_key((self.args, self.kwargs)) if isinstance(x, KerasTensor)]


class KerasTensor(Symbolic):
    """A symbolic array of a functional model. :func:`Input` returns one, and so do layers that are called with one.

    Operators (``x + y``, ``x @ y``, ``x & y``, ``x[:, 0]``), NumPy's equivalent functions and the functions of
    :mod:`mp_core.ops` become layers (:class:`~mp_core.layers.operation.Operation`); the page on symbolic arrays lists
    the exceptions. Everything else that needs elements raises TypeError.

    Attributes
    ----------
    shape : tuple of (int or None)
        None means any length.
    dtype : str
    call : Call
        The call that returned this array.
    output : int
        The index of this array among the outputs of the call.

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

    sparse = ragged = False
    """Attributes of Keras. Arrays are dense here."""

    operation: ClassVar[Callable[..., Any]]
    """The class :class:`Operation`. Its module sets this attribute, because it imports this one."""

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

    def __repr__(self) -> str:
        return f"<KerasTensor shape={self.shape}, dtype={self.dtype}, name={self.name}>"

    # ---- computations

    def _no_layer_message(self, what: str) -> str:
        return f"{what} of {self!r} is not a layer: compute it in the `call` of a Layer, and call that with it"

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(self._no_layer_message(what))

    def computed(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the symbolic result of a function of :mod:`mp_core.ops`, by calling Keras' layer for it."""
        row = row_of(function)
        if row is None:
            reason = EAGER_ONLY.get(function.__name__)
            self._refuse(f"mp_core.ops.{function.__name__}" + ("" if reason is None else f" ({reason})"))
        operands, named, options = row.arguments(function, args, kwargs)
        layer = self.operation(row.name, options, name=unique_name(row.name), dtype="float32")
        return layer(*map(_operand, operands), **{name: _operand(x) for name, x in named.items()})

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise SymbolicError(self, self._no_layer_message("a function of the elements"))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc not in _UFUNCS or method != "__call__" or kwargs:
            self._refuse_numpy(ufunc)
        return _UFUNCS[ufunc](*inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        self._refuse_numpy(function)

    def _refuse_numpy(self, function: Any) -> NoReturn:
        ours = getattr(ops, function.__name__, None)
        if ours is None or row_of(ours) is None:
            self._refuse(f"numpy.{function.__name__}")
        name = function.__name__
        raise TypeError(f"numpy.{name} of {self!r} is not an operation of mp_core: use mp_core.ops.{name}")

    def __getitem__(self, index: Any) -> Any:
        """Return a part; the index may have integers, slices, None and ``...``."""
        return self.operation("GetItem", name=unique_name("GetItem"), dtype="float32")(self, checked_index(index))

    def reshape(self, *newshape: Any) -> Any:
        """Return the elements in another shape."""
        return ops.reshape(self, newshape[0] if len(newshape) == 1 else newshape)

    def __iter__(self) -> Iterator[Any]:
        self._refuse("a part")

    def __bool__(self) -> NoReturn:
        self._refuse("the truth")

    def __neg__(self) -> Any:
        """Return the negated elements."""
        return ops.negative(self)

    def __abs__(self) -> Any:
        """Return the magnitudes."""
        return ops.absolute(self)

    def __invert__(self) -> Any:
        """Return the logical negation of the elements."""
        return ops.logical_not(self)


def _operand(x: Any) -> Any:
    """Return an argument for the layer of an operation: symbolic arrays unchanged, others as constants."""
    if isinstance(x, list | tuple) and any(isinstance(part, KerasTensor) for part in leaves(x)):
        return [_operand(part) for part in x]
    return x if isinstance(x, KerasTensor) else constant_of(x)


_UFUNCS: dict[Any, Callable[..., Any]] = {
    np.add: ops.add, np.subtract: ops.subtract, np.multiply: ops.multiply, np.true_divide: ops.true_divide,
    np.maximum: ops.maximum, np.minimum: ops.minimum, np.equal: ops.equal, np.not_equal: ops.not_equal,
    np.less: ops.less, np.less_equal: ops.less_equal, np.greater: ops.greater, np.greater_equal: ops.greater_equal,
    np.logical_and: ops.logical_and, np.logical_or: ops.logical_or, np.logical_xor: ops.logical_xor,
    np.bitwise_and: ops.logical_and, np.bitwise_or: ops.logical_or, np.bitwise_xor: ops.logical_xor,
    np.logical_not: ops.logical_not, np.negative: ops.negative, np.absolute: ops.absolute, np.square: ops.square,
    np.sqrt: ops.sqrt, np.matmul: ops.matmul, np.power: ops.power, np.floor_divide: ops.floor_divide,
    np.remainder: ops.mod,
}  # fmt: skip
"""NumPy's function, which operators of its arrays call too -> ours. As in Keras, ``&`` is a logical operator."""
_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": ops.add, "sub": ops.subtract, "mul": ops.multiply, "truediv": ops.true_divide, "matmul": ops.matmul,
    "pow": ops.power, "floordiv": ops.floor_divide, "mod": ops.mod, "and": ops.logical_and, "or": ops.logical_or,
    "xor": ops.logical_xor,
}  # fmt: skip
"""Operator with a reflected form -> function."""
_COMPARISONS: dict[str, Callable[..., Any]] = {
    "lt": ops.less, "le": ops.less_equal, "gt": ops.greater, "ge": ops.greater_equal, "ne": ops.not_equal,
}  # fmt: skip
"""Comparison -> function. As in Keras, ``==`` tests identity of symbolic arrays."""


def _operator(function: Callable[[Any, Any], Any], reflected: bool = False) -> Callable[[Any, Any], Any]:
    def operator(self: KerasTensor, other: Any) -> Any:
        return function(other, self) if reflected else function(self, other)

    return operator


for _word, _function in {**_OPERATORS, **_COMPARISONS}.items():
    setattr(KerasTensor, f"__{_word}__", _operator(_function))
for _word, _function in _OPERATORS.items():
    setattr(KerasTensor, f"__r{_word}__", _operator(_function, reflected=True))


def checked_index(index: Any) -> Any:
    """Return an index of integers, slices, None and ``...``, with Python integers; raise TypeError for any other."""
    if isinstance(index, tuple):
        return tuple(checked_index(part) for part in index)
    if index is None or index is Ellipsis:
        return index
    if isinstance(index, slice):
        return slice(*(end if end is None else checked_index(end) for end in (index.start, index.stop, index.step)))
    if isinstance(index, int | np.integer) and not isinstance(index, bool):
        return int(index)
    raise TypeError(f"an index of a symbolic array must be of integers, slices, None and `...`; received {index!r}")


def constant_of(x: Any) -> Any:
    """Return a constant operand as graphs store it: a Python number, or a read-only copy of an array."""
    if isinstance(x, bool | int | float) and not isinstance(x, np.generic):
        return x
    if hasattr(x, "read_value"):
        raise TypeError(f"a variable must be read in the `call` of the layer that owns it; received {x!r}")
    if isinstance(x, np.generic):
        return x.item()
    if x is None or isinstance(x, str | bytes | dict):
        raise TypeError(f"an operand beside a symbolic array must be a number or an array; received {x!r:.200}")
    found = np.array(ops.convert_to_tensor(x))  # a copy, so that writing to `x` does not change the model
    found.setflags(write=False)
    return found
