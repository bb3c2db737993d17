"""Programs as models: steps, layers of constant matrices, policies, refusals."""

import resource

import numpy as np
import pytest

import mp_core as mp
from mp_core.files.program import Input, Node, Program, Value
from mp_core.programs import ProgramModel, RefusedError

RNG = np.random.default_rng(67)
W1, B1, W2 = (RNG.standard_normal(shape).astype(np.float32) for shape in ((8, 16), (16,), (16, 4)))
X = RNG.standard_normal((3, 8)).astype(np.float32)


def network(*more: Node) -> Program:
    """Return ``(relu(x @ w1 + b1) @ w2) * s``."""
    nodes = [
        Node("Gemm", (Value("x"), Value("w1"), Value("b1")), ("h",), name="/fc1/Gemm"),
        Node("Relu", (Value("h"),), ("a",)),
        Node("MatMul", (Value("a"), Value("w2")), ("m",), name="/fc2/MatMul"),
        Node("Mul", (Value("m"), Value("s")), ("y",)),
        *more,
    ]
    constants = {"w1": W1, "b1": B1, "w2": W2, "s": np.arange(4, dtype=np.float32)}
    return Program((Input("x", "float32", ("n", 8)),), ("y",), nodes, constants)


def expected() -> np.ndarray:
    """Return the outputs, computed in float64."""
    return np.maximum(X.astype(np.float64) @ W1 + B1, 0) @ W2 * np.arange(4)


def test_a_program_computes_its_outputs_with_and_without_a_plan() -> None:
    model = ProgramModel(network())
    np.testing.assert_allclose(model(X), expected(), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(mp.compile(model, X)(X), model(X))


def test_constant_matrices_are_layers_that_can_be_quantized() -> None:
    model = ProgramModel(network())
    assert [layer.name for layer in model.layers] == ["fc1.Gemm", "fc2.MatMul"]
    model.quantize("int8")
    assert np.abs(model(X) - expected()).max() < 0.02 * np.abs(expected()).max()


def test_a_policy_sets_the_compute_dtype_of_the_whole_program() -> None:
    assert ProgramModel(network(), "mixed_bfloat16")(X).dtype.name == "bfloat16"


def test_a_program_with_unknown_nodes_is_refused_with_all_of_them() -> None:
    more = Node("Nonsense", (Value("y"),), ("z",), name="third"), Node("Relu", (), ("u",), {"slope": 1}, name="fourth")
    with pytest.raises(RefusedError, match=r"(?s)2 parts.*third \(Nonsense\).*fourth \(Relu\)"):
        ProgramModel(network(*more))


def test_without_a_policy_each_value_has_the_type_that_the_program_states() -> None:
    program = network()
    halves = {name: x.astype(np.float16) for name, x in program.constants.items()}
    model = ProgramModel(Program(program.inputs, program.outputs, program.nodes, halves))
    y = model(X.astype(np.float16))
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, expected(), rtol=0.02, atol=0.05)
    wide = ProgramModel(Program(program.inputs, program.outputs, program.nodes, halves), "float32")(X)
    assert wide.dtype == np.float32


@pytest.mark.parametrize("kind", [mp.layers.Conv2D, mp.layers.DepthwiseConv2D])
def test_convolution_layers_take_pairs_as_padding(kind: type) -> None:
    pairs, is_full = [(1, 0), (0, 2)], kind is mp.layers.Conv2D
    layer = kind(4, (2, 3), padding=pairs) if is_full else kind((2, 3), padding=pairs)
    x = RNG.standard_normal((2, 5, 6, 3)).astype(np.float32)
    y = layer(x)
    wide = np.pad(x.astype(np.float64), [(0, 0), *pairs, (0, 0)])
    places = np.lib.stride_tricks.sliding_window_view(wide, (2, 3), (1, 2))
    kernel = layer.weights[0].numpy().astype(np.float64)
    wanted = np.einsum("bhwcij,ijcf->bhwf" if is_full else "bhwcij,ijcf->bhwc", places, kernel)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)
    assert layer.compute_output_shape(x.shape) == y.shape
    again = kind.from_config(layer.get_config())
    again.build(x.shape)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(x), y)


@pytest.mark.parametrize("padding", [[(1, 1)], [(1, -1), (0, 0)], [(1, 1, 1), (0, 0)], "full"])
def test_convolution_layers_refuse_other_paddings(padding: object) -> None:
    with pytest.raises(ValueError, match="padding"):
        mp.layers.Conv2D(4, 3, padding=padding)


HUGE = {
    "a shape": [Node("ConstantOfShape", (Value("shape"),), ("c",))],
    "an array that is expanded": [
        Node("Expand", (Value("one"), Value("shape")), ("e",)),
        Node("Add", (Value("e"), Value("one")), ("c",)),
    ],
    "copies": [Node("Tile", (Value("row"), Value("shape")), ("c",))],
    "a range": [Node("Range", (Value("zero"), Value("end"), Value("step")), ("c",))],
    "a sum that is broadcast": [Node("Add", (Value("row"), Value("column")), ("c",))],
    "a product": [Node("MatMul", (Value("column"), Value("row")), ("c",))],
    "an equation": [Node("Einsum", (Value("row"), Value("row")), ("c",), {"equation": "ab,cd->abcd"})],
    "slices at lists of indices": [Node("GatherND", (Value("wide"), Value("lists")), ("c",))],
    "slices at indices": [Node("Gather", (Value("row"), Value("zeros")), ("c",), {"axis": 0})],
    "arrays that double": [
        Node("Concat", (Value(f"c{n}" if n else "row"),) * 2, (f"c{n + 1}" if n < 15 else "c",), {"axis": 0})
        for n in range(16)
    ],
}


@pytest.mark.parametrize("what", HUGE)
def test_constants_that_ask_for_huge_memory_are_refused_before_it_is_allocated(what: str) -> None:
    constants = {
        "shape": np.array([1 << 20, 1 << 20]), "one": np.ones((1, 1), np.float32), "zero": np.array(0),
        "row": np.ones((1, 30_000), np.float32), "column": np.ones((30_000, 1), np.float32), "end": np.array(1 << 40),
        "step": np.array(1), "zeros": np.zeros(30_000, np.int64), "wide": np.ones((2, 30_000), np.float32),
        "lists": np.zeros((30_000, 1), np.int64),
    }  # fmt: skip
    nodes = [*HUGE[what], Node("Add", (Value("x"), Value("c")), ("y",))]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"node .*(expected at most \d+ elements|take more than \d+ bytes)"):
        ProgramModel(Program((Input("x", "float32", (1,)),), ("y",), nodes, constants))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 700_000  # kB


def test_constants_of_usual_sizes_are_computed_once() -> None:
    row = np.arange(2048, dtype=np.float32)
    nodes = [Node("Sub", (Value("row"), Value("column")), ("c",)), Node("Add", (Value("x"), Value("c")), ("y",))]
    constants = {"row": row, "column": row.reshape(-1, 1)}
    model = ProgramModel(Program((Input("x", "float32", (1,)),), ("y",), nodes, constants))
    assert len(model._steps) == 1
    square = np.ones((600, 600), np.float32)  # sums over 600 terms: no more elements than the operands have
    nodes[0] = Node("Einsum", (Value("row"), Value("row")), ("c",), {"equation": "ab,bc->ac"})
    ProgramModel(Program((Input("x", "float32", (1,)),), ("y",), nodes, {"row": square}))
    np.testing.assert_array_equal(model(np.ones(1, np.float32)), row - row.reshape(-1, 1) + 1)
