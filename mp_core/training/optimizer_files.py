"""Store the variables of an optimizer with names, so that each is loaded for the weight that it belongs to."""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mp_core.arrays import Array
from mp_core.core.changes import Contents
from mp_core.layers.names_in_files import variables_in

if TYPE_CHECKING:
    from mp_core.training.models import Model

__all__ = [
    "OPTIMIZER",
    "check_optimizer",
    "contents_of_optimizer",
    "describe_optimizer",
    "load_optimizer",
    "load_optimizer_variables",
    "optimizer_variables",
    "stored_variables",
]

OPTIMIZER = "optimizer_variables"
"""The key of the names in ``metadata.json``; Keras does not read it."""
_MAX_LISTED = 20
_REMOVED = "\0"  # path of weights that the model no longer has; no weight has this path


def stored_variables(optimizer: Any) -> dict[str, Any]:
    """Return the dictionary that ``optimizer.save_own_variables`` fills."""
    store: dict[str, Any] = {}
    optimizer.save_own_variables(store)
    return store


def variable_names(model: "Model") -> list[str]:
    """Return names of the optimizer's variables in the order of files; an empty list if the optimizer has no names."""
    names = getattr(model.optimizer, "saved_names", None)
    return [] if names is None else names(variables_in(model))


def optimizer_variables(model: "Model") -> tuple[dict[str, Any], list[str]]:
    """Return the optimizer's variables for a file, number -> value, and their names.

    Variables that belong to removed weights (a kernel that was quantized later) are left out.
    """
    store, keys, names = _live_variables(model)
    return {str(number): store[key] for number, key in enumerate(keys)}, names


def load_optimizer_variables(model: "Model", values: Mapping[str, Any]) -> None:
    """Load the result of :func:`optimizer_variables` into the optimizer; its other variables keep their values."""
    store, keys, _ = _live_variables(model)
    if len(keys) == len(values):
        values = store | {key: values[str(number)] for number, key in enumerate(keys)}
    model.optimizer.load_own_variables(values)


def _live_variables(model: "Model") -> tuple[dict[str, Any], list[str], list[str]]:
    """Return :func:`stored_variables`, and the keys and names of those variables whose weights still exist."""
    store, places = stored_variables(model.optimizer), variables_in(model)
    owners: list[Any] = getattr(model.optimizer, "saved_owners", list)()
    gone = {id(owner): _REMOVED for owner in owners if owner is not None and id(owner) not in places}
    if not gone or len(owners) != len(store):  # a user's optimizer may store other variables
        return store, list(store), variable_names(model)
    names = model.optimizer.saved_names(places | gone)
    kept = [(key, name) for key, name, owner in zip(store, names, owners, strict=True) if id(owner) not in gone]
    return store, [key for key, _ in kept], [name for _, name in kept]


def describe_optimizer(model: "Model") -> dict[str, Any]:
    """Return the class of the optimizer, and the names of the variables that a file stores."""
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return {"class": type(inner).__name__, "variables": _live_variables(model)[2]}


def check_optimizer(model: "Model", said: Any, path: str) -> None:
    """Check that a file describes the optimizer as :func:`describe_optimizer` does; otherwise raise ValueError."""
    here = describe_optimizer(model)
    if said == here:
        return
    there: dict[str, Any] = {"class": None, "variables": []} | (said if isinstance(said, dict) else {})
    new = [name for name in here["variables"] if name not in set(there["variables"])]
    left = [name for name in there["variables"] if name not in set(here["variables"])]
    raise ValueError(
        f"{path} is of another optimizer: it is of a {there['class']}, the model '{model.name}' has a {here['class']}; "
        f"variables missing in the file: {_listed(new)}; variables only in the file: {_listed(left)}"
    )


def contents_of_optimizer(optimizer: Any) -> Contents:
    """Return a copy of the optimizer's attributes, to be restored if building or loading it fails."""
    attributes = [vars(part) for part in (optimizer, getattr(optimizer, "inner_optimizer", None)) if part is not None]
    held = [x for part in attributes for x in part.values() if isinstance(x, list | dict | set)]
    return Contents([*attributes, *held])


def load_optimizer(model: "Model", arrays: Sequence[Array], names: Sequence[str]) -> None:
    """Load the variables of a file that belong to weights which are trained now, and warn of the others.

    Without `names`, as in files of Keras, load all variables or none.
    """
    optimizer, trained = model.optimizer, model.trainable_variables
    if not trained:
        _warn(model, f"nothing is trained: {len(arrays)} variables of its optimizer are ignored")
        return
    optimizer.build(trained)
    store = stored_variables(optimizer)
    here, shapes = variable_names(model), [np.shape(x) for x in store.values()]
    if len(here) != len(store) or len(names) != len(arrays):
        if shapes != [np.shape(x) for x in arrays]:
            _warn(
                model,
                f"its optimizer starts from scratch: the file has no names for its {len(arrays)} variables, and their "
                f"number or shapes differ from the optimizer's {len(store)}",
            )
            return
        here = names = [str(number) for number in range(len(arrays))]
    stored = dict(zip(names, arrays, strict=True))
    fitting = {
        name for name, shape in zip(here, shapes, strict=True) if name in stored and np.shape(stored[name]) == shape
    }
    optimizer.load_own_variables(
        {key: stored[name] if name in fitting else store[key] for key, name in zip(store, here, strict=True)}
    )
    new, left = [name for name in here if name not in fitting], [name for name in names if name not in fitting]
    said = [f"its optimizer starts from scratch for {_listed(new)}"] if new else []
    said += [f"optimizer variables without a trainable weight are ignored: {_listed(left)}"]
    if new or left:
        _warn(model, "; ".join(said if left else said[:1]))


def _warn(model: "Model", text: str) -> None:
    warnings.warn(f"model '{model.name}': {text}", stacklevel=4)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_LISTED
    return (", ".join(names[:_MAX_LISTED]) or "none") + (f" and {more} more" if more > 0 else "")
