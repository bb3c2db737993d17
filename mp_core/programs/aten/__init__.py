"""The operators of torch: the core ATen operators that exported and compiled modules use.

Each module registers the functions of one subject; importing this package registers all. The parameters have the names
of torch's. Numbers that torch computes from lengths of axes are Python's: ``aten.python.mul``.
"""

from mp_core.programs.aten import (  # noqa: F401
    backward,
    convolution,
    creation,
    elementwise,
    fusions,
    indexing,
    norms,
    pooling,
    products,
    recurrent,
    reductions,
    scattering,
    shapes,
)
