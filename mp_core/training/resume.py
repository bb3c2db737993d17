"""Save and load the whole state of training: a resumed training has the bits of an uninterrupted one."""

import json
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mp_core.arrays import Array, dtypes
from mp_core.core.changes import undone_if_it_fails
from mp_core.files import hdf5
from mp_core.files.checkpoint.maps import map_file
from mp_core.files.hdf5 import storable
from mp_core.layers.base.state import flat_layers
from mp_core.layers.seeds import StateHolder
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.autocast.variable import assign_each, restore_on_failure
from mp_core.training.archive import output_file
from mp_core.training.measured import training_state
from mp_core.training.optimizer_files import (
    check_optimizer,
    contents_of_optimizer,
    describe_optimizer,
    load_optimizer_variables,
    optimizer_variables,
)
from mp_core.utilities.arguments import is_number, path_of
from mp_core.utilities.tree import leaves

if TYPE_CHECKING:
    from mp_core.training.models import Model

__all__ = ["Place", "Snapshot", "load_state", "save_state", "state_variables"]

_FORMAT = 2
_ARRAY = "__array__"  # JSON key of a reference to an array: [number, dtype]


class Place(NamedTuple):
    """Progress of training: index of the current epoch, and how many of its batches are done."""

    epoch: int
    step: int


class Snapshot(NamedTuple):
    """Everything that the rest of a training depends on."""

    place: Place
    seed: int
    """Seed of the order of samples."""
    stopped: bool
    """Whether a callback has stopped training."""
    logs: dict[str, Any]
    """Logs of the last batch; between epochs the logs of the last epoch, with its validation."""
    variables: list[list[Any]]
    """Name, shape and dtype of each variable of :func:`state_variables`."""
    weights: list[Array]
    trained_by: dict[str, Any]
    """The result of :func:`describe_optimizer`."""
    optimizer: dict[str, Array]
    means: dict[str, list[float]]
    """Loss name -> sum and number of samples."""
    example: Any
    """The first argument of :meth:`Metrics.rebuild`."""
    metrics: list[list[Any]]
    """Name of each metric, and the values of its variables."""
    callbacks: list[list[Any]]
    """Class name and state of each callback that has a state."""

    @classmethod
    def of(cls, model: "Model") -> "Snapshot":
        """Return a snapshot of a model's training."""
        state, variables = training_state(model), state_variables(model)
        state.prepare()
        optimizer, _ = optimizer_variables(model)
        return cls(
            state.place, state.seed, bool(model.stop_training), state.last_logs, _described(variables),
            [v.numpy() for v in variables], describe_optimizer(model),
            {name: np.asarray(x) for name, x in optimizer.items()},
            {tracker.name: tracker.state for tracker in state.losses}, state.metrics.example,
            [[name, [v.numpy() for v in _variables(metric)]] for name, metric in state.named_metrics],
            [] if state.callbacks is None else state.callbacks.get_states(),
        )  # fmt: skip

    def apply(self, model: "Model") -> None:
        """Restore a model's training from this snapshot, all or nothing; :meth:`begin` restores the callbacks."""
        state = training_state(model)
        own = [v for part in (state.optimizer, *dict(state.named_metrics).values()) for v in _variables(part)]
        held = [vars(state), vars(state.metrics), *map(vars, state.losses)]
        contents = contents_of_optimizer(state.optimizer)
        contents.add(held)
        restore_on_failure([*state_variables(model), *own], undone_if_it_fails, contents, self._apply, model)

    def _apply(self, model: "Model") -> None:
        state, variables = training_state(model), state_variables(model)
        state.prepare()
        if _described(variables) != self.variables:
            raise ValueError(
                f"it is of another model, with weights {self.variables}; '{model.name}' has {_described(variables)}"
            )
        check_optimizer(model, self.trained_by, "it")
        pairs = [*zip(variables, self.weights, strict=True), *self._metrics(state)]
        for variable, value in pairs:
            _check_kind(f"variable '{variable.name}'", variable.numpy(), value)
        kept, _ = optimizer_variables(model)
        for name, value in self.optimizer.items():
            _check_kind(f"variable {name} of the optimizer", np.asarray(kept.get(name, value)), value)
        losses = [tracker.name for tracker in state.losses]  # losses of outputs exist after the first batch
        if losses[0] not in self.means or (len(losses) > 1 and {*losses} != {*self.means}):
            raise ValueError(f"it has the losses {', '.join(self.means) or 'none'}; here are {', '.join(losses)}")
        load_optimizer_variables(model, self.optimizer)
        assign_each([variable for variable, _ in pairs], [np.array(value) for _, value in pairs])
        state.set_means(self.means)
        state.place, state.seed, state.last_logs = self.place, self.seed, self.logs

    def _metrics(self, state: Any) -> list[tuple[AutoCastVariable, Array]]:
        """Return (variable, value) of all metrics; between epochs different metrics are accepted.

        A metric among the model's attributes may create its variables in its first update: then its mean so far is
        lost, with a warning.
        """
        if self.place.step and self.example is not None:
            state.metrics.rebuild(self.example, {name: len(arrays) for name, arrays in self.metrics})
        names, here = [name for name, _ in self.metrics], [name for name, _ in state.named_metrics]
        if names != here:
            if self.place.step:
                raise ValueError(
                    f"it has the metrics {', '.join(names) or 'none'}; compiled are {', '.join(here) or 'none'}"
                )
            return []
        pairs: list[tuple[AutoCastVariable, Array]] = []
        for (name, metric), (_, arrays) in zip(state.named_metrics, self.metrics, strict=True):
            variables = _variables(metric)
            if [v.shape for v in variables] == [x.shape for x in arrays]:
                pairs += zip(variables, arrays, strict=True)
            elif self.place.step and variables:
                shapes = [x.shape for x in arrays]
                raise ValueError(f"metric '{name}' has shapes {[v.shape for v in variables]}, the values {shapes}")
            elif self.place.step:
                warnings.warn(f"metric '{name}' forgets the batches before the interruption", stacklevel=4)
        return pairs

    def begin(self, model: "Model", callbacks: Any) -> None:
        """Restore the states of the callbacks.

        In mid-epoch ``on_epoch_begin`` is called again to set up the callbacks. Changes that they make to the model are
        undone, because they were made before the interruption.
        """
        if self.place.step:
            before = Snapshot.of(model)
            callbacks.on_epoch_begin(self.place.epoch)
            before.apply(model)
        callbacks.set_states(self.callbacks)


def save_state(model: "Model", path: Any) -> None:
    """Write the state of a model's training: see :meth:`Trainer.save_training_state`."""
    arrays: list[Array] = []
    about = {"format": _FORMAT, "state": _encoded(Snapshot.of(model)._asdict(), arrays)}
    tree: dict[str, Any] = {
        "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
        "arrays": {str(number): storable(x) for number, x in enumerate(arrays)},
    }
    with output_file(path, "", overwrite=True) as file:
        hdf5.write(file, tree)


def load_state(model: "Model", path: Any) -> None:
    """Restore training from a file, all or nothing: see :meth:`Trainer.load_training_state`."""
    path = path_of(path, "filepath")
    try:
        state = _read(hdf5.read(map_file(path)))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"`filepath` must be a file of save_training_state; {path}: {error}") from error
    try:
        state.apply(model)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"`filepath` must be a file of this model; {path}: {error}") from error
    training_state(model).resumed, model.stop_training = state, state.stopped


def state_variables(model: "Model") -> list[AutoCastVariable]:
    """Return the weights, and the variables that layers keep between calls: random states and recurrent states."""
    held = (item for layer in flat_layers(model) for item in leaves(vars(layer)))
    kept = (v for item in held if isinstance(item, StateHolder) for v in leaves(item.variables))
    return [*model.weights, *{id(v): v for v in kept}.values()]


def _described(variables: list[AutoCastVariable]) -> list[list[Any]]:
    return [[v.name, list(v.shape), v.true_dtype.name] for v in variables]


def _check_kind(what: str, own: Array, value: Array) -> None:
    """Raise ValueError unless `value` has the shape and the dtype of `own`."""
    if (own.shape, own.dtype) != (value.shape, value.dtype):
        kinds = f"{own.dtype.name} of shape {own.shape}, the value {value.dtype.name} of shape {value.shape}"
        raise ValueError(f"{what} is {kinds}")


def _variables(metric: Any) -> list[AutoCastVariable]:
    return list(getattr(metric, "variables", ()))


# ---- the file


def _read(tree: Mapping[str, Any]) -> Snapshot:
    """Return the snapshot in a file; raise LookupError, TypeError or ValueError if the file is invalid."""
    about = json.loads(bytes(tree["about"]))
    if not _is_count(about["format"]) or about["format"] != _FORMAT:
        raise ValueError(f"its format is {about['format']!r}; only {_FORMAT} can be read")
    state = Snapshot(**_decoded(about["state"], tree["arrays"]))
    counts: dict[str, Any] = {"epoch": state.place[0], "step": state.place[1], "seed": state.seed}
    counts |= {f"count of {name}": mean[1] for name, mean in state.means.items()}
    for name, value in counts.items():
        if not _is_count(value):
            raise ValueError(f"its {name} is {value!r}; expected an integer of at least 0, in 64 bits")
    if type(state.stopped) is not bool:
        raise ValueError(f"`stopped` is {state.stopped!r}; expected true or false")
    return state._replace(
        place=Place(*state.place),
        logs=dict(state.logs),
        weights=[np.asarray(x) for x in state.weights],
        optimizer={name: np.asarray(x) for name, x in state.optimizer.items()},
        means={name: [float(total), count] for name, (total, count) in state.means.items()},
        metrics=[[_text(name), [np.asarray(x) for x in arrays]] for name, arrays in state.metrics],
        callbacks=[[_text(name), dict(own)] for name, own in state.callbacks],
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a name is {value!r:.200}")
    return value


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _encoded(value: Any, arrays: list[Array], where: str = "") -> Any:
    """Convert a value for JSON; an array is appended to `arrays` and replaced by its index."""
    if isinstance(value, AutoCastVariable):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf" and not dtypes.is_float(value.dtype):
            raise TypeError(f"the state of training cannot store an array of {value.dtype}: {where}")
        arrays.append(value)
        return {_ARRAY: [len(arrays) - 1, value.dtype.name]}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or key == _ARRAY:
                raise TypeError(f"the state of training needs keys that are strings; received {key!r} in {where}")
        return {key: _encoded(item, arrays, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(item, arrays, f"{where}[{place}]") for place, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if is_number(value):
        return float(value)
    raise TypeError(
        f"the state of training stores numbers, strings, arrays, and lists and dictionaries of them; received "
        f"{type(value).__name__}: {where}"
    )


def _decoded(value: Any, arrays: Mapping[str, Any]) -> Any:
    """Invert :func:`_encoded`; tuples come back as lists."""
    if isinstance(value, dict):
        if _ARRAY not in value:
            return {key: _decoded(item, arrays) for key, item in value.items()}
        number, name = value[_ARRAY]
        dtype = np.dtype(str(name))
        if dtype.kind not in "biuf" and not dtypes.is_float(dtype):
            raise ValueError(f"an array has dtype {name}")
        if not _is_count(number):
            raise ValueError(f"the number of an array is {number!r}; expected an integer of at least 0")
        stored = np.asarray(arrays[str(number)])
        if stored.dtype.newbyteorder("=") != storable(np.zeros(0, dtype)).dtype:
            raise ValueError(f"an array is stored as {stored.dtype}, which cannot be {name}")
        return stored.astype(dtype)
    return [_decoded(item, arrays) for item in value] if isinstance(value, list) else value
