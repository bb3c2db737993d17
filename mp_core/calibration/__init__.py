"""Quantized layers fitted to a sample of their inputs."""

from mp_core.calibration.fitting import calibrate, input_moments

__all__ = ["calibrate", "input_moments"]
