"""Matrix products of ONNX."""

from typing import Any

from mp_core import ops
from mp_core.programs.registry import operator


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
