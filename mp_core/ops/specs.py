"""Shape rules: the shapes and dtypes of the results of operations, for symbolic arrays.

A rule is called exactly as its operation, so its parameters have the same names, order and defaults. For each array it
gets a :class:`Spec`, a constant array or a Python number. It returns a Spec, or a list of them. It raises the errors of
the operation if known lengths do not fit. None is an unknown length; if two lengths must be equal and one is unknown,
the result has the known one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from mp_core.arrays import F32
from mp_core.arrays.dtypes import ALLOWED, is_float, name_of, parse, result_type
from mp_core.utilities.arguments import axes_of, axis_of, boolean, integer

__all__ = [
    "Rule", "Shape", "Spec", "attended", "averaged", "both", "broadcast", "broadcast_to", "cast_to", "clipped",
    "combined", "compared", "concatenated", "converted", "counted", "divided", "end_to_end", "expanded", "flipped",
    "floating", "halved", "indexed", "joined", "kept", "matrix_product", "merged", "moved", "negated", "pad_widths",
    "padded",
    "places", "powered", "product_type", "quantified", "raveled", "reduced", "reduced_float", "reshaped", "rows",
    "selected", "split", "squared", "squeezed", "stacked", "swapped", "totalled", "transposed", "truths",
]  # fmt: skip

Shape = tuple[int | None, ...]
Operand = Any
"""A :class:`Spec`, an array, or a Python number."""

_BOOL, _INT32 = ALLOWED["bool"], ALLOWED["int32"]


@dataclass(frozen=True)
class Spec:
    """The shape and dtype of an array.

    Attributes
    ----------
    shape : tuple of (int or None)
        None is an unknown length.
    dtype : dtype
    """

    shape: Shape
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)


# ---- types


def _is_number(x: Operand) -> bool:
    """Return whether an operand is a Python number, which takes the type of the other operand. True is not one."""
    return type(x) in (int, float)


def _dtype(x: Operand) -> np.dtype[Any]:
    found: np.dtype[Any] = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    return found


def _shape(x: Operand) -> Shape:
    return tuple(x.shape) if hasattr(x, "shape") else np.shape(x)


def joined(*operands: Operand) -> np.dtype[Any]:
    """Return the common type of operands, as :func:`mp_core.ops.add` defines it."""
    numbers = [x for x in operands if _is_number(x)]
    others = [_dtype(x) for x in operands if not _is_number(x)]
    if not others:
        return F32 if any(type(x) is float for x in numbers) else _INT32
    common = reduce(result_type, others)
    if is_float(common) or not numbers:
        return common
    if any(type(x) is float for x in numbers):
        return F32
    return _INT32 if common == _BOOL else common


def _floating(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if is_float(dtype) else F32


def counted(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return int32 for bool, since Keras multiplies booleans in int32; other dtypes as they are."""
    return _INT32 if dtype == _BOOL else dtype


# ---- lengths


def broadcast(*shapes: Shape) -> Shape:
    """Return the broadcast shape.

    Examples
    --------
    >>> broadcast((None, 3), (5, 1))
    (5, 3)
    >>> broadcast((None,), (1,)), broadcast((None,), (7,))
    ((None,), (7,))
    """
    ndim = max(map(len, shapes), default=0)
    lengths = zip(*((1,) * (ndim - len(shape)) + tuple(shape) for shape in shapes), strict=True)
    return tuple(_stretched(each, shapes) for each in lengths)


def _stretched(lengths: Sequence[int | None], shapes: Sequence[Shape]) -> int | None:
    known = {n for n in lengths if n not in (1, None)}
    if len(known) > 1:
        raise ValueError(f"operands must broadcast against each other; received shapes {', '.join(map(str, shapes))}")
    return known.pop() if known else None if None in lengths else 1


def merged(*lengths: int | None) -> int | None:
    """Return the length of axes that must have equal lengths; None if no length is known."""
    known = {n for n in lengths if n is not None}
    if len(known) > 1:
        raise ValueError(f"axes that belong together must be equally long; received lengths {sorted(known)}")
    return known.pop() if known else None


def _product(lengths: Sequence[int | None]) -> int | None:
    return None if None in lengths else math.prod(n for n in lengths if n is not None)


def _places(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes that `axis` names, in ascending order; all axes for None."""
    if axis is None:
        return tuple(range(ndim))
    places = tuple(sorted(axis_of(each, ndim) for each in axes_of(axis)))
    if len(set(places)) < len(places):
        raise ValueError(f"`axis` must not name an axis twice; received {axis}")
    return places


# ---- elements


def kept(x: Operand) -> Spec:
    """Return the shape and dtype of `x`."""
    return Spec(_shape(x), _dtype(x))


def floating(x: Operand, **_: Any) -> Spec:
    """Return the shape and dtype of `x`; integers give float32."""
    return Spec(_shape(x), _floating(_dtype(x)))


def negated(x: Operand) -> Spec:
    """Return the shape and dtype of `x`; raise TypeError for booleans."""
    if _dtype(x) == _BOOL:
        raise TypeError("`x` must not be of booleans, which have no negative: use logical_not")
    return kept(x)


def squared(x: Operand) -> Spec:
    """Return the shape and dtype of `x`; booleans give int32."""
    return Spec(_shape(x), counted(_dtype(x)))


def clipped(x: Operand, low: Operand, high: Operand) -> Spec:
    """Return the common shape, in the dtype of `x`; booleans give int32."""
    return Spec(broadcast(_shape(x), _shape(low), _shape(high)), counted(_dtype(x)))


def combined(x: Operand, y: Operand) -> Spec:
    """Return the common shape and type."""
    return Spec(broadcast(_shape(x), _shape(y)), joined(x, y))


def quantified(x1: Operand, x2: Operand) -> Spec:
    """Return the common shape and dtype; booleans give int32."""
    found = combined(x1, x2)
    return Spec(found.shape, counted(found.dtype))


def powered(x: Operand, exponent: Operand) -> Spec:
    """Return the common shape and dtype; booleans give int32."""
    return quantified(x, exponent)


def divided(x: Operand, y: Operand) -> Spec:
    """Return the common shape and dtype; integers give float32."""
    found = combined(x, y)
    return Spec(found.shape, _floating(found.dtype))


def compared(x1: Operand, x2: Operand) -> Spec:
    """Return the common shape, of booleans; raise if the operands have no common type."""
    joined(x1, x2)
    return Spec(broadcast(_shape(x1), _shape(x2)), _BOOL)


def both(x1: Operand, x2: Operand) -> Spec:
    """Return the common shape, of booleans."""
    return Spec(broadcast(_shape(x1), _shape(x2)), _BOOL)


def truths(x: Operand) -> Spec:
    """Return the shape of `x`, of booleans."""
    return Spec(_shape(x), _BOOL)


def selected(condition: Operand, x: Operand, y: Operand) -> Spec:
    """Return the common shape of all three, in the common dtype of the last two."""
    return Spec(broadcast(_shape(condition), _shape(x), _shape(y)), joined(x, y))


def cast_to(x: Operand, dtype: Any) -> Spec:
    """Return the shape of `x`, in `dtype`."""
    return Spec(_shape(x), parse(dtype))


def converted(x: Operand, dtype: Any = None) -> Spec:
    """Return the shape of `x`, in `dtype` or by default in its own dtype."""
    return Spec(_shape(x), _dtype(x) if dtype is None else parse(dtype))


# ---- rows and reductions


def rows(x: Operand, axis: Any = -1, **_: Any) -> Spec:
    """Check `axis`; return the shape and dtype of `x`; integers give float32."""
    _places(axis, len(_shape(x)))
    return floating(x)


def halved(x: Operand, axis: int = -1) -> Spec:
    """Return the shape with half of the length of an axis, which is even; integers give float32."""
    shape = list(_shape(x))
    place = axis_of(axis, len(shape))
    length = shape[place]
    if length is not None:
        if length % 2:
            raise ValueError(f"the length of axis {axis} must be even; received shape {tuple(shape)}")
        shape[place] = length // 2
    return Spec(tuple(shape), _floating(_dtype(x)))


def _without(shape: Shape, axis: Any, keepdims: bool) -> Shape:
    places = _places(axis, len(shape))
    if boolean(keepdims, "keepdims"):
        return tuple(1 if place in places else n for place, n in enumerate(shape))
    return tuple(n for place, n in enumerate(shape) if place not in places)


def reduced(x: Operand, axis: Any = None, keepdims: bool = False) -> Spec:
    """Return the shape without the reduced axes, in the dtype of `x`."""
    shape = _shape(x)
    if any(shape[place] == 0 for place in _places(axis, len(shape))):
        raise ValueError(f"the axes of `x` that are reduced must have elements; received shape {shape}")
    return Spec(_without(shape, axis, keepdims), _dtype(x))


def reduced_float(x: Operand, axis: Any = None, keepdims: bool = False) -> Spec:
    """Return the shape without the reduced axes, in the dtype of `x`; integers give float32."""
    return Spec(_without(_shape(x), axis, keepdims), _floating(_dtype(x)))


def totalled(x: Operand, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Spec:
    """Return the shape without the reduced axes, in `dtype`, by default that of a sum."""
    found = _dtype(x) if dtype is None else parse(dtype)
    if dtype is None and not is_float(found):
        found = ALLOWED["uint64" if found.kind == "u" else "int64"]
    return Spec(_without(_shape(x), axis, keepdims), F32 if "float8" in name_of(found) else found)


def averaged(x: Operand, axis: Any = None, keepdims: bool = False) -> Spec:
    """Return the shape without the reduced axes, in the dtype of a mean."""
    found = reduced_float(x, axis, keepdims)
    return Spec(found.shape, F32 if "float8" in name_of(found.dtype) else found.dtype)


def places(x: Operand, axis: Any = None, keepdims: bool = False) -> Spec:
    """Return the shape without the reduced axis, of int32: the indices of extremes."""
    axis = axis if axis is None else axis_of(axis, len(_shape(x)))
    return Spec(reduced(x, axis, keepdims).shape, _INT32)


# ---- arrangements


def _sizes(shape: Any) -> Shape:
    """Return the argument `shape` as a tuple; an integer is one length."""
    return tuple(shape) if isinstance(shape, Sequence) else (int(shape),)


def reshaped(x: Operand, newshape: Any) -> Spec:
    """Return the new shape; one length may be -1."""
    shape, wanted = _shape(x), _sizes(newshape)
    if wanted.count(-1) > 1 or any(n is None or n < -1 for n in wanted):
        raise ValueError(f"`newshape` must be lengths from 0 on, of which one may be -1; received {newshape}")
    size, known = _product(shape), math.prod(n for n in wanted if n not in (-1, None))
    if size is None:
        return Spec(tuple(None if n == -1 else n for n in wanted), _dtype(x))
    if size != known if -1 not in wanted else (known == 0 or size % known):
        raise ValueError(f"`newshape` must hold the {size} elements of shape {shape}; received {newshape}")
    return Spec(tuple(size // known if n == -1 else n for n in wanted), _dtype(x))


def raveled(x: Operand) -> Spec:
    """Return one axis of all elements."""
    return Spec((_product(_shape(x)),), _dtype(x))


def transposed(x: Operand, axes: Any = None) -> Spec:
    """Return the permuted axes."""
    shape = _shape(x)
    order = tuple(reversed(range(len(shape)))) if axes is None else [axis_of(axis, len(shape)) for axis in axes]
    if sorted(order) != list(range(len(shape))):
        raise ValueError(f"`axes` must name each of {len(shape)} axes once; received {axes}")
    return Spec(tuple(shape[place] for place in order), _dtype(x))


def swapped(x: Operand, axis1: int, axis2: int) -> Spec:
    """Return the shape with two axes exchanged."""
    order = list(range(len(_shape(x))))
    one, two = axis_of(axis1, len(order)), axis_of(axis2, len(order))
    order[one], order[two] = two, one
    return transposed(x, order)


def moved(x: Operand, source: Any, destination: Any) -> Spec:
    """Return the shape with some axes moved; the others keep their order."""
    ndim = len(_shape(x))
    origins = [axis_of(axis, ndim) for axis in axes_of(source)]
    goals = [axis_of(axis, ndim) for axis in axes_of(destination)]
    if len(origins) != len(goals) or len(set(origins)) < len(origins) or len(set(goals)) < len(goals):
        raise ValueError(
            f"`source` and `destination` must be as many axes, each once; received {source}, {destination}"
        )
    order = [place for place in range(ndim) if place not in origins]
    for goal, origin in sorted(zip(goals, origins, strict=True)):
        order.insert(goal, origin)
    return transposed(x, order)


def expanded(x: Operand, axis: Any) -> Spec:
    """Return the shape with additional axes of length 1."""
    ndim = len(_shape(x)) + len(axes_of(axis))
    new, old = _places(axis, ndim), iter(_shape(x))
    return Spec(tuple(1 if place in new else next(old) for place in range(ndim)), _dtype(x))


def squeezed(x: Operand, axis: Any = None) -> Spec:
    """Return the shape without axes of length 1. An axis of unknown length is kept, or refused if `axis` names it."""
    shape = _shape(x)
    if axis is None:
        return Spec(tuple(n for n in shape if n != 1), _dtype(x))
    gone = _places(axis, len(shape))
    if any(shape[place] != 1 for place in gone):
        raise ValueError(f"`axis` must name axes of length 1; received {axis} for shape {shape}")
    return Spec(tuple(n for place, n in enumerate(shape) if place not in gone), _dtype(x))


def flipped(x: Operand, axis: Any = None) -> Spec:
    """Check `axis`; return the shape and dtype of `x`."""
    _places(axis, len(_shape(x)))
    return kept(x)


def broadcast_to(x: Operand, shape: Any) -> Spec:
    """Return the shape that `x` is broadcast to."""
    wanted, own = _sizes(shape), _shape(x)
    if len(own) > len(wanted) or broadcast(own, wanted) != wanted:
        raise ValueError(f"`x` must broadcast to `shape`; received shape {own} and {shape}")
    return Spec(wanted, _dtype(x))


def split(x: Operand, indices_or_sections: Any, axis: int = 0) -> list[Spec]:
    """Return the specs of the parts: a number of equal ones, or those between indices."""
    shape = _shape(x)
    place = axis_of(axis, len(shape))
    length = shape[place]
    if isinstance(indices_or_sections, int | np.integer):
        count = int(indices_or_sections)
        if count < 1 or (length is not None and length % count):
            raise ValueError(f"`indices_or_sections` must divide the length {length} of the axis; received {count}")
        lengths = [None if length is None else length // count] * count
    else:  # like Keras, assume that an unknown length is large enough
        pairs = zip((0, *indices_or_sections), (*indices_or_sections, length), strict=True)
        lengths = [None if end is None else end - begin for begin, end in pairs]
        if any(n is not None and n < 0 for n in lengths):
            raise ValueError(f"`indices_or_sections` must ascend from 0 to the length {length} of the axis; received "
                             f"{indices_or_sections}")  # fmt: skip
    return [Spec((*shape[:place], n, *shape[place + 1 :]), _dtype(x)) for n in lengths]


def concatenated(xs: Sequence[Operand], axis: int = 0) -> Spec:
    """Return the concatenated shape, in the common dtype."""
    shapes = [_shape(x) for x in xs]
    if not shapes or not shapes[0] or any(len(shape) != len(shapes[0]) for shape in shapes):
        raise ValueError(f"`xs` must be arrays with the same number of axes, at least one; received shapes {shapes}")
    place = axis_of(axis, len(shapes[0]))
    return Spec(end_to_end(shapes, place), joined(*xs))


def end_to_end(shapes: Sequence[Shape], place: int) -> Shape:
    """Return the shape of concatenated arrays. Lengths of other axes are those of the first array, as in Keras."""
    first, *others = (shape[:place] + shape[place + 1 :] for shape in shapes)
    if not all(_agree(first, other) for other in others):
        raise ValueError(f"arrays must have the same shape except along axis {place}; received shapes {list(shapes)}")
    along = [shape[place] for shape in shapes]
    return (*first[:place], None if None in along else sum(n for n in along if n is not None), *first[place:])


def _agree(one: Shape, other: Shape) -> bool:
    """Return whether two shapes are equal where both lengths are known."""
    return len(one) == len(other) and all(None in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True))


def stacked(x: Sequence[Operand], axis: int = 0) -> Spec:
    """Return the shape of stacked arrays, in the common dtype."""
    if len({len(_shape(each)) for each in x}) != 1:
        raise ValueError(f"`x` must be arrays of one shape; received shapes {[_shape(each) for each in x]}")
    return Spec(concatenated([expanded(each, axis) for each in x], axis).shape, joined(*x))


def padded(x: Operand, widths: Any, value: Operand = None, mode: str = "constant") -> Spec:
    """Return the shape with longer axes."""
    shape = _shape(x)
    lengths = zip(shape, pad_widths(widths, len(shape)), strict=True)
    return Spec(tuple(None if n is None else before + n + after for n, (before, after) in lengths), _dtype(x))


def pad_widths(widths: Any, ndim: int) -> list[tuple[int, int]]:
    """Return the numbers of elements added before and after each axis; an integer or a single pair is for all axes."""
    pairs = [(widths, widths)] if isinstance(widths, int | np.integer) else [tuple(pair) for pair in widths]
    found = [tuple(integer(width, "widths") for width in pair) for pair in (pairs * ndim if len(pairs) == 1 else pairs)]
    if len(found) != ndim or any(len(pair) != 2 or min(pair) < 0 for pair in found):
        raise ValueError(f"`widths` must be two numbers from 0 on for each of {ndim} axes; received {widths}")
    return [(before, behind) for before, behind in found]


def indexed(x: Operand, key: Any) -> Spec:
    """Return the shape of ``x[key]`` for an index of integers, slices, None and ``...``."""
    parts = tuple(key) if isinstance(key, tuple | list) else (key,)
    if sum(part is Ellipsis for part in parts) > 1:
        raise ValueError(f"an index must have one `...` at most; received {key}")
    named = sum(part is not None and part is not Ellipsis for part in parts)
    waiting, lengths = list(_shape(x)), list[int | None]()
    if named > len(waiting):
        raise ValueError(f"an index must name at most the {len(waiting)} axes of shape {_shape(x)}; received {key}")
    for part in parts if Ellipsis in parts else (*parts, Ellipsis):
        if part is Ellipsis:
            count = len(waiting) - named
            lengths += [waiting.pop(0) for _ in range(count)]
        elif part is None:
            lengths.append(1)
        else:
            named -= 1
            lengths += _part(waiting.pop(0), part)
    return Spec(tuple(lengths), _dtype(x))


def _part(length: int | None, part: Any) -> list[int | None]:
    """Return [the length of a slice of an axis], or [] for an integer index."""
    if isinstance(part, slice):
        return [None if length is None else len(range(length)[part])]
    if length is not None and not -length <= part < length:
        raise ValueError(f"an index must lie in [{-length}, {length}); received {part}")
    return []


# ---- products


def matrix_product(a: Operand, b: Operand) -> Spec:
    """Return the shape of :func:`numpy.matmul`; 8-bit integers give int32."""
    one, two = _shape(a), _shape(b)
    if not one or not two:
        raise ValueError(f"`a` and `b` must have at least one axis; received shapes {one} and {two}")
    left, right = one if len(one) > 1 else (1, *one), two if len(two) > 1 else (*two, 1)
    try:
        merged(left[-1], right[-2])
    except ValueError:
        raise ValueError(f"the last axis of `a` must fit the axis of `b` before its last one; "
                         f"received shapes {one} and {two}") from None  # fmt: skip
    ends = (left[-2:-1] if len(one) > 1 else ()) + (right[-1:] if len(two) > 1 else ())
    return Spec((*broadcast(left[:-2], right[:-2]), *ends), product_type(_dtype(a), _dtype(b)))


def product_type(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a product, as of :func:`mp_core.ops.matmul`."""
    if not is_float(a) and not is_float(b):
        if a.itemsize == b.itemsize == 1 and _BOOL not in (a, b):
            return _INT32
        raise TypeError(f"products of integers must be of int8 or uint8; received {a} and {b}: cast one to a float")
    return result_type(a, b)


def attended(
    query: Operand, key: Operand, value: Operand, bias: Operand = None, mask: Operand = None, scale: Any = None,
    is_causal: bool = False, softcap: Any = None,
) -> Spec:  # fmt: skip
    """Return the shape of `query` with the vector size of `value`."""
    q, k, v = (_shape(x) for x in (query, key, value))
    if not len(q) == len(k) == len(v) == 4:
        raise ValueError(f"`query`, `key` and `value` must have 4 axes; received shapes {q}, {k} and {v}")
    batch = merged(q[0], k[0], v[0])
    sources, heads = merged(k[1], v[1]), merged(k[2], v[2])
    merged(q[3], k[3])
    if q[2] is not None and heads is not None and (heads == 0 or q[2] % heads):
        raise ValueError(f"the heads of `key` must divide those of `query`; received {heads} and {q[2]}")
    scores = (batch, q[2], q[1], sources)
    for each in (bias, mask):
        if each is not None:
            broadcast(scores, _shape(each))
    common = _floating(reduce(result_type, (_floating(_dtype(x)) for x in (query, key, value))))
    return Spec((batch, *q[1:3], v[3]), F32 if common.itemsize == 1 else common)


Rule = Callable[..., Spec | list[Spec]]
"""A function that computes the specs of the results of an operation."""
