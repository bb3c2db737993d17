"""Keras' ``quantization_config`` objects that are equivalent to a quantization mode."""

from typing import Any, Self

from mp_core.policies.quantizers.quantizer import AbsMaxQuantizer, get, serialize
from mp_core.utilities.arguments import positive_integer
from mp_core.utilities.registry import own_config

__all__ = [
    "Float8QuantizationConfig",
    "Int4QuantizationConfig",
    "Int8QuantizationConfig",
    "QuantizationConfig",
    "mode_and_quantizers",
]


class QuantizationConfig:
    """The base of the configurations. Each subclass stands for one mode.

    Parameters
    ----------
    weight_quantizer, activation_quantizer : AbsMaxQuantizer or None

    Examples
    --------
    >>> from mp_core.layers import Dense
    >>> layer = Dense(2)
    >>> layer.build((None, 3))
    >>> layer.quantize(config=Int8QuantizationConfig(activation_quantizer=None))  # as mode "int8/weight_only"
    >>> layer.dtype_policy.quantization_mode, str(layer.dtype_policy.scheme)
    ('int8', 'int8/weight_only')
    """

    def __init__(self, weight_quantizer: Any = None, activation_quantizer: Any = None) -> None:
        self.weight_quantizer = get(weight_quantizer)
        self.activation_quantizer = get(activation_quantizer)

    @property
    def mode(self) -> str:
        """The mode of Keras."""
        raise NotImplementedError(f"{type(self).__name__} has no mode: use a subclass, such as Int8QuantizationConfig")

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments as Keras serializes them."""
        quantizers = {
            "weight_quantizer": self.weight_quantizer,
            "activation_quantizer": self.activation_quantizer,
        }
        return {name: None if quantizer is None else serialize(quantizer) for name, quantizer in quantizers.items()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the configuration with these arguments."""
        return cls(**own_config(config, cls.__name__))


class Int8QuantizationConfig(QuantizationConfig):
    """The mode ``"int8"``, or ``"int8/weight_only"`` if `activation_quantizer` is None.

    Parameters
    ----------
    weight_quantizer : AbsMaxQuantizer, optional
        None, or the layer's default quantizer.
    activation_quantizer : AbsMaxQuantizer or None
        None: inputs stay floats. Default: a quantizer along the last axis.

    Examples
    --------
    >>> Int8QuantizationConfig(activation_quantizer=None).mode
    'int8'
    """

    def __init__(self, weight_quantizer: Any = None, activation_quantizer: Any = "default") -> None:
        given = AbsMaxQuantizer() if activation_quantizer == "default" else activation_quantizer
        super().__init__(weight_quantizer, given)

    @property
    def mode(self) -> str:
        return "int8"


class Int4QuantizationConfig(QuantizationConfig):
    """The mode ``"int4/<block size>"``.

    Parameters
    ----------
    weight_quantizer, activation_quantizer : None
    block_size : int or None
        How many neighbours share a scale; -1 or None means a whole channel.

    Examples
    --------
    >>> Int4QuantizationConfig(block_size=64).block_size
    64
    """

    def __init__(
        self, weight_quantizer: Any = None, activation_quantizer: Any = "default", block_size: int | None = 128
    ) -> None:
        super().__init__(weight_quantizer, None if activation_quantizer == "default" else activation_quantizer)
        self.block_size = block_size if block_size in (None, -1) else positive_integer(block_size, "block_size")

    @property
    def mode(self) -> str:
        return "int4"

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"block_size": self.block_size}


class Float8QuantizationConfig(QuantizationConfig):
    """The mode ``"float8"``.

    >>> Float8QuantizationConfig().mode
    'float8'
    """

    def __init__(self) -> None:
        super().__init__()

    @property
    def mode(self) -> str:
        return "float8"

    def get_config(self) -> dict[str, Any]:
        return {}


_KINDS = ("Int8QuantizationConfig", "Int4QuantizationConfig", "Float8QuantizationConfig")


def mode_and_quantizers(mode: str | None, config: Any) -> tuple[str, dict[str, Any] | None]:
    """Return the mode for the arguments of ``layer.quantize``, and the configuration as Keras serializes it.

    `config` is an object of this module or of Keras, or a mode; it must not contradict `mode`. A class of Keras that
    mp_core does not have, such as GPTQConfig, raises NotImplementedError.
    """
    if isinstance(config, str):
        mode, config = mode or config, None if mode in (None, config) else config
    if config is None:
        if mode is None:
            raise ValueError("Invalid quantization mode without a `config`. Received: mode=None")
        return str(mode), None
    kind = next((base.__name__ for base in type(config).__mro__ if base.__name__ in _KINDS), None)
    if kind is None and isinstance(getattr(config, "mode", None), str) and hasattr(config, "get_config"):
        raise NotImplementedError(f"`config` must be one of {', '.join(_KINDS)}; received {config!r}")
    if kind is None or mode not in (None, config.mode):
        raise ValueError(f"`config` must be one of {', '.join(_KINDS)}, of mode {mode}; received {config!r}")
    given = config.get_config()
    entry = {"class_name": kind, "config": given}
    if kind == "Int8QuantizationConfig":
        return ("int8/weight_only" if given["activation_quantizer"] is None else "int8"), entry
    if kind == "Int4QuantizationConfig":
        return f"int4/{-1 if given.get('block_size') is None else given['block_size']}", entry
    return "float8", entry
