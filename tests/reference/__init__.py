"""A second implementation of the contract, written from docs/numerics.md in plain NumPy: one module for each section.

Arrays of every float type are float32 arrays of their values (float64 for `float64`), beside the name of the type:
widening is exact, so nothing is lost. `formats.codes` gives the bits. Nothing here imports mp_core.
`tests/test_reference.py` requires the same bits from mp_core. `python -m tests.reference.vectors` writes the cases of
`cases.py` to `mp_core/cli/vectors/`, computed by `compute.py`; the other modules are the implementation.
"""
