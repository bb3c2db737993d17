"""The variables of an optimizer in files, each with what it is, so that it gets back to the variable it belongs to."""

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
"""What ``metadata.json`` calls the names: Keras does not read it."""
_MAX_LISTED = 20
_REMOVED = "\0"  # the place of variables that a model has no more: no other is called so


def stored_variables(optimizer: Any) -> dict[str, Any]:
    """Return what ``optimizer.save_own_variables`` writes."""
    store: dict[str, Any] = {}
    optimizer.save_own_variables(store)
    return store


def variable_names(model: "Model") -> list[str]:
    """Return what each variable of the optimizer of a model is, in the order of files; nothing if it does not say."""
    names = getattr(model.optimizer, "saved_names", None)
    return [] if names is None else names(variables_in(model))


def optimizer_variables(model: "Model") -> tuple[dict[str, Any], list[str]]:
    """Return the variables of the optimizer of a model that a file has, and what each one is.

    It has none that were kept of a kernel which has become codes: they belong to nothing in the model.
    """
    store, keys, names = _live_variables(model)
    return {str(number): store[key] for number, key in enumerate(keys)}, names


def load_optimizer_variables(model: "Model", values: Mapping[str, Any]) -> None:
    """Give the optimizer of a model what :func:`optimizer_variables` has returned; its other variables stay."""
    store, keys, _ = _live_variables(model)
    if len(keys) == len(values):
        values = store | {key: values[str(number)] for number, key in enumerate(keys)}
    model.optimizer.load_own_variables(values)


def _live_variables(model: "Model") -> tuple[dict[str, Any], list[str], list[str]]:
    """Return what :func:`stored_variables` does, the keys of those variables that last, and what these are."""
    store, places = stored_variables(model.optimizer), variables_in(model)
    owners: list[Any] = getattr(model.optimizer, "saved_owners", list)()
    gone = {id(owner): _REMOVED for owner in owners if owner is not None and id(owner) not in places}
    if not gone or len(owners) != len(store):  # an optimizer of the user may write others
        return store, list(store), variable_names(model)
    names = model.optimizer.saved_names(places | gone)
    kept = [(key, name) for key, name, owner in zip(store, names, owners, strict=True) if id(owner) not in gone]
    return store, [key for key, _ in kept], [name for _, name in kept]


def describe_optimizer(model: "Model") -> dict[str, Any]:
    """Return the class of the optimizer of a model, and what those of its variables are that a file has."""
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
        f"variables that are not in the file: {_listed(new)}; that are only there: {_listed(left)}"
    )


def contents_of_optimizer(optimizer: Any) -> Contents:
    """Return what an optimizer consists of now, to be given back to it if it cannot be built and loaded."""
    attributes = [vars(part) for part in (optimizer, getattr(optimizer, "inner_optimizer", None)) if part is not None]
    held = [x for part in attributes for x in part.values() if isinstance(x, list | dict | set)]
    return Contents([*attributes, *held])


def load_optimizer(model: "Model", arrays: Sequence[Array], names: Sequence[str]) -> None:
    """Give the optimizer of a model the variables of a file that belong to what is trained now, and warn of the others.

    Without `names`, as in files of Keras, it is all of them or none.

    Raises
    ------
    TypeError, ValueError
        The optimizer refuses an array.
    """
    optimizer, trained = model.optimizer, model.trainable_variables
    if not trained:
        _warn(model, f"nothing is trained, so that {len(arrays)} variables of its optimizer are left out")
        return
    optimizer.build(trained)
    store = stored_variables(optimizer)
    here, shapes = variable_names(model), [np.shape(x) for x in store.values()]
    if len(here) != len(store) or len(names) != len(arrays):
        if shapes != [np.shape(x) for x in arrays]:
            _warn(
                model,
                f"its optimizer begins anew: it has {len(store)} variables, and the file {len(arrays)}, or of other "
                "shapes, and does not say which ones they are",
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
    said = [f"its optimizer begins anew for {_listed(new)}"] if new else []
    said += [f"variables of its optimizer that belong to nothing that is trained now are left out: {_listed(left)}"]
    if new or left:
        _warn(model, "; ".join(said if left else said[:1]))


def _warn(model: "Model", text: str) -> None:
    warnings.warn(f"model '{model.name}': {text}", stacklevel=4)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_LISTED
    return (", ".join(names[:_MAX_LISTED]) or "none") + (f" and {more} more" if more > 0 else "")
