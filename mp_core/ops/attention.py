"""Multi-head attention, of batches and of ragged sequences."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, F64, FORMATS, Array, as_float, as_mask, cast, contiguous, imported_all
from mp_core.arrays.dtypes import ALLOWED, result_type
from mp_core.arrays.products.matmul import matmul
from mp_core.arrays.recorded import Offsets, constant, note_offsets, recordable
from mp_core.arrays.stochastic import checked_key
from mp_core.core import attention as _attention
from mp_core.core.convert import copied
from mp_core.ops import specs
from mp_core.ops.activations import tanh
from mp_core.ops.registry import operation
from mp_core.ops.rows import checked_scale, softmax
from mp_core.utilities.arguments import boolean, integer, kind_of, number, share

__all__ = ["RAGGED", "checked_offsets", "dot_product_attention", "ragged_attention"]


@operation(
    specs.attended,
    "query key value bias mask scale",
    {"is_causal": "is_causal", "attn_logits_soft_cap": "softcap"},
    home="nn",
    fixed={"flash_attention": (None, False, True)},
)
@recordable
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    reach: int | None = None,
    softcap: float | None = None,
) -> Array:
    """Return ``softmax(scale * query @ key' + bias) @ value`` for each head. The arguments have Keras' names.

    Except in float64, the full matrix of scores is never stored: each thread computes some rows of one head at a time,
    in its cache.

    Parameters
    ----------
    query : array-like, shape (n, targets, heads, size)
        Float; integers become float32.
    key : array-like, shape (n, sources, key heads, size)
        `key heads` must divide `heads`; each group of ``heads / key heads`` neighbouring query heads shares one key and
        value head.
    value : array-like, shape (n, sources, key heads, value size)
    bias : array-like of float, optional
        Broadcastable to (n, heads, targets, sources); added to the scaled scores in float32.
    mask : array-like of bool or integers 0 and 1, optional
        Broadcastable to the same shape; True where a target may attend to a source.
    scale : float, optional
        Default: ``1 / sqrt(size)``.
    is_causal : bool
        Whether a target attends only to sources up to its own position.
    reach : int, optional
        Near attention: a target attends only to sources at most `reach` positions away, in time linear in the length.
        The numbers of targets and sources must be equal.
    softcap : float, optional
        A number c from 2**-64 to 2**64, not together with a bias: the scaled scores become ``c * tanh(scores / c)``, as
        in Gemma 2 (arXiv:2408.00118).

    Returns
    -------
    ndarray, shape (n, targets, heads, value size)
        In the common type of `query`, `key` and `value`; float8 types give float32. A target that may attend to nothing
        gets zeros.

    Raises
    ------
    ValueError
        The shapes do not fit, or `mask` has numbers other than 0 and 1.

    Notes
    -----
    Scores and softmax are computed in float32, sums included. The softmax is rounded to the type of `value` before the
    product with `value`, and the result is rounded once more. float64 is computed in float64. The numerics page states
    the order of operations. The bits depend on neither batch size, threads nor instruction set.

    Examples
    --------
    >>> x = np.eye(2, dtype=np.float32)[np.newaxis, :, np.newaxis]
    >>> dot_product_attention(x, x, x, is_causal=True)[0, :, 0].round(2)
    array([[1.  , 0.  ],
           [0.33, 0.67]], dtype=float32)
    """
    a = attended(query, key, value, bias, mask, scale, is_causal, reach, softcap)
    q, _, v = a.operands
    if not a.runs_in_c:
        return _by_parts(a)
    out = np.empty((*q.shape[:3], v.shape[3]), q.dtype)
    _attention.attention(FORMATS[q.dtype], a.operands, out, *a.settings())
    return out


class Attended(NamedTuple):
    """The checked arguments of attention."""

    operands: tuple[Array, Array, Array]  # Query, key and value, in one float type.
    shape: tuple[int, int, int, int]  # The shape of the scores: (n, heads, targets, sources).
    scale: float
    reach: tuple[int, int]  # How many positions a target attends to before and after its own, as the kernels take it.
    # `keep`, `bias`: Mask and bias, broadcastable to the scores, with the full length of the sources. If no kernel is
    # used, `keep` includes the reach.
    keep: Array | None
    bias: Array | None
    runs_in_c: bool  # Whether kernels compute it. They do not in float64, or if there are no elements.
    softcap: float  # 0 if scores are not capped.

    def settings(self) -> tuple[tuple[float, float], tuple[int, int], Array | None, tuple[Array, Array] | None]:
        """Return the arguments of the kernels after operands and result."""
        return (self.scale, self.softcap), self.reach, self.keep, self.scaled_bias()

    def scaled_bias(self) -> tuple[Array, Array] | None:
        """Return the bias as the kernels take it, and the scale of the scores for each source."""
        if self.bias is None:
            return None
        return np.broadcast_to(_rows_of_bias(self.bias), self.shape), constant(np.full(self.shape[3], self.scale, F32))


def attended(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    mask: Any,
    scale: Any,
    is_causal: Any,
    reach: Any,
    softcap: Any = None,
) -> Attended:
    """Check and cast the arguments of :func:`dot_product_attention`; raise its errors."""
    given, causal = None if scale is None else number(scale, "scale"), boolean(is_causal, "is_causal")
    names = ("query", "key", "value", "bias", "mask")
    query, key, value, bias, mask = imported_all(names, query, key, value, bias, mask)
    q, k, v = (as_float(x, name) for x, name in zip((query, key, value), names, strict=False))
    shape = _scores_shape(q, k, v)
    common = result_type(result_type(q.dtype, k.dtype), v.dtype)
    common = F32 if common.itemsize == 1 else common
    q, k, v = (x if x.dtype is common else cast(x, common) for x in (q, k, v))
    factor = checked_scale(1 / math.sqrt(max(q.shape[3], 1)) if given is None else given, common is F64)
    added = None if bias is None else _each_score(as_float(bias, "bias"), shape, "bias")
    keep = None if mask is None else _each_score(as_mask(mask), shape, "mask")
    near = _reach(reach, shape)
    after, by_parts = near, common is F64 or 0 in (*shape, q.shape[3], v.shape[3])
    if causal and keep is not None and shape[2] == shape[3] and not by_parts:
        after = 0  # the kernel combines both masks; in a plan NumPy could not, since plans cannot repeat NumPy calls
    elif causal:
        before = constant(np.tri(*shape[2:], dtype=bool))
        keep = before if keep is None else keep & before
    if by_parts:
        if near < shape[3] - 1:
            band = np.abs(np.arange(shape[2])[:, np.newaxis] - np.arange(shape[3])) <= near
            keep = band if keep is None else keep & band
    elif keep is not None:
        keep = np.broadcast_to(contiguous(keep), shape)
    cap = checked_softcap(softcap, added)
    return Attended((q, k, v), shape, factor, (near, after), keep, added, not by_parts, cap)


def checked_softcap(softcap: Any, bias: Array | None) -> float:
    """Return the cap of the scores, 0 for None; raise ValueError if it is out of range or given with a bias."""
    if softcap is None:
        return 0.0
    cap = number(softcap, "softcap")
    if not 2.0**-64 <= cap <= 2.0**64:
        raise ValueError(f"`softcap` must be a positive number, from 2**-64 to 2**64; received {softcap}")
    if bias is not None:
        raise ValueError("`softcap` and `bias` cannot be combined: give one of them")
    return cap


@recordable
def ragged_attention(
    query: Array,
    key: Array,
    value: Array,
    offsets: Array,
    bias: Array | None = None,
    scale: float | None = None,
    reach: int | None = None,
    is_causal: bool = False,
    dropout: float = 0.0,
    random_key: Array | None = None,
    softcap: float | None = None,
) -> Array:
    """Return the attention among the tokens of each of several sequences, without padding.

    Without dropout the result equals :func:`dot_product_attention` of each sequence alone, bit for bit.

    Parameters
    ----------
    query : ndarray, shape (tokens, heads, size)
        float32, float16 or bfloat16: the tokens of all sequences, one sequence after the other.
    key, value : ndarray, shape (tokens, key heads, size)
        Of the type of `query`; `key heads` must divide `heads`.
    offsets : ndarray of int32, shape (sequences + 1,)
        The first token of each sequence, then the end of the last one; ascending, from 0 to at most `tokens`.
    bias : ndarray of float32, shape (1, heads, length, length), optional
        Added to the scaled scores; `length` is at least the length of the longest sequence.
    scale : float, optional
        Default: ``1 / sqrt(size)``.
    reach, is_causal
        As in :func:`dot_product_attention`. Causal attention skips masked scores in blocks of 128 rows.
    dropout : float
        The share of attention weights (the softmax of the scores) that is set to 0, from 0 to below 1. The others are
        multiplied by ``1 / (1 - dropout)`` in float32, before they are rounded.
    random_key : ndarray of uint32, shape (2,), optional
        (seed, draw), needed for `dropout`; a plan reads it when it runs. The weight of the query in row r, head h and
        token i of its sequence is kept if ``(word >> 11) * 2**-53 >= dropout``, where `word` is word ``i % 4`` of the
        Philox4x64-10 block of this key with the counter ``(i // 4 + 1, h, r, 2)``. So it does not depend on threads.
    softcap : float, optional
        As in :func:`dot_product_attention`.

    Returns
    -------
    ndarray, shape (tokens, heads, size)
        Rows after the last sequence are not set.

    Raises
    ------
    ValueError
        The shapes do not fit, or `offsets` do not ascend within the tokens.

    Examples
    --------
    >>> x = np.eye(3, dtype=np.float32)[:, np.newaxis]
    >>> ragged_attention(x, x, x, np.array([0, 1, 3], np.int32))[:, 0].round(2)
    array([[1.  , 0.  , 0.  ],
           [0.  , 0.64, 0.36],
           [0.  , 0.36, 0.64]], dtype=float32)
    """
    longest, bias = attended_ragged(query, key, value, offsets, bias)
    out = np.empty(query.shape, query.dtype)
    if out.size == 0 or longest == 0:
        return out
    how = ragged_settings(query, longest, bias, scale, reach, boolean(is_causal, "is_causal"), softcap)
    ragged = contiguous(offsets), weight_dropout(dropout, random_key), None
    _attention.attention(FORMATS[query.dtype], (query, key, value), out, *how, ragged)
    return out


def weight_dropout(rate: float, random_key: Array | None) -> tuple[Array, float] | None:
    """Return (key, rate) of the dropout of weights, as kernels take it; None if the rate is 0."""
    rate = share(rate, "dropout")
    if rate == 1:
        raise ValueError("`dropout` must be below 1: without any weight there is no attention")
    return (checked_key(random_key, "random_key"), rate) if rate else None


def attended_ragged(query: Any, key: Any, value: Any, offsets: Any, bias: Any) -> tuple[int, Array | None]:
    """Check the arrays of :func:`ragged_attention`; return the length of the longest sequence, and the bias."""
    kinds = [kind_of(x) for x in (query, key, value)]
    if kinds[0] not in RAGGED or {*kinds} != {kinds[0]}:
        types = "{}, {} and {}".format(*kinds)
        raise TypeError(f"`query`, `key` and `value` must all be float32, float16 or bfloat16; received {types}")
    _check_ragged(query, key, value)
    longest = checked_offsets(offsets, len(query))
    heads = query.shape[1]
    bias = None if bias is None else as_float(bias, "bias")
    if bias is not None and (bias.ndim != 4 or bias.shape[:2] != (1, heads) or min(bias.shape[2:]) < longest):
        raise ValueError(f"`bias` must have shape (1, {heads}, at least {longest}, the same); received {bias.shape}")
    if bias is not None:
        note_offsets(offsets, len(query), longest=min(bias.shape[2:]))
    return longest, bias


def ragged_settings(
    query: Array,
    longest: int,
    bias: Array | None,
    scale: float | None,
    reach: int | None,
    is_causal: bool,
    softcap: float | None,
) -> tuple[tuple[float, float], tuple[int, int], None, tuple[Array, Array] | None]:
    """Return (scale, cap), reach, mask and bias for ragged sequences, as kernels take them."""
    heads, size = query.shape[1:]
    factor = checked_scale(1 / math.sqrt(size) if scale is None else number(scale, "scale"), False)
    near, scaled = _reach(reach, (1, heads, longest, longest)), None
    if bias is not None:
        scaled = _rows_of_bias(bias), constant(np.full(bias.shape[3], factor, F32))
    return (factor, checked_softcap(softcap, bias)), (near, 0 if is_causal else near), None, scaled


def _rows_of_bias(bias: Array) -> Array:
    """Return a bias as kernels take it: aligned float32 whose last axis is contiguous.

    A bias that depends on distances only is a view whose rows are windows of one vector; it is not copied.
    """
    if bias.dtype is F32 and bias.flags.aligned and bias.shape[-1] > 1 and bias.strides[-1] == F32.itemsize:
        return bias
    return np.require(contiguous(bias if bias.dtype is F32 else cast(bias, F32)), requirements="A")


def _check_ragged(query: Array, key: Array, value: Array) -> None:
    shapes = query.shape, key.shape, value.shape
    fits = query.ndim == key.ndim == 3 and key.shape == value.shape
    fits = fits and (query.shape[0], query.shape[2]) == (key.shape[0], key.shape[2])
    if not fits or (query.shape[1] % key.shape[1] if key.shape[1] else query.shape[1]):
        received = "{}, {} and {}".format(*shapes)
        raise ValueError(
            "`query` must have the shape (tokens, heads, size), `key` and `value` (tokens, key heads, size), where key "
            f"heads divide heads; received {received}"
        )


RAGGED = frozenset(ALLOWED[name] for name in ("float32", "float16", "bfloat16"))
"""The types of the rows of ragged sequences."""


def checked_offsets(offsets: Array, tokens: int, shortest: int = 0, longest: int | None = None) -> int:
    """Check int32 offsets, and return the length of the longest sequence; a plan repeats the check in each run.

    Offsets ascend within the tokens, and a sequence has from `shortest` to `longest` of them.
    """
    if kind_of(offsets) != np.int32:
        raise TypeError(f"`offsets` must be of int32; received {kind_of(offsets)}")
    if offsets.ndim != 1 or offsets.size == 0:
        raise ValueError(f"`offsets` must have one axis and at least one element; received {offsets}")
    Offsets(0, tokens, shortest, longest).check(offsets, tokens)
    note_offsets(offsets, tokens, shortest, longest)
    return int(np.diff(offsets).max(initial=0))


def _reach(reach: int | None, shape: tuple[int, ...]) -> int:
    """Return the checked reach of near attention; a number larger than any sequence for None."""
    if reach is None:
        return _FAR
    reach = integer(reach, "reach")
    if reach < 0:
        raise ValueError(f"`reach` must be at least 0; received {reach}")
    if shape[2] != shape[3]:
        raise ValueError(f"`reach` needs as many sources as targets; received {shape[3]} and {shape[2]}")
    return min(reach, _FAR)


_FAR = 2**31 - 1  # no sequence is longer, since products reject such lengths


def _scores_shape(q: Array, k: Array, v: Array) -> tuple[int, int, int, int]:
    """Return the shape of the scores, (n, heads, targets, sources); raise ValueError if the operands do not fit."""
    for name, x in (("query", q), ("key", k), ("value", v)):
        if x.ndim != 4:
            raise ValueError(f"`{name}` must have shape (n, length, heads, size); received {x.shape}")
    if (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        raise ValueError(f"`query` and `key` must agree in axes 0 and 3; received shapes {q.shape} and {k.shape}")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(f"`key` and `value` must agree in axes 0 to 2; received shapes {k.shape} and {v.shape}")
    heads, shared = q.shape[2], k.shape[2]
    if heads != shared and (shared == 0 or heads % shared):
        raise ValueError(
            f"the number of heads of `key` must divide that of `query`; received shapes {k.shape} and {q.shape}"
        )
    return q.shape[0], heads, q.shape[1], k.shape[1]


def _each_score(x: Array, shape: tuple[int, ...], argument: str) -> Array:
    """Check that `x` broadcasts to the scores, and broadcast it along the sources."""
    try:
        np.broadcast_to(x, shape)
    except ValueError:
        raise ValueError(f"`{argument}` must broadcast to shape {shape}; received {x.shape}") from None
    return np.broadcast_to(x, (*x.shape[:-1], shape[-1]))


def _by_parts(a: Attended) -> Array:
    """Return attention from the full matrix of scores: for float64, and for arrays without elements."""
    q, _, v = a.operands
    v = _repeated(v, q.shape[2] // max(v.shape[2], 1))
    context = matmul(cast(weights_of(a), q.dtype), v.transpose(0, 2, 1, 3))
    return contiguous(context.transpose(0, 2, 1, 3))


def weights_of(a: Attended) -> Array:
    """Return the softmax of all scores, in float64 for float64 operands, else in float32."""
    if a.softcap:
        return softmax(capped_scores(a), scale=a.softcap, mask=a.keep)
    scores = _products(a)
    if a.bias is not None:
        scores = scores * scores.dtype.type(a.scale) + cast(a.bias, scores.dtype)
    return softmax(scores, scale=a.scale if a.bias is None else 1.0, mask=a.keep)


def capped_scores(a: Attended) -> Array:
    """Return ``tanh(scores / cap)`` of all scores."""
    scores = _products(a)
    return tanh(scores * scores.dtype.type(a.scale / a.softcap))


def _products(a: Attended) -> Array:
    q, k, _ = a.operands
    k = _repeated(k, q.shape[2] // max(k.shape[2], 1))
    return matmul(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1), out_dtype=result_type(q.dtype, F32))


def _repeated(x: Array, sharing: int) -> Array:
    """Return keys or values with each head repeated for the query heads that share it."""
    if sharing == 1:
        return x
    n, length, heads, size = x.shape
    each = np.broadcast_to(x[:, :, :, np.newaxis], (n, length, heads, sharing, size))
    return copied(each).reshape(n, length, heads * sharing, size)
