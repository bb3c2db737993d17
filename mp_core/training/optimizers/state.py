"""The common arguments of all optimizers, and the variables of an optimizer."""

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any, ClassVar, Self, TypedDict

import numpy as np

from mp_core.arrays import Array, asarray, dtypes
from mp_core.arrays.stochastic import key_number
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.autocast.variable import as_stored, assign_each
from mp_core.training.optimizers.rounding import is_narrow
from mp_core.training.optimizers.scales import scale_number
from mp_core.training.optimizers.schedules import LearningRateSchedule, deserialize, serialize
from mp_core.utilities.arguments import boolean, finite, float_of, number, positive, positive_integer, share
from mp_core.utilities.names import named
from mp_core.utilities.registry import own_config
from mp_core.utilities.suggest import suggestion
from mp_core.utilities.tree import numbered

__all__ = ["COMMON", "COMPENSATION", "RATE", "Common", "OptimizerState", "check_variable"]

_logger = logging.getLogger(__name__)


class Common(TypedDict, total=False):
    """The arguments that all optimizers accept: see :class:`Optimizer`."""

    weight_decay: float | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None
    stochastic_rounding: bool
    compensated: bool
    seed: int
    name: str | None


COMPENSATION = "compensation"
"""The name of the slot that keeps what rounding a variable loses; Keras' optimizers do not have it."""

RATE = """
    Parameters
    ----------
    learning_rate : float, LearningRateSchedule or callable
"""
COMMON = """
    Parameters
    ----------
    **common
        Arguments of :class:`Optimizer`.
"""
"""The parameters of all optimizers."""

_OLD_ARGUMENTS = {
    "lr": "use `learning_rate`",
    "decay": "give a schedule of mp_core.optimizers.schedules, such as InverseTimeDecay, as `learning_rate`",
}
"""Argument of Keras 2's optimizers -> its replacement."""


def _instead_of(argument: str, kind: type) -> str:
    """Return the end of an error about an unknown argument: its replacement or a similar name."""
    if argument in _OLD_ARGUMENTS:
        return f": {_OLD_ARGUMENTS[argument]}"
    own = [name for cls in kind.__mro__ for name in signature(cls.__init__).parameters]  # type: ignore[misc]
    return suggestion(argument, {*own, *Common.__annotations__} - {"self", "args", "kwargs", "common", "unknown"})


class OptimizerState:
    """The arguments and the variables of an optimizer: see :class:`mp_core.optimizers.Optimizer`."""

    slots: tuple[tuple[str, ...], ...] = ()
    """Names of the arrays stored per variable, in groups: files of Keras have one group after the other."""

    averages_swapped = False
    """Whether the values of the variables are exchanged with their averages."""

    _arguments: ClassVar[tuple[str, ...]] = ()
    """Names of the constructor's arguments that not all optimizers have; attributes have the same names."""

    own_arguments: ClassVar[dict[str, Any]] = {"stochastic_rounding": False, "compensated": False, "seed": 0}
    """Arguments that Keras' optimizers do not have -> their defaults. Configurations contain them if they differ."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        *,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        stochastic_rounding: bool = False,
        compensated: bool = False,
        seed: int = 0,
        name: str | None = None,
        **unknown: Any,
    ) -> None:
        for argument in unknown:
            raise TypeError(f"{type(self).__name__} has no argument `{argument}`{_instead_of(argument, type(self))}")
        self.name = named(name, type(self))
        clips = {"clipnorm": clipnorm, "clipvalue": clipvalue, "global_clipnorm": global_clipnorm}
        given = [argument for argument, value in clips.items() if value is not None]
        if len(given) > 1:
            raise ValueError(
                "Only one of `clipnorm`, `clipvalue` and `global_clipnorm` can be set; received " + ", ".join(given)
            )
        self.clipnorm, self.clipvalue, self.global_clipnorm = (
            None if value is None else positive(value, argument) for argument, value in clips.items()
        )
        self.weight_decay = None if weight_decay is None else finite(weight_decay, "weight_decay")
        self.use_ema, self.ema_momentum = boolean(use_ema, "use_ema"), share(ema_momentum, "ema_momentum")
        self.ema_overwrite_frequency = _count(ema_overwrite_frequency, "ema_overwrite_frequency", 1)
        self.gradient_accumulation_steps = _count(gradient_accumulation_steps, "gradient_accumulation_steps", 2)
        self.loss_scale_factor = (
            None if loss_scale_factor is None else scale_number(loss_scale_factor, "loss_scale_factor")
        )
        self.stochastic_rounding = boolean(stochastic_rounding, "stochastic_rounding")
        self.compensated, self.seed = boolean(compensated, "compensated"), key_number(seed, "seed")
        self._iterations = AutoCastVariable(np.int32(0), trainable=False, name="iteration")
        self._own_variables: list[AutoCastVariable] = [self._iterations]
        self._slot_owners: list[
            tuple[AutoCastVariable, AutoCastVariable, str]
        ] = []  # (own variable, model variable, slot name)
        self._learning_rate = self._rate(learning_rate)
        self._built_for: list[AutoCastVariable] | None = None
        self._excluded: set[int] = set()
        self._excluded_names: tuple[str, ...] = ()
        self._has_warned = False
        self._updates: Any = None  # `updates.Updates`, compiled code that updates all variables at once

    # ---- the learning rate and the count of steps

    def _rate(self, rate: Any) -> Any:
        if isinstance(rate, LearningRateSchedule) or (callable(rate) and not isinstance(rate, type)):
            return rate
        if not math.isfinite(float_of(rate)):
            raise ValueError(
                "`learning_rate` must be a number, a LearningRateSchedule, or a callable that returns a number; "
                f"received learning_rate={rate!r}"
            )
        variable = AutoCastVariable(np.float32(rate), trainable=False, name="learning_rate")
        self._own_variables.append(variable)
        return variable

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the next step: a variable, or the result of a schedule or callable."""
        if isinstance(self._learning_rate, LearningRateSchedule):
            return self._learning_rate(int(self._iterations))
        return self._learning_rate if isinstance(self._learning_rate, AutoCastVariable) else self._learning_rate()

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        current = self._learning_rate
        if isinstance(value, LearningRateSchedule) or callable(value):
            self._learning_rate = self._rate(value)
            self._own_variables = [variable for variable in self._own_variables if variable is not current]
        elif isinstance(current, AutoCastVariable):
            current.assign(np.float32(number(float(value), "learning_rate")))
        else:
            raise TypeError(
                "This optimizer was created with a `LearningRateSchedule` or a callable. Its rate comes from a "
                "schedule, so it cannot be set to a number. Make the optimizer with a number as its `learning_rate` to "
                "set it later."
            )

    @property
    def iterations(self) -> Any:
        """The number of steps, an int32 variable; with `gradient_accumulation_steps` the number of updates, an integer.

        A step beyond 2**31 - 1 raises OverflowError.
        """
        steps = self.gradient_accumulation_steps
        return self._iterations if steps is None else int(self._iterations) // steps

    @iterations.setter
    def iterations(self, value: int) -> None:
        self._iterations.assign(value)

    # ---- variables

    @property
    def variables(self) -> list[AutoCastVariable]:
        """The variables of the optimizer: number of steps, learning rate, and the slots of each model variable."""
        return list(self._own_variables)

    @property
    def built(self) -> bool:
        """Whether :meth:`build` was called."""
        return self._built_for is not None

    def build(self, trainable_variables: Sequence[AutoCastVariable]) -> None:
        """Create the slots of these variables; the optimizer then updates no others. A second call has no effect."""
        if self.built:
            return
        variables = list(trainable_variables)
        for variable in variables:
            check_variable(variable, self)
        self._index = {id(variable): i for i, variable in enumerate(variables)}
        kept = [variable for variable in variables if not variable.overwrite_with_gradient]
        self._averages = {id(v): self._new_slot(v, "average") for v in (kept if self.use_ema else [])}
        accumulated = variables if self.gradient_accumulation_steps else []
        self._accumulators = {id(v): self._new_slot(v, "gradient_accumulator") for v in accumulated}
        self._states: dict[int, list[AutoCastVariable]] = {id(v): [] for v in variables}
        self._decayed = {id(variable) for variable in kept if self._decays(variable)}
        for group in self.slots:
            for variable in kept:
                names = (name for name in group if self._has_slot(variable, name))
                self._states[id(variable)] += [self._new_slot(variable, name) for name in names]
        narrow = [variable for variable in kept if is_narrow(variable.true_dtype)]
        if (self.compensated or self.stochastic_rounding) and not narrow:
            _logger.warning("No variable of the model has 16 bits: `stochastic_rounding`, `compensated` change nothing")
        self._rests = {id(v): self._new_slot(v, COMPENSATION) for v in (narrow if self.compensated else [])}
        self._blocks: dict[int, list[list[Array]]] = {
            key: [[] for _ in range(1 + len(states) + (key in self._rests))] for key, states in self._states.items()
        }
        self._built_for = variables

    def _has_slot(self, variable: AutoCastVariable, name: str) -> bool:
        """Whether a variable has the slot `name` of :attr:`slots`."""
        return True

    def _new_slot(self, variable: AutoCastVariable, name: str) -> AutoCastVariable:
        """Create a slot of a variable."""
        initial = getattr(self, "initial_accumulator_value", 0.0) if name == "accumulator" else 0.0
        return self.add_variable_from_reference(variable, name, initial)

    def add_variable_from_reference(
        self, reference_variable: AutoCastVariable, name: str = "var", initializer: Any = "zeros"
    ) -> AutoCastVariable:
        """Add a variable with the shape and dtype of another one, filled with zeros, ``"ones"`` or a number."""
        part, name = name, f"{reference_variable.name.replace('/', '_')}_{name}"
        return self._register_slot(
            reference_variable,
            part,
            self.add_variable(reference_variable.shape, initializer, reference_variable.true_dtype, name),
        )

    def _register_slot(self, reference: AutoCastVariable, part: str, own: AutoCastVariable) -> AutoCastVariable:
        """Record that `own` is the slot `part` of a model variable, for the names in files; return `own`."""
        self._slot_owners.append((own, reference, part))
        return own

    def add_variable(
        self, shape: Sequence[int], initializer: Any = "zeros", dtype: Any = None, name: str = "variable"
    ) -> AutoCastVariable:
        """Add a variable of the optimizer, filled with zeros, ``"ones"`` or a number."""
        fill = (
            {"zeros": 0.0, "ones": 1.0}.get(initializer, initializer) if isinstance(initializer, str) else initializer
        )
        value = np.full(tuple(shape), number(fill, "initializer"), dtypes.parse(dtype or dtypes.floatx()))
        variable = AutoCastVariable(value, trainable=False, autocast=False, name=name)
        self._own_variables.append(variable)
        return variable

    def assign(self, variable: AutoCastVariable, value: Any) -> None:
        """Replace the value of a variable."""
        variable.assign(value)

    def assign_add(self, variable: AutoCastVariable, value: Any) -> None:
        """Add to a variable."""
        variable.assign_add(value)

    def assign_sub(self, variable: AutoCastVariable, value: Any) -> None:
        """Subtract from a variable."""
        variable.assign_sub(value)

    def save_own_variables(self, store: Any) -> None:
        """Write the variables of the optimizer into a mapping, under "0", "1" and so on, as Keras does."""
        for i, variable in enumerate(self._own_variables):
            store[str(i)] = variable.numpy()

    def saved_names(self, places: Mapping[int, str]) -> list[str]:
        """Return names such as ``"layers/dense/kernel: momentum"`` of the values of :meth:`save_own_variables`.

        `places` maps ``id(variable)`` to the name of a model variable; default: its path.
        """
        parts = {id(own): f"{places.get(id(of), of.path)}: {part}" for own, of, part in self._slot_owners}
        return numbered(parts.get(id(variable), variable.name) for variable in self._own_variables)

    def saved_owners(self) -> list[AutoCastVariable | None]:
        """Return the model variable that each value of :meth:`save_own_variables` belongs to, or None."""
        owners = {id(own): of for own, of, _ in self._slot_owners}
        return [owners.get(id(variable)) for variable in self._own_variables]

    def load_own_variables(self, store: Any) -> None:
        """Load the values that :meth:`save_own_variables` wrote, all or none; raise an error if one does not fit."""
        if len(store.keys()) != len(self._own_variables):
            own, stored = len(self._own_variables), len(store.keys())
            raise ValueError(
                f"Optimizer '{self.name}' has {own} variables, and the file has {stored}: build the optimizer for the "
                "variables of the model that was saved first"
            )
        self._assign(
            [asarray(store[str(i)], f"variable {i} of the file") for i in range(len(self._own_variables))], "the file"
        )

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Assign `weights`, such as ``[v.numpy() for v in optimizer.variables]``, to the variables, all or none.

        Before :meth:`build` there are fewer variables.
        """
        arrays = [asarray(x, f"weights[{i}]") for i, x in enumerate(weights)]
        if len(arrays) != len(self._own_variables):
            state = (
                "" if self.built else ", because it is not built: call `build` with the variables of the model first"
            )
            raise ValueError(
                f"`weights` must be {len(self._own_variables)} arrays, one per variable of optimizer '{self.name}'"
                f"{state}; received {len(arrays)}"
            )
        self._assign(arrays, "`weights`")

    def _assign(self, arrays: Sequence[Array], source: str) -> None:
        """Assign all values; if one does not fit, raise TypeError or ValueError and assign none."""
        values = []
        for variable, array in zip(self._own_variables, arrays, strict=True):
            which = f"Variable '{variable.name}' of optimizer '{self.name}'"
            if array.shape != variable.shape:
                raise ValueError(f"{which} has shape {variable.shape}; {source} has {array.shape}")
            value = as_stored(array, variable.true_dtype, variable.name)
            if variable is self._iterations and value < 0:
                raise ValueError(f"{which} must be at least 0; {source} has {value}")
            if variable is self._learning_rate and not np.isfinite(value):
                raise ValueError(f"{which} must be finite; {source} has {value}")
            values.append(value)
        assign_each(self._own_variables, values)

    # ---- weight decay

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes; dictionaries keyed by ``id(variable)`` are keyed by the variable's index instead."""
        places = {id(variable): place for place, variable in enumerate(self._built_for or ())}
        found = {name: _with_new_keys(getattr(self, name, None), places) for name in _KEYED_BY_ID}
        if found["_blocks"]:  # reusable memory: a copy allocates its own
            found["_blocks"] = {place: [[] for _ in blocks] for place, blocks in found["_blocks"].items()}
        return vars(self) | found | {"_updates": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        identities = dict(enumerate(map(id, state["_built_for"] or ())))
        found = {name: _with_new_keys(state[name], identities) for name in _KEYED_BY_ID}
        vars(self).update(state | {name: value for name, value in found.items() if value is not None})

    def exclude_from_weight_decay(
        self, var_list: Iterable[AutoCastVariable] | None = None, var_names: Iterable[str] | None = None
    ) -> None:
        """Exclude variables from weight decay, before :meth:`build`.

        Parameters
        ----------
        var_list : iterable of AutoCastVariable, optional
        var_names : iterable of str, optional
            Regular expressions: each variable whose name contains a match is excluded.
        """
        if self.built:
            raise ValueError("`exclude_from_weight_decay()` can only be called before the optimizer is built.")
        self._excluded = {id(variable) for variable in var_list or ()}
        self._excluded_names = tuple(var_names or ())

    def _decays(self, variable: AutoCastVariable) -> bool:
        named = any(re.search(pattern, variable.name) for pattern in self._excluded_names)
        return bool(self._decay_of(variable)) and id(variable) not in self._excluded and not named

    def _decay_of(self, variable: AutoCastVariable) -> float:
        return self.weight_decay or 0.0

    # ---- configuration

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        rate = self._learning_rate
        if isinstance(rate, LearningRateSchedule):
            rate = serialize(rate)
        elif isinstance(rate, AutoCastVariable):
            rate = float(str(float32(rate)))
        return {
            "name": self.name,
            "learning_rate": rate,
            "weight_decay": self.weight_decay,
            "clipnorm": self.clipnorm,
            "global_clipnorm": self.global_clipnorm,
            "clipvalue": self.clipvalue,
            "use_ema": self.use_ema,
            "ema_momentum": self.ema_momentum,
            "ema_overwrite_frequency": self.ema_overwrite_frequency,
            "loss_scale_factor": self.loss_scale_factor,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
        } | self._own_config()

    def _own_config(self) -> dict[str, Any]:
        """Return the arguments that not all optimizers of Keras have."""
        values = {name: getattr(self, name) for name in self.own_arguments}
        differing = {name: value for name, value in values.items() if value != self.own_arguments[name]}
        return {name: getattr(self, name) for name in self._arguments} | differing

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Self:
        """Return the optimizer of a configuration, in which a schedule is a dictionary."""
        config = dict(own_config(config, cls.__name__))
        if isinstance(config.get("learning_rate"), dict):
            config["learning_rate"] = deserialize(config["learning_rate"], custom_objects)
        return cls(**config)


def float32(variable: AutoCastVariable) -> np.float32:
    """Return the value of a scalar variable."""
    return np.float32(variable.numpy()[()])


def _count(value: Any, argument: str, least: int) -> int | None:
    if value is None:
        return None
    found = positive_integer(value, argument)
    if found < least:
        raise ValueError(f"`{argument}` must be an integer >= {least}; received {argument}={value!r}")
    return found


def check_variable(variable: Any, optimizer: OptimizerState) -> None:
    """Raise TypeError unless `variable` is an AutoCastVariable."""
    if not isinstance(variable, AutoCastVariable):
        raise TypeError(
            f"{type(optimizer).__name__} updates variables, which are AutoCastVariable; received one of type "
            f"{type(variable).__name__}"
        )


_KEYED_BY_ID = ("_index", "_averages", "_accumulators", "_states", "_rests", "_decayed", "_blocks", "_excluded")
"""Attributes whose keys are ``id(variable)``, which change in copies and pickles."""


def _with_new_keys(held: Any, names: Mapping[int, int]) -> Any:
    """Replace the keys of a dictionary or set by ``names[key]``; drop keys that `names` does not have."""
    if isinstance(held, dict):
        return {names[key]: value for key, value in held.items() if key in names}
    return None if held is None else {names[key] for key in held if key in names}
