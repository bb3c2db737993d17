"""Choose the next token from logits: the largest one, or one drawn from counted random numbers."""

from collections.abc import Mapping, Sequence
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

    In this order: `logit_bias` is added; logits of tokens that occurred, in the prompt too, are divided by
    `repetition_penalty` if positive, else multiplied; from those of tokens that were generated n > 0 times,
    ``n frequency_penalty + presence_penalty`` is subtracted, computed in float64 and rounded to float32; all are
    divided by `temperature`; of their softmax, in float32, the `top_k` largest probabilities are kept, then the fewest
    largest ones whose sum is at least `top_p`, then those that are at least `min_p` times the largest. Of equal
    logits, the token with the smaller index comes first. The token is the first one at which the sum of the kept
    probabilities, the largest first, in float64, exceeds ``u`` times their total. The random numbers have the key
    (seed, index of the prompt), and ``u`` is the one at the index of the token in its sequence, so it does not depend
    on anything else in the batch.

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
    presence_penalty, frequency_penalty : float
        Positive: tokens that were generated become less probable.
    logit_bias : mapping of int to float, optional
        Token -> what is added to its logit: -100 excludes it, +100 enforces it.

    Examples
    --------
    >>> logits = np.array([1, 3, 3], np.float32)
    >>> Sampling().token(logits, [])
    1
    >>> Sampling(presence_penalty=0.5).token(logits, [2, 1], given=1)
    2
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None

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
        added = {"presence_penalty": self.presence_penalty, "frequency_penalty": self.frequency_penalty}
        biases = {} if self.logit_bias is None else self.logit_bias
        for name, value in (added | {f"logit_bias[{token}]": bias for token, bias in biases.items()}).items():
            if np.isinf(number(value, name)):
                raise ValueError(f"`{name}` must be finite; received {value}")
        for token in biases:
            if integer(token, "logit_bias") < 0:
                raise ValueError(f"`logit_bias` must have tokens from 0 on; received {token}")

    def token(self, logits: Array, earlier: Sequence[int], given: int = 0, prompt: int = 0) -> int:
        """Return the token after the `earlier` ones, of which the first `given` are the prompt.

        `logits` are float32; `prompt` is the index of the prompt in the call.
        """
        logits = self._changed(logits, earlier, given)
        if self.temperature == 0:
            return int(np.argmax(logits))
        with np.errstate(over="ignore"):
            scaled = logits * F32.type(1 / max(self.temperature, _LEAST))
        if not np.isfinite(scaled.max()):  # so little temperature that only the largest logit counts
            return int(np.argmax(logits))
        tokens, probabilities = self._kept(scaled)
        sums = np.cumsum(probabilities, dtype=F64)
        u = float(uniform(np.array([self.seed, prompt], np.uint32), (1,), np.array([len(earlier)], np.int32))[0])
        return int(tokens[min(int(np.searchsorted(sums, u * sums[-1], side="right")), len(tokens) - 1)])

    def _changed(self, logits: Array, earlier: Sequence[int], given: int) -> Array:
        """Return logits with the bias, and less those of repeated tokens."""
        logits = logits.copy()
        if self.logit_bias:
            logits[list(self.logit_bias)] += np.array(list(self.logit_bias.values()), F32)
        if self.repetition_penalty != 1 and len(earlier):
            penalty, seen = F32.type(self.repetition_penalty), np.unique(earlier)
            own = logits[seen]
            logits[seen] = np.where(own > 0, own / penalty, own * penalty)
        if (self.presence_penalty or self.frequency_penalty) and len(earlier) > given:
            seen, counts = np.unique(earlier[given:], return_counts=True)
            logits[seen] -= (counts * float(self.frequency_penalty) + float(self.presence_penalty)).astype(F32)
        return logits

    def _kept(self, scaled: Array) -> tuple[Array, Array]:
        """Return the tokens that may be drawn, the most probable first, and their probabilities."""
        found = ops.softmax(scaled)
        tokens = np.argsort(-found, kind="stable")[: self.top_k]
        probabilities = found[tokens]
        enough = int(np.searchsorted(np.cumsum(probabilities, dtype=F64), self.top_p, side="left")) + 1
        kept = min(enough, int(np.count_nonzero(probabilities >= F32.type(self.min_p) * probabilities[0])))
        return tokens[: max(kept, 1)], probabilities[: max(kept, 1)]
