"""Keras' ``quantization_config`` objects that are equivalent to a quantization mode."""

from typing import Any, Self

from mp_core.policies.quantizers.quantizer import AbsMaxQuantizer, get, serialize
from mp_core.utilities.arguments import boolean, integer, positive_integer, share
from mp_core.utilities.docstrings import documented
from mp_core.utilities.registry import own_config

__all__ = [
    "AWQConfig",
    "Float8QuantizationConfig",
    "GPTQConfig",
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


class _SampleConfig(QuantizationConfig):
    """The base of configurations with a sample, for which kernels are fitted."""

    def __init__(
        self, dataset: Any, tokenizer: Any, weight_bits: int, num_samples: int, sequence_length: int, group_size: int,
        quantization_layer_structure: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.dataset, self.tokenizer = dataset, tokenizer
        self.weight_bits = weight_bits
        self.num_samples = positive_integer(num_samples, "num_samples")
        self.sequence_length = positive_integer(sequence_length, "sequence_length")
        self.group_size = -1 if integer(group_size, "group_size") == -1 else positive_integer(group_size, "group_size")
        self.quantization_layer_structure = quantization_layer_structure

    def dtype_policy_string(self) -> str:
        """Return the mode for :meth:`Layer.quantize`, such as ``"gptq/4/128"``."""
        return f"{self.mode}/{self.weight_bits}/{self.group_size}"

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments as Keras serializes them: without the sample."""
        names = ("weight_bits", "num_samples", "sequence_length", "group_size", "quantization_layer_structure")
        return {"dataset": None, "tokenizer": None} | {name: getattr(self, name) for name in names}


_SAMPLE = documented("""
    Parameters
    ----------
    dataset : iterable or None
        Texts for `tokenizer`, or arrays of token numbers. They are joined, and repeated if they are too few.
        `num_samples` windows of `sequence_length` tokens, at equal distances, are the sample. None: there is no sample,
        and codes are the nearest ones.
    tokenizer : object or None
        Its method ``tokenize``, or itself, returns the token numbers of a text. Not needed for arrays.
    num_samples, sequence_length : int
    group_size : int
        How many inputs share a scale and a zero point; -1 means all of them.
    quantization_layer_structure : dict, optional
        ``{"pre_block_layers": [...], "sequential_blocks": [...]}``: the layers that are called before the first block,
        and the blocks, each of which is called with the output of the one before. Default: what the model's method
        ``get_quantization_layer_structure(mode)`` returns; if it has none, the model is the only block.
""")  # fmt: skip


@_SAMPLE
class GPTQConfig(_SampleConfig):
    """The mode ``"gptq/<weight_bits>/<group_size>"``, with a sample of inputs for which the kernels are rounded.

    Parameters
    ----------
    weight_bits : int
        2, 3, 4 or 8.
    hessian_damping : float
        From 0 to 1: what is added to each second moment of the inputs, as a share of their mean.
    symmetric : bool
        Whether the middle of the codes stands for 0.
    per_channel : bool
        True: scales differ between outputs. mp_core has no other kind.
    activation_order : bool
        Accepted. Kernels are always rounded in the order of the second moments, the largest first; groups are always
        consecutive inputs.

    Examples
    --------
    >>> import numpy as np
    >>> from mp_core.layers import Dense, Embedding, Sequential
    >>> model = Sequential([Embedding(50, 32), Dense(16, activation="relu"), Dense(4)])
    >>> model.build((None, 8))
    >>> tokens = np.random.default_rng(0).integers(0, 50, 500)
    >>> model.quantize(config=GPTQConfig([tokens], None, num_samples=16, sequence_length=8, group_size=16))
    >>> [layer.dtype_policy.name for layer in model.layers[1:]]
    ['gptq/4/16_from_float32', 'gptq/4/16_from_float32']
    """

    def __init__(
        self, dataset: Any, tokenizer: Any, *, weight_bits: int = 4, num_samples: int = 128, per_channel: bool = True,
        sequence_length: int = 512, hessian_damping: float = 0.01, group_size: int = 128, symmetric: bool = False,
        activation_order: bool = False, quantization_layer_structure: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if weight_bits not in (2, 3, 4, 8):
            raise ValueError(f"`weight_bits` must be 2, 3, 4 or 8; received {weight_bits}")
        if not boolean(per_channel, "per_channel"):
            raise ValueError("`per_channel` must be True: each output has its own scales; received False")
        super().__init__(
            dataset, tokenizer, weight_bits, num_samples, sequence_length, group_size, quantization_layer_structure
        )
        self.per_channel = True
        self.hessian_damping = share(hessian_damping, "hessian_damping")
        self.symmetric = boolean(symmetric, "symmetric")
        self.activation_order = boolean(activation_order, "activation_order")

    @property
    def mode(self) -> str:
        """The mode of Keras."""
        return "gptq"

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments as Keras serializes them: without the sample."""
        names = ("per_channel", "hessian_damping", "symmetric", "activation_order")
        return super().get_config() | {name: getattr(self, name) for name in names}


@_SAMPLE
class AWQConfig(_SampleConfig):
    """The mode ``"awq/4/<group_size>"``, with a sample of inputs for which the scales of inputs are chosen.

    Parameters
    ----------
    weight_bits : int
        4.
    num_grid_points : int
        The number of steps between the ratios 0 and 1 that are tried.

    Examples
    --------
    >>> AWQConfig(None, None, group_size=64).dtype_policy_string()
    'awq/4/64'
    """

    def __init__(
        self, dataset: Any, tokenizer: Any, *, weight_bits: int = 4, num_samples: int = 128,
        sequence_length: int = 512, group_size: int = 128, num_grid_points: int = 20,
        quantization_layer_structure: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if weight_bits != 4:
            raise ValueError(f"`weight_bits` must be 4; received {weight_bits}")
        super().__init__(
            dataset, tokenizer, weight_bits, num_samples, sequence_length, group_size, quantization_layer_structure
        )
        self.num_grid_points = positive_integer(num_grid_points, "num_grid_points")

    @property
    def mode(self) -> str:
        """The mode of Keras."""
        return "awq"

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments as Keras serializes them: without the sample."""
        return super().get_config() | {"num_grid_points": self.num_grid_points}


_KINDS = ("Int8QuantizationConfig", "Int4QuantizationConfig", "Float8QuantizationConfig", "GPTQConfig", "AWQConfig")


def mode_and_quantizers(mode: str | None, config: Any) -> tuple[str, dict[str, Any] | None]:
    """Return the mode for the arguments of ``layer.quantize``, and the configuration as Keras serializes it.

    `config` is an object of this module or of Keras, or a mode; it must not contradict `mode`. A class of Keras that
    mp_core does not have raises NotImplementedError.
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
    family = None if mode is None else mode.partition("/")[0] if kind in ("GPTQConfig", "AWQConfig") else mode
    if kind is None or family not in (None, config.mode):
        raise ValueError(f"`config` must be one of {', '.join(_KINDS)}, of mode {mode}; received {config!r}")
    given = config.get_config()
    entry = {"class_name": kind, "config": given}
    if kind == "Int8QuantizationConfig":
        return ("int8/weight_only" if given["activation_quantizer"] is None else "int8"), entry
    if kind == "Int4QuantizationConfig":
        return f"int4/{-1 if given.get('block_size') is None else given['block_size']}", entry
    if kind == "Float8QuantizationConfig":
        return "float8", entry
    return f"{config.mode}/{given['weight_bits']}/{given['group_size']}", entry
