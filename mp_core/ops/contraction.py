"""Einsum: arrange the axes of the operands, then multiply by :func:`mp_core.ops.matmul`."""

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
from mp_core.arrays.recorded import constant, current_recording, recordable
from mp_core.core.convert import copied
from mp_core.ops import specs
from mp_core.ops.registry import Row, operation, register

__all__ = ["Equation", "Labels", "einsum", "parse"]

Labels = tuple[str, ...]

_TERM = r"[A-Za-z]*(?:\.\.\.)?[A-Za-z]*"


class Equation(NamedTuple):
    """The labels of the axes in ``a,b->out``. The axes of an ellipsis are ``...0``, ``...1``, from the last one on."""

    a: Labels
    b: Labels
    out: Labels


@functools.lru_cache(maxsize=256)
def parse(equation: str, a_axes: int, b_axes: int | None = None) -> Equation:
    """Parse an equation for operands with these numbers of axes; ``b_axes=None``: as many as `b` has labels."""
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
            raise ValueError(f"the output of `equation` must have labels of operands, each once; received {equation!r}")
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
    """Return the shape and dtype of the result of :func:`einsum`."""
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
    """Return the einsum of two operands, accumulated in float32 and rounded once.

    Parameters
    ----------
    equation : str
        As for :func:`numpy.einsum`, with two operands and no label twice in one operand: ``"bqhd,bkhd->bhqk"``.
        ``...`` stands for axes that broadcast; every axis of length 1 broadcasts too. Without ``->`` the result has the
        axes of the ellipsis, then the labels that occur once, in alphabetical order.
    a : array-like or QuantizedArray
        Of a type that :func:`matmul` multiplies.
    b : array-like, PackedMatrix or QuantizedArray
        A packed or quantized operand needs an equation that :func:`matmul` computes without rearranging an axis, such
        as ``"...mk,kn->...mn"``.
    out_dtype : dtype, optional
        The type of the result, as in :func:`matmul`.
    out : ndarray or tensor, optional
        Where to put the result, of the right shape and of type `out_dtype`. It may overlap an operand.

    Returns
    -------
    ndarray
        The bits are those of :func:`matmul` of the rearranged operands, with the summed labels in the order of `b`.
        Unless the output orders its labels as batch, labels of `a`, labels of `b`, the result is a transposed view.

    Raises
    ------
    TypeError
        The types have no product, or integers are summed over an axis that the other operand lacks.

    Notes
    -----
    A label that is in one operand only (or has length 1 in the other one) and not in the output is summed first. That
    sum and the product then use float32 operands.

    Labels in both operands and the output are batch axes, and each batch index is a separate matrix product. So NumPy
    is faster for elementwise products, and for long batches of short vectors.

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
    """How to rearrange an array: a permutation of its axes, then a shape in which neighbouring axes are merged."""

    axes: tuple[int, ...]
    shape: tuple[int, ...]


class _Plan(NamedTuple):
    """How an equation becomes a product for operands of certain shapes."""

    a_sum: _View | None  # labels that are only in `a` are merged into the last axis, which is summed first
    b_sum: _View | None
    a: _View  # to (batch, rows, summed)
    b: _View  # to (batch, summed, columns)
    matrices: tuple[int, ...]  # the shape of the product: (batch, rows, columns)
    parts: tuple[int, ...]  # the same with one axis for each label
    axes: tuple[int, ...]  # the permutation from those to the output
    shape: tuple[int, ...]  # the shape of the output

    @property
    def keeps_order(self) -> bool:
        """Whether the product and the output have the same order in memory."""
        return self.axes == tuple(sorted(self.axes))


@functools.lru_cache(maxsize=256)
def _plan(equation: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> _Plan | None:
    """Return the plan of an equation; None if :func:`matmul` takes the operands as they are."""
    of_a, of_b, of_out = parse(equation, len(a_shape), len(b_shape))
    sizes = _sizes(of_a, of_b, a_shape, b_shape)
    # Drop axes of length 1 that are broadcast against a longer axis of the other operand.
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
        """Return the view whose last axis is summed first, or None, and the labels that remain."""
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
    """Return the length of each label after broadcasting."""
    sizes = dict(zip(of_a, a_shape, strict=True))
    for label, n in zip(of_b, b_shape, strict=True):
        known = sizes.setdefault(label, n)
        if known == 1:
            sizes[label] = n
        elif n not in (1, known):
            raise ValueError(f"label {label!r} must be as long in `a` as in `b`, or 1; received {known} and {n}")
    return sizes


def _is_matmul(of_a: Labels, of_b: Labels, of_out: Labels) -> bool:
    """Return whether the equation is ``...mk,...kn->...mn`` or ``...mk,kn->...mn``."""
    return (
        len(of_a) > 1
        and len(of_b) > 1
        and of_a[-1] == of_b[-2]
        and of_b[:-2] in ((), of_a[:-2])
        and of_b[-1] not in of_a
        and of_out == of_a[:-1] + of_b[-1:]
    )


def _arranged(x: Array, view: _View) -> Array:
    """Rearrange `x`, without a copy if its strides allow that."""
    x = x.transpose(view.axes)
    arranged = x.reshape(view.shape)
    if current_recording() is not None and x.size and not np.may_share_memory(arranged, x):
        return copied(x).reshape(view.shape)  # unlike NumPy's copy, a step that the recording notes
    return arranged


def _summed(x: Array, view: _View | None, wide: np.dtype[Any]) -> Array:
    """Return `x` in type `wide`, summed over the last axis of the view if there is one."""
    if view is None:
        return cast(x, wide)
    if x.size == 0:  # the axis that is summed may be longer than memory
        return constant(np.zeros(view.shape[:-1], wide))
    terms = _arranged(x if is_float(x.dtype) and wide is F32 else cast(x, wide), view)
    return matmul(terms, constant(np.ones(view.shape[-1], terms.dtype)), out_dtype=wide)


register(Row("Matmul", matmul, specs.matrix_product, ("a", "b")), multiply_any)
