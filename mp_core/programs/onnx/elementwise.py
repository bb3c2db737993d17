"""Functions of each element, of one array or of two."""

from mp_core import ops
from mp_core.programs.registry import operator

for _name, _function in {
    "Add": ops.add, "Sub": ops.subtract, "Mul": ops.multiply, "Div": ops.divide, "Relu": ops.relu, "Tanh": ops.tanh,
    "Sigmoid": ops.sigmoid, "Erf": ops.erf, "Sqrt": ops.sqrt, "Exp": ops.exp, "Log": ops.log,
}.items():  # fmt: skip
    operator(_name)(_function)
