"""The operators of ONNX, and those of Microsoft that exporters write.

Each module registers the functions of one subject; importing this package registers all.
"""

from mp_core.programs.onnx import elementwise, products, shapes  # noqa: F401
