"""Matrix products and attention."""

from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.programs.aten.elementwise import cast
from mp_core.programs.registry import operator

__all__: list[str] = []


@operator("aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.mv.default", "aten.dot.default")
def matmul(self: Any, other: Any) -> Any:
    """Return the product of matrices."""
    return ops.matmul(self, other)


@operator("aten.linear.default")
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """Return ``input @ weight.T + bias``."""
    return ops.matmul(input, ops.transpose(weight), bias=bias)


@operator("aten.addmm.default")
def addmm(self: Any, mat1: Any, mat2: Any, beta: float = 1, alpha: float = 1) -> Any:
    """Return ``beta * self + alpha * mat1 @ mat2``."""
    if alpha == 1 and beta == 1 and self.ndim == 1:
        return ops.matmul(mat1, mat2, bias=self)
    product = ops.matmul(mat1, mat2)
    product = product if alpha == 1 else ops.multiply(product, alpha)
    return product if beta == 0 else ops.add(product, self if beta == 1 else ops.multiply(self, beta))


@operator("aten.baddbmm.default")
def baddbmm(self: Any, batch1: Any, batch2: Any, beta: float = 1, alpha: float = 1) -> Any:
    """Return ``beta * self + alpha * batch1 @ batch2``."""
    product = ops.matmul(batch1, batch2)
    product = product if alpha == 1 else ops.multiply(product, alpha)
    return product if beta == 0 else ops.add(product, self if beta == 1 else ops.multiply(self, beta))


@operator("aten.scaled_dot_product_attention.default")
def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Literal[0] = 0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return ``softmax(scale * query @ key.T + attn_mask) @ value`` of arrays (..., heads, length, size)."""
    q, k, v = (ops.swapaxes(ops.reshape(x, (-1, *x.shape[-3:])), 1, 2) for x in (query, key, value))
    is_keep = attn_mask is not None and attn_mask.dtype == np.bool_
    mask = (
        attn_mask if attn_mask is None or attn_mask.ndim <= 4 else ops.reshape(attn_mask, (-1, *attn_mask.shape[-3:]))
    )
    kept, bias = (mask, None) if is_keep else (None, mask)
    found = ops.dot_product_attention(q, k, v, bias=bias, mask=kept, scale=scale, is_causal=is_causal)
    return ops.reshape(ops.swapaxes(found, 1, 2), (*query.shape[:-1], value.shape[-1]))


@operator("aten._scaled_dot_product_flash_attention_for_cpu.default")
def attention_with_sums(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: Literal[0] = 0,
    is_causal: bool = False,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """Return the attention, and the logarithms of the sums of exponentials that the gradient needs."""
    return [
        attention(query, key, value, attn_mask, 0, is_causal, scale),
        lambda: ops.logsumexp(scores_of(query, key, is_causal, attn_mask, scale), axis=-1),
    ]


def scores_of(query: Any, key: Any, is_causal: bool, attn_mask: Any, scale: float | None) -> Any:
    """Return the scaled scores of attention plus the mask, in float32."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    products = ops.matmul(cast(query, "float32"), ops.swapaxes(cast(key, "float32"), -1, -2))
    scores = ops.multiply(products, factor)
    if is_causal:
        keep = np.tri(*scores.shape[-2:], dtype=np.bool_)
        scores = ops.where(np.broadcast_to(keep, scores.shape), scores, -np.inf)
    if attn_mask is None:
        return scores
    return ops.where(attn_mask, scores, -np.inf) if attn_mask.dtype == np.bool_ else ops.add(scores, attn_mask)
