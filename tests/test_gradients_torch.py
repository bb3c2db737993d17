"""Gradients of rows and elements, compared with torch's, in float32."""

import numpy as np
import pytest

import mp_core as mp
from mp_core import ops
from mp_core.autocast import AutoCastVariable
from mp_core.ops.activations import activate

torch = pytest.importorskip("torch")
F = torch.nn.functional

CASES = {
    "relu": (lambda x: activate("relu", x), F.relu),
    "relu6": (lambda x: activate("relu6", x), F.relu6),
    "gelu": (ops.gelu, F.gelu),
    "gelu_tanh": (lambda x: activate("gelu_tanh", x), lambda x: F.gelu(x, approximate="tanh")),
    "silu": (ops.silu, F.silu),
    "sigmoid": (ops.sigmoid, torch.sigmoid),
    "tanh": (ops.tanh, torch.tanh),
    "elu": (lambda x: activate("elu", x), F.elu),
    "softplus": (ops.softplus, F.softplus),
    "exp": (ops.exp, torch.exp),
    "log1p": (lambda x: ops.log1p(ops.square(x)), lambda x: torch.log1p(x * x)),
    **{
        name: (getattr(ops, name), getattr(torch, name))
        for name in ("expm1", "exp2", "sinh", "cosh", "erf", "erfc", "sin", "cos", "tan", "arctan")
    },
    **{
        name: (
            lambda x, name=name: getattr(ops, name)(ops.multiply(ops.tanh(x), 0.5)),
            lambda x, name=name: getattr(torch, name)(torch.tanh(x) * 0.5),
        )
        for name in ("arcsin", "arccos", "arcsinh", "arctanh")
    },
    "arccosh": (lambda x: ops.arccosh(ops.add(ops.square(x), 1.1)), lambda x: torch.arccosh(x * x + 1.1)),
    "log2": (lambda x: ops.log2(ops.square(x)), lambda x: torch.log2(x * x)),
    "log10": (lambda x: ops.log10(ops.square(x)), lambda x: torch.log10(x * x)),
    "rsqrt": (lambda x: ops.rsqrt(ops.square(x)), lambda x: torch.rsqrt(x * x)),
    "selu": (ops.selu, F.selu),
    "softsign": (ops.softsign, F.softsign),
    "log_sigmoid": (ops.log_sigmoid, F.logsigmoid),
    "mish": (mp.activations.mish, F.mish),
    "power": (lambda x: ops.power(ops.absolute(x), 1.7), lambda x: x.abs() ** 1.7),
    "maximum": (lambda x: ops.maximum(x, ops.negative(x)), lambda x: torch.maximum(x, -x)),
    "clip": (lambda x: ops.clip(x, -0.5, 0.5), lambda x: x.clamp(-0.5, 0.5)),
    "softmax": (lambda x: ops.softmax(x, scale=0.5), lambda x: F.softmax(0.5 * x, -1)),
    "log_softmax": (ops.log_softmax, lambda x: F.log_softmax(x, -1)),
    "layer_norm": (lambda x: ops.layer_norm(x, epsilon=1e-5), lambda x: F.layer_norm(x, x.shape[-1:])),
    "rms_norm": (ops.rms_norm, lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6)),
    "normalize": (ops.normalize, lambda x: F.normalize(x, dim=-1)),
    "max": (lambda x: ops.max(x, -1), lambda x: x.amax(-1)),
    "mean": (lambda x: ops.mean(ops.square(x), (0, -1)), lambda x: (x * x).mean((0, -1))),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_torch(name, rng):
    function, reference = CASES[name]
    x = (2 * rng.standard_normal((3, 5, 70))).astype(np.float32)
    given = torch.tensor(x, requires_grad=True)
    result = reference(given)
    d = rng.standard_normal(tuple(result.shape)).astype(np.float32)
    (result * torch.tensor(d)).sum().backward()
    variable = AutoCastVariable(x, autocast=False, name="x")
    step = mp.value_and_grad(lambda d: mp.sum(ops.multiply(function(variable.numpy()), d)), [variable])
    _, (found,) = step(d)
    expected = given.grad.numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_gradients_of_a_norm_and_its_parameters_are_those_of_torch(rng):
    x, r, d = (rng.standard_normal((40, 70)).astype(np.float32) for _ in range(3))
    scale, offset = rng.standard_normal((2, 70)).astype(np.float32)
    tensors = [torch.tensor(part, requires_grad=True) for part in (x, scale, offset, r)]
    result = F.layer_norm(tensors[0] + tensors[3], (70,), tensors[1], tensors[2])
    (result * torch.tensor(d)).sum().backward()
    variables = [AutoCastVariable(part, autocast=False, name="v") for part in (x, scale, offset, r)]

    def value(d):
        a, b, c, e = (variable.numpy() for variable in variables)
        return mp.sum(ops.multiply(ops.layer_norm(a, b, c, residual=e, epsilon=1e-5), d))

    for found, tensor in zip(mp.value_and_grad(value, variables)(d)[1], tensors, strict=True):
        np.testing.assert_allclose(found, tensor.grad.numpy(), rtol=1e-5, atol=1e-5)
