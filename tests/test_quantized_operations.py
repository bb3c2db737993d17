"""Quantization with arrays of scales and zero points: equal to ONNX's reference and to exact integers."""

import ml_dtypes
import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import ops


def of_onnx(kind, *inputs, outputs=1, **attributes):
    """The results of ONNX's reference."""
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    names = [f"i{number}" if x is not None else "" for number, x in enumerate(inputs)]
    results = [f"o{number}" for number in range(outputs)]
    node = onnx.helper.make_node(kind, names, results, **attributes)
    infos = [onnx.helper.make_tensor_value_info(name, 1, None) for name in (*filter(None, names), *results)]
    graph = onnx.helper.make_graph([node], "g", infos[:-outputs], infos[-outputs:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    return ReferenceEvaluator(model).run(None, {n: x for n, x in zip(names, inputs, strict=True) if n})


def zeros_of(rng, shape, dtype):
    low, high = {"int8": (-128, 128), "uint8": (0, 256), "int16": (-300, 300), "uint16": (0, 600)}[dtype]
    return rng.integers(low, high, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize(
    ("shape", "scales", "options"),
    [
        ((3, 8), (), {}),
        ((3, 8), (8,), {"axis": 1}),
        ((3, 8, 2), (3,), {"axis": 0}),
        ((3, 8, 2), (8,), {"axis": -2}),
        ((3, 8), (3, 2), {"axis": 1, "block_size": 4}),
        ((6, 4), (2, 4), {"axis": 0, "block_size": 3}),
    ],
)
def test_codes_and_numbers_are_those_of_onnx(dtype, shape, scales, options, rng):
    x = (40 * rng.standard_normal(shape)).astype(np.float32)
    x.flat[0], x.flat[1] = np.inf, -1e30
    scale, zero = rng.uniform(0.1, 1.0, scales).astype(np.float32), zeros_of(rng, scales, dtype)
    with np.errstate(invalid="ignore"):
        (expected,) = of_onnx("QuantizeLinear", np.clip(x, -1e6, 1e6), scale, zero, **options)
    found = ops.quantize_linear(x, scale, zero, **options)
    assert_same_bits(found, expected)
    (numbers,) = of_onnx("DequantizeLinear", found, scale, zero, **options)
    assert_same_bits(ops.dequantize_linear(found, scale, zero, **options), numbers)
    plan = mp.compile(lambda q: ops.dequantize_linear(q, scale, zero, **options), np.zeros_like(found))
    assert_same_bits(plan(found), numbers)


def test_codes_round_to_even_and_have_other_types():
    x = np.float32([-2.5, -1.5, 0.5, 1.5, 7.6, -9, np.nan])
    assert_same_bits(ops.quantize_linear(x[:-1], 1.0, dtype="int4"), np.int8([-2, -2, 0, 2, 7, -8]))
    assert_same_bits(ops.quantize_linear(x, 1.0, np.uint8(3)), np.uint8([1, 1, 3, 5, 11, 0, 3]))
    assert_same_bits(ops.quantize_linear(x[:-1], 1.0), np.uint8([0, 0, 0, 2, 8, 0]))
    large = np.float32([1e6, -1e6, 3])
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        assert_same_bits(ops.quantize_linear(large, 0.5, dtype=dtype), mp.cast(large / 0.5, dtype, saturate=True))
        whole = ops.quantize_linear(large, 0.5, dtype=dtype, saturate=False)
        assert_same_bits(whole, mp.cast(large / 0.5, dtype))
        assert_same_bits(ops.dequantize_linear(whole[2:], np.float16(0.5)), np.float16([3]))
    assert ops.dequantize_linear(np.int32([3]), ml_dtypes.bfloat16(0.5)).dtype.name == "bfloat16"
    assert ops.dequantize_linear(np.int8([3]), 0.5).dtype == np.float32


@pytest.mark.parametrize("case", [[0, 2, -3, -2.5, 1.34, 0.5], [-1, -2.1, -1.3], [1, 2.1, 1.3, 2.5], [[0.3, 0.0]]])
def test_dynamic_quantization_is_that_of_onnx(case):
    x = np.float32(case)
    for found, expected in zip(ops.dynamic_quantize_linear(x), of_onnx("DynamicQuantizeLinear", x, outputs=3),
                               strict=True):  # fmt: skip
        assert_same_bits(np.asarray(found), np.asarray(expected))
    codes, scale, zero = ops.dynamic_quantize_linear(np.zeros(3, np.float32))
    assert not codes.any() and scale == 1 and zero == 0


@pytest.mark.parametrize("types", [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8"), ("int8", "uint8")])
@pytest.mark.parametrize("zeros", [((), ()), (None, (5,)), ((4,), None), ((4,), (5,)), ((1,), (1,)), (None, None)])
def test_products_of_codes_are_exact(types, zeros, rng, isa):
    a, b = (zeros_of(rng, shape, dtype) for shape, dtype in zip(((2, 4, 300), (300, 5)), types, strict=True))
    given = [None if shape is None else zeros_of(rng, shape, dtype) for shape, dtype in zip(zeros, types, strict=True)]
    left, right = (0 if zero is None else zero.astype(np.int64) for zero in given)
    left = left if given[0] is None else left.reshape(-1, 1)
    expected = (a.astype(np.int64) - left) @ (b.astype(np.int64) - right)
    assert_same_bits(ops.matmul_integer(a, b, *given), expected.astype(np.int32))


def test_arguments_that_do_not_fit_are_refused():
    x = np.zeros((3, 8), np.float32)
    with pytest.raises(ValueError, match=r"`scale` must be one number, or have shape \(8,\)"):
        ops.quantize_linear(x, np.ones(3, np.float32))
    with pytest.raises(ValueError, match=r"`zero_point` must be one number"):
        ops.dequantize_linear(np.zeros((3, 8), np.int8), 1.0, np.zeros(3, np.int8))
    with pytest.raises(ValueError, match=r"`scale` must have shape \(3, 2\) for blocks of 4"):
        ops.quantize_linear(x, np.ones((3, 3), np.float32), block_size=4)
    with pytest.raises(TypeError, match="`dtype` must be one of"):
        ops.quantize_linear(x, 1.0, dtype="int32")
    with pytest.raises(TypeError, match="`a` must be int8 or uint8"):
        ops.matmul_integer(x, x.T)
