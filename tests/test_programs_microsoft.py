"""Operators of Microsoft, and quantized ones, beside onnxruntime or the reference of the onnx package."""

import numpy as np
import pytest

import mp_core as mp
from mp_core.files.onnx.programs import read_program
from mp_core.programs import ProgramModel

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
ort = pytest.importorskip("onnxruntime")
TYPES = {"f": 1, "B": 2, "b": 3, "i": 6, "l": 7, "?": 9, "e": 10}


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def codes(*shape, dtype=np.uint8, low=0, high=256):
    return np.random.default_rng(9).integers(low, high, shape).astype(dtype)


X, MASK = drawn(2, 5, 8), np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)
ONE = np.float32(0.02)
OPERATORS = {
    # name -> (operator, inputs, constants; None: absent, options)
    "Attention": ("Attention", [X], [drawn(8, 24), drawn(24), MASK], {"num_heads": 2}),
    "Attention, causal": ("Attention", [X], [drawn(8, 24), drawn(24)], {"num_heads": 2, "unidirectional": 1}),
    "MultiHeadAttention": (
        "MultiHeadAttention", [X, drawn(2, 7, 8, seed=1), drawn(2, 7, 8, seed=2)], [drawn(24)], {"num_heads": 2},
    ),
    "MultiHeadAttention, a mask": (
        "MultiHeadAttention", [X, drawn(2, 5, 8, seed=1), drawn(2, 5, 8, seed=2)], [None, MASK], {"num_heads": 2},
    ),
    "MultiHeadAttention, a bias of scores": (
        "MultiHeadAttention", [X, drawn(2, 5, 8, seed=1), drawn(2, 5, 8, seed=2)],
        [drawn(24), None, drawn(1, 2, 5, 5)], {"num_heads": 2, "scale": 0.3},
    ),
    "RotaryEmbedding": (
        "RotaryEmbedding", [drawn(2, 5, 16)], [np.arange(10).reshape(2, 5), drawn(20, 4), drawn(20, 4, seed=3)],
        {"num_heads": 2},
    ),
    "RotaryEmbedding, interleaved": (
        "RotaryEmbedding", [drawn(2, 2, 5, 8)], [np.array([3]), drawn(20, 4), drawn(20, 4, seed=3)], {"interleaved": 1},
    ),
    "SkipLayerNormalization": ("SkipLayerNormalization", [X, drawn(2, 5, 8, seed=1)],
                               [drawn(8), drawn(8, seed=3), drawn(8, seed=4)], {"epsilon": 1e-5}),
    "SkipSimplifiedLayerNormalization": (
        "SkipSimplifiedLayerNormalization", [X, drawn(2, 5, 8, seed=1)], [drawn(8)], {},
    ),
    "FastGelu": ("FastGelu", [X], [drawn(8)], {}),
    "BiasGelu": ("BiasGelu", [X], [drawn(8)], {}),
    "Gelu": ("Gelu", [X], [], {}),
    "QuickGelu": ("QuickGelu", [X], [], {"alpha": 1.7}),
    "FusedMatMul": ("FusedMatMul", [X, drawn(2, 7, 8)], [], {"transB": 1, "alpha": 0.5}),
    "FusedMatMul, a constant": ("FusedMatMul", [X], [drawn(8, 7)], {}),
    "FusedConv": ("FusedConv", [drawn(2, 3, 7, 7)], [drawn(4, 3, 3, 3), drawn(4)],
                  {"activation": "Relu", "kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "FusedGemm": ("FusedGemm", [drawn(5, 8)], [drawn(7, 8), drawn(7)],
                  {"transB": 1, "alpha": 0.5, "beta": 2.0, "activation": "Relu"}),
    "MatMulNBits": (
        "MatMulNBits", [drawn(3, 64)], [codes(6, 2, 16), np.abs(drawn(12))],
        {"K": 64, "N": 6, "bits": 4, "block_size": 32},
    ),
    "MatMulNBits, zero points": (
        "MatMulNBits", [drawn(3, 64)], [codes(6, 2, 16), np.abs(drawn(12)), codes(6)],
        {"K": 64, "N": 6, "bits": 4, "block_size": 32},
    ),
    "DynamicQuantizeMatMul": (
        "DynamicQuantizeMatMul", [X], [codes(8, 6, dtype=np.int8, low=-60, high=60), ONE], {},
    ),
    "QLinearAdd": (
        "QLinearAdd", [codes(3, 8)], [ONE, np.uint8(128), codes(8), ONE * 2, np.uint8(7), ONE * 3, np.uint8(100)], {},
    ),
    "QLinearMul": (
        "QLinearMul", [codes(3, 8)], [ONE, np.uint8(128), codes(8), ONE * 2, np.uint8(7), ONE * 3, np.uint8(100)], {},
    ),
    "QGemm": (
        "QGemm", [codes(3, 8, high=120)],
        [ONE, np.uint8(60), codes(8, 5, dtype=np.int8, low=-60, high=60), ONE, np.int8(3),
         np.arange(5, dtype=np.int32) * 100, ONE * 20, np.uint8(100)], {},
    ),
    "QAttention": (
        "QAttention", [codes(2, 5, 8, high=120)],
        [codes(8, 24, dtype=np.int8, low=-60, high=60), drawn(24), ONE, ONE, None, np.uint8(60), np.int8(0)],
        {"num_heads": 2},
    ),
}  # fmt: skip
STANDARD = {"QLinearMatMul", "QLinearConv", "MatMulInteger", "ConvInteger", "DynamicQuantizeLinear"}


def model_of(operator, inputs, constants, options, outputs=1, version=21):
    """Return the ONNX model of one node."""
    names = [f"x{i}" for i in range(len(inputs))]
    arrays = [onnx.numpy_helper.from_array(np.asarray(x), f"c{i}") for i, x in enumerate(constants) if x is not None]
    given = [
        onnx.helper.make_tensor_value_info(n, TYPES[x.dtype.char], x.shape) for n, x in zip(names, inputs, strict=True)
    ]
    arguments = [*names, *(f"c{i}" if x is not None else "" for i, x in enumerate(constants))]
    results = [f"y{i}" for i in range(outputs)]
    domain = "" if operator in STANDARD else "com.microsoft"
    node = onnx.helper.make_node(operator, arguments, results, domain=domain, **options)
    empty = [onnx.helper.make_empty_tensor_value_info(name) for name in results]
    graph = onnx.helper.make_graph([node], "g", given, empty, arrays)
    versions = [onnx.helper.make_opsetid("", version), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=versions, ir_version=10), dict(zip(names, inputs, strict=True))


def ours(model, path, policy=None):
    onnx.save(model, path)
    return ProgramModel(read_program(path), policy)


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_of_microsoft_has_the_results_of_onnxruntime(name, tmp_path):
    model, inputs = model_of(*OPERATORS[name])
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, inputs)[0]
    y = ours(model, tmp_path / "m.onnx")(**inputs)
    assert y.dtype == wanted.dtype
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_packed_four_bits_stay_four_bits(tmp_path):
    model, inputs = model_of(*OPERATORS["MatMulNBits, zero points"])
    found = ours(model, tmp_path / "m.onnx")
    (layer,) = found.layers
    assert layer.dtype_policy.name == "int4/32_from_float32"
    plan = mp.compile(found, *inputs.values())
    np.testing.assert_array_equal(plan(*inputs.values()), found(**inputs))


# ---- quantized operators of ONNX

W8 = codes(8, 6, dtype=np.int8, low=-128, high=128)
PRODUCTS = {
    "QLinearMatMul": [codes(3, 8)], "MatMulInteger": [codes(3, 8)], "QLinearConv": [codes(2, 3, 7, 7)],
    "ConvInteger": [codes(2, 3, 7, 7)],
}  # fmt: skip
CONSTANTS = {
    "QLinearMatMul": [ONE, np.uint8(128), W8, ONE, np.int8(0), np.float32(0.3), np.uint8(100)],
    "MatMulInteger": [W8, np.uint8(128), np.int8(1)],
    "QLinearConv": [ONE, np.uint8(128), codes(4, 3, 3, 3, dtype=np.int8, low=-128, high=128),
                    np.float32([0.1, 0.2, 0.05, 0.3]), np.zeros(4, np.int8), np.float32(0.9), np.uint8(100),
                    np.arange(4, dtype=np.int32) * 1000],
    "ConvInteger": [codes(4, 3, 3, 3, dtype=np.int8, low=-128, high=128), np.uint8(128)],
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_codes_is_that_of_exact_integers_where_sums_of_pairs_saturate(name, tmp_path):
    model, inputs = model_of(name, PRODUCTS[name], CONSTANTS[name], {})
    wanted = reference.ReferenceEvaluator(model).run(None, inputs)[0]
    y = ours(model, tmp_path / "m.onnx")(**inputs)
    assert y.dtype == wanted.dtype
    np.testing.assert_array_equal(y, wanted)


def test_dynamic_quantization_has_the_codes_of_the_reference(tmp_path):
    model, inputs = model_of("DynamicQuantizeLinear", [X], [], {}, outputs=3)
    found = list(ours(model, tmp_path / "m.onnx")(**inputs).values())
    for y, wanted in zip(found, reference.ReferenceEvaluator(model).run(None, inputs), strict=True):
        np.testing.assert_array_equal(y, wanted)
