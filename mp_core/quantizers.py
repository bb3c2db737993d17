"""Keras' quantizers. Most scales are the reciprocal of :mod:`mp_core.quantization`'s: ``q = x * scale``."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core import dtypes
from mp_core.arguments import number
from mp_core.arrays import Array, asarray, cast
from mp_core.core import quantize as _quantize
from mp_core.dtype_policies.lookup import class_and_config

__all__ = [
    "AbsMaxQuantizer",
    "abs_max_quantize",
    "abs_max_quantize_grouped_with_zero_point",
    "compute_float8_amax_history",
    "compute_float8_scale",
    "deserialize",
    "fake_quant_with_min_max_vars",
    "get",
    "pack_int4",
    "quantize_and_dequantize",
    "serialize",
    "unpack_int4",
]


@dataclass(frozen=True, init=False)
class AbsMaxQuantizer:
    """:func:`abs_max_quantize` with its settings: call it with an array.

    Parameters
    ----------
    axis : int or sequence of int, optional
        The axes that share one scale, where a call names none; None: the last one.
    value_range : tuple of int
    epsilon : float
    output_dtype : dtype or str

    Raises
    ------
    ValueError
        `value_range` is not increasing, or not within -128 to 127 for int8; `epsilon` is negative or no number.

    Examples
    --------
    >>> values, scale = AbsMaxQuantizer(axis=0)(np.array([[1.0, -4.0], [2.0, 1.0]], np.float32))
    >>> values
    array([[  64, -127],
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
        low, high = _increasing(value_range)
        if name == "int8" and not (low >= -128 and high <= 127):
            raise ValueError(
                "Quantizer with output_dtype='int8' requires value_range to be within the interval [-128, 127]. "
                f"Received: value_range={value_range}"
            )
        number(epsilon, "epsilon", 0.0)
        settings = {
            "axis": None if axis is None else _axes(axis),
            "value_range": (low, high),
            "epsilon": epsilon,
            "output_dtype": name,
        }
        for key, value in settings.items():
            object.__setattr__(self, key, value)

    def __call__(
        self, x: ArrayLike, axis: int | Sequence[int] | None = None, to_numpy: bool = False
    ) -> tuple[Array, Array]:
        """Return (values, scale) of `x`. `to_numpy` is Keras': arrays are NumPy's either way."""
        chosen = axis if axis is not None else self.axis if self.axis is not None else -1
        return abs_max_quantize(x, chosen, self.value_range, self.output_dtype, self.epsilon, to_numpy)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this quantizer; ``axis`` only where it has one."""
        config = {"value_range": self.value_range, "epsilon": self.epsilon, "output_dtype": self.output_dtype}
        return config if self.axis is None else config | {"axis": self.axis}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AbsMaxQuantizer":
        """Return the quantizer of a :meth:`get_config` dictionary, with lists where JSON has them."""
        return cls(**config | {"value_range": tuple(config.get("value_range", (-127, 127)))})


def serialize(quantizer: AbsMaxQuantizer) -> dict[str, Any]:
    """Return `quantizer` as the dictionary that Keras writes into its files.

    Examples
    --------
    >>> serialize(AbsMaxQuantizer())["class_name"]
    'AbsMaxQuantizer'
    """
    kind = type(quantizer)
    module = "keras.quantizers" if kind is AbsMaxQuantizer else kind.__module__
    return {
        "module": module,
        "class_name": kind.__name__,
        "config": quantizer.get_config(),
        "registered_name": None,
    }


def deserialize(config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Any:
    """Return the quantizer of a :func:`serialize` dictionary; its class is looked up by name.

    Raises
    ------
    ValueError
        `config` is no such dictionary, or ``class_name`` names neither AbsMaxQuantizer nor a class of `custom_objects`.

    Examples
    --------
    >>> deserialize({"class_name": "AbsMaxQuantizer", "config": {"axis": 0}}).axis
    (0,)
    """
    classes = {"AbsMaxQuantizer": AbsMaxQuantizer} | (custom_objects or {})
    found, own = class_and_config(config, classes, "quantizer")
    return found.from_config(own)


def get(identifier: Any, **kwargs: Any) -> Any:
    """Return the quantizer that `identifier` means.

    Parameters
    ----------
    identifier : str, type, callable, dict or None
        ``"AbsMaxQuantizer"`` or ``"abs_max_quantizer"``; a class, which is called with `kwargs`; a quantizer or another
        callable; a :func:`serialize` dictionary. None is None.
    **kwargs
        Arguments of the quantizer that a name or class makes.

    Raises
    ------
    ValueError
        `identifier` is none of these.

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


def abs_max_quantize(
    inputs: ArrayLike,
    axis: int | Sequence[int] | None,
    value_range: tuple[int, int] = (-127, 127),
    dtype: DTypeLike = "int8",
    epsilon: float = 1e-7,
    to_numpy: bool = False,
) -> tuple[Array, Array]:
    """Quantize so that the largest magnitude along `axis` becomes the end of the range.

    ``scale = value_range[1] / (max|x| + epsilon)``, ``q = clip(round(x * scale))`` with ties to even.

    Parameters
    ----------
    inputs : array-like
        Any float dtype; 16-bit types are computed in float32, so that a row of zeros has a finite scale.
    axis : int, sequence of int or None
        The axes that share one scale; None: all.
    value_range : tuple of int
    dtype : dtype
    epsilon : float
    to_numpy : bool
        Keras'; arrays are NumPy's either way.

    Returns
    -------
    values : ndarray of `dtype`
        NaN becomes 0.
    scale : ndarray, float32 (float64 for float64 inputs)
        A multiplier: ``values / scale`` is approximately `inputs`. The axes of `axis` have length 1.

    Raises
    ------
    TypeError
        `axis` holds no integers.
    ValueError
        `axis` is out of range or repeated; `value_range` is not increasing, or `dtype` does not hold it; `epsilon` is
        negative or no number.

    Examples
    --------
    >>> values, scale = abs_max_quantize(np.array([[1.0, -2.0], [0.0, 0.0]], np.float32), axis=-1)
    >>> values
    array([[  64, -127],
           [   0,    0]], dtype=int8)
    """
    x, target = _wide(inputs), dtypes.parse(dtype)
    axes = tuple(range(x.ndim)) if axis is None else _axes(axis)
    low, high = _checked_range(value_range, target)
    number(epsilon, "epsilon", 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        largest = np.maximum(x.max(axes, keepdims=True, initial=0), -x.min(axes, keepdims=True, initial=0))
        scale = np.asarray(high / (largest + x.dtype.type(epsilon)))
        codes = np.asarray(x * scale)  # one copy: this may be a table of half the model
        np.clip(np.rint(codes, out=codes), low, high, out=codes)
    codes[np.isnan(codes)] = 0
    return codes.astype(target), scale


def abs_max_quantize_grouped_with_zero_point(
    inputs: ArrayLike,
    block_size: int,
    value_range: tuple[int, int] = (-8, 7),
    dtype: DTypeLike = "int8",
    epsilon: float = 1e-7,
    to_numpy: bool = False,
) -> tuple[Array, Array, Array]:
    """Quantize blocks of rows, in every column alone, so that their range, widened to hold 0, takes all codes.

    ``scale = (hi - lo + epsilon) / (qmax - qmin)``, ``zero_point = clip(round(-lo / scale) + qmin)``,
    ``q = clip(round(x / scale) + zero_point)`` with ties to even.

    Parameters
    ----------
    inputs : array-like
        A matrix of any float dtype; 16-bit types are computed in float32.
    block_size : int
        How many neighbouring rows share a scale; the last block may have fewer.
    value_range : tuple of int
    dtype : dtype
    epsilon : float
    to_numpy : bool
        Keras'; arrays are NumPy's either way.

    Returns
    -------
    values : ndarray of `dtype`
        Infinities do not widen the range; NaN becomes the zero point.
    scale : ndarray, float32 (float64 for float64 inputs), shape (blocks, columns)
        A step: ``(values - zero_point) * scale`` is approximately `inputs`.
    zero_point : ndarray, shape (blocks, columns)
        Of type `dtype`; int32 where that is a float type.

    Raises
    ------
    ValueError
        `inputs` is no matrix, or `block_size` no positive integer; `value_range` is not increasing, or `dtype` does not
        hold it; `epsilon` is negative or no number.

    Examples
    --------
    >>> x = np.array([[0], [15], [-3], [0]], np.float32)
    >>> values, scale, zero_point = abs_max_quantize_grouped_with_zero_point(x, block_size=2)
    >>> values.ravel(), scale.ravel(), zero_point.ravel()
    (array([-8,  7, -8,  7], dtype=int8), array([1. , 0.2], dtype=float32), array([-8,  7], dtype=int8))
    """
    x = _wide(inputs)
    if x.ndim != 2:
        raise ValueError(f"`inputs` must be a matrix; received shape {x.shape}")
    if not isinstance(block_size, int | np.integer) or isinstance(block_size, bool) or block_size < 1:
        raise ValueError(f"`block_size` must be a positive integer; received {block_size!r}")
    target = dtypes.parse(dtype)
    qmin, qmax = _checked_range(value_range, target)
    number(epsilon, "epsilon", 0.0)
    size = min(block_size, max(len(x), 1))
    starts = np.arange(0, len(x), size)
    finite = x if np.isfinite(x).all() else np.where(np.isfinite(x), x, x.dtype.type(0))
    low = np.minimum(np.minimum.reduceat(finite, starts), 0)
    high = np.maximum(np.maximum.reduceat(finite, starts), 0)
    scale = np.maximum((high - low + x.dtype.type(epsilon)) / x.dtype.type(qmax - qmin), np.finfo(x.dtype).tiny)
    zero_point = np.clip(np.rint(-low / scale) + qmin, qmin, qmax)
    block = np.arange(len(x)) // size
    codes = np.clip(np.rint(x / scale[block]) + zero_point[block], qmin, qmax)
    codes = np.where(np.isnan(codes), zero_point[block], codes)
    return codes.astype(target), scale, zero_point.astype(target if dtypes.is_integer(target) else np.int32)


def _wide(inputs: ArrayLike) -> Array:
    x = asarray(inputs, "inputs")
    return x if x.dtype.name in ("float32", "float64") else cast(x, "float32")


def _axes(axis: int | Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(map(index, axis)) if isinstance(axis, Iterable) else (index(axis),)
    except TypeError:
        raise TypeError(f"`axis` must be an int or a sequence of int; received {axis!r}") from None


def _checked_range(value_range: tuple[int, int], target: np.dtype[Any]) -> tuple[int, int]:
    """Return the lowest and the highest code; raise if `target` is a type of integers that does not hold them."""
    low, high = _increasing(value_range)
    limits = np.iinfo(target) if dtypes.is_integer(target) else None
    if limits is not None and not limits.min <= low < high <= limits.max:
        raise ValueError(
            f"`value_range` must be two increasing numbers that {target.name} holds; received {value_range!r}"
        )
    return low, high


def _increasing(value_range: tuple[int, int]) -> tuple[int, int]:
    try:
        low, high = value_range
        good = bool(low < high)
    except (TypeError, ValueError):
        good = False
    if not good:
        raise ValueError(f"`value_range` must be two increasing numbers; received {value_range!r}")
    return low, high


def compute_float8_scale(amax: ArrayLike, scale: ArrayLike, dtype_max: float, margin: int = 0) -> Array:
    """Return the step of delayed float8 scaling: ``amax * 2**margin / dtype_max``.

    Parameters
    ----------
    amax : array-like
        The largest magnitude lately seen.
    scale : array-like
        The step until now, kept where `amax`, or the new step, is not positive or not finite.
    dtype_max : float
        The largest finite value of the float8 type.
    margin : int
        Powers of two to leave free above `amax`.

    Examples
    --------
    >>> float(compute_float8_scale(896.0, 1.0, 448.0)), float(compute_float8_scale(0.0, 3.0, 448.0))
    (2.0, 3.0)
    """
    largest, kept = (cast(value, "float32") for value in (amax, scale))
    with np.errstate(over="ignore", under="ignore"):
        step = np.ldexp(largest, margin) / np.float32(dtype_max)
    return np.where((step > 0) & np.isfinite(step), step, kept)


def compute_float8_amax_history(x: ArrayLike, amax_history: ArrayLike) -> Array:
    """Return the history rolled by one place, with ``max|x|`` at index 0.

    NaN in `x` is the maximum, and :func:`compute_float8_scale` then keeps the scale.

    Parameters
    ----------
    x : array-like
        Any shape.
    amax_history : array-like
        Shape (length, ...).

    Returns
    -------
    ndarray of float32
        The shape of `amax_history`.

    Raises
    ------
    ValueError
        `amax_history` has no entry.

    Examples
    --------
    >>> compute_float8_amax_history([1.0, -5.0], [4.0, 3.0, 2.0]).tolist()
    [5.0, 2.0, 4.0]
    """
    past = cast(amax_history, "float32")
    if past.ndim == 0 or len(past) == 0:
        raise ValueError(f"`amax_history` must have an entry; received shape {past.shape}")
    history = np.roll(past, -1, axis=0)
    history[0] = np.abs(cast(x, "float32")).max(initial=0)
    return history


def quantize_and_dequantize(
    inputs: ArrayLike, scale: ArrayLike, quantized_dtype: DTypeLike, compute_dtype: DTypeLike
) -> Array:
    """Return `inputs` as float8 holds them: divided by `scale`, clipped, rounded to float8, multiplied by `scale`.

    Parameters
    ----------
    inputs, scale : array-like
        Float; computed with in `compute_dtype`.
    quantized_dtype : {"float8_e4m3fn", "float8_e5m2"}
    compute_dtype : dtype
        The type of the arithmetic and of the result.

    Raises
    ------
    TypeError
        `compute_dtype` is no float type.
    ValueError
        `quantized_dtype` is neither.

    Notes
    -----
    Infinities are clipped too; NaN stays NaN.

    Examples
    --------
    >>> quantize_and_dequantize([1.0, 1000.0], 2.0, "float8_e4m3fn", "float32").tolist()
    [1.0, 896.0]
    """
    target = dtypes.parse(quantized_dtype, "quantized_dtype")
    if target.name not in ("float8_e4m3fn", "float8_e5m2"):
        raise ValueError(f"`quantized_dtype` must be float8_e4m3fn or float8_e5m2; received {target.name}")
    compute = dtypes.parse(compute_dtype, "compute_dtype")
    if not dtypes.is_float(compute):
        raise TypeError(f"`compute_dtype` must be a float type; received {compute.name}")
    step = cast(scale, compute)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        codes = cast(cast(inputs, compute) / step, target, saturate=True)
        result: Array = cast(codes, compute) * step
    return result


def fake_quant_with_min_max_vars(
    inputs: ArrayLike,
    min_vals: ArrayLike,
    max_vals: ArrayLike,
    num_bits: int = 8,
    narrow_range: bool = False,
    axis: int | None = None,
) -> Array:
    """Return `inputs` as integers of `num_bits` bits hold them that cover the range from `min_vals` to `max_vals`.

    The range is nudged so that 0 is one of the integers. In float32 (float64 for float64 inputs)::

        low, high = (1 if narrow_range else 0), 2**num_bits - 1
        scale, inverse = (max - min) / (high - low), (high - low) / (max - min)
        zero = clip(round(low - min / scale), low, high)
        least, most = (low - zero) * scale, (high - zero) * scale
        result = floor((clip(x, least, most) - least) * inverse - floor(-least * inverse + 0.5) + 0.5) * scale

    Parameters
    ----------
    inputs : array-like
        Integers become Keras' floatx.
    min_vals, max_vals : array-like
        One number each or, with `axis`, one for each index along it.
    num_bits : int
        From 2 to 16.
    narrow_range : bool
        Leave out the lowest integer.
    axis : int, optional
        The axis along which the range varies.

    Returns
    -------
    ndarray
        In the type of `inputs`; 0 where ``min_vals == max_vals``. NaN stays NaN.

    Raises
    ------
    TypeError
        An argument is of another type.
    ValueError
        `num_bits` or `axis` is out of range, ``min_vals > max_vals``, a range is too wide or narrow for the type of the
        computation, or there is not one for each index.

    Examples
    --------
    >>> fake_quant_with_min_max_vars([-1.0, 0.3, 9.0], 0.0, 3.0, num_bits=2).tolist()
    [0.0, 0.0, 3.0]
    """
    if not 2 <= index(num_bits) <= 16:
        raise ValueError(f"`num_bits` should be in the range [2, 16]. Received: num_bits={num_bits}")
    given = asarray(inputs, "inputs")
    if not dtypes.is_float(given.dtype):
        given = cast(given, dtypes.floatx())
    compute = given.dtype if given.dtype.name == "float64" else dtypes.parse("float32")
    shape = [1] * given.ndim
    if axis is not None:
        axis = _axis_of(given, axis)
        shape[axis] = given.shape[axis]
    x = cast(given, compute)
    least, most = (
        _bounds(value, compute, shape, name) for name, value in (("min_vals", min_vals), ("max_vals", max_vals))
    )
    if not np.all(least <= most):
        raise ValueError(f"`min_vals` must not be greater than `max_vals`; received {least} and {most}")
    low, high = compute.type(bool(narrow_range)), compute.type(2**num_bits - 1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale, inverse = (most - least) / (high - low), (high - low) / (most - least)
        if not np.all((least == most) | (inverse > 0) & (inverse < np.inf)):
            raise ValueError(
                f"`max_vals` - `min_vals` must be finite and have a reciprocal in {compute}; received {most - least}"
            )
        zero = np.clip(np.rint(low - least / scale), low, high)
        start, end = (low - zero) * scale, (high - zero) * scale
        steps = (np.clip(x, start, end) - start) * inverse - np.floor(-start * inverse + compute.type(0.5))
        result = np.where(most > least, np.floor(steps + compute.type(0.5)) * scale, np.where(np.isnan(x), x, 0))
    return cast(result, given.dtype)


def _bounds(value: ArrayLike, dtype: np.dtype[Any], shape: list[int], argument: str) -> Array:
    """Return one number, or one for each index along the only long axis of `shape`, in a shape that broadcasts."""
    bounds = cast(asarray(value, argument), dtype)
    if bounds.size == 1:
        return bounds.reshape([1] * len(shape))
    if bounds.shape != (prod(shape),):
        raise ValueError(f"`{argument}` must be one number, or with `axis` one for each index; received {bounds.shape}")
    return bounds.reshape(shape)


def pack_int4(arr: ArrayLike, axis: int = 0, dtype: DTypeLike = "int8") -> tuple[Array, tuple[int, ...], int]:
    """Return integers of 4 bits packed in pairs along `axis`, the one with the even index in the low half of a byte.

    Parameters
    ----------
    arr : array-like
        Of type `dtype`; -8 to 7 for int8, 0 to 15 for uint8.
    axis : int
    dtype : {"int8", "uint8"}

    Returns
    -------
    packed : ndarray of `dtype`
        Half as long along `axis`, rounded up; a missing partner is 0.
    shape : tuple of int
        The shape of `packed`.
    length : int
        The length of `arr` along `axis`, which :func:`unpack_int4` needs.

    Raises
    ------
    TypeError
        `arr` is not of type `dtype`.
    ValueError
        `dtype` is neither int8 nor uint8; `axis` is out of range; an element does not fit.

    Examples
    --------
    >>> packed, shape, length = pack_int4(np.array([[-3, 7], [2, -8], [1, 0]], np.int8))
    >>> packed.tolist(), length
    ([[45, -121], [1, 0]], 3)
    """
    x, target, axis = _int4_operand(arr, axis, dtype, "arr")
    low, high = (-8, 7) if target.name == "int8" else (0, 15)
    if x.size and not low <= x.min() <= x.max() <= high:
        raise ValueError(f"`arr` must hold {low} to {high}; received {x.min()} to {x.max()}")
    codes = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    length = codes.shape[-1]
    packed = np.empty((*codes.shape[:-1], (length + 1) // 2), target)
    if codes.size:
        _quantize.pack_nibbles(codes.reshape(-1, length), packed.reshape(-1, packed.shape[-1]))
    packed = np.ascontiguousarray(np.moveaxis(packed, -1, axis))
    return packed, packed.shape, length


def unpack_int4(packed: ArrayLike, orig_len: int | None, axis: int = 0, dtype: DTypeLike = "int8") -> Array:
    """Return the integers that :func:`pack_int4` packed.

    Parameters
    ----------
    packed : array-like
        Of type `dtype`.
    orig_len : int, optional
        How many there were along `axis`; None: two for each byte.
    axis : int
    dtype : {"int8", "uint8"}

    Raises
    ------
    TypeError
        `packed` is not of type `dtype`.
    ValueError
        `dtype` is neither int8 nor uint8; `axis` is out of range; `orig_len` does not belong to the shape of `packed`.

    Examples
    --------
    >>> unpack_int4(np.array([[45, -121], [1, 0]], np.int8), 3).tolist()
    [[-3, 7], [2, -8], [1, 0]]
    """
    x, target, axis = _int4_operand(packed, axis, dtype, "packed")
    length = 2 * x.shape[axis] if orig_len is None else index(orig_len)
    if length < 0 or (length + 1) // 2 != x.shape[axis]:
        raise ValueError(f"`orig_len` must be what was packed into {x.shape[axis]} bytes; received {orig_len}")
    pairs = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    codes = np.empty((*pairs.shape[:-1], length), target)
    if codes.size:
        signed = target.name == "int8"
        _quantize.unpack_nibbles(pairs.reshape(-1, pairs.shape[-1]), codes.reshape(-1, length), signed)
    return np.ascontiguousarray(np.moveaxis(codes, -1, axis))


def _int4_operand(x: ArrayLike, axis: int, dtype: DTypeLike, argument: str) -> tuple[Array, np.dtype[Any], int]:
    array, target = asarray(x, argument), dtypes.parse(dtype)
    if target.name not in ("int8", "uint8"):
        raise ValueError(f"`dtype` must be int8 or uint8; received {target.name}")
    if array.dtype != target:
        raise TypeError(f"`{argument}` must be of type {target.name}; received {array.dtype}")
    return array, target, _axis_of(array, axis)


def _axis_of(array: Array, axis: int) -> int:
    axis = index(axis)
    if not -array.ndim <= axis < array.ndim:
        raise ValueError(f"`axis` must name an axis of an array with {array.ndim}; received {axis}")
    return axis % array.ndim
