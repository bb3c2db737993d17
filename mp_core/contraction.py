"""Products by einsum equations: axes are put in order, then :func:`mp_core.ops.matmul` multiplies."""

import functools
import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from mp_core.arrays import F32, F64, Array, asarray, cast, check_out
from mp_core.dtypes import is_float, result_type
from mp_core.ops import PackedMatrix, matmul
from mp_core.quantization import QuantizedArray

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
    out : ndarray, optional
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
    a = a if isinstance(a, QuantizedArray) else asarray(a, "a")
    b = b if isinstance(b, QuantizedArray | PackedMatrix) else asarray(b, "b")
    of_a, of_b, of_out = parse(equation, len(a.shape), len(b.shape))
    sizes = _sizes(of_a, of_b, a.shape, b.shape)
    stretched = any(sizes[label] != n for label, n in zip(of_a + of_b, a.shape + b.shape, strict=True))
    if not stretched and _is_matmul(of_a, of_b, of_out):
        return matmul(a, b, out_dtype=out_dtype, out=out)
    for x, name in ((a, "a"), (b, "b")):
        if not isinstance(x, np.ndarray):
            raise ValueError(
                f"a packed or quantized `{name}` needs an equation like '...mk,kn->...mn', and no axis that is "
                f"broadcast; received {equation!r} for shapes {a.shape} and {b.shape}"
            )

    promoted = None
    if stretched:
        a, of_a = _squeezed(a, of_a, sizes)
        b, of_b = _squeezed(b, of_b, sizes)
    if not set(of_a) <= {*of_b, *of_out} or not set(of_b) <= {*of_a, *of_out}:
        promoted = result_type(a.dtype, b.dtype)
        if not is_float(promoted):
            raise TypeError(
                f"`equation` {equation!r} sums an axis that the other operand lacks, or has with length 1, which needs "
                f"float types; received {a.dtype.name} and {b.dtype.name}: sum that axis first"
            )
        wide = F64 if promoted is F64 else F32
        (a, of_a), (b, of_b) = _reduced(a, of_a, of_b + of_out, wide), _reduced(b, of_b, of_a + of_out, wide)
    batch = [label for label in of_out if label in of_a and label in of_b]
    rows = [label for label in of_out if label not in of_b]
    columns = [label for label in of_out if label not in of_a]
    summed = [label for label in of_b if label not in of_out]
    order = (*batch, *rows, *columns)
    shape = tuple(sizes[label] for label in of_out)
    target = None
    if isinstance(out, np.ndarray) and order == of_out and out.shape == shape and out.flags.c_contiguous:
        target = out.reshape(_shape(sizes, batch, rows, columns))
    product = matmul(
        _arranged(a, of_a, sizes, batch, rows, summed),
        _arranged(b, of_b, sizes, batch, summed, columns),
        out_dtype=promoted if out_dtype is None else out_dtype,
        out=target,
    )
    result = product.reshape([sizes[label] for label in order]).transpose([order.index(label) for label in of_out])
    if out is None:
        return result
    if target is None:
        np.copyto(check_out(out, shape, result.dtype), result)
    return out


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


def _squeezed(x: Array, labels: Labels, sizes: dict[str, int]) -> tuple[Array, Labels]:
    """Return `x` without the axes of length 1 that another operand stretches."""
    axes = tuple(i for i, label in enumerate(labels) if x.shape[i] != sizes[label])
    return x.squeeze(axes), tuple(label for i, label in enumerate(labels) if i not in axes)


def _reduced(x: Array, labels: Labels, needed: Labels, wide: np.dtype[Any]) -> tuple[Array, Labels]:
    """Return `x` in type `wide`, summed in it over the labels that are not needed."""
    kept = tuple(label for label in labels if label in needed)
    if kept == labels:
        return cast(x, wide), labels
    x = x if is_float(x.dtype) else cast(x, wide)
    sizes = dict(zip(labels, x.shape, strict=True))
    terms = _arranged(x, labels, sizes, kept, [label for label in labels if label not in needed])
    return matmul(terms, np.ones(terms.shape[-1:], x.dtype), out_dtype=wide), kept


def _arranged(x: Array, labels: Labels, sizes: dict[str, int], batch: Iterable[str], *groups: list[str]) -> Array:
    """Return `x` with the axes of `batch`, then one for each group of labels: a view if its strides allow one."""
    order = [*batch, *(label for group in groups for label in group)]
    return x.transpose([labels.index(label) for label in order]).reshape(_shape(sizes, batch, *groups))


def _shape(sizes: dict[str, int], batch: Iterable[str], *groups: list[str]) -> tuple[int, ...]:
    return (*(sizes[label] for label in batch), *(math.prod(sizes[label] for label in group) for group in groups))
