"""Choose the next token from logits: the largest one, or one drawn from counted random numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, F64, Array
from mp_core.ops.random import uniform
from mp_core.utilities.arguments import integer, number, positive_integer, share

__all__ = ["Sampling"]

_LEAST = 2.0**-120
"""The least temperature above 0 whose reciprocal is a float32."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    In this order: logits of tokens that occurred are divided by `repetition_penalty` if positive, else multiplied; all
    are divided by `temperature`; of their softmax, in float32, the `top_k` largest probabilities are kept, then the
    fewest largest ones whose sum is at least `top_p`, then those that are at least `min_p` times the largest. Of equal
    logits, the token with the smaller index comes first. The token is the first one at which the sum of the kept
    probabilities, the largest first, in float64, exceeds ``u`` times their total. ``u`` is number `position` of the
    random numbers of the key (seed, index of the prompt), so it does not depend on anything else in the batch.

    Attributes
    ----------
    temperature : float
        0: the token with the largest logit.
    top_k : int or None
    top_p, min_p : float
        From 0 to 1.
    repetition_penalty : float
    seed : int
        From 0 to 2^32 - 1.

    Examples
    --------
    >>> Sampling().token(np.array([1, 3, 3], np.float32), [], 0, 0)
    1
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= number(self.temperature, "temperature") < np.inf:
            raise ValueError(f"`temperature` must be a number from 0 on; received {self.temperature}")
        if self.top_k is not None:
            positive_integer(self.top_k, "top_k")
        share(self.top_p, "top_p"), share(self.min_p, "min_p")
        if not 0 < number(self.repetition_penalty, "repetition_penalty") < np.inf:
            raise ValueError(f"`repetition_penalty` must be positive; received {self.repetition_penalty}")
        if not 0 <= integer(self.seed, "seed") < 2**32:
            raise ValueError(f"`seed` must be from 0 to 2^32 - 1; received {self.seed}")

    def token(self, logits: Array, earlier: Sequence[int], prompt: int, position: int) -> int:
        """Return the token after the `earlier` ones.

        `logits` are float32; `prompt` is the index of the prompt, and `position` that of the new token in its sequence.
        """
        if self.repetition_penalty != 1 and len(earlier):
            logits = self._penalized(logits, np.unique(earlier))
        if self.temperature == 0:
            return int(np.argmax(logits))
        with np.errstate(over="ignore"):
            scaled = logits * F32.type(1 / max(self.temperature, _LEAST))
        if not np.isfinite(scaled).all():  # so little temperature that only the largest logit counts
            return int(np.argmax(logits))
        tokens, probabilities = self._kept(scaled)
        sums = np.cumsum(probabilities, dtype=F64)
        u = float(uniform(np.array([self.seed, prompt], np.uint32), (1,), np.array([position], np.int32))[0])
        return int(tokens[min(int(np.searchsorted(sums, u * sums[-1], side="right")), len(tokens) - 1)])

    def _penalized(self, logits: Array, seen: Array) -> Array:
        penalty, logits = F32.type(self.repetition_penalty), logits.copy()
        own = logits[seen]
        logits[seen] = np.where(own > 0, own / penalty, own * penalty)
        return logits

    def _kept(self, scaled: Array) -> tuple[Array, Array]:
        """Return the tokens that may be drawn, the most probable first, and their probabilities."""
        found = ops.softmax(scaled)
        tokens = np.argsort(-found, kind="stable")[: self.top_k]
        probabilities = found[tokens]
        enough = int(np.searchsorted(np.cumsum(probabilities, dtype=F64), self.top_p, side="left")) + 1
        kept = min(enough, int(np.count_nonzero(probabilities >= F32.type(self.min_p) * probabilities[0])))
        return tokens[: max(kept, 1)], probabilities[: max(kept, 1)]
