"""Branches, loops and recurrent networks of ONNX."""

import numpy as np
import pytest

import mp_core as mp
from mp_core.files.onnx.programs import read_program
from mp_core.programs import ProgramModel, RefusedError

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
X = np.random.default_rng(5).standard_normal((4, 3)).astype(np.float32)

BY_SHAPE = """
    agraph (float[n, 3] x) => (float[n, m] y) <int64[1] three = {3}, int64 zero = {0}> {
        shape = Shape(x)
        n = Gather(shape, zero)
        is_long = Greater(n, three)
        y = If(is_long) <then_branch = yes () => (float[n, m] a) { a = Mul(x, x) },
                         else_branch = no () => (float[n, m] b) { b = Neg(x) }>
    }"""
BY_ELEMENTS = """
    agraph (float[n, 3] x) => (float[n, m] y) <float zero = {0.0}> {
        total = ReduceSum <keepdims = 0> (x)
        c = Greater(total, zero)
        y = If(c) <then_branch = yes () => (float[n, m] a) { a = Mul(x, x) },
                   else_branch = no () => (float[n, m] b) { b = Neg(x) }>
    }"""
TRIPS = """
    agraph (float[n, 3] x) => (float[n, 3] last, float[t, n, 3] each)
    <bool yes = {1}, int64 zero = {0}> {
        shape = Shape(x)
        trips = Gather(shape, zero)
        last, each = Loop(trips, yes, x) <
            body = b (int64 i, bool c, float[n, 3] h) => (bool d, float[n, 3] g, float[n, 3] k)
            { d = Identity(c)  g = Add(h, x)  f = Cast <to = 1> (i)  k = Mul(g, f) }>
    }"""
UNTIL = """
    agraph (float[n, 3] x) => (float[n, 3] last) <bool yes = {1}, int64 most = {9}, float limit = {5.0}> {
        last = Loop(most, yes, x) <body = b (int64 i, bool c, float[n, 3] h) => (bool d, float[n, 3] g)
            { g = Add(h, x)  s = ReduceMax <keepdims = 0> (g)  d = Less(s, limit) }>
    }"""
SUMS = """
    agraph (float[n, 3] x, float[3] start) => (float[3] last, float[n, 3] each) {
        last, each = Scan(start, x) <
            num_scan_inputs = 1, body = b (float[3] s, float[3] row) => (float[3] t, float[3] u)
            { t = Add(s, row)  u = Identity(t) }>
    }"""


def files_of(text, folder):
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}')
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def outputs_of(model, *inputs):
    found = model(*inputs)
    return list(found.values()) if isinstance(found, dict) else [found]


@pytest.mark.parametrize(("text", "more"), [(BY_SHAPE, ()), (TRIPS, ()), (SUMS, (np.zeros(3, np.float32),))])
@pytest.mark.parametrize("rows", [2, 4])
def test_branches_and_loops_that_follow_from_shapes_have_the_results_of_onnxruntime(text, more, rows, tmp_path):
    path, inputs = files_of(text, tmp_path), (X[:rows], *more)
    session = ort.InferenceSession(str(path))
    wanted = session.run(None, dict(zip([x.name for x in session.get_inputs()], inputs, strict=True)))
    model = ProgramModel(read_program(path))
    plan = mp.compile(model, *inputs)
    for found in (outputs_of(model, *inputs), outputs_of(plan, *inputs)):
        for y, expected in zip(found, wanted, strict=True):
            np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize(("text", "what"), [(BY_ELEMENTS, r"If\).*condition"), (UNTIL, r"Loop\).*trip")])
def test_branches_and_loops_that_depend_on_elements_are_refused_before_anything_runs(text, what, tmp_path):
    with pytest.raises(RefusedError, match=what):
        ProgramModel(read_program(files_of(text, tmp_path)))


# ---- recurrent networks

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("options", [{}, {"lengths": [5, 3]}, {"states": True}, {"clip": 0.1}])
def test_recurrent_networks_have_the_results_of_onnxruntime(operator, direction, options, tmp_path):
    rng, gates, count = np.random.default_rng(8), GATES[operator], 1 + (direction == "bidirectional")

    def drawn(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    x = drawn(5, 2, 3)
    constants = {"w": drawn(count, 4 * gates, 3), "r": drawn(count, 4 * gates, 4), "b": drawn(count, 8 * gates)}
    if "lengths" in options:
        constants["lengths"] = np.array(options["lengths"], np.int32)
    if "states" in options:
        constants |= {"h": drawn(count, 2, 4)} | ({"c": drawn(count, 2, 4)} if operator == "LSTM" else {})
    names = ["x", *(name if name in constants else "" for name in ("w", "r", "b", "lengths", "h", "c"))]
    results = ["y", "y_h", "y_c"][: 3 if operator == "LSTM" else 2]
    more = {"clip": options["clip"]} if "clip" in options else {}
    node = onnx.helper.make_node(operator, names[: 7 if operator == "LSTM" else 6], results, hidden_size=4,
                                 direction=direction, **more)  # fmt: skip
    graph = onnx.helper.make_graph(
        [node], "g", [onnx.helper.make_tensor_value_info("x", 1, x.shape)],
        [onnx.helper.make_tensor_value_info(name, 1, None) for name in results],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    found = outputs_of(ProgramModel(read_program(tmp_path / "m.onnx")), x)
    for y, wanted in zip(found, ort.InferenceSession(model.SerializeToString()).run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(y, wanted, atol=1e-6)
