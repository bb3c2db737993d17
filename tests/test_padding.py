"""ops.pad with the elements of an array: equal to numpy.pad; gradients, plans and types too."""

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import ops

MODES = ("edge", "reflect", "symmetric", "wrap")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [1, 2, 3, 5])
@pytest.mark.parametrize("widths", [(0, 1), (2, 3), (7, 0)])
def test_elements_are_those_of_numpy(mode, length, widths, rng):
    for dtype in ("float32", "bfloat16", "float64", "int8", "bool"):
        x = mp.cast(rng.integers(0, 2, (2, length, 3)), dtype)
        pairs = [(0, 0), widths, (1, 0)]
        assert_same_bits(ops.pad(x, pairs, mode=mode), np.pad(x, pairs, mode))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("mode", MODES)
def test_plans_give_the_bits_of_calls(mode, dtype, rng):
    x = mp.cast(rng.standard_normal((2, 4, 3)), dtype)
    expected = np.pad(x, [(0, 0), (3, 5), (1, 0)], mode)
    for call in (lambda x: ops.pad(x, [(0, 0), (3, 5), (1, 0)], mode=mode),
                 lambda x: np.pad(x, [(0, 0), (3, 5), (1, 0)], mode)):  # fmt: skip
        assert_same_bits(mp.compile(call, np.zeros_like(x))(x), expected)


@pytest.mark.parametrize(("mode", "theirs"), [("edge", "replicate"), ("reflect", "reflect"), ("wrap", "circular")])
def test_gradients_are_those_of_torch(mode, theirs, rng):
    torch = pytest.importorskip("torch")
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    given = torch.tensor(x, requires_grad=True)
    result = torch.nn.functional.pad(given, (2, 3, 1, 2), theirs)
    d = rng.standard_normal(tuple(result.shape)).astype(np.float32)
    (result * torch.tensor(d)).sum().backward()
    variable = mp.AutoCastVariable(x, autocast=False, name="x")
    pairs = [(0, 0), (0, 0), (1, 2), (2, 3)]
    step = mp.value_and_grad(lambda d: mp.sum(ops.multiply(ops.pad(variable.numpy(), pairs, mode=mode), d)), [variable])
    np.testing.assert_allclose(step(d)[1][0], given.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_arguments_that_do_not_fit_are_refused():
    x = np.zeros((2, 0), np.float32)
    with pytest.raises(ValueError, match="`mode` must be 'constant', 'edge'"):
        ops.pad(x, 1, mode="mean")
    with pytest.raises(ValueError, match="`x` must have elements along axis 1"):
        ops.pad(x, 1, mode="edge")
    with pytest.raises(ValueError, match="`value` must not be given with the mode 'edge'"):
        ops.pad(x, 1, 2.0, mode="edge")


def test_numbers_are_cut_off_towards_zero():
    for dtype in ("float32", "float16", "bfloat16", "float64"):
        x = np.array([-2.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.7, np.inf, -np.inf, np.nan]).astype(mp.dtypes.parse(dtype))
        assert_same_bits(ops.trunc(x), np.trunc(x))
    assert_same_bits(ops.trunc(np.int8([-3, 2])), np.int8([-3, 2]))
