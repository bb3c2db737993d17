"""Products by einsum equations: axes are put in order, then :func:`mp_core.ops.matmul` multiplies."""

import functools
import math
import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from mp_core.arrays import F32, F64, Array, asarray, cast, check_out, dtypes, imported_all, imported_out
from mp_core.arrays.dtypes import is_float, result_type
from mp_core.arrays.products.general import multiply_any
from mp_core.arrays.products.matmul import matmul
from mp_core.arrays.products.panels import PackedMatrix
from mp_core.arrays.quantization import QuantizedArray
from mp_core.arrays.recorded import constant, recordable, under_way
from mp_core.core.convert import copied
from mp_core.ops import specs
from mp_core.ops.registry import Row, operation, register

__all__ = ["Equation", "Labels", "einsum", "parse"]

Labels = tuple[str, ...]

_TERM = r"[A-Za-z]*(?:\.\.\.)?[A-Za-z]*"


class Equation(NamedTuple):
    """The labels of the axes in ``a,b->out``; the last axis that an ellipsis stands for is ``...0``, then ``...1``."""

    a: Labels
    b: Labels
    out: Labels


@functools.lru_cache(maxsize=256)
def parse(equation: str, a_axes: int, b_axes: int | None = None) -> Equation:
    """Split an equation of two operands with as many axes; ``b_axes=None`` takes as many as there are labels.

    Raises
    ------
    ValueError
        `equation` is no equation of two operands, or one that operands of so many axes do not fit.
    """
    match = re.fullmatch(f"({_TERM}),({_TERM})(?:->({_TERM}))?", equation.replace(" ", ""))
    if match is None:
        raise ValueError(
            f"`equation` must be like 'ab,bc->ac' or '...b,bc->...c', with two operands; received {equation!r}"
        )
    a = _expand(match[1], a_axes, equation, "first")
    b = _expand(match[2], b_axes, equation, "second")
    elided = max(_elided(a), _elided(b), key=len)
    labels = a + b
    if match[3] is None:
        out = elided + tuple(sorted(label for label in labels if labels.count(label) == 1 and label not in elided))
    else:
        before, dots, after = match[3].partition("...")
        out = (*before, *(elided if dots else ()), *after)
        if elided and not dots:
            raise ValueError(f"the output of `equation` must have the ellipsis of its operands; received {equation!r}")
        if len(set(out)) < len(out) or not set(out) <= set(labels):
            raise ValueError(f"the output of `equation` must have labels of the operands, once; received {equation!r}")
    return Equation(a, b, out)


def _expand(term: str, axes: int | None, equation: str, which: str) -> Labels:
    before, dots, after = term.partition("...")
    named = (*before, *after)
    if len(set(named)) < len(named):
        raise ValueError(
            f"`equation` must not repeat a label within an operand (take the diagonal first); received {equation!r}"
        )
    more = 0 if axes is None else axes - len(named)
    if more < 0 or (more and not dots):
        raise ValueError(f"`equation` {equation!r} has {len(named)} labels for its {which} operand of {axes} axes")
    return (*before, *(f"...{i}" for i in reversed(range(more))), *after)


def _elided(labels: Labels) -> Labels:
    return tuple(label for label in labels if len(label) > 1)


def _spec(equation: str, a: Any, b: Any) -> specs.Spec:
    """Return the lengths of the labels of the output, in the type of the product."""
    one, two = specs.kept(a), specs.kept(b)
    of_a, of_b, of_out = parse(equation, one.ndim, two.ndim)
    sizes: dict[str, int | None] = {}
    for label, n in zip(of_a + of_b, one.shape + two.shape, strict=True):
        try:
            sizes[label] = specs.broadcast((sizes.get(label, 1),), (n,))[0]
        except ValueError:
            raise ValueError(f"label {label!r} of {equation!r} must be as long in both operands, or 1; "
                             f"received shapes {one.shape} and {two.shape}") from None  # fmt: skip
    return specs.Spec(tuple(sizes[label] for label in of_out), specs.product_type(one.dtype, two.dtype))


@operation(_spec, "a b", {"subscripts": "equation"})
@recordable
def einsum(equation: str, a: Any, b: Any, *, out_dtype: DTypeLike | None = None, out: Array | None = None) -> Array:
    """Return the sum of products that an equation describes, accumulated in float32 and rounded once.

    Parameters
    ----------
    equation : str
        As for :func:`numpy.einsum`, with two operands and no label twice in one of them: ``"bqhd,bkhd->bhqk"``.
        ``...`` stands for axes that broadcast, and so does every axis of length 1. Without ``->`` the result has the
        ellipsis, then the labels that occur once, in alphabetical order.
    a : array-like or QuantizedArray
        Of a type that :func:`matmul` multiplies.
    b : array-like, PackedMatrix or QuantizedArray
        Packed and quantized operands take equations that :func:`matmul` computes without rearranging an axis, such as
        ``"...mk,kn->...mn"``.
    out_dtype : dtype, optional
        Type of the result, as in :func:`matmul`.
    out : ndarray or tensor, optional
        Where to put the result, of the right shape and of type `out_dtype`. It may overlap an operand.

    Returns
    -------
    ndarray
        The bits of :func:`matmul` on the rearranged operands, whose shared axis holds the summed labels in the order of
        `b`. Where the equation orders the axes otherwise than batch, `a`, `b`, it is a view with permuted axes.

    Raises
    ------
    TypeError
        The types have no product, or integers are summed over an axis that the other operand lacks.
    ValueError
        The equation is not one of two operands, or shapes do not fit.

    Notes
    -----
    A label that only one operand has (or the other with length 1), and the output has not, is summed first; that sum
    and the product are then those of float32 operands.

    Every combination of labels that both operands and the output have costs a product of its own: elementwise products
    and long batches of short vectors are better multiplied by NumPy.

    Examples
    --------
    >>> a, b = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.eye(3, dtype=np.float32)
    >>> einsum("ij,kj->ki", a, b)
    array([[0., 3.],
           [1., 4.],
           [2., 5.]], dtype=float32)
    """
    if not isinstance(equation, str):
        raise TypeError(f"`equation` must be a string; received {type(equation).__name__}")
    out_dtype = None if out_dtype is None else dtypes.parse(out_dtype, "out_dtype")
    held = imported_out(out)
    a, b = imported_all(("a", "b"), a, b, kept=(QuantizedArray, PackedMatrix))
    a = a if isinstance(a, QuantizedArray | PackedMatrix) else asarray(a, "a")
    b = b if isinstance(b, QuantizedArray | PackedMatrix) else asarray(b, "b")
    plan = _plan(equation, a.shape, b.shape)
    if plan is None:
        result = matmul(a, b, out_dtype=out_dtype, out=held)
        return result if out is None else out
    for x, name in ((a, "a"), (b, "b")):
        if not isinstance(x, np.ndarray):
            raise ValueError(
                f"a packed or quantized `{name}` needs an equation like '...mk,kn->...mn', and no axis that is "
                f"broadcast; received {equation!r} for shapes {a.shape} and {b.shape}"
            )
    if plan.a_sum or plan.b_sum:
        promoted = result_type(a.dtype, b.dtype)
        if not is_float(promoted):
            raise TypeError(
                f"`equation` {equation!r} sums an axis that the other operand lacks, or has with length 1, which needs "
                f"float types; received {a.dtype.name} and {b.dtype.name}: sum that axis first"
            )
        out_dtype = promoted if out_dtype is None else out_dtype
        wide = F64 if promoted is F64 else F32
        a, b = _summed(a, plan.a_sum, wide), _summed(b, plan.b_sum, wide)

    target = None
    if held is not None and plan.keeps_order:
        plain = np.asarray(held)
        if plain.shape == plan.shape and plain.flags.c_contiguous:
            target = plain.reshape(plan.matrices)
    product = matmul(_arranged(a, plan.a), _arranged(b, plan.b), out_dtype=out_dtype, out=target)
    result = product.reshape(plan.parts).transpose(plan.axes)
    if held is None:
        return result
    if target is None:
        np.copyto(check_out(held, plan.shape, result.dtype), result)
    return out  # type: ignore[return-value]


class _View(NamedTuple):
    """What makes one array of another: axes in a new order, then a shape in which neighbours are merged."""

    axes: tuple[int, ...]
    shape: tuple[int, ...]


class _Plan(NamedTuple):
    """How an equation becomes a product for operands of certain shapes."""

    a_sum: _View | None  # the labels that only `a` has and the output has not, merged into the last axis
    b_sum: _View | None
    a: _View  # batch, rows, summed
    b: _View  # batch, summed, columns
    matrices: tuple[int, ...]  # the shape of the product
    parts: tuple[int, ...]  # its labels apart again
    axes: tuple[int, ...]  # those in the order of the output
    shape: tuple[int, ...]  # the output

    @property
    def keeps_order(self) -> bool:
        """Whether the product lies in memory as the output does."""
        return self.axes == tuple(sorted(self.axes))


@functools.lru_cache(maxsize=256)
def _plan(equation: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> _Plan | None:
    """Return the plan, or None where the product is :func:`matmul` of the operands as they are."""
    of_a, of_b, of_out = parse(equation, len(a_shape), len(b_shape))
    sizes = _sizes(of_a, of_b, a_shape, b_shape)
    # An axis of length 1 that the other operand stretches might as well not be there.
    in_a = tuple(label for label, n in zip(of_a, a_shape, strict=True) if n == sizes[label])
    in_b = tuple(label for label, n in zip(of_b, b_shape, strict=True) if n == sizes[label])
    if (in_a, in_b) == (of_a, of_b) and _is_matmul(of_a, of_b, of_out):
        return None
    batch = tuple(label for label in of_out if label in in_a and label in in_b)
    rows = tuple(label for label in of_out if label not in in_b)
    columns = tuple(label for label in of_out if label not in in_a)
    summed = tuple(label for label in in_b if label in in_a and label not in of_out)

    def shape(batch: Labels, *groups: Labels) -> tuple[int, ...]:
        return (*(sizes[label] for label in batch), *(math.prod(sizes[label] for label in group) for group in groups))

    def view(labels: Labels, *groups: Labels) -> _View:
        order = sum(groups, ())
        stretched = tuple(label for label in labels if label not in order)
        return _View(tuple(labels.index(label) for label in stretched + order), shape(*groups))

    def alone(labels: Labels, present: Labels, other: Labels) -> tuple[_View | None, Labels]:
        """Return the view to sum over its last axis, if there is one, and the labels that are left."""
        kept = tuple(label for label in present if label in other or label in of_out)
        extra = tuple(label for label in present if label not in kept)
        return (view(labels, kept, extra), kept) if extra else (None, labels)

    a_sum, of_a = alone(of_a, in_a, in_b)
    b_sum, of_b = alone(of_b, in_b, in_a)
    order = batch + rows + columns
    return _Plan(
        a_sum,
        b_sum,
        view(of_a, batch, rows, summed),
        view(of_b, batch, summed, columns),
        shape(batch, rows, columns),
        tuple(sizes[label] for label in order),
        tuple(order.index(label) for label in of_out),
        tuple(sizes[label] for label in of_out),
    )


def _sizes(of_a: Labels, of_b: Labels, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> dict[str, int]:
    """Return the length of each label, that of the longer axis where the other has length 1."""
    sizes = dict(zip(of_a, a_shape, strict=True))
    for label, n in zip(of_b, b_shape, strict=True):
        known = sizes.setdefault(label, n)
        if known == 1:
            sizes[label] = n
        elif n not in (1, known):
            raise ValueError(f"label {label!r} must be as long in `a` as in `b`, or 1; received {known} and {n}")
    return sizes


def _is_matmul(of_a: Labels, of_b: Labels, of_out: Labels) -> bool:
    """Whether it is ``...mk,...kn->...mn``, the ellipsis in both operands or in the first only."""
    return (
        len(of_a) > 1
        and len(of_b) > 1
        and of_a[-1] == of_b[-2]
        and of_b[:-2] in ((), of_a[:-2])
        and of_b[-1] not in of_a
        and of_out == of_a[:-1] + of_b[-1:]
    )


def _arranged(x: Array, view: _View) -> Array:
    """Return `x` so arranged: without a copy if its strides allow that."""
    x = x.transpose(view.axes)
    arranged = x.reshape(view.shape)
    if under_way() is not None and x.size and not np.may_share_memory(arranged, x):
        return copied(x).reshape(view.shape)  # a step of the recording
    return arranged


def _summed(x: Array, view: _View | None, wide: np.dtype[Any]) -> Array:
    """Return `x` in type `wide`, summed in it over the last axis of a view."""
    if view is None:
        return cast(x, wide)
    if x.size == 0:  # the axis that is summed may be longer than memory
        return constant(np.zeros(view.shape[:-1], wide))
    terms = _arranged(x if is_float(x.dtype) and wide is F32 else cast(x, wide), view)
    return matmul(terms, constant(np.ones(view.shape[-1], terms.dtype)), out_dtype=wide)


register(Row("Matmul", matmul, specs.matrix_product, ("a", "b")), multiply_any)
