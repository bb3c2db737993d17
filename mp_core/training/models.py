"""Models: what Keras calls Model, Functional and Sequential. They are layers with the methods of a trainer."""

from functools import cache
from typing import Any, Self, cast

from mp_core import layers as house
from mp_core.core.changes import undone_if_it_fails
from mp_core.dtype_policies.lookup import custom_object_scope
from mp_core.layers import InputLayer, Layer
from mp_core.layers.contents import contents_of
from mp_core.layers.ends import Ends, replaceable_property
from mp_core.layers.symbolic import KerasTensor, graph_between, tensor_of, traced
from mp_core.training.trainer import Trainer
from mp_core.utilities.tree import leaves

__all__ = ["Functional", "Model", "Sequential"]


class Model(Trainer, Layer):
    """A layer that can be trained: ``compile``, ``fit``, ``evaluate``, ``predict``, ``save``.

    Either of ``Model(inputs, outputs)``, which is a :class:`Functional`, or of a subclass with ``call``, whose layers
    are attributes.

    Parameters
    ----------
    inputs, outputs : KerasTensor, or list or dict of them, optional
        Of :func:`Input`, and of layers that were called with it. A subclass gets what :class:`Functional` has.
    **kwargs
        Those of :class:`~mp_core.layers.Layer`.

    Raises
    ------
    TypeError
        `inputs` or `outputs` are something else, or one of them is missing.

    Examples
    --------
    >>> from mp_core.layers import Dense
    >>> class Twice(Model):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.dense = Dense(3)
    ...
    ...     def call(self, x):
    ...         return self.dense(self.dense(x))
    >>> import numpy as np
    >>> Twice().predict(np.ones((2, 3)), verbose=0).shape
    (2, 3)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args or "inputs" in kwargs or "outputs" in kwargs:
            self.__class__ = _functional(cast(Any, type(self)))
            Functional.__init__(cast(Functional, self), *args, **kwargs)
        else:
            super().__init__(**kwargs)

    @replaceable_property
    def layers(self) -> Any:
        """The layers among the attributes; a model that sets a list of them has that."""
        return [part for part in self.children() if isinstance(part, Layer)]

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, type[Layer]] | None = None) -> Self:
        """Return the model that a configuration describes; a functional model if it describes one.

        Raises
        ------
        ValueError
            The configuration describes no such model.
        """
        if isinstance(config, dict) and {"layers", "input_layers", "output_layers"} <= config.keys():
            model = house.Functional.from_config.__func__(_functional(cast(Any, cls)), config, custom_objects)  # type: ignore[attr-defined]
            model.build()
            return cast(Self, model)
        with custom_object_scope(custom_objects):
            return super().from_config(config)


class Functional(Model, house.Functional):
    """A model of the calls of layers that lead from inputs to outputs.

    Parameters
    ----------
    inputs, outputs : KerasTensor, or list or dict of them
    name : str, optional
    **kwargs
        Those of :class:`~mp_core.layers.Layer`.

    Raises
    ------
    TypeError
        There is something else than symbolic arrays among them.
    ValueError
        An output needs an input that is not there, or two layers have one name.

    Examples
    --------
    >>> import numpy as np
    >>> from mp_core.layers import Dense
    >>> from mp_core.layers.symbolic import Input
    >>> x = Input((3,))
    >>> y = Dense(4, activation="relu")(x)
    >>> model = Functional(x, {"sum": y + 1, "y": y})
    >>> sorted(model.predict(np.ones((2, 3)), verbose=0))
    ['sum', 'y']
    """

    def __init__(self, inputs: Any = None, outputs: Any = None, name: str | None = None, **kwargs: Any) -> None:
        self._init_graph(*graph_between(inputs, outputs), name=name, **kwargs)
        if all(isinstance(x.call.layer, InputLayer) for x in leaves(inputs)):
            vars(self)["_ends"] = Ends(inputs, outputs)

    def _init_graph(self, *graph: Any, **kwargs: Any) -> None:
        house.Functional.__init__(self, *graph, **kwargs)
        if all(layer.built for layer in self.layers):
            self.build()

    @classmethod
    def _of_graph(cls, *graph: Any, **kwargs: Any) -> Self:
        model = cls.__new__(cls)
        Functional._init_graph(model, *graph, **kwargs)
        return model

    def _output_names(self, outputs: Any) -> list[str]:
        return list(outputs) if isinstance(outputs, dict) else [source.layer for source in leaves(self.output_sources)]

    def _traced(self) -> list[tuple[Layer, Any]]:
        return [(self._by_name[source.layer], x) for source, x in traced(self).items()]


@cache
def _functional(cls: Any) -> Any:
    """Return the class of the functional models of a subclass of :class:`Model`: itself, with the methods of these."""
    if cls is Model or issubclass(cls, Functional):
        return Functional if cls is Model else cls
    own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    reduced = {"__reduce__": lambda self: (_empty, (cls,), self.__getstate__())}
    return type(cls.__name__, (cls, Functional), own | reduced)


def _empty(cls: type) -> Any:
    """Return a functional model of a subclass of :class:`Model`, to be filled from a pickle."""
    return object.__new__(_functional(cls))


class Sequential(Model, house.Sequential):
    """A stack of layers with the methods of a trainer.

    Parameters
    ----------
    layers : sequence of (Layer or KerasTensor), optional
        What :func:`Input` returns may come first: then all layers are built at once, otherwise by the first call.
    name : str, optional
    **kwargs
        Those of :class:`mp_core.layers.Sequential`.

    Raises
    ------
    TypeError
        There is something else among the layers.
    ValueError
        An input is not first.

    Examples
    --------
    >>> from mp_core.layers import Dense
    >>> from mp_core.layers.symbolic import Input
    >>> model = Sequential([Input((4,)), Dense(8, activation="relu")])
    >>> model.add(Dense(2))
    >>> model.count_params()
    58
    """

    def __init__(self, layers: Any = None, name: str | None = None, **kwargs: Any) -> None:
        house.Sequential.__init__(self, None, name=name, **kwargs)
        given = [layers] if isinstance(layers, Layer | KerasTensor) else layers
        if not isinstance(given, list | tuple | None):
            raise TypeError(f"`layers` must be a sequence of layers or None; received {layers!r}")
        for layer in given or ():
            self._add(layer)
        self._build_again()

    def _add(self, layer: Any) -> None:
        if isinstance(layer, KerasTensor):
            layer = layer.call.layer
            if not isinstance(layer, InputLayer):
                raise TypeError(f"`layer` must be a Layer, or what Input returns; received an output of {layer!r}")
        house.Sequential.add(self, layer)

    def add(self, layer: Any) -> None:
        """Append a layer; what :func:`Input` returns must be the first.

        Raises
        ------
        TypeError
            `layer` is no layer.
        ValueError
            It is an input, and not the first layer.
        """
        undone_if_it_fails(contents_of([self]), self._added, layer)

    def _added(self, layer: Any) -> None:
        self._add(layer)
        self._build_again()

    def pop(self) -> Layer:
        """Remove the last layer, and return it.

        Raises
        ------
        IndexError
            There is none.
        """
        if not self.layers:
            raise IndexError(f"'{self.name}' has no layer to pop")
        layer: Layer = self.layers.pop()
        self._build_again()
        return layer

    def _build_again(self) -> None:
        """Build the layers, if their inputs are known; compiled with others before, it must be compiled again."""
        self.built, self._path = False, None
        vars(self).pop("_ends", None)
        self._uncompile()
        if self.input_layer is not None and self.layers:
            self.build()

    def _traced(self) -> list[tuple[Layer, Any]]:
        if self.input_layer is None:
            return []
        x, found = tensor_of(self.input_layer), []
        for layer in self.layers:
            x = layer(x)
            found.append((layer, x))
        return found
