"""ops.lstm, gru and simple_rnn equal torch's and ONNX's networks and the layers; gradients, plans and types too."""

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import layers, ops

torch = pytest.importorskip("torch")

BATCH, STEPS, FEATURES, UNITS = 3, 7, 5, 4
LENGTHS = np.array([7, 2, 4], np.int32)
OPERATIONS = {"lstm": ops.lstm, "gru": ops.gru, "simple_rnn": ops.simple_rnn}
GATES = {"lstm": 4, "gru": 3, "simple_rnn": 1}
MODULES = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "simple_rnn": torch.nn.RNN}


def drawn(rng, name, dtype="float32"):
    """x, the kernels, the bias, and the states before the first step."""
    columns = GATES[name] * UNITS
    shapes = [(BATCH, STEPS, FEATURES), (FEATURES, columns), (UNITS, columns), (columns,), (BATCH, UNITS)]
    shapes += [(BATCH, UNITS)] if name == "lstm" else []
    return [mp.cast(rng.standard_normal(shape), dtype) for shape in shapes]


def of_torch(name, x, kernel, recurrent, bias, *states, recurrent_bias=None, lengths=None):
    """Outputs and last states of torch's module in float64, which has the gates r, z, n of a GRU; and its tensors."""
    gates = GATES[name]
    order = [1, 0, 2] if name == "gru" else list(range(gates))
    swapped = np.concatenate([np.arange(UNITS) + g * UNITS for g in order])
    module = MODULES[name](FEATURES, UNITS, batch_first=True).double()
    rest = np.zeros(gates * UNITS) if recurrent_bias is None else recurrent_bias
    given = (kernel.T[swapped], recurrent.T[swapped], bias[swapped], rest[swapped])
    with torch.no_grad():
        for weight, value in zip(module.parameters(), given, strict=True):
            weight.copy_(torch.tensor(value.astype(np.float64)))
    x = torch.tensor(x.astype(np.float64), requires_grad=True)
    before = tuple(torch.tensor(s.astype(np.float64))[None] for s in states)
    inputs = x if lengths is None else torch.nn.utils.rnn.pack_padded_sequence(x, lengths, True, False)
    outputs, after = module(inputs, before if name == "lstm" else before[0])
    if lengths is not None:
        outputs, _ = torch.nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True, total_length=STEPS)
    after = after if name == "lstm" else (after,)
    return [outputs, *(s[0] for s in after)], x, module, swapped


@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_those_of_torch(name, lengths, rng):
    x, *others = drawn(rng, name)
    expected, *_ = of_torch(name, x, *others, lengths=lengths)
    for dtype, error in (("float32", 2e-6), ("float64", 1e-13)):
        given = [each.astype(dtype) for each in (x, *others)]
        for found, wanted in zip(OPERATIONS[name](*given, lengths=lengths), expected, strict=True):
            assert found.dtype.name == dtype
            np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=error, atol=error)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_reverse_direction_is_that_of_reversed_sequences(name, rng):
    x, *others = drawn(rng, name)
    outputs, *states = OPERATIONS[name](x, *others, reverse=True)
    wanted, *last = OPERATIONS[name](x[:, ::-1], *others)
    assert_same_bits(outputs, wanted[:, ::-1])
    for found, expected in zip(states, last, strict=True):
        assert_same_bits(found, expected)
    outputs, *states = OPERATIONS[name](x, *others, reverse=True, lengths=LENGTHS)
    for row, length in enumerate(LENGTHS):
        alone = OPERATIONS[name](
            x[row : row + 1, :length][:, ::-1], *others[:3], *(s[row : row + 1] for s in others[3:])
        )
        np.testing.assert_allclose(outputs[row, :length], alone[0][0, ::-1], rtol=1e-6, atol=1e-6)
        assert not outputs[row, length:].any()
        np.testing.assert_allclose(states[0][row], alone[1][0], rtol=1e-6, atol=1e-6)


def test_a_gru_has_a_bias_of_the_recurrent_product(rng):
    x, *others = drawn(rng, "gru")
    extra = rng.standard_normal(3 * UNITS).astype(np.float32)
    expected, *_ = of_torch("gru", x, *others, recurrent_bias=extra)
    for found, wanted in zip(ops.gru(x, *others, recurrent_bias=extra), expected, strict=True):
        np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=2e-6, atol=2e-6)


def of_onnx(kind, inputs, **attributes):
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    names = [name if value is not None else "" for name, value in inputs.items()]
    node = onnx.helper.make_node(kind, names, ["y", "y_h"], hidden_size=UNITS, **attributes)
    infos = [onnx.helper.make_tensor_value_info(name, 1, None) for name in names if name]
    outputs = [onnx.helper.make_tensor_value_info(name, 1, None) for name in ("y", "y_h")]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", infos, outputs))
    return ReferenceEvaluator(model).run(None, {name: value for name, value in inputs.items() if value is not None})


def in_order_of(gates, *arrays):
    """Arrays whose last axis has the gates, in another order, transposed as in ONNX, with the axis of directions."""
    columns = np.concatenate([np.arange(UNITS) + g * UNITS for g in gates])
    return [np.ascontiguousarray(each[..., columns].T)[None] for each in arrays]


def test_peepholes_are_those_of_onnx(rng):
    x, kernel, recurrent, bias, h, c = drawn(rng, "lstm")
    peepholes = rng.standard_normal((3, UNITS)).astype(np.float32)  # of i, f and o; ONNX has i, o, f
    w, r, b = in_order_of((0, 3, 1, 2), kernel, recurrent, bias)
    inputs = {"x": x.transpose(1, 0, 2), "w": w, "r": r, "b": np.concatenate([b, 0 * b], 1), "l": None, "h": h[None],
              "c": c[None], "p": peepholes[[0, 2, 1]].reshape(1, -1)}  # fmt: skip
    expected, last = of_onnx("LSTM", inputs)
    outputs, state, _ = ops.lstm(x, kernel, recurrent, bias, h, c, peepholes=peepholes)
    np.testing.assert_allclose(outputs, expected[:, 0].transpose(1, 0, 2), rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(state, last[0], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("after", [False, True])
def test_both_kinds_of_grus_are_those_of_onnx(after, rng):
    x, kernel, recurrent, bias, h = drawn(rng, "gru")
    extra = rng.standard_normal(3 * UNITS).astype(np.float32)
    w, r, b, e = in_order_of((0, 1, 2), kernel, recurrent, bias, extra)
    inputs = {"x": x.transpose(1, 0, 2), "w": w, "r": r, "b": np.concatenate([b, e], 1), "l": None, "h": h[None]}
    expected, last = of_onnx("GRU", inputs, linear_before_reset=int(after))
    outputs, state = ops.gru(x, kernel, recurrent, bias, h, recurrent_bias=extra, reset_after=after)
    np.testing.assert_allclose(outputs, expected[:, 0].transpose(1, 0, 2), rtol=3e-6, atol=3e-6)
    np.testing.assert_allclose(state, last[0], rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_have_the_bits_of_layers(name, dtype, rng):
    x, kernel, recurrent, bias, *states = drawn(rng, name, dtype)
    layer = {"lstm": layers.LSTM, "gru": layers.GRU, "simple_rnn": layers.SimpleRNN}[name](
        UNITS, return_sequences=True, return_state=True, dtype=dtype
    )
    layer.build(x.shape)
    layer.set_weights([kernel, recurrent, np.stack([bias, 0 * bias]) if name == "gru" else bias])
    for found, expected in zip(
        OPERATIONS[name](x, kernel, recurrent, bias, *states), layer(x, initial_state=states), strict=True
    ):
        assert_same_bits(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_plans_give_the_bits_of_calls_on_every_set(isa, name, dtype, rng):
    x, *others = drawn(rng, name, dtype)
    for options in ({}, {"reverse": True}, {"lengths": LENGTHS}):
        plan = mp.compile(lambda x, options=options: OPERATIONS[name](x, *others, **options), np.ones_like(x))
        for found, expected in zip(plan(x), OPERATIONS[name](x, *others, **options), strict=True):
            assert_same_bits(found, expected)


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_are_those_of_torch(name, rng):
    x, *others = drawn(rng, name)
    expected, given, module, swapped = of_torch(name, x, *others)
    d = rng.standard_normal(expected[0].shape).astype(np.float32)
    (expected[0] * torch.tensor(d)).sum().backward()
    variables = [mp.AutoCastVariable(v, autocast=False, name="v") for v in (x, *others[:3])]

    def loss(d):
        return mp.sum(ops.multiply(OPERATIONS[name](*(v.numpy() for v in variables), *others[3:])[0], d))

    of_x, of_kernel, of_recurrent, of_bias = mp.value_and_grad(loss, variables)(d)[1]
    np.testing.assert_allclose(of_x, given.grad.numpy(), rtol=2e-5, atol=2e-6)
    for found, weight in zip((of_kernel, of_recurrent, of_bias), module.parameters(), strict=False):
        np.testing.assert_allclose(found.T[swapped], weight.grad.numpy(), rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((3, 5), np.float32)}, r"`x` must have shape \(batch, steps, features\)"),
        ({"x": np.zeros((3, 0, 5), np.float32)}, "with steps"),
        ({"kernel": np.zeros((5, 12), np.float32)}, "`kernel` and `recurrent_kernel` must have shapes"),
        ({"bias": np.zeros(4, np.float32)}, r"`bias` must have shape \(16,\)"),
        ({"state": np.zeros(4, np.float32)}, r"`state` must have shape \(3, 4\)"),
        ({"lengths": np.zeros(2, np.int32)}, "`lengths` must be integers of shape"),
        ({"lengths": np.zeros(3, np.float32)}, "`lengths` must be integers of shape"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message, rng):
    names = ("x", "kernel", "recurrent_kernel", "bias", "state", "cell")
    with pytest.raises(ValueError, match=message):
        ops.lstm(**(dict(zip(names, drawn(rng, "lstm"), strict=True)) | change))
