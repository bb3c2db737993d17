"""A model under policies, run on a sample, and how far its outputs are from those in float32."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from re import escape
from typing import Any

import numpy as np

from mp_core import dtypes
from mp_core.arrays import Array
from mp_core.dtype_policies import DTypePolicyMap, policy_of
from mp_core.fitting.results import OutputError, Sensitivity
from mp_core.fitting.running import LayerLike, calls_of, layers_by_path
from mp_core.ops import cast
from mp_core.utilities.progress import progress

__all__ = ["REFERENCE", "Run", "Trial", "error_of"]

REFERENCE = "float32"
"""The policy with whose outputs all others are compared."""


@dataclass(frozen=True, slots=True)
class Run:
    """A map of policies, tried on the sample."""

    map: DTypePolicyMap
    model: LayerLike
    error: OutputError


class Trial:
    """A model on a sample: its outputs in float32, and how far those under other policies are from them.

    Attributes
    ----------
    done : callable
        Called with 1 after each run.
    """

    def __init__(self, model: LayerLike, sample: Any) -> None:
        self.done: Callable[[int], object] = lambda count: None
        self._model = model
        self._calls = calls_of(model, sample)
        policies = DTypePolicyMap(REFERENCE)
        self.reference = Run(policies, model.with_policy(policies), OutputError(0.0, 0.0, 0.0))
        self._expected = self.outputs(self.reference.model)
        finite = all(bool(np.isfinite(outputs).all()) for outputs in self._expected)
        if not (finite and any(outputs.size for outputs in self._expected)):
            shapes = ", ".join(str(outputs.shape) for outputs in self._expected) or "no call"
            raise ValueError(
                f"`sample` must give finite outputs in {REFERENCE}; received outputs of shape {shapes}"
                f"{'' if finite else ' with Inf or NaN'}"
            )
        self.paths = [path for path, layer in layers_by_path(model).items() if layer.own_variables()]
        if not self.paths:
            raise ValueError(f"`model` must have layers with weights; {model!r} has none")

    def run(self, policies: Mapping[str, str], default: str = REFERENCE) -> Run:
        """Run the model under policies by path; layers without weights get the default."""
        policy_map = DTypePolicyMap(default, {escape(path): policy for path, policy in policies.items()})
        model = self._model.with_policy(policy_map)
        run = Run(policy_map, model, error_of(self.outputs(model), self._expected))
        self.done(1)
        return run

    def outputs(self, model: LayerLike) -> list[Array]:
        """Return the outputs of every call in float64, a row for each output."""
        return [_rows(model(*call.args, **call.kwargs)) for call in self._calls]

    def rows(self, names: Sequence[str], show_progress: bool) -> tuple[Sensitivity, ...]:
        """Try every policy on every layer alone."""
        pairs = [(path, name) for path in self.paths for name in names]
        tried = [self._row(*pair) for pair in progress(pairs, show=show_progress, total=len(pairs), unit="run")]
        return tuple(row for row in tried if row is not None)

    def _row(self, path: str, name: str) -> Sensitivity | None:
        """Return what the policy does to the layer; None where the layer has no such implementation."""
        try:
            run = self.run({path: name})
        except NotImplementedError:
            return None
        if policy_of(name).quantization_mode and not layers_by_path(run.model)[path].quantized:
            return None
        return Sensitivity(path, name, self.reference.model.weight_bytes - run.model.weight_bytes, run.error)


def _rows(outputs: Any) -> Array:
    """Return what a call returned in float64, a row for each index of the first axis; one axis alone is one row."""
    if not isinstance(outputs, np.ndarray) or not outputs.ndim or not dtypes.is_float(outputs.dtype):
        raise TypeError(f"`model` must return one floating-point array with axes; it returned {outputs!r}")
    rows = outputs if outputs.ndim > 1 else outputs[np.newaxis]
    return cast(rows, "float64").reshape(len(rows), math.prod(rows.shape[1:]))


def error_of(outputs: Sequence[Array], reference: Sequence[Array]) -> OutputError:
    """Return how far the outputs of calls, as rows, are from those in float32."""
    if not all(bool(np.isfinite(x).all()) for x in outputs):
        return OutputError(math.inf, math.inf, math.inf)
    distances = np.concatenate([_distances(*pair) for pair in zip(outputs, reference, strict=True)])
    difference = math.hypot(*(float(np.linalg.norm(x - y)) for x, y in zip(outputs, reference, strict=True)))
    scale = math.hypot(*(float(np.linalg.norm(x)) for x in reference))
    rmse = difference / scale if scale else math.inf if difference else 0.0
    return OutputError(float(distances.max()), float(distances.mean()), rmse)


def _distances(outputs: Array, reference: Array) -> Array:
    """Return ``1 - cosine`` of the rows: 1 if one of two is zero, 0 if both are."""
    lengths, expected = (np.linalg.norm(x, axis=1, keepdims=True) for x in (outputs, reference))
    units = [np.divide(x, n, out=np.zeros_like(x), where=n > 0) for x, n in ((outputs, lengths), (reference, expected))]
    # 1 - cos of unit vectors is half the square of their distance, without the cancellation.
    squares = ((units[0] - units[1]) ** 2).sum(axis=1)
    distances: Array = squares / np.where((lengths > 0) & (expected > 0), 2, 1)[:, 0]
    return distances
