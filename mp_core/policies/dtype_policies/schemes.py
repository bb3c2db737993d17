"""Quantization schemes and their spelling: ``int8``, ``int8/weight_only/64``, ``int4/64``, ``mxfp4``, ``nvfp4``."""

from dataclasses import dataclass
from functools import lru_cache
from re import fullmatch
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays.quantization import QuantizedArray, quantize
from mp_core.arrays.quantization.calls import quantize_blocks
from mp_core.arrays.quantization.codes import CODES, Codes
from mp_core.arrays.quantization.microscaling import MICROSCALING

__all__ = ["LARGEST_GROUP", "SPELLINGS", "Scheme"]

_EVERY = ("channel", "tensor", "group")
_TABLE: dict[str, dict[str, tuple[str, ...]]] = {
    "int8": {"dynamic": ("channel", "tensor"), "fixed": ("channel", "tensor"), "float": _EVERY},
    "int4": {"float": ("group", "channel"), "dynamic": ("group", "channel")},
    "float8_e4m3fn": {"float": _EVERY, "fixed": ("tensor",)},
    "float8_e5m2": {"float": _EVERY, "fixed": ("tensor",)},
    "mxfp4": {"float": ("group",), "dynamic": ("group",)},
    "mxfp8_e4m3": {"float": ("group",)},
    "mxfp8_e5m2": {"float": ("group",)},
    "mxint8": {"float": ("group",), "dynamic": ("group",)},
    "nvfp4": {"float": ("group",), "dynamic": ("group",)},
}
"""Codes -> kind of inputs (the default first) -> which weights may share a scale (the default first)."""
_FORMAT_OF = {(x.codes, x.block): name for name, x in MICROSCALING.items() if x.codes not in _TABLE}
"""Codes and block -> the microscaling format, for codes that only these formats have."""
_INPUTS = {"dynamic": "dynamic", "fixed": "fixed", "float": "weight_only"}
LARGEST_GROUP = 2**31 - 1
"""The longest group, limited by the C type of group sizes."""
_LARGEST_STORED = 1 << 15
"""The longest group in files, since files are converted piece by piece."""


def _spelled(codes: str, inputs: str, per: str, size: object) -> str:
    """Return ``codes/inputs/sharing``, without the defaults. int4 always names its groups, MX formats never do."""
    parts = [codes] if inputs == next(iter(_TABLE[codes])) else [codes, _INPUTS[inputs]]
    size = "" if codes in MICROSCALING else str(size)
    shared = {"channel": "-1" if codes == "int4" else "", "tensor": "tensor", "group": size}[per]
    return "/".join([*parts, shared] if shared else parts)


_BY_SPELLING = {
    _spelled(codes, inputs, per, "N"): (codes, inputs, per)
    for codes, by_inputs in _TABLE.items()
    for inputs, every in by_inputs.items()
    for per in every
}
SPELLINGS = tuple(_BY_SPELLING)
"""The spellings of all schemes; N is the length of a group."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the matrix of a layer is quantized: ``x ~ scale * (q - zero_point)``.

    ``str`` returns its spelling, and :meth:`parse` reads it. Matrices are lines-major, like the weights of a Linear
    layer in files: (outputs, inputs). A line has the weights of one output.

    Parameters
    ----------
    codes : {"int8", "int4", "float8_e4m3fn", "float8_e5m2", "mxfp4", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "nvfp4"}
        The type of the codes, or a microscaling format, which states the type, the groups and the scales. int4 has zero
        points; the others are symmetric.
    inputs : {"float", "dynamic", "fixed"}
        The inputs of products: floats (weight-only), quantized row by row during the call, or quantized with stored
        scales. Groups of int8 and float8 need float inputs, and fixed inputs of float8 need ``per="tensor"``.
    group_size : int, optional
        With ``per="group"``, the number of neighbours in a line that share a scale: from 1 to 2147483647, for int4 with
        dynamic inputs a multiple of 8. Default: the block of a microscaling format.
    per : {"channel", "tensor", "group"}
        Which weights share a scale: those of a line, of the whole matrix, or of a group. Default: of a group for
        microscaling formats, of a line for others.

    Examples
    --------
    >>> str(Scheme("int8", "dynamic")), str(Scheme("int4", group_size=64, per="group"))
    ('int8', 'int4/64')
    >>> Scheme.parse("int8/weight_only/64")
    Scheme(codes='int8', inputs='float', group_size=64, per='group')
    """

    codes: str
    inputs: str = "float"
    group_size: int | None = None
    per: str = ""

    def __post_init__(self) -> None:
        """Check that there is such a scheme."""
        _one_of("codes", self.codes, _TABLE)
        _one_of("inputs", self.inputs, _TABLE[self.codes], f" for {self.codes}")
        if self.per == "":
            object.__setattr__(self, "per", "group" if self.codes in MICROSCALING else "channel")
        _one_of("per", self.per, _TABLE[self.codes][self.inputs], f" for {self.codes} with {self.inputs} inputs")
        if self.codes in MICROSCALING and self.group_size is None:
            object.__setattr__(self, "group_size", MICROSCALING[self.codes].block)
        size = self.group_size
        if size is not None and type(size) is not int:
            raise TypeError(f"`group_size` must be an int or None; received {size!r}")
        if self.per == "group" and (size is None or not 1 <= size <= LARGEST_GROUP):
            raise ValueError(f"`group_size` must be from 1 to {LARGEST_GROUP} for per='group'; received {size}")
        if self.codes in MICROSCALING and size != MICROSCALING[self.codes].block:
            raise ValueError(f"`group_size` must be {MICROSCALING[self.codes].block} for {self.codes}; received {size}")
        if self.codes == "int4" and self.inputs == "dynamic" and size is not None and size % 8:
            raise ValueError(f"`group_size` must be a multiple of 8 for int4 with dynamic inputs; received {size}")
        if self.per != "group" and size is not None:
            raise ValueError(f"`group_size` must be None for per={self.per!r}; received {size}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the scheme of a spelling: one of ``SPELLINGS``, with a number for N.

        >>> Scheme.parse("int8").inputs, Scheme.parse("float8_e4m3fn/tensor").per
        ('dynamic', 'tensor')
        """
        if not isinstance(text, str):
            raise TypeError(f"a scheme must be a string such as 'int8'; received {text!r}")
        return cls(*_parsed(text))

    @classmethod
    def of(cls, q: QuantizedArray, inputs: str = "float") -> Self:
        """Return the scheme of a lines-major matrix of codes, for products with these `inputs`.

        >>> str(Scheme.of(quantize(np.eye(4), axis=0, dtype="int4", group_size=2)))
        'int4/2'
        """
        if not isinstance(q, QuantizedArray):
            raise TypeError(f"`q` must be a QuantizedArray; received {type(q).__name__}")
        per = "group" if q.group_size is not None else "channel" if q.axis else "tensor"
        found = cls.of_codes(q.dtype.name, inputs, q.group_size, per)
        if q.axis != found.axis(len(q.shape)):
            raise ValueError(
                f"`q` must have axis={found.axis(len(q.shape))} for {per} scales, lines-major; received axis={q.axis}"
            )
        return found

    @classmethod
    def of_codes(cls, codes: str, inputs: str, group_size: int | None, per: str) -> Self:
        """Return the scheme with this type of codes; raise ValueError if there is none.

        Codes that only microscaling formats have are of the format with these groups.

        Examples
        --------
        >>> str(Scheme.of_codes("float4_e2m1fn", "float", 16, "group"))
        'nvfp4'
        """
        return cls(_FORMAT_OF.get((codes, group_size or 0), codes), inputs, group_size, per)

    def describes(self, q: QuantizedArray) -> bool:
        """Return whether a lines-major matrix has these codes and scales; a group longer than a line is the whole line.

        >>> q = quantize(np.eye(4), axis=0, dtype="int4")
        >>> [Scheme.parse(f"int4/{size}").describes(q) for size in (-1, 2, 64)]
        [True, False, True]
        """
        split = None if self.group_size is None or self.group_size >= q.shape[-1] else self.group_size
        found = None if q.group_size is None or q.group_size >= q.shape[-1] else q.group_size
        return (q.dtype, q.axis, found) == (self.dtype, self.axis(len(q.shape)), split)

    def __str__(self) -> str:
        return _spelled(self.codes, self.inputs, self.per, self.group_size)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the codes of its arrays."""
        return self.kind.dtype

    @property
    def kind(self) -> Codes:
        """The type of the codes, their range, and how they are stored."""
        return CODES[MICROSCALING[self.codes].codes if self.codes in MICROSCALING else self.codes]

    @property
    def can_fix_inputs(self) -> bool:
        """Whether there is a scheme of these codes with fixed inputs."""
        return "fixed" in _TABLE[self.codes]

    @property
    def is_weight_only(self) -> bool:
        """Whether the inputs of products stay floats."""
        return self.inputs == "float"

    @property
    def has_trainable_codes(self) -> bool:
        """Whether quantization-aware training supports it: int8 with any inputs, int4 with float inputs."""
        return self.codes == "int8" or (self.codes == "int4" and self.is_weight_only)

    @property
    def symmetric(self) -> bool:
        """Whether code 0 always means the value 0, so that there are no zero points."""
        return self.codes != "int4"

    @property
    def has_whole_blocks(self) -> bool:
        """Whether lines must be a multiple of `group_size` long."""
        return self.codes in MICROSCALING

    @property
    def depends_on_all(self) -> bool:
        """Whether the scales of groups depend on the largest magnitude of the whole matrix."""
        return self.codes == "nvfp4"

    def axis(self, ndim: int = 2) -> tuple[int, ...]:
        """Return the axes along which scales differ, for a lines-major array with `ndim` axes."""
        return {"tensor": (), "channel": (0,), "group": tuple(range(ndim - 1))}[self.per]

    def check_stored(self) -> None:
        """Raise ValueError if files cannot store it: their group sizes are powers of two from 2 to 32768."""
        size = self.group_size
        if size is not None and (not 2 <= size <= _LARGEST_STORED or size & (size - 1)):
            raise ValueError(
                f"group sizes in files must be powers of two from 2 to {_LARGEST_STORED}; received '{self}'"
            )

    def quantize(self, lines: ArrayLike, whole: float | None = None) -> QuantizedArray:
        """Quantize a float matrix of shape (n, k), lines-major; a group longer than a line is the whole line.

        If there are more axes, groups are along the last one. With fixed inputs, multiply each column by the scale of
        its input first. For nvfp4, if `lines` are a part of a matrix, `whole` is the largest magnitude in that matrix.

        >>> q = Scheme.parse("int4/2").quantize([[0.0, 3.0, -1.0, 0.5]])
        >>> q.scale, q.zero_point
        (array([[0.2, 0.1]], dtype=float32), array([[-8,  2]], dtype=int32))
        """
        shape = np.shape(lines)
        axis = self.axis(len(shape))
        if self.codes in MICROSCALING:
            return quantize_blocks(self.codes, lines, axis, whole=whole)
        return quantize(lines, axis=axis, dtype=self.dtype, symmetric=self.symmetric, group_size=self.group_size)


def _one_of(name: str, value: Any, allowed: Any, condition: str = "") -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"`{name}` must be {' or '.join(map(repr, allowed))}{condition}; received {value!r}")


@lru_cache(256)
def _parsed(text: str) -> tuple[str, str, int | None, str]:
    """Return the fields of the scheme with the spelling `text`."""
    start, _, last = text.rpartition("/")
    size = int(last) if fullmatch("[1-9][0-9]{0,9}", last) else None
    codes, inputs, per = _BY_SPELLING.get(f"{start}/N" if size else text, ("", "", ""))
    unsized = per == "group" and codes not in MICROSCALING and not 1 <= (size or 0) <= LARGEST_GROUP
    if not codes or unsized:
        if text == "int4":
            raise ValueError("a scheme of int4 must name its groups, as in int4/64; received 'int4'")
        raise ValueError(
            f"a scheme must be one of {', '.join(SPELLINGS)}, N from 1 to {LARGEST_GROUP}; received {text!r}"
        )
    return codes, inputs, size, per
