"""Calibrate a model on a sample of its inputs, choose a policy for each layer, and train quantized weights."""

from mp_core.models.fitting.calibration import calibrate
from mp_core.models.fitting.measures import METRICS
from mp_core.models.fitting.quantization_aware import convert_qat, distill, prepare_qat
from mp_core.models.fitting.results import LayerChoice, OutputError, PolicyChoice, Sensitivity
from mp_core.models.fitting.selection import POLICIES, choose_policy, sensitivity

__all__ = [
    "METRICS", "POLICIES", "LayerChoice", "OutputError", "PolicyChoice", "Sensitivity", "calibrate", "choose_policy",
    "convert_qat", "distill", "prepare_qat", "sensitivity",
]  # fmt: skip
