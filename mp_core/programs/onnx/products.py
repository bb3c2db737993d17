"""Matrix products of ONNX."""

from typing import Any

from mp_core import ops
from mp_core.programs.registry import operator

__all__: list[str] = []


@operator("MatMul")
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
    scaled = product if alpha == 1 else ops.multiply(product, product.dtype.type(alpha))
    return scaled if c is None else ops.add(scaled, c if beta == 1 else ops.multiply(c, c.dtype.type(beta)))


@operator("Einsum")
def einsum(*arrays: Any, equation: str) -> Any:
    """Return the sums of products that an equation states."""
    return ops.einsum(equation.replace(" ", ""), *arrays)
