"""The results of the choice of policies."""

from dataclasses import dataclass
from typing import Literal, get_args

from mp_core.dtype_policies import DTypePolicyMap
from mp_core.utilities.html import html_table
from mp_core.utilities.tables import aligned

__all__ = ["METRICS", "LayerChoice", "Metric", "OutputError", "PolicyChoice", "Sensitivity"]

Metric = Literal["max", "mean", "rmse"]

METRICS = get_args(Metric)

_TEXT = (0, 1, 4)  # the columns of the table of a choice that are not numbers


@dataclass(frozen=True, slots=True)
class OutputError:
    """How far outputs are from those in float32.

    An output is all that belongs to one index of the first axis; what a call returns with one axis is one output.

    Attributes
    ----------
    max, mean : float
        Over the sample, of ``1 - cosine`` of an output with the one in float32.
    rmse : float
        Root of the mean square of the differences, divided by that of the outputs in float32.
    """

    max: float
    mean: float
    rmse: float


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
        Time of a run over the sample, the best of a few.
    table : tuple of LayerChoice
        In the order of the model's layers.

    Examples
    --------
    >>> error = OutputError(max=0.02, mean=0.01, rmse=0.15)
    >>> row = LayerChoice("dense", "int8_from_float32", saved=3_000, error=0.02, reason="")
    >>> choice = PolicyChoice(DTypePolicyMap(), error, 1_000, 4_000, 0.25, 0.5, (row,))
    >>> print(choice)
    layer  policy             kB saved  error alone  why
    ----------------------------------------------------
    dense  int8_from_float32       3.0      2.0e-02
    weights: 0.00 MB, 4.00 times smaller than in float32
    time: 0.25 s, 2.00 times faster
    error: max 2.00e-02, mean 1.00e-02, rmse 1.50e-01
    """

    map: DTypePolicyMap
    error: OutputError
    nbytes: int
    reference_nbytes: int
    seconds: float
    reference_seconds: float
    table: tuple[LayerChoice, ...]

    def __str__(self) -> str:
        return "\n".join([aligned(self._rows(), left=_TEXT), *self._totals()])

    def _repr_html_(self) -> str:
        return html_table(self._rows(), "; ".join(self._totals()), _TEXT)

    def _rows(self) -> list[list[str]]:
        rows = [["layer", "policy", "kB saved", "error alone", "why"]]
        return rows + [[c.path, c.policy, f"{c.saved / 1e3:.1f}", f"{c.error:.1e}", c.reason] for c in self.table]

    def _totals(self) -> list[str]:
        smaller = self.reference_nbytes / self.nbytes
        return [
            f"weights: {self.nbytes / 1e6:.2f} MB, {smaller:.2f} times smaller than in float32",
            f"time: {self.seconds:.3g} s, {self.reference_seconds / self.seconds:.2f} times faster",
            f"error: max {self.error.max:.2e}, mean {self.error.mean:.2e}, rmse {self.error.rmse:.2e}",
        ]
