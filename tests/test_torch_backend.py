"""The backend of torch.compile beside torch itself: architectures, their gradients, operators, training, policies."""

import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_modules import MODULES, TORCH_WARNS, WHOLE, Images, Tagger, Texts, assert_near, module, ready

from mp_core.interop.torch import backend, explain, from_exported
from mp_core.policies.dtype_policies import DTypePolicyMap

pytestmark = TORCH_WARNS


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    torch.compiler.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield
    torch.compiler.reset()


@contextmanager
def all_here():
    """Check that nothing is left to torch. Other warnings, which torch has of its own code, are ignored."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        yield
    texts = [str(warning.message) for warning in noted]
    assert not [text for text in texts if text.startswith(("the backend mp_core", "torch divides"))]


def gradients(function, found, inputs):
    """Return the outputs of a function, and the gradients of a weighted sum of them, by names of parameters."""
    found.zero_grad(set_to_none=True)
    result = function(**inputs)
    named = dict(result) if hasattr(result, "keys") else {"output": result}
    outputs = [x for x in named.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    sum((x * torch.linspace(0.5, 1.5, x.numel()).reshape(x.shape)).sum() for x in outputs).backward()
    return result, {name: p.grad.clone() for name, p in found.named_parameters() if p.grad is not None}


def assert_gradients(found, expected, bound=1e-4):
    """Compare gradients; the bound is relative to the largest element, and to 1/1000 of that of all gradients."""
    assert found.keys() == expected.keys()
    least = 1e-3 * max(float(x.abs().max()) for x in expected.values())
    for name, x in expected.items():
        assert (found[name] - x).abs().max() <= bound * max(float(x.abs().max()), least), name


# ---- architectures


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in WHOLE else pytest.mark.slow) for each in MODULES]
)
def test_architectures_of_transformers_run_here_with_their_gradients(name):
    found, make = module(name), MODULES[name][1]
    for part in found.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0  # some of T5 are active in inference too
    compiled, inputs = torch.compile(found, backend=backend), make()
    with all_here():
        with torch.no_grad():
            assert_near(compiled(**inputs), found(**inputs))
        expected, exact = gradients(found, found, inputs)
        for _ in range(2):  # the second call records a plan
            result, near = gradients(compiled, found, inputs)
            assert_near(result, expected)
            assert_gradients(near, exact)


# ---- operators

OPERATORS = {
    "transposed convolution": lambda x, w: functional.conv_transpose2d(x, w.reshape(4, 2, 2, 2), None, 2, 1, 1),
    "transposed convolution in groups": lambda x, w: functional.conv_transpose2d(
        x, w.reshape(4, 2, 2, 2), w[:4], 3, 0, 2, groups=2, dilation=2),
    "transposed convolution of signals": lambda x, w: functional.conv_transpose1d(
        x[..., 0], w.reshape(4, 2, 4), None, 2),
    "resizing": lambda x, w: functional.interpolate(x, scale_factor=2) * functional.interpolate(
        x, (16, 12), mode="bilinear"),
    "means of windows": lambda x, w: functional.avg_pool2d(x, 3, 2, 1) + functional.avg_pool2d(
        x, 3, 2, 1, count_include_pad=False),
    "means of windows that end outside": lambda x, w: functional.avg_pool2d(x, (3, 2), 2, ceil_mode=True),
    "means of given windows": lambda x, w: functional.adaptive_avg_pool2d(x, (3, 2)),
    "maxima of windows": lambda x, w: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "group norm": lambda x, w: functional.group_norm(x, 2, w[:4], w[4:8]),
    "instance norm": lambda x, w: functional.instance_norm(x, weight=w[:4], bias=w[4:8]),
    "weight norm": lambda x, w: torch._weight_norm(x[0], w[:8].reshape(1, 8, 1), 1),
    "repeated ends": lambda x, w: functional.pad(x, (2, 1, 0, 3), mode="replicate"),
    "places of two axes": lambda x, w: x[:, torch.tensor([0, 1, 1]), torch.tensor([2, -1, 2])],
    "places of axes apart": lambda x, w: x[torch.tensor([0, 1, 1]), :, torch.tensor([2, 0, 2])],
    "sums at indices": lambda x, w: torch.zeros(5, 6).index_add(0, torch.tensor([1, 4, 1, 0]), x[0, :, 0]),
    "values at indices": lambda x, w: x.scatter(1, torch.tensor([[[[0, 2]]], [[[1, 3]]]]), w[:4].reshape(2, 1, 1, 2)),
    "one value at indices": lambda x, w: x.scatter(1, torch.tensor([[[[0]]], [[[1]]]]), 2.0),
    "a value where a mask is": lambda x, w: x.index_put((x.detach() > 0,), w[:1]),
    "elements of an axis": lambda x, w: x.gather(2, torch.tensor([[0, 2], [1, 1]]).reshape(2, 2, 1, 1)),
    "largest elements": lambda x, w: x.topk(3, 2)[0] + x.min(2, keepdim=True)[0],
    "every second one": lambda x, w: x[:, 1::2, ::3],
    "memory": lambda x, w: x.as_strided((3, 2), (7, 2), 1) * 2,
    "cross entropy of places": lambda x, w: functional.cross_entropy(x, torch.zeros(2, 8, 6, dtype=torch.int64)),
    "near and far": lambda x, w: functional.smooth_l1_loss(x, x.flip(0).detach()).reshape(1),
}  # fmt: skip


class Function(nn.Module):
    """A function of images and of parameters."""

    def __init__(self, function):
        super().__init__()
        self.function, self.w, self.x = function, nn.Parameter(torch.randn(32)), nn.Parameter(torch.randn(2, 4, 8, 6))

    def forward(self):
        return self.function(self.x, self.w)


@pytest.mark.filterwarnings("error:the backend mp_core leaves:UserWarning")
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_compute_what_torch_computes_with_their_gradients(name):
    found = Function(OPERATORS[name])
    expected, exact = gradients(found, found, {})
    compiled = torch.compile(found, backend=backend)
    for _ in range(2):
        result, near = gradients(compiled, found, {})
        assert_near(result, expected)
        assert_gradients(near, exact)


def test_writing_into_parts_of_a_tensor_runs_here():
    def function(x):
        y = x * 2
        y[:, 1:3] = 5
        y[0] += 1
        y[:, ::2] = x[:, ::2]
        return y

    x = torch.randn(3, 8)
    assert explain(function, x) == {}
    assert_near(torch.compile(function, backend=backend)(x), function(x))


def test_memory_of_a_tensor_that_is_not_contiguous_stays_with_torch():
    def function(x):
        return torch.relu(x.t()).as_strided((2, 2), (1, 3)) + 1

    x = torch.randn(3, 4)
    assert list(explain(function, x)) == ["aten.as_strided.default"]
    with pytest.warns(UserWarning, match="as_strided"):
        assert_near(torch.compile(function, backend=backend)(x), function(x))


def at_a_mask_of_columns(x):
    changed = x.reshape(1, 5).clone()
    changed[:, x > 1] = torch.ones(3)
    return changed


CALLS = {
    "as_strided of a part": (lambda x: torch.as_strided(x[1:], (2,), (1,), 0), "as_strided"),
    "a mask with several values": (lambda x: x.index_put((x > 1,), torch.ones(3)), "index_put"),
    "a mask beside another axis": (at_a_mask_of_columns, "index_put"),
    "a mask, added": (lambda x: x.index_put((x > 1,), torch.tensor(2.0), accumulate=True), "index_put"),
    "a pool without a batch": (lambda x: functional.avg_pool2d(x.reshape(1, 1, 5), 1, 2), "pool2d"),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_an_operator_does_not_compute_stay_with_torch(name):
    call, operator = CALLS[name]
    x = torch.arange(5.0)
    with pytest.warns(UserWarning, match=f"leaves these operators to torch: .*{operator}"):
        found = torch.compile(lambda x: call(x) * 2, backend=backend)(x)
    np.testing.assert_array_equal(found, call(x) * 2)


# ---- what stays with torch


def divided(x):
    y = torch.relu(x)
    print("what torch cannot trace")
    return y + 1


def test_a_divided_graph_is_named_in_a_warning_and_by_explain():
    x = torch.ones(3)
    (reason,) = explain(divided, x)
    assert "print" in reason or "builtin" in reason
    with pytest.warns(UserWarning, match=r"torch divides the graph: .*test_torch_backend.py, line \d+"):
        assert_near(torch.compile(divided, backend=backend)(x), divided(x))


def test_explain_names_recurrent_modules_that_torch_leaves_out_of_graphs():
    x = torch.randint(0, 40, (2, 3))
    with torch._dynamo.config.patch(allow_rnn=False):
        assert explain(Tagger(), x) == {"torch.nn.LSTM": 1}
    assert explain(Tagger(), x) == {}


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_recurrent_modules_run_here_with_their_gradients(kind):
    found = kind(6, 5, batch_first=True, bidirectional=True)
    x = torch.randn(2, 4, 6)
    compiled = torch.compile(lambda x: found(x)[0], backend=backend)
    expected, exact = gradients(lambda x: found(x)[0], found, {"x": x})
    result, near = gradients(compiled, found, {"x": x})
    assert_near(result, expected)
    assert_gradients(near, exact)


# ---- training


class Classifier(nn.Module):
    """An architecture of transformers with a layer for 5 classes."""

    def __init__(self, name, width):
        super().__init__()
        self.body, self.head = module(name), nn.Linear(width, 5)

    def forward(self, **inputs):
        return self.head(self.body(**inputs).pooler_output.flatten(1))


TRAINED = {
    "texts": (lambda: Classifier("bert", 32), lambda: MODULES["bert"][1](4), 4,
              lambda p: torch.optim.AdamW(p, 1e-3)),
    "images": (lambda: Classifier("resnet", 16), lambda: MODULES["resnet"][1](4), 4,
               lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9)),
    "tagger": (Tagger, lambda: MODULES["lstm"][1](4), 28, lambda p: torch.optim.Adam(p, 1e-2)),
}  # fmt: skip
"""Name -> (module, inputs, targets of a batch, optimizer)."""


def losses_of(name, steps, is_compiled, rate=0.0):
    """Train a new network from a fixed seed; return its losses."""
    make, inputs, count, optimizer_of = TRAINED[name]
    torch.manual_seed(1)
    batches = [(inputs(), torch.randint(0, 5, (count,))) for _ in range(steps)]
    found = make().train()
    for part in found.modules():
        if isinstance(part, nn.Dropout):
            part.p = rate
    step, optimizer, losses = torch.compile(found, backend=backend) if is_compiled else found, None, []
    optimizer = optimizer_of(found.parameters())
    torch.manual_seed(2)
    for given, targets in batches:
        optimizer.zero_grad()
        loss = functional.cross_entropy(step(**given).reshape(-1, 5), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_fifty_steps_of_a_training_loop_follow_the_losses_of_torch(name):
    expected = losses_of(name, 50, False)
    assert min(expected) < expected[0]
    with all_here():
        found = losses_of(name, 50, True)
    np.testing.assert_allclose(found, expected, 1e-3, 1e-3)


def test_dropout_draws_the_numbers_that_torch_draws():
    expected = losses_of("texts", 4, False, 0.3)
    with pytest.warns(UserWarning, match="leaves these operators to torch: aten.native_dropout.default"):
        found = losses_of("texts", 4, True, 0.3)
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


# ---- policies


def in_groups():
    policies = DTypePolicyMap(default_policy="float32")
    policies[".*(query|key|value|dense|project|head|first|deep).*"] = "int4/16_from_float32"
    return policies


POLICIES = {
    "mixed_bfloat16": (lambda: "mixed_bfloat16", torch.bfloat16, 0.03),
    "mixed_float16": (lambda: "mixed_float16", torch.float16, 0.004),
    "int8": (lambda: "int8_from_float32", None, 0.05),
    "int4 in groups of 16": (in_groups, None, 0.35),
}
"""Name -> (policy, the type of torch that computes alike, the largest error as a share of the largest output)."""


@pytest.mark.parametrize("kind", [Texts, Images])
@pytest.mark.parametrize("name", POLICIES)
def test_policies_of_exported_and_compiled_modules_have_the_errors_of_their_types(name, kind):
    policy, dtype, bound = POLICIES[name]
    x = torch.randint(0, 20, (6, 7)) if kind is Texts else torch.randn(6, 3, 17, 17)
    found = ready(kind())
    with torch.no_grad():
        exact = found(x).numpy()
        results = [from_exported(torch.export.export(found, (x,)), policy())(x.numpy())]
        results.append(torch.compile(found, backend=backend, options={"policy": policy()})(x).numpy())
        errors = [np.abs(y.astype(np.float32) - exact).max() / np.abs(exact).max() for y in results]
        assert 0 < min(errors) <= max(errors) <= bound
        if dtype is not None:
            of_torch = ready(found.to(dtype))(x if kind is Texts else x.to(dtype)).float().numpy()
            assert max(errors) <= 2 * np.abs(of_torch - exact).max() / np.abs(exact).max()
