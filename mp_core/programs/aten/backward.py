"""Gradients that torch's backward graphs compute."""

from typing import Any, Literal

from mp_core import ops
from mp_core.programs.aten.products import scores_of
from mp_core.programs.registry import operator

__all__: list[str] = []


@operator("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def attention_gradients(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    dropout_p: Literal[0.0],
    is_causal: bool,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """Return the gradients of query, key and value."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = scores_of(query, key, is_causal, attn_mask, scale)
    shares = ops.exp(ops.subtract(scores, ops.expand_dims(logsumexp, -1)))
    of_shares = ops.matmul(grad_out, ops.swapaxes(value, -1, -2))
    total = ops.sum(ops.multiply(grad_out, out), -1, keepdims=True)
    of_scores = ops.multiply(ops.multiply(shares, ops.subtract(of_shares, total)), factor)
    return [
        ops.matmul(of_scores, key),
        ops.matmul(ops.swapaxes(of_scores, -1, -2), query),
        ops.matmul(ops.swapaxes(shares, -1, -2), grad_out),
    ]
