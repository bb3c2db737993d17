"""Configurations of layers, and the arguments of their constructors, including those that only Keras has."""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self

from mp_core.layers import activations, initializers
from mp_core.layers.base.building import set_configured_forms
from mp_core.layers.base.call import Called
from mp_core.layers.base.penalties import serialized
from mp_core.layers.base.state import flat_layers
from mp_core.policies import dtype_policies
from mp_core.policies.dtype_policies import QUANTIZATION_MODES, DTypePolicy, FloatDTypePolicy
from mp_core.policies.dtype_policies.map import policy_at
from mp_core.policies.quantizers.quantizer import has_floating_inputs
from mp_core.utilities.registry import check_depth
from mp_core.utilities.tree import leaves, map_leaves

__all__ = [
    "Configured",
    "arguments_of",
    "constructor_arguments",
    "is_ours",
    "with_policy_as_in_keras",
]

# Keras' arguments for the shape of the inputs. The first layer of a Sequential uses them.
_SHAPE_OF_INPUTS = ("input_shape", "input_dim", "batch_input_shape", "batch_shape", "batch_size")

_BY_ALL = ("name", "trainable", "dtype")
"""Arguments that every configuration has."""
_PLAIN = (str, int, float, bool, type(None))


class ConstructorArguments:
    """The constructor's arguments of a layer whose class is the user's.

    Attributes
    ----------
    config : dict or None
        Name -> value, as in Keras; None if a value is not a plain one, or an argument has no name.
    """

    __slots__ = ("config",)

    def __init__(self, init: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.config = _values_by_name(init, args, kwargs)


def _values_by_name(init: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return name -> value of a constructor's arguments, or None: see :class:`ConstructorArguments`."""
    try:
        bound = inspect.signature(init).bind(None, *args, **kwargs)
    except TypeError:  # the constructor will raise it too
        return None
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for index, (name, parameter) in enumerate(bound.signature.parameters.items()):
        value = bound.arguments[name]
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= value
        elif parameter.kind is parameter.VAR_POSITIONAL:
            if len(value) > (index == 0):  # the first argument is `self`
                return None
        elif index and parameter.kind is parameter.POSITIONAL_ONLY:
            return None
        elif index:
            found[name] = value
    found = {name: value for name, value in found.items() if name not in _BY_ALL}
    is_plain = all(isinstance(value, _PLAIN) for value in leaves(found))
    return map_leaves(lambda value: value, found) if is_plain else None  # copies the lists and dicts


class Configured(Called):
    """Base of layers: :meth:`get_config` and :meth:`from_config`; stores the arguments of users' constructors."""

    _lacking: Mapping[str, Any] = MappingProxyType({})
    """Argument of Keras' layer that this one lacks -> the only value allowed, or `...` if any value is ignored."""
    _constructor_arguments: ConstructorArguments | None = None
    """The constructor's arguments, if the class is the user's."""
    _defines_config: bool = False
    """Whether the class is the user's and defines ``get_config``."""
    is_made_of_layers: bool = False
    """Whether the configuration stores the layers of a model instead of the constructor's arguments."""
    _shape_of_inputs: tuple[int | None, ...] | None = None
    """The shape of a batch of inputs, if an argument such as `input_shape` was passed."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        layer = super().__new__(cls)
        if not is_ours(cls.__init__):
            vars(layer)["_constructor_arguments"] = ConstructorArguments(cls.__init__, args, kwargs)
        return layer

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = getattr(cls, "get_config", None)
        cls._defines_config = own is not None and not is_ours(own)

    def _take_unused(self, arguments: dict[str, Any]) -> None:
        """Store the shape of the inputs; raise ValueError for unknown arguments, and for Keras' own that are on."""
        lacking = {"dynamic": False, **self._lacking}  # `dynamic` is an argument of every layer of tf.keras
        unknown = [name for name in arguments if name not in lacking and name not in _SHAPE_OF_INPUTS]
        if unknown:
            raise ValueError(f"Unrecognized keyword arguments passed to {type(self).__name__}: {', '.join(unknown)}")
        for name, value in arguments.items():
            off = lacking.get(name, ...)
            if off is not ... and value is not off:
                raise ValueError(f"mp_core has no `{name}`: it must be {off}; received {name}={value!r}")
        length, shape = arguments.get("input_dim"), arguments.get("input_shape")
        shape = shape if length is None else (length,)
        if not isinstance(shape, list | tuple | None):
            raise ValueError(f"`input_shape` must be the shape of a sample; received input_shape={shape!r}")
        batch_shape = None if shape is None else (arguments.get("batch_size"), *shape)
        batch_shape = arguments.get("batch_input_shape", arguments.get("batch_shape", batch_shape))
        if batch_shape is not None:
            self._shape_of_inputs = tuple(batch_shape)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments; :meth:`from_config` makes an equal layer of them."""
        config = {"name": self.name, "trainable": self.trainable, "dtype": dtype_policies.serialize(self._dtype_policy)}
        for option in self._options:
            value = getattr(self, option)
            if callable(value):
                value = (initializers if isinstance(value, initializers.Initializer) else activations).serialize(value)
            config[option] = value
        config |= serialized(self._penalties)
        if not self.is_made_of_layers:
            config = constructor_arguments(self) | config
        forms = self._forms_in_config()
        return config | ({"forms": forms} if forms else {})

    def _forms_in_config(self) -> dict[str, dict[str, Any]]:
        """Return the forms of matrices that do not follow from their policies, by their paths below this layer."""
        forms = {}
        for part in flat_layers(self):
            given = self._policy() if part is self else policy_at(self._dtype_policy, part.path)
            form = part._form_in_config(given)
            if form is not None:
                forms[str(part.path)[len(self._children_path) :].lstrip("/")] = form
        return forms

    def _form_in_config(self, given: DTypePolicy) -> dict[str, Any] | None:
        """Return the configuration of the form of the matrix; None if the policy `given` determines it."""
        return None

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the layer that a configuration of mp_core or of Keras describes.

        As in Keras, the constructor gets a plain policy by its name and any other as an object. Arguments that only
        Keras has must be off, and quantizers must have their default settings. Shapes of inputs are ignored.

        Raises
        ------
        ValueError
            An argument that mp_core does not have is on.
        """
        check_depth(config)
        if not isinstance(config, dict):
            raise ValueError(f"`config` must be a dict of arguments; received {config!r}")
        config = {key: value for key, value in config.items() if key not in ("batch_input_shape", "batch_shape")}
        config = cls._with_policy_of_config(config)
        forms = config.pop("forms", {})
        config = cls._under_quantizers(config, config.pop("quantization_config", None))
        known, open_ended = arguments_of(cls)
        late = {} if open_ended else {key: config.pop(key) for key in _BY_ALL if key in config and key not in known}
        for key, value in config.items():
            if key not in known and value and not open_ended:
                raise ValueError(f"{cls.__name__} has no argument `{key}`; received {key}={value!r}")
        if not isinstance(forms, dict) or not all(isinstance(form, dict) for form in forms.values()):
            raise ValueError(f"`forms` must be a dict: path of a layer -> dict; received {forms!r}")
        layer = cls(**{key: value for key, value in config.items() if key in known or open_ended})
        if forms:
            set_configured_forms(layer, forms)
        for key, value in late.items():  # the constructor does not take them
            setattr(layer, "dtype_policy" if key == "dtype" else key, value)
        return layer

    @classmethod
    def _under_quantizers(cls, config: dict[str, Any], quantizers: Any) -> dict[str, Any]:
        """Return the configuration with the policy that Keras' ``quantization_config`` asks for."""
        has_floating_inputs(quantizers, ({0}, 2))
        return config

    @classmethod
    def _with_policy_of_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Return the configuration with its policy as Keras passes it to constructors."""
        return with_policy_as_in_keras(config)


def is_ours(method: Any) -> bool:
    """Return whether a method is defined in mp_core, not in a class of the user."""
    return str(getattr(method, "__module__", "")).partition(".")[0] == "mp_core"


def constructor_arguments(layer: Configured) -> dict[str, Any]:
    """Return the arguments of a user's constructor; none if the class defines ``get_config``.

    Raises
    ------
    NotImplementedError
        An argument cannot be stored in a configuration.
    """
    given = layer._constructor_arguments
    if given is None or layer._defines_config:
        return {}
    if given.config is None:
        raise NotImplementedError(
            f"{type(layer).__name__} '{layer.name}' was made with arguments that a configuration cannot store: they "
            "have no names, or are not plain values (str, int, float, bool, None, or lists and dicts of them): define "
            "`get_config`, which returns the arguments, and `from_config` if some of them are objects"
        )
    return dict(given.config)


def with_policy_as_in_keras(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with its policy as Keras passes it to constructors: a plain one by its name."""
    if not isinstance(config.get("dtype"), dict):
        return config
    policy = dtype_policies.deserialize(config["dtype"])
    plain = type(policy) in (DTypePolicy, FloatDTypePolicy) and not policy.name.startswith(QUANTIZATION_MODES)
    return config | {"dtype": policy.name if plain else policy}


def arguments_of(cls: type) -> tuple[set[str], bool]:
    """Return the names that a constructor accepts, and whether it passes others to Layer, which rejects unknown ones.

    A constructor with ``**kwargs`` passes arguments to its base, so the result includes the base's names.
    """
    names: set[str] = set()
    for base in cls.__mro__:
        if base is Configured:
            break
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters
            names |= parameters.keys()
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
                return names, False
    return names, True
