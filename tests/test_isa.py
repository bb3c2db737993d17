"""Every instruction set of the machine gives the same bits in reproducible order; a wrong choice is a clear error."""

import os
import sys

import numpy as np
import processes
import pytest
from oracles import NARROW, assert_same_bits, values

import mp_core as mp
from mp_core.core import cpu
from mp_core.layers.activations import FUSED


def hostile(rng, shape, dtype):
    """Bits at random: all exponents, subnormals, infinities; few NaN."""
    dtype = np.dtype(dtype)
    x = rng.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8).view(dtype)[..., 0]
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(x) & (rng.random(shape) < 0.99), np.ones((), dtype), x)


def tiny(rng, shape, dtype):
    """Around the smallest normal number of bfloat16 and float32, where flushing shows."""
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-70, -55, shape)).astype(np.float32).astype(dtype)


def flushed(rng, shape, dtype):
    """Subnormal operands beside normal ones."""
    return (
        (rng.standard_normal(shape) * 2.0 ** rng.choice([-130, -128, -126, 0, 1], shape))
        .astype(np.float32)
        .astype(dtype)
    )


def product(kind, dtype):
    def run(rng):
        a, b = kind(rng, (13, 1031), dtype), kind(rng, (1031, 85), dtype)
        bias = rng.standard_normal(85).astype(np.float32)
        yield mp.matmul(a, b)
        yield mp.matmul(a, mp.pack(b), out_dtype="float32", bias=bias, activation="gelu")
        for activation in FUSED.values():
            yield mp.matmul(a[:, :3], b[:3], out_dtype="float16", activation=activation)
        yield mp.matmul(a[:1, :2], b[:2], out_dtype="float8_e4m3fn")

    return run


def normal(rng, shape, dtype):
    return values(rng, shape, dtype, 10)


def integer_products(rng):
    a, b = rng.integers(-128, 128, (9, 515)).astype(np.int8), rng.integers(-128, 128, (515, 77)).astype(np.int8)
    yield mp.matmul(a, b)
    q, w = mp.quantize(rng.standard_normal((9, 515)), axis=0), mp.quantize(rng.standard_normal((515, 77)), axis=1)
    yield mp.matmul(q, mp.pack(w), out_dtype="bfloat16", activation="gelu")


def casts(rng):
    x = hostile(rng, (5000,), np.float32)
    for dtype in NARROW:
        narrow = mp.cast(x, dtype)
        yield narrow
        yield mp.cast(x, dtype, saturate=True)
        yield mp.cast(narrow, "float32")
        yield mp.cast(hostile(rng, (3000,), np.float64), dtype)


def rows(rng):
    for dtype in ("float32", "float16", "bfloat16"):
        for n in (1, 15, 16, 17, 1000):
            x = values(rng, (7, n), dtype, 6)
            yield mp.softmax(x, scale=0.3)
            yield mp.softmax(x, mask=rng.random((7, n)) < 0.5)
            yield mp.layer_norm(x, np.ones(n, np.float32), residual=x[::-1].copy())
            for activation in FUSED:
                yield activation(x)
        for length in (1, 33, 200):
            parts = (values(rng, (2, length, 3, 20), dtype, 1) for _ in range(3))
            yield mp.dot_product_attention(*parts, values(rng, (length, length), "float32", 1), is_causal=True)
    yield from (f(hostile(rng, (4000,), np.float32)) for f in FUSED)


def quantized(rng):
    x = hostile(rng, (30, 301), np.float32)
    for axis in (None, 0, 1):
        for symmetric in (True, False):
            q = mp.quantize(x, axis=axis, symmetric=symmetric)
            yield q.values
            yield q.scale
            yield mp.dequantize(q)


CASES = {
    **{
        f"{kind.__name__} {dtype}": product(kind, dtype) for kind in (normal, hostile) for dtype in ("float32", *NARROW)
    },
    "around the smallest normal, bfloat16": product(tiny, "bfloat16"),
    "around the smallest normal, float32": product(tiny, "float32"),
    "subnormal bfloat16 operands": product(flushed, "bfloat16"),
    "int8": integer_products,
    "casts": casts,
    "rows": rows,
    "quantization": quantized,
}


@pytest.mark.usefixtures("reproducible")
@pytest.mark.parametrize("case", CASES)
def test_every_isa_gives_the_same_bits(case):
    before, results = cpu.isa(), {}
    with np.errstate(all="ignore"):
        for name in cpu.available_isas():
            cpu.set_isa(name)
            results[name] = list(CASES[case](np.random.default_rng(7)))
    cpu.set_isa(before)
    reference = results.pop("scalar")
    for outputs in results.values():
        for actual, expected in zip(outputs, reference, strict=True):
            assert_same_bits(actual, expected)


def test_bfloat16_products_flush_subnormals_and_leave_the_environment_alone(isa):
    subnormal, one = np.array([[2.0**-130]]).astype("bfloat16"), np.ones((1, 1), "bfloat16")
    assert mp.matmul(subnormal, one, out_dtype="float32") == 0
    half = np.array([[2.0**-64]]).astype("bfloat16")
    assert mp.matmul(half, half, out_dtype="float32") == 0
    assert np.float32(2.0**-100) * np.float32(2.0**-40) == np.float32(2.0**-140)
    assert mp.matmul(np.float32([[2.0**-100]]), np.float32([[2.0**-40]])) == np.float32(2.0**-140)


def test_isa_names_and_features():
    assert cpu.available_isas()[-1] == "scalar" and {*cpu.available_isas()} <= set(cpu.isas())
    assert cpu.isa() in cpu.available_isas()
    assert all(isinstance(value, bool) for value in cpu.cpu_features().values())


def test_an_unknown_isa_is_refused_with_the_choices():
    before = cpu.isa()
    with pytest.raises(ValueError, match=r"`name` must be one of .*scalar; received 'mmx', which is unknown"):
        cpu.set_isa("mmx")
    assert cpu.isa() == before


def import_with(**environment):
    code = "from mp_core import config; print(config.isa())"
    return processes.run([sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True)


@pytest.mark.parametrize("name", cpu.available_isas())
def test_the_environment_variable_forces_an_isa(name):
    assert import_with(MP_CORE_ISA=name).stdout.strip() == name


def test_the_environment_variable_must_name_an_isa():
    run = import_with(MP_CORE_ISA="turbo")
    assert run.returncode != 0
    assert "`MP_CORE_ISA` must be one of" in run.stderr and "received 'turbo', which is unknown" in run.stderr


def test_an_unsupported_isa_is_refused(monkeypatch):
    monkeypatch.setattr(cpu, "available_isas", lambda: ("scalar",))
    with pytest.raises(
        ValueError, match="must be one of scalar; received 'avx2', which is not supported by this machine"
    ):
        cpu.set_isa("avx2")
