"""Variables that are stored in one dtype and read in another one."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Self, SupportsIndex, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike

from mp_core import ops
from mp_core.arrays import Array, asarray, dtypes, out_of_band
from mp_core.arrays.holding import ACTIVE_HOLDERS, current_holder
from mp_core.arrays.recorded_array import is_recorded, known_elements
from mp_core.core.changes import replace_if_same, set_counted
from mp_core.core.convert import file_map, next_states
from mp_core.core.scopes import Scopes, innermost
from mp_core.policies.autocast.memory import RecomputedArray, Value, drop_pages, frozen, is_shared
from mp_core.policies.autocast.scope import read_dtype, scope_dtype
from mp_core.policies.dtype_policies import standardize_dtype
from mp_core.utilities.arguments import state_of
from mp_core.utilities.tree import map_leaves

__all__ = ["AutoCastVariable", "as_stored", "assign_each", "derived_from", "restore_on_failure", "signed"]

T = TypeVar("T")
_State = tuple[
    Array | RecomputedArray, dict[Hashable, Any], int, object
]  # value, what is derived from it, version, stamp
_FLAG = bool | np.bool_
_STATE = {
    "value": np.ndarray, "version": int, "casts": _FLAG, "name": str, "path": str, "trainable": _FLAG,
    "overwrite_with_gradient": _FLAG, "penalties": tuple,
}  # fmt: skip


def signed(indices: ArrayLike) -> Array:
    """Return indices as an array; raise IndexError for uint64 ones beyond int64, which NumPy would wrap around."""
    index = np.asarray(indices)
    if index.dtype == np.uint64 and index.size and index.max() > np.iinfo(np.int64).max:
        raise IndexError(f"index {index.max()} is out of bounds: indices must fit int64")
    return index


class AutoCastVariable(NDArrayOperatorsMixin):
    """An array that is stored in one dtype and read in the dtype of the enclosing :func:`autocast_scope`.

    Reads (operators, indexing, ``value``, ``gather``, NumPy functions) return the cast value; writes (``assign``,
    ``assign_add`` ...) and ``numpy()`` use the stored dtype. Integer variables are never cast. The cast value, like
    every result of :meth:`derived`, is cached until the value changes.

    Parameters
    ----------
    value : array-like
        The initial value. A read-only array of the right dtype is kept without a copy, unless another object may write
        to its memory; so it may be a read-only memory map. No method writes into it.
    dtype : dtype, optional
        The stored dtype. Default: the dtype of `value`; Python floats, and lists of them, have Keras' floatx, integers
        int32.
    trainable : bool
        Whether the variable is in the layer's list of trainable or of non-trainable variables.
    autocast : bool
        Whether reads are cast to the dtype of the scope.
    name : str
        The name in messages.

    Attributes
    ----------
    path : str
        The path of the layer that made the variable, and its name: ``"dense/kernel"``. Without a layer, the name.

    Examples
    --------
    >>> variable = AutoCastVariable([1.0, 2.0])
    >>> from mp_core.autocast import autocast_scope
    >>> with autocast_scope("float16"):
    ...     print(variable.assign_add([0.0001, 0.0]))
    ...     variable + 0
    <AutoCastVariable 'variable' shape=(2,) dtype=float32 dtype_to_cast_to=float16, numpy=[1.0001 2.    ]>
    array([1., 2.], dtype=float16)
    """

    __slots__ = ("_casts", "_overwrite", "_state", "constraint", "name", "path", "regularizer", "trainable")
    _state: _State
    __array_priority__ = 100

    def __init__(
        self,
        value: ArrayLike,
        *,
        dtype: DTypeLike | None = None,
        trainable: bool = True,
        autocast: bool = True,
        name: str = "variable",
    ) -> None:
        array = value.numpy() if isinstance(value, AutoCastVariable) else asarray(value, "value")
        if dtype is not None:
            target = dtypes.parse(standardize_dtype(dtype))
        elif array.dtype.kind == "f" and not hasattr(value, "dtype"):
            target = dtypes.parse(dtypes.floatx())
        elif array.dtype.kind in "iu" and isinstance(value, int | list | tuple):
            target = dtypes.parse("int32")
        else:
            target = dtypes.parse(array.dtype, "value")
        if not isinstance(name, str):
            raise ValueError(f"`name` must be a string; received name={name!r}")
        self.name = self.path = name
        self.trainable = trainable
        self._overwrite = False
        self.constraint: Any = None
        self.regularizer: Any = None
        self._casts = autocast and dtypes.is_float(target)
        self._set(as_stored(array, target, name, copy=is_shared(array)), 0)

    # ---- the value

    def _set(self, array: Array | RecomputedArray, version: int) -> None:
        """Replace value, derived values and version in one step, so that no thread sees a mix of them.

        If a recording or a trial run is active, it gets the value instead, unless this is the first value of the
        variable (version 0).
        """
        here = current_holder()
        if here is not None and version:
            array = here.assign(self, array if type(array) is RecomputedArray or is_recorded(array) else frozen(array))
        if array is not None:
            set_counted("_state", [(self, self._state_of(array, version))])

    def _here(self) -> "_State":
        """Return the state; value and cache are those of a recording or trial run, if one overrides the variable.

        Every method that reads the value must begin here, since otherwise a recording would miss the read.
        """
        here = current_holder()
        override = None if here is None else here.override_of(self)
        return self._state if override is None else (override.value, override.derived, *self._state[2:])

    @property
    def is_held(self) -> bool:
        """Whether reads return a recorded array here, as they do for a trained variable while its step is recorded."""
        return bool(ACTIVE_HOLDERS) and is_recorded(self._here()[0])

    def _state_of(self, array: Array | RecomputedArray, version: int) -> "_State":
        return array if type(array) is RecomputedArray else frozen(array), {}, version, object()

    def derived(self, key: Hashable, make: Callable[[Array], T]) -> T:
        """Return ``make(stored value)``, cached for each `key` until the value changes.

        >>> AutoCastVariable([1.0, 3.0]).derived("sum", lambda array: float(array.sum()))
        4.0
        """
        array, cache, _, _ = self._here() if ACTIVE_HOLDERS else self._state
        try:
            result: T = cache[key]
        except KeyError:
            result = cache[key] = make(array.view())
        return result

    def _read(self) -> Array:
        """Return the value in the dtype of the scope, for use within this class: callers must get a view of it."""
        target = read_dtype() if self._casts else None
        array = (self._here() if ACTIVE_HOLDERS else self._state)[0]
        if target is None or target is array.dtype:
            return array.view() if type(array) is RecomputedArray else array
        return self.derived(target, lambda stored: _frozen_cast(stored, target))

    @property
    def value(self) -> Value:
        """The value in the dtype of the scope, read-only. ``variable.value()`` returns it as a plain array."""
        return self._read().view(Value)

    def read_value(self) -> Array:
        """Return the value in the dtype of the scope, read-only."""
        return self._read().view()

    def numpy(self) -> Array:
        """Return the stored value regardless of the scope: a read-only array on the memory of the variable."""
        return (self._here() if ACTIVE_HOLDERS else self._state)[0].view()

    @property
    def source(self) -> Any:
        """The stored value, or what each read computes it from: an array of a file, a packed matrix."""
        value = (self._here() if ACTIVE_HOLDERS else self._state)[0]
        source = value.source if type(value) is RecomputedArray else None
        return value.view() if source is None else source

    @property
    def version(self) -> int:
        """The number of times that the value was replaced."""
        return self._state[2]

    @property
    def stamp(self) -> object:
        """An object that is unique to the value. Threads that assign concurrently may give the same :attr:`version`."""
        return self._state[3]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in which the variable is read here."""
        target = scope_dtype.get(None) if self._casts else None
        if type(target) is Scopes:
            target = innermost(target, None)
        return self._state[0].dtype if target is None else target

    @property
    def true_dtype(self) -> np.dtype[Any]:
        """The dtype in which the variable is stored."""
        dtype: np.dtype[Any] = self._state[0].dtype
        return dtype

    @property
    def autocast(self) -> bool:
        """Whether reads are cast to the dtype of the scope."""
        return self._casts

    @property
    def overwrite_with_gradient(self) -> bool:
        """Whether an optimizer replaces the value by its gradient, as for float8 scales. Default: False."""
        return self._overwrite

    @overwrite_with_gradient.setter
    def overwrite_with_gradient(self, value: bool) -> None:
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError(f"`overwrite_with_gradient` must be a boolean. Received: {value!r}")
        self._overwrite = bool(value)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        shape: tuple[int, ...] = self._state[0].shape
        return shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._state[0].ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._state[0].size

    @property
    def nbytes(self) -> int:
        """The size of the stored value in bytes."""
        return self._state[0].nbytes

    # ---- reads

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._read())

    def gather(self, indices: ArrayLike, axis: int = 0) -> Array:
        """Return the slices at `indices` along `axis`; only these are cast."""
        if self.is_held and axis == 0:
            return ops.take_rows(self.numpy(), indices, self.dtype)  # type: ignore[arg-type]
        return self._cast(np.take(self.numpy(), signed(indices), axis))

    def _cast(self, array: Array) -> Array:
        return array if array.dtype is self.dtype else ops.cast(array, self.dtype)

    # ---- writes: in the stored dtype, into a new array

    def assign(self, value: ArrayLike, *, copy: bool = True) -> Self:
        """Replace the value by one of the same shape; return the variable, so that calls can be chained.

        With ``copy=False`` an array of the stored dtype is kept without a copy; the caller must not write to it any
        more. A number that does not fit an integer dtype, such as a fraction, raises TypeError.
        """
        array = as_stored(value, self.true_dtype, self.name, copy=copy)
        if array.shape != self.shape:
            raise ValueError(
                "The shape of the target variable and the shape of the target value in `variable.assign(value)` must "
                f"match. variable.shape={self.shape}, Received: value.shape={array.shape}. Target variable: {self.name}"
            )
        self._set(array, self.version + 1)
        return self

    def assign_add(self, value: ArrayLike) -> Self:
        """Add `value` at the stored precision."""
        return self._combine(np.add, value)

    def assign_sub(self, value: ArrayLike) -> Self:
        """Subtract `value` at the stored precision."""
        return self._combine(np.subtract, value)

    def _combine(self, ufunc: np.ufunc, value: ArrayLike) -> Self:
        return self.assign(ufunc(self.numpy(), as_stored(value, self.true_dtype, self.name)), copy=False)

    # ---- memory

    def give_back(self, stamp: object, make: Callable[[], Array], source: Any = None) -> None:
        """Free the memory of the value with this `stamp`, because it is also stored elsewhere.

        Later reads get the same bits, from the mapped file or by `make`. Version and stamp do not change, so caches of
        the value stay valid. If the variable has been assigned since, nothing happens.
        """
        state = self._state
        if state[3] is stamp and not drop_pages(state[0]):
            other = RecomputedArray(state[0].shape, state[0].dtype, make, source)
            replace_if_same(self, "_state", state, (other, *state[1:]))

    def assign_from_file(self, array: Array) -> bool:
        """Assign an array of a memory-mapped file without reading it now; return False if it is in no such file.

        If the dtype differs from the stored one, each read casts the array again. The shape must be the variable's.
        """
        if file_map(array) is None:
            return False
        dtype = self.true_dtype

        def make() -> Array:
            cast = ops.cast(array, dtype)
            drop_pages(array)
            return cast

        value = array if array.dtype == dtype else RecomputedArray(array.shape, dtype, make, array)
        self._set(value, self.version + 1)
        return True

    def stored_as(self, dtype: DTypeLike | None = None) -> Self:
        """Return a copy of the variable, stored in `dtype`; default: in the same dtype."""
        array = self._state[0].view()
        if dtype is not None and dtypes.parse(dtype) is not array.dtype:
            array = _frozen_cast(array, dtypes.parse(dtype))
        copy = type(self)(array, dtype=array.dtype, trainable=self.trainable, autocast=self._casts, name=self.name)
        copy._overwrite = self._overwrite
        copy.regularizer, copy.constraint = self.regularizer, self.constraint
        return copy

    # ---- protocols

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.array(self.read_value(), dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        written = (*kwargs.get("out", ()), *(inputs[:1] if method == "at" else ()))
        if any(isinstance(array, AutoCastVariable) for array in written):
            raise TypeError("A variable cannot be changed in place: use `variable.assign_add(value)` and its siblings.")
        indices = ufunc is np.ldexp or method not in ("__call__", "outer")  # arguments may be indices or exponents
        convert = dtypes.is_float(self.true_dtype) and not indices
        arrays = [self._operand(x) if convert else _value_of(x) for x in inputs]
        kwargs = {key: _value_of(x) for key, x in kwargs.items()}  # where
        if ufunc is np.matmul and method == "__call__" and not kwargs and self._casts:
            return ops.matmul(*arrays)
        return getattr(ufunc, method)(*arrays, **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call a NumPy function with the values of variables, which a recording overrides."""
        return function(*map_leaves(_value_of, args), **map_leaves(_value_of, kwargs))

    def _operand(self, x: Any) -> Any:
        """Return the value of a variable; cast Python numbers, and arrays and lists of integers, to this dtype."""
        if isinstance(x, AutoCastVariable):
            return x._read()
        if type(x) is int or isinstance(x, float):
            return np.asarray(x, self.dtype)
        if isinstance(x, list):
            x = np.asarray(x)
        integers = isinstance(x, (np.ndarray, np.integer)) and x.dtype.kind in "iu"
        return ops.cast(x, self.dtype) if integers else x

    def __len__(self) -> int:
        return len(self._state[0])

    def __bool__(self) -> bool:
        raise TypeError("A Keras Variable cannot be used as a boolean.")

    def __int__(self) -> int:
        return int(self._scalar())

    def __float__(self) -> float:
        return float(self._scalar())

    def _scalar(self) -> Array:
        if self.ndim:
            raise TypeError(f"Only scalar arrays can be converted to Python scalars. Got: shape={self.shape}")
        return self._read()

    def __round__(self, ndigits: SupportsIndex = 0) -> Array:
        return np.round(self._read(), ndigits)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "value": out_of_band(self.numpy()),
            "version": self.version,
            "casts": self._casts,
            "name": self.name,
            "path": self.path,
            "trainable": self.trainable,
            "overwrite_with_gradient": self.overwrite_with_gradient,
            "penalties": (self.regularizer, self.constraint),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = state_of(state, _STATE, "a pickled variable")
        value = asarray(state["value"], "value of a pickled variable")
        self.name, self.path, self.trainable = state["name"], state["path"], state["trainable"]
        self.regularizer, self.constraint = state["penalties"]
        self._casts = bool(state["casts"]) and dtypes.is_float(value.dtype)
        self.overwrite_with_gradient = state["overwrite_with_gradient"]
        self._set(value, state["version"])

    def __repr__(self) -> str:
        with np.printoptions(threshold=100, edgeitems=2):
            return (
                f"<AutoCastVariable '{self.name}' shape={self.shape} dtype={self.true_dtype} "
                f"dtype_to_cast_to={self.dtype}, numpy={self._state[0].view()}>"
            )


def _value_of(x: Any) -> Any:
    """Return the value of a variable in the dtype of the scope; everything else as it is."""
    return x.read_value() if isinstance(x, AutoCastVariable) else x


def derived_from(variables: Sequence[AutoCastVariable], key: Hashable, make: Callable[[], T]) -> T:
    """Return ``make()``, which depends on several variables, cached for each `key` until one of their values changes.

    The cache is that of the first variable. It refers to the other variables only by stamps: references to the
    variables would be cycles, which only the garbage collector frees.
    """
    first, *others = variables
    kept: dict[str, tuple[list[object], T]] = first.derived(key, lambda _: {})
    stamps, last = [variable.stamp for variable in others], kept.get("last")
    if last is None or last[0] != stamps:
        kept["last"] = last = stamps, make()
    return last[1]


def assign_each(variables: Sequence[AutoCastVariable], arrays: Sequence[Array]) -> None:
    """Assign arrays, of the right dtypes and shapes, to all variables; if interrupted, to none."""
    here = current_holder()
    if here is None:
        new = list(zip(variables, next_states(variables, arrays, dtypes.parse), strict=True))
    else:
        given = [(x, here.assign(x, array)) for x, array in zip(variables, arrays, strict=True)]
        new = [(x, x._state_of(array, x.version + 1)) for x, array in given if array is not None]
    set_counted("_state", new)


def restore_on_failure(variables: Sequence[AutoCastVariable], function: Callable[..., T], *args: Any) -> T:
    """Return ``function(*args)``; if it fails, restore the values of the variables."""
    before = [(variable, variable._state) for variable in variables]
    try:
        return function(*args)
    except BaseException:
        set_counted("_state", before)
        raise


def _frozen_cast(array: Array, dtype: np.dtype[Any]) -> Array:
    result = ops.cast(array, dtype)
    return result if is_recorded(result) else frozen(result)


def as_stored(value: ArrayLike, dtype: np.dtype[Any], name: str, *, copy: bool = False) -> Array:
    """Return `value`, which may be another variable, in the stored dtype of the variable `name`.

    An array that already has this dtype is copied only if `copy` is true. A number that does not fit an integer dtype
    raises TypeError.
    """
    if isinstance(value, AutoCastVariable):
        value = value.numpy()
    if is_recorded(value):
        known = known_elements(value) if dtype.kind in "iu" else None
        if known is None:
            return value if value.dtype == dtype else ops.cast(value, dtype)  # type: ignore[union-attr, return-value]
        value = known
    array = asarray(value, "value")
    if array.dtype == dtype:
        return array.copy() if copy else array
    with np.errstate(invalid="ignore"):  # NaN has no integer; the check below refuses it
        stored = ops.cast(array, dtype)
    if dtype.kind in "iu" and not np.array_equal(stored, array):
        limits = np.iinfo(dtype)
        raise TypeError(
            f"The values of variable '{name}' must be integers from {limits.min} to {limits.max}; "
            f"received {array.dtype} values that are not"
        )
    return stored
