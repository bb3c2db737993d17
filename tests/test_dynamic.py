"""Products that quantize the left operand to int8: each row by its own scale, independent of other rows."""

import c_functions as c
import numpy as np
import pytest
from oracles import assert_same_bits, rows_of_every_size

import mp_core as mp
from mp_core import layers

FLOATS = ("float32", "float16", "bfloat16")
K, N = 40, 24


@pytest.fixture
def kernel(rng):
    return mp.quantize(rng.standard_normal((K, N)) / 64, axis=1)


def quantized_first(x, kernel, **settings):
    """The oracle: the codes of quantize, multiplied as int8."""
    return mp.matmul(mp.quantize(x, axis=0), mp.pack(kernel), **settings)


@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_each_row_has_the_codes_that_quantize_gives_it(isa, dtype, out_dtype, kernel, rng):
    x, right, bias = rows_of_every_size(rng, dtype, K), mp.pack(kernel), rng.standard_normal(N, np.float32)
    settings = {"out_dtype": out_dtype, "bias": bias, "activation": "relu"}
    expected = quantized_first(x, kernel, **settings)
    assert_same_bits(mp.dynamic_matmul(x, right, **settings), expected)
    assert_same_bits(mp.dynamic_matmul(x[:, None], right, **settings)[:, 0], expected)
    apart = np.empty((len(x), 2 * K), x.dtype)[:, ::2]
    apart[...] = x
    assert_same_bits(mp.dynamic_matmul(apart, right, **settings), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_row_does_not_depend_on_the_rows_beside_it(isa, dtype, kernel, rng):
    x, right = rows_of_every_size(rng, dtype, K), mp.pack(kernel)
    alone = np.concatenate([mp.dynamic_matmul(row[None], right, out_dtype="float32") for row in x])
    order = rng.permutation(len(x))
    assert_same_bits(mp.dynamic_matmul(x[order], right, out_dtype="float32"), alone[order])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_so_do_dense_layers_and_their_plans(isa, dtype, rng):
    layer = layers.Dense(N, use_bias=False, dtype=dtype)
    layer.build((None, K))
    layer.quantize("int8")
    kernel = mp.QuantizedArray(
        layer.kernel.numpy(), 1 / layer.kernel_scale.numpy().astype(np.float32)[None], None, (1,)
    )
    x = rows_of_every_size(rng, dtype, K)
    expected = quantized_first(x, kernel, out_dtype=dtype)
    assert_same_bits(layer(x), expected)
    assert_same_bits(mp.compile(layer, x[:5])(x[:5]), expected[:5])
    assert_same_bits(mp.compile(layer, x)(x), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_so_does_c(isa, dtype, kernel, rng):
    x, packed = rows_of_every_size(rng, dtype, K), np.empty(c.call("packed_bytes", c.TYPES["int8"], K, N), np.uint8)
    assert c.call("pack", c.TYPES["int8"], K, N, kernel.values, N, 1, packed, 1) == c.OK
    out, scale = np.empty((len(x), N), np.float32), np.ascontiguousarray(kernel.scale)
    product = c.described(
        c.Product, m=len(x), n=N, k=K, a_type=c.TYPES[dtype], b_type=c.TYPES["int8"], out_type=c.TYPES["float32"],
        a=x, lda=K, packed=packed, out=out, ldo=N, b_scale=scale, quantize_a=1,
    )  # fmt: skip
    assert c.call("multiply", product, None, 2) == c.OK
    assert_same_bits(out, quantized_first(x, kernel, out_dtype="float32"))
