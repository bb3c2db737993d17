"""Run a model under policies on a sample, and measure the error compared with float32."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from re import escape
from typing import Any

import numpy as np

from mp_core.arrays import Array, dtypes
from mp_core.arrays.finite import all_finite
from mp_core.models.fitting.measures import Metric, OwnMetric, describe, error_of, metric_for
from mp_core.models.fitting.results import OutputError, Sensitivity
from mp_core.models.fitting.running import LayerLike, ModelCall, calls_of, layers_by_path
from mp_core.ops import cast
from mp_core.policies.dtype_policies import DTypePolicyMap, policy_of
from mp_core.utilities.nonfinite import nonfinite
from mp_core.utilities.progress import progress

__all__ = ["REFERENCE", "Run", "Trial"]

REFERENCE = "float32"
"""The policy whose outputs all others are compared with."""


@dataclass(frozen=True, slots=True)
class Run:
    """A map of policies, its model, and its error on the sample."""

    map: DTypePolicyMap
    model: LayerLike
    error: OutputError


class Trial:
    """Measures the error of a model under policies, compared with its float32 outputs; calls `done` after each run."""

    def __init__(self, model: LayerLike, sample: Any, metric: Metric | OwnMetric | None = None) -> None:
        self.done: Callable[[int], object] = lambda count: None
        self._model = model
        self._calls = calls_of(model, sample)
        policies = DTypePolicyMap(REFERENCE)
        reference = model.with_policy(policies)
        self._expected = self.outputs(reference)
        finite = all_finite(self._expected)
        if not (finite and any(outputs.size for outputs in self._expected)):
            shapes = ", ".join(str(outputs.shape) for outputs in self._expected) or "no call"
            raise ValueError(
                f"`sample` must give finite outputs in {REFERENCE}; received outputs of shape {shapes}"
                f"{'' if finite else ' with Inf or NaN'}"
            )
        self._own_metric = metric if callable(metric) else None
        self.metric = metric_for(metric, self._expected)
        self.reference = Run(policies, reference, self._error(self._expected))
        self.paths = [path for path, layer in layers_by_path(model).items() if layer.own_variables()]
        if not self.paths:
            raise ValueError(f"`model` must have layers with weights; {model!r} has none")

    def run(self, policies: Mapping[str, str], default: str = REFERENCE) -> Run:
        """Run the model with path -> policy; layers without weights get the default."""
        policy_map = DTypePolicyMap(default, {escape(path): policy for path, policy in policies.items()})
        model = self._model.with_policy(policy_map)
        run = Run(policy_map, model, self._error(self.outputs(model)))
        self.done(1)
        return run

    def outputs(self, model: LayerLike) -> list[Array]:
        """Return the outputs of every call in float64, one row per output."""
        with nonfinite("ignore"):  # the error becomes infinite
            found = [(model(*call.args, **call.kwargs), call) for call in self._calls]
        return [_as_float64_rows(each, call) for outputs, call in found for each in _floats_of(outputs)]

    def error_in_metric(self, model: LayerLike) -> float:
        """Return the error of a model in the metric of the budget."""
        return float(getattr(self._error(self.outputs(model)), self.metric))

    def _error(self, outputs: Sequence[Array]) -> OutputError:
        return error_of(outputs, self._expected, self._own_metric)

    def rows(self, names: Sequence[str], show_progress: bool) -> tuple[Sensitivity, ...]:
        """Measure every policy in every layer, one at a time."""
        pairs = [(path, name) for path in self.paths for name in names]
        tried = [self._row(*pair) for pair in progress(pairs, show=show_progress, total=len(pairs), unit="run")]
        return tuple(row for row in tried if row is not None)

    def _row(self, path: str, name: str) -> Sensitivity | None:
        """Measure a policy in one layer; return None if the layer does not support it."""
        try:
            run = self.run({path: name})
        except NotImplementedError:
            return None
        if policy_of(name).quantization_mode and not layers_by_path(run.model)[path].quantized:
            return None
        return Sensitivity(path, name, self.reference.model.weight_bytes - run.model.weight_bytes, run.error)


def _floats_of(outputs: Any) -> list[Any]:
    """Return the outputs of a call that are measured: the floats of a dict of outputs by name, else the only output."""
    if not isinstance(outputs, dict):
        return [outputs]
    floats = [x for x in outputs.values() if dtypes.is_float(x.dtype) and x.ndim]
    return floats or [outputs]


def _as_float64_rows(outputs: Any, call: ModelCall) -> Array:
    """Convert the output of a call to float64 rows; a single axis is one number per input, or one row."""
    if not isinstance(outputs, np.ndarray) or not outputs.ndim or not dtypes.is_float(outputs.dtype):
        raise TypeError(
            f"`model` must return one floating-point array with axes; it returned {describe(outputs)}. Of a model "
            "with several outputs take `mp_core.Model(model.inputs, model.outputs[0])`"
        )
    if outputs.ndim == 1:
        outputs = outputs[:, np.newaxis] if len(outputs) in _input_counts(call) else outputs[np.newaxis]
    return cast(outputs, "float64")


def _input_counts(call: ModelCall) -> set[int]:
    """Return the lengths of the arguments of a call that are lists or arrays."""
    given = (*call.args, *call.kwargs.values())
    return {len(x) for x in given if isinstance(x, list) or (isinstance(x, np.ndarray) and x.ndim)}
