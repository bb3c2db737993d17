"""Branches and loops. Which branch runs, and how often, must follow from shapes and constants: plans have no jumps."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.programs.registry import Static, operator

NOTHING: Mapping[str, Any] = MappingProxyType({})
Body = Callable[..., tuple[Any, ...]]
"""Computes the outputs of a graph from the values that it captures and from its inputs."""


@operator("If")
def if_(condition: Static, *, then_branch: Body, else_branch: Body, captured: Mapping[str, Any] = NOTHING) -> Any:
    """Return the outputs of one of two graphs."""
    return (then_branch if bool(condition) else else_branch)(captured)


@operator("Loop")
def loop(trips: Static, condition: Static, *carried: Any, body: Body, captured: Mapping[str, Any] = NOTHING) -> Any:
    """Return the carried values after the last trip, and the stacked results of all trips."""
    count, goes_on = np.inf if trips is None else int(trips), condition is None or bool(condition)
    trip, kept = 0, []
    while goes_on and trip < count:
        condition, *found = body(captured, np.int64(trip), np.bool_(goes_on), *carried)
        carried, stacked = tuple(found[: len(carried)]), found[len(carried) :]
        kept.append(stacked)
        goes_on, trip = bool(condition), trip + 1
    return (*carried, *(ops.stack([*parts], 0) for parts in zip(*kept, strict=True)))


@operator("Scan", since=9)
def scan(
    *arguments: Any,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: tuple[int, ...] = (),
    scan_input_directions: tuple[int, ...] = (),
    scan_output_axes: tuple[int, ...] = (),
    scan_output_directions: tuple[int, ...] = (),
    captured: Mapping[str, Any] = NOTHING,
) -> Any:
    """Return the carried values after the last step, and the stacked results, in the order of the inputs."""
    carried, inputs = arguments[: len(arguments) - num_scan_inputs], arguments[len(arguments) - num_scan_inputs :]
    axes = scan_input_axes or (0,) * num_scan_inputs
    backward = scan_input_directions or (0,) * num_scan_inputs
    inputs = tuple(ops.moveaxis(x, axis, 0) for x, axis in zip(inputs, axes, strict=True))
    count, kept = len(inputs[0]), []
    for step in range(count):
        slices = [x[count - 1 - step if is_back else step] for x, is_back in zip(inputs, backward, strict=True)]
        found = body(captured, *carried, *slices)
        kept.append(found[len(carried) :])
        carried = tuple(found[: len(carried)])
    outputs = []
    for i, parts in enumerate(zip(*kept, strict=True)):
        is_back = bool(scan_output_directions) and scan_output_directions[i]
        axis = scan_output_axes[i] if scan_output_axes else 0
        outputs.append(ops.stack([*(parts[::-1] if is_back else parts)], axis))
    return (*carried, *outputs)
