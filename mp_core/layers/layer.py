"""The base of all layers."""

from typing import Any, ClassVar

import numpy as np

from mp_core.layers.base.building import Built, unique_name, with_path
from mp_core.layers.base.configuration import Configured
from mp_core.layers.base.penalties import penalties_in
from mp_core.layers.registry import KERAS, register
from mp_core.utilities.arguments import boolean

__all__ = ["Layer"]


class Layer(Configured):
    """A function with variables, computed under a dtype policy.

    Subclasses define ``build(input_shape)``, which calls :meth:`add_weight`, and ``call(inputs, ...)``.

    Parameters
    ----------
    name : str, optional
        Default: the class name in snake case, with a number from the second layer of the class on.
    dtype : DTypePolicy, str, dict or dtype, optional
        The policy; default: :func:`mp_core.dtype_policies.dtype_policy`. A map is looked up by `path` when the layer
        is built.
    trainable : bool
        Whether its variables count as trainable.
    autocast : bool
        Whether floating-point arguments are cast to the compute dtype.
    **kwargs
        - ``<variable>_regularizer`` and ``<variable>_constraint`` for each ``<variable>_initializer`` of the layer, as
          in ``kernel_regularizer``: see :mod:`mp_core.regularizers` and :mod:`mp_core.constraints`.
        - ``activity_regularizer``: a function of the outputs that is added to the training loss.
        - ``input_shape`` or ``input_dim``: the shape of the inputs; the first layer of a :class:`~mp_core.Sequential`
          needs it to build the model.
        - Arguments of Keras that mp_core does not have, if they are off.

    Examples
    --------
    >>> class Scale(Layer):
    ...     def build(self, input_shape):
    ...         self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones")
    ...
    ...     def call(self, inputs):
    ...         return inputs * self.scale
    >>> Scale(dtype="mixed_float16")(np.array([1.0, 2.0]))
    array([1., 2.], dtype=float16)
    """

    _face: ClassVar[str] = KERAS
    """The module of the layer's class in configurations: see :func:`mp_core.layers.registry.register`."""
    _repr_arguments: tuple[str, ...] = ()
    """The arguments of the constructor that :func:`repr` shows."""

    def __init__(
        self,
        *,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        autocast: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if kwargs:
            penalties = penalties_in(kwargs, self._options)
            if penalties:
                self._penalties = penalties
            self._take_unused(kwargs)
        if not isinstance(trainable, (bool, np.bool_)):
            raise ValueError(f"`trainable` must be a bool; received trainable={trainable!r}")
        if name is not None and not (isinstance(name, str) and name):
            raise ValueError(f"`name` must be a string that is not empty; received name={name!r}")
        self.name = unique_name(type(self).__name__) if name is None else name
        vars(self)["trainable"] = bool(trainable)
        vars(self)["autocast"] = boolean(autocast, "autocast")
        self.built = self._builds_nothing and type(self).build is Layer.build
        self.quantized = False
        self._path: str | None = None
        self._dtype_policy = self._get_policy(dtype)
        self._apply_policy()

    def __init_subclass__(cls, *, nameable: bool = True, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if nameable and cls.call is not Layer.call and "_registered" not in vars(cls):  # skip bases and copies
            register(cls, cls._face)
        home = next(base for base in cls.__mro__ if "build" in vars(base))
        if home is cls or not issubclass(home, Built):  # defined here, or in a mixin
            cls.build = with_path(cls.build)  # type: ignore[method-assign]
        if "call" in vars(cls):  # these attributes of the base describe its `call` only
            for name in ("_arrays", "_sample_independence"):
                if name not in vars(cls):
                    setattr(cls, name, getattr(Layer, name))

    def __repr__(self) -> str:
        own = "".join(f"{name}={getattr(self, name)!r}, " for name in self._repr_arguments)
        return f"<{type(self).__name__} name={self.name}, {own}policy={self._policy().name}, built={self.built}>"
