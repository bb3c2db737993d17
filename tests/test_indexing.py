"""Elements at indices: values are NumPy's, indices are checked in calls and in plans, gradients are the transposes."""

import numpy as np
import pytest

import mp_core as mp
from mp_core import ops

RNG = np.random.default_rng(5)
TYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float64", "bool", "uint8", "int32", "int64")
LAYOUTS = {
    "C": lambda x: x, "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "strided": lambda x: np.repeat(x, 2, 1)[:, ::2], "reversed": lambda x: x[:, ::-1].copy()[:, ::-1],
}  # fmt: skip


def drawn(dtype, *shape):
    return mp.cast(RNG.integers(0, 100, shape), dtype)


def both(function, *inputs):
    """Return the result of a call, after comparing that of a plan whose examples are zeros."""
    expected = function(*inputs)
    found = mp.compile(function, *(np.zeros_like(x) for x in inputs))(*inputs)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)
    return found


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_take_is_that_of_numpy(dtype, layout, isa):
    x = LAYOUTS[layout](drawn(dtype, 6, 7, 3))
    for axis in (None, 0, 1, -1):
        n = x.size if axis is None else x.shape[axis]
        for shape in ((), (4,), (2, 3)):
            for kind in (np.int32, np.int64, np.int8):
                ids = np.asarray(RNG.integers(-min(n, 100), min(n, 100), shape), kind)
                found = both(lambda x, ids, axis=axis: ops.take(x, ids, axis), x, ids)
                np.testing.assert_array_equal(found, np.take(x, ids, axis))
                np.testing.assert_array_equal(ops.take(x, ids.tolist(), axis), np.take(x, ids, axis))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_take_along_axis_is_that_of_numpy(dtype, layout, isa):
    x = LAYOUTS[layout](drawn(dtype, 6, 7, 3))
    for axis, shape in ((0, (2, 7, 3)), (1, (6, 9, 1)), (2, (1, 7, 3)), (1, (6, 7, 3))):
        ids = RNG.integers(-x.shape[axis], x.shape[axis], shape)
        found = both(lambda x, ids, axis=axis: ops.take_along_axis(x, ids, axis), x, ids)
        np.testing.assert_array_equal(found, np.take_along_axis(x, ids, axis))
    ids = RNG.integers(-x.size, x.size, 11)
    np.testing.assert_array_equal(both(lambda x, ids: ops.take_along_axis(x, ids), x, ids),
                                  np.take_along_axis(x, ids, None))  # fmt: skip


def test_gather_nd_reads_places_along_the_first_axes():
    x = drawn("float32", 4, 5, 6)
    for count in (1, 2, 3):
        ids = np.stack([RNG.integers(-n, n, (2, 3)) for n in x.shape[:count]], -1)
        found = both(ops.gather_nd, x, ids)
        np.testing.assert_array_equal(found, x[tuple(np.moveaxis(ids, -1, 0))])


APPLIED = {None: None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("reduction", APPLIED)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bfloat16", "float16"])
def test_scatters_apply_updates_in_order(reduction, dtype, isa):
    x = drawn(dtype, 5, 4)
    ids = RNG.integers(-4, 4, (5, 9))
    updates = drawn(dtype, 5, 9)
    expected = x.astype(np.float32) if "float16" in dtype else x.copy()
    rows = np.arange(5)[:, np.newaxis]
    if reduction is None:
        for column in range(9):
            expected[np.arange(5), ids[:, column]] = updates[:, column]
    else:
        with np.errstate(over="ignore"):
            APPLIED[reduction].at(expected, (rows, ids), updates.astype(expected.dtype))
    found = both(lambda x, ids, u: ops.put_along_axis(x, ids, u, 1, reduction), x, ids, updates)
    np.testing.assert_array_equal(found, mp.cast(expected, dtype))


def test_scatter_update_slice_and_slice_update_are_those_of_keras():
    x, updates = drawn("float32", 4, 5, 2), drawn("float32", 3, 2)
    ids = np.array([[1, 2], [3, -1], [1, 2]])
    expected = x.copy()
    for place, update in zip(ids, updates, strict=True):
        expected[tuple(place)] = update
    np.testing.assert_array_equal(both(ops.scatter_update, x, ids, updates), expected)
    np.add.at(expected := x.copy(), tuple(ids.T), updates)
    np.testing.assert_array_equal(both(lambda *a: ops.scatter_update(*a, "add"), x, ids, updates), expected)
    np.add.at(expected := np.zeros((4, 5, 2), np.float32), tuple(ids.T), updates)
    np.testing.assert_array_equal(both(lambda i, u: ops.scatter(i, u, (4, 5, 2)), ids, updates), expected)
    for starts in ((1, 2, 0), np.array([1, 2, 0])):
        np.testing.assert_array_equal(ops.slice(x, starts, (2, 3, 1)), x[1:3, 2:5, :1])
    np.testing.assert_array_equal(
        mp.compile(lambda x, s: ops.slice(x, s, (2, 3, 1)), x, np.zeros(3, int))(x, np.array([1, 2, 0])),
        x[1:3, 2:5, :1],
    )
    part = drawn("float32", 2, 3, 1)
    expected = x.copy()
    expected[1:3, 2:5, :1] = part
    np.testing.assert_array_equal(ops.slice_update(x, (1, 2, 0), part), expected)
    plan = mp.compile(lambda x, s, p: ops.slice_update(x, s, p), x, np.zeros(3, int), part)
    np.testing.assert_array_equal(plan(x, np.array([1, 2, 0]), part), expected)


HOSTILE = {
    "take": lambda x, i: ops.take(x, i[:, 0], axis=1),
    "take of rows": lambda x, i: ops.take(x, i[:, 0], axis=0),
    "take_along_axis": lambda x, i: ops.take_along_axis(x, i, 1),
    "gather_nd": lambda x, i: ops.gather_nd(x, i),
    "put_along_axis": lambda x, i: ops.put_along_axis(x, i, x[:, :1], 1),
    "scatter_update": lambda x, i: ops.scatter_update(x, i, x),
    "slice": lambda x, i: ops.slice(x, (i[0, 0], i[1, 0]), (1, 1)),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("wrong", [5, -6, 2**31, -(2**31), 2**63 - 1, -(2**63)])
def test_indices_outside_are_errors_in_calls_and_in_plans(name, wrong):
    x, right = drawn("float32", 5, 5), np.zeros((5, 1), np.int64)
    bad = right.copy()
    bad[1 if name == "slice" else 3] = wrong
    plan = mp.compile(HOSTILE[name], x, right)
    with pytest.raises(IndexError, match="outside"):
        HOSTILE[name](x, bad)
    with pytest.raises(IndexError, match="outside"):
        plan(x, bad)
    np.testing.assert_array_equal(plan(x, right), HOSTILE[name](x, right))


def test_wrong_arguments_are_named():
    x = np.zeros((3, 4), np.float32)
    with pytest.raises(TypeError, match="`indices` must be integers; received float64"):
        ops.take(x, [0.5])
    with pytest.raises(ValueError, match="broadcast against it except along axis 1"):
        ops.take_along_axis(x, [[0], [1]], 1)
    with pytest.raises(IndexError, match="length 0"):
        ops.take(x[:0], [0], 0)
    with pytest.raises(ValueError, match="`reduction` must be one of"):
        ops.put_along_axis(x, [[0]], x[:, :1], 1, "mean")
    with pytest.raises(TypeError, match="must have the type of `x`, float32; received int64"):
        ops.put_along_axis(x, np.zeros((3, 1), int), np.zeros((3, 1), int), 1)
    with pytest.raises(ValueError, match=r"`updates` must have shape \(3, 1\)"):
        ops.put_along_axis(x, np.zeros((3, 1), int), np.zeros((2, 1), np.float32), 1)
    with pytest.raises(IndexError, match="outside of axis 1 of length 4"):
        ops.slice(x, (0, 2), (1, 3))
    assert ops.take(x, np.zeros((0,), int), 1).shape == (3, 0)


@pytest.mark.parametrize("wide", [False, True])
def test_gradients_are_the_transposes(wide):
    """Compared with a product by the matrix of the linear map, which NumPy gives."""
    dtype = np.float64 if wide else np.float32
    ids, d = RNG.integers(-4, 4, (3, 9)), RNG.integers(-9, 9, (3, 9)).astype(dtype)
    w = mp.AutoCastVariable(RNG.standard_normal((3, 4)).astype(dtype), autocast=False, name="w", dtype=dtype)
    u = mp.AutoCastVariable(RNG.standard_normal((3, 9)).astype(dtype), autocast=False, name="u", dtype=dtype)
    found = mp.grad(lambda i, d: mp.sum(ops.take_along_axis(w, i, 1) * d), [w])(ids, d)[0]
    np.add.at(expected := np.zeros((3, 4)), (np.arange(3)[:, np.newaxis], ids), d)
    np.testing.assert_array_equal(found, expected)
    c = RNG.integers(-9, 9, (3, 4)).astype(dtype)
    for reduction in (None, "add"):
        of_w, of_u = mp.grad(lambda i, c, r=reduction: mp.sum(ops.put_along_axis(w, i, u, 1, r) * c), [w, u])(ids, c)
        kept = c.copy()
        if reduction is None:
            kept[np.arange(3)[:, np.newaxis], ids] = 0
        np.testing.assert_array_equal(of_w, kept)
        np.testing.assert_array_equal(of_u, np.take_along_axis(c, ids, 1))
    with pytest.raises(TypeError, match="no gradient with the reduction 'max'"):
        mp.grad(lambda i: mp.sum(ops.put_along_axis(w, i, u, 1, "max")), [w])(ids)
