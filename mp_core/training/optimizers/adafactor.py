"""Adafactor: stores only row and column means of the averaged squared gradients."""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from mp_core import ops
from mp_core.arrays import Array, cast
from mp_core.ops.norms import squared
from mp_core.policies.autocast import AutoCastVariable
from mp_core.training.optimizers.base import Optimizer
from mp_core.training.optimizers.formulas import Preparation, prepared, work_type
from mp_core.training.optimizers.state import COMMON, RATE, Common
from mp_core.utilities.arguments import boolean, number
from mp_core.utilities.docstrings import documented

__all__ = ["Adafactor"]


@documented(RATE, COMMON)
class Adafactor(Optimizer):
    """Adafactor (Shazeer and Stern, 2018, https://arxiv.org/abs/1804.04235), as Keras computes it.

    In step t, ``beta = 1 - t**beta_2_decay``. Of ``s = gradient**2 + epsilon_1`` the means over the last axis and over
    the one before it are averaged, ``r = beta * r + (1 - beta) * mean(s)``, c likewise, and ``v = r / mean(r) * c``; a
    variable with fewer than two axes averages s itself. Then ``u = gradient / sqrt(v)`` and ``variable -= alpha * u /
    max(1, rms(u) / clip_threshold)``, where ``alpha = max(epsilon_2, rms(variable)) * min(learning_rate, 1/sqrt(t))``.
    Means are computed by :func:`mp_core.mean`.

    Parameters
    ----------
    beta_2_decay, epsilon_1, epsilon_2, clip_threshold : float
    relative_step : bool
        Without effect, as in Keras: the learning rate is always limited to ``1 / sqrt(t)``.

    Examples
    --------
    >>> from mp_core import AutoCastVariable
    >>> variable = AutoCastVariable([[1.0, 1.0]])
    >>> Adafactor(0.25).apply([np.float32([[3.0, -0.1]])], [variable])
    >>> variable.numpy().round(4)
    array([[0.75, 1.25]], dtype=float32)
    """

    slots: tuple[tuple[str, ...], ...] = (("r", "c", "velocity"),)
    _arguments = ("beta_2_decay", "epsilon_1", "epsilon_2", "clip_threshold", "relative_step")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        relative_step: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.beta_2_decay = number(beta_2_decay, "beta_2_decay")
        self.epsilon_1, self.epsilon_2 = number(epsilon_1, "epsilon_1", 0), number(epsilon_2, "epsilon_2", 0)
        self.clip_threshold = number(clip_threshold, "clip_threshold", 0)
        self.relative_step = boolean(relative_step, "relative_step")

    def _new_slot(self, variable: AutoCastVariable, name: str) -> AutoCastVariable:
        if name not in ("r", "c"):
            return super()._new_slot(variable, name)
        if variable.ndim < 2:  # unused: Keras stores a scalar
            return self._register_slot(variable, name, self.add_variable((), name=variable.name))
        shape = variable.shape
        kept = shape[:-1] if name == "r" else (*shape[:-2], shape[-1])
        return self._register_slot(
            variable, name, self.add_variable(kept, dtype=variable.true_dtype, name=variable.name)
        )

    def numbers(self, rate: Any, step: int, kind: Any) -> Sequence[Any]:
        return min(rate, kind(1) / np.sqrt(kind(step))), kind(1 - float(step) ** self.beta_2_decay)

    def updated(
        self, w: Array, g: Array, slots: Sequence[Array], numbers: Sequence[Any], how: Preparation
    ) -> tuple[Array, list[Array], bool]:
        work = work_type(w.dtype)
        rate, beta = numbers
        with np.errstate(all="ignore"):
            finite = bool(np.isfinite(cast(g, work)).all())
            decayed, g = prepared(w, g, how)
            squares = g * g + work(self.epsilon_1)
            r, c, v = (cast(slot, work) for slot in slots)
            if w.ndim >= 2:
                r = r * beta + ops.mean(squares, -1) * (work(1) - beta)
                c = c * beta + ops.mean(squares, -2) * (work(1) - beta)
                v = (r / ops.mean(r, -1, keepdims=True))[..., None] * c[..., None, :]
            else:
                v = v * beta + squares * (work(1) - beta)
            u = g / np.sqrt(v)
            alpha = np.maximum(work(self.epsilon_2), _rms(decayed)) * rate
            u = u / np.maximum(work(1), _rms(u) / work(self.clip_threshold))
            new = decayed - u * alpha
        return cast(new, w.dtype), [cast(x, slot.dtype) for x, slot in zip((r, c, v), slots, strict=True)], finite


def _rms(x: Array) -> Any:
    x, squares, by = squared(x, None)
    root = np.sqrt(squares.reshape(()) / x.dtype.type(x.size))
    return root if by is None else root / by.reshape(())
