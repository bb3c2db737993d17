"""Random calls, gradients and files: ``make fuzz``; ``tests/test_fuzz.py`` runs it for seconds."""
