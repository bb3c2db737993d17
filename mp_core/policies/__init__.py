"""In which dtypes layers store, compute and return: dtype policies, autocast variables, quantizers, settings.

It imports ops and the rooms below it; files and the rooms above it may import it.
"""
