"""Adapters that a folder holds itself, one for each task: those of jina-embeddings-v3 [1]_.

Beside each matrix lie ``lora_A`` and ``lora_B`` of all tasks; what a task adds is ``lora_alpha / lora_rank`` times
their product.

.. [1] S. Sturua et al., "jina-embeddings-v3: Multilingual Embeddings With Task LoRA", 2024, arXiv:2409.10173.
"""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, dtypes
from mp_core.layers import Dense
from mp_core.layers.lora import AdaptableLayer, adapt
from mp_core.models.gated_blocks import TokenTypes
from mp_core.models.network import TextNetwork
from mp_core.models.settings import KINDS, choices, unexpected
from mp_core.models.weights import Weights, slots_in

__all__ = ["adapted_to", "check_task", "instruction"]

_TASKS = "lora_adaptations"
_PARTS = "parametrizations.weight.0.lora_A", "parametrizations.weight.0.lora_B"


def check_task(task: Any, config: Mapping[str, Any], path: Path) -> int:
    """Return the number of a task of a folder; raise ValueError if there are none, or not this one."""
    tasks = config.get(_TASKS)
    if not isinstance(tasks, list) or not tasks or not all(isinstance(name, str) for name in tasks):
        raise ValueError(f"{path} has no adapters by task: {_TASKS} is {tasks!r}")
    if task not in tasks:
        raise ValueError(f"`task` must be {choices(tasks)}; received {task!r}")
    return tasks.index(task)


def instruction(task: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the prompt of a task under its name, if the folder has one."""
    said = config.get("task_instructions")
    prompt = said.get(task) if isinstance(said, dict) else None
    return {task: prompt} if isinstance(prompt, str) else {}


def adapted_to(model: TextNetwork, weights: Weights, number: int, config: Mapping[str, Any]) -> TextNetwork:
    """Return a model for one task, which shares the weights of another one.

    Parameters
    ----------
    model : TextNetwork
    weights : Weights
        Of the folder that it was read from.
    number : int
        Of the task.
    config : mapping
        What ``config.json`` says.

    Raises
    ------
    ValueError
        The file has no adapters, or such as do not fit.
    """
    path = weights.path
    rank, alpha = config.get("lora_rank", 4), config.get("lora_alpha", 1)
    for entry, value in (("lora_rank", rank), ("lora_alpha", alpha)):
        fits, expected = KINDS[int]
        if not fits(value):
            raise unexpected(path.with_name("config.json"), entry, value, expected)
    own = {id(layer.table) for layer in model.flatten() if isinstance(layer, TokenTypes)}
    found = deepcopy(model, {id(v): v for v in model.weights if id(v) not in own})
    adapted = 0
    for layer, (slot, *_) in slots_in(found):
        a, b = (weights.tensor(slot.path, part) for part in _PARTS)
        if a is None or b is None or not isinstance(layer, AdaptableLayer | TokenTypes):
            continue
        rows, columns = slot.shape
        turned = isinstance(layer, Dense)  # (rank, inputs) and (outputs, rank) of a product, of a table the other way
        shapes = ((rank, columns), (rows, rank)) if turned else ((rows, rank), (rank, columns))
        pair = [_matrix(x, number, shape, f"{path}: the adapters of {weights.name(slot.path)}")
                for x, shape in zip((a, b), shapes, strict=True)]  # fmt: skip
        _adapt(layer, rank, float(alpha), *(x.T if turned else x for x in pair))
        adapted += 1
    if not adapted:
        raise ValueError(f"{path} has no tensors {_PARTS[0]} of adapters")
    return found


def _matrix(tensors: Any, number: int, shape: tuple[int, int], what: str) -> Array:
    """Return the matrix of a task out of those of all, in float32."""
    fits = isinstance(tensors, np.ndarray) and tensors.ndim == 3 and dtypes.is_float(tensors.dtype)
    if not fits or len(tensors) <= number or tensors.shape[1:] != shape:
        found = getattr(tensors, "shape", type(tensors).__name__)
        raise ValueError(f"{what} have the shape {found}; expected (tasks, {shape[0]}, {shape[1]})")
    matrix: Array = ops.cast(tensors[number], F32)
    if not np.isfinite(matrix).all():
        raise ValueError(f"{what} have Inf or NaN")
    return matrix


def _adapt(layer: AdaptableLayer | TokenTypes, rank: int, alpha: float, a: Array, b: Array) -> None:
    if isinstance(layer, TokenTypes):
        layer.table.assign(layer.table.numpy().astype(F32) + alpha / rank * ops.matmul(a, b)[: layer.types])
    else:
        adapt(layer, rank, alpha, lambda *_: a, lambda *_: b)
