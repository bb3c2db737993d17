"""Patterns of ONNX nodes: each becomes one operation, whose results are those of the nodes."""

import ast

import numpy as np
import pytest

from mp_core.files.onnx.programs import read_program
from mp_core.programs import ProgramModel

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(671)
SHAPES = {"x": (2, 3, 5, 8), "x2": (2, 3, 5, 8), "image": (2, 3, 9, 7), "k": (2, 3, 8, 7), "v": (2, 3, 7, 6),
          "m": (2, 1, 5, 7),
          "w": (8, 6), "b": (6,), "g": (8,), "c": (3,), "kernel": (4, 3, 3, 3), "kb": (4, 1, 1), "kg": (4,),
          "kv": (4,), "t": (9, 8), "ids": (2, 3)}  # fmt: skip
"""Name -> shape of inputs and constants."""
INPUTS = ("x", "x2", "k", "v", "m", "image", "ids")

PATTERNS = {
    # name -> (nodes; a number is a constant, and a keyword an option; the operators that remain)
    "gelu": ("e = Erf(Div(x, 1.4142135)); y = Mul(Mul(x, Add(e, 1.)), 0.5)", ["Gelu"]),
    "gelu, the half first": ("e = Erf(Mul(0.70710677, x)); y = Mul(Mul(0.5, x), Add(1., e))", ["Gelu"]),
    "gelu by tanh": (
        "p = Mul(0.044715, Pow(x, 3.)); h = Tanh(Mul(0.7978846, Add(x, p))); y = Mul(Mul(0.5, x), Add(1., h))",
        ["Gelu"],
    ),
    "silu": ("y = Mul(x, Sigmoid(x))", ["Swish"]),
    "quick gelu": ("y = Mul(Sigmoid(Mul(x, 1.702)), x)", ["Swish"]),
    "hard swish": ("y = Div(Mul(x, Clip(Add(x, 3.), 0., 6.)), 6.)", ["HardSwish"]),
    "layer norm": (
        "d = Sub(x, ReduceMean(x, axes)); q = ReduceMean(Pow(d, 2.), axes); n = Div(d, Sqrt(Add(q, 1e-5))); "
        "y = Add(Mul(n, g), g)",
        ["LayerNormalization"],
    ),
    "rms norm": (
        "r = Reciprocal(Sqrt(Add(ReduceMean(Pow(x, 2.), axes), 1e-6))); y = Mul(g, Mul(x, r))", ["RMSNormalization"],
    ),
    "residual norm": ("y = LayerNormalization(Add(x, x2), g, g)", ["mp_core.residual_norm"]),
    "attention": ("y = MatMul(Softmax(Add(Mul(MatMul(x, k), 0.5), m)), v)", ["mp_core.attention"]),
    "attention, scaled before": ("y = MatMul(Softmax(MatMul(Mul(x, 0.7), Mul(k, 0.7))), v)", ["mp_core.attention"]),
    "attention, divided": ("y = MatMul(Softmax(Add(m, Div(MatMul(x, k), 2.))), v)", ["mp_core.attention"]),
    "product with bias and activation": ("y = Relu(Add(b, MatMul(x, w)))", ["mp_core.dense"]),
    "product, bias and gelu": (
        "h = Add(MatMul(x, w), b); y = Mul(Mul(h, Add(Erf(Div(h, 1.4142135)), 1.)), 0.5)", ["mp_core.dense"],
    ),
    "convolution with batch norm and relu": (
        "y = Relu(BatchNormalization(Conv(image, kernel), kg, kg, kg, kv))", ["mp_core.conv"],
    ),
    "convolution with bias and relu6": ("y = Clip(Add(Conv(image, kernel), kb), 0., 6.)", ["mp_core.conv"]),
    "convolution of a padded image": ("y = Conv(Pad(image, pads), kernel)", ["mp_core.conv"]),
    "convolution with padding of a padded image": (
        "y = Relu(Conv(Pad(image, pads, 0.), kernel, pads=[1, 0, 2, 0], strides=[2, 1]))", ["mp_core.conv"],
    ),
    "convolution of an image with another margin": ("y = Conv(Pad(image, pads, 1.), kernel)", ["Pad", "mp_core.conv"]),
    "convolution of a mirrored margin": (
        "y = Conv(Pad(image, pads, mode='reflect'), kernel)", ["Pad", "mp_core.conv"],
    ),
    "convolution of a smaller image": ("y = Conv(Pad(image, cut), kernel)", ["Pad", "mp_core.conv"]),
    "look-up": ("y = Gather(t, ids)", ["mp_core.embedding"]),
    "casts that change nothing": ("y = MatMul(Cast(Softmax(MatMul(x, k)), to=1), v)", ["mp_core.attention"]),
}  # fmt: skip


def model_of(text):
    """Return the ONNX model of nodes written as Python calls."""
    nodes, constants, inputs = [], {}, {}

    def name_of(tree, output=None):
        if isinstance(tree, ast.Constant):
            name = f"number{len(constants)}"
            constants[name] = np.float32(tree.value)
            return name
        if isinstance(tree, ast.Name):
            if tree.id in INPUTS:
                inputs[tree.id] = SHAPES[tree.id]
            elif tree.id in SHAPES:
                constants[tree.id] = (np.abs if tree.id == "kv" else np.asarray)(
                    np.random.default_rng(len(tree.id)).standard_normal(SHAPES[tree.id]).astype(np.float32)
                )
            elif tree.id in SPECIAL:
                constants[tree.id] = SPECIAL[tree.id]
            return tree.id
        options = {x.arg: ast.literal_eval(x.value) for x in tree.keywords}
        arguments = [name_of(x) for x in tree.args]
        output = output or f"value{len(nodes)}"
        nodes.append(onnx.helper.make_node(tree.func.id, arguments, [output], **options))
        return output

    for statement in ast.parse(text.replace("; ", "\n")).body:
        name_of(statement.value, statement.targets[0].id)
    given = [
        onnx.helper.make_tensor_value_info(name, 7 if name == "ids" else 1, shape) for name, shape in inputs.items()
    ]
    arrays = [onnx.numpy_helper.from_array(np.asarray(x), name) for name, x in constants.items()]
    graph = onnx.helper.make_graph(nodes, "g", given, [onnx.helper.make_tensor_value_info("y", 1, None)], arrays)
    version = onnx.helper.make_opsetid("", 18)
    arrays = {
        name: RNG.integers(0, 9, shape) if name == "ids" else RNG.standard_normal(shape).astype(np.float32)
        for name, shape in inputs.items()
    }
    return onnx.helper.make_model(graph, opset_imports=[version], ir_version=10), arrays


SPECIAL = {
    "axes": np.array([-1]),
    "pads": np.array([0, 0, 0, 1, 0, 0, 2, 3]),
    "cut": np.array([0, 0, -1, 1, 0, 0, 2, 0]),
}


def expected(model, inputs):
    """Return what onnxruntime computes node by node."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options).run(None, inputs)[0]


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_becomes_one_operation_with_the_results_of_its_nodes(name, tmp_path):
    text, remaining = PATTERNS[name]
    model, inputs = model_of(text)
    onnx.save(model, tmp_path / "m.onnx")
    ours = ProgramModel(read_program(tmp_path / "m.onnx"))
    assert [step.operator for step in ours._steps] == remaining
    wanted = expected(model, inputs)
    np.testing.assert_allclose(ours(**inputs), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_a_node_of_which_several_results_are_read_is_not_replaced(tmp_path):
    node = onnx.helper.make_node("LayerNormalization", ["t", "g"], ["y", "mean"])
    total = onnx.helper.make_node("Add", ["x", "x2"], ["t"])
    given = [onnx.helper.make_tensor_value_info(name, 1, SHAPES[name]) for name in ("x", "x2")]
    results = [onnx.helper.make_tensor_value_info(name, 1, None) for name in ("y", "mean")]
    scale = onnx.numpy_helper.from_array(np.ones(8, np.float32), "g")
    graph = onnx.helper.make_graph([total, node], "g", given, results, [scale])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]), tmp_path / "m.onnx")
    x, x2 = (RNG.standard_normal(SHAPES["x"]).astype(np.float32) for _ in range(2))
    found = ProgramModel(read_program(tmp_path / "m.onnx"))(x=x, x2=x2)
    np.testing.assert_allclose(found["mean"], (x + x2).mean(-1, keepdims=True), atol=1e-6)
