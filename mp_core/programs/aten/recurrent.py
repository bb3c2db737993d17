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
    x = input if batch_first else ops.swapaxes(input, 0, 1)
    width, directions = 4 if has_biases else 2, 1 + bidirectional
    states, cells = [], []
    for layer in range(num_layers):
        found = []
        for number in range(layer * directions, (layer + 1) * directions):
            weights = params[number * width : (number + 1) * width]
            outputs, state, cell = _layer(x, weights, hx[0][number], hx[1][number], number % directions == 1)
            found.append(outputs)
            states.append(state)
            cells.append(cell)
        x = found[0] if directions == 1 else ops.concatenate(found, -1)
    whole = x if batch_first else ops.swapaxes(x, 0, 1)
    return [whole, lambda: ops.stack(states), lambda: ops.stack(cells)]


@operator("aten.mkldnn_rnn_layer.default")
def lstm_layer(
    input: Any,
    weight0: Any,
    weight1: Any,
    weight2: Any,
    weight3: Any,
    hx_: Any,
    cx_: Any,
    reverse: bool,
    batch_sizes: Literal[None],
    mode: Literal[2],
    hidden_size: int,
    num_layers: Literal[1],
    has_biases: bool,
    bidirectional: Literal[False],
    batch_first: bool,
    train: Literal[False],
) -> Any:
    """Return the outputs of one layer of an LSTM, the last state and the last cell."""
    x = input if batch_first else ops.swapaxes(input, 0, 1)
    weights = [weight0, weight1, *([weight2, weight3] if has_biases else ())]
    outputs, state, cell = _layer(x, weights, hx_[0], cx_[0], reverse)
    whole = outputs if batch_first else ops.swapaxes(outputs, 0, 1)
    return [whole, lambda: ops.expand_dims(state, 0), lambda: ops.expand_dims(cell, 0)]


def _layer(x: Any, weights: Sequence[Any], state: Any, cell: Any, is_back: bool) -> Any:
    """Return outputs, state and cell of one direction of an LSTM; `x` has the shape (batch, steps, size)."""
    of_inputs, of_state, *biases = weights
    bias = ops.add(*biases) if biases else None
    return ops.lstm(x, ops.transpose(of_inputs), ops.transpose(of_state), bias, state, cell, reverse=is_back)
