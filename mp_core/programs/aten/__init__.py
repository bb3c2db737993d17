"""The operators of torch: the core ATen operators that exported modules use.

Each module registers the functions of one subject; importing this package registers all.
"""

from mp_core.programs.aten import elementwise, products  # noqa: F401
