"""Functions with a gradient of their own."""

import functools
from collections.abc import Callable
from typing import Any

from mp_core.arrays.recorded import NotedCall, Recorded, current_recording, is_recorded
from mp_core.core.convert import copied

__all__ = ["custom_gradient"]


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Define the gradient of a function, as ``tf.custom_gradient`` does.

    Parameters
    ----------
    function : callable
        Called with arrays, it returns (result, gradient function). The gradient function takes the gradient of the
        result, and returns the gradient of the argument, or a list with one for each argument; None means no gradient.
        Both functions consist of operations, arithmetic and views.

    Returns
    -------
    callable
        It returns the result alone. Gradients reach its positional arguments only, not variables that the function
        reads in another way.

    Examples
    --------
    A straight-through gradient of rounding:

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
        recording = current_recording()
        if recording is None or recording.noted_calls is None or not is_recorded(*args):
            return function(*args, **kwargs)[0]
        noted, recording.noted_calls = recording.noted_calls, None
        try:
            result, gradient = function(*args, **kwargs)
            if is_recorded(result) and any(
                recording.place(result)[0] == recording.place(x)[0] for x in _recorded_among(args)
            ):
                result = recording.call(copied, (result,), {})
        finally:
            recording.noted_calls = noted
        if is_recorded(result):
            noted.append(NotedCall(function, args, {}, result, _rule_of(function, gradient)))
        return result

    return call


def _recorded_among(args: tuple[Any, ...]) -> list[Recorded]:
    return [x for x in args if type(x) is Recorded]


def _rule_of(function: Callable[..., Any], gradient: Callable[[Any], Any]) -> Callable[..., dict[str, Any]]:
    """Return the gradient rule of a call, made from its gradient function."""

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
