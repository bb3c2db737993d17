"""Functions whose gradient somebody else says."""

import functools
from collections.abc import Callable
from typing import Any

from mp_core.arrays.recorded import Noted, Recorded, is_recorded, under_way
from mp_core.core.convert import copied

__all__ = ["custom_gradient"]


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function say its own gradient, as ``tf.custom_gradient`` does.

    Parameters
    ----------
    function : callable
        Called with arrays, it returns a pair: an array, and a function of the gradient of that array, which returns
        the gradient of the argument, or a list of them if there are several; None for an argument without one. Both
        are made of operations, arithmetic and views.

    Returns
    -------
    callable
        It returns the array alone. Its positional arguments have the gradients; variables that the function reads
        otherwise have none.

    Examples
    --------
    Rounding that is passed straight through:

    >>> import numpy as np
    >>> import mp_core as mp
    >>> @custom_gradient
    ... def to_bfloat16(x):
    ...     return mp.cast(mp.cast(x, "bfloat16"), "float32"), lambda d: d
    >>> w = mp.AutoCastVariable(np.float32([[1.001]]))
    >>> value, (gradient,) = mp.value_and_grad(lambda: mp.matmul(to_bfloat16(w), np.float32([[3.0]])), [w])()
    >>> float(value), gradient.tolist()
    (3.0, [[3.0]])
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(x.read_value() if hasattr(x, "read_value") else x for x in args)
        recording = under_way()
        if recording is None or recording.noted is None or not is_recorded(*args):
            return function(*args, **kwargs)[0]
        noted, recording.noted = recording.noted, None
        try:
            result, gradient = function(*args, **kwargs)
            if is_recorded(result) and any(recording.place(result)[0] == recording.place(x)[0] for x in _only(args)):
                result = recording.call(copied, (result,), {})
        finally:
            recording.noted = noted
        if is_recorded(result):
            noted.append(Noted(function, args, {}, result, _rule_of(function, gradient)))
        return result

    return call


def _only(args: tuple[Any, ...]) -> list[Recorded]:
    return [x for x in args if type(x) is Recorded]


def _rule_of(function: Callable[..., Any], gradient: Callable[[Any], Any]) -> Callable[..., dict[str, Any]]:
    """Return the rule of a call whose gradient is that function."""

    def rule(d: Any, result: Any, *args: Any) -> dict[str, Any]:
        found = gradient(d)
        found = tuple(found) if isinstance(found, tuple | list) else (found,)
        if len(found) != len(args):
            raise ValueError(
                f"the gradient of {function.__name__} must return {len(args)} gradients, one for each positional "
                f"argument; received {len(found)}"
            )
        return {"args": found}

    return rule
