"""Matrix products of ONNX."""

from typing import Any

from mp_core import ops
from mp_core.files.program import Node
from mp_core.programs.registry import operator
from mp_core.programs.weights import Call, Constant, dense, is_matrix, weighted


@operator("MatMul")
def matmul(a: Any, b: Any) -> Any:
    """Return the product, as :func:`numpy.matmul` defines it."""
    return ops.matmul(a, b)


@operator("Gemm")
def gemm(
    a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Any:
    """Return ``alpha * a @ b + beta * c``."""
    product = ops.matmul(a.T if transA else a, b.T if transB else b)
    scaled = product if alpha == 1 else product * alpha
    return scaled if c is None else scaled + (c if beta == 1 else c * beta)


@weighted("MatMul")
def dense_of_matmul(node: Node, constant: Constant, **options: Any) -> Call | None:
    """Return the call of a Dense for a product with a constant matrix of shape (k, n)."""
    matrix = constant(node.arguments[1])
    if matrix is None or not is_matrix(matrix):
        return None
    return Call(dense(matrix.T, None, **options), node.arguments[:1])


@weighted("Gemm")
def dense_of_gemm(node: Node, constant: Constant, **options: Any) -> Call | None:
    """Return the call of a Dense for a product with a constant matrix and bias, without other factors."""
    a, b, c = (*node.arguments, None)[:3]
    matrix, bias = constant(b), constant(c)
    given = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0} | dict(node.options)
    if matrix is None or not is_matrix(matrix) or (given["alpha"], given["transA"]) != (1, 0):
        return None
    lines = matrix if given["transB"] else matrix.T
    if (c is not None and (bias is None or bias.size != len(lines))) or given["beta"] != 1:
        return None
    return Call(dense(lines, bias, **options), (a,))
