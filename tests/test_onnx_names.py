"""Names of the weights of ONNX files: graphs as exporters, optimizers and attackers write them."""

import re

import numpy as np
import pytest

from mp_core import cli
from mp_core.files.checkpoint.onnx_file import open_onnx

onnx = pytest.importorskip("onnx")
RNG = np.random.default_rng(0)
MICROSOFT = "com.microsoft"


def weight(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def node(kind, inputs, output, name="", scopes=None, **attributes):
    """Return a node, with the scopes of torch's exporter if there are any."""
    made = onnx.helper.make_node(kind, inputs, [output], name=name, **attributes)
    if scopes is not None:
        entry = made.metadata_props.add()
        entry.key, entry.value = "pkg.torch.onnx.name_scopes", repr(["", *scopes, output])
    return made


def opened(tmp_path, nodes, weights, *, producer="pytorch", signature=None):
    """Return what is read of the file of a graph."""
    made = [each if isinstance(each, onnx.TensorProto) else onnx.numpy_helper.from_array(each, name)
            for name, each in weights.items()]  # fmt: skip
    graph = onnx.helper.make_graph(nodes, "g", [], [], made)
    if signature is not None:
        entry = graph.metadata_props.add()
        entry.key = "pkg.torch.export.ExportedProgram.graph_signature"
        lines = [f"p_{name.replace('.', '_')}: {kind} target='{name}'{rest}" for name, kind, rest in signature]
        entry.value = "\n".join(["", "# inputs", *lines, "x: USER_INPUT", "", "# outputs", "y: USER_OUTPUT", ""])
    path = tmp_path / "a.onnx"
    onnx.save(onnx.helper.make_model(graph, producer_name=producer), path)
    return open_onnx(path)


def parameters(*names):
    return [(name, "PARAMETER", "") for name in names]


def equal(found, **expected):
    """Whether exactly these tensors are found; in their names two underscores stand for a point."""
    expected = {name.replace("__", "."): value for name, value in expected.items()}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == value.dtype


def test_a_folded_matrix_has_the_name_that_scopes_say(tmp_path):
    w, b = weight(4, 4), weight(4)
    nodes = [
        node("MatMul", ["x", "val_59"], "val_60", "node_MatMul_58", ["layer.0", "layer.0.query"]),
        node("Add", ["val_60", "layer.0.query.bias"], "linear", "node_linear", ["layer.0", "layer.0.query"]),
    ]
    found = opened(tmp_path, nodes, {"layer.0.query.bias": b, "val_59": w})
    equal(found, layer__0__query__weight=w.T, layer__0__query__bias=b)


def test_a_folded_matrix_has_the_name_of_the_bias_behind_it_where_scopes_were_lost(tmp_path):
    w, b, c, d = weight(4, 6), weight(6), weight(6, 6), weight(6)
    nodes = [
        node("MatMul", ["x", "val_1"], "val_2", "node_MatMul_1"),
        node("BiasGelu", ["val_2", "dense.bias"], "gelu", "BiasGelu", domain=MICROSOFT),
        node("MatMul", ["gelu", "val_3"], "val_4", "node_MatMul_2"),
        node("SkipLayerNormalization", ["val_4", "x", "norm.weight", "norm.bias", "last.bias"], "y", domain=MICROSOFT),
    ]
    weights = {"dense.bias": b, "norm.weight": d, "norm.bias": b + 1, "last.bias": d + 1, "val_1": w, "val_3": c}
    equal(opened(tmp_path, nodes, weights), dense__bias=b, norm__weight=d, norm__bias=b + 1, last__bias=d + 1,
          dense__weight=w.T, last__weight=c.T)  # fmt: skip


def test_files_of_old_exporters_have_no_scopes_and_no_paths(tmp_path):
    w, b = weight(4, 4), weight(4)
    nodes = [node("MatMul", ["x", "1234"], "90", "MatMul_60"), node("Add", ["dense.bias", "90"], "91", "Add_61")]
    equal(opened(tmp_path, nodes, {"dense.bias": b, "1234": w}), dense__weight=w.T, dense__bias=b)


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_transposes_or_does_not(tmp_path, transposed):
    w, b = weight(4, 4), weight(4)
    nodes = [node("Gemm", ["x", "onnx::Gemm_1", "dense.bias"], "y", "/dense/MatMul/MatMulAddFusion", transB=transposed)]
    found = opened(tmp_path, nodes, {"onnx::Gemm_1": w, "dense.bias": b})
    equal(found, dense__bias=b, dense__weight=w if transposed else w.T)


def test_casts_and_transposes_before_a_product_are_followed(tmp_path):
    w = weight(4, 4, dtype=np.float16)
    nodes = [
        node("Cast", ["onnx::MatMul_1"], "cast", to=1),
        node("Transpose", ["cast"], "transposed", perm=[1, 0]),
        node("MatMul", ["x", "transposed"], "y", "/dense/MatMul"),
    ]
    equal(opened(tmp_path, nodes, {"onnx::MatMul_1": w}), dense__weight=w)


def test_parameters_that_an_exporter_wrote_once_have_all_their_names(tmp_path):
    ones, zeros, w = np.ones(4, np.float32), np.zeros(4, np.float32), weight(4, 4)
    nodes = [
        node("LayerNormalization", ["x", "a.norm.weight", "a.norm.bias"], "n", "layer_norm", ["a", "a.norm"]),
        node("MatMul", ["n", "val_1"], "val_2", "MatMul", ["b", "b.dense"]),
        node("Add", ["val_2", "a.norm.bias"], "linear", "linear", ["b", "b.dense"]),
        node("LayerNormalization", ["linear", "a.norm.weight", "a.norm.bias"], "y", "layer_norm_1", ["b", "b.norm"]),
        node("Mul", ["y", "a.norm.weight"], "mul", "mul", ["c", "c.q_norm"]),
    ]
    names = ("a.norm.weight", "a.norm.bias", "b.dense.weight", "b.dense.bias", "b.norm.weight", "b.norm.bias",
             "c.q_norm.weight")  # fmt: skip
    weights = {"a.norm.weight": ones, "a.norm.bias": zeros, "val_1": w}
    found = opened(tmp_path, nodes, weights, signature=parameters(*names))
    assert found.keys() == set(names)
    assert all(found[name].all() for name in names if "norm.weight" in name)
    np.testing.assert_array_equal(found["b.dense.weight"], w.T)
    lost = [onnx.helper.make_node(each.op_type, each.input, each.output) for each in nodes[:1] + nodes[3:4]]
    with pytest.raises(ValueError, match=r"2 weights have no name .*a\.norm\.weight of shape \(4,\), read by Layer.*"):
        opened(tmp_path, lost, {"a.norm.weight": ones, "a.norm.bias": zeros})


def test_tied_and_shared_matrices_have_the_names_of_all_their_modules(tmp_path):
    table = weight(6, 4)
    nodes = [
        node("Gather", ["head.weight", "ids"], "x", "embedding", ["model", "model.words"]),
        node("Transpose", ["head.weight"], "t", "t", ["head"], perm=[1, 0]),
        node("MatMul", ["x", "t"], "y", "linear", ["head"]),
    ]
    found = opened(tmp_path, nodes, {"head.weight": table}, signature=parameters("head.weight", "model.words.weight"))
    equal(found, head__weight=table, model__words__weight=table)


def test_a_module_that_is_called_again_is_one(tmp_path):
    w, b = weight(4, 4), weight(4)
    nodes = [node("Identity", ["onnx::MatMul_1"], "onnx::MatMul_2")]
    for number, name in enumerate(("layer/dense", "layer/dense_1")):
        nodes += [node("MatMul", [f"x{number}", f"onnx::MatMul_{number + 1}"], f"p{number}", f"/{name}/MatMul"),
                  node("Add", ["layer.dense.bias", f"p{number}"], f"x{number + 1}", f"/{name}/Add")]  # fmt: skip
    found = opened(tmp_path, nodes, {"onnx::MatMul_1": w, "layer.dense.bias": b})
    equal(found, layer__dense__weight=w.T, layer__dense__bias=b)


def test_a_bias_of_zeros_that_the_exporter_left_out_is_zeros(tmp_path):
    w = weight(3, 4)
    nodes = [node("Gemm", ["x", "pooler.weight"], "y", "node_Gemm", ["pooler"], transB=1)]
    found = opened(tmp_path, nodes, {"pooler.weight": w}, signature=parameters("pooler.weight", "pooler.bias"))
    equal(found, pooler__weight=w, pooler__bias=np.zeros(3, np.float32))


def test_values_that_are_no_weights_are_left_out(tmp_path):
    mask = np.where(np.tri(4, dtype=bool), np.float32(0), np.finfo(np.float32).min)[np.newaxis]
    zeros = onnx.numpy_helper.from_array(np.zeros(4, np.float32))
    nodes = [
        node("Mul", ["x", "/rotary_emb/Constant_1_output_0"], "a", "/rotary_emb/Mul"),
        node("Add", ["a", "onnx::Add_7"], "b", "/attention/Add"),
        node("Constant", [], "/norm/Constant_output_0", "/norm/Constant", value=zeros),
        node("LayerNormalization", ["b", "norm.weight", "/norm/Constant_output_0"], "c", "/norm/LayerNormalization"),
        node("Pow", ["c", "val_77"], "y"),
    ]
    weights = {"/rotary_emb/Constant_1_output_0": weight(4), "onnx::Add_7": mask, "norm.weight": weight(4),
               "val_77": np.float32(2)}  # fmt: skip
    equal(opened(tmp_path, nodes, weights), norm__weight=weights["norm.weight"])


def test_what_follows_from_parameters_that_were_all_found_is_left_out(tmp_path):
    w, cosines, frequencies = weight(4, 4), weight(1, 7, 4), weight(2)
    nodes = [
        node("MatMul", ["x", "val_1"], "linear", "node_linear", ["dense"]),
        node("Mul", ["linear", "unsqueeze_14"], "y", "node_mul", ["attention"]),
        node("Mul", ["y", "rotary_emb.inv_freq"], "z", "node_mul_1", ["rotary_emb"]),
    ]
    weights = {"val_1": w, "unsqueeze_14": cosines, "rotary_emb.inv_freq": frequencies}
    weights["new.weight"] = weight(2)  # that somebody has added
    signature = [*parameters("dense.weight"), ("rotary_emb.inv_freq", "BUFFER", " persistent=False")]
    found = opened(tmp_path, nodes, weights, signature=signature)
    equal(found, dense__weight=w.T, new__weight=weights["new.weight"])
    lost = r"1 weights have no name .*: unsqueeze_14 of shape \(1, 7, 4\), read by Mul node_mul$"
    with pytest.raises(ValueError, match=lost):
        opened(tmp_path, nodes, weights, signature=[*signature, *parameters("table.weight")])


NAMELESS = {
    "no scope, no bias": (node("MatMul", ["x", "val_1"], "y", "node_linear"), (4, 4)),
    "rows of a table": (node("Add", ["x", "embedding_1"], "y", "node_add", ["embeddings"]), (1, 7, 4)),
    "one and a factor": (node("Mul", ["x", "onnx::Mul_1"], "y", "/norm/Mul_1"), (4,)),
    "one and a factor, joined": (
        node("SimplifiedLayerNormalization", ["x", "onnx::Mul_1"], "y", "/norm/Mul_1/SimplifiedLayerNormFusion/"), (4,),
    ),
    "a bias": (node("LayerNormalization", ["x", "norm.weight", "onnx::Add_1"], "y", "/norm/LayerNormalization"), (4,)),
    "a table": (node("Gather", ["onnx::Gather_1", "x"], "y", "/table/Gather"), (6, 4)),
    "a product of three axes": (node("MatMul", ["x", "val_1"], "y", "n", ["attention"]), (2, 4, 4)),
    "matrices side by side": (node("Attention", ["x", "qkv_weight"], "y", "Attention_0", domain=MICROSOFT), (4, 12)),
    "biases side by side": (
        node("MultiHeadAttention", ["q", "k", "v", "a.qkv_bias"], "y", "m", domain=MICROSOFT), (12,),
    ),
    "a function": (node("Layer", ["x", "val_1"], "y", "layer", ["layer"], domain="pkg.modules"), (4, 4)),
    "after a reshape": (node("Reshape", ["val_1", "shape"], "y", "reshape", ["layer"]), (4, 4)),
    "a convolution and a norm": (node("Conv", ["x", "onnx::Conv_1"], "y", "/conv/Conv"), (4, 3, 3, 3)),
    "a product and a norm": (node("Gemm", ["x", "MatMulBnFusion_GemmB_a.weight"], "y", "/a/Gemm"), (4, 4)),
    "a cast alone": (node("Slice", ["FusedBack_a.weight", "a"], "y", "s"), (4, 4)),
}  # fmt: skip


@pytest.mark.parametrize(
    "case, producer",
    [(case, producer) for case in NAMELESS for producer in ("pytorch", "onnxruntime.transformers")
     if producer == "pytorch" or case != "rows of a table"],
)  # fmt: skip
def test_a_weight_without_a_name_is_an_error_that_lists_it(tmp_path, case, producer):
    reader, shape = NAMELESS[case]
    name = next(value for value in reader.input if value not in ("norm.weight", *"xqkv"))
    weights = {name: weight(*shape), "norm.weight": weight(4)}
    with pytest.raises(ValueError, match="1 weights have no name") as raised:
        opened(tmp_path, [reader], weights, producer=producer)
    assert f": {name} of shape {shape}, read by " in str(raised.value)
    assert reader.name in str(raised.value)


@pytest.mark.usefixtures("young_process")
def test_a_conversion_that_misses_a_name_fails_and_writes_nothing(tmp_path, capsys):
    graph = onnx.helper.make_graph(
        [node("MatMul", ["x", "val_59"], "y", "node_MatMul_58")], "g", [], [],
        [onnx.numpy_helper.from_array(weight(4, 4), "val_59"), onnx.numpy_helper.from_array(weight(4), "norm.weight")],
    )  # fmt: skip
    onnx.save(onnx.helper.make_model(graph, producer_name="pytorch"), tmp_path / "a.onnx")
    out = tmp_path / "out.safetensors"
    memory = ["--max-memory", "8GiB"]  # of a process that has run other tests
    assert cli.main(["convert", str(tmp_path / "a.onnx"), "-o", str(out), "--policy", "float32", *memory]) == 3
    assert "val_59 of shape (4, 4), read by MatMul node_MatMul_58" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["a.onnx"]


def test_a_constant_of_a_node_is_a_weight_like_another(tmp_path):
    w = weight(4, 4)
    nodes = [
        node("Constant", [], "/dense/Constant_output_0", "c", value=onnx.numpy_helper.from_array(w)),
        node("MatMul", ["x", "/dense/Constant_output_0"], "y", "/dense/MatMul"),
    ]
    equal(opened(tmp_path, nodes, {}), dense__weight=w.T)
    nodes[1] = node("Mul", ["x", "/dense/Constant_output_0"], "y", "/dense/Mul")
    with pytest.raises(ValueError, match=r"/dense/Constant_output_0 of shape \(4, 4\), read by Mul /dense/Mul"):
        opened(tmp_path, nodes, {})


def test_a_constant_may_list_its_numbers(tmp_path):
    nodes = [
        node("Constant", [], "val_1", value_floats=weight(4).tolist()),
        node("LayerNormalization", ["x", "norm.weight", "val_1"], "y", "n", ["norm"]),
    ]
    with pytest.raises(
        ValueError, match=r"1 weights have no name .*val_1 of shape \(4,\), read by LayerNormalization n"
    ):
        opened(tmp_path, nodes, {"norm.weight": weight(4)})


def test_a_matrix_is_beside_the_bias_that_has_another_stem_than_the_module(tmp_path):
    w, b = weight(4, 12), weight(12)
    nodes = [node("MatMul", ["x", "onnx::MatMul_1"], "p", "/attention/MatMul"),
             node("Add", ["attention.in_proj_bias", "p"], "y", "/attention/Add")]  # fmt: skip
    found = opened(tmp_path, nodes, {"onnx::MatMul_1": w, "attention.in_proj_bias": b})
    equal(found, attention__in_proj_weight=w.T, attention__in_proj_bias=b)


def test_weights_that_share_bytes_are_bounded(tmp_path):
    big = weight(1 << 20)
    nodes = [node("LayerNormalization", ["x", "a.weight"], f"y{i}", f"n{i}", [f"norm{i}"]) for i in range(12)]
    with pytest.raises(ValueError, match=r"its weights have 54525952 bytes, and its files 4\d{6}; expected 4 times"):
        opened(tmp_path, nodes, {"a.weight": big})
    assert len(opened(tmp_path, nodes[:3], {"a.weight": big})) == 4


def test_weights_that_share_bytes_of_another_file_are_bounded(tmp_path):
    (tmp_path / "weights").write_bytes(bytes(1 << 20))
    tensors = {}
    for i in range(24):
        tensor = tensors[f"w{i}"] = onnx.TensorProto(
            name=f"w{i}", data_type=1, dims=[1 << 18], data_location=onnx.TensorProto.EXTERNAL
        )
        tensor.external_data.add(key="location", value="weights")
    with pytest.raises(ValueError, match=r"its weights have 25165824 bytes, and its files 1\d{6}; expected 4 times"):
        opened(tmp_path, [], tensors)


def test_weights_in_the_branches_of_a_node_are_found(tmp_path):
    w, table = weight(4, 4), weight(6, 4)
    product = node("MatMul", ["x", "val_1"], "y", "m", ["dense"])
    inner = onnx.helper.make_graph([product], "then", [], [], [onnx.numpy_helper.from_array(w, "val_1")])
    other = onnx.helper.make_graph([node("Gather", ["table.weight", "i"], "y", "g", ["table"])], "else", [], [])
    found = opened(tmp_path, [node("If", ["c"], "z", then_branch=inner, else_branch=other)], {"table.weight": table})
    equal(found, dense__weight=w.T, table__weight=table)


def test_a_weight_that_no_node_reads_is_kept(tmp_path):
    weights = {"val_1": weight(4, 4), "head.weight": weight(4, 4)}
    assert opened(tmp_path, [node("Relu", ["x"], "y")], weights).keys() == weights.keys()


def test_equal_weights_may_hold_nan(tmp_path):
    w = np.full((4, 4), np.nan, np.float32)
    nodes = [node("MatMul", [f"x{i}", f"val_{i}"], f"y{i}", f"n{i}", ["dense"]) for i in range(2)]
    equal(opened(tmp_path, nodes, {"val_0": w, "val_1": w}), dense__weight=w)


def test_two_weights_of_one_name_are_refused(tmp_path):
    nodes = [node("MatMul", [f"x{i}", f"val_{i}"], f"y{i}", f"n{i}", ["dense"]) for i in range(2)]
    weights = {"val_0": weight(4, 4), "val_1": weight(4, 4)}
    with pytest.raises(ValueError, match=r"the initializers val_0 and val_1 would both be dense\.weight"):
        opened(tmp_path, nodes, weights)
    equal(opened(tmp_path, nodes, {"val_0": weights["val_0"], "val_1": weights["val_0"]}),
          dense__weight=weights["val_0"].T)  # fmt: skip
    twice = onnx.helper.make_graph([], "g", [], [], [onnx.numpy_helper.from_array(w, "w") for w in weights.values()])
    path = tmp_path / "b.onnx"
    path.write_bytes(onnx.helper.make_model(twice).SerializeToString())
    with pytest.raises(ValueError, match="damaged: two initializers are called w"):
        open_onnx(path)


CODES = {
    "DequantizeLinear": ([np.int8, (4,)], ""),
    "MatMulBnb4": ([np.uint8, (40,)], MICROSOFT),
    "MatMulInteger": ([np.int16, (4, 4)], ""),
    "MatMul": ([np.int8, (4, 4)], ""),
}


@pytest.mark.parametrize("kind", CODES)
def test_codes_are_refused_by_name(tmp_path, kind):
    (dtype, shape), domain = CODES[kind]
    codes = np.ones(shape, dtype)
    message = f"initializer w_quantized of shape {shape} has codes.*; expected floats: take the export that is not"
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        opened(tmp_path, [node(kind, ["w_quantized", "s"], "y", "n", domain=domain)], {"w_quantized": codes})


def test_float8_complex_and_sparse_values_are_refused_by_name(tmp_path):
    types = onnx.TensorProto
    float8 = onnx.helper.make_tensor("w8", types.FLOAT8E4M3FN, (2, 2), b"\1\2\3\4", raw=True)
    with pytest.raises(ValueError, match=r"initializer w8 of shape \(2, 2\) has codes of float8_e4m3fn"):
        opened(tmp_path, [], {"w8": float8})
    with pytest.raises(ValueError, match=r"initializer z of shape \(2,\) has complex numbers; expected floats"):
        opened(tmp_path, [], {"z": np.ones(2, np.complex64)})
    values, indices = onnx.numpy_helper.from_array(weight(2), "s"), onnx.numpy_helper.from_array(np.arange(2))
    sparse = onnx.helper.make_sparse_tensor(values, indices, [8])
    graph = onnx.helper.make_graph([], "g", [], [], sparse_initializer=[sparse])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "s.onnx")
    with pytest.raises(ValueError, match="initializer s is sparse; expected all of its values"):
        open_onnx(tmp_path / "s.onnx")


def test_many_weights_without_a_name_are_counted(tmp_path):
    nodes = [node("MatMul", [f"x{i}", f"val_{i}"], f"y{i}", f"node_{i}") for i in range(30)]
    with pytest.raises(ValueError, match=r"30 weights have no name .*val_19 .*; 10 more$") as raised:
        opened(tmp_path, nodes, {f"val_{i}": weight(2, 2) for i in range(30)})
    assert len(re.findall("of shape", str(raised.value))) == 20
