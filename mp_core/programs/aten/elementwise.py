"""Functions of each element, of one array or of two."""

from mp_core import ops
from mp_core.programs.registry import operator

for _name, _function in {
    "add.Tensor": ops.add, "sub.Tensor": ops.subtract, "mul.Tensor": ops.multiply, "div.Tensor": ops.divide,
    "relu.default": ops.relu, "tanh.default": ops.tanh, "sigmoid.default": ops.sigmoid, "erf.default": ops.erf,
}.items():  # fmt: skip
    operator(f"aten.{_name}")(_function)
