"""Configurations of layers, and the arguments of their constructors: also those of Keras that have no use here."""

import inspect
from collections.abc import Sequence
from typing import Any

from mp_core import dtype_policies
from mp_core.dtype_policies import QUANTIZATION_MODES, DTypePolicy, FloatDTypePolicy
from mp_core.dtype_policies.lookup import check_depth
from mp_core.dtype_policies.map import policy_at
from mp_core.layers import activations, initializers
from mp_core.layers.penalties import serialized
from mp_core.utilities.arguments import positive_integer

__all__ = [
    "arguments_of",
    "check_without_use",
    "config_of",
    "data_format_of",
    "layer_of",
    "sizes_of",
    "with_policy_as_in_keras",
]

# Keras' arguments for the shape of a first layer's inputs, which may have any value: the first call builds layers.
_SHAPE_OF_INPUTS = ("input_shape", "input_dim", "batch_input_shape", "batch_shape", "batch_size")

# Arguments of Keras' layers that matter in training only, which may have any value.
_OF_TRAINING = ("renorm_momentum",)

# Arguments of Keras' layers that are of no use here, with what turns them off.
_WITHOUT_USE: dict[str, bool | None] = dict.fromkeys(
    (
        "kernel_regularizer", "bias_regularizer", "embeddings_regularizer", "beta_regularizer",
        "gamma_regularizer", "kernel_constraint", "bias_constraint", "embeddings_constraint", "beta_constraint",
        "gamma_constraint", "lora_rank", "lora_alpha", "gptq_unpacked_column_size", "seed", "noise_shape",
        "input_length", "sliding_window", "renorm_clipping",
    )
) | dict.fromkeys(("rms_scaling", "use_gate", "sparse", "dynamic", "synchronized", "renorm"), False)  # fmt: skip


def config_of(layer: Any) -> dict[str, Any]:
    """Do what :meth:`Layer.get_config` says: arguments, and what policies do not say of the forms of matrices."""
    config = {"name": layer.name, "trainable": layer.trainable, "dtype": dtype_policies.serialize(layer._dtype_policy)}
    for option in layer._options:
        value = getattr(layer, option)
        if callable(value):
            value = (initializers if isinstance(value, initializers.Initializer) else activations).serialize(value)
        config[option] = value
    config |= serialized(layer._penalties)
    forms = {}
    for part in layer.flatten():
        given = layer._policy() if part is layer else policy_at(layer._dtype_policy, part.path)
        form = part._stated_form(given)
        if form is not None:
            forms[str(part.path)[len(layer._around) :].lstrip("/")] = form
    return config | ({"forms": forms} if forms else {})


def layer_of(cls: Any, root: type, config: Any) -> Any:
    """Do what :meth:`Layer.from_config` says: return a layer of a class, whose `root` is the base of all layers."""
    check_depth(config)
    if not isinstance(config, dict):
        raise ValueError(f"`config` must be a dict of arguments; received {config!r}")
    config = {key: value for key, value in config.items() if key not in ("batch_input_shape", "batch_shape")}
    config = cls._with_policy_of_config(config)
    forms = config.pop("forms", {})
    config = cls._under_quantizers(config, config.pop("quantization_config", None))
    known, open_ended = arguments_of(cls, root)
    for key, value in config.items():
        if key not in known and value and not open_ended:
            raise ValueError(f"{cls.__name__} has no argument `{key}`; received {key}={value!r}")
    if not isinstance(forms, dict) or not all(isinstance(form, dict) for form in forms.values()):
        raise ValueError(f"`forms` must be a dict of path and dict; received {forms!r}")
    layer = cls(**{key: value for key, value in config.items() if key in known or open_ended})
    if forms:
        layer._forms = forms
    return layer


def with_policy_as_in_keras(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with its policy as Keras hands it to constructors: a plain one by its name."""
    if not isinstance(config.get("dtype"), dict):
        return config
    policy = dtype_policies.deserialize(config["dtype"])
    plain = type(policy) in (DTypePolicy, FloatDTypePolicy) and not policy.name.startswith(QUANTIZATION_MODES)
    return config | {"dtype": policy.name if plain else policy}


def arguments_of(cls: type, root: type) -> tuple[set[str], bool]:
    """Return the names that a constructor takes, and whether it hands unknown ones on to `root`, which refuses them.

    A constructor with ``**kwargs`` hands arguments on to its base, so that the base's names are among those returned.
    """
    names: set[str] = set()
    for base in cls.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters
            names |= parameters.keys()
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
                return names, False
        if base is root:
            break
    return names, True


def check_without_use(layer: str, arguments: dict[str, Any]) -> None:
    """Raise ValueError unless all `arguments` are ones that Keras has, with the value that turns them off."""
    free = _SHAPE_OF_INPUTS + _OF_TRAINING
    unknown = [name for name in arguments if name not in _WITHOUT_USE and name not in free]
    if unknown:
        raise ValueError(f"Unrecognized keyword arguments passed to {layer}: {', '.join(unknown)}")
    for name, value in arguments.items():
        if name in _WITHOUT_USE and value is not _WITHOUT_USE[name]:
            raise ValueError(f"mp_core has no `{name}`: it must be {_WITHOUT_USE[name]}; received {name}={value!r}")


def data_format_of(value: str | None) -> str:
    """Return where inputs have their channels: last unless `value` says otherwise."""
    if value not in (None, "channels_last", "channels_first"):
        raise ValueError(f"`data_format` must be 'channels_last' or 'channels_first'; received {value!r}")
    return value or "channels_last"


def sizes_of(value: int | Sequence[int], argument: str, rank: int) -> tuple[int, ...]:
    """Return a positive integer for each of `rank` axes."""
    sizes = tuple(value) if isinstance(value, Sequence) else (value,) * rank
    if len(sizes) != rank:
        wanted = "a pair of them" if rank == 2 else f"a sequence of {rank}"
        raise ValueError(f"`{argument}` must be a positive integer or {wanted}; received {value!r}")
    return tuple(positive_integer(size, argument) for size in sizes)
