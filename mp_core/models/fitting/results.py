"""The results of the choice of policies."""

import math
from dataclasses import dataclass

from mp_core.policies.dtype_policies import DTypePolicyMap
from mp_core.utilities.html import html_table
from mp_core.utilities.tables import aligned

__all__ = ["LayerChoice", "OutputError", "PolicyChoice", "Sensitivity"]

_TEXT = (0, 1, 4)  # the columns of the table of a choice that are not numbers
_USUAL = ("max", "mean", "rmse", "largest")  # the errors that the table of a choice names, beside that of the budget


@dataclass(frozen=True, slots=True)
class OutputError:
    """How far outputs are from those in float32.

    An output is all that belongs to one index of the first axis; what a call returns with one axis is one output. What
    cannot be measured is NaN.

    Attributes
    ----------
    max, mean : float
        Over the sample, of ``1 - cosine`` of an output with the one in float32. NaN if outputs are one number, whose
        cosine says nothing.
    rmse : float
        Root of the mean square of the differences, divided by that of the outputs in float32.
    largest : float
        The largest difference of two numbers, divided by the root of the mean square of the outputs in float32.
    disagreement : float
        The share of outputs, or of places of the last axis, whose largest number is another one than in float32: of the
        scores of a classifier, another class. NaN if the last axis has one number.
    own : float
        What the function says that was given as `metric`; NaN without one.
    """

    max: float
    mean: float
    rmse: float
    largest: float = math.nan
    disagreement: float = math.nan
    own: float = math.nan


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What one layer's policy does to a model that is in float32 otherwise.

    Attributes
    ----------
    path : str
        The layer.
    policy : str
    saved : int
        Bytes by which the weights of the model become smaller.
    error : OutputError
    """

    path: str
    policy: str
    saved: int
    error: OutputError


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """The policy that was chosen for a layer, and why.

    Attributes
    ----------
    path, policy : str
    saved : int
        Bytes by which the weights of the model become smaller.
    error : float
        With the policy in this layer alone, in the metric of the budget.
    reason : str
        Why nothing smaller was chosen.
    """

    path: str
    policy: str
    saved: int
    error: float
    reason: str


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The result of :func:`choose_policy`; as a string, a table.

    Attributes
    ----------
    map : DTypePolicyMap
        A policy for the path of every layer with weights. The default is that of layers without any.
    error : OutputError
        Of the whole map, measured on the sample.
    nbytes, reference_nbytes : int
        Bytes of the weights under the map, and in float32.
    seconds, reference_seconds : float
        CPU time of a run over the sample, of all threads together: the median of a few rounds.
    table : tuple of LayerChoice
        In the order of the model's layers.
    metric : str
        The field of `error` that the budget is for.

    Examples
    --------
    >>> error = OutputError(max=0.02, mean=0.01, rmse=0.15, largest=0.45)
    >>> row = LayerChoice("dense", "int8_from_float32", saved=3_000, error=0.02, reason="")
    >>> choice = PolicyChoice(DTypePolicyMap(), error, 1_000, 4_000, 0.25, 0.5, (row,))
    >>> print(choice)
    layer  policy             kB saved  error alone  why
    ----------------------------------------------------
    dense  int8_from_float32       3.0      2.0e-02
    weights: 0.00 MB, 4.00 times smaller than in float32
    time: 0.25 s of CPU, 2.00 times faster
    error: max 2.00e-02, mean 1.00e-02, rmse 1.50e-01, largest 4.50e-01; the budget is for max
    """

    map: DTypePolicyMap
    error: OutputError
    nbytes: int
    reference_nbytes: int
    seconds: float
    reference_seconds: float
    table: tuple[LayerChoice, ...]
    metric: str = "max"

    def __str__(self) -> str:
        return "\n".join([aligned(self._rows(), left=_TEXT), *self._totals()])

    def _repr_html_(self) -> str:
        return html_table(self._rows(), "; ".join(self._totals()), _TEXT)

    def _rows(self) -> list[list[str]]:
        rows = [["layer", "policy", "kB saved", "error alone", "why"]]
        return rows + [[c.path, c.policy, f"{c.saved / 1e3:.1f}", f"{c.error:.1e}", c.reason] for c in self.table]

    def _totals(self) -> list[str]:
        smaller = self.reference_nbytes / self.nbytes
        names = dict.fromkeys((*_USUAL, self.metric))
        errors = [f"{name} {error:.2e}" for name in names if not math.isnan(error := getattr(self.error, name))]
        return [
            f"weights: {self.nbytes / 1e6:.2f} MB, {smaller:.2f} times smaller than in float32",
            f"time: {self.seconds:.3g} s of CPU, {self.reference_seconds / self.seconds:.2f} times faster",
            f"error: {', '.join(errors)}; the budget is for {self.metric}",
        ]
