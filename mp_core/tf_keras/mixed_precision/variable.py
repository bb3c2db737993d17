"""tf.keras' way to make a variable follow the scope."""

from typing import Any

from mp_core import dtypes
from mp_core.autocast import AutoCastVariable

__all__ = ["create_autocast_variable"]


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
    if not isinstance(variable, AutoCastVariable):
        raise ValueError(f"variable must be of type AutoCastVariable, but got: {variable!r}")
    if not dtypes.is_float(variable.true_dtype):
        raise ValueError(f"variable must be a floating point variable but has type: {variable.true_dtype}")
    return AutoCastVariable(variable.numpy(), trainable=variable.trainable, name=variable.name)
