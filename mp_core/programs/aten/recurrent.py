"""Recurrent networks."""

from collections.abc import Sequence
from typing import Any, Literal

from mp_core import ops
from mp_core.programs.registry import operator

__all__: list[str] = []


@operator("aten.lstm.input")
def lstm(
    input: Any,
    hx: Sequence[Any],
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: Literal[False],
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Return the outputs of the last layer, and the last states and cells of all layers."""
    x = ops.swapaxes(input, 0, 1) if batch_first else input
    width, directions = 4 if has_biases else 2, 1 + bidirectional
    states, cells = [], []
    for layer in range(num_layers):
        found = []
        for direction in range(directions):
            number = layer * directions + direction
            weights = params[number * width : (number + 1) * width]
            along, state, cell = _lstm_layer(x, hx[0][number], hx[1][number], weights, direction == 1)
            found.append(along)
            states.append(state)
            cells.append(cell)
        x = found[0] if directions == 1 else ops.concatenate(found, -1)
    outputs = ops.swapaxes(x, 0, 1) if batch_first else x
    return [outputs, lambda: ops.stack(states), lambda: ops.stack(cells)]


def _lstm_layer(x: Any, state: Any, cell: Any, weights: Sequence[Any], is_reversed: bool) -> tuple[Any, Any, Any]:
    """Return the outputs of one direction, (steps, batch, units), and its last state and cell."""
    of_inputs, of_state, *biases = weights
    bias = ops.add(*biases) if biases else None
    inputs = ops.matmul(x, ops.transpose(of_inputs), bias=bias)
    matrix, outputs = ops.transpose(of_state), []
    steps = range(len(x))
    for step in reversed(steps) if is_reversed else steps:
        gates = ops.add(inputs[step], ops.matmul(state, matrix))
        i, f, g, o = ops.split(gates, 4, -1)
        cell = ops.add(ops.multiply(ops.sigmoid(f), cell), ops.multiply(ops.sigmoid(i), ops.tanh(g)))
        state = ops.multiply(ops.sigmoid(o), ops.tanh(cell))
        outputs.append(state)
    return ops.stack(outputs[::-1] if is_reversed else outputs), state, cell
