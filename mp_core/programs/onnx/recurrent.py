"""Recurrent networks, step by step. The products of the inputs of all steps are one product."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.programs.registry import operator

__all__: list[str] = []

Activation = Literal["Sigmoid", "Tanh", "Relu", "Softsign", "Softplus"]
Direction = Literal["forward", "reverse", "bidirectional"]
Cell = Callable[[Any, tuple[Any, ...], Any, Any], tuple[Any, ...]]
"""``cell(gates of the inputs, states, matrix of the states, biases of the states)`` returns the new states."""

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "Sigmoid": ops.sigmoid, "Tanh": ops.tanh, "Relu": ops.relu, "Softsign": ops.softsign, "Softplus": ops.softplus,
}  # fmt: skip


@operator("LSTM")
def lstm(
    x: Any,
    w: Any,
    r: Any,
    bias: Any = None,
    lengths: Any = None,
    state: Any = None,
    memory: Any = None,
    peephole: Any = None,
    *,
    hidden_size: int,
    direction: Direction = "forward",
    activations: Activation = None,  # type: ignore[assignment]
    clip: float = 0.0,
    input_forget: int = 0,
    layout: int = 0,
) -> Any:
    """Return the outputs of all steps, and the last states and memories of each direction."""
    names = tuple(activations or ("Sigmoid", "Tanh", "Tanh") * len(w))

    def cell_of(number: int) -> Cell:
        f, g, h = (_FUNCTIONS[name] for name in names[3 * number : 3 * number + 3])
        looks = None if peephole is None else ops.split(peephole[number], 3, -1)

        def cell(inputs: Any, states: tuple[Any, ...], matrix: Any, shift: Any) -> tuple[Any, ...]:
            y, c = states
            i, o, forget, new = ops.split(ops.add(inputs, ops.matmul(y, matrix, bias=shift)), 4, -1)
            if looks is not None:
                i, forget = ops.add(i, looks[0] * c), ops.add(forget, looks[2] * c)
            i = f(_clipped(i, clip))
            forget = 1.0 - i if input_forget else f(_clipped(forget, clip))
            c = ops.add(ops.multiply(forget, c), ops.multiply(i, g(_clipped(new, clip))))
            o = o if looks is None else ops.add(o, looks[1] * c)
            return ops.multiply(f(_clipped(o, clip)), h(c)), c

        return cell

    return _network(cell_of, x, w, r, bias, lengths, (state, memory), hidden_size, direction, layout)


@operator("GRU")
def gru(
    x: Any,
    w: Any,
    r: Any,
    bias: Any = None,
    lengths: Any = None,
    state: Any = None,
    *,
    hidden_size: int,
    direction: Direction = "forward",
    activations: Activation = None,  # type: ignore[assignment]
    clip: float = 0.0,
    linear_before_reset: int = 0,
    layout: int = 0,
) -> Any:
    """Return the outputs of all steps, and the last states of each direction."""
    names, size = tuple(activations or ("Sigmoid", "Tanh") * len(w)), hidden_size

    def cell_of(number: int) -> Cell:
        f, g = (_FUNCTIONS[name] for name in names[2 * number : 2 * number + 2])

        def cell(inputs: Any, states: tuple[Any, ...], matrix: Any, shift: Any) -> tuple[Any, ...]:
            (y,) = states
            both = ops.matmul(y, matrix[:, : 2 * size], bias=None if shift is None else shift[: 2 * size])
            z, reset = (f(_clipped(x, clip)) for x in ops.split(ops.add(inputs[..., : 2 * size], both), 2, -1))
            last, added = matrix[:, 2 * size :], None if shift is None else shift[2 * size :]
            if linear_before_reset:
                own = ops.multiply(reset, ops.matmul(y, last, bias=added))
            else:
                own = ops.matmul(ops.multiply(reset, y), last, bias=added)
            new = g(_clipped(ops.add(inputs[..., 2 * size :], own), clip))
            return (ops.add(ops.multiply(1.0 - z, new), ops.multiply(z, y)),)

        return cell

    return _network(cell_of, x, w, r, bias, lengths, (state,), hidden_size, direction, layout)


@operator("RNN")
def rnn(
    x: Any,
    w: Any,
    r: Any,
    bias: Any = None,
    lengths: Any = None,
    state: Any = None,
    *,
    hidden_size: int,
    direction: Direction = "forward",
    activations: Activation = None,  # type: ignore[assignment]
    clip: float = 0.0,
    layout: int = 0,
) -> Any:
    """Return the outputs of all steps, and the last states of each direction."""
    names = tuple(activations or ("Tanh",) * len(w))

    def cell_of(number: int) -> Cell:
        f = _FUNCTIONS[names[number]]
        return lambda inputs, states, matrix, shift: (
            f(_clipped(ops.add(inputs, ops.matmul(states[0], matrix, bias=shift)), clip)),
        )

    return _network(cell_of, x, w, r, bias, lengths, (state,), hidden_size, direction, layout)


def _clipped(x: Any, limit: float) -> Any:
    return ops.clip(x, -limit, limit) if limit else x


def _network(
    cell_of: Callable[[int], Cell], x: Any, w: Any, r: Any, bias: Any, lengths: Any, states: tuple[Any, ...],
    size: int, direction: str, layout: int,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the outputs, shape (steps, directions, batch, size), and the last states, (directions, batch, size)."""
    if layout:
        x, states = ops.swapaxes(x, 0, 1), tuple(None if s is None else ops.swapaxes(s, 0, 1) for s in states)
    outputs, last = [], []
    for number in range(len(w)):
        first = tuple(
            np.zeros((x.shape[1], size), np.float32).astype(x.dtype) if s is None else s[number] for s in states
        )
        of_inputs, of_states = (None, None) if bias is None else (bias[number][: len(bias[number]) // 2],
                                                                  bias[number][len(bias[number]) // 2 :])  # fmt: skip
        gates = ops.matmul(x, ops.transpose(w[number]), bias=of_inputs)
        is_back = direction == "reverse" or number == 1
        found, end = _direction(cell_of(number), gates, first, ops.transpose(r[number]), of_states, lengths, is_back)
        outputs.append(ops.stack(found, 0))
        last.append(end)
    y = ops.stack(outputs, 1)
    ends = tuple(ops.stack([*parts], 0) for parts in zip(*last, strict=True))
    if layout:
        return ops.transpose(y, (2, 0, 1, 3)), *(ops.swapaxes(s, 0, 1) for s in ends)
    return y, *ends


def _direction(
    cell: Cell, gates: Any, states: tuple[Any, ...], matrix: Any, shift: Any, lengths: Any, is_back: bool
) -> tuple[Sequence[Any], tuple[Any, ...]]:
    """Return the outputs of one direction, and its last states; sequences keep their states after their end."""
    outputs, steps = [], range(len(gates))
    for step in reversed(steps) if is_back else steps:
        new = cell(gates[step], states, matrix, shift)
        output = new[0]
        if lengths is not None:
            alive = ops.expand_dims(ops.greater(lengths, step), -1)
            new = tuple(ops.where(alive, a, b) for a, b in zip(new, states, strict=True))
            output = ops.where(alive, output, ops.zeros_like(output))
        states = new
        outputs.append(output)
    return outputs[::-1] if is_back else outputs, states
