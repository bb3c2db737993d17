"""Muon: matrices are updated with their orthogonalized momentum, all other variables by Adam."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.ops.norms import squared
from mp_core.policies.autocast import AutoCastVariable
from mp_core.training.optimizers import formulas
from mp_core.training.optimizers.adaptive import moment_numbers
from mp_core.training.optimizers.base import Optimizer
from mp_core.training.optimizers.state import COMMON, RATE
from mp_core.utilities.arguments import boolean, finite, number, positive_integer, share
from mp_core.utilities.docstrings import documented
from mp_core.utilities.patterns import matcher

__all__ = ["Muon"]


@documented(RATE, COMMON)
class Muon(Optimizer):
    """Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon), as Keras computes it.

    For a matrix, in order:

    1. ``m = gradient + momentum * m``; ``u = gradient + momentum * m`` with `nesterov`, otherwise ``u = m``
    2. ``x = u / (|u| + 1e-7)``
    3. `ns_steps` times (Newton and Schulz): ``A = x @ x.T``, ``x = muon_a * x + (muon_b * A + muon_c * A @ A) @ x``.
       Then all singular values of x are near 1.
    4. ``variable -= learning_rate * x * sqrt(max(variable.shape)) * rms_rate`` (Liu et al., 2025,
       https://arxiv.org/abs/2502.16982); without these factors if `rms_rate` is None

    Products are computed by :func:`mp_core.matmul`. Adam updates embeddings, variables that are not matrices, and
    variables that `exclude_layers` matches. Exclude the last layer of a classifier.

    Parameters
    ----------
    adam_beta_1, adam_beta_2, epsilon : float
        As in :class:`Adam`.
    adam_weight_decay, weight_decay : float, optional
        The weight decay of variables that Adam updates, and of the matrices.
    exclude_layers : list of str, optional
        Regular expressions. Adam updates each variable whose ``path``, such as ``"dense/kernel"``, contains a match.
    exclude_embeddings : bool
        Whether Adam updates the variables whose path contains ``embedding``.
    adam_lr_ratio : float
        The learning rate of Adam is ``learning_rate * adam_lr_ratio``.
    momentum, muon_a, muon_b, muon_c, rms_rate : float
    ns_steps : int
    nesterov : bool

    Examples
    --------
    >>> from mp_core import AutoCastVariable
    >>> variable = AutoCastVariable(np.zeros((2, 2), np.float32))
    >>> Muon(0.5, rms_rate=None).apply([np.float32([[3.0, 0.0], [0.0, 2.0]])], [variable])
    >>> np.abs(variable.numpy()).round(2)
    array([[0.56, 0.  ],
           [0.  , 0.34]], dtype=float32)
    """

    slots: tuple[tuple[str, ...], ...] = (("momentum", "velocity"),)
    _arguments = (
        "adam_beta_1", "adam_beta_2", "adam_weight_decay", "epsilon", "exclude_layers", "exclude_embeddings", "muon_a",
        "muon_b", "muon_c", "adam_lr_ratio", "momentum", "ns_steps", "nesterov", "rms_rate",
    )  # fmt: skip

    def __init__(
        self,
        learning_rate: Any = 0.001,
        adam_beta_1: float = 0.9,
        adam_beta_2: float = 0.999,
        adam_weight_decay: float | None = 0.004,
        epsilon: float = 1e-7,
        weight_decay: float | None = 0.004,
        *,
        exclude_layers: Sequence[str] | None = None,
        exclude_embeddings: bool = True,
        muon_a: float = 3.4445,
        muon_b: float = -4.7750,
        muon_c: float = 2.0315,
        adam_lr_ratio: float = 1,
        momentum: float = 0.95,
        ns_steps: int = 5,
        nesterov: bool = True,
        rms_rate: float | None = 0.2,
        **common: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay=weight_decay, **common)
        self.adam_beta_1, self.adam_beta_2 = share(adam_beta_1, "adam_beta_1"), share(adam_beta_2, "adam_beta_2")
        self.adam_weight_decay = None if adam_weight_decay is None else finite(adam_weight_decay, "adam_weight_decay")
        self.epsilon = number(epsilon, "epsilon", 0)
        self.exclude_layers = [] if exclude_layers is None else _patterns(exclude_layers)
        self._exclude_matchers = [_compiled_pattern(pattern) for pattern in self.exclude_layers]
        self.exclude_embeddings = boolean(exclude_embeddings, "exclude_embeddings")
        self.muon_a, self.muon_b, self.muon_c = (
            number(value, name) for value, name in ((muon_a, "muon_a"), (muon_b, "muon_b"), (muon_c, "muon_c"))
        )
        self.adam_lr_ratio, self.momentum = number(adam_lr_ratio, "adam_lr_ratio", 0), share(momentum, "momentum")
        self.ns_steps, self.nesterov = positive_integer(ns_steps, "ns_steps"), boolean(nesterov, "nesterov")
        self.rms_rate = _optional(rms_rate, "rms_rate")

    def _uses_adam(self, variable: AutoCastVariable) -> bool:
        """Whether Adam updates a variable."""
        path = variable.path
        is_embedding = self.exclude_embeddings and "embedding" in path.lower()
        return variable.ndim != 2 or is_embedding or any(finds(path) for finds in self._exclude_matchers)

    def _has_slot(self, variable: AutoCastVariable, name: str) -> bool:
        return name != "velocity" or self._uses_adam(variable)

    def _decay_of(self, variable: AutoCastVariable) -> float:
        return (self.adam_weight_decay if self._uses_adam(variable) else self.weight_decay) or 0.0

    def numbers(self, rate: Any, step: int, kind: Any) -> Sequence[Any]:
        rate_of_adam = rate * kind(self.adam_lr_ratio)
        return rate, moment_numbers(self.adam_beta_1, self.adam_beta_2, self.epsilon, rate_of_adam, step)

    def updated(
        self, w: Array, g: Array, slots: Sequence[Array], numbers: Sequence[Any], how: formulas.Preparation
    ) -> tuple[Array, list[Array], bool]:
        rate, of_adam = numbers
        if len(slots) > 1:
            return formulas.updated("adam", w, g, slots, of_adam, how)
        return formulas.applied(self._orthogonal_update, w, g, slots, (rate,), how)

    def _orthogonal_update(
        self, w: Array, g: Array, slots: Sequence[Array], numbers: Sequence[Any]
    ) -> tuple[Array, list[Array]]:
        """Return the new values of a matrix and its momentum."""
        kind, (rate,) = w.dtype.type, numbers
        m = slots[0] + (g + slots[0] * kind(self.momentum - 1))
        step = self._orthogonal(g + m * kind(self.momentum) if self.nesterov else m) * rate
        if self.rms_rate is not None:
            step = step * np.sqrt(kind(max(w.shape))) * kind(self.rms_rate)
        return w - step, [m]

    def _orthogonal(self, x: Array) -> Array:
        """Return a matrix with the same singular vectors, and singular values near 1."""
        if x.shape[0] > x.shape[1]:
            return np.ascontiguousarray(self._orthogonal(x.T).T)
        a, b, c = (x.dtype.type(value) for value in (self.muon_a, self.muon_b, self.muon_c))
        x, squares, by = squared(x, None)
        x = x / (np.sqrt(squares) + x.dtype.type(1e-7) * (1 if by is None else by))
        for _ in range(self.ns_steps):
            squares = ops.matmul(x, x.T)
            x = x * a + ops.matmul(squares * b + ops.matmul(squares * c, squares), x)
        return x


def _optional(value: Any, argument: str) -> float | None:
    return None if value is None else number(value, argument, 0)


def _patterns(given: Sequence[str]) -> list[str]:
    """Return a list of strings; raise TypeError for anything else."""
    if not isinstance(given, list | tuple) or not all(isinstance(pattern, str) for pattern in given):
        raise TypeError(f"`exclude_layers` must be a list of regular expressions; received {given!r}")
    return list(given)


def _compiled_pattern(pattern: str) -> Callable[[str], object]:
    """Return a function that searches a path for a regular expression; raise ValueError if it is invalid."""
    try:
        return matcher(pattern, "search")
    except ValueError as error:
        raise ValueError(f"`exclude_layers` must be a list of regular expressions; {pattern!r}: {error}") from None
