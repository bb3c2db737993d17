"""All that training depends on as one file: who loads it goes on as if training had not stopped, bit for bit."""

import json
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.autocast import AutoCastVariable
from mp_core.autocast.variable import as_stored, assign_each
from mp_core.checkpoint.output import naming
from mp_core.layers.seeds import SeedGenerator
from mp_core.training.archive import storable, write_tree, written
from mp_core.training.loop import Place
from mp_core.utilities import hdf5
from mp_core.utilities.arguments import path_of
from mp_core.utilities.tree import leaves

__all__ = ["load_state", "save_state", "state_variables"]

_FORMAT = 1


def save_state(model: Any, path: Any) -> None:
    """Write the state of a model's training: see :meth:`Trainer.save_training_state`."""
    compiled = model._compiled
    compiled.prepare()
    optimizer: dict[str, Any] = {}
    compiled.optimizer.save_own_variables(optimizer)
    about = {
        "format": _FORMAT, "place": list(compiled.place), "seed": compiled.seed,
        "means": {tracker.name: tracker.state for tracker in compiled.losses},
        "weights": [[v.name, list(v.shape), v.true_dtype.name] for v in state_variables(model)],
    }  # fmt: skip
    tree = {
        "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
        "weights": _numbered([v.numpy() for v in state_variables(model)]),
        "optimizer": {name: storable(x) for name, x in optimizer.items()},
        "metrics": _numbered([v.numpy() for v in _of_metrics(compiled)]),
    }
    with written(path, "", overwrite=True) as file:
        write_tree(file, tree)


def load_state(model: Any, path: Any) -> None:
    """Take up the state of a file, all or nothing: see :meth:`Trainer.load_training_state`."""
    path = path_of(path, "path")
    try:
        with naming(path):
            tree = hdf5.read(path.read_bytes())
        about = json.loads(bytes(tree["about"]))
        place, seed, means = Place(*map(int, about["place"])), int(about["seed"]), dict(about["means"])
        weights, optimizer, metrics = (dict(tree[name]) for name in ("weights", "optimizer", "metrics"))
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"`path` must be a file of save_training_state; {path}: {error}") from error
    compiled = model._compiled
    compiled.prepare()
    variables = state_variables(model)
    here = [[v.name, list(v.shape), v.true_dtype.name] for v in variables]
    if here != about["weights"]:
        raise ValueError(f"{path} is of another model: it has weights {about['weights']}; '{model.name}' has {here}")
    pairs = [*zip(variables, _values(weights), strict=True)]
    of_metrics = _of_metrics(compiled)
    if len(of_metrics) == len(metrics):
        pairs += zip(of_metrics, _values(metrics), strict=True)
    values = [as_stored(np.array(x), v.true_dtype, v.name, copy=False) for v, x in pairs]
    compiled.optimizer.load_own_variables(optimizer)
    assign_each([variable for variable, _ in pairs], values)
    for tracker in compiled.losses:
        tracker.state = means.get(tracker.name, [0.0, 0])
    compiled.place = compiled.resumed = place
    compiled.seed = seed


def state_variables(model: Any) -> list[AutoCastVariable]:
    """Return the weights, and the states of random numbers."""
    held = (item for layer in model.flatten() for item in leaves(vars(layer)))
    states = {id(item.state): item.state for item in held if isinstance(item, SeedGenerator)}
    return [*model.weights, *states.values()]


def _of_metrics(compiled: Any) -> list[AutoCastVariable]:
    return [v for _, metric in compiled.metrics.named for v in getattr(metric, "variables", ())]


def _numbered(arrays: list[Array]) -> dict[str, Array]:
    return {str(number): storable(x) for number, x in enumerate(arrays)}


def _values(group: dict[str, Any]) -> list[Array]:
    return [group[str(number)] for number in range(len(group))]
