"""Models of modules that torch has exported."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from mp_core.arrays import Array
from mp_core.files.program import Node, Program, Value
from mp_core.interop.torch.graphs import input_of, nodes_of, shared, without_ours
from mp_core.programs import ProgramModel
from mp_core.utilities.tree import numbered

__all__ = ["from_exported"]

_CONSTANT = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def from_exported(exported: ExportedProgram, policy: Any = None) -> ProgramModel:
    """Return a model of a module that :func:`torch.export.export` has exported. It runs without torch.

    Parameters
    ----------
    exported : torch.export.ExportedProgram
        Of a module in inference mode (``module.eval()``) and in CPU memory. Weights are shared, not copied. Lengths of
        axes that the export marks as dynamic may differ between calls.
    policy : DTypePolicy, str or DTypePolicyMap, optional
        The policy of all layers: ``"mixed_bfloat16"``, ``"int8_from_float32"`` ... Default: the type of the weights, if
        all have the same type, else the global policy.

    Returns
    -------
    ProgramModel
        Its inputs have the names of the arguments of the module. Its outputs have the names of the fields of the
        module's result: ``last_hidden_state``, ``pooler_output``.

    Raises
    ------
    RefusedError
        The module uses operators that mp_core does not have; the message lists all of them.
    ValueError
        The module assigns its buffers or inputs, or a weight is not in CPU memory.

    Examples
    --------
    >>> import numpy as np
    >>> module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).eval()
    >>> model = from_exported(torch.export.export(module, (torch.ones(3, 4),)), "mixed_bfloat16")
    >>> model(np.ones((3, 4), np.float32)).dtype
    dtype(bfloat16)
    """
    if not isinstance(exported, ExportedProgram):
        raise TypeError(f"`exported` must be a torch.export.ExportedProgram; received {type(exported).__name__}")
    program = _program(exported.run_decompositions(without_ours(torch.export.default_decompositions())))
    return ProgramModel(program, policy)


def _program(exported: ExportedProgram) -> Program:
    """Return the program of an exported module whose operators are core operators."""
    signature = exported.graph_signature
    assigned = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if assigned:
        raise ValueError(f"the module assigns {', '.join(assigned)}: call its method `eval` before the export")
    placeholders = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    names, constants, inputs = {}, {}, []
    for spec in signature.input_specs:
        name = str(getattr(spec.arg, "name", ""))
        if spec.kind is InputKind.USER_INPUT and not isinstance(spec.arg, ConstantArgument):
            inputs.append(input_of(name, placeholders[name].meta["val"]))
            names[placeholders[name]] = name
        elif spec.kind in _CONSTANT:
            target = str(spec.target)
            constants[target] = _tensor(exported, target)
            names[placeholders[name]] = target
    nodes = nodes_of(exported.graph.nodes, names)
    known = {node.name: value for node, value in names.items()}
    outputs = _outputs(exported, [x.name for x in inputs])
    nodes += [Node("aten.alias.default", (_value(x, known),), (name,)) for name, x in outputs.items()]
    return Program(tuple(inputs), tuple(outputs), nodes, constants, type(exported).__name__)


def _tensor(exported: ExportedProgram, name: str) -> Array:
    found: Any = exported.state_dict.get(name)
    return shared(exported.constants[name] if found is None else found, name)


def _value(argument: Any, known: dict[str, str]) -> Any:
    return argument.value if isinstance(argument, ConstantArgument) else Value(known[argument.name])


def _outputs(exported: ExportedProgram, taken: list[str]) -> dict[str, Any]:
    """Return name -> output, with the names that the fields of the module's result have."""
    spec: Any = exported.call_spec.out_spec
    arguments = [spec.arg for spec in exported.graph_signature.output_specs]
    found = {number: name for name, number in _fields(spec.unflatten([*range(len(arguments))]))}
    names = [found.get(number) or "output" for number in range(len(arguments))]
    names = numbered([*taken, *(f"output_{name}" if name.isdigit() else name for name in names)])[len(taken) :]
    outputs = dict(zip(names, arguments, strict=True))
    return {name: x for name, x in outputs.items() if not isinstance(x, ConstantArgument) or x.value is not None}


def _fields(tree: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each leaf of a result."""
    if isinstance(tree, Mapping):
        for name, part in tree.items():
            yield from _fields(part, *path, str(name))
    elif isinstance(tree, list | tuple):
        names = getattr(tree, "_fields", range(len(tree)))
        for name, part in zip(names, tree, strict=True):
            yield from _fields(part, *path, str(name))
    elif tree is not None:
        yield ".".join(path), tree
