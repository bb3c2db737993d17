"""Accelerate Keras' NumPy backend: replace its functions by mp_core's if a self-test shows that they agree."""

import importlib
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import Any

import numpy as np

from mp_core.core.scopes import Held, called_under
from mp_core.interop.keras.replacements import REPLACEMENTS, Replacement
from mp_core.utilities.extras import needed_by

__all__ = ["accelerate", "accelerated"]

_logger = logging.getLogger(__name__)

_TESTED = ((3, 12), (3, 16))
"""The first and the last version of Keras whose backend was checked."""


@dataclass
class _State:
    """The functions that are replaced in this process, and the users of the replacements."""

    lock: Any = field(default_factory=RLock)
    wanted: set[Any] = field(default_factory=set)
    """The users: one object for each active ``with`` block, and `accelerate` if that was called."""
    pairs: list[tuple[Any, Any]] = field(default_factory=list)
    """(original, replacement) of each function that is replaced or about to be replaced."""
    in_place: bool = False
    checked: dict[tuple[str, str], tuple[Any, Any] | None] = field(default_factory=dict)
    """(module, name) -> (original, replacement), or None if the self-test failed."""


_state = _State()


def accelerate() -> None:
    """Let Keras' NumPy backend, which must be the current one, use mp_core in this process from now on.

    This replaces products of float16, bfloat16 and int8, conversions of floats, softmax and activations. A function is
    replaced only if a self-test shows that results agree; the original still computes what mp_core does not support. A
    second call does nothing.

    Examples
    --------
    >>> accelerate()  # doctest: +SKIP
    >>> model.predict(x)  # doctest: +SKIP
    """
    _check_backend()
    called_under(_state.lock, _want, accelerate)


def accelerated() -> Held:
    """Return a context manager that does the same as :func:`accelerate`, for all threads of the process.

    The end of the outermost block restores the original functions, unless :func:`accelerate` was called.

    >>> with accelerated():  # doctest: +SKIP
    ...     model.predict(x)
    """
    _check_backend()
    return Held(partial(called_under, _state.lock, _want), partial(called_under, _state.lock, _leave))


def _check_backend() -> None:
    with needed_by("accelerate"):
        import keras

    backend = keras.config.backend()
    if backend != "numpy":
        raise RuntimeError(f"only Keras' NumPy backend is accelerated: KERAS_BACKEND=numpy; the backend is {backend}")


def _want(user: object) -> None:
    """Add a user of the replacements; install them if they are not in place."""
    _state.wanted.add(user)
    if not _state.in_place:
        _state.pairs = [pair for pair in map(_checked_pair, _replacements()) if pair is not None]
        _exchange(_state.pairs)
        _state.in_place = True


def _leave(user: object) -> None:
    """Remove a user; restore the original functions if no user is left."""
    _state.wanted.discard(user)
    if not _state.wanted:
        _state.in_place = False
        _exchange([(replacement, original) for original, replacement in _state.pairs])


def _replacements() -> tuple[Replacement, ...]:
    """Return the functions that may be replaced; none in a version of Keras that was not checked."""
    import keras

    version = tuple(map(int, keras.__version__.split(".")[:2]))
    if _TESTED[0] <= version <= _TESTED[1]:
        return REPLACEMENTS
    _logger.warning("Keras %s is not accelerated: use 3.12 to 3.16", keras.__version__)
    return ()


def _checked_pair(row: Replacement) -> tuple[Any, Any] | None:
    """Return (original, replacement) of a function, or None if their results differ; cache the answer."""
    key = row.module, row.name
    if key not in _state.checked:
        original = getattr(importlib.import_module(row.module), row.name, None)
        replacement = None if original is None else row.make(original)
        why = "it does not exist" if original is None else _difference(row, original, replacement)
        if why:
            _logger.warning("Keras' %s.%s is not replaced: %s", row.module, row.name, why)
        _state.checked[key] = None if why else (original, replacement)
    return _state.checked[key]


def _difference(row: Replacement, original: Callable[..., Any], replacement: Any) -> str | None:
    """Describe how the results of a replacement differ from those of the original; None if within the bound."""
    for case in row.cases():
        with np.errstate(all="ignore"):
            try:
                want, got = (np.asarray(f(*case.args, **case.kwargs)) for f in (original, replacement))
            except Exception as error:  # another version of Keras may raise anything
                return f"the self-test raises {type(error).__name__}: {error}"
            if want.dtype != got.dtype or want.shape != got.shape:
                return f"the result is {got.dtype} of shape {got.shape}, and was {want.dtype} of {want.shape}"
            one, other = got.astype(np.float64), want.astype(np.float64)
            same = (one == other) | (np.isnan(one) & np.isnan(other))
            if not np.all(same | (np.abs(one - other) <= case.bound)):
                return f"for {want.dtype} the largest difference is {np.nanmax(np.abs(one - other)):g}"
    return None


def _exchange(pairs: list[tuple[Any, Any]]) -> None:
    """Replace the first function of each pair by the second in every module of Keras."""
    second = {id(old): new for old, new in pairs}
    for name, module in list(sys.modules.items()):
        if name == "keras" or name.startswith("keras."):
            for attribute, value in list(vars(module).items()):
                if id(value) in second:
                    setattr(module, attribute, second[id(value)])
