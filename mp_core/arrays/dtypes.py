"""Data types: names <-> NumPy / ml_dtypes dtypes, promotion, limits and the default float type.

This is the only table of types. Types are compared by name, because ml_dtypes registers its types with NumPy under the
kind ``V`` with an unhelpful ``str``.
"""

from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from mp_core.core.changes import changed
from mp_core.utilities.suggest import suggestion

__all__ = [
    "ALLOWED",
    "STORED",
    "WIDE",
    "finfo",
    "floatx",
    "is_float",
    "is_integer",
    "parse",
    "result_type",
    "set_floatx",
]


def __dir__() -> list[str]:
    return __all__


_FLOATS = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
_INTEGERS = {
    name: getattr(np, name) for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
}

ALLOWED: dict[str, np.dtype[Any]] = {
    name: np.dtype(scalar) for name, scalar in {**_FLOATS, **_INTEGERS, "bool": np.bool_}.items()
}
"""Name -> dtype of every type that mp_core computes with."""

# For parse(): name, dtype or scalar type -> dtype. A dtype from a pickle equals a key but is another object.
_PARSED: dict[Any, np.dtype[Any]] = {
    spelling: dtype for name, dtype in ALLOWED.items() for spelling in (name, dtype, dtype.type)
}
STORED: dict[str, np.dtype[Any]] = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in (
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e4m3b11fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn",
        "int4",
        "uint4",
    )
}
"""Name -> dtype of the types that are stored and converted, never computed with (docs/numerics.md)."""
WIDE = ("float32", "float16", "bfloat16")
"""The float types that products accept together with an operand of 8 bits or fewer."""


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype with this name in :data:`ALLOWED` or :data:`STORED`."""
    return ALLOWED.get(name) or STORED[name]


_WIDTH = {"float16": 1, "bfloat16": 1, "float32": 2, "float64": 3}
_floatx = "float32"


def foreign_name(dtype: Any) -> str:
    """Return the name of a dtype of PyTorch or TensorFlow; "" for everything else."""
    family = type(dtype).__module__.partition(".")[0]
    if family == "torch":
        return str(dtype).removeprefix("torch.")
    return str(getattr(dtype, "name", "")) if family == "tensorflow" else ""


def parse(dtype: DTypeLike, argument: str = "dtype", *, any_order: bool = False) -> np.dtype[Any]:
    """Return the NumPy dtype for a name, dtype or scalar type.

    Parameters
    ----------
    dtype : str, dtype or scalar type
        One of :data:`ALLOWED`, such as ``"bfloat16"``, ``np.float16``, ``ml_dtypes.float8_e5m2``, ``torch.bfloat16``.
    argument : str
        The name of the caller's argument, for the error.
    any_order : bool
        Whether to return a type in another byte order unchanged instead of raising.

    Examples
    --------
    >>> parse("bfloat16")
    dtype(bfloat16)
    """
    try:
        known = given = _PARSED.get(dtype)
        if known is None and dtype is not None:
            given = np.dtype(dtype)
            known = ALLOWED.get(given.name)
    except (TypeError, ValueError, SyntaxError):
        known = given = ALLOWED.get(foreign_name(dtype))
    if known is None:
        hint = suggestion(dtype, ALLOWED) if isinstance(dtype, str) else ""
        raise TypeError(f"`{argument}` must be one of {', '.join(ALLOWED)}; received {dtype!r}{hint}")
    if given is not None and not given.isnative:
        if any_order:
            return given
        raise TypeError(f"`{argument}` must be in native byte order; received {dtype!r}")
    return known


@lru_cache(256)
def name_of(dtype: np.dtype[Any]) -> str:
    """Return ``dtype.name`` from a cache: NumPy needs some microseconds to build it."""
    return dtype.name


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether `dtype` is one of the six floating-point types of :data:`ALLOWED`.

    >>> is_float(parse("bfloat16")), is_float(parse("int8"))
    (True, False)
    """
    return name_of(dtype) in _FLOATS


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Return whether `dtype` is one of the eight integer types of :data:`ALLOWED`.

    >>> is_integer(parse("int8")), is_integer(parse("bool"))
    (True, False)
    """
    return name_of(dtype) in _INTEGERS


def result_type(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which an operation on `a` and `b` computes (the lattice of Keras and JAX).

    Equal types give the same type; float16 and bfloat16 give float32; other floats give the wider one; a float and an
    integer give the float; two integers give NumPy's ``result_type``. float8 and another type raise TypeError, because
    float8 types never promote implicitly.

    >>> result_type(parse("float16"), parse("bfloat16"))
    dtype('float32')
    """
    one, other = name_of(a), name_of(b)
    if one == other:
        return a
    if "float8" in one or "float8" in other:
        raise TypeError(f"float8 types never promote implicitly: cast one operand first; received {one} and {other}")
    if is_float(a) and is_float(b):
        if _WIDTH[one] == _WIDTH[other]:
            return ALLOWED["float32"]
        return a if _WIDTH[one] > _WIDTH[other] else b
    if is_float(a) or is_float(b):
        return a if is_float(a) else b
    return np.result_type(a, b)


def finfo(dtype: DTypeLike) -> Any:
    """Return the limits of a floating-point type: ``ml_dtypes.finfo``, which supports NumPy's types too.

    >>> float(finfo("float8_e4m3fn").max)
    448.0
    """
    target = parse(dtype)
    if not is_float(target):
        raise TypeError(f"`dtype` must be a float type; received {target}")
    return ml_dtypes.finfo(target)  # type: ignore[no-untyped-call]


def floatx() -> str:
    """Return the name of the default float type, ``"float32"`` unless :func:`set_floatx` changed it.

    >>> floatx()
    'float32'
    """
    return _floatx


def set_floatx(value: str) -> None:
    """Set the default float type of the process.

    Parameters
    ----------
    value : {"bfloat16", "float16", "float32", "float64"}

    Examples
    --------
    >>> set_floatx("bfloat16")
    >>> floatx()
    'bfloat16'
    >>> set_floatx("float32")
    """
    global _floatx
    accepted = {"bfloat16", "float16", "float32", "float64"}
    if not isinstance(value, str) or value not in accepted:
        raise ValueError(f"Unknown `floatx` value: {value}. Expected one of {accepted}")
    _floatx = str(value)
    changed()
