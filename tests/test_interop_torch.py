"""torch's modules as layers, and torch models whose linears mp_core computes."""

import copy
import gc
import io
import threading
import weakref

import numpy as np
import pytest
import torch
from oracles import assert_same_bits, rows_of_every_size
from torch import nn

import mp_core as mp
from mp_core.interop.torch import PackedLinear, TrainableLinear, from_torch, replace_linears
from mp_core.interop.torch.linears import _known, array_of
from mp_core.interop.torch.modules import _LAYERS

TYPES = [torch.float32, torch.bfloat16, torch.float16]
STEPS = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def linear(n_in=40, n_out=24, bias=True):
    return nn.Linear(n_in, n_out, bias=bias)


def exact(layer, x, weight=None):
    """The layer in float64, and the sum of the magnitudes of its products."""
    w = (layer.weight if weight is None else weight).double()
    b = torch.zeros(len(w)).double() if layer.bias is None else layer.bias.double()
    return x.double() @ w.T + b, x.double().abs() @ w.abs().T + b.abs()


# ---- linears


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_floats_keep_the_bound_of_their_roundings(dtype, kind, bias):
    layer = linear(bias=bias)
    x = torch.randn(3, 5, 40).to(kind)
    y = PackedLinear(layer, dtype)(x)
    assert y.dtype is kind and y.shape == (3, 5, 24)
    result, size = exact(layer, x)
    bound = (3 * STEPS[dtype] + 40 * 2.0**-23) * size + STEPS[str(kind).removeprefix("torch.")] * result.abs()
    assert ((y.double() - result).abs() <= bound).all()


@pytest.mark.parametrize("kind", TYPES)
def test_int8_keeps_the_bound_of_its_codes(kind):
    layer = linear()
    x = torch.randn(6, 40).to(kind)
    y = PackedLinear(layer, "int8")(x)
    result, _ = exact(layer, x)
    rows, columns = x.double().abs().amax(1, True) / 127, layer.weight.double().abs().amax(1) / 127
    sums = x.double().abs().sum(1, True) * columns / 2 + layer.weight.double().abs().sum(1) * rows / 2
    bound = sums + 40 * rows * columns / 4 + 2.0**-8 * result.abs() + 1e-5
    assert ((y.double() - result).abs() <= bound).all()


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float32", "float16"])
def test_the_bits_are_those_of_mp_core(dtype):
    layer, x = linear(), torch.randn(7, 40)
    w = layer.weight.numpy().T
    packed = mp.pack(mp.quantize(w, axis=1)) if dtype == "int8" else mp.pack(w, dtype=dtype)
    a = x.numpy() if dtype == "int8" else mp.cast(x.numpy(), dtype)
    product = mp.dynamic_matmul if dtype == "int8" else mp.matmul
    expected = product(a, packed, bias=layer.bias.numpy(), out_dtype="float32")
    np.testing.assert_array_equal(PackedLinear(layer, dtype)(x).numpy(), expected)


@pytest.mark.parametrize("kind", TYPES)
def test_a_row_of_any_size_has_the_codes_that_quantize_gives_it(kind, rng):
    layer = linear()
    x = rows_of_every_size(rng, str(kind).removeprefix("torch."), 40)
    packed = mp.pack(mp.quantize(layer.weight.numpy().T, axis=1))
    expected = mp.matmul(mp.quantize(x, axis=0), packed, bias=layer.bias.numpy(), out_dtype=x.dtype)
    given = torch.from_numpy(x.view(np.int16) if kind is torch.bfloat16 else x).view(kind)
    assert_same_bits(array_of(PackedLinear(layer, "int8")(given)), expected)


@pytest.mark.parametrize("make", [
    lambda x: x[::2], lambda x: x[:, :40], lambda x: x.T[:40].T, lambda x: x[0, :40], lambda x: x[:0, :40],
    lambda x: x[None, :, None, :40], lambda x: x[:, 40:80].expand(6, 40), lambda x: x.flip(0)[:, 1:41],
])  # fmt: skip
def test_any_strides_and_shapes(make):
    x = make(torch.randn(6, 80))
    layer = linear(x.shape[-1])
    y = PackedLinear(layer, "float32")(x)
    torch.testing.assert_close(y, layer(x))


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_the_operator_is_as_torch_wants_it(dtype):
    layer = PackedLinear(linear(), dtype)
    for x in (torch.randn(3, 40), torch.randn(2, 3, 40)[:, 1:]):
        arguments = (x, layer.panels, layer.column_sums, layer.scale, layer.bias, layer.shape, layer.dtype)
        torch.library.opcheck(
            torch.ops.mp_core.linear.default, arguments, test_utils=("test_schema", "test_faketensor")
        )


def test_compiled_models_give_the_same_numbers():
    model = replace_linears(nn.Sequential(linear(), nn.ReLU(), linear(24, 8)), "int8")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (1, 5, 9):
        x = torch.randn(rows, 40)
        torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=0)


def test_a_backward_pass_says_that_there_are_no_gradients():
    model = replace_linears(nn.Sequential(linear(), nn.ReLU()), "bfloat16")
    with torch.enable_grad():
        y = model(torch.randn(2, 40, requires_grad=True))
        with pytest.raises(RuntimeError, match="PackedLinear has no gradients: its weights are packed for inference"):
            y.sum().backward()


# ---- gradients of inputs

EPSILON = {"int8": 2e-6, "float32": 1e-6, "bfloat16": 2e-2, "float16": 2e-3}
"""Of the type that the gradient of outputs is rounded to, times what is summed: beside torch's own sums in float32."""


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", EPSILON)
def test_gradients_of_inputs_are_those_of_torch(dtype, given):
    own = linear()
    layer, x = TrainableLinear(own, dtype), torch.randn(3, 5, 40).to(given)
    d = torch.randn(3, 5, 24).to(given)
    with torch.enable_grad():
        x.requires_grad_()
        y = layer(x)
        y.backward(d)
    assert torch.equal(y.detach(), PackedLinear(own, dtype)(x.detach()))
    weight = layer.weight.clone().requires_grad_(False)
    other = x.detach().float().requires_grad_()
    with torch.enable_grad():
        nn.functional.linear(other, weight).backward(d.float())
    bound = max(EPSILON[dtype], 0 if given is torch.float32 else torch.finfo(given).eps)
    torch.testing.assert_close(x.grad.float(), other.grad, rtol=bound, atol=bound)
    assert x.grad.dtype is given and not [*layer.parameters()]


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_the_operator_with_gradients_is_as_torch_wants_it(dtype):
    layer, tests = TrainableLinear(linear(), dtype), ("test_schema", "test_faketensor", "test_autograd_registration")
    with torch.enable_grad():
        x = torch.randn(3, 40, requires_grad=True)
        arguments = (
            x, layer.panels, layer.column_sums, layer.scale, layer.bias, layer.shape, layer.dtype, layer.back,
            layer.back_sums, layer.back_scale,
        )  # fmt: skip
        torch.library.opcheck(torch.ops.mp_core.linear.default, arguments, test_utils=tests)
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        compiled(x).sum().backward()
        want, x.grad = x.grad, None
        layer(x).sum().backward()
    torch.testing.assert_close(x.grad, want, rtol=0, atol=0)


def _losses(model, steps=20):
    """Train LoRA of peft beside the linears of a model, and return the loss of each step."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["0", "3"]))
    optimizer = torch.optim.Adam([p for p in adapted.parameters() if p.requires_grad], 1e-2)
    x, y, found = torch.randn(64, 40), torch.randn(64, 8), []
    with torch.enable_grad():
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (adapted(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found, adapted


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("int8", 2e-2)])
def test_lora_of_peft_trains_beside_packed_linears_as_beside_those_of_torch(dtype, bound):
    model = nn.Sequential(linear(), nn.LayerNorm(24), nn.ReLU(), linear(24, 8))
    want, _ = _losses(copy.deepcopy(model))
    found, adapted = _losses(replace_linears(model, dtype, trainable=True))
    np.testing.assert_allclose(found, want, rtol=bound)
    assert found[-1] < 0.8 * found[0]
    for safe in (False, True):
        with pytest.raises(RuntimeError, match="adapters cannot be merged"):
            adapted.merge_adapter(safe_merge=safe)


def test_states_of_linears_with_gradients_load():
    layer, x = TrainableLinear(linear(), "int8"), torch.randn(3, 40)
    other = TrainableLinear(nn.Linear(40, 24), "int8")
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x)) and set(layer.state_dict()) > {"back", "back_sums", "back_scale"}
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_states_load_and_copies_work(dtype):
    model, x = nn.Sequential(linear(), nn.ReLU(), linear(24, 8)), torch.randn(3, 40)
    other = replace_linears(copy.deepcopy(model.apply(_noise)), dtype)
    packed = replace_linears(model, dtype)
    expected = packed(x)
    other[0].panels.zero_()
    assert not torch.equal(other(x), expected)
    file = io.BytesIO()
    torch.save(packed.state_dict(), file)
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    for copied in (other, copy.deepcopy(packed), packed.to(torch.float64), packed.half()):
        torch.testing.assert_close(copied(x), expected, rtol=0, atol=0)
    for name in packed.state_dict():
        assert name.split(".")[1] in ("panels", "column_sums", "scale", "bias")


def _noise(module):
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight)


def test_what_was_computed_with_goes_with_the_module():
    layer, x = PackedLinear(linear(), "int8"), torch.randn(2, 40)
    layer(x)
    storage = weakref.ref(layer.panels.untyped_storage())
    before = len(_known)
    del layer
    gc.collect()
    assert len(_known) == before - 1 and storage() is None


# ---- tensors that change between two calls


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def spread(layer, how):
    """Give the layer a bias in the middle of nothing, call it, and then another one that begins at the same address."""
    numbers = torch.randn(48)
    layer.bias = numbers[:24]
    layer(torch.ones(40))
    layer.bias = how(numbers)
    assert layer.bias.data_ptr() == numbers.data_ptr()


def assign(name, make):
    return lambda layer: setattr(layer, name, make(getattr(layer, name)))


def load(**arguments):
    return lambda layer: layer.load_state_dict(PackedLinear(linear(), layer.dtype).state_dict(), **arguments)


def take(layer, how):
    """Take the weights, and all that belongs to them, of another layer."""
    other = PackedLinear(linear(), layer.dtype)
    for name in ("panels", "column_sums", "scale"):
        if getattr(other, name) is not None:
            how(layer, name, getattr(other, name))


CHANGES = {
    "nothing": lambda layer: None,
    "in place": lambda layer: layer.bias.add_(1),
    "a copy in place": lambda layer: layer.bias.copy_(torch.randn(24)),
    "in place through numpy": lambda layer: layer.bias.numpy().fill(3),
    "in place in inference mode": torch.inference_mode()(lambda layer: layer.bias.mul_(2)),
    "another bias": assign("bias", torch.randn_like),
    "no bias": assign("bias", lambda bias: None),
    "a parameter": assign("bias", lambda bias: nn.Parameter(bias.flip(0))),
    "a tensor of inference mode": torch.inference_mode()(assign("bias", torch.randn_like)),
    "other strides": lambda layer: spread(layer, lambda numbers: numbers[::2]),
    "one number for all": lambda layer: spread(layer, lambda numbers: numbers[:1].expand(24)),
    "a column": lambda layer: spread(layer, lambda numbers: numbers.view(24, 2)[:, 0]),
    "another type": lambda layer: spread(layer, lambda numbers: numbers.view(torch.bfloat16)[:24]),
    "negative by a flag": assign("bias", torch._neg_view),
    "other data": lambda layer: setattr(layer.bias, "data", torch.randn(24)),
    "other data with strides": lambda layer: setattr(layer.bias, "data", torch.randn(48)[::2]),
    "strides in place": lambda layer: layer.bias.as_strided_((24,), (0,)),
    "another storage": lambda layer: layer.bias.set_(torch.randn(48).untyped_storage(), 3, (24,), (1,)),
    "shared memory": lambda layer: layer.share_memory(),
    "a parametrization": lambda layer: nn.utils.parametrize.register_parametrization(layer, "bias", Doubled()),
    "to float64": lambda layer: layer.to(torch.float64),
    "to half": lambda layer: layer.half(),
    "to meta": lambda layer: layer.to("meta"),
    "to empty": lambda layer: layer.to_empty(device="cpu"),
    "a state": load(),
    "a state that is assigned": load(assign=True),
    "weights in place": lambda layer: take(layer, lambda layer, name, new: getattr(layer, name).copy_(new)),
    "other weights": lambda layer: take(layer, setattr),
    "weights as data": lambda layer: take(layer, lambda layer, name, new: setattr(getattr(layer, name), "data", new)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_call_sees_every_change_of_the_tensors(dtype, change):
    layer, x = PackedLinear(linear(), dtype), torch.randn(3, 40)
    layer(x)
    change(layer)
    for _ in range(2):
        bias = torch.zeros(24) if layer.bias is None else layer.bias.clone().resolve_neg()
        parts = [None if part is None else part.clone() for part in (layer.panels, layer.column_sums, layer.scale)]
        expected = torch.ops.mp_core.linear(x, *parts, None, layer.shape, dtype) + bias.float()
        torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)
        weight = torch.ops.mp_core.linear(torch.eye(40), *parts, None, layer.shape, dtype).T
        torch.testing.assert_close(layer.weight, weight, rtol=0.01, atol=1e-6)


@pytest.mark.parametrize("name", ["panels", "column_sums", "scale"])
@pytest.mark.parametrize("make", [
    lambda part: part[None], lambda part: part[..., :1].expand(part.shape), lambda part: part.flatten()[:, None],
])  # fmt: skip
def test_a_part_of_other_strides_or_another_shape_is_refused_at_the_same_address(name, make):
    layer = PackedLinear(linear(), "int8")
    layer(torch.randn(2, 40))
    setattr(layer, name, make(getattr(layer, name)))
    with pytest.raises(ValueError, match=f"`{name.replace('panels', 'data')}` must be contiguous"):
        layer(torch.randn(2, 40))


@pytest.mark.parametrize("name", ["panels", "column_sums", "scale", "bias"])
def test_numbers_do_not_come_of_tensors_without_memory(name):
    layer, x = PackedLinear(linear(), "int8"), torch.randn(2, 40)
    state = layer.state_dict()
    assert layer(x.to("meta")).is_meta and layer(x.to("meta")).shape == (2, 24)
    setattr(layer, name, state[name].to("meta"))
    with pytest.raises(ValueError, match="on the meta device has no numbers"):
        layer(x)
    assert layer(x.to("meta")).is_meta
    layer.load_state_dict(state, assign=True)
    assert layer(x).isfinite().all()


def test_packed_weights_can_be_read():
    layer = linear()
    torch.testing.assert_close(PackedLinear(layer, "float32").weight, layer.weight.detach(), rtol=0, atol=0)
    step = layer.weight.abs().amax(1, True) / 127
    assert ((PackedLinear(layer, "int8").weight - layer.weight).abs() <= step * 0.5001).all()
    rounded = layer.weight.bfloat16().float()
    torch.testing.assert_close(PackedLinear(layer, "bfloat16").weight, rounded, rtol=0, atol=0)


def test_linears_are_replaced_where_they_are():
    shared = linear(8, 8)
    model = nn.ModuleDict({
        "a": nn.Sequential(shared, linear(8, 8)), "b": shared, "head": linear(8, 2),
        "attention": nn.MultiheadAttention(8, 2, batch_first=True),
    })  # fmt: skip
    assert replace_linears(model, "bfloat16", skip=["head", "a.1"]) is model
    assert type(model["b"]) is PackedLinear and model["a"][0] is model["b"]
    assert type(model["head"]) is nn.Linear and type(model["a"][1]) is nn.Linear
    assert not isinstance(model["attention"].out_proj, PackedLinear)
    assert type(replace_linears(linear())) is PackedLinear
    assert replace_linears(nn.Sequential(linear()).eval())[0].training is False


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: replace_linears(3), TypeError, "`model` must be a torch.nn.Module; received int"),
        (lambda: replace_linears(nn.Sequential(linear()), "int3"), ValueError, "`dtype` must be one .*'int3'"),
        (lambda: replace_linears(nn.Sequential(linear()), trainable=1), TypeError, "`trainable` must be True or False"),
        (lambda: replace_linears(nn.Sequential(linear()), skip="1"), ValueError, r"`skip` must name linears.*\['1'\]"),
        (lambda: PackedLinear(nn.ReLU(), "int8"), TypeError, "`linear` must be a torch.nn.Linear; received ReLU"),
        (lambda: PackedLinear(linear().to("meta"), "int8"), ValueError, "received weights on meta"),
        (lambda: PackedLinear(linear(), "int8")(torch.randn(3, 41)), ValueError, r"\(..., 40\); received \(3, 41\)"),
        (lambda: PackedLinear(linear(), "bfloat16")(torch.tensor(1.0)), ValueError, r"received \(\)"),
        (lambda: PackedLinear(linear(), "bfloat16")(torch.ones(2, 40).int()), TypeError, "inputs .*torch.int32"),
        (lambda: PackedLinear(linear(), "bfloat16")(torch.ones(2, 40).double()), TypeError, "torch.float64"),
        (lambda: PackedLinear(linear(), "bfloat16")(torch.ones(2, 40).cfloat()), TypeError, "torch.complex64"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_model_is_not_changed_if_one_linear_cannot_be_packed():
    model = nn.Sequential(linear(), linear())
    model[1].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="finite"):
        replace_linears(model, "int8")
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize("damage", [
    lambda m: setattr(m, "panels", m.panels[:-1].clone()), lambda m: setattr(m, "column_sums", None),
    lambda m: setattr(m, "scale", m.scale.half()), lambda m: setattr(m, "shape", [40, 25]),
    lambda m: setattr(m, "bias", m.bias[:-1].clone()), lambda m: setattr(m, "panels", m.panels.float()),
])  # fmt: skip
def test_damaged_states_are_refused(damage):
    layer = PackedLinear(linear(), "int8")
    layer(torch.randn(2, 40))
    damage(layer)
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        layer(torch.randn(2, 40))


def test_other_threads_run_during_a_product():
    layer, x = PackedLinear(linear(1024, 2048), "float32"), torch.randn(1024, 1024)
    count, done = 0, threading.Event()

    def tick():
        nonlocal count
        while not done.is_set():
            count += 1

    thread = threading.Thread(target=tick)
    thread.start()
    before = count
    for _ in range(5):
        layer(x)
    during = count - before
    done.set()
    thread.join()
    assert during > 100


# ---- modules as layers

MODULES = {
    "Linear": (lambda: linear(8, 5), (3, 8)),
    "Linear without bias": (lambda: linear(8, 5, bias=False), (2, 3, 8)),
    "LayerNorm": (lambda: nn.LayerNorm(8, eps=1e-4), (3, 8)),
    "LayerNorm without bias": (lambda: nn.LayerNorm(8, bias=False), (3, 8)),
    "LayerNorm without anything": (lambda: nn.LayerNorm(8, elementwise_affine=False), (2, 3, 8)),
    "RMSNorm": (lambda: nn.RMSNorm(8), (3, 8)),
    "RMSNorm without weight": (lambda: nn.RMSNorm(8, eps=1e-3, elementwise_affine=False), (3, 8)),
    "GELU": (nn.GELU, (3, 8)),
    "GELU by tanh": (lambda: nn.GELU("tanh"), (3, 8)),
    "SiLU": (nn.SiLU, (3, 8)),
    "ReLU": (nn.ReLU, (3, 8)),
    "ReLU6": (nn.ReLU6, (3, 8)),
    "Tanh": (nn.Tanh, (3, 8)),
    "Sigmoid": (nn.Sigmoid, (3, 8)),
    "Softmax": (lambda: nn.Softmax(-2), (3, 8)),
    "Dropout": (lambda: nn.Dropout(0.5), (3, 8)),
    "Identity": (nn.Identity, (3, 8)),
    "Flatten": (nn.Flatten, (2, 3, 4)),
    "Flatten of some axes": (lambda: nn.Flatten(0, 1), (2, 3, 4)),
    "Sequential": (
        lambda: nn.Sequential(linear(8, 16), nn.Sequential(nn.GELU(), nn.LayerNorm(16)), nn.Dropout(), linear(16)),
        (3, 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_layers_compute_what_modules_compute(name):
    make, shape = MODULES[name]
    module = make().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(shape)
    result = from_torch(module, "float32")(x.numpy())
    np.testing.assert_allclose(result, module.double()(x.double()).numpy(), rtol=2e-5, atol=2e-5)


def test_every_supported_module_is_tested():
    tested = {type(make()) for make, _ in MODULES.values()}
    assert set(_LAYERS) - tested == {nn.Embedding, nn.MultiheadAttention}


def test_embeddings_look_up():
    module = nn.Embedding(10, 4, padding_idx=0)
    indices = torch.tensor([[1, 0], [9, 3]])
    result = from_torch(module, "mixed_bfloat16")(indices.numpy())
    np.testing.assert_array_equal(result.astype(np.float32), module(indices).bfloat16().float().numpy())


@pytest.mark.parametrize("arguments", [{}, {"bias": False}, {"kdim": 6, "vdim": 10}])
def test_attention(arguments):
    module = nn.MultiheadAttention(8, 2, batch_first=True, **arguments).eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    query, key, value = torch.randn(2, 3, 8), torch.randn(2, 5, module.kdim), torch.randn(2, 5, module.vdim)
    expected, weights = module.double()(query.double(), key.double(), value.double(), average_attn_weights=False)
    layer = from_torch(module.float(), "float32")
    result, scores = layer(query.numpy(), value.numpy(), key.numpy(), return_attention_scores=True)
    np.testing.assert_allclose(result, expected.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(scores, weights.numpy(), rtol=1e-4, atol=1e-5)


def test_policies_hold_for_every_layer():
    module = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))
    x = torch.randn(5, 32)
    exact_result = module(x)
    for policy, tolerance in (("mixed_bfloat16", 0.05), ("int8_from_float32", 0.1), ("float16", 0.01)):
        layer = from_torch(module, policy)
        result = layer(x.numpy())
        assert result.dtype == np.dtype(layer.compute_dtype)
        np.testing.assert_allclose(result.astype(np.float32), exact_result, atol=tolerance)
    assert from_torch(module, "int8_from_float32").layers[0].quantized


def test_layers_are_copies():
    module = linear(8, 5)
    layer = from_torch(module, "float32")
    before = layer(np.ones((1, 8), np.float32))
    module.weight.zero_()
    np.testing.assert_array_equal(layer(np.ones((1, 8), np.float32)), before)


def test_layers_of_torch_come_back_from_configurations():
    layer = from_torch(nn.Sequential(nn.Flatten(0, 1), nn.RMSNorm(4, eps=0.5), linear(4, 2)), "float32")
    x = np.ones((2, 3, 4), np.float32)
    again = mp.layers.Sequential.from_config(layer.get_config())
    again(x)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(x), layer(x))


def test_one_error_lists_all_that_has_no_layer():
    module = nn.Sequential(
        nn.Conv3d(1, 1, 1), nn.Sequential(nn.Softmax(), nn.ReLU()), nn.MultiheadAttention(4, 1),
        nn.Embedding(2, 2, max_norm=1.0), nn.LayerNorm((2, 3)), nn.Linear(2, 2, device="meta"),
    )  # fmt: skip
    with pytest.raises(ValueError) as caught:
        from_torch(module)
    assert str(caught.value) == (
        "`module` has 6 modules without a layer in mp_core: 0 (Conv3d); 1.0 (Softmax) with dim=None; "
        "2 (MultiheadAttention) with batch_first=False; 3 (Embedding) with max_norm; "
        "4 (LayerNorm) with more than one normalized axis; 5 (Linear) on meta"
    )
    with pytest.raises(ValueError, match=r"has 1 modules .*: the module itself \(Bilinear\)"):
        from_torch(nn.Bilinear(2, 2, 2))
    with pytest.raises(TypeError, match=r"`module` must be a torch.nn.Module; received int"):
        from_torch(3)


def test_arrays_of_tensors_share_their_memory():
    for kind in TYPES:
        x = torch.randn(4, 6).to(kind)[:, ::2]
        array = array_of(x)
        assert array.ctypes.data == x.data_ptr() and array.shape == (4, 3)
        np.testing.assert_array_equal(array.astype(np.float32), x.float().numpy())
