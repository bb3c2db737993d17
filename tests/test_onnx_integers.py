"""Quantized products of ONNX files: sums of NumPy's int64 where products of 8-bit codes saturate (onnxruntime#5849)."""

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core.files.program import Input, Node, Program, Value
from mp_core.programs import ProgramModel

RNG = np.random.default_rng(5849)
W = RNG.choice([-128, 127], (64, 5)).astype(np.int8)  # pairs of products exceed int16 by far
KERNEL = RNG.choice([-128, 127], (6, 32, 3, 3)).astype(np.int8)
GROUPED = RNG.choice([-128, 127], (6, 16, 3, 3)).astype(np.int8)
ROWS, IMAGES = np.abs(RNG.standard_normal((7, 64))) + 5, np.abs(RNG.standard_normal((2, 32, 5, 6))) + 5
SW, ZW = np.float32(0.5), np.int8(3)
CHANNELS = np.float32([1, 2, 0.5, 4, 0.25])
BIAS = np.float32([1, 2, 3, 4, 5])


def model_of(nodes, x, constants, output="y"):
    shape, dtype = (None, *x.shape[1:]), x.dtype.name
    program = Program((Input("x", dtype, shape),), (output,), nodes, {k: np.asarray(v) for k, v in constants.items()})
    return ProgramModel(program)


def node(operator, *arguments, out="y", version=21, **options):
    given = tuple(None if x is None else Value(x) for x in arguments)
    return Node(operator, given, (out,) if isinstance(out, str) else out, options, out if isinstance(out, str) else "n",
                version)  # fmt: skip


def dynamic(x):
    """Codes, scale and zero point by ONNX's formulas, in float32."""
    low, high = np.float32(min(x.min(), 0)), np.float32(max(x.max(), 0))
    scale = np.float32((high - low) / np.float32(255))
    zero = np.float32(np.clip(np.rint((0 - low) / scale), 0, 255))
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.int64), scale, int(zero)


def convolved(codes, kernel, pads, group=1):
    """The sums of integers of a convolution with stride 1."""
    x = np.pad(codes, [(0, 0), (0, 0), (pads, pads), (pads, pads)])
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    n = len(kernel) // group
    parts = [
        np.einsum("bchwij,fcij->bfhw", part, kernel[g * n : (g + 1) * n])
        for g, part in enumerate(np.split(windows, group, axis=1))
    ]
    return np.concatenate(parts, axis=1)


RANGE = [node("DynamicQuantizeLinear", "x", out=("q", "s", "z"))]
PRODUCTS = {
    "MatMulInteger": (
        [*RANGE, node("MatMulInteger", "q", "w", "z", "zw", out="i"), node("Cast", "i", out="f", to=1),
         node("Mul", "s", "sw", out="t"), node("Mul", "f", "t", out="p"), node("Add", "b", "p")],
        {"w": W, "zw": ZW, "sw": SW, "b": BIAS},
    ),
    "MatMulInteger, scales for each column": (
        [*RANGE, node("MatMulInteger", "q", "w", "z", "zw", out="i"), node("Cast", "i", out="f", to=1),
         node("Mul", "s", "sw", out="t"), node("Mul", "f", "t", out="p"), node("Add", "p", "b")],
        {"w": W, "zw": np.full(5, ZW), "sw": CHANNELS, "b": BIAS},
    ),
    "DynamicQuantizeMatMul": (
        [node("com.microsoft.DynamicQuantizeMatMul", "x", "w", "sw", "zw", "b", version=1)],
        {"w": W, "zw": ZW, "sw": SW, "b": BIAS},
    ),
    "MatMulIntegerToFloat": (
        [*RANGE, node("com.microsoft.MatMulIntegerToFloat", "q", "w", "s", "sw", "z", "zw", "b", version=1)],
        {"w": W, "zw": ZW, "sw": SW, "b": BIAS},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_dynamic_products_are_those_of_int64(name, isa):
    nodes, constants = PRODUCTS[name]
    x = ROWS.astype(np.float32)
    model = model_of(nodes, x, constants)
    codes, scale, zero = dynamic(x)
    sums = (codes - zero) @ (W.astype(np.int64) - ZW)
    assert np.abs(sums).max() > 1 << 15
    wanted = sums.astype(np.float32) * scale * constants["sw"] + BIAS
    np.testing.assert_allclose(model(x), wanted, rtol=3e-7, atol=0)
    assert not any(step.operator in ("mp_core.dense", "MatMul") for step in model._steps)
    assert_same_bits(mp.compile(model, x)(x), model.call(x=x))
    assert_same_bits(mp.compile(model, x)(x / 3), model.call(x=x / 3))


@pytest.mark.parametrize(("kernel", "group"), [(KERNEL, 1), (GROUPED, 2)])
@pytest.mark.parametrize("pads", [0, 1])
def test_dynamic_convolutions_are_those_of_int64(kernel, group, pads, isa, tmp_path):
    x = IMAGES.astype(np.float32) - np.float32(5.5)
    nodes = [*RANGE, node("ConvInteger", "q", "w", "z", "zw", out="i", pads=(pads,) * 4, group=group),
             node("Cast", "i", out="f", to=1), node("Mul", "s", "sw", out="t"), node("Mul", "f", "t", out="p"),
             node("Add", "p", "b")]  # fmt: skip
    bias = np.arange(6, dtype=np.float32)
    model = model_of(nodes, x, {"w": kernel, "zw": ZW, "sw": SW, "b": bias.reshape(1, 6, 1, 1)})
    codes, scale, zero = dynamic(x)
    sums = convolved(codes - zero, kernel.astype(np.int64) - ZW, pads, group)
    wanted = sums.astype(np.float32) * scale * SW + bias.reshape(1, 6, 1, 1)
    np.testing.assert_allclose(model(x), wanted, rtol=3e-7, atol=1e-3)
    assert [step.operator for step in model._steps][-1] == "mp_core.dynamic_conv"
    assert_same_bits(mp.compile(model, x)(x), model.call(x=x))
    model.save(tmp_path / "folder")
    assert_same_bits(ProgramModel.from_folder(tmp_path / "folder")(x), model(x))


def test_codes_that_the_graph_gets_multiply_as_integers(isa):
    x = RNG.integers(0, 256, (7, 64)).astype(np.uint8)
    nodes = [node("QLinearMatMul", "x", "sx", "zx", "w", "sw", "zw", "sy", "zy")]
    constants = {"sx": np.float32(0.1), "zx": np.uint8(7), "w": W, "sw": SW, "zw": ZW, "sy": np.float32(50),
                 "zy": np.uint8(128)}  # fmt: skip
    model = model_of(nodes, x, constants)
    (layer,) = model.parts.values()
    assert layer.dtype_policy.name == "int8/fixed/tensor_from_float32"
    sums = (x.astype(np.int64) - 7) @ (W.astype(np.int64) - ZW)
    wanted = np.clip(np.rint(sums * (0.1 * 0.5 / 50)) + 128, 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(model(x), wanted)


def test_quantized_convolutions_of_groups_multiply_as_integers(isa):
    x = RNG.integers(0, 256, (2, 32, 5, 6)).astype(np.uint8)
    nodes = [node("QLinearConv", "x", "sx", "zx", "w", "sw", "zw", "sy", "zy", pads=(1,) * 4, group=2)]
    constants = {"sx": np.float32(0.1), "zx": np.uint8(7), "w": GROUPED, "sw": np.full(6, SW), "zw": np.full(6, ZW),
                 "sy": np.float32(100), "zy": np.uint8(128)}  # fmt: skip
    model = model_of(nodes, x, constants)
    (layer,) = model.parts.values()
    assert layer.form.inputs is not None
    sums = convolved(x.astype(np.int64) - 7, GROUPED.astype(np.int64) - ZW, 1, 2)
    wanted = np.clip(np.rint(sums * (0.1 * 0.5 / 100)) + 128, 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(model(x), wanted)


@pytest.mark.parametrize("given", ["floats", "codes"])
def test_two_computed_matrices_of_codes_multiply_as_integers(given, isa):
    """As quantized attention does: queries times keys."""
    rng = np.random.default_rng(1)
    x = rng.integers(-128, 128, (2, 3, 7, 160)).astype(np.int8)
    y = rng.integers(-128, 128, (2, 3, 160, 5)).astype(np.int8)
    constants = {"sx": np.float32(0.03), "zx": np.int8(4), "sy": np.float32(0.07), "zy": np.int8(-90)}
    nodes = [
        node("DequantizeLinear", "qx", "sx", "zx", out="a"), node("DequantizeLinear", "qy", "sy", "zy", out="b"),
        node("MatMul", "a", "b", out="p"), node("Identity", "p"),
    ]  # fmt: skip
    inputs = {"qx": x, "qy": y}
    wanted = (x.astype(np.int64) - 4) @ (y.astype(np.int64) + 90)
    if given == "floats":
        nodes = [node("QuantizeLinear", f"f{each}", f"s{each}", f"z{each}", out=f"q{each}") for each in "xy"] + nodes
        inputs = {f"f{each}": (np.float32(q) - constants[f"z{each}"]) * constants[f"s{each}"]
                  for each, q in (("x", x), ("y", y))}  # fmt: skip
    program = Program(tuple(Input(name, q.dtype.name, q.shape) for name, q in inputs.items()), ("y",), nodes,
                      {k: np.asarray(v) for k, v in constants.items()})  # fmt: skip
    model = ProgramModel(program)
    assert "MatMulInteger" in [step.operator for step in model._steps]
    found = model(**inputs)
    assert_same_bits(found, wanted.astype(np.float32) * np.float32(np.float32(0.03) * np.float32(0.07)))
    assert_same_bits(mp.compile(model, **inputs)(**inputs), found)


@pytest.mark.parametrize("scales", [(5, 1), (1, 5), (1,)])
def test_scales_multiply_a_dynamic_product_as_they_broadcast(scales):
    """Only scales of columns are those of the matrix."""
    x, w = ROWS[:5, :5].astype(np.float32), np.ascontiguousarray(W[:5, :5])
    scale = np.arange(1, np.prod(scales) + 1, dtype=np.float32).reshape(scales)
    nodes = [*RANGE, node("MatMulInteger", "q", "w", "z", "zw", out="i"), node("Cast", "i", out="f", to=1),
             node("Mul", "s", "sw", out="t"), node("Mul", "f", "t")]  # fmt: skip
    codes, step, zero = dynamic(x)
    wanted = ((codes - zero) @ (w.astype(np.int64) - 3)).astype(np.float32) * (scale * step)
    found = model_of(nodes, x, {"w": w, "zw": ZW, "sw": scale})(x)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, 1e-6)


@pytest.mark.parametrize("scales", [(6, 1, 1), (4, 1), (4,)])
def test_scales_multiply_a_dynamic_convolution_as_they_broadcast(scales):
    """Only scales of filters are those of the kernel; the results have the shape (1, 6, 4, 4)."""
    x = IMAGES[:1, :, :4, :4].astype(np.float32)
    scale = np.arange(1, np.prod(scales) + 1, dtype=np.float32).reshape(scales)
    nodes = [*RANGE, node("ConvInteger", "q", "w", "z", "zw", out="i", pads=(1,) * 4),
             node("Cast", "i", out="f", to=1), node("Mul", "s", "sw", out="t"), node("Mul", "f", "t")]  # fmt: skip
    codes, step, zero = dynamic(x)
    sums = convolved(codes - zero, KERNEL.astype(np.int64) - 3, 1)
    found = model_of(nodes, x, {"w": KERNEL, "zw": ZW, "sw": scale})(x)
    np.testing.assert_allclose(found, sums.astype(np.float32) * (scale * step), 1e-6)


def test_one_scale_and_zero_points_of_columns_are_a_dynamic_product():
    x = ROWS.astype(np.float32)
    zeros = np.int8([1, -2, 3, 0, 5])
    nodes, constants = PRODUCTS["MatMulInteger"]
    codes, step, zero = dynamic(x)
    sums = (codes - zero) @ (W.astype(np.int64) - zeros)
    found = model_of(nodes, x, constants | {"zw": zeros})(x)
    np.testing.assert_allclose(found, sums.astype(np.float32) * (step * SW) + BIAS, 1e-6)


def test_matrices_of_other_codes_multiply_as_floats():
    x = RNG.standard_normal((4, 4)).astype(np.float32)
    nodes = [
        node("QuantizeLinear", "x", "s", "z", out="q"), node("DequantizeLinear", "q", "s", "z", out="a"),
        node("MatMul", "a", "a"),
    ]  # fmt: skip
    model = model_of(nodes, x, {"s": np.float32(0.5), "z": np.zeros((), mp.dtypes.parse("float8_e4m3fn"))})
    assert np.isfinite(model(x)).all()
