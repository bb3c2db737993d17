"""Quantized policies: a quantization mode on top of a plain policy, as in ``int8_from_mixed_bfloat16``.

Classes and terms are Keras' (``block_size`` included), except SchemeDTypePolicy: its modes are schemes that Keras
lacks. The property ``scheme`` says what a policy stores, in mp_core's terms.
"""

from re import fullmatch
from typing import Any

from mp_core.arrays.quantization.microscaling import MICROSCALING
from mp_core.policies.dtype_policies.policy import DTypePolicy
from mp_core.policies.dtype_policies.schemes import LARGEST_GROUP, Scheme

__all__ = [
    "QUANTIZATION_MODES",
    "AWQDTypePolicy",
    "GPTQDTypePolicy",
    "Int4DTypePolicy",
    "QuantizedDTypePolicy",
    "QuantizedFloat8DTypePolicy",
    "SchemeDTypePolicy",
    "parse_quantized",
]

QUANTIZATION_MODES = ("int8", "float8", "int4", "ternary", "gptq", "awq")
_SCHEMES = {"int8": "int8", "int4": "int4/-1"}
"""Keras' mode without parameters -> spelling of the scheme that it stores. Other modes, such as float8, have none."""


class QuantizedDTypePolicy(DTypePolicy):
    """A policy whose layers hold quantized weights.

    Parameters
    ----------
    mode : str
        One of ``QUANTIZATION_MODES``.
    source_name : str, optional
        The name of the plain policy, which gives the dtypes. Default: the name of :func:`dtype_policy`.

    Raises
    ------
    TypeError
        `source_name` or `mode` is not a string.
    ValueError
        `source_name` is not a plain policy, `mode` is unknown, or they do not fit each other (int8 with float16).

    Examples
    --------
    >>> QuantizedDTypePolicy("int8", "mixed_bfloat16")
    <QuantizedDTypePolicy "int8_from_mixed_bfloat16">
    """

    __slots__ = ("_mode", "_quantization_mode", "_source_name")

    def __init__(self, mode: str, source_name: str | None = None) -> None:
        super().__init__(source_name)
        if not isinstance(mode, str):
            raise TypeError(f"`mode` must be a string, such as 'int8'. Received: mode={mode!r} (of type {type(mode)})")
        self._mode, self._quantization_mode = self._parse_mode(mode)
        scheme = self.scheme
        integers = scheme is not None and not (scheme.is_weight_only or scheme.kind.dtype.name.startswith("float8"))
        if integers and self.compute_dtype == "float16":
            raise ValueError(f"Quantization mode='{mode}' doesn't work well with compute_dtype='float16'.")
        self._source_name = self._name
        self._name = f"{self._mode}_from_{self._source_name}"

    def _parse_mode(self, mode: str) -> tuple[str, str]:
        """Return the normalized `mode` and its quantization mode; subclasses also set attributes from it."""
        if mode not in QUANTIZATION_MODES:
            raise ValueError(f"Invalid quantization mode. Expected one of {QUANTIZATION_MODES}. Received: mode={mode}")
        return mode, mode

    @property
    def quantization_mode(self) -> str:
        """The quantization mode, such as ``"int8"``."""
        return self._quantization_mode

    @property
    def scheme(self) -> Scheme | None:
        """How layers store quantized weights; None for float8, ternary, gptq and awq, which are not schemes."""
        spelling = _SCHEMES.get(self._mode)
        return None if spelling is None else Scheme.parse(spelling)

    @property
    def source_name(self) -> str:
        """The name of the plain policy."""
        return self._source_name

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that construct an equal policy."""
        return {"mode": self._mode, "source_name": self._source_name}


class QuantizedFloat8DTypePolicy(QuantizedDTypePolicy):
    """A float8 policy with the length of the history from which its scales are computed.

    Raises
    ------
    TypeError
        `amax_history_length` is not an integer.

    Examples
    --------
    >>> QuantizedFloat8DTypePolicy("float8", "mixed_bfloat16").amax_history_length
    1024
    """

    __slots__ = ("_amax_history_length",)
    default_amax_history_length = 1024

    def __init__(
        self, mode: str, source_name: str | None = None, amax_history_length: int = default_amax_history_length
    ) -> None:
        super().__init__(mode, source_name)
        if not isinstance(amax_history_length, int):
            raise TypeError(
                f"`amax_history_length` must be an integer. Received: amax_history_length={amax_history_length}"
            )
        self._amax_history_length = amax_history_length

    @property
    def amax_history_length(self) -> int:
        """The number of past maxima from which a scale is computed."""
        return self._amax_history_length

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that construct an equal policy."""
        return super().get_config() | {"amax_history_length": self._amax_history_length}

    def _key(self) -> tuple[Any, ...]:
        return (self.name, self._amax_history_length)


class SchemeDTypePolicy(QuantizedDTypePolicy):
    """A policy for schemes that Keras lacks: weight-only int8, fixed inputs, float8 codes, microscaling formats.

    Parameters
    ----------
    mode : str
        The spelling of a :class:`Scheme`, except ``"int8"``, ``"int4/N"`` and ``"int4/-1"``, for which Keras has
        classes.
    source_name : str, optional
        The name of the plain policy. Default: the name of :func:`dtype_policy`.

    Raises
    ------
    TypeError
        `source_name` or `mode` is not a string.
    ValueError
        `source_name` is not a plain policy, `mode` is not such a scheme, or they do not fit each other (int8 products
        with float16).

    Examples
    --------
    >>> policy = SchemeDTypePolicy("int8/weight_only/64", "mixed_float16")
    >>> policy.quantization_mode, policy.scheme.group_size
    ('int8', 64)
    """

    __slots__ = ()

    def _parse_mode(self, mode: str) -> tuple[str, str]:
        try:
            scheme = Scheme.parse(mode)
        except ValueError as error:
            raise ValueError(f"Invalid mode for SchemeDTypePolicy: {error}") from None
        if mode == "int8" or (scheme.codes == "int4" and scheme.is_weight_only):
            keras = "QuantizedDTypePolicy" if mode == "int8" else "Int4DTypePolicy"
            raise ValueError(f"Invalid mode for SchemeDTypePolicy. Expected {keras} for it. Received: mode={mode}")
        return mode, scheme.codes.partition("_")[0]

    @property
    def scheme(self) -> Scheme:
        """What layers store."""
        return Scheme.parse(self._mode)


class Int4DTypePolicy(QuantizedDTypePolicy):
    """int4 weights in blocks that share a scale, such as ``"int4/128"``; -1 (or ``None``) is one block per channel.

    Examples
    --------
    >>> Int4DTypePolicy("int4/None", "float32")
    <Int4DTypePolicy "int4/-1_from_float32">
    """

    __slots__ = ("_block_size",)

    def _parse_mode(self, mode: str) -> tuple[str, str]:
        parts = mode.split("/")
        if len(parts) != 2 or parts[0] != "int4":
            raise ValueError(f"Invalid mode for Int4DTypePolicy. Expected 'int4/<block_size>'. Received: mode={mode}")
        self._block_size = _parse_size("block_size", "-1" if parts[1] == "None" else parts[1], mode)
        return f"int4/{self._block_size}", "int4"

    @property
    def mode(self) -> str:
        """The mode without its block size."""
        return "int4"

    @property
    def block_size(self) -> int:
        """The number of weights that share a scale; -1 for a whole channel."""
        return self._block_size

    @property
    def scheme(self) -> Scheme:
        """What layers store."""
        if self._block_size < 0:
            return Scheme("int4")
        return Scheme("int4", group_size=min(self._block_size, LARGEST_GROUP), per="group")


class GPTQDTypePolicy(QuantizedDTypePolicy):
    """Weights from GPTQ: ``"gptq/<bits>/<group_size>"`` with 2, 3, 4 or 8 bits; group size -1 is a whole channel.

    Examples
    --------
    >>> GPTQDTypePolicy("gptq/4/128", "float32").weight_bits
    4
    """

    __slots__ = ("_group_size", "_weight_bits")
    _family = "gptq"
    _bits: tuple[int, ...] = (2, 3, 4, 8)

    def _parse_mode(self, mode: str) -> tuple[str, str]:
        parts = mode.split("/")
        name = type(self).__name__
        if len(parts) != 3 or parts[0] != self._family:
            raise ValueError(
                f"Invalid mode for {name}. Expected '{self._family}/<weight_bits>/<group_size>'. Received: mode={mode}"
            )
        if parts[1] not in map(str, self._bits):
            allowed = " or ".join(map(str, self._bits))
            raise ValueError(f"Invalid weight_bits in mode. {name} only supports {allowed}-bit. Received: mode={mode}")
        self._weight_bits = int(parts[1])
        self._group_size = _parse_size("group_size", parts[2], mode)
        return mode, self._family

    @property
    def mode(self) -> str:
        """The mode without its parameters."""
        return self._family

    @property
    def weight_bits(self) -> int:
        """The width of a weight in bits."""
        return self._weight_bits

    @property
    def group_size(self) -> int:
        """The number of weights that share a scale; -1 for a whole channel."""
        return self._group_size


class AWQDTypePolicy(GPTQDTypePolicy):
    """Weights from AWQ: ``"awq/4/<group_size>"``; always 4 bits.

    Examples
    --------
    >>> AWQDTypePolicy("awq/4/128", "float32").group_size
    128
    """

    __slots__ = ()
    _family = "awq"
    _bits = (4,)


def _parse_size(name: str, text: str, mode: str) -> int:
    """Return a positive size or -1."""
    if text != "-1" and not fullmatch("[1-9][0-9]{0,99}", text):
        raise ValueError(f"Invalid {name} in mode. Expected -1 or a positive integer. Received: mode={mode}")
    return int(text)


_FAMILIES: dict[str, type[QuantizedDTypePolicy]] = {
    "float8_": SchemeDTypePolicy,
    "float8": QuantizedFloat8DTypePolicy,
    "int8/": SchemeDTypePolicy,
    "int4/dynamic": SchemeDTypePolicy,
    "int4/": Int4DTypePolicy,
    **dict.fromkeys(MICROSCALING, SchemeDTypePolicy),
    "gptq": GPTQDTypePolicy,
    "awq": AWQDTypePolicy,
}


def parse_quantized(name: str) -> QuantizedDTypePolicy:
    """Return the policy of a name such as ``"int8_from_mixed_bfloat16"``.

    Raises
    ------
    ValueError
        `name` is not ``<mode>_from_<source_name>``, or one of the two is invalid.
    """
    mode, *rest = name.split("_from_")
    if len(rest) != 1:
        raise ValueError(
            "Cannot convert `policy` into a valid pair (`mode`, `source_name`), as in 'int8_from_float32'. "
            f"Received: policy={name}{_hint(name)}"
        )
    policy = next((cls for prefix, cls in _FAMILIES.items() if mode.startswith(prefix)), QuantizedDTypePolicy)
    return policy(mode, rest[0])


def _hint(mode: str) -> str:
    """Return a hint for the error about a mode without a source: the policy that was probably meant."""
    try:
        return f"; did you mean {Scheme.parse(mode)}_from_mixed_bfloat16?"
    except ValueError:
        return ""
