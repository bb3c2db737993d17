"""Recurrent networks. ONNX has a direction at the first axis of weights and states, and other orders of gates."""

from collections.abc import Callable
from typing import Any, Literal

from mp_core import ops
from mp_core.programs.registry import operator

__all__: list[str] = []

Activation = Literal["Sigmoid", "Tanh", "Relu", "Softsign", "Softplus"]
Direction = Literal["forward", "reverse", "bidirectional"]
_NAMES = {"Sigmoid": "sigmoid", "Tanh": "tanh", "Relu": "relu", "Softplus": "softplus"}


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
    hidden_size: int = 0,
    direction: Direction = "forward",
    activations: Activation | None = None,
    clip: float = 0.0,
    input_forget: Literal[0] = 0,
    layout: Literal[0, 1] = 0,
) -> Any:
    """Return the outputs of all steps, and the last states and memories of each direction."""
    del hidden_size, input_forget
    functions = _functions(activations or ("Sigmoid", "Tanh", "Tanh") * len(w), clip, 3)

    def network(number: int, x: Any, is_back: bool) -> Any:
        kernel, recurrent = (ops.transpose(_arranged(part[number], (0, 2, 3, 1))) for part in (w, r))
        looks = None if peephole is None else [ops.split(peephole[number], 3, -1)[i] for i in (0, 2, 1)]
        offset = None if bias is None else _arranged(ops.add(*ops.split(bias[number], 2, -1)), (0, 2, 3, 1))
        states = (_of_direction(s, number, layout) for s in (state, memory))
        return ops.lstm(
            x, kernel, recurrent, offset, *states, lengths=lengths, reverse=is_back, activations=functions[number],
            peepholes=looks,
        )  # fmt: skip

    return _network(network, x, direction, len(w), layout)


@operator("GRU")
def gru(
    x: Any,
    w: Any,
    r: Any,
    bias: Any = None,
    lengths: Any = None,
    state: Any = None,
    *,
    hidden_size: int = 0,
    direction: Direction = "forward",
    activations: Activation | None = None,
    clip: float = 0.0,
    linear_before_reset: int = 0,
    layout: Literal[0, 1] = 0,
) -> Any:
    """Return the outputs of all steps, and the last states of each direction."""
    del hidden_size
    functions = _functions(activations or ("Sigmoid", "Tanh") * len(w), clip, 2)

    def network(number: int, x: Any, is_back: bool) -> Any:
        offset, more = (None, None) if bias is None else ops.split(bias[number], 2, -1)
        return ops.gru(
            x, ops.transpose(w[number]), ops.transpose(r[number]), offset, _of_direction(state, number, layout),
            recurrent_bias=more, reset_after=bool(linear_before_reset), lengths=lengths, reverse=is_back,
            activations=functions[number],
        )  # fmt: skip

    return _network(network, x, direction, len(w), layout)


@operator("RNN")
def rnn(
    x: Any,
    w: Any,
    r: Any,
    bias: Any = None,
    lengths: Any = None,
    state: Any = None,
    *,
    hidden_size: int = 0,
    direction: Direction = "forward",
    activations: Activation | None = None,
    clip: float = 0.0,
    layout: Literal[0, 1] = 0,
) -> Any:
    """Return the outputs of all steps, and the last states of each direction."""
    del hidden_size
    functions = _functions(activations or ("Tanh",) * len(w), clip, 1)

    def network(number: int, x: Any, is_back: bool) -> Any:
        offset = None if bias is None else ops.add(*ops.split(bias[number], 2, -1))
        return ops.simple_rnn(
            x, ops.transpose(w[number]), ops.transpose(r[number]), offset, _of_direction(state, number, layout),
            lengths=lengths, reverse=is_back, activations=functions[number],
        )  # fmt: skip

    return _network(network, x, direction, len(w), layout)


def _functions(names: Any, clip: float, count: int) -> list[list[Any]]:
    """Return the activations of each direction, by their names for products, or as functions.

    The arguments of those of gates are clipped; the third one of an LSTM is of the memory.
    """
    found = [_function(name, clip if number % count < 2 else 0.0) for number, name in enumerate(names)]
    return [found[i : i + count] for i in range(0, len(found), count)]


def _function(name: str, clip: float) -> Any:
    if name in _NAMES and not clip:
        return _NAMES[name]
    function: Callable[[Any], Any] = getattr(ops, name.lower())
    return (lambda x: function(ops.clip(x, -clip, clip))) if clip else function


def _of_direction(states: Any, number: int, layout: int) -> Any:
    """Return the states of one direction, shape (batch, size)."""
    return None if states is None else states[:, number] if layout else states[number]


def _arranged(gates: Any, order: tuple[int, ...]) -> Any:
    """Return the parts of an array along its first axis in another order."""
    parts = ops.split(gates, len(order), 0)
    return ops.concatenate([parts[i] for i in order], 0)


def _network(
    network: Callable[[int, Any, bool], Any], x: Any, direction: str, count: int, layout: int
) -> tuple[Any, ...]:
    """Return the outputs, shape (steps, directions, batch, size), and the last states, (directions, batch, size).

    With `layout` 1 the batch is the first axis of all arrays.
    """
    x = x if layout else ops.swapaxes(x, 0, 1)
    found = [network(number, x, direction == "reverse" or number == 1) for number in range(count)]
    outputs, *last = (ops.stack([*parts], 0) for parts in zip(*found, strict=True))
    if layout:
        return ops.transpose(outputs, (1, 2, 0, 3)), *(ops.swapaxes(s, 0, 1) for s in last)
    return ops.transpose(outputs, (2, 0, 1, 3)), *last
