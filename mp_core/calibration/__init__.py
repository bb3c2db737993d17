"""Quantized layers fitted to a sample of their inputs."""

from mp_core.calibration.fitting import calibrate

__all__ = ["calibrate"]
