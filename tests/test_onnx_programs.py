"""ONNX files as programs: constants, options, functions, graphs in nodes; damaged files are errors."""

import ml_dtypes
import numpy as np
import pytest
from hostile_files import field

import mp_core as mp
from mp_core.files.onnx.programs import read_program
from mp_core.files.program import Input, Program, Value
from mp_core.programs import RefusedError

onnx = pytest.importorskip("onnx")
helper, FLOAT = onnx.helper, onnx.TensorProto.FLOAT
X, Y = (helper.make_tensor_value_info(name, FLOAT, ["n", 3]) for name in "xy")
RELU = helper.make_node("Relu", ["x"], ["y"])


def made(nodes, *, inputs=(X,), outputs=(Y,), constants=(), **options):
    """Return a model with the operators of opset 20."""
    graph = helper.make_graph(nodes, "g", list(inputs), list(outputs), list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], **options)


def read(tmp_path, model):
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return read_program(path)


def refused(tmp_path, model, message):
    with pytest.raises(ValueError, match=rf"model\.onnx.*{message}"):
        read(tmp_path, model)


def test_inputs_have_types_and_axes_with_names_or_without(tmp_path):
    half = helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT16, [2, None])
    scalar = helper.make_tensor_value_info("s", onnx.TensorProto.INT64, [])
    texts = helper.make_tensor_sequence_value_info("t", FLOAT, None)
    program = read(tmp_path, made([RELU], inputs=[X, half, scalar, texts]))
    assert program.inputs == (
        Input("x", "float32", ("n", 3)),
        Input("h", "float16", (2, None)),
        Input("s", "int64", ()),
        Input("t", "sequence", None),
    )


def test_options_are_numbers_strings_arrays_and_programs(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    inner = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["z"])], "inner", [], [helper.make_empty_tensor_value_info("z")]
    )
    given = {"i": -7, "f": 0.5, "s": "text", "ints": [3, -1], "floats": [0.25, 2.0], "strings": ["a", "b"]}
    node = helper.make_node(
        "Any", ["x", "", "x"], ["y"], name="here", domain="own", **given, t=onnx.numpy_helper.from_array(array), g=inner
    )
    (found,) = read(tmp_path, made([node])).nodes
    assert (found.operator, found.name, found.version) == ("own.Any", "here", 0)
    assert found.arguments == (Value("x"), None, Value("x"))
    options = dict(found.options)
    np.testing.assert_array_equal(options.pop("t"), array)
    program = options.pop("g")
    assert isinstance(program, Program)
    assert [node.operator for node in program.nodes] == ["Neg"]
    assert options == {name: tuple(x) if isinstance(x, list) else x for name, x in given.items()}


@pytest.mark.parametrize("is_raw", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn, ml_dtypes.int4, ml_dtypes.uint4, np.int8, np.uint8, np.int16,
    np.uint16, np.int32, np.int64, np.uint32, np.uint64, np.bool_], ids=lambda x: x.__name__)  # fmt: skip
def test_constants_of_every_type_are_those_of_the_file(tmp_path, dtype, is_raw):
    numbers = np.array([[1, 0, 3], [-2, 1, -5]])
    array = (numbers if np.dtype(dtype).kind != "u" and dtype is not ml_dtypes.uint4 else abs(numbers)).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    if is_raw:
        tensor = onnx.numpy_helper.from_array(array, "c")
    else:
        tensor = helper.make_tensor("c", kind, array.shape, array.ravel().tolist())
    found = read(tmp_path, made([RELU], constants=[tensor])).constants["c"]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_constant_nodes_are_constants(tmp_path):
    nodes = [
        helper.make_node("Constant", [], [name], **{name: value})
        for name, value in {"value_int": 3, "value_ints": [3, -4], "value_float": 0.5, "value_floats": [0.5, 1]}.items()
    ]
    program = read(tmp_path, made([*nodes, RELU]))
    assert [node.operator for node in program.nodes] == ["Relu"]
    expected = {"value_int": "int64", "value_ints": "int64", "value_float": "float32", "value_floats": "float32"}
    assert {name: x.dtype.name for name, x in program.constants.items()} == expected
    assert program.constants["value_ints"].tolist() == [3, -4]


def function(name, nodes, inputs=("a",), outputs=("b",), attributes=()):
    versions = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, list(inputs), list(outputs), nodes, versions, list(attributes))


def test_functions_of_the_file_are_replaced_by_their_nodes(tmp_path):
    leaky = helper.make_node("LeakyRelu", ["a"], ["middle"])
    reference = leaky.attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "alpha", "slope", onnx.AttributeProto.FLOAT
    inner = function("Inner", [leaky, helper.make_node("Neg", ["middle"], ["b"])], attributes=["slope"])
    outer = function("Outer", [helper.make_node("Inner", ["a"], ["b"], domain="own", slope=0.25)])
    calls = [
        helper.make_node("Outer", [x], [y], name=name, domain="own")
        for x, y, name in [("x", "h", "p"), ("h", "y", "q")]
    ]
    program = read(tmp_path, made(calls, functions=[inner, outer]))
    assert [node.operator for node in program.nodes] == ["LeakyRelu", "Neg"] * 2
    assert [node.options.get("alpha") for node in program.nodes] == [0.25, None] * 2
    assert {node.version for node in program.nodes} == {18}
    (first, second, third, fourth) = program.nodes
    assert (first.arguments, second.outputs, third.arguments, fourth.outputs) == (
        (Value("x"),),
        ("h",),
        (Value("h"),),
        ("y",),
    )
    assert first.outputs != third.outputs


def test_functions_that_call_themselves_and_bombs_of_functions_are_refused(tmp_path):
    call = [helper.make_node("F", ["x"], ["y"], domain="own")]
    itself = function("F", [helper.make_node("F", ["a"], ["b"], domain="own")])
    refused(tmp_path, made(call, functions=[itself]), "inside each other more than 32 times")
    levels = []
    for level in range(8):
        name, called = "F" if level == 0 else f"F{level}", f"F{level + 1}"
        domain = "own" if level < 7 else ""
        nodes = [helper.make_node(called if level < 7 else "Neg", ["a"], [f"b{n}"], domain=domain) for n in range(9)]
        levels.append(function(name, nodes, outputs=("b0",)))
    refused(tmp_path, made(call, functions=levels), "more than 200000 nodes")


def test_graphs_that_contain_each_other_too_often_are_refused(tmp_path):
    graph = field(12, field(1, b"x"))  # whose output is a value around it
    for _ in range(40):
        node = field(4, b"If") + field(2, b"z") + field(5, field(1, b"then_branch") + field(6, graph))
        graph = field(1, node) + field(12, field(1, b"z"))
    path = tmp_path / "model.onnx"
    path.write_bytes(field(7, graph))
    with pytest.raises(ValueError, match=r"model\.onnx.*more than 32 times"):
        read_program(path)


@pytest.mark.parametrize(
    ("nodes", "options", "message"),
    [
        ([helper.make_node("Neg", ["y"], ["h"]), helper.make_node("Neg", ["h"], ["y"])], {}, "reads y, which no node"),
        ([helper.make_node("Add", ["x", "nothing"], ["y"], name="sum")], {}, r"sum \(Add\) reads nothing, which"),
        ([RELU, RELU], {}, r"\(Relu\) defines y, which is defined before it"),
        ([], {}, r"no node computes the outputs \['y'\]"),
        ([RELU], {"outputs": []}, "no outputs"),
        ([RELU], {"inputs": [X, X]}, "input x defines x, which"),
        ([helper.make_node("Constant", [], ["y"])], {}, "expected one"),
        ([helper.make_node("Constant", [], ["y"], value_string="s")], {}, "has a value_string; expected numbers"),
        ([RELU], {"constants": [helper.make_tensor("c", onnx.TensorProto.STRING, [1], [b"s"])]},
         r"initializer c of shape \(1,\) has strings; expected numbers"),
        ([RELU], {"constants": [onnx.TensorProto(name="c", data_type=1, dims=[2**40, 2**40])]}, "c has the shape"),
        ([RELU], {"constants": [onnx.TensorProto(name="c", data_type=1, dims=[5])]}, "c has 0 bytes; expected 20"),
    ],
)  # fmt: skip
def test_graphs_that_no_program_is_are_refused_by_name(tmp_path, nodes, options, message):
    refused(tmp_path, made(nodes, **options), message)


def test_sparse_arrays_are_refused_by_name(tmp_path):
    model = made([RELU])
    values = helper.make_tensor("s", FLOAT, [1], [1.0])
    indices = helper.make_tensor("", onnx.TensorProto.INT64, [1], [1])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    refused(tmp_path, model, "initializer s is sparse")


def test_constants_are_views_of_the_file_and_of_files_beside_it(tmp_path):
    tensors = [onnx.numpy_helper.from_array(np.arange(512, dtype=np.float32) + n, f"c{n}") for n in range(2)]
    onnx.save(made([RELU], constants=tensors), tmp_path / "model.onnx")
    onnx.save(
        made([RELU], constants=tensors),
        tmp_path / "other.onnx",
        save_as_external_data=True,
        location="data",
        size_threshold=0,
    )
    for name in ("model.onnx", "other.onnx"):
        constants = read_program(tmp_path / name).constants
        assert not any(x.flags.owndata or x.flags.writeable for x in constants.values())
        np.testing.assert_array_equal(constants["c1"], np.arange(512) + 1)


def constant(name, numbers):
    return onnx.numpy_helper.from_array(np.array(numbers), name)


@pytest.mark.parametrize(
    ("node", "constants", "message"),
    [
        (("ConstantOfShape", ["s"]), [constant("s", [2**40])], r"\(ConstantOfShape\): an array would have the shape"),
        (("Tile", ["a", "s"]), [constant("a", [1.0]), constant("s", [2**40])], r"\(Tile\): an array would have"),
        (
            ("Range", ["s", "e", "d"]),
            [constant("s", 0), constant("e", 2**50), constant("d", 1)],
            r"\(Range\): an array",
        ),
        (("Add", ["a", "b"]), [constant("a", [1.0, 2]), constant("b", [1.0, 2, 3])], r"\(Add\): "),
        (("Reshape", ["a", "s"]), [constant("a", [1.0, 2]), constant("s", [3])], r"\(Reshape\): "),
        (("Squeeze", ["a", "s"]), [constant("a", [1.0, 2]), constant("s", [7])], r"\(Squeeze\): `axes` must be from"),
        (("Gather", ["a", "s"]), [constant("a", [1.0, 2]), constant("s", [5])], r"\(Gather\): "),
    ],
)
def test_nodes_whose_constants_do_not_fit_are_an_error_with_their_name(tmp_path, node, constants, message):
    path = tmp_path / "model.onnx"
    model = made([helper.make_node(*node, ["y"], name="here")], inputs=[], constants=constants)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match=rf"model\.onnx: node here {message}"):
        mp.interop.onnx.load(path)


def test_shapes_that_depend_on_elements_of_inputs_are_refused_and_those_of_shapes_are_not(tmp_path):
    path, shape = tmp_path / "model.onnx", helper.make_tensor_value_info("s", onnx.TensorProto.INT64, [2])
    path.write_bytes(
        made([helper.make_node("Reshape", ["x", "s"], ["y"], name="here")], inputs=[X, shape]).SerializeToString()
    )
    with pytest.raises(
        RefusedError, match=r"model\.onnx: 1 parts.*\nhere \(Reshape\): `shape` depends on the elements"
    ):
        mp.interop.onnx.load(path)
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Reshape", ["x", "s"], ["y"])]
    path.write_bytes(made(nodes).SerializeToString())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(mp.interop.onnx.load(path)(x), x)
