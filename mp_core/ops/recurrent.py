"""Recurrent networks over whole sequences: LSTM, GRU and simple ones. A plan records all steps one after the other.

The formulas and the orders of gates are Keras'. ONNX' and torch's weights are those of Keras with permuted gates.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, F64, Array, cast
from mp_core.arrays.dtypes import result_type
from mp_core.arrays.products.matmul import matmul
from mp_core.arrays.products.packing import pack
from mp_core.arrays.recorded import constant, is_recorded
from mp_core.ops.activations import activate
from mp_core.ops.arrangement import array_of, stack, transpose
from mp_core.ops.comparisons import greater
from mp_core.ops.elementwise import floating
from mp_core.ops.functions import where
from mp_core.ops.pairs import add, gate, multiply, subtract
from mp_core.utilities.arguments import boolean
from mp_core.utilities.docstrings import documented

__all__ = ["applied", "gated", "gru", "lstm", "lstm_step", "simple_rnn"]

Function = str | Callable[[Array], Array]
"""An activation: a name of :func:`mp_core.matmul`'s, or a function."""

_SEQUENCES = documented(
    """
    Parameters
    ----------
    x : array-like, shape (batch, steps, features)
        Floats; integers become float32. States have its type.
    kernel : array-like, shape (features, gates * units)
    recurrent_kernel : array-like, shape (units, gates * units)
    bias : array-like, shape (gates * units,), optional
    state : array-like, shape (batch, units), optional
        The state before the first step. Default: zeros.
    lengths : array-like of int, shape (batch,), optional
        How many steps of each sequence count. After them the outputs are 0, and the states stay.
    reverse : bool
        Whether to begin with the last step. Outputs have the order of the steps in any case.
    activations : sequence of (str or callable)
        Names are those of the activations of :func:`mp_core.matmul`.

    Raises
    ------
    ValueError
        The shapes do not fit, or `x` has no steps.
    """
)


@_SEQUENCES
def lstm(
    x: ArrayLike,
    kernel: ArrayLike,
    recurrent_kernel: ArrayLike,
    bias: ArrayLike | None = None,
    state: ArrayLike | None = None,
    cell: ArrayLike | None = None,
    *,
    lengths: ArrayLike | None = None,
    reverse: bool = False,
    activations: Sequence[Function] = ("sigmoid", "tanh", "tanh"),
    peepholes: Sequence[ArrayLike] | None = None,
) -> tuple[Array, Array, Array]:
    """Compute long short-term memory over sequences: the outputs, and the last two states.

    With s, a, b the activations::

        i, f, g, o = split(x @ kernel + bias + h @ recurrent_kernel)
        c = s(f + p_f * c) * c + s(i + p_i * c) * a(g)
        h = s(o + p_o * c) * b(c)

    Parameters
    ----------
    cell : array-like, shape (batch, units), optional
        The state c before the first step. Default: zeros.
    peepholes : sequence of three array-like, shape (units,), optional
        The vectors p_i, p_f and p_o. Default: 0.

    Returns
    -------
    outputs : ndarray, shape (batch, steps, units)
    state, cell : ndarray, shape (batch, units)

    Examples
    --------
    >>> x = np.ones((2, 5, 3), np.float32)
    >>> outputs, state, cell = lstm(x, np.ones((3, 16), np.float32), np.ones((4, 16), np.float32))
    >>> outputs.shape, bool((outputs[:, -1] == state).all()), cell.shape
    ((2, 5, 4), True, (2, 4))
    """
    s = _sequence(x, kernel, recurrent_kernel, bias, 4)
    matrix = _packed(s.recurrent)
    vectors = None if peepholes is None else [_vector(p, "peepholes", s.units, s.parts.dtype) for p in peepholes]
    before = [_state(given, name, s) for given, name in ((state, "state"), (cell, "cell"))]

    def step(part: Array, states: list[Array]) -> list[Array]:
        z = matmul(states[0], matrix, out_dtype=part.dtype, residual=part)
        return lstm_step(z, states[1], activations, vectors)

    outputs, (state, cell) = _over_time(s, before, step, lengths, reverse)
    return outputs, state, cell


def lstm_step(
    z: Array, c: Array, activations: Sequence[Function], peepholes: Sequence[Array] | None = None
) -> list[Array]:
    """Return h and c of one step of :func:`lstm` from the sums of its products.

    Examples
    --------
    >>> lstm_step(np.zeros((1, 4), np.float32), np.ones((1, 1), np.float32), ("sigmoid", "tanh", "tanh"))[1]
    array([[0.5]], dtype=float32)
    """
    units = c.shape[-1]
    i, f, g, o = (z[:, n * units : (n + 1) * units] for n in range(4))
    if peepholes is not None:
        i, f = add(i, multiply(peepholes[0], c)), add(f, multiply(peepholes[1], c))
    c = add(gated(activations[0], f, c), gated(activations[0], i, applied(activations[1], g)))
    if peepholes is not None:
        o = add(o, multiply(peepholes[2], c))
    return [gated(activations[0], o, applied(activations[2], c)), c]


@_SEQUENCES
def gru(
    x: ArrayLike,
    kernel: ArrayLike,
    recurrent_kernel: ArrayLike,
    bias: ArrayLike | None = None,
    state: ArrayLike | None = None,
    *,
    recurrent_bias: ArrayLike | None = None,
    reset_after: bool = True,
    lengths: ArrayLike | None = None,
    reverse: bool = False,
    activations: Sequence[Function] = ("sigmoid", "tanh"),
) -> tuple[Array, Array]:
    """Compute gated recurrent units over sequences: the outputs, and the last state.

    With s and a the activations::

        p_z, p_r, p_n = split(x @ kernel + bias)
        q_z, q_r, q_n = split(h @ recurrent_kernel + recurrent_bias)
        z, r = s(p_z + q_z), s(p_r + q_r)
        h = z * h + (1 - z) * a(p_n + r * q_n)

    Parameters
    ----------
    recurrent_bias : array-like, shape (3 * units,), optional
    reset_after : bool
        Whether r multiplies q_n, as above. Otherwise r multiplies h before that product, to which the last part of
        `recurrent_bias` is added. It is ONNX's `linear_before_reset`.

    Returns
    -------
    outputs : ndarray, shape (batch, steps, units)
    state : ndarray, shape (batch, units)

    Examples
    --------
    >>> x = np.ones((2, 5, 3), np.float32)
    >>> outputs, state = gru(x, np.ones((3, 12), np.float32), np.ones((4, 12), np.float32))
    >>> outputs.shape, state.shape
    ((2, 5, 4), (2, 4))
    """
    s = _sequence(x, kernel, recurrent_kernel, bias, 3)
    extra = None if recurrent_bias is None else _vector(recurrent_bias, "recurrent_bias", 3 * s.units, s.parts.dtype)
    step = (_step_with_reset_after if reset_after else _step_with_reset_before)(s, extra, *activations)
    outputs, (state,) = _over_time(s, [_state(state, "state", s)], step, lengths, reverse)
    return outputs, state


def _step_with_reset_after(s: "_Sequence", bias: Array | None, gate_function: Function, function: Function) -> "_Step":
    matrix, n = _packed(s.recurrent), s.units

    def step(part: Array, states: list[Array]) -> list[Array]:
        q = matmul(states[0], matrix, out_dtype=part.dtype, bias=bias)
        sums = add(part[:, : 2 * n], q[:, : 2 * n])
        new = add(part[:, 2 * n :], gated(gate_function, sums[:, n:], q[:, 2 * n :]))
        return [_between(applied(gate_function, sums[:, :n]), states[0], applied(function, new))]

    return step


def _step_with_reset_before(s: "_Sequence", bias: Array | None, gate_function: Function, function: Function) -> "_Step":
    n = s.units
    gates, last = (_packed(s.recurrent[:, part]) for part in (slice(2 * n), slice(2 * n, None)))
    bias_of_gates, bias_of_last = (None, None) if bias is None else (bias[: 2 * n], bias[2 * n :])

    def step(part: Array, states: list[Array]) -> list[Array]:
        h = states[0]
        sums = matmul(h, gates, out_dtype=part.dtype, bias=bias_of_gates, residual=part[:, : 2 * n])
        reset = cast(gated(gate_function, sums[:, n:], h), s.kind)
        new = matmul(reset, last, out_dtype=part.dtype, bias=bias_of_last, residual=part[:, 2 * n :])
        return [_between(applied(gate_function, sums[:, :n]), h, applied(function, new))]

    return step


def _between(z: Array, h: Array, n: Array) -> Array:
    return add(multiply(z, h), multiply(subtract(1.0, z), n))


@_SEQUENCES
def simple_rnn(
    x: ArrayLike,
    kernel: ArrayLike,
    recurrent_kernel: ArrayLike,
    bias: ArrayLike | None = None,
    state: ArrayLike | None = None,
    *,
    lengths: ArrayLike | None = None,
    reverse: bool = False,
    activations: Sequence[Function] = ("tanh",),
) -> tuple[Array, Array]:
    """Compute ``h = activation(x @ kernel + bias + h @ recurrent_kernel)`` over sequences: all h, and the last one.

    Returns
    -------
    outputs : ndarray, shape (batch, steps, units)
    state : ndarray, shape (batch, units)

    Examples
    --------
    >>> x = np.float32([[[1], [2], [3]]])
    >>> simple_rnn(x, np.float32([[1]]), np.float32([[1]]), activations=["relu"])[0].ravel()
    array([1., 3., 6.], dtype=float32)
    """
    s = _sequence(x, kernel, recurrent_kernel, bias, 1)
    matrix = _packed(s.recurrent)

    def step(part: Array, states: list[Array]) -> list[Array]:
        return [applied(activations[0], matmul(states[0], matrix, out_dtype=part.dtype, residual=part))]

    outputs, (state,) = _over_time(s, [_state(state, "state", s)], step, lengths, reverse)
    return outputs, state


def applied(function: Function, x: Array) -> Array:
    """Return an activation of an array.

    Examples
    --------
    >>> applied("relu", np.float32([-1, 1]))
    array([0., 1.], dtype=float32)
    """
    return activate(function, x) if isinstance(function, str) else function(x)


def gated(function: Function, x: Array, y: Array) -> Array:
    """Return an activation of `x` times `y`, rounded once if the activation has a name.

    Examples
    --------
    >>> gated("relu", np.float32([-1, 1]), np.float32([2, 2]))
    array([0., 2.], dtype=float32)
    """
    return gate(x, y, function) if isinstance(function, str) else multiply(function(x), y)


# ---- sequences


class _Sequence(NamedTuple):
    parts: Array  # x @ kernel + bias in float32 or float64, shape (steps, batch, gates * units)
    recurrent: Array  # the recurrent kernel
    units: int
    kind: np.dtype[Any]  # the type of x and of states


_Step = Callable[[Array, list[Array]], list[Array]]
"""A function of a part of :class:`_Sequence` and of states, which returns the new states; the first is the output."""


def _sequence(x: ArrayLike, kernel: ArrayLike, recurrent: ArrayLike, bias: ArrayLike | None, gates: int) -> _Sequence:
    """Check the arguments, and compute the product of the inputs of all steps."""
    array, first, second = floating(array_of(x), F32), array_of(kernel), array_of(recurrent)
    if array.ndim != 3 or array.shape[1] == 0:
        raise ValueError(f"`x` must have shape (batch, steps, features), with steps; received {array.shape}")
    units = second.shape[0] if second.ndim == 2 else 0
    if second.shape != (units, gates * units) or first.shape != (array.shape[2], gates * units):
        raise ValueError(
            f"`kernel` and `recurrent_kernel` must have shapes (features, {gates} * units) and (units, {gates} * "
            f"units); received {first.shape} and {second.shape} for `x` of shape {array.shape}"
        )
    wide = result_type(array.dtype, F32)
    vector = None if bias is None else _vector(bias, "bias", gates * units, wide)
    parts = matmul(transpose(array, (1, 0, 2)), first, out_dtype=wide, bias=vector)
    return _Sequence(parts, second, units, array.dtype)


def _packed(matrix: Array) -> Any:
    """Return a constant packed, since every step multiplies by it. Inputs of a recording and float64 stay arrays."""
    return matrix if is_recorded(matrix) or matrix.dtype == F64 else pack(matrix)


def _vector(given: ArrayLike, name: str, n: int, dtype: np.dtype[Any]) -> Array:
    found = array_of(given)
    if found.shape != (n,):
        raise ValueError(f"`{name}` must have shape {(n,)}; received {found.shape}")
    return cast(found, dtype)


def _state(given: ArrayLike | None, name: str, s: _Sequence) -> Array:
    shape = (s.parts.shape[1], s.units)
    if given is None:
        return constant(np.zeros(shape, s.kind))
    found = array_of(given)
    if found.shape != shape:
        raise ValueError(f"`{name}` must have shape {shape}; received {found.shape}")
    return cast(found, s.kind)


def _over_time(
    s: _Sequence, states: list[Array], step: _Step, lengths: ArrayLike | None, reverse: bool
) -> tuple[Array, list[Array]]:
    """Return the outputs of all steps, and the last states."""
    steps, batch = s.parts.shape[:2]
    counts = None if lengths is None else array_of(lengths)
    if counts is not None and (counts.shape != (batch,) or counts.dtype.kind not in "iu"):
        raise ValueError(f"`lengths` must be integers of shape {(batch,)}; received {counts.dtype} of {counts.shape}")
    outputs: list[Any] = [None] * steps
    for t in reversed(range(steps)) if boolean(reverse, "reverse") else range(steps):
        new = [x if x.dtype == s.kind else cast(x, s.kind) for x in step(s.parts[t], states)]
        if counts is None:
            states, outputs[t] = new, new[0]
        else:
            counts_on = greater(cast(counts, F32), float(t)).reshape(batch, 1)
            states = [where(counts_on, after, before) for after, before in zip(new, states, strict=True)]
            outputs[t] = where(counts_on, new[0], 0.0)
    return stack(outputs, 1), states
