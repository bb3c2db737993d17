"""The operators of ONNX, and those of Microsoft that exporters write.

Each module registers the functions of one subject; importing this package registers all.
"""

from mp_core.programs.onnx import (  # noqa: F401
    activations,
    attention,
    caches,
    casting,
    control,
    convolution,
    elementwise,
    fusions,
    indexing,
    learned,
    microsoft,
    norms,
    pooling,
    products,
    quantized,
    recurrent,
    reductions,
    resizing,
    shapes,
)
