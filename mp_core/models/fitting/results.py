"""The results of ``sensitivity`` and ``choose_policy``."""

import math
from dataclasses import dataclass

from mp_core.policies.dtype_policies import DTypePolicyMap
from mp_core.utilities.html import html_table
from mp_core.utilities.tables import aligned

__all__ = ["LayerChoice", "OutputError", "PolicyChoice", "Sensitivity"]

_TEXT = (0, 1, 4)  # text columns of the table of a choice
_SHOWN_ERRORS = ("max", "mean", "rmse", "largest")  # errors below the table, in addition to the budget's


@dataclass(frozen=True, slots=True)
class OutputError:
    """The error of outputs compared with float32 outputs.

    An output is one index of the first axis; a result with one axis is one output. NaN: cannot be measured.

    Attributes
    ----------
    max, mean : float
        Maximum and mean of ``1 - cosine(output, float32 output)`` over the sample. NaN if outputs are single numbers.
    rmse : float
        Root mean square of the differences / root mean square of the float32 outputs.
    largest : float
        Largest difference / root mean square of the float32 outputs.
    disagreement : float
        Share of the positions whose argmax along the last axis differs: for a classifier, a different class. NaN if the
        last axis has one number.
    own : float
        The result of the function `metric`; NaN without one.
    """

    max: float
    mean: float
    rmse: float
    largest: float = math.nan
    disagreement: float = math.nan
    own: float = math.nan


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The effect of the policy of one layer, while all other layers are in float32.

    Attributes
    ----------
    path : str
        Path of the layer.
    policy : str
    saved : int
        Bytes of weights that the policy saves.
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
        Bytes of weights that the policy saves.
    error : float
        The error with this policy in this layer alone, in the metric of the budget.
    reason : str
        Why no smaller policy was chosen.
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
        Path of each layer with weights -> policy. The default applies to layers without weights.
    error : OutputError
        The error of the whole map on the sample.
    nbytes, reference_nbytes : int
        Bytes of the weights under the map, and in float32.
    seconds, reference_seconds : float
        CPU time of a run over the sample, summed over threads: the median of some rounds.
    table : tuple of LayerChoice
        In the order of the model's layers.
    metric : str
        The field of `error` that the budget limits.

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
        names = dict.fromkeys((*_SHOWN_ERRORS, self.metric))
        errors = [f"{name} {error:.2e}" for name in names if not math.isnan(error := getattr(self.error, name))]
        return [
            f"weights: {self.nbytes / 1e6:.2f} MB, {smaller:.2f} times smaller than in float32",
            f"time: {self.seconds:.3g} s of CPU, {self.reference_seconds / self.seconds:.2f} times faster",
            f"error: {', '.join(errors)}; the budget is for {self.metric}",
        ]
