"""Replacements for functions of Keras' NumPy backend. They use mp_core if it supports the arguments."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from mp_core import ops
from mp_core.arrays.dtypes import finfo
from mp_core.ops import contraction
from mp_core.ops.elementwise import rounded

__all__ = ["REPLACEMENTS", "Case", "Replacement"]

Function = Callable[..., Any]

_NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_FLOATS = (*_NARROW, np.dtype(np.float32))
_INT8 = np.dtype(np.int8)
_LONGEST_INT8 = 131071
"""The most int8 products whose sum always fits into int32."""


@dataclass(frozen=True)
class Case:
    """Arguments of a self-test, and the largest allowed difference of the results."""

    args: tuple[Any, ...]
    bound: Any
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Replacement:
    """The replacement of a function."""

    module: str  # `module`, `name`: The module in which Keras' backend defines the function, and its name.
    name: str
    # Original -> replacement. The replacement calls the original for arguments that mp_core does not support.
    make: Callable[[Function], Function]
    cases: Callable[[], Iterator[Case]]  # Yields the cases of the self-test.


def _value(x: Any) -> Any:
    """Return an array as Keras' operations read it: a variable gives its value in the dtype of the autocast scope."""
    return x if isinstance(x, np.ndarray) else getattr(x, "value", None)


def _pair(x1: Any, x2: Any, types: tuple[Any, ...]) -> tuple[Any, Any] | None:
    """Return two arrays if both have the same one of these types, else None."""
    a, b = _value(x1), _value(x2)
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)) or a.dtype != b.dtype:
        return None
    return (a, b) if a.dtype in types and a.ndim and b.ndim else None


def _matmul(original: Function) -> Function:
    def matmul(x1: Any, x2: Any) -> Any:
        pair = _pair(x1, x2, (*_NARROW, _INT8))
        if pair is None or pair[0].shape[-1] != pair[1].shape[-2 if pair[1].ndim > 1 else 0]:
            return original(x1, x2)
        if pair[0].dtype == _INT8 and pair[0].shape[-1] > _LONGEST_INT8:
            return original(x1, x2)
        return ops.matmul(*pair)

    return matmul


def _dot(original: Function) -> Function:
    def dot(x1: Any, x2: Any) -> Any:
        pair = _pair(x1, x2, _NARROW)
        if pair is None or pair[1].ndim > 2 or pair[0].shape[-1] != pair[1].shape[0]:
            return original(x1, x2)
        return ops.matmul(*pair)

    return dot


def _einsum(original: Function) -> Function:
    def einsum(subscripts: str, *operands: Any, **kwargs: Any) -> Any:
        pair = _pair(*operands, (*_FLOATS, _INT8)) if len(operands) == 2 and not kwargs else None
        if pair is None:
            return original(subscripts, *operands, **kwargs)
        try:
            return contraction.einsum(subscripts, *pair)
        except (TypeError, ValueError):  # an unsupported or invalid equation, or a sum that is too long
            return original(subscripts, *operands, **kwargs)

    return einsum


def _attention(original: Function) -> Function:
    def dot_product_attention(
        query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, scale: Any = None, **kwargs: Any
    ) -> Any:
        arrays = (query, key, value)
        served = all(isinstance(x, np.ndarray) and x.dtype == query.dtype and x.ndim == 4 for x in arrays)
        served = served and query.dtype in _FLOATS and bias is None and not any(kwargs.values())
        if mask is not None:  # a row that attends to nothing gives zeros in mp_core, the mean of the values in Keras
            served = served and isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and bool(mask.any(-1).all())
        if not served or not isinstance(scale, float | None):
            return original(query, key, value, bias, mask, scale, **kwargs)
        return ops.dot_product_attention(query, key, value, mask=mask, scale=scale)

    return dot_product_attention


def _arithmetic(ufunc: Function) -> Callable[[Function], Function]:
    """Return the maker of a function of two narrow arrays that computes in float32 and rounds once."""

    def make(original: Function) -> Function:
        def arithmetic(x1: Any, x2: Any) -> Any:
            pair = _pair(x1, x2, _NARROW)
            return original(x1, x2) if pair is None else rounded(ufunc, *pair)

        return arithmetic

    return make


def _rows(function: Function) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def rows(x: Any, axis: Any = -1) -> Any:
            served = isinstance(x, np.ndarray) and x.dtype in _FLOATS and x.size and type(axis) is int
            if not served or not -x.ndim <= axis < x.ndim:
                return original(x, axis=axis)
            return function(x, axis=axis)

        return rows

    return make


def _elements(function: Function) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def elements(x: Any, **kwargs: Any) -> Any:
            served = isinstance(x, np.ndarray) and x.dtype in _FLOATS and x.ndim
            return function(x, **kwargs) if served else original(x, **kwargs)

        return elements

    return make


def _gelu(original: Function) -> Function:
    def gelu(x: Any, approximate: Any = True) -> Any:
        served = isinstance(x, np.ndarray) and x.dtype in _FLOATS and x.ndim and isinstance(approximate, bool)
        return ops.gelu(x, approximate) if served else original(x, approximate)

    return gelu


def _convert_to_tensor(original: Function) -> Function:
    """Return a conversion that casts between two different float types by mp_core."""

    def convert_to_tensor(x: Any, dtype: Any = None, sparse: Any = None, ragged: Any = None) -> Any:
        target = _TYPES.get(dtype) if isinstance(dtype, str) else None
        served = not sparse and not ragged
        if target is not None and served and isinstance(x, np.ndarray) and x.dtype in _FLOATS and x.dtype != target:
            return ops.cast(x, target)
        return original(x, dtype, sparse, ragged)

    return convert_to_tensor


_TYPES = {dtype.name: dtype for dtype in _FLOATS}

# ---- self-tests


def _epsilon(dtype: Any) -> float:
    return float(finfo(dtype).eps)


def _random(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    values = np.random.default_rng(seed).standard_normal(shape)
    return np.clip(values * 40, -127, 127).astype(np.int8) if dtype == _INT8 else values.astype(dtype)


def _products(pairs: list[tuple[Any, ...]], types: tuple[Any, ...] = (*_NARROW, _INT8)) -> Callable[[], Iterator[Case]]:
    """Return the cases of products. Bound: 2 * K * epsilon * |a| @ |b|, because NumPy rounds each partial sum."""

    def cases() -> Iterator[Case]:
        for dtype in types:
            for *equation, first, second in pairs:
                a, b = _random(first, dtype), _random(second, dtype, 1)
                args = (*equation, a, b)
                if dtype == _INT8:
                    yield Case(args, 0, {})
                    continue
                multiply = np.einsum if equation else np.matmul
                size = multiply(*equation, *(np.abs(x.astype(np.float64)) for x in (a, b)))
                yield Case(args, 2 * first[-1] * _epsilon(dtype) * size, {})

    return cases


def _functions(shapes: list[tuple[int, ...]], **kwargs: Any) -> Callable[[], Iterator[Case]]:
    """Return the cases of functions of random values. Bound: 16 * epsilon * (1 + |x|), as NumPy rounds each step."""

    def cases() -> Iterator[Case]:
        for dtype in _FLOATS:
            for shape in shapes:
                x = _random(shape, dtype)
                yield Case((x,), 16 * _epsilon(dtype) * (1 + np.abs(x.astype(np.float64))), kwargs)

    return cases


def _attentions() -> Iterator[Case]:
    for dtype in _FLOATS:
        args = tuple(_random((2, length, 3, 16), dtype, seed) for seed, length in enumerate((4, 5, 5)))
        keep = np.tri(4, 5, dtype=bool)[np.newaxis, np.newaxis]
        for mask in (None, keep):
            yield Case((*args, None, mask), 64 * _epsilon(dtype), {})


def _sums() -> Iterator[Case]:
    for dtype in _NARROW:
        yield Case((_random((5, 33), dtype), _random((33,), dtype, 1)), 0, {})


def _casts() -> Iterator[Case]:
    special = [0.0, -0.0, 1e-8, 6e-8, 65504, 65519, 65520, 1e38, np.inf, -np.inf, np.nan]
    with np.errstate(all="ignore"):
        for dtype in _FLOATS:
            for name in _TYPES.keys() - {dtype.name}:
                yield Case((np.concatenate([_random((500,), dtype), np.array(special).astype(dtype)]), name), 0, {})


_MATRICES: list[tuple[Any, ...]] = [((7, 33), (33, 5)), ((2, 3, 16), (16, 9)), ((64,), (64, 3))]
_EQUATIONS: list[tuple[Any, ...]] = [
    ("abc,cde->abde", (2, 5, 12), (12, 2, 3)),
    ("aecd,abcd->acbe", (2, 4, 3, 16), (2, 5, 3, 16)),
    ("...x,xy->...y", (3, 4, 8), (8, 6)),
]
_SHAPES = [(5, 33), (2, 3, 17)]
_NUMPY, _NN, _CORE = "keras.src.backend.numpy.numpy", "keras.src.backend.numpy.nn", "keras.src.backend.numpy.core"

REPLACEMENTS = (
    Replacement(_CORE, "convert_to_tensor", _convert_to_tensor, _casts),
    Replacement(_NUMPY, "matmul", _matmul, _products(_MATRICES)),
    Replacement(_NUMPY, "dot", _dot, _products(_MATRICES, _NARROW)),
    Replacement(_NUMPY, "einsum", _einsum, _products(_EQUATIONS, (*_FLOATS, _INT8))),
    *(Replacement(_NUMPY, f.__name__, _arithmetic(f), _sums) for f in (np.add, np.subtract, np.multiply)),
    Replacement(_NN, "dot_product_attention", _attention, _attentions),
    Replacement(_NN, "softmax", _rows(ops.softmax), _functions(_SHAPES, axis=-1)),
    Replacement(_NN, "gelu", _gelu, _functions(_SHAPES, approximate=False)),
    Replacement(_NN, "silu", _elements(ops.silu), _functions(_SHAPES)),
    Replacement(_NN, "sigmoid", _elements(ops.sigmoid), _functions(_SHAPES)),
    Replacement(_NN, "tanh", _elements(ops.tanh), _functions(_SHAPES)),
)
"""The functions that :func:`accelerate` replaces."""
