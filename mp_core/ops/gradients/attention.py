"""Gradient rules of attention."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core.arrays import F32, F64, FORMATS, Array, cast, contiguous
from mp_core.arrays.recorded import recordable
from mp_core.core import attention as _attention
from mp_core.core.convert import empty, filled
from mp_core.ops.attention import (
    Attended,
    attended,
    attended_ragged,
    capped_scores,
    dot_product_attention,
    ragged_attention,
    ragged_settings,
    weight_dropout,
    weights_of,
)  # fmt: skip
from mp_core.ops.gradients.registry import gradient_of

__all__ = ["attention_gradients", "ragged_attention_gradients"]


@recordable
def attention_gradients(d: Array, *arguments: Any, of_bias: bool = False) -> tuple[Array, ...]:
    """Return the gradients of query, key and value of attention, or the gradient of the bias.

    Parameters
    ----------
    d : ndarray
        The gradient of the result.
    *arguments : any
        The arguments of :func:`mp_core.ops.dot_product_attention`, at least the first eight.
    of_bias : bool
        Return the gradient of the bias instead of the other three.

    Returns
    -------
    tuple of ndarray
        Three arrays of the shapes of the operands, in their common type. With `of_bias` one float32 array of shape (n
        or 1, heads or 1, targets, sources): summed over an axis where the bias has length 1.

    Examples
    --------
    >>> x = np.eye(2, dtype=np.float32)[np.newaxis, :, np.newaxis]
    >>> _, _, value = attention_gradients(np.ones_like(x), x, x, x, None, None, 0.0, False, None)
    >>> value[0, :, 0]
    array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    a = attended(*arguments)
    if not a.runs_in_c:
        return _by_parts(d, a, of_bias)
    q = a.operands[0]
    d = contiguous(d if d.dtype is q.dtype else cast(d, q.dtype))
    if of_bias:
        out: tuple[Array, ...] = (filled(_shape_of_bias(arguments[3], a.shape), F32, 0.0),)
    else:
        out = tuple(empty(x.shape, q.dtype) for x in a.operands)
    _attention.attention_gradient(FORMATS[q.dtype], (*a.operands, d), out, *a.settings())
    return out


def _shape_of_bias(bias: Any, scores: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the gradient of a bias, not yet summed over targets and sources."""
    kept = (1,) * (4 - np.ndim(bias)) + np.shape(bias)
    return (*(length if own > 1 else 1 for own, length in zip(kept[:2], scores[:2], strict=True)), *scores[2:])


def _by_parts(d: Array, a: Attended, of_bias: bool) -> tuple[Array, ...]:
    """Return the gradients from the full matrix of scores: for float64, and for arrays without elements."""
    q, k, v = (np.asarray(x, F64).transpose(0, 2, 1, 3) for x in a.operands)
    n, shared, sharing = q.shape[0], k.shape[1], q.shape[1] // max(k.shape[1], 1)
    weights = np.asarray(weights_of(a), F64)
    upstream = np.asarray(d, F64).transpose(0, 2, 1, 3)
    of_weights = upstream @ np.repeat(v, sharing, axis=1).swapaxes(2, 3)
    of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdims=True))
    if of_bias:
        return (of_scores,)
    scaled = of_scores * a.scale
    if a.softcap:
        scaled *= 1 - np.square(np.asarray(capped_scores(a), F64))

    def of_shared(x: Array) -> Array:
        return np.sum(x.reshape(n, shared, sharing, *x.shape[2:]), axis=2)  # type: ignore[no-any-return]

    found = (
        scaled @ np.repeat(k, sharing, axis=1), of_shared(scaled.swapaxes(2, 3) @ q),
        of_shared(weights.swapaxes(2, 3) @ upstream),
    )  # fmt: skip
    return tuple(contiguous(cast(x.transpose(0, 2, 1, 3), a.operands[0].dtype)) for x in found)


def _rule(gradients: Callable[..., tuple[Array, ...]], *arguments: Any) -> dict[str, Any]:
    """Return the rule: query, key and value share one computation, and the bias has its own."""
    found = functools.cache(lambda: gradients(*arguments))
    return {
        "query": lambda dtype: cast(found()[0], dtype),
        "key": lambda dtype: cast(found()[1], dtype),
        "value": lambda dtype: cast(found()[2], dtype),
        "bias": lambda dtype: cast(gradients(*arguments, of_bias=True)[0], dtype),
    }


@gradient_of(dot_product_attention)
def _(
    d: Array, out: Array, query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None,
    scale: Any = None, is_causal: Any = False, reach: Any = None, softcap: Any = None,
) -> dict[str, Any]:  # fmt: skip
    return _rule(attention_gradients, d, query, key, value, bias, mask, scale, is_causal, reach, softcap)


@recordable
def ragged_attention_gradients(
    d: Array, query: Array, key: Array, value: Array, offsets: Array, bias: Array | None, scale: float | None,
    reach: int | None, is_causal: bool, dropout: float = 0.0, random_key: Array | None = None,
    softcap: float | None = None, of_bias: bool = False,
) -> tuple[Array, ...]:  # fmt: skip
    """Return the gradients of query, key and value of ragged attention, or the gradient of the bias.

    Parameters
    ----------
    d : ndarray
        The gradient of the result.
    query, key, value, offsets, bias, scale, reach, is_causal, dropout, random_key, softcap
        The arguments of :func:`mp_core.ops.ragged_attention`.
    of_bias : bool
        Return the gradient of the bias instead of the other three.

    Returns
    -------
    tuple of ndarray
        Three arrays of the shapes and type of the operands, with zeros in rows that belong to no sequence. With
        `of_bias` one float32 array of the shape of the bias, summed over the sequences.

    Examples
    --------
    >>> x, offsets = np.eye(2, dtype=np.float32)[:, np.newaxis], np.array([0, 1, 2], np.int32)
    >>> ragged_attention_gradients(x, x, x, x, offsets, None, None, None, False)[2][:, 0]
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    longest, added = attended_ragged(query, key, value, offsets, bias)
    empties = query.size == 0 or longest == 0
    shapes = [added.shape] if of_bias and added is not None else [query.shape, key.shape, value.shape]
    make = filled if of_bias or empties else empty
    out = tuple(make(shape, F32 if of_bias else query.dtype, *((0.0,) if make is filled else ())) for shape in shapes)
    if not empties:
        how = ragged_settings(query, longest, added, scale, reach, is_causal, softcap)
        operands = query, key, value, contiguous(d)
        ragged = contiguous(offsets), weight_dropout(dropout, random_key), None
        _attention.attention_gradient(FORMATS[query.dtype], operands, out, *how, ragged)
    return out


@gradient_of(ragged_attention)
def _(
    d: Array, out: Array, query: Array, key: Array, value: Array, offsets: Array, bias: Any = None,
    scale: Any = None, reach: Any = None, is_causal: Any = False, dropout: Any = 0.0, random_key: Any = None,
    softcap: Any = None,
) -> dict[str, Any]:  # fmt: skip
    arguments = (query, key, value, offsets, bias, scale, reach, is_causal, dropout, random_key, softcap)
    return _rule(ragged_attention_gradients, d, *arguments)
