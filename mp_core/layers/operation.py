"""Keras' functions of arrays, such as ``x + y`` and ``x[:, 0]``, between the layers of a functional model."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from mp_core import dtypes, ops
from mp_core.arrays import F32, F64, Array
from mp_core.layers.elementwise import rounded
from mp_core.layers.layer import Layer

__all__ = ["FUNCTIONS", "OPERATIONS", "Operation", "index_entry", "index_of", "operation_of"]

_PAIRS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Subtract": np.subtract,
    "Multiply": np.multiply,
    "Divide": np.true_divide,
    "TrueDivide": np.true_divide,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "NotEqual": np.not_equal,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
}
"""Keras' name of an operation of two arrays -> NumPy's function."""
_BOOLEAN = ("NotEqual", "LogicalAnd", "LogicalOr")


@dataclass(frozen=True)
class Function:
    """A function of :mod:`mp_core.ops` that Keras has as an operation.

    Attributes
    ----------
    call : callable
    options : mapping of str to str
        Argument of the constructor of Keras' operation -> the same argument of `call`. All others are operands.
    home : str
        The module below ``keras.src.ops`` that has the operation.
    """

    call: Callable[..., Any]
    options: Mapping[str, str] = field(default_factory=dict)
    home: str = "numpy"


def _of(call: Callable[..., Any], *options: str, home: str = "numpy") -> Function:
    return Function(call, {name: name for name in options}, home)


FUNCTIONS: dict[str, Function] = {
    "Add": _of(ops.add),
    "Subtract": _of(ops.subtract),
    "Multiply": _of(ops.multiply),
    "Divide": _of(ops.divide),
    "Maximum": _of(ops.maximum),
    "Minimum": _of(ops.minimum),
    "Absolute": _of(ops.absolute),
    "Argmax": _of(ops.argmax, "axis", "keepdims"),
    "Argmin": _of(ops.argmin, "axis", "keepdims"),
    "BroadcastTo": _of(ops.broadcast_to, "shape"),
    "Cast": _of(ops.cast, "dtype", home="core"),
    "Clip": Function(ops.clip, {"x_min": "low", "x_max": "high"}),
    "Concatenate": _of(ops.concatenate, "axis"),
    "Equal": _of(ops.equal),
    "Exp": _of(ops.exp),
    "ExpandDims": _of(ops.expand_dims, "axis"),
    "Flip": _of(ops.flip, "axis"),
    "Gelu": _of(ops.gelu, "approximate", home="nn"),
    "Greater": _of(ops.greater),
    "GreaterEqual": _of(ops.greater_equal),
    "Less": _of(ops.less),
    "LessEqual": _of(ops.less_equal),
    "Log": _of(ops.log),
    "Log1p": _of(ops.log1p),
    "LogSoftmax": _of(ops.log_softmax, "axis", home="nn"),
    "Logsumexp": _of(ops.logsumexp, "axis", "keepdims", home="math"),
    "Matmul": _of(ops.matmul),
    "Max": _of(ops.max, "axis", "keepdims"),
    "Mean": _of(ops.mean, "axis", "keepdims"),
    "Min": _of(ops.min, "axis", "keepdims"),
    "Moveaxis": _of(ops.moveaxis, "source", "destination"),
    "Negative": _of(ops.negative),
    "Power": _of(ops.power),
    "Ravel": _of(ops.ravel),
    "Reciprocal": _of(ops.reciprocal),
    "Relu": _of(ops.relu, home="nn"),
    "Relu6": _of(ops.relu6, home="nn"),
    "Reshape": _of(ops.reshape, "newshape"),
    "Rsqrt": _of(ops.rsqrt, home="math"),
    "Sigmoid": _of(ops.sigmoid, home="nn"),
    "Silu": _of(ops.silu, home="nn"),
    "Softmax": _of(ops.softmax, "axis", home="nn"),
    "Softplus": _of(ops.softplus, home="nn"),
    "Split": _of(ops.split, "indices_or_sections", "axis"),
    "Sqrt": _of(ops.sqrt),
    "Square": _of(ops.square),
    "Squeeze": _of(ops.squeeze, "axis"),
    "Stack": _of(ops.stack, "axis"),
    "Std": _of(ops.std, "axis", "keepdims"),
    "StopGradient": _of(ops.stop_gradient, home="core"),
    "Sum": _of(ops.sum, "axis", "keepdims"),
    "Swapaxes": _of(ops.swapaxes, "axis1", "axis2"),
    "Tanh": _of(ops.tanh),
    "Transpose": _of(ops.transpose, "axes"),
    "Var": _of(ops.var, "axis", "keepdims"),
    "Where": _of(ops.where),
}
"""Keras' name of an operation -> what computes it; of those of two arrays that also ``_PAIRS`` has, that does."""
OPERATIONS = (*_PAIRS, *(name for name in FUNCTIONS if name not in _PAIRS), "GetItem")

_BY_ROW = {
    "exponential": "Exp", "relu": "Relu", "relu6": "Relu6", "gelu": "Gelu", "gelu_tanh": "Gelu", "silu": "Silu",
    "sigmoid": "Sigmoid", "tanh": "Tanh", "softplus": "Softplus", "log": "Log", "log1p": "Log1p", "sqrt": "Sqrt",
    "square": "Square", "absolute": "Absolute", "negative": "Negative",
}  # fmt: skip
"""The first argument of functions that compute a row of a table -> Keras' name."""


def operation_of(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, list[Any], dict[str, Any]] | None:
    """Return Keras' name of a call of a function of `mp_core.ops`, its operands and options; None if there is none."""
    given = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    if args and isinstance(args[0], str):
        name = _BY_ROW.get(args[0])
        options = {"approximate": args[0] == "gelu_tanh"} if name == "Gelu" else {}
        return None if name is None else (name, list(args[1:2]), options)
    names = [name for name, known in FUNCTIONS.items() if inspect.unwrap(known.call) is function]
    if not names:
        return None
    own = FUNCTIONS[names[0]].options
    options = {name: given.pop(ours) for name, ours in own.items() if ours in given}
    return names[0], [x for x in given.values() if x is not None], options


class Operation(Layer):
    """A function of arrays: of Keras' name, with the numbers and options of its call.

    Functions of two arrays, or of an array and a number, compute in the type that Keras' rules give for both.

    Parameters
    ----------
    operation : str
        One of ``OPERATIONS``.
    constants : sequence, optional
        For each argument that is none of the inputs a number (of ``GetItem``: the index, as Keras writes it), None for
        each other one.
    options : dict, optional
        The arguments of the constructor of Keras' operation, such as ``axis``.
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> Operation("Multiply", [None, 2])(np.array([1.0, 2.0], np.float32))
    array([2., 4.], dtype=float32)
    >>> Operation("Sum", [None], {"axis": 1})(np.ones((2, 3), np.float32))
    array([3., 3.], dtype=float32)
    """

    _options = ("operation", "constants", "options")
    _told = ("operation",)

    def __init__(
        self,
        operation: str,
        constants: Sequence[Any] = (None, None),
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        if operation not in OPERATIONS:
            raise ValueError(f"`operation` must be one of {', '.join(OPERATIONS)}; received {operation!r}")
        if operation == "GetItem":
            if len(constants) != 2 or constants[0] is not None:
                raise ValueError(f"`constants` must be None and an index; received {constants!r}")
            index_of(constants[1])
        else:
            _check_numbers(constants, 1 if operation in _PAIRS else len(constants), operation in _PAIRS)
        self.operation = operation
        self.constants = list(constants)
        self.options = _known(operation, options or {})

    @property
    def returns_list(self) -> bool:
        """Whether a call returns several arrays."""
        return self.operation == "Split"

    def call(self, *inputs: Any) -> Any:
        """Return the function of the inputs: of two arrays in float32 and rounded once, of integers exact."""
        if len(inputs) != self.constants.count(None):
            raise ValueError(f"'{self.name}' takes {self.constants.count(None)} arrays; received {len(inputs)}")
        waiting = iter(inputs)
        args = [next(waiting) if value is None else value for value in self.constants]
        if self.operation == "GetItem":
            return args[0][index_of(args[1])]
        if self.operation in _PAIRS:
            return self._of_pair(args, inputs)
        function = FUNCTIONS[self.operation]
        return function.call(*args, **{function.options[name]: value for name, value in self.options.items()})

    def _of_pair(self, args: list[Any], inputs: Sequence[Array]) -> Array:
        kind = reduce(dtypes.result_type, (x.dtype for x in inputs))
        if not dtypes.is_float(kind) and self.operation not in _BOOLEAN:
            exact: Array = FUNCTIONS[self.operation.removeprefix("True")].call(*args)  # TrueDivide: Keras' operator `/`
            return exact
        wide = None if not dtypes.is_float(kind) else F64 if kind is F64 else F32
        both = [np.asarray(x, wide) if value is not None else x for x, value in zip(args, self.constants, strict=True)]
        if self.operation in _BOOLEAN:
            return np.asarray(_PAIRS[self.operation](*both))
        return rounded(_PAIRS[self.operation], *both, dtype=kind)


def _check_numbers(constants: Sequence[Any], most: int, is_pair: bool) -> None:
    """Raise ValueError unless constants are numbers and None, at most so many of them numbers."""
    numbers = [value for value in constants if value is not None]
    if is_pair and (len(constants) != 2 or len(numbers) > most):
        raise ValueError(f"`constants` must be two, at most one of them a number; received {constants!r}")
    if not all(isinstance(n, int | float) for n in numbers) or len(numbers) == len(constants):
        raise ValueError(f"`constants` must be numbers and None, at most one of them a number; received {constants!r}")


def _known(operation: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an operation without those that are None; raise ValueError for others than it has."""
    known = FUNCTIONS[operation].options if operation in FUNCTIONS else {}
    given = {name: value for name, value in options.items() if value is not None}
    if not given.keys() <= known.keys():
        raise ValueError(f"`options` of {operation} must be of {list(known)}; received {dict(options)}")
    return given


# ---- indices, as Keras writes them


def index_entry(index: Any) -> Any:
    """Return an index of an array (integers, slices, None, ``...``) as Keras writes it.

    Raises
    ------
    TypeError
        There is something else in it.
    """
    if isinstance(index, tuple):
        return [index_entry(part) for part in index]
    if isinstance(index, slice):
        return {"class_name": "__slice__", "config": {name: getattr(index, name) for name in ("start", "stop", "step")}}
    if index is Ellipsis:
        return {"class_name": "__ellipsis__", "config": {}}
    if index is None or (isinstance(index, int | np.integer) and not isinstance(index, bool)):
        return index if index is None else int(index)
    raise TypeError(f"an index of a symbolic array must be of integers, slices, None and `...`; received {index!r}")


def index_of(entry: Any) -> Any:
    """Return the index of what :func:`index_entry` returns.

    Raises
    ------
    ValueError
        It is none.
    """
    if isinstance(entry, list | tuple):
        return tuple(index_of(part) for part in entry)
    if isinstance(entry, dict) and entry.get("class_name") == "__ellipsis__":
        return Ellipsis
    own = entry.get("config") if isinstance(entry, dict) and entry.get("class_name") == "__slice__" else None
    if isinstance(own, dict):
        ends = [own.get(name) for name in ("start", "stop", "step")]
        if all(end is None or type(end) is int for end in ends):
            return slice(*ends)
    if entry is None or type(entry) is int:
        return entry
    raise ValueError(f"an index must be of integers, slices, None and ellipses; received {entry!r:.200}")
