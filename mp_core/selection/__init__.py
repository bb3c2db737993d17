"""Which policy each layer of a model tolerates, measured on a sample of its inputs."""

from mp_core.selection.results import METRICS, LayerChoice, OutputError, PolicyChoice, Sensitivity
from mp_core.selection.search import POLICIES, choose_policy, sensitivity

__all__ = [
    "METRICS", "POLICIES", "LayerChoice", "OutputError", "PolicyChoice", "Sensitivity", "choose_policy", "sensitivity",
]  # fmt: skip
