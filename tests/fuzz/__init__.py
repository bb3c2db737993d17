"""Calls, gradients and files at random: ``make fuzz``, and for seconds ``tests/test_fuzz.py``."""
