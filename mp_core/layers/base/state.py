"""The state of a layer: its attributes, its variables, the layers below it, and pickles of them."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import Array, asarray, dtypes
from mp_core.core.changes import counted, undone_if_it_fails
from mp_core.layers import initializers
from mp_core.layers.base import penalties
from mp_core.layers.base.contents import contents_of
from mp_core.layers.base.ends import replaceable_property
from mp_core.layers.seeds import SeedGenerator
from mp_core.policies.autocast import AutoCastVariable, enable_auto_cast_variables
from mp_core.policies.autocast.memory import frozen
from mp_core.policies.autocast.variable import as_stored, assign_each
from mp_core.policies.dtype_policies import DTypePolicy, standardize_dtype
from mp_core.utilities.arguments import boolean, state_of
from mp_core.utilities.tree import leaves

if TYPE_CHECKING:
    from mp_core.layers.layer import Layer

__all__ = [
    "VariableOwner",
    "children_of",
    "cleared_by_loading",
    "extra_arrays",
    "flat_layers",
    "metrics_among",
    "penalties_of",
    "restore_extra_arrays",
    "saved_variables",
]

_PLAIN = (type(None), bool, int, float, str)
_ABSENT: Any = object()

_TYPES = "types of the attributes"
_STATE: dict[str, Any] = {
    "name": str, "trainable": bool | np.bool_, "autocast": bool, "built": bool, "quantized": bool,
    "_path": str | None, "_dtype_policy": DTypePolicy, "_variables": list,
}  # fmt: skip
"""The attributes that every pickle must have, and their types."""
_SYMBOLIC = ("_origin", "_ends")
"""Attributes that copies drop: the copy was not called with the symbolic arrays of the original."""


def children_of(layer: "VariableOwner") -> Iterator["Layer"]:
    """Yield the layers among the attributes of a layer, also in lists, tuples and dicts, in order of assignment.

    Code of mp_core calls this and :func:`flat_layers`, not the methods: a user's layer may have an attribute called
    `children` or `flatten`, such as a :class:`~mp_core.layers.Flatten`.
    """
    return cast("Iterator[Layer]", (item for item in leaves(vars(layer)) if isinstance(item, VariableOwner)))


def flat_layers(layer: "VariableOwner") -> Iterator["Layer"]:
    """Yield a layer and all layers below it, each once."""
    seen: set[int] = set()
    waiting = [cast("Layer", layer)]
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            waiting.extend(reversed([*children_of(part)]))


def metrics_among(owners: "Iterable[VariableOwner]") -> list[Any]:
    """Return the metrics among the attributes of layers, each once."""
    found = (item for owner in owners for item in leaves(vars(owner)) if getattr(type(item), "_is_metric", False))
    return list({id(metric): metric for metric in found}.values())


class VariableOwner:
    """Base of layers: holds the variables in Keras' order, so that lists of weights can be exchanged with Keras."""

    name: str
    built: bool
    _path: str | None
    _options: tuple[str, ...] = ()
    """The constructor's arguments. Attributes have the same names; configurations consist of them."""
    _variable_type: type[AutoCastVariable] = AutoCastVariable
    """The class of the variables that :meth:`add_weight` makes."""
    _penalties: Mapping[str, Any] = MappingProxyType({})
    """Argument such as ``kernel_regularizer`` -> its regularizer or constraint."""

    def __init__(self) -> None:
        self._variables: list[AutoCastVariable] = []

    def __setattr__(self, name: str, value: Any) -> None:
        if type(value) in _PLAIN and vars(self).get(name, _ABSENT) is value and name != "trainable":
            return
        counted(super().__setattr__, name, value)

    def __delattr__(self, name: str) -> None:
        counted(undone_if_it_fails, contents_of([self]), self._delete_attribute, name)

    def _delete_attribute(self, name: str) -> None:
        value = vars(self).get(name)
        super().__delattr__(name)
        self._variables[:] = [variable for variable in self._variables if variable is not value]

    @property
    def path(self) -> str | None:
        """The names of the enclosing layers and of this one, joined by ``/``; None before the layer is built."""
        return self._path

    @property
    def is_placed(self) -> bool:
        """Whether the layer is built and has its path, which its first call or the enclosing layer sets."""
        return self.built and self._path is not None

    @property
    def trainable(self) -> bool:
        """Whether the variables count as trainable; setting it also sets it for the layers below, as in Keras."""
        on: bool = vars(self)["trainable"]
        return on

    @trainable.setter
    def trainable(self, value: bool) -> None:
        on = boolean(value, "trainable")
        for layer in flat_layers(self):
            vars(layer)["trainable"] = on

    @property
    def variable_dtype(self) -> str:
        """The dtype of the variables."""
        raise NotImplementedError

    @property
    def compute_dtype(self) -> str:
        """The dtype in which calls read variables."""
        raise NotImplementedError

    def add_weight(
        self,
        shape: Any = (),
        initializer: Any = None,
        dtype: DTypeLike | None = None,
        trainable: bool = True,
        autocast: bool = True,
        regularizer: Any = None,
        constraint: Any = None,
        aggregation: str = "none",
        *,
        overwrite_with_gradient: bool = False,
        name: str = "variable",
    ) -> AutoCastVariable:
        """Create a variable of this layer.

        Parameters
        ----------
        shape : int or sequence of int, optional
        initializer : str, dict or callable, optional
            A callable gets (shape, NumPy dtype). The array that it returns is not copied.
            Default: ``"glorot_uniform"`` for floating-point variables, else ``"zeros"``.
        dtype : dtype, optional
            Default: the policy's variable dtype.
        trainable : bool
            Whether the variable comes first in :attr:`weights`.
        autocast : bool
            Whether calls read it in the compute dtype.
        regularizer, constraint : callable, str or dict, optional
            Functions of the variable: the first is added to :attr:`losses`, the second replaces the value after each
            update. Default: the layer's arguments, such as ``kernel_regularizer``.
        aggregation
            An argument of Keras; it must be ``"none"`` or None.
        overwrite_with_gradient : bool
            Whether optimizers assign the "gradient" as the new value.
        name : str
        """
        if aggregation not in ("none", None):
            raise ValueError(f"`aggregation` must be 'none'; received {aggregation!r}")
        if isinstance(shape, str):
            raise ValueError(f"`name` must be passed as a keyword argument. Received: shape={shape!r}")
        shape = () if shape is None else (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        if not all(isinstance(n, int | np.integer) and n >= 0 for n in shape):
            raise ValueError(f"`shape` must be integers from 0 on; received shape={shape}")
        target = dtypes.parse(standardize_dtype(self.variable_dtype if dtype is None else dtype))
        if initializer is None:
            initializer = "glorot_uniform" if dtypes.is_float(target) else "zeros"
        trainable, autocast = boolean(trainable, "trainable"), boolean(autocast, "autocast")
        value = initializers.get(initializer)(shape, target)
        value = np.asarray(value)
        if value.shape != shape:
            raise ValueError(f"`initializer` must make an array of shape {shape}; received one of {value.shape}")
        value = frozen(asarray(value, "initializer"))  # made for this variable, so no copy is needed
        variable = self._variable_type(value, dtype=target, trainable=trainable, autocast=autocast, name=name)
        variable.path = f"{self.path or self.name}/{name}"
        variable.overwrite_with_gradient = overwrite_with_gradient
        if trainable and dtypes.is_float(target):
            variable.regularizer = self._penalty("regularizer", regularizer, name)
            variable.constraint = self._penalty("constraint", constraint, name)
        self._variables.append(variable)
        return variable

    def add_variable(self, *args: Any, **kwargs: Any) -> AutoCastVariable:
        """Create a variable: Keras' other name of :meth:`add_weight`.

        Examples
        --------
        >>> from mp_core.layers import Layer
        >>> Layer().add_variable((2,), "ones", trainable=False).numpy()
        array([1., 1.], dtype=float32)
        """
        return self.add_weight(*args, **kwargs)

    def _penalty(self, kind: str, given: Any, name: str) -> Any:
        """Return the regularizer or constraint of a variable: the given one, or the layer's argument for it."""
        if given is not None:
            return penalties.module_of(kind).get(given)
        return penalties.penalty_of(self._penalties, name, kind) if self._penalties else None

    @property
    def losses(self) -> list[Any]:
        """The results of the regularizers of trainable variables, computed in the variables' own dtypes."""
        with enable_auto_cast_variables(None):
            return [v.regularizer(v) for v in self.trainable_variables if v.regularizer is not None]

    def _saved_variables(self) -> list[AutoCastVariable]:
        """Return the variables of this layer, without those below it, in the order in which Keras saves them."""
        return sorted(self.own_variables(), key=lambda variable: not variable.trainable)

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Store the variables of this layer, without those below it, under ``"0"``, ``"1"`` ... as in Keras' files.

        Parameters
        ----------
        store : mutable mapping
            A dictionary, or a group of an h5py file.

        Examples
        --------
        >>> from mp_core.layers import Dense
        >>> layer, store = Dense(2), {}
        >>> layer.build((None, 3))
        >>> layer.save_own_variables(store)
        >>> [(name, array.shape) for name, array in store.items()]
        [('0', (3, 2)), ('1', (2,))]
        """
        for number, variable in enumerate(self._saved_variables()):
            store[str(number)] = variable.numpy()

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Assign the variables of this layer from the mapping that :meth:`save_own_variables`, or Keras', filled.

        Names and shapes must be those of the variables, and integer variables get only numbers that their dtype
        represents. After any error no variable has changed.
        """
        variables = self._saved_variables()
        names = [str(number) for number in range(len(variables))]
        shapes = {name: tuple(np.shape(store[name])) for name in store}
        wanted = {name: variable.shape for name, variable in zip(names, variables, strict=True)}
        if shapes != wanted:
            raise ValueError(f"Layer '{self.name}' has variables of shapes {wanted}; `store` has {shapes}")
        stored = [
            as_stored(np.asarray(store[name]), v.true_dtype, v.name, copy=True)
            for name, v in zip(names, variables, strict=True)
        ]
        cleared = self._cleared_by_loading()
        assign_each([*variables, *cleared], [*stored, *(np.zeros(v.shape, v.true_dtype) for v in cleared)])

    def _cleared_by_loading(self) -> list[AutoCastVariable]:
        """Return the variables that are not stored because saved ones include their values."""
        return []

    def _extra_arrays(self) -> dict[str, Array]:
        """Return further arrays that files of mp_core store, so that training resumes exactly."""
        return {}

    def _restore_extra_arrays(self, stored: Mapping[str, Array]) -> None:
        """Restore the arrays of :meth:`_extra_arrays`, after the saved variables were loaded; check that they fit."""
        if stored:
            raise ValueError(f"layer '{self.name}' does not have the stored arrays {sorted(stored)}")

    def children(self) -> Iterator["Layer"]:
        """Yield the layers among the attributes, also in lists, tuples and dicts, in order of assignment."""
        return children_of(self)

    def own_variables(self) -> list[AutoCastVariable]:
        """Return the variables of this layer, without those below it: first those of :meth:`add_weight`."""
        return list({id(item): item for item in leaves(vars(self)) if isinstance(item, AutoCastVariable)}.values())

    def flatten(self) -> Iterator["Layer"]:
        """Yield this layer and all layers below it, each once."""
        return flat_layers(self)

    def _flatten_layers(self, include_self: bool = True, recursive: bool = True) -> list["Layer"]:
        """Return the layers as a list, as Keras' method of this name; users call it in their ``get_config``."""
        layers = list(flat_layers(self)) if recursive else [cast("Layer", self), *children_of(self)]
        return layers if include_self else layers[1:]

    @property
    def weights(self) -> list[AutoCastVariable]:
        """The variables: the trainable ones of this layer, its other ones, then those of its children."""
        found = (sorted(layer.own_variables(), key=lambda v: not v.trainable) for layer in flat_layers(self))
        return list({id(v): v for variables in found for v in variables}.values())

    @property
    def variables(self) -> list[AutoCastVariable]:
        """The :attr:`weights`, then the states of the :class:`~mp_core.random.SeedGenerator` among the attributes.

        Examples
        --------
        >>> import mp_core as mp
        >>> layer = mp.layers.Dropout(0.5, seed=3)
        >>> [variable.name for variable in layer.variables], layer.weights
        (['seed_generator_state'], [])
        """
        return [*self.weights, *self._seed_states()]

    @replaceable_property
    def metrics(self) -> list[Any]:
        """The metrics among the attributes of this layer and those below it, also in lists, tuples and dicts.

        Examples
        --------
        >>> import mp_core as mp
        >>> layer = mp.layers.Dense(2)
        >>> layer.seen = mp.metrics.Mean(name="seen")
        >>> [metric.name for metric in layer.metrics]
        ['seen']
        """
        return metrics_among(flat_layers(self))

    @property
    def metrics_variables(self) -> list[AutoCastVariable]:
        """The variables of :attr:`metrics`; they are not among :attr:`variables`."""
        return [variable for metric in self.metrics for variable in metric.variables]

    def _seed_states(self) -> list[AutoCastVariable]:
        """Return the states of the generators of random numbers in this layer and those below it."""
        held = (item for layer in flat_layers(self) for item in leaves(vars(layer)))
        return list({id(x): x.state for x in held if isinstance(x, SeedGenerator)}.values())

    def count_params(self) -> int:
        """Return the number of elements of all variables."""
        return sum(variable.size for variable in self.weights)

    @property
    def trainable_weights(self) -> list[AutoCastVariable]:
        """The variables that training changes by gradients."""
        frozen = {id(v) for layer in flat_layers(self) if not layer.trainable for v in layer.weights}
        return [v for v in self.weights if v.trainable and id(v) not in frozen]

    @property
    def non_trainable_weights(self) -> list[AutoCastVariable]:
        """The variables that are not among :attr:`trainable_weights`."""
        trainable = {id(v) for v in self.trainable_weights}
        return [v for v in self.weights if id(v) not in trainable]

    trainable_variables = trainable_weights

    @property
    def non_trainable_variables(self) -> list[AutoCastVariable]:
        """The :attr:`variables` that training does not change by gradients."""
        return [*self.non_trainable_weights, *self._seed_states()]

    @property
    def weight_bytes(self) -> int:
        """The size of the variables in bytes, in the dtypes in which calls read them."""
        return sum(layer._read_bytes() for layer in flat_layers(self))

    def _read_bytes(self) -> int:
        variables = self.own_variables()
        width = dtypes.parse(self.compute_dtype).itemsize if variables else 0
        return sum(v.size * (width if v.autocast else v.true_dtype.itemsize) for v in variables)

    def get_weights(self) -> list[Array]:
        """Return the values of :attr:`weights`, read-only and without a copy."""
        return [variable.numpy() for variable in self.weights]

    def set_weights(self, weights: Sequence[ArrayLike], *, copy: bool = True) -> None:
        """Assign the values of :attr:`weights`, each cast to the stored dtype.

        With ``copy=False`` arrays that have the stored dtype, memory maps included, are not copied. Integer variables
        get only numbers that their dtype represents. After any error no variable has changed.
        """
        variables = self.weights
        if len(weights) != len(variables):
            raise ValueError(
                f"You called `set_weights(weights)` on layer '{self.name}' with a weight list of length "
                f"{len(weights)}, but the layer was expecting {len(variables)} weights."
            )
        for variable, weight in zip(variables, weights, strict=True):
            if variable.shape != np.shape(weight):
                raise ValueError(
                    f"Layer {self.name} weight '{variable.name}' of shape {variable.shape} is not compatible with "
                    f"provided weight shape {np.shape(weight)}."
                )
        stored = [as_stored(w, v.true_dtype, v.name, copy=copy) for v, w in zip(variables, weights, strict=True)]
        assign_each(variables, stored)

    # ---- pickles

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes; for a class of mp_core also the name of each attribute's type."""
        state = {name: value for name, value in vars(self).items() if name not in _SYMBOLIC}
        if type(self).__module__.startswith("mp_core."):  # other classes may drop attributes and make them again
            state[_TYPES] = {name: type(value).__name__ for name, value in state.items()}
        return state

    def __setstate__(self, state: Any) -> None:
        """Restore the attributes of a pickle; raise TypeError or ValueError that names a damaged attribute."""
        owner = f"a pickled {type(self).__name__}"
        own = [name for name in self._options if not hasattr(getattr(type(self), name, None), "__set__")]
        attributes = dict(
            state_of(state, _STATE | dict.fromkeys(own, object), owner)
        )  # others belong to an inner layer
        types = state_of(attributes.pop(_TYPES, {}), {}, f"the attributes' types of {owner}")
        state_of(attributes, dict.fromkeys(types, object), owner)
        for name, kind in types.items():
            if type(attributes[name]).__name__ != kind:
                raise TypeError(f"The state of {owner} is damaged: `{name}` must be {kind}; it is {attributes[name]!r}")
        for variable in attributes["_variables"]:
            if not isinstance(variable, AutoCastVariable):
                raise TypeError(f"`_variables` of {owner} must be variables; it has {variable!r}")
        vars(self).update(attributes)


def penalties_of(layer: VariableOwner) -> Mapping[str, Any]:
    """Return the regularizers and constraints of a layer: argument such as ``kernel_regularizer`` -> function."""
    return layer._penalties


def saved_variables(layer: VariableOwner) -> list[AutoCastVariable]:
    """Return the variables of a layer, without those below it, in the order in which Keras saves them."""
    return layer._saved_variables()


def cleared_by_loading(layer: VariableOwner) -> list[AutoCastVariable]:
    """Return the variables that are not stored because saved ones include their values; loading sets them to zero."""
    return layer._cleared_by_loading()


def extra_arrays(layer: VariableOwner) -> dict[str, Array]:
    """Return further arrays of a layer that files of mp_core store, so that training resumes exactly."""
    return layer._extra_arrays()


def restore_extra_arrays(layer: VariableOwner, stored: Mapping[str, Array]) -> None:
    """Restore the arrays of :func:`extra_arrays`, after the saved variables of a layer were loaded."""
    layer._restore_extra_arrays(stored)
