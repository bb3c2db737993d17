"""tf.keras' variable, with more methods than Keras 3's, and a function that creates autocast variables."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import Array, dtypes
from mp_core.policies import autocast
from mp_core.policies.autocast.variable import as_stored, signed

__all__ = ["AutoCastVariable", "create_autocast_variable"]


def _index_tuple(indices: ArrayLike) -> tuple[Array, ...]:
    """Convert index tuples of shape (..., depth) to NumPy's tuple of arrays."""
    return tuple(np.moveaxis(signed(indices), -1, 0))


def _batch_index(indices: ArrayLike) -> tuple[Array, ...]:
    """Return a NumPy index: `indices` select along their last axis, separately for each position of the others."""
    last = signed(indices)
    return (*np.indices(last.shape, sparse=True)[:-1], last)


def _with_tf_arguments(write: Callable[..., Any]) -> Any:
    """Return the method `write` with TensorFlow's arguments; with ``read_value=False`` it returns None."""

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
    """Return a method that combines the slices at `indices` with `updates`; without a ufunc it replaces them."""

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
    """:class:`mp_core.AutoCastVariable` with the ``scatter`` and ``gather`` methods and arguments of tf.keras.

    The ``scatter_`` methods take (indices, updates) and return the variable. Repeated indices accumulate; in
    ``scatter_update`` the last one wins. `use_locking` and `name` have no effect: a value is always replaced in one
    step.

    Parameters
    ----------
    value : array-like
    **kwargs
        See :class:`mp_core.AutoCastVariable`.

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
    assign = _with_tf_arguments(autocast.AutoCastVariable.assign)
    assign_add = _with_tf_arguments(autocast.AutoCastVariable.assign_add)
    assign_sub = _with_tf_arguments(autocast.AutoCastVariable.assign_sub)
    sparse_read = autocast.AutoCastVariable.gather

    def gather_nd(self, indices: ArrayLike) -> Array:
        """Return the slices at index tuples of shape (..., depth); only these slices are cast."""
        return self._cast(self.numpy()[_index_tuple(indices)])

    def get_shape(self) -> tuple[int, ...]:
        """Return the shape."""
        return self.shape


def create_autocast_variable(variable: Any) -> AutoCastVariable:
    """Return a new variable with the floating-point value of `variable` that is read in the dtype of the scope.

    The two share the array until one of them is assigned.

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
