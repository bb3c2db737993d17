"""Keras' quantizer object for :func:`abs_max_quantize`, and its form in Keras' files.

As in Keras, ``axis`` names the axes that share a scale.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import Array, dtypes
from mp_core.policies.quantizers.abs_max import abs_max_quantize, increasing_range
from mp_core.utilities.arguments import axes_of, number
from mp_core.utilities.registry import class_and_config
from mp_core.utilities.serialization import serialize_keras_object


@dataclass(frozen=True, init=False)
class AbsMaxQuantizer:
    """:func:`abs_max_quantize` with stored arguments; call the object with an array.

    Parameters
    ----------
    axis : int or sequence of int, optional
        The axes that share one scale, unless a call passes others. None: the last axis.
    value_range : tuple of int
    epsilon : float
    output_dtype : dtype or str

    Examples
    --------
    >>> values, scale = AbsMaxQuantizer(axis=0)([[1.0, -4.0], [2.0, 1.0]])
    >>> values
    array([[  63, -127],
           [ 127,   32]], dtype=int8)
    """

    axis: tuple[int, ...] | None
    value_range: tuple[int, int]
    epsilon: float
    output_dtype: str

    def __init__(
        self,
        axis: int | Sequence[int] | None = None,
        value_range: tuple[int, int] = (-127, 127),
        epsilon: float = 1e-7,
        output_dtype: DTypeLike = "int8",
    ) -> None:
        name = dtypes.parse(output_dtype, "output_dtype").name
        low, high = increasing_range(value_range)
        if name == "int8" and not (low >= -128 and high <= 127):
            raise ValueError(
                "Quantizer with output_dtype='int8' requires value_range to be within the interval [-128, 127]. "
                f"Received: value_range={value_range}"
            )
        settings = {
            "axis": None if axis is None else axes_of(axis),
            "value_range": (low, high),
            "epsilon": number(epsilon, "epsilon", 0.0),
            "output_dtype": name,
        }
        for key, value in settings.items():
            object.__setattr__(self, key, value)

    def __call__(
        self, x: ArrayLike, axis: int | Sequence[int] | None = None, to_numpy: bool = False
    ) -> tuple[Array, Array]:
        """Return (values, scale) of `x`. `to_numpy` is ignored: results are always NumPy arrays."""
        chosen = axis if axis is not None else self.axis if self.axis is not None else -1
        return abs_max_quantize(x, chosen, self.value_range, self.output_dtype, self.epsilon, to_numpy)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments; without ``axis`` if that is None."""
        config = {"value_range": self.value_range, "epsilon": self.epsilon, "output_dtype": self.output_dtype}
        return config if self.axis is None else config | {"axis": self.axis}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AbsMaxQuantizer":
        """Return the quantizer with the arguments of :meth:`get_config`; tuples may be lists, as in JSON."""
        return cls(**config | {"value_range": tuple(config.get("value_range", (-127, 127)))})


def serialize(quantizer: AbsMaxQuantizer) -> dict[str, Any]:
    """Return the dictionary that Keras stores for `quantizer` in its files.

    >>> serialize(AbsMaxQuantizer())["class_name"]
    'AbsMaxQuantizer'
    """
    return serialize_keras_object(quantizer)  # type: ignore[no-any-return]


def deserialize(config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Any:
    """Return the quantizer for a dictionary of :func:`serialize`; its class may be one of `custom_objects`.

    >>> deserialize({"class_name": "AbsMaxQuantizer", "config": {"axis": 0}}).axis
    (0,)
    """
    classes = {"AbsMaxQuantizer": AbsMaxQuantizer} | (custom_objects or {})
    found, own = class_and_config(config, classes, "quantizer")
    return found.from_config(own)


def get(identifier: Any, **kwargs: Any) -> Any:
    """Return the quantizer for a name, class, object or configuration.

    Parameters
    ----------
    identifier : str, type, callable, dict or None
        ``"AbsMaxQuantizer"`` or ``"abs_max_quantizer"``; a class, which is called with `kwargs`; a quantizer or another
        callable, which is returned; a dictionary of :func:`serialize`. None returns None.
    **kwargs
        Arguments for a name or a class.

    Examples
    --------
    >>> get("abs_max_quantizer", axis=-1).axis
    (-1,)
    """
    if identifier is None:
        return None
    if isinstance(identifier, dict):
        return deserialize(identifier)
    found: Callable[..., Any] | None = identifier if callable(identifier) else None
    if isinstance(identifier, str) and identifier in ("AbsMaxQuantizer", "abs_max_quantizer"):
        found = AbsMaxQuantizer
    if found is None:
        raise ValueError(
            "Could not interpret quantizer identifier. Expected 'AbsMaxQuantizer', a class, a callable, a config or "
            f"None. Received: {identifier!r}"
        )
    return found(**kwargs) if isinstance(found, type) else found


def has_floating_inputs(config: Any, scale_axes: tuple[set[int], int]) -> bool:
    """Return whether a ``quantization_config`` of Keras keeps the inputs of an int8 layer as floats.

    `scale_axes` are the axes of the variable along which scales are shared, and its number of axes.
    """
    if config is None:
        return False
    if not isinstance(config, dict):
        raise ValueError(f"`quantization_config` must be a dict of Keras or None; received {config!r}")
    given = config["config"] if config.get("config") is not None else {}
    if not isinstance(given, dict):
        raise ValueError(f"the `config` of a `quantization_config` must be a dict; received {given!r}")
    int8 = config.get("class_name") == "Int8QuantizationConfig"
    axes, ndim = scale_axes
    expected = AbsMaxQuantizer(sorted(axes), (-127, 127) if int8 else (-8, 7))
    weights = given.get("weight_quantizer") and deserialize(given["weight_quantizer"])
    if isinstance(weights, AbsMaxQuantizer):
        chosen = tuple(sorted(axis % max(ndim, 1) for axis in weights.axis or (-1,)))
        weights = AbsMaxQuantizer(chosen, weights.value_range, weights.epsilon, weights.output_dtype)
    if weights not in (None, expected):
        raise ValueError(f"mp_core quantizes with `weight_quantizer` None or {expected}; received {weights}")
    inputs = given.get("activation_quantizer") and deserialize(given["activation_quantizer"])
    allowed = (None, AbsMaxQuantizer(), AbsMaxQuantizer(-1)) if int8 else (None,)
    if inputs not in allowed:
        raise ValueError(f"mp_core quantizes with `activation_quantizer` {allowed[-1]}; received {inputs}")
    return int8 and "activation_quantizer" in given and inputs is None
