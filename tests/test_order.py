"""Products of bfloat16 and float8 have the bits of the configured order of sums, on every code path.

NumPy adds in both orders (orders.py). Tile order is tested if the CPU has AMX, or if its instructions are emulated:
`make test-amx-emulated`.
"""

import asyncio
import itertools
import os
import pickle
import sys
import threading

import numpy as np
import processes
import pytest
from oracles import assert_same_bits, gamma
from orders import ISAS, ORDERS, TILES, added, sets, sums

import mp_core as mp
from mp_core import config
from mp_core.arrays.products.plans import product_plan
from mp_core.core import cpu
from mp_core.layers import Dense, LayerNormalization, Sequential

TYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
ROWS = (1, 2, 5, 15, 16, 17, 32, 33, 70)


@pytest.fixture(params=ORDERS)
def order(request):
    with added(request.param):
        yield request.param


def operands(rng, m, k, n, dtype="bfloat16"):
    return mp.cast(rng.standard_normal((m, k)), dtype), mp.cast(rng.standard_normal((k, n)), dtype)


def layouts(b):
    """A right operand that is packed, by rows, by columns, with gaps, and backwards."""
    wide = np.zeros((2 * b.shape[0], b.shape[1] + 9), b.dtype)
    wide[::2, : b.shape[1]] = b
    yield from (mp.pack(b), b, np.asfortranarray(b), wide[::2, : b.shape[1]], np.ascontiguousarray(b[::-1])[::-1])


# ---- the two orders


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("k", "n"), [(1, 1), (2, 16), (31, 17), (32, 64), (33, 100), (300, 48), (2048, 16), (2077, 130)]
)
def test_products_are_those_of_numpy(k, n, dtype, order, rng):
    """One sum for any rows, layout, threads and epilogue."""
    a, b = operands(rng, 70, k, n, dtype)
    bias = rng.standard_normal(n).astype(np.float32)
    expected = sums(order, a, b)
    rights = [*layouts(b)]
    for isa in sets(order):
        cpu.set_isa(isa)
        for m in ROWS if isa != "scalar" else (1, 6):
            for right in rights:
                assert_same_bits(mp.matmul(a[:m], right, out_dtype="float32"), expected[:m])
            for left in (np.asfortranarray(a[:m]), np.concatenate([a, a], axis=1)[:m, :k]):
                assert_same_bits(mp.matmul(left, rights[m % 3], out_dtype="float32"), expected[:m])
            got = mp.matmul(a[:m], rights[m % 3], bias=bias, out_dtype="bfloat16")
            assert_same_bits(got, mp.cast(expected[:m] + bias, "bfloat16"))
            got = mp.matmul(a[:m], rights[m % 3], out_dtype="float16", activation="relu")
            assert_same_bits(got, mp.cast(np.maximum(expected[:m], 0), "float16"))
        for threads in (2, 3):
            with config.num_threads(threads):
                for right in rights:
                    assert_same_bits(mp.matmul(a, right, out_dtype="float32"), expected)
    assert_same_bits(mp.matmul(a, b), mp.cast(expected, dtype))


def test_the_orders_differ():
    """A large number and its negative meet first in one order, last in the other."""
    a, b = np.ones((1, 64), np.float32), np.full((64, 1), 2.0**-8, np.float32)
    b[0], b[33] = 2.0**17, -(2.0**17)
    pairs, tiles = (float(sums(order, a, b)[0, 0]) for order in ("reproducible", "AMX tiles"))
    assert pairs != tiles
    for name, expected in zip(ORDERS, (pairs, tiles), strict=False):
        with added(name):
            assert (
                float(mp.matmul(mp.cast(a, "bfloat16"), mp.cast(b, "bfloat16"), out_dtype="float32")[0, 0]) == expected
            )


@pytest.mark.parametrize("dtype", ["int8", "int4", "float8_e4m3fn"])
@pytest.mark.parametrize("group", [None, 8, 32, 40, 64, 96, 4096])
def test_products_with_weights_of_codes(group, dtype, order, rng):
    """A scale for each column comes last; scale groups are K blocks, in the tile order if whole AMX tiles fill them."""
    k, n = 331, 70
    x, w = mp.cast(rng.standard_normal((70, k)), "bfloat16"), rng.standard_normal((k, n)).astype(np.float32)
    packed = mp.pack(mp.quantize(w, axis=1, dtype=dtype, group_size=group))
    codes = mp.cast(packed.unpack(), "float32")
    expected = sums(order, x, codes, packed.scale, group) if group else sums(order, x, codes) * packed.scale
    bias = rng.standard_normal(n).astype(np.float32)
    for isa in sets(order):
        cpu.set_isa(isa)
        for m in ROWS if isa != "scalar" else (1, 6):
            assert_same_bits(mp.matmul(x[:m], packed, out_dtype="float32"), expected[:m])
            got = mp.matmul(x[:m], packed, bias=bias, activation="relu")
            assert_same_bits(got, mp.cast(np.maximum(expected[:m] + bias, 0), "bfloat16"))


@pytest.mark.parametrize("m", [1, 40, 200])
@pytest.mark.parametrize("group", [None, 32, 128, 1024, 2048])
def test_ranges_of_k_change_no_bit(group, m, order, rng):
    """K blocks longer and shorter than the ranges of K for which a panel is decoded."""
    k = 4096 + 96
    x, w = mp.cast(rng.standard_normal((m, k)), "bfloat16"), rng.standard_normal((k, 33)).astype(np.float32)
    packed = mp.pack(mp.quantize(w, axis=1, dtype="int4", group_size=group))
    codes = mp.cast(packed.unpack(), "float32")
    expected = sums(order, x, codes, packed.scale, group) if group else sums(order, x, codes) * packed.scale
    assert_same_bits(mp.matmul(x, packed, out_dtype="float32"), expected)


@pytest.mark.parametrize("order", ["AMX tiles"])
@pytest.mark.parametrize("k", [1, 33, 700, 4096])
def test_the_error_of_tile_order_is_within_its_bound(k, order, rng):
    a, b = operands(rng, 20, k, 30)
    exact, size = (f(a.astype(np.float64)) @ f(b.astype(np.float64)) for f in (np.asarray, np.abs))
    assert np.all(np.abs(sums(order, a, b) - exact) <= gamma(17 + -(-k // 32)) * size)


def test_subnormal_numbers_are_flushed_in_both(order, rng):
    a, b = (
        mp.cast(rng.standard_normal((33, 77)) * 2.0**-70, "bfloat16"),
        mp.cast(rng.standard_normal((77, 20)) * 2.0**-56, "bfloat16"),
    )
    expected = sums(order, a, b)
    assert np.any((expected == 0) != (np.float64(a) @ np.float64(b) == 0))
    for right in layouts(b):
        np.testing.assert_array_equal(mp.matmul(a, right, out_dtype="float32"), expected)
    subnormal = np.array([[2.0**-130]]).astype("bfloat16")
    assert mp.matmul(subnormal, np.ones((1, 1), "bfloat16"), out_dtype="float32") == 0


@pytest.mark.parametrize("k", [1, 7, 33, 95])
def test_padding_along_k_meets_no_infinity(k, order):
    """The elements that an AMX tile or a pair lacks are zeros on both sides: infinity times 0 would be NaN."""
    a, b = np.full((3, k), np.inf, np.float32).astype("bfloat16"), np.ones((k, 20), "bfloat16")
    for right in layouts(b):
        assert np.all(mp.matmul(a, right, out_dtype="float32") == np.inf)
    assert np.all(mp.matmul(np.ascontiguousarray(b.T), np.ascontiguousarray(a.T), out_dtype="float32") == np.inf)


# ---- other ways to products


def test_columns_vectors_and_batches(order, rng):
    a, b = operands(rng, 50, 333, 3)
    expected = sums(order, a, b)
    for column in (b[:, :1], np.ascontiguousarray(b[:, :1]), mp.pack(b[:, :1])):
        assert_same_bits(mp.matmul(a, column, out_dtype="float32"), expected[:, :1])
        assert_same_bits(mp.matmul(np.asfortranarray(a), column, out_dtype="float32"), expected[:, :1])
    assert_same_bits(mp.matmul(a, b[:, 1], out_dtype="float32"), expected[:, 1])
    assert_same_bits(mp.matmul(a[7], b, out_dtype="float32"), expected[7])
    stacked, rights = np.stack([a, a[::-1]])[:, None], np.stack([b, b[:, ::-1], b])
    for right in (rights, mp.pack(rights), rights.transpose(0, 2, 1).copy().transpose(0, 2, 1)):
        got = mp.matmul(stacked, right, out_dtype="float32")
        assert_same_bits(got[0, 0], expected)
        assert_same_bits(got[1, 1], np.ascontiguousarray(expected[::-1, ::-1]))
    assert_same_bits(mp.einsum("mk,kn->nm", a, b), np.ascontiguousarray(mp.cast(expected, "bfloat16").T))


@pytest.mark.parametrize("threads", [1, 2])
def test_attention(threads, order, rng):
    """Scores, softmax, products with the values: each is the operation by itself; so are those of ragged arrays."""
    lengths, heads, size = (40, 1, 97), 2, 24
    q, k, v = (mp.cast(rng.standard_normal((sum(lengths), heads, size)), "bfloat16") for _ in range(3))
    offsets = np.cumsum([0, *lengths]).astype(np.int32)
    with config.num_threads(threads):
        ragged = mp.ops.ragged_attention(q, k, v, offsets)
        for begin, end in itertools.pairwise(offsets):
            whole = mp.dot_product_attention(q[None, begin:end], k[None, begin:end], v[None, begin:end])[0]
            for head in range(heads):
                part = [x[begin:end, head] for x in (q, k, v)]
                weights = mp.softmax(sums(order, part[0], part[1].T), scale=size**-0.5)
                expected = mp.cast(sums(order, mp.cast(weights, "bfloat16"), part[2]), "bfloat16")
                assert_same_bits(np.ascontiguousarray(whole[:, head]), expected)
                assert_same_bits(np.ascontiguousarray(ragged[begin:end, head]), expected)


def dense(rng, activation=None):
    layer = Dense(48, activation=activation, dtype="bfloat16")
    layer.build((None, 100))
    layer.kernel.assign(rng.standard_normal((100, 48)))
    layer.bias.assign(rng.standard_normal(48))
    return layer


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("m", [1, 9, 40])
def test_layers(m, activation, order, rng):
    """The epilogue is fused with the product; a kernel that was packed in one order is used in the other."""
    layer, x = dense(rng, activation), mp.cast(rng.standard_normal((m, 100)), "bfloat16")
    for name in (*reversed(ORDERS), order):
        with added(name):
            expected = sums(name, x, layer.kernel.numpy()) + np.float32(layer.bias.numpy())
            if activation:
                expected = getattr(mp, activation)(expected)
            assert_same_bits(layer(x), mp.cast(expected, "bfloat16"))


def test_a_packed_matrix_serves_both_orders(order, rng):
    a, b = operands(rng, 33, 300, 70)
    packed = pickle.loads(pickle.dumps(mp.pack(b)))
    for name in (*ORDERS, order):
        with added(name):
            assert bytes(mp.pack(b).data) == bytes(packed.data)
            assert_same_bits(mp.matmul(a, packed, out_dtype="float32"), sums(name, a, b))


@pytest.mark.parametrize("recorded", ORDERS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_plan_has_the_order_of_its_call(threads, recorded, rng):
    """Whatever the order was when it was recorded; from C too, which has the setting of the process."""
    layers = Sequential([dense(rng, "gelu"), LayerNormalization(dtype="bfloat16"), Dense(5, dtype="bfloat16")])
    x = mp.cast(rng.standard_normal((21, 100)), "bfloat16")
    with added(recorded):
        plan = mp.compile(layers, x)
    with config.num_threads(threads):
        for name in (*ORDERS, *ORDERS):
            with added(name):
                assert_same_bits(plan(x), layers(x))
        for name in ORDERS:
            with added(ORDERS[0]), config.reproducible(name == "reproducible"):
                assert_same_bits(plan(x), layers(x))


def test_what_is_no_pair_of_bfloat16_keeps_its_bits(rng):
    a, b = rng.standard_normal((40, 300)).astype(np.float32), rng.standard_normal((300, 70)).astype(np.float32)
    codes = [rng.integers(-128, 128, shape).astype(np.int8) for shape in ((40, 300), (300, 70))]
    cases = [(a, b), (mp.cast(a, "float16"), mp.cast(b, "bfloat16")), (mp.cast(a, "bfloat16"), b), codes]
    results = []
    for name in ORDERS:
        with added(name):
            results.append([mp.matmul(*case) for case in cases])
    assert np.array_equal(results[0][3], codes[0].astype(np.int32) @ codes[1].astype(np.int32))
    for result in results:
        for actual, expected in zip(result, results[0], strict=True):
            assert_same_bits(actual, expected)


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != TILES])
def test_without_amx_the_setting_changes_nothing(isa, rng):
    a, b = operands(rng, 20, 300, 70)
    before = cpu.isa()
    cpu.set_isa(isa)
    try:
        with config.reproducible(False):
            assert cpu.order_and_reason() == ("reproducible", f"{isa} has no AMX tiles")
            assert_same_bits(mp.matmul(a, b, out_dtype="float32"), sums("reproducible", a, b))
    finally:
        cpu.set_isa(before)


# ---- the plan of a product: pure, so also for CPUs that are not at hand


@pytest.mark.skipif(TILES not in cpu.isas(), reason="kernels for another architecture, or for some sets only")
@pytest.mark.parametrize("m", [1, 16, 300])
@pytest.mark.parametrize("layout", ["packed", "kn", "nk"])
def test_neither_rows_nor_layout_decide_the_order(layout, m):
    for reproducible in (True, False):
        plan = product_plan(m, 768, 3072, "bfloat16", layout=layout, isa=TILES, reproducible=reproducible)
        assert plan["amx"] == (not reproducible)
        assert not product_plan(m, 768, 3072, "float16", layout=layout, isa=TILES, reproducible=reproducible)["amx"]
    integers = [product_plan(m, 768, 3072, "int8", layout=layout, isa=TILES, reproducible=r) for r in (True, False)]
    assert integers[0] == integers[1]


@pytest.mark.skipif(TILES not in cpu.isas(), reason="kernels for another architecture, or for some sets only")
@pytest.mark.parametrize(("group", "amx"), [(0, True), (8, False), (32, True), (48, False), (64, True), (1000, True)])
def test_scale_groups_of_whole_tiles_go_by_tiles(group, amx):
    for m in (1, 100):
        plan = product_plan(m, 960, 64, "bfloat16", b_dtype="int4", group=group, isa=TILES, reproducible=False)
        assert plan["amx"] == amx


# ---- the setting


@pytest.fixture
def setting():
    before = config.is_reproducible()
    yield
    config.set_reproducible(before)


def test_scopes_nest_and_end(setting):
    config.set_reproducible(False)
    with config.reproducible():
        assert config.is_reproducible()
        with config.reproducible(False):
            assert not config.is_reproducible()
        assert config.is_reproducible()
    assert not config.is_reproducible()
    with pytest.raises(KeyError), config.reproducible():
        raise KeyError
    assert not config.is_reproducible()
    config.set_reproducible(True)
    assert config.is_reproducible()


def test_a_scope_belongs_to_its_thread_and_task(setting):
    config.set_reproducible(False)
    seen = []
    with config.reproducible():
        thread = threading.Thread(target=lambda: seen.append(config.is_reproducible()))
        thread.start()
        thread.join()
    assert seen == [bool(getattr(sys.flags, "thread_inherit_context", False))]

    async def scoped(value):
        with config.reproducible(value):
            await asyncio.sleep(0.01)
            return config.is_reproducible()

    async def both():
        return await asyncio.gather(scoped(True), scoped(False))

    assert asyncio.run(both()) == [True, False]


@pytest.mark.parametrize("value", [1, 0, None, "1", np.True_])
def test_only_true_and_false_are_settings(value):
    with pytest.raises(ValueError, match="`reproducible` must be True or False; received"):
        config.set_reproducible(value)
    with pytest.raises(ValueError, match="`reproducible` must be True or False; received"), config.reproducible(value):
        pass


def reported(**environment):
    code = "from mp_core import config as c; print(c.is_reproducible(), c.show_config(as_dict=True)['order_reason'])"
    clean = {name: value for name, value in os.environ.items() if name != "MP_CORE_REPRODUCIBLE"}
    return processes.run([sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True)


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_the_environment_decides(value, expected):
    said = reported(MP_CORE_REPRODUCIBLE=value).stdout.split(maxsplit=1)
    assert said[0] == str(expected)
    if TILES in ISAS:
        assert said[1].strip() == ("MP_CORE_REPRODUCIBLE" if value else "default")


@pytest.mark.parametrize("value", ["yes", "2", "01", "true"])
def test_another_value_of_the_environment_is_refused(value):
    run = reported(MP_CORE_REPRODUCIBLE=value)
    assert run.returncode != 0
    assert f"`MP_CORE_REPRODUCIBLE` must be one of 0, 1; received {value!r}" in run.stderr


def test_the_report_says_which_order_and_why(order):
    report = config.show_config(as_dict=True)
    assert report["order"] == order
    said = report["kernels"]["matmul bfloat16"]
    assert ("tdpbf16ps" in said) == (order == "AMX tiles")
    if cpu.isa() == TILES:
        assert said == f"{TILES}: {'tdpbf16ps' if order == 'AMX tiles' else 'vfmadd231ps zmm'}"
        assert report["order_reason"] == "set_reproducible()"
        with config.reproducible(order == "reproducible"):
            assert config.show_config(as_dict=True)["order_reason"] == "reproducible() scope"
