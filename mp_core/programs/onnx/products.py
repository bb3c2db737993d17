"""Matrix products of ONNX."""

import string
from collections.abc import Sequence
from typing import Any

from mp_core import ops
from mp_core.programs.registry import operator

__all__: list[str] = []


@operator("MatMul", keeps_type=True)
def matmul(a: Any, b: Any) -> Any:
    """Return the product, as :func:`numpy.matmul` defines it."""
    return ops.matmul(a, b)


@operator("Gemm")
def gemm(
    a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Any:
    """Return ``alpha * a @ b + beta * c``."""
    a, b = ops.transpose(a) if transA else a, ops.transpose(b) if transB else b
    if c is not None and alpha == beta == 1 and c.shape == b.shape[1:]:
        return ops.matmul(a, b, bias=c)
    product = ops.matmul(a, b)
    scaled = product if alpha == 1 else ops.multiply(product, alpha)
    return scaled if c is None else ops.add(scaled, c if beta == 1 else ops.multiply(c, beta))


@operator("Einsum")
def einsum(*arrays: Any, equation: str) -> Any:
    """Return the sums of products that an equation states; several operands are multiplied from left to right."""
    terms, result = _terms(equation.replace(" ", ""), [x.ndim for x in arrays])
    (x, *others), (labels, *more) = arrays, terms
    for number, (other, term) in enumerate(zip(others, more, strict=True), 1):
        read_later = {*result, *"".join(more[number:])}
        kept = result if number == len(others) else "".join(dict.fromkeys(c for c in labels + term if c in read_later))
        x, labels = ops.einsum(f"{labels},{term}->{kept}", x, other), kept
    return x if others else _summed(x, labels, result)


def _terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the labels of each operand and of the result; those of an ellipsis are letters that are not used."""
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"`equation` must have {len(ranks)} operands; received {equation!r}")
    free = [c for c in string.ascii_letters if c not in equation]
    counts = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    longest = max((n for term, n in zip(terms, counts, strict=True) if "..." in term), default=0)
    elided = "".join(free[:longest])
    if not arrow:
        letters = left.replace(",", "").replace("...", "")
        result = ("..." if "..." in left else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    expanded = [term.replace("...", elided[longest - n :]) for term, n in zip(terms, counts, strict=True)]
    return expanded, result.replace("...", elided)


def _summed(x: Any, labels: str, result: str) -> Any:
    """Return diagonals for labels that appear twice, sums over labels that the result lacks, and its order of axes."""
    for label in dict.fromkeys(labels):
        if labels.count(label) == 2:
            first, second = labels.index(label), labels.rindex(label)
            pairs = ops.moveaxis(x, (first, second), (-2, -1))
            n = x.shape[first]
            x = ops.reshape(pairs, (*pairs.shape[:-2], n * n))[..., :: n + 1]
            labels = labels.replace(label, "") + label
    axes = tuple(axis for axis, label in enumerate(labels) if label not in result)
    x = ops.cast(ops.sum(x, axes), x.dtype) if axes else x
    kept = [label for label in labels if label in result]
    return ops.transpose(x, [kept.index(label) for label in result])
