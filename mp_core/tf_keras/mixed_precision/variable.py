"""tf.keras' variable, which has methods beside Keras 3's, and its way to make a variable follow the scope."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import Array, dtypes
from mp_core.policies import autocast
from mp_core.policies.autocast.variable import as_stored, signed

__all__ = ["AutoCastVariable", "create_autocast_variable"]


def _index_tuple(indices: ArrayLike) -> tuple[Array, ...]:
    """Return index tuples of shape (..., depth) as NumPy's tuple of arrays."""
    return tuple(np.moveaxis(signed(indices), -1, 0))


def _batch_index(indices: ArrayLike) -> tuple[Array, ...]:
    """Return the index of the slices at the last axis of `indices`, one set for every leading position."""
    last = signed(indices)
    return (*np.indices(last.shape, sparse=True)[:-1], last)


def _written(write: Callable[..., Any]) -> Any:
    """Return a method that assigns as `write` does, with TensorFlow's arguments: without `read_value`, None."""

    def method(
        self: "AutoCastVariable",
        value: ArrayLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
        **options: Any,
    ) -> "AutoCastVariable | None":
        write(self, value, **options)
        return self if read_value else None

    method.__doc__ = write.__doc__
    return method


def _scatter(ufunc: np.ufunc | None, index_of: Callable[[ArrayLike], Any] = signed) -> Any:
    """Return a method that combines the slices at some indices with `updates`; without a ufunc it replaces them."""

    def method(self: "AutoCastVariable", indices: ArrayLike, updates: ArrayLike) -> "AutoCastVariable":
        result = self.numpy().copy()
        stored = as_stored(updates, self.true_dtype, self.name)
        if ufunc is None:
            result[index_of(indices)] = stored
        else:
            ufunc.at(result, index_of(indices), stored)
        self.assign(result, copy=False)
        return self

    return method


class AutoCastVariable(autocast.AutoCastVariable):
    """:class:`mp_core.AutoCastVariable` with tf.keras' methods: slices by indices, and arguments of TensorFlow 1.

    The ``scatter_`` methods take (indices, updates) and return the variable. Repeated indices accumulate; of updates
    the last one wins. `use_locking` and `name` have no effect: a value is always replaced in one step.

    Parameters
    ----------
    value : array-like
    **kwargs
        Those of :class:`mp_core.AutoCastVariable`.

    Examples
    --------
    >>> AutoCastVariable([1.0, 2.0, 3.0]).scatter_add([0, 2], [10.0, 20.0]).numpy()
    array([11.,  2., 23.], dtype=float32)
    """

    __slots__ = ()

    scatter_update = _scatter(None)
    scatter_add = _scatter(np.add)
    scatter_sub = _scatter(np.subtract)
    scatter_mul = _scatter(np.multiply)
    scatter_div = _scatter(np.divide)
    scatter_min = _scatter(np.minimum)
    scatter_max = _scatter(np.maximum)
    batch_scatter_update = _scatter(None, _batch_index)
    scatter_nd_update = _scatter(None, _index_tuple)
    scatter_nd_add = _scatter(np.add, _index_tuple)
    scatter_nd_sub = _scatter(np.subtract, _index_tuple)
    assign = _written(autocast.AutoCastVariable.assign)
    assign_add = _written(autocast.AutoCastVariable.assign_add)
    assign_sub = _written(autocast.AutoCastVariable.assign_sub)
    sparse_read = autocast.AutoCastVariable.gather

    def gather_nd(self, indices: ArrayLike) -> Array:
        """Return the slices at index tuples of shape (..., depth); only they are cast."""
        return self._cast(self.numpy()[_index_tuple(indices)])

    def get_shape(self) -> tuple[int, ...]:
        """Return the shape."""
        return self.shape


def create_autocast_variable(variable: Any) -> AutoCastVariable:
    """Return a variable with the value of `variable` that reads in the dtype of the scope.

    It is a variable of its own: the array is shared, later assignments are not.

    Raises
    ------
    ValueError
        `variable` is no variable, or is not floating-point.

    Examples
    --------
    >>> from mp_core.autocast import enable_auto_cast_variables
    >>> variable = create_autocast_variable(AutoCastVariable([1.0], autocast=False))
    >>> with enable_auto_cast_variables("float16"):
    ...     variable.dtype
    dtype('float16')
    """
    if not isinstance(variable, autocast.AutoCastVariable):
        raise ValueError(f"variable must be of type AutoCastVariable, but got: {variable!r}")
    if not dtypes.is_float(variable.true_dtype):
        raise ValueError(f"variable must be a floating point variable but has type: {variable.true_dtype}")
    return AutoCastVariable(variable.numpy(), trainable=variable.trainable, name=variable.name)
