"""Nodes of torch's graphs as nodes of a program, and torch's types and arrays as mp_core's."""

import re
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from mp_core.arrays import Array
from mp_core.files.program import Input, Node, Value
from mp_core.interop.torch.linears import array_of
from mp_core.programs.registry import operators_of

__all__ = [
    "Layout",
    "dtype_of",
    "input_of",
    "is_check",
    "node_of",
    "nodes_of",
    "operator_name",
    "shared",
    "tensor_of",
    "without_ours",
]

_PLACES = ("device", "layout", "memory_format", "non_blocking", "pin_memory", "generator")
"""Arguments of operators that say where a result is stored. They do not change its values."""
_CHECKS = ("aten._assert", "aten.sym_constrain", "aten._check")
"""Operators that compute nothing."""


def without_ours(table: Any) -> Any:
    """Return a table of decompositions without the operators that mp_core computes as they are."""
    ours = set(operators_of("aten"))
    for operator in [*table.keys()]:
        if str(operator) in ours:
            del table[operator]
    return table


def operator_name(target: Any) -> str:
    """Return the name of an operator: ``aten.add.Tensor``; a function of Python gets ``aten.python.mul``."""
    is_python = isinstance(target, FunctionType | BuiltinFunctionType)
    return f"aten.python.{target.__name__.strip('_')}" if is_python else str(target)


def nodes_of(nodes: Iterable[fx.Node], names: dict[fx.Node, str]) -> list[Node]:
    """Return the calls among the nodes of a graph; `names` has the names of its inputs, and gets those of results."""
    found = []
    for node in nodes:
        if node.op == "call_function" and not is_check(node):
            names[node] = f"%{node.name}"  # no input, parameter or output has such a name
            found.append(node_of(node, names))
    return found


def is_check(node: fx.Node) -> bool:
    """Return whether a node computes nothing."""
    return node.op == "call_function" and operator_name(node.target).startswith(_CHECKS)


def node_of(node: fx.Node, names: dict[fx.Node, str]) -> Node:
    """Return a call in a graph as a node of a program."""
    options = {key: x for key, x in node.kwargs.items() if key not in _PLACES}
    arguments, named = _arguments((tuple(node.args), options), names)
    name = operator_name(node.target)
    return Node(name + _beyond(name, node), arguments, (names[node],), named, _path(node))


def _beyond(name: str, node: fx.Node) -> str:
    """Return words for a call that the operator of this name does not compute, so that it stays with torch; or ""."""
    if name.startswith("aten.python"):
        return ""
    given: list[Any] = [*node.args, *node.kwargs.values()]
    pool = re.search(r"pool(\d)d", name)
    if pool and given[0].meta["val"].ndim != int(pool[1]) + 2:
        return " without a batch"
    if name.startswith("aten.as_strided"):
        x = given[0].meta["val"]
        return "" if x.is_contiguous() and x.storage_offset() == 0 else " of a part of a tensor"
    if "index_put" in name:
        _, indices, values, *accumulate = given
        has_mask = any(x is not None and x.meta["val"].dtype == torch.bool for x in indices)
        is_simple = len(indices) == 1 and values.meta["val"].numel() == 1 and not any(accumulate)
        return " by masks" if has_mask and not is_simple else ""
    return ""


def _arguments(tree: Any, names: dict[fx.Node, str]) -> Any:
    if isinstance(tree, fx.Node):
        return Value(names[tree])
    if isinstance(tree, dict):
        return {key: _arguments(part, names) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        found = [_arguments(part, names) for part in tree]
        return tuple(found) if isinstance(tree, tuple) else found
    if isinstance(tree, torch.dtype):
        return dtype_of(tree)
    return None if isinstance(tree, torch.device | torch.layout | torch.memory_format) else tree


def _path(node: fx.Node) -> str:
    """Return the path of the module whose call has this node, as far as torch knows it."""
    modules = [*(node.meta.get("nn_module_stack") or {}).values()]
    path = str(modules[-1][0]).removeprefix("L['self']").strip(".") if modules else ""
    return f"{path}.{node.name}" if path else node.name


def dtype_of(dtype: torch.dtype) -> str:
    """Return the name of a type.

    >>> dtype_of(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def input_of(name: str, value: Any) -> Input:
    """Return the description of an input, from the fake tensor or number that torch has for it."""
    if not isinstance(value, Tensor):
        return Input(name, "int64", ())
    return Input(name, dtype_of(value.dtype), tuple(n if type(n) is int else str(n) for n in value.shape))


def shared(tensor: Tensor, name: str) -> Array:
    """Return an array that shares the memory of a tensor; raise ValueError if it is not in CPU memory."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise ValueError(
            f"tensor '{name}' must be dense and in CPU memory; received {tensor.layout} on {tensor.device}"
        )
    with unset_fake_temporarily():  # constants of a graph are real tensors, also while torch compiles
        return array_of(tensor.detach())


class Layout(NamedTuple):
    """The type of a tensor, and its axes in the order of memory."""

    dtype: torch.dtype
    order: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "Layout":
        """Return the layout of a tensor that torch expects."""
        return cls(tensor.dtype, tuple(tensor.dim_order()))


def tensor_of(x: Any, layout: Layout) -> Tensor:
    """Return a result as a tensor with a layout; it shares the memory of `x` if that has this layout."""
    array = np.asarray(x)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    is_bf16 = array.dtype.name == "bfloat16"
    tensor = torch.from_numpy(array.view(np.int16) if is_bf16 else array)
    tensor = (tensor.view(torch.bfloat16) if is_bf16 else tensor).to(layout.dtype)
    if tensor.dim() < 2:
        return tensor
    back = [layout.order.index(axis) for axis in range(tensor.dim())]
    return tensor.permute(layout.order).contiguous().permute(back)
