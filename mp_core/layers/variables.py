"""Objects that own variables, directly and through the layers among their attributes."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core import dtypes
from mp_core.arrays import Array, asarray
from mp_core.autocast import AutoCastVariable, enable_auto_cast_variables
from mp_core.autocast.memory import frozen
from mp_core.autocast.variable import as_stored, assign_each
from mp_core.dtype_policies import standardize_dtype
from mp_core.layers import initializers, penalties
from mp_core.utilities.arguments import boolean
from mp_core.utilities.tree import leaves

__all__ = ["VariableOwner"]


class VariableOwner:
    """The part of a layer that holds its variables, in Keras' order: so weights move by a plain list."""

    name: str
    trainable: bool
    _penalties: Mapping[str, Any] = MappingProxyType({})
    """Regularizers and constraints by the names of the arguments, such as ``kernel_regularizer``."""

    @property
    def path(self) -> str | None:
        """The path of the layer, None before it is built."""
        raise NotImplementedError

    @property
    def variable_dtype(self) -> str:
        """The dtype of the variables."""
        raise NotImplementedError

    @property
    def compute_dtype(self) -> str:
        """The dtype in which variables read."""
        raise NotImplementedError

    def __init__(self) -> None:
        self._variables: list[AutoCastVariable] = []

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
            A callable gets (shape, numpy dtype) and may return an array that exists already, which is not copied.
            Default: ``"glorot_uniform"`` for floating-point variables, else ``"zeros"``.
        dtype : dtype, optional
            Default: the policy's variable dtype.
        trainable : bool
            Whether the variable comes first in :attr:`weights`.
        autocast : bool
            Whether it reads in the compute dtype.
        regularizer, constraint : callable, str or dict, optional
            What the variable adds to :attr:`losses`, and what it becomes after each update. Default: those of the
            layer's arguments, such as ``kernel_regularizer``.
        aggregation
            Keras'; it must be off.
        overwrite_with_gradient : bool
            Whether an optimizer takes its gradient for its new value.
        name : str

        Raises
        ------
        TypeError
            `trainable` or `autocast` is no bool.
        ValueError
            `shape` is a name, or not of integers from 0 on; `initializer` makes another shape; an argument that must be
            off is on.
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
        value = frozen(asarray(value, "initializer"))  # made for this variable: nothing to copy
        variable = AutoCastVariable(value, dtype=target, trainable=trainable, autocast=autocast, name=name)
        variable.path = f"{self.path or self.name}/{name}"
        variable.overwrite_with_gradient = overwrite_with_gradient
        if trainable and dtypes.is_float(target):
            variable.regularizer = self._penalty("regularizer", regularizer, name)
            variable.constraint = self._penalty("constraint", constraint, name)
        self._variables.append(variable)
        return variable

    def _penalty(self, kind: str, given: Any, name: str) -> Any:
        """Return the regularizer or constraint of a variable: the one that is given, or that of an argument."""
        if given is not None:
            return penalties.module_of(kind).get(given)
        return penalties.penalty_of(self._penalties, name, kind) if self._penalties else None

    @property
    def losses(self) -> list[Any]:
        """What the regularizers of the trainable variables return, computed in the variables' own dtypes."""
        with enable_auto_cast_variables(None):
            return [v.regularizer(v) for v in self.trainable_variables if v.regularizer is not None]

    def __delattr__(self, name: str) -> None:
        value = vars(self).get(name)
        super().__delattr__(name)
        self._variables[:] = [variable for variable in self._variables if variable is not value]

    def _saved_variables(self) -> list[AutoCastVariable]:
        """Return the variables of this layer alone in the order in which Keras saves them."""
        return sorted(self.own_variables(), key=lambda variable: not variable.trainable)

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Put the variables of this layer alone into a mapping, under ``"0"``, ``"1"`` ... as in Keras' files.

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
        """Assign the variables of this layer alone from what :meth:`save_own_variables`, or that of Keras, wrote.

        Raises
        ------
        TypeError
            A variable of integers would get other numbers.
        ValueError
            There are other names or shapes than the variables have. In every case no variable has changed.
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
        """Return the variables that saved ones stand for too, and that are zeros once those are loaded."""
        return []

    def children(self) -> Iterator["VariableOwner"]:
        """Yield the layers among the attributes, and in lists, tuples and dicts there, in order of assignment."""
        return (item for item in leaves(vars(self)) if isinstance(item, VariableOwner))

    def own_variables(self) -> list[AutoCastVariable]:
        """Return the variables of this layer alone: those of :meth:`add_weight`, then others among the attributes."""
        return list({id(item): item for item in leaves(vars(self)) if isinstance(item, AutoCastVariable)}.values())

    def flatten(self) -> Iterator["VariableOwner"]:
        """Yield this layer and all layers below it, each of them once."""
        seen: set[int] = set()
        waiting: list[VariableOwner] = [self]
        while waiting:
            layer = waiting.pop()
            if id(layer) not in seen:
                seen.add(id(layer))
                yield layer
                waiting.extend(reversed([*layer.children()]))

    def _flatten_layers(self, include_self: bool = True, recursive: bool = True) -> list["VariableOwner"]:
        """Return what Keras' method of this name returns, with which users override ``get_config``."""
        layers = list(self.flatten()) if recursive else [self, *self.children()]
        return layers if include_self else layers[1:]

    @property
    def weights(self) -> list[AutoCastVariable]:
        """The variables: the trainable ones of this layer, its others, then those of its children."""
        found = (sorted(layer.own_variables(), key=lambda v: not v.trainable) for layer in self.flatten())
        return list({id(v): v for variables in found for v in variables}.values())

    variables = weights

    def count_params(self) -> int:
        """Return how many numbers the variables hold."""
        return sum(variable.size for variable in self.weights)

    @property
    def trainable_weights(self) -> list[AutoCastVariable]:
        """The variables that training would change."""
        frozen = {id(v) for layer in self.flatten() if not layer.trainable for v in layer.weights}
        return [v for v in self.weights if v.trainable and id(v) not in frozen]

    @property
    def non_trainable_weights(self) -> list[AutoCastVariable]:
        """The other variables."""
        trainable = {id(v) for v in self.trainable_weights}
        return [v for v in self.weights if id(v) not in trainable]

    trainable_variables = trainable_weights
    non_trainable_variables = non_trainable_weights

    @property
    def weight_bytes(self) -> int:
        """The size of the variables in the dtypes in which calls read them."""
        return sum(layer._read_bytes() for layer in self.flatten())

    def _read_bytes(self) -> int:
        variables = self.own_variables()
        width = dtypes.parse(self.compute_dtype).itemsize if variables else 0
        return sum(v.size * (width if v.autocast else v.true_dtype.itemsize) for v in variables)

    def get_weights(self) -> list[Array]:
        """Return the values of :attr:`weights`, read-only and without a copy."""
        return [variable.numpy() for variable in self.weights]

    def set_weights(self, weights: Sequence[ArrayLike], *, copy: bool = True) -> None:
        """Assign the values of :attr:`weights`, each cast to the stored dtype.

        With ``copy=False`` arrays of the stored dtype are kept as they are, memory maps included.

        Raises
        ------
        TypeError
            A variable of integers would get other numbers, or a weight is no array of numbers.
        ValueError
            The number of arrays, or a shape, is another one. In every case no variable has changed.
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
