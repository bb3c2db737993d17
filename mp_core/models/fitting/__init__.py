"""Policies and scales fitted to a sample of a model's inputs: calibration, and the search for each layer's policy."""

from mp_core.models.fitting.calibration import calibrate
from mp_core.models.fitting.measures import METRICS
from mp_core.models.fitting.quantization_aware import convert_qat, distill, prepare_qat
from mp_core.models.fitting.results import LayerChoice, OutputError, PolicyChoice, Sensitivity
from mp_core.models.fitting.selection import POLICIES, choose_policy, sensitivity

__all__ = [
    "METRICS", "POLICIES", "LayerChoice", "OutputError", "PolicyChoice", "Sensitivity", "calibrate", "choose_policy",
    "convert_qat", "distill", "prepare_qat", "sensitivity",
]  # fmt: skip
