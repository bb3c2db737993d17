"""The backend ``mp_core`` of :func:`torch.compile`: graphs of torch run here, what it lacks stays with torch."""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from functorch.compile import make_boxed_func
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions
from torch._dynamo import config as dynamo
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils._pytree import tree_leaves

from mp_core.arrays import Array
from mp_core.files.program import Program
from mp_core.interop.torch.graphs import (
    Layout,
    input_of,
    is_check,
    node_of,
    nodes_of,
    operator_name,
    shared,
    tensor_of,
    without_ours,
)
from mp_core.interop.torch.linears import array_of, threads_of_torch
from mp_core.policies.dtype_policies import policy_of
from mp_core.programs import ProgramModel
from mp_core.programs.registry import refusal

__all__ = ["backend", "explain"]

_MOST_CHANGES = 4
"""How often weights may change before they are no longer packed, but read in each call."""


def backend(module: fx.GraphModule, inputs: list[Any], *, options: Mapping[str, Any] | None = None) -> Any:
    """Compile a graph of torch: ``torch.compile(module, backend="mp_core")`` calls it.

    Forward passes, and backward passes of training, are computed by mp_core. An operator that mp_core does not have
    stays with torch, with a warning that names it.

    Parameters
    ----------
    module, inputs
        As torch passes them.
    options : dict, optional
        ``{"policy": "mixed_bfloat16"}``: the policy of all graphs. Results have the types that torch expects.

    Raises
    ------
    ValueError
        `options` has other keys.

    Examples
    --------
    >>> module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU())
    >>> compiled = torch.compile(module, backend=backend)
    >>> x = torch.ones(3, 4)
    >>> torch.allclose(compiled(x), module(x), atol=1e-6)
    True
    """
    given = dict(options or {})
    if given.keys() - {"policy"}:
        raise ValueError(f"`options` of the backend mp_core must be of ['policy']; received {sorted(given)}")
    policy = None if given.get("policy") is None else policy_of(given["policy"], "policy")
    reason = _break_of(module)
    if reason is not None:
        warnings.warn(f"torch divides the graph: {reason}. What is between the parts stays with torch", stacklevel=2)
    return _by_autograd(module, inputs, partial(_compiled, policy=policy))


def _break_of(module: fx.GraphModule) -> str | None:
    """Return why and where a graph of Dynamo ends before the function does; None if it does not."""
    found: Any = getattr(module, "compile_subgraph_reason", None)
    if found is None or not found.graph_break:
        return None
    where = f" ({found.user_stack[-1].filename}, line {found.user_stack[-1].lineno})" if found.user_stack else ""
    return str(found.reason).partition("\n")[0] + where


def explain(module: Callable[..., Any], *inputs: Any, **named: Any) -> dict[str, int]:
    """Return what the backend ``mp_core`` leaves to torch, and how often a call has it.

    Parameters
    ----------
    module : torch.nn.Module or callable
        It is called once. If its parameters or tensors among the arguments require gradients, the operators of the
        backward pass are counted too; no gradient is stored.
    *inputs, **named
        The arguments of the call.

    Returns
    -------
    dict of str to int
        Operators; the reasons for which torch divides the graph, since the code between its parts stays with torch; and
        recurrent modules, if torch leaves them out of graphs. Empty if mp_core computes everything.

    Examples
    --------
    >>> explain(lambda x: torch.special.bessel_j0(torch.relu(x)), torch.ones(2))
    {'aten.special_bessel_j0.default': 1}
    """
    found = Counter[str]()

    def count(graph: fx.GraphModule, inputs: list[Any], is_inference: bool = False) -> Any:
        found.update(operator_name(node.target) for node in _refused(graph))
        return make_boxed_func(graph.forward)

    def divided(graph: fx.GraphModule, inputs: list[Any]) -> Any:
        reason = _break_of(graph)
        found.update([] if reason is None else [reason])
        return _by_autograd(graph, inputs, count)

    if isinstance(module, torch.nn.Module) and not dynamo.allow_rnn:
        recurrent = [part for part in module.modules() if isinstance(part, torch.nn.RNNBase)]
        found.update(f"torch.nn.{type(part).__name__}" for part in recurrent)
    torch.compiler.reset()
    result = torch.compile(module, backend=divided)(*inputs, **named)
    results = [x for x in tree_leaves(result) if isinstance(x, Tensor) and x.requires_grad]
    given = [*(module.parameters() if isinstance(module, torch.nn.Module) else ()), *tree_leaves((inputs, named))]
    leaves = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    if results and leaves:  # torch compiles the backward pass when it runs first
        torch.autograd.grad(results, leaves, [torch.ones_like(x) for x in results], allow_unused=True)
    torch.compiler.reset()
    return dict(found)


def _by_autograd(module: fx.GraphModule, inputs: list[Any], compile_graph: Callable[..., Any]) -> Any:
    """Return what computes a graph of Dynamo: `compile_graph` gets functional graphs, forward and backward."""
    compiler = aot_autograd(
        fw_compiler=compile_graph,
        bw_compiler=compile_graph,
        inference_compiler=partial(compile_graph, is_inference=True),
        decompositions=without_ours(core_aten_decompositions()),
    )
    return compiler(module, inputs)


def _refused(graph: fx.GraphModule) -> list[fx.Node]:
    """Return the calls of a graph that mp_core does not compute."""
    names = {node: node.name for node in graph.graph.nodes}
    calls = [node for node in graph.graph.nodes if node.op.startswith("call")]
    return [node for node in calls if not is_check(node) and not _runs(node, names)]


def _runs(node: fx.Node, names: dict[fx.Node, str]) -> bool:
    value = node.meta.get("val")
    on_cpu = not isinstance(value, Tensor) or (value.device.type == "cpu" and not value.is_complex())
    return node.op == "call_function" and on_cpu and refusal(node_of(node, names)) is None


def _compiled(graph: fx.GraphModule, inputs: list[Any], policy: Any, is_inference: bool = False) -> Any:
    """Return what computes a functional graph."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    weights = {placeholders[index] for index in _static(is_inference)}
    refused = _refused(graph)
    if not refused:
        return make_boxed_func(_Part(graph, [node in weights for node in placeholders], policy))
    names = sorted({operator_name(node.target) for node in refused})
    warnings.warn(f"the backend mp_core leaves these operators to torch: {', '.join(names)}", stacklevel=2)
    if any(name.startswith("aten.as_strided") for name in names):  # it reads memory of other results
        return make_boxed_func(graph.forward)
    parted = CapabilityBasedPartitioner(graph, _Support(set(refused)), allows_single_node_partition=True)
    whole = parted.partition_and_fuse()
    known = {node.name for node in weights}
    for node in whole.graph.find_nodes(op="call_module"):
        is_weight = [each.op == "placeholder" and each.name in known for each in node.args]
        setattr(whole, node.target, _Part(whole.get_submodule(node.target), is_weight, policy))
    return make_boxed_func(whole.forward)


def _static(is_inference: bool) -> Sequence[int]:
    """Return the numbers of the inputs that are parameters and buffers of a module in inference."""
    context = TracingContext.try_get()
    return context.fw_metadata.static_input_indices if is_inference and context and context.fw_metadata else ()


class _Support(OperatorSupportBase):
    """Tells torch's partitioner which nodes mp_core computes."""

    def __init__(self, refused: set[fx.Node]) -> None:
        self._refused = refused

    def is_node_supported(self, submodules: Any, node: fx.Node) -> bool:
        """Return whether mp_core computes a node."""
        return node.op == "call_function" and node not in self._refused and not is_check(node)


class _Place(NamedTuple):
    """Where a part of the result comes from: an input, or a value of the model; neither: it is None."""

    position: int | None
    name: str
    layout: Layout | None  # None: the value is no tensor.

    def read(self, given: tuple[Any, ...], found: dict[str, Any]) -> Any:
        """Return the part."""
        if not self.name:
            return None if self.position is None else given[self.position]
        return found[self.name] if self.layout is None else tensor_of(found[self.name], self.layout)


class _Part(torch.nn.Module):
    """A part of a graph that mp_core computes: a function of tensors and integers.

    Parameters
    ----------
    graph : fx.GraphModule
    is_weight : list of bool
        For each input, whether it is a weight: it is packed once, and again when it has changed.
    policy : DTypePolicy or None
    """

    def __init__(self, graph: fx.GraphModule, is_weight: list[bool], policy: Any) -> None:
        super().__init__()
        self._policy = policy
        self._placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        held = {node: getattr(graph, node.target) for node in graph.graph.nodes if node.op == "get_attr"}
        names = {node: node.name for node in (*self._placeholders, *held)}
        self._held = {node.name: shared(x, node.name) for node, x in held.items()}
        self._nodes = nodes_of(graph.graph.nodes, names)
        (returned,) = next(node.args for node in graph.graph.nodes if node.op == "output")
        self._is_single = not isinstance(returned, list | tuple)
        self._results = [self._place(node, names) for node in ([returned] if self._is_single else returned)]
        self._weights = [index for index, each in enumerate(is_weight) if each]
        self._state: list[Any] = []
        self._changes = 0
        self._model: ProgramModel | None = None

    def forward(self, *given: Any) -> Any:
        """Return the results as tensors."""
        with torch.no_grad(), threads_of_torch():
            model, places = self._current(given), self._places
            values = {name: array_of(x.detach()) if isinstance(x := given[at], Tensor) else x for name, at in places}
            found = model.compute(values) if model.output_names else {}
            found = found if isinstance(found, dict) else {model.output_names[0]: found}
            results = [place.read(given, found) for place in self._results]
        return results[0] if self._is_single else results

    def _place(self, node: Any, names: dict[fx.Node, str]) -> "_Place":
        if not isinstance(node, fx.Node) or node in self._placeholders:
            return _Place(self._placeholders.index(node) if isinstance(node, fx.Node) else None, "", None)
        value = node.meta["val"]
        return _Place(None, names[node], Layout.of(value) if isinstance(value, Tensor) else None)

    def _current(self, given: tuple[Any, ...]) -> ProgramModel:
        """Return the model; make it again if a weight has changed."""
        state = [(given[index].data_ptr(), _version(given[index])) for index in self._weights]
        if self._model is not None and state == self._state:
            return self._model
        self._changes += self._model is not None
        if self._changes > _MOST_CHANGES:
            self._weights, state = [], []
        weights = {self._placeholders[at].name: shared(given[at], str(at)) for at in self._weights}
        self._model, self._state = ProgramModel(self._program(weights), self._policy), state
        return self._model

    def _program(self, weights: dict[str, Array]) -> Program:
        """Return the program of the nodes with some inputs as constants."""
        rest = [(at, node) for at, node in enumerate(self._placeholders) if node.name not in weights]
        self._places = [(node.name, at) for at, node in rest]
        inputs = tuple(input_of(node.name, node.meta.get("val")) for _, node in rest)
        outputs = tuple(dict.fromkeys(place.name for place in self._results if place.name))
        return Program(inputs, outputs, self._nodes, weights | self._held)


def _version(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place."""
    return 0 if tensor.is_inference() else tensor._version
