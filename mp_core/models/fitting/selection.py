"""``sensitivity``: the effect of policies on single layers. ``choose_policy``: the smallest map within a budget."""

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import median
from time import process_time
from typing import Any

from mp_core.models.fitting.measures import Metric, OwnMetric, check_metric
from mp_core.models.fitting.results import LayerChoice, PolicyChoice, Sensitivity
from mp_core.models.fitting.running import LayerLike
from mp_core.models.fitting.trial import REFERENCE, Run, Trial
from mp_core.policies.dtype_policies import policy_of
from mp_core.utilities.arguments import number
from mp_core.utilities.progress import counting

__all__ = ["POLICIES", "choose_policy", "sensitivity"]

POLICIES = ("bfloat16", "float16", "int8", "int8/weight_only", "int4/64")
"""The policies that are tried by default."""

_ROUNDS = 7
_MIN_SECONDS = 0.02
"""The CPU seconds of a run in a round: shorter runs are repeated until they take so long."""
_TIME_TOLERANCE = 0.03
"""Runs at most 3 % slower than the fastest count as equally fast."""


def sensitivity(
    model: LayerLike, sample: Any, policies: Iterable[str] = POLICIES, *, show_progress: bool = False
) -> tuple[Sensitivity, ...]:
    """Measure the error of each policy in one layer at a time, with all other layers in float32.

    Parameters
    ----------
    model : Layer
        Built and unquantized. Also accepted: an object with the same ``__call__``, ``flatten``, ``weight_bytes`` and
        ``with_policy``, such as a :class:`~mp_core.models.TextEncoder`. The model itself does not change. It returns
        an array of floats, or a dict of outputs by name, of which all floats are measured.
    sample : array, tuple, dict or list
        The inputs of a call: its only argument, a tuple of arguments, or a dict of keyword arguments. A list or an
        iterator is several calls; for an encoder, a list of texts.
    policies : iterable of str
        Names of policies, or schemes alone: ``"int8"`` means ``"int8_from_mixed_bfloat16"``. Default: ``bfloat16``,
        ``float16``, ``int8``, ``int8/weight_only`` and ``int4/64``.
    show_progress : bool
        Whether to show a bar on stderr (needs tqdm).

    Returns
    -------
    tuple of Sensitivity
        One for each layer with weights and each policy that the layer supports.

    Raises
    ------
    ValueError
        `model` has no weights, is not built, or is quantized; or the float32 outputs are empty or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from mp_core.layers import Dense
    >>> rng = np.random.default_rng(0)
    >>> layer = Dense(8, name="dense")
    >>> x = rng.standard_normal((4, 16))
    >>> _ = layer(x)
    >>> for row in sensitivity(layer, x, ["float16", "int8_from_float32"]):
    ...     print(row.path, row.policy, row.saved, row.error.max < 1e-3)
    dense float16 272 True
    dense int8_from_float32 352 True
    """
    return Trial(model, sample).rows(_names(policies), show_progress)


def choose_policy(
    model: LayerLike,
    sample: Any,
    *,
    max_error: float,
    metric: Metric | OwnMetric | None = None,
    policies: Iterable[str] = POLICIES,
    show_progress: bool = False,
) -> PolicyChoice:
    """Return the policies with the smallest weights, and among equal sizes the fastest, within an error budget.

    A greedy search: it starts in float32 and gives layers cheaper policies, in the order of added error per saved byte.
    Every accepted map has been run on the sample and met the budget.

    Parameters
    ----------
    model, sample, policies, show_progress
        As in :func:`sensitivity`.
    max_error : float
        The budget on the sample; the error on other inputs may be larger.
    metric : {"max", "mean", "rmse", "largest", "disagreement"} or callable, optional
        The field of :class:`OutputError` that the budget limits. Default: ``"largest"`` if outputs are single numbers,
        otherwise ``"max"``, which compares cosines and ignores lengths. A function gets the outputs and the float32
        outputs of the sample, two float64 arrays with one output per row, and returns the error, for example the loss
        of accuracy. A metric of :mod:`mp_core.metrics` is reset for each model.

    Returns
    -------
    PolicyChoice
        If no smaller map meets the budget, every layer stays in float32, and the table says why.
        ``model.with_policy(choice.map)`` returns the model under the chosen policies.

    Raises
    ------
    ValueError
        As for :func:`sensitivity`; or `metric` cannot measure the outputs, or exceeds the budget even for float32.

    Examples
    --------
    >>> import numpy as np
    >>> from mp_core.layers import Dense, Sequential
    >>> rng = np.random.default_rng(0)
    >>> model = Sequential([Dense(64, name="wide"), Dense(2, name="narrow")], name="model")
    >>> x = rng.standard_normal((20, 32))
    >>> _ = model(x)
    >>> choice = choose_policy(model, x, max_error=1e-3, policies=["float16", "int8_from_float32"])
    >>> choice.nbytes < choice.reference_nbytes, choice.error.max <= 1e-3
    (True, True)
    """
    max_error = number(max_error, "max_error", 0.0)
    if max_error == math.inf:
        raise ValueError(f"`max_error` must be at least 0 and finite; received {max_error}")
    check_metric(metric)
    names = _names(policies)
    trial = Trial(model, sample, metric)
    least = getattr(trial.reference.error, trial.metric)
    if not least <= max_error:
        raise ValueError(f"`metric` must be at most `max_error` for {REFERENCE} itself; it is {least:g} there")
    search = _Search(trial, trial.rows(names, show_progress), max_error)
    with counting(show=show_progress, total=None, unit="run of the search") as trial.done:
        search.shrink()
        return search.fastest((REFERENCE, *names))


class _Search:
    """The policy of every layer so far, and the errors of refused policies."""

    def __init__(self, trial: Trial, rows: Sequence[Sensitivity], max_error: float) -> None:
        self._trial = trial
        self._rows = rows
        self._error = attrgetter(f"error.{trial.metric}")
        self._max_error = max_error
        self._chosen = {path: Sensitivity(path, REFERENCE, 0, trial.reference.error) for path in trial.paths}
        self._refused = {row: self._error(row) for row in rows if not self._error(row) <= max_error}

    def shrink(self) -> None:
        """Choose smaller policies in the order of added error per saved byte."""
        steps, chosen = [], dict(self._chosen)
        while step := self._next_step(chosen):
            steps.append(step)
            chosen[step.path] = step
        count, _ = self._largest_prefix(steps)
        self._chosen |= {step.path: step for step in steps[:count]}
        while step := self._next_step(self._chosen):  # try the remaining steps one by one
            run = self._run([step])
            if self._error(run) <= self._max_error:
                self._chosen[step.path] = step
            else:
                self._refused[step] = self._error(run)

    def fastest(self, names: Sequence[str]) -> PolicyChoice:
        """Try each policy in all layers where it is as small as the chosen one; return the smallest, fastest map."""
        finalists = []
        for name in names:
            equals = [row for row in self._rows if row.policy == name and row.saved == self._chosen[row.path].saved]
            equals.sort(key=self._error)
            count, run = self._largest_prefix(equals, name)
            if run is not None:
                finalists.append((run, self._with(equals[:count])))
        reference = self._trial.reference
        times = self._times([reference, *(run for run, _ in finalists)])
        smallest = min(run.model.weight_bytes for run, _ in finalists)
        timed = [
            (*finalist, seconds)
            for finalist, seconds in zip(finalists, times[1:], strict=True)
            if finalist[0].model.weight_bytes == smallest
        ]
        fastest = min(seconds for *_, seconds in timed)
        run, chosen, seconds = next(found for found in timed if found[-1] <= fastest * (1 + _TIME_TOLERANCE))
        return PolicyChoice(
            map=run.map,
            error=run.error,
            nbytes=run.model.weight_bytes,
            reference_nbytes=reference.model.weight_bytes,
            seconds=seconds,
            reference_seconds=times[0],
            table=tuple(
                LayerChoice(row.path, row.policy, row.saved, self._error(row), self._reason(row))
                for row in chosen.values()
            ),
            metric=self._trial.metric,
        )

    def _with(self, steps: Sequence[Sensitivity]) -> dict[str, Sensitivity]:
        return self._chosen | {step.path: step for step in steps}

    def _run(self, steps: Sequence[Sensitivity], default: str = REFERENCE) -> Run:
        """Run the model under the chosen policies, changed by `steps`."""
        return self._trial.run({path: row.policy for path, row in self._with(steps).items()}, default)

    def _next_step(self, chosen: Mapping[str, Sensitivity]) -> Sensitivity | None:
        """Return the step to smaller weights with the least added error per saved byte."""

        def price(row: Sensitivity) -> float:
            now = chosen[row.path]
            price: float = (self._error(row) - self._error(now)) / (row.saved - now.saved)
            return price

        steps = [row for row in self._rows if row.saved > chosen[row.path].saved and row not in self._refused]
        return min(steps, key=price, default=None)

    def _largest_prefix(self, steps: Sequence[Sensitivity], default: str = REFERENCE) -> tuple[int, Run | None]:
        """Find by bisection how many first steps together meet the budget; return count and run, (-1, None) if none."""
        low, high, best = -1, len(steps), None
        while low < high:
            middle = (low + high + 1) // 2
            run = self._run(steps[:middle], default)
            if self._error(run) <= self._max_error:
                low, best = middle, run
            else:
                high = middle - 1
        return low, best

    def _times(self, runs: Sequence[Run]) -> list[float]:
        """Return the CPU seconds of each run, measured in rounds of all runs.

        ``seconds = median(time of a round) * median(run's share of its round)``: a round that is slow as a whole does
        not change the shares.
        """
        counts = [max(1, math.ceil(_MIN_SECONDS / self._seconds(run, 1))) for run in runs]
        rounds = [[self._seconds(run, count) for run, count in zip(runs, counts, strict=True)] for _ in range(_ROUNDS)]
        whole = median(map(sum, rounds))
        return [whole * median(one[index] / sum(one) for one in rounds) for index in range(len(runs))]

    def _seconds(self, run: Run, count: int) -> float:
        start = process_time()
        for _ in range(count):
            self._trial.outputs(run.model)
        return max(process_time() - start, 1e-9) / count

    def _reason(self, chosen: Sensitivity) -> str:
        refused = [row for row in self._refused if row.path == chosen.path and row.saved > chosen.saved]
        if not refused:
            return "nothing is smaller"
        least = min(refused, key=self._refused.__getitem__)
        return f"{least.policy} would bring the error to {self._refused[least]:.1e}"


def _names(policies: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the policies to try, without duplicates."""
    words = [policies] if isinstance(policies, str) or not isinstance(policies, Iterable) else list(policies)
    names = []
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"`policies` must be names of policies; received {word!r}")
        policy = policy_of(word, "policies")
        if "float" not in policy.compute_dtype:
            raise ValueError(f"`policies` must compute in floating-point dtypes; received {word!r}")
        names.append(policy.name)
    return tuple(dict.fromkeys(names))
