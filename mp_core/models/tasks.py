"""The adapters by task of jina-embeddings-v3 [1]_, which are stored in the model's folder.

For each matrix, the file has the tensors ``lora_A`` and ``lora_B`` of all tasks. A task adds
``lora_alpha / lora_rank * (lora_B[task] @ lora_A[task])`` to the matrix.

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
    """Return the number of a task; raise ValueError if the folder does not have it, or has no tasks."""
    tasks = config.get(_TASKS)
    if not isinstance(tasks, list) or not tasks or not all(isinstance(name, str) for name in tasks):
        raise ValueError(f"{path} has no adapters by task: {_TASKS} is {tasks!r}; expected a list of names")
    if task not in tasks:
        raise ValueError(f"`task` must be {choices(tasks)}; received {task!r}")
    return tasks.index(task)


def instruction(task: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Return {task: prompt}; an empty dict if the folder has no prompt for the task."""
    prompts = config.get("task_instructions")
    prompt = prompts.get(task) if isinstance(prompts, dict) else None
    return {task: prompt} if isinstance(prompt, str) else {}


def adapted_to(model: TextNetwork, weights: Weights, number: int, config: Mapping[str, Any]) -> TextNetwork:
    """Return a copy of a model with the adapters of a task; both share all other weights.

    `weights` are those of the model's folder. Raise ValueError if they have no adapters, or their shapes do not fit.
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
        # A Dense layer has A of shape (rank, inputs) and B of shape (outputs, rank); a table has A @ B.
        is_dense = isinstance(layer, Dense)
        shapes = ((rank, columns), (rows, rank)) if is_dense else ((rows, rank), (rank, columns))
        pair = [_matrix(x, number, shape, f"{path}: the adapters of {weights.name(slot.path)}")
                for x, shape in zip((a, b), shapes, strict=True)]  # fmt: skip
        _adapt(layer, rank, float(alpha), *(x.T if is_dense else x for x in pair))
        adapted += 1
    if not adapted:
        raise ValueError(f"{path} has no tensors {_PARTS[0]} of adapters")
    return found


def _matrix(tensors: Any, number: int, shape: tuple[int, int], what: str) -> Array:
    """Return the matrix of one task in float32, from the stacked matrices of all tasks."""
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
