"""Keras' own NumPy backend, made fast in place: functions of its modules replaced while a test says they agree."""

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
"""The first and the last version of Keras whose backend is known to be as here."""


@dataclass
class _State:
    """What is replaced in this process, and who asked for it."""

    lock: Any = field(default_factory=RLock)
    wanted: set[Any] = field(default_factory=set)
    """One object for each block that is entered, and `accelerate` if that was called."""
    pairs: list[tuple[Any, Any]] = field(default_factory=list)
    """Original and replacement of each function that is in place, or that a call was about to exchange."""
    in_place: bool = False
    checked: dict[tuple[str, str], tuple[Any, Any] | None] = field(default_factory=dict)
    """Module and name -> original and replacement; None where the self-test has failed."""


_state = _State()


def accelerate() -> None:
    """Let Keras' NumPy backend compute by mp_core, from now on in this process.

    Products of float16, bfloat16 and int8, conversions of floats, softmax and activations change; each function only if
    a self-test finds that it agrees with the original, which also serves what mp_core does not. A second call does
    nothing.

    Raises
    ------
    ImportError
        Keras is not installed.
    RuntimeError
        The backend is another one than NumPy.

    Examples
    --------
    >>> accelerate()  # doctest: +SKIP
    >>> model.predict(x)  # doctest: +SKIP
    """
    _check_backend()
    called_under(_state.lock, _want, accelerate)


def accelerated() -> Held:
    """Do what :func:`accelerate` does inside a ``with`` block, for all threads of the process.

    At the end of the outermost block every function is the original again, unless :func:`accelerate` was called.

    Examples
    --------
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


def _want(who: object) -> None:
    """Put the replacements in their places, if they are not there."""
    _state.wanted.add(who)
    if not _state.in_place:
        _state.pairs = [pair for pair in map(_checked, _replacements()) if pair is not None]
        _exchange(_state.pairs)
        _state.in_place = True


def _leave(who: object) -> None:
    """Put the originals back, unless somebody else wants the replacements."""
    _state.wanted.discard(who)
    if not _state.wanted:
        _state.in_place = False
        _exchange([(replacement, original) for original, replacement in _state.pairs])


def _replacements() -> tuple[Replacement, ...]:
    """Return what may be replaced: nothing in a version of Keras that nobody has looked at."""
    import keras

    version = tuple(map(int, keras.__version__.split(".")[:2]))
    if _TESTED[0] <= version <= _TESTED[1]:
        return REPLACEMENTS
    _logger.warning("Keras %s is not accelerated: known are 3.12 to 3.16", keras.__version__)
    return ()


def _checked(row: Replacement) -> tuple[Any, Any] | None:
    """Return original and replacement of a function, None if they do not agree; found out once."""
    key = row.module, row.name
    if key not in _state.checked:
        original = getattr(importlib.import_module(row.module), row.name, None)
        replacement = None if original is None else row.make(original)
        why = "it does not exist" if original is None else _difference(row, original, replacement)
        if why:
            _logger.warning("Keras' %s.%s stays as it is: %s", row.module, row.name, why)
        _state.checked[key] = None if why else (original, replacement)
    return _state.checked[key]


def _difference(row: Replacement, original: Callable[..., Any], replacement: Any) -> str | None:
    """Return how the results of a replacement differ from those of the original, None if they are within the bound."""
    for case in row.cases():
        with np.errstate(all="ignore"):
            try:
                want, got = (np.asarray(f(*case.args, **case.kwargs)) for f in (original, replacement))
            except Exception as error:  # whatever another version of Keras raises
                return f"the self-test raises {type(error).__name__}: {error}"
            if want.dtype != got.dtype or want.shape != got.shape:
                return f"the result is {got.dtype} of shape {got.shape}, and was {want.dtype} of {want.shape}"
            one, other = got.astype(np.float64), want.astype(np.float64)
            same = (one == other) | (np.isnan(one) & np.isnan(other))
            if not np.all(same | (np.abs(one - other) <= case.bound)):
                return f"for {want.dtype} the largest difference is {np.nanmax(np.abs(one - other)):g}"
    return None


def _exchange(pairs: list[tuple[Any, Any]]) -> None:
    """Put the second function of each pair in the place of the first, in every module of Keras that has it."""
    second = {id(old): new for old, new in pairs}
    for name, module in list(sys.modules.items()):
        if name == "keras" or name.startswith("keras."):
            for attribute, value in list(vars(module).items()):
                if id(value) in second:
                    setattr(module, attribute, second[id(value)])
