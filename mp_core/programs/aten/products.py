"""Matrix products of torch."""

from typing import Any

from mp_core import ops
from mp_core.files.program import Node
from mp_core.programs.registry import operator
from mp_core.programs.weights import Call, Constant, dense, is_matrix, weighted


@operator("aten.mm.default", "aten.bmm.default", "aten.matmul.default")
def matmul(a: Any, b: Any) -> Any:
    """Return the product of matrices."""
    return ops.matmul(a, b)


@operator("aten.linear.default")
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Return ``x @ weight.T + bias``."""
    return ops.matmul(x, weight.T, bias=bias)


@weighted("aten.linear.default")
def dense_of_linear(node: Node, constant: Constant, **options: Any) -> Call | None:
    """Return the call of a Dense for a product with a constant matrix of shape (n, k)."""
    x, weight, bias = (*node.arguments, None)[:3]
    matrix = constant(weight)
    if matrix is None or not is_matrix(matrix) or (bias is not None and constant(bias) is None):
        return None
    return Call(dense(matrix, constant(bias), **options), (x,))
