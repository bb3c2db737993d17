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
            of_inputs, of_state, *biases = params[number * width : (number + 1) * width]
            outputs, state, cell = ops.lstm(
                x, ops.transpose(of_inputs), ops.transpose(of_state), ops.add(*biases) if biases else None,
                hx[0][number], hx[1][number], reverse=number % directions == 1,
            )  # fmt: skip
            found.append(outputs)
            states.append(state)
            cells.append(cell)
        x = found[0] if directions == 1 else ops.concatenate(found, -1)
    whole = x if batch_first else ops.swapaxes(x, 0, 1)
    return [whole, lambda: ops.stack(states), lambda: ops.stack(cells)]
