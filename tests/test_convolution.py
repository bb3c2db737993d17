"""Convolutions: sums of NumPy in float64, gradients of torch, and the bits of matmul of all windows, written out."""

import itertools

import numpy as np
import pytest
from gradients import check_rule
from oracles import assert_same_bits

import mp_core as mp
from mp_core import layers, ops
from mp_core.core import cpu

FORMATS = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}  # relative to the sum of magnitudes

# lengths, channels, groups, filters, size, strides, dilation, padding
CASES = {
    "one axis": ((9,), 5, 1, 7, (3,), (1,), (1,), [(0, 0)]),
    "one axis, strided": ((23,), 1, 1, 66, (10,), (5,), (1,), [(0, 0)]),
    "one axis, dilated and causal": ((12,), 16, 1, 3, (3,), (1,), (2,), [(4, 0)]),
    "pointwise": ((4, 5), 17, 1, 70, (1, 1), (1, 1), (1, 1), [(0, 0), (0, 0)]),
    "pointwise, strided": ((5, 6), 8, 1, 4, (1, 1), (2, 2), (1, 1), [(0, 0), (0, 0)]),
    "two axes": ((7, 6), 16, 1, 65, (3, 3), (1, 1), (1, 1), [(1, 1), (1, 1)]),
    "two axes, all options": ((9, 8), 6, 2, 8, (2, 3), (2, 1), (1, 2), [(0, 2), (3, 1)]),
    "two axes, more padding than inputs": ((2, 1), 3, 3, 6, (3, 4), (1, 3), (1, 1), [(5, 4), (0, 6)]),
    "many groups": ((5, 5), 24, 12, 24, (3, 3), (1, 1), (1, 1), [(1, 1), (1, 1)]),
    "three axes": ((4, 5, 3), 4, 2, 6, (2, 1, 3), (2, 1, 1), (1, 3, 1), [(1, 0), (0, 0), (1, 2)]),
    "a window as large as the inputs": ((6, 5), 3, 1, 4, (6, 5), (7, 9), (1, 1), [(0, 0), (0, 0)]),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def drawn(rng, case, batch=3):
    lengths, channels, groups, filters, size, *_ = case
    return rng.standard_normal((batch, *lengths, channels)), rng.standard_normal((*size, channels // groups, filters))


def options(case):
    *_, strides, dilation, padding = case
    return {"strides": strides, "dilation_rate": dilation, "padding": padding}


def written_out(x, case):
    """All windows, shape (batch, windows ..., places, channels)."""
    *_, size, strides, dilation, padding = case
    x = np.pad(x, [(0, 0), *padding, (0, 0)])
    spans = [(n - 1) * by + 1 for n, by in zip(size, dilation, strict=True)]
    counts = [(n - span) // by + 1 for n, span, by in zip(x.shape[1:-1], spans, strides, strict=True)]
    parts = [
        x[:, *(slice(at * by, at * by + (n - 1) * step + 1, step)
               for at, by, n, step in zip(place, dilation, counts, strides, strict=True))]
        for place in itertools.product(*map(range, size))
    ]  # fmt: skip
    return np.stack(parts, axis=-2)


def by_matmul(x, kernel, case, multiply=np.matmul):
    """Products of the windows of each group."""
    groups, places, width = case[2], written_out(x, case), kernel.shape[-1] // case[2]
    rows = np.split(places, groups, axis=-1)
    parts = [
        multiply(np.ascontiguousarray(row).reshape(*row.shape[:-2], -1), kernel[..., g * width : (g + 1) * width]
                 .reshape(-1, width))
        for g, row in enumerate(rows)
    ]  # fmt: skip
    return np.concatenate(parts, axis=-1)


def by_channel(x, kernel, case):
    places = written_out(x, case)
    return (places[..., np.newaxis] * kernel.reshape(*places.shape[-2:], -1)).sum(-3).reshape(*places.shape[:-2], -1)


@pytest.mark.parametrize("dtype", FORMATS)
def test_convolutions_are_sums_of_numpy_and_have_the_bits_of_matmul(case, dtype, isa, rng, reproducible):
    x, kernel = (mp.cast(each, dtype) for each in drawn(rng, case))
    bias = rng.standard_normal(kernel.shape[-1]).astype(np.float32)
    found = ops.conv(x, kernel, **options(case), bias=bias, activation="relu")
    wide, weights = x.astype(np.float64), kernel.astype(np.float64)
    exact = np.maximum(by_matmul(wide, weights, case) + bias, 0.0)
    scale = by_matmul(np.abs(wide), np.abs(weights), case) + np.abs(bias)
    assert (np.abs(found.astype(np.float64) - exact) <= FORMATS[dtype] * scale).all()
    products = by_matmul(x, kernel, case, lambda a, b: ops.matmul(a, b, out_dtype="float32"))
    assert_same_bits(found, mp.cast(np.maximum(products + bias, 0.0), dtype))
    packed = kernel.reshape(-1, case[2], kernel.shape[-1] // case[2]).swapaxes(0, 1)
    again = ops.conv(x, mp.pack(packed if case[2] > 1 else packed[0]), **options(case), bias=bias, activation="relu",
                     kernel_size=case[4])  # fmt: skip
    assert_same_bits(again, found)


@pytest.mark.parametrize("dtype", FORMATS)
def test_depthwise_convolutions_are_sums_of_numpy(case, dtype, isa, rng):
    x, _ = drawn(rng, case)
    kernel = rng.standard_normal((*case[4], x.shape[-1], 2))
    x, kernel = mp.cast(x, dtype), mp.cast(kernel, dtype)
    bias = rng.standard_normal(2 * x.shape[-1]).astype(np.float32)
    found = ops.depthwise_conv(x, kernel, **options(case), bias=bias, activation="relu")
    wide, weights = x.astype(np.float64), kernel.astype(np.float64)
    exact = np.maximum(by_channel(wide, weights, case) + bias, 0.0)
    scale = by_channel(np.abs(wide), np.abs(weights), case) + np.abs(bias)
    assert (np.abs(found.astype(np.float64) - exact) <= FORMATS[dtype] * scale).all()


def test_depthwise_sums_are_multiply_adds_in_the_order_of_places(case, isa, rng):
    """As in a product of float32, so a group of one channel gives the same bits."""
    x, _ = (each.astype(np.float32) for each in drawn(rng, case))
    kernel = rng.standard_normal((*case[4], x.shape[-1], 1)).astype(np.float32)
    grouped = ops.conv(x, kernel.swapaxes(-1, -2), **options(case))
    assert_same_bits(ops.depthwise_conv(x, kernel, **options(case)), grouped)


@pytest.mark.parametrize("dtype", [*FORMATS, "float64"])
def test_bits_are_those_of_every_thread_count_batch_and_layout(dtype, rng, reproducible):
    x = mp.cast(rng.standard_normal((5, 40, 30, 12)), dtype)
    kernel = mp.cast(rng.standard_normal((3, 3, 6, 10)), dtype)
    own = mp.cast(rng.standard_normal((3, 3, 12, 1)), dtype)
    view = np.moveaxis(x, -1, 1)
    for function, weights in ((ops.conv, kernel), (ops.depthwise_conv, own)):
        with mp.config.num_threads(1):
            expected = function(x, weights, strides=(1, 2), padding="same")
        for threads in (2, 3):
            with mp.config.num_threads(threads):
                assert_same_bits(function(x, weights, strides=(1, 2), padding="same"), expected)
        for one in range(5):
            assert_same_bits(
                function(x[one : one + 1], weights, strides=(1, 2), padding="same"), expected[one : one + 1]
            )
        for given in (view, view.copy()):
            found = function(given, weights, strides=(1, 2), padding="same", data_format="channels_first")
            assert_same_bits(np.moveaxis(found, 1, -1), expected)
            assert np.moveaxis(found, 1, -1).flags.c_contiguous
        assert_same_bits(function(x[:, ::-1, ::2], weights), function(x[:, ::-1, ::2].copy(), weights))


def test_bits_are_those_of_every_instruction_set(rng, reproducible):
    x, kernel = rng.standard_normal((2, 9, 9, 35)).astype(np.float32), rng.standard_normal((3, 3, 35, 1))
    wide = rng.standard_normal((3, 3, 35, 33)).astype(np.float32)
    before, results = cpu.isa(), []
    for name in cpu.available_isas():
        cpu.set_isa(name)
        for dtype in FORMATS:
            results.append(ops.depthwise_conv(mp.cast(x, dtype), kernel.astype(np.float32), padding="same"))
            results.append(ops.conv(mp.cast(x, dtype), mp.cast(wide, dtype), padding="same", strides=2))
    cpu.set_isa(before)
    for index, found in enumerate(results):
        assert_same_bits(found, results[index % 6])


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize(("dtype", "symmetric"), [("int8", True), ("int8", False), ("uint8", False)])
def test_codes_multiply_as_integers_and_padding_is_zero(axis, dtype, symmetric, isa, rng):
    x, kernel = rng.standard_normal((3, 7, 6, 5)), rng.standard_normal((3, 2, 5, 9))
    q = mp.quantize(x, axis=axis, dtype=dtype, symmetric=symmetric)
    w = mp.quantize(kernel, axis=3)
    found = ops.conv(q, w, padding=[(1, 1), (0, 1)], strides=(2, 1), bias=np.arange(9.0))
    case = (None, None, 1, None, (3, 2), (2, 1), (1, 1), [(1, 1), (0, 1)])
    a, b = (mp.dequantize(each).astype(np.float64) for each in (q, w))
    bound = 1e-6 * (by_matmul(np.abs(a), np.abs(b), case) + 9.0)
    assert (np.abs(found - (by_matmul(a, b, case) + np.arange(9.0))) <= bound).all()
    weights_only = ops.conv(x.astype(np.float32), w, padding=[(1, 1), (0, 1)], strides=(2, 1))
    assert (np.abs(weights_only - by_matmul(x, b, case)) <= 2e-6 * by_matmul(np.abs(x), np.abs(b), case)).all()
    first = mp.quantize(np.moveaxis(x, -1, 1).copy(), axis=axis, dtype=dtype, symmetric=symmetric)
    again = ops.conv(first, w, (2, 1), [(1, 1), (0, 1)], "channels_first", bias=np.arange(9.0))
    assert_same_bits(np.moveaxis(again, 1, -1), found)


def test_sums_of_codes_are_exact(isa):
    q = mp.QuantizedArray(np.full((1, 8, 8, 64), -128, np.int8), np.ones((1,) * 4, np.float32), None, ())
    w = mp.QuantizedArray(np.full((3, 3, 64, 2), -127, np.int8), np.ones((1,) * 4, np.float32), None, ())
    assert (ops.conv(q, w) == 9 * 64 * 128 * 127).all()


# ---- gradients


@pytest.mark.parametrize("name", ["one axis, dilated and causal", "two axes, all options", "three axes"])
def test_gradients_are_central_differences(name, rng):
    case = CASES[name]
    x, kernel = drawn(rng, case, batch=2)
    bias, own = rng.standard_normal(kernel.shape[-1]), rng.standard_normal((*case[4], x.shape[-1], 2))
    check_rule(lambda x, k, b: ops.conv(x, k, **options(case), bias=b, activation="tanh"), x, kernel, bias)
    check_rule(lambda x, k: ops.depthwise_conv(x, k, **options(case), activation="gelu"), x, own)
    back = rng.standard_normal((*case[4], 3, x.shape[-1]))
    strides = case[5] if max(case[6]) == 1 else 1
    check_rule(lambda x, k: ops.conv_transpose(x, k, strides, dilation_rate=case[6]), x, back)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_convolutions_and_gradients_are_those_of_torch(groups, rng):
    torch = pytest.importorskip("torch")
    x, kernel, bias = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((2, 6, 9, 8), (12, 6 // groups, 3, 2), (12,))
    )
    given = [torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in (x, kernel, bias)]
    result = torch.nn.functional.conv2d(*given, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=groups)
    d = rng.standard_normal(tuple(result.shape)).astype(np.float32)
    (result * torch.tensor(d)).sum().backward()
    variables = [
        mp.AutoCastVariable(each, autocast=False, name="x") for each in (x, kernel.transpose(2, 3, 1, 0), bias)
    ]

    def value(d):
        a, b, c = (variable.read_value() for variable in variables)
        y = ops.conv(a, b, (2, 1), [(1, 1), (2, 2)], "channels_first", (1, 2), bias=c)
        return mp.sum(ops.multiply(y, d))

    found = mp.value_and_grad(value, variables)(d)[1]
    forward = ops.conv(*(variable.numpy() for variable in variables[:2]), (2, 1), [(1, 1), (2, 2)], "channels_first",
                       (1, 2), bias=bias)  # fmt: skip
    np.testing.assert_allclose(forward, result.detach().numpy(), atol=2e-5)
    expected = [given[0].grad, given[1].grad.permute(2, 3, 1, 0), given[2].grad]
    for gradient, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(gradient, theirs.numpy(), atol=1e-4)


# ---- plans


def test_a_plan_stores_no_windows():
    x = np.random.default_rng(0).standard_normal((4, 14, 14, 64)).astype(np.float32)
    for layer in (
        layers.Conv2D(64, 3, padding="same", activation="relu"),
        layers.Conv2D(64, 3, padding="same", groups=4),
        layers.DepthwiseConv2D(3, padding="same", activation="relu6"),
    ):
        expected = layer(x)
        model = layers.Sequential([layer, layers.ReLU()])
        plan = mp.compile(model, x)
        assert plan.memory.arena <= 2 * x.nbytes  # the windows would take nine times the bytes of x
        assert_same_bits(plan(x), np.maximum(expected, 0))


def test_a_batch_without_examples_has_results_without_elements():
    x = np.zeros((0, 5, 5, 4), np.float32)
    assert ops.conv(x, np.zeros((3, 3, 4, 2), np.float32)).shape == (0, 3, 3, 2)
    assert ops.depthwise_conv(x, np.zeros((3, 3, 4, 2), np.float32)).shape == (0, 3, 3, 8)
    assert ops.conv_transpose(x, np.zeros((3, 3, 2, 4), np.float32)).shape == (0, 7, 7, 2)


SYMBOLIC = {
    "conv": (ops.conv, (3, 2, 3, 8), {"strides": 2, "padding": "same"}),
    "conv, explicit padding": (ops.conv, (3, 2, 6, 8), {"padding": [(0, 1), (2, 3)], "dilation_rate": (1, 2)}),
    "depthwise": (ops.depthwise_conv, (3, 2, 6, 2), {"strides": (1, 2)}),
    "transposed": (ops.conv_transpose, (3, 3, 4, 6), {"strides": 2, "output_padding": 1, "padding": "same"}),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_shapes_are_those_of_arrays_also_after_loading(name, rng, tmp_path):
    function, shape, options = SYMBOLIC[name]
    kernel, x = rng.standard_normal(shape).astype(np.float32), rng.standard_normal((2, 9, 7, 6)).astype(np.float32)
    for given in ((9, 7, 6), (None, 7, 6), (9, None, 6)):
        inputs = mp.Input(given)
        outputs = function(inputs, kernel, **options)
        expected = function(x, kernel, **options)
        assert all(n in (None, length) for n, length in zip(outputs.shape, expected.shape, strict=True))
        assert outputs.shape.count(None) == 1 + given.count(None)
        model = mp.Model(inputs, outputs)
        assert_same_bits(model(x), expected)
        model.save(tmp_path / "model.keras")
        assert_same_bits(mp.load_model(tmp_path / "model.keras")(x), expected)
    with pytest.raises(ValueError, match="kernel"):
        function(mp.Input((2, 1, 6)), np.zeros((4, 4, *shape[2:]), np.float32)[..., :5])


@pytest.mark.parametrize(("arguments", "message"), [
    ({"padding": [(-1, 0), (0, 0)]}, "`padding` must be"),
    ({"padding": [(1, 0)]}, "`padding` must be"),
    ({"padding": "SAME"}, "`padding` must be"),
    ({"padding": [(2**62, 2**62), (0, 0)]}, "`padding` must be"),
    ({"padding": [(2**39, 0), (2**39, 0)]}, "must fit memory"),
    ({"strides": 0}, "`strides` must be"),
    ({"strides": (1, 2, 3)}, "`strides` must be"),
    ({"dilation_rate": -1}, "`dilation_rate` must be"),
    ({"dilation_rate": 2**40}, "must not be smaller than the kernel"),
    ({"data_format": "NHWC"}, "`data_format` must be"),
    ({"data_format": "channels_first"}, "groups"),
    ({"kernel": np.zeros((3, 3, 3, 8))}, "groups"),
    ({"kernel": np.zeros((3, 3, 2, 9))}, "groups"),
    ({"kernel": np.zeros((3, 3, 0, 9))}, "groups"),
    ({"kernel": np.zeros((3, 4, 8))}, "`kernel` must have"),
    ({"kernel": np.zeros((0, 3, 4, 8))}, "`kernel` must have"),
    ({"kernel": np.zeros((7, 1, 4, 8))}, "must not be smaller than the kernel"),
    ({"kernel": mp.pack(np.zeros((36, 8), np.float32))}, "`kernel_size` must be given"),
    ({"kernel": mp.pack(np.zeros((35, 8), np.float32)), "kernel_size": (3, 3)}, "must have the shape"),
    ({"kernel": mp.pack(np.zeros((36, 8), np.float32)), "kernel_size": (3,)}, "`kernel_size` must be"),
    ({"bias": np.zeros(7)}, "`bias` must have shape"),
    ({"activation": "leaky"}, "`activation` must be one of"),
    ({"inputs": np.zeros((6, 6))}, "`inputs` must have"),
])  # fmt: skip
def test_bad_arguments_are_refused_by_name(arguments, message):
    given = {"inputs": np.zeros((1, 6, 6, 4), np.float32), "kernel": np.zeros((3, 3, 4, 8), np.float32)} | arguments
    with pytest.raises(ValueError, match=message):
        ops.conv(**given)


def test_huge_strides_have_one_window():
    x = np.ones((1, 5, 5, 2), np.float32)
    for function, kernel in ((ops.conv, np.ones((3, 3, 2, 1))), (ops.depthwise_conv, np.ones((3, 3, 2, 1)))):
        assert function(x, kernel.astype(np.float32), strides=2**62).shape[:3] == (1, 1, 1)


def test_depthwise_and_transposed_arguments_are_refused_by_name():
    x = np.zeros((1, 6, 6, 4), np.float32)
    for call, message in (
        (lambda: ops.depthwise_conv(x, np.zeros((3, 3, 3, 1), np.float32)), "4 channels"),
        (lambda: ops.depthwise_conv(x, np.zeros((7, 3, 4, 1), np.float32)), "must not be smaller"),
        (lambda: ops.conv_transpose(x, np.zeros((3, 3, 2, 3), np.float32)), "4 channels"),
        (lambda: ops.conv_transpose(x, np.zeros((3, 3, 2, 4), np.float32), 2, output_padding=2), "output_padding"),
        (lambda: ops.conv_transpose(x, np.zeros((3, 3, 2, 4), np.float32), 2, dilation_rate=2), "dilation_rate"),
        (lambda: ops.conv_transpose(x, np.zeros((3, 3, 2, 4), np.float32), padding="causal"), "`padding` must be"),
        (lambda: ops.conv_transpose(x, np.zeros((3, 3, 2, 4), np.float32), 2**61), "must fit memory"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
