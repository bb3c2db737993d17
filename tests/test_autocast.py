"""Autocast variables and scopes (checklist E-ACV)."""

import contextlib
import copy
import operator
import pickle
import re
import sys
import threading
from array import array
from pathlib import Path

import ml_dtypes
import numpy as np
import processes
import pytest
from writes import ARRAYS, written

from mp_core import dtypes, ops
from mp_core.autocast import AutoCastVariable, autocast_scope
from mp_core.layers import Dense
from mp_core.loss_scale import SGD, LossScaleOptimizer
from mp_core.policies.autocast import variable as variable_module
from mp_core.tf_keras.mixed_precision import AutoCastVariable as TFVariable

BF16 = np.dtype(ml_dtypes.bfloat16)


def _variable(value=(1.0, 2.0, 3.0), **kwargs):
    return AutoCastVariable(np.array(value, np.float32), **kwargs)


@pytest.fixture
def casts(monkeypatch):
    """Count the casts that variables make."""
    calls = []

    def cast(x, dtype):
        calls.append(np.dtype(dtype))
        return ops.cast(x, dtype)

    monkeypatch.setattr(
        variable_module, "ops", type("Counting", (), {"cast": staticmethod(cast), "matmul": ops.matmul})
    )
    return calls


# ---- reads


def test_reading_twice_casts_once_until_the_value_changes(casts):
    variable = _variable()
    with autocast_scope("float16"):
        assert np.shares_memory(variable.value, variable.value())
        variable + 1, variable[0], np.asarray(variable)
        assert casts == [np.float16]
        variable.assign_add(1.0)
        casts.clear()
        np.testing.assert_array_equal(variable.value(), np.array([2, 3, 4], np.float16))
        assert casts == [np.float16]


def test_scope_in_the_stored_dtype_does_not_cast(casts):
    with autocast_scope("float32"):
        _variable().value()
    assert casts == []


def test_gather_casts_only_what_it_reads():
    variable = TFVariable(np.arange(12, dtype=np.float32).reshape(4, 3))
    with autocast_scope("float16"):
        for read, expected in [
            (variable.gather([3, 0]), [[9, 10, 11], [0, 1, 2]]),
            (variable.gather([1], axis=1), [[1], [4], [7], [10]]),
            (variable.sparse_read([1]), [[3, 4, 5]]),
            (variable.gather_nd([[0, 1], [3, 2]]), [1, 11]),
        ]:
            assert read.dtype == np.float16
            np.testing.assert_array_equal(read, expected)


BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
          operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]  # fmt: skip
UNARY = [operator.neg, operator.pos, abs]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
@pytest.mark.parametrize("other", [2, 2.0, "array", "variable"], ids=str)
def test_binary_operators_read_cast_values(function, other, dtype):
    variable = _variable()
    cast = variable.numpy().astype(dtype)
    other = {"array": cast + cast, "variable": _variable((2, 2, 2))}.get(other, other)
    right = other.numpy().astype(dtype) if isinstance(other, AutoCastVariable) else np.asarray(other, dtype)
    with autocast_scope(dtype):
        results = [
            (function(variable, other), function(cast, right)),
            (function(other, variable), function(right, cast)),
        ]
    for result, expected in results:
        assert type(result) is np.ndarray and result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("function", UNARY, ids=lambda f: f.__name__)
def test_unary_operators_read_cast_values(function):
    with autocast_scope("float16"):
        assert function(_variable()).dtype == np.float16


def test_matmul_accumulates_in_float32():
    variable = AutoCastVariable(np.ones((300, 2), np.float32))
    x = np.ones((1, 300), BF16)
    with autocast_scope("bfloat16"):
        product = x @ variable
    assert product.dtype == BF16
    np.testing.assert_array_equal(product.astype(np.float32), np.full((1, 2), 300, BF16).astype(np.float32))


def test_numpy_protocols():
    variable = _variable()
    assert variable.__array_priority__ == 100
    with autocast_scope("float16"):
        assert np.asarray(variable).dtype == np.float16
        assert np.asarray(variable, np.float64).dtype == np.float64
        assert np.array(variable).flags.writeable
        assert np.exp(variable).dtype == np.float16
        assert np.sum(variable).dtype == np.float16
        assert np.add.reduce(variable) == 6
        assert np.concatenate([variable, variable]).dtype == np.float16
        with pytest.raises(ValueError, match="copy"):
            np.array(variable, dtype=np.float64, copy=False)
    assert np.array(variable, copy=False).base is not None
    assert (variable.shape, variable.ndim, variable.size, variable.nbytes, len(variable)) == ((3,), 1, 3, 12, 3)
    assert list(variable) == [1, 2, 3]


def test_scalars_convert_and_truth_is_refused():
    scalar = AutoCastVariable(2.6)
    assert (float(scalar), int(scalar), float(round(scalar))) == (pytest.approx(2.6), 2, 3.0)
    with pytest.raises(TypeError, match="cannot be used as a boolean"):
        bool(scalar)
    with pytest.raises(TypeError):
        float(_variable())


# ---- writes


@pytest.mark.parametrize("scope", [None, "float16", "bfloat16"])
def test_trap_8_writes_keep_the_stored_precision(scope):
    variable = _variable((1.0,))
    with autocast_scope(scope):
        for _ in range(3):
            variable.assign_add(np.array([2.0**-20]))
        variable.assign_sub([2.0**-20])
        assert variable.assign(variable) is variable
    assert variable.numpy()[0] == 1 + 2.0**-19
    assert variable.true_dtype == np.float32


@pytest.mark.parametrize("kind", [AutoCastVariable, TFVariable])
def test_assignments_chain(kind):
    variable = kind(0.0)
    assert variable.assign(1).assign_add(3).assign_sub(2).numpy() == 2


def test_assign_checks_the_shape():
    with pytest.raises(ValueError, match=r"variable\.shape=\(3,\), Received: value\.shape=\(2,\)"):
        _variable().assign([1, 2])
    with pytest.raises(ValueError, match="must match"):
        _variable().assign_add(np.ones((2, 3)))


def test_assign_casts_once_to_the_stored_dtype():
    variable = AutoCastVariable(np.zeros(1, BF16))
    assert variable.assign(np.array([1.00390626])).numpy().astype(float)[0] == 1.0078125


SCATTERS = [  # method, indices, updates, result from [[1, 2], [3, 4], [5, 6]]
    ("scatter_update", [0, 2], [[9, 9], [8, 8]], [[9, 9], [3, 4], [8, 8]]),
    ("scatter_add", [1, 1], [[1, 1], [2, 2]], [[1, 2], [6, 7], [5, 6]]),
    ("scatter_sub", [0], [[1, 1]], [[0, 1], [3, 4], [5, 6]]),
    ("scatter_mul", [2], [[2, 3]], [[1, 2], [3, 4], [10, 18]]),
    ("scatter_div", [2], [[5, 3]], [[1, 2], [3, 4], [1, 2]]),
    ("scatter_min", [1], [[9, 0]], [[1, 2], [3, 0], [5, 6]]),
    ("scatter_max", [1], [[9, 0]], [[1, 2], [9, 4], [5, 6]]),
    ("batch_scatter_update", [[1], [0], [1]], [[9], [8], [7]], [[1, 9], [8, 4], [5, 7]]),
    ("scatter_nd_update", [[0, 1], [2, 0]], [9, 8], [[1, 9], [3, 4], [8, 6]]),
    ("scatter_nd_add", [[0, 1], [0, 1]], [1, 1], [[1, 4], [3, 4], [5, 6]]),
    ("scatter_nd_sub", [[1, 0]], [3], [[1, 2], [0, 4], [5, 6]]),
]


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize(("method", "indices", "updates", "expected"), SCATTERS, ids=[row[0] for row in SCATTERS])
def test_scatter(method, indices, updates, expected, stored):
    variable = TFVariable([[1, 2], [3, 4], [5, 6]], dtype=stored)
    before = variable.numpy()
    with autocast_scope("float16"):
        assert getattr(variable, method)(indices, updates) is variable
    np.testing.assert_array_equal(variable.numpy().astype(float), expected)
    assert before[1, 0] == 3 and variable.true_dtype == stored


@pytest.mark.parametrize("method", ["scatter_add", "scatter_update", "batch_scatter_update", "scatter_nd_add"])
def test_an_index_beyond_all_others_counts_from_no_end(method):
    variable = TFVariable(np.arange(4.0))
    index = np.array([2**64 - 1], np.uint64)
    with pytest.raises(IndexError, match="index 18446744073709551615 is out of bounds"):
        getattr(variable, method)(index, np.array([9.0]))
    with pytest.raises(IndexError, match="out of bounds"):
        variable.gather_nd(index)
    np.testing.assert_array_equal(variable.numpy(), np.arange(4.0))


def test_iteration():
    with autocast_scope("float16"):
        assert [type(x) for x in AutoCastVariable([1.0, 2.0])] == [np.float16] * 2
    with pytest.raises(TypeError, match="0-d"):
        list(AutoCastVariable(1.0))


def test_in_place_operators_are_refused():
    variable = _variable()
    with pytest.raises(TypeError, match=r"use `variable\.assign_add"):
        variable += 1
    with pytest.raises(TypeError, match="cannot be changed in place"):
        np.add(variable, 1, out=variable)
    with pytest.raises(ValueError, match="read-only"):
        variable.numpy()[0] = 1


@pytest.mark.parametrize("dtype", [None, "float16", "float64"])
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_nothing_in_numpy_writes_into_a_variable(dtype):
    assert written(lambda: AutoCastVariable([[1.0, 2.0], [3.0, 4.0]]), dtype) == []


def test_nothing_in_numpy_writes_into_mapped_weights(tmp_path):
    program = Path(__file__).with_name("writes.py")  # a write to the map would end the process
    result = processes.run([sys.executable, program, tmp_path / "w"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.split(), result.stderr) == (0, [], "")


@pytest.mark.parametrize(
    "change",
    [
        lambda a: setattr(a, "shape", (4,)),
        lambda a: setattr(a, "dtype", "int32"),
        lambda a: setattr(a, "strides", (4, 8)),
        lambda a: a.__setstate__((1, (1,), np.dtype("f4"), False, bytes(4))),
    ],
    ids=("shape", "dtype", "strides", "state"),
)
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_an_array_of_a_variable_that_changes_its_shape_or_type_changes_no_variable(array, change):
    variable = AutoCastVariable([[1.0, 2.0], [3.0, 4.0]])
    with contextlib.suppress(AttributeError, TypeError, ValueError):
        change(array(variable))
    assert variable.shape == (2, 2) and variable.true_dtype == np.float32
    np.testing.assert_array_equal(variable.numpy(), [[1, 2], [3, 4]])


@pytest.mark.parametrize("name", dtypes.ALLOWED)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)], ids=str)
def test_variables_hold_every_type_in_every_order(name, shape):
    array = ops.cast(np.ones((2, *shape)), name)[1, ...]
    for given in (array, np.array(array, order="F"), array[..., ::-1] if shape else array):
        kept = AutoCastVariable(np.zeros(shape), dtype=name).assign(given, copy=False).numpy()
        assert kept.dtype is dtypes.parse(name) and np.shares_memory(kept, given) == bool(given.size)
        np.testing.assert_array_equal(kept.astype(float), given.astype(float))


def test_a_packed_kernel_and_its_variable_stay_one():
    layer = Dense(2, use_bias=False, kernel_initializer="ones")
    x = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(layer(x), [[3, 3]])
    with pytest.raises(TypeError, match="cannot be changed in place"):
        np.add.at(layer.kernel, [0], 1)
    layer.kernel.assign_add([[1, 1], [0, 0], [0, 0]])
    np.testing.assert_array_equal(layer(x), [[4, 4]])


def test_a_variable_is_an_operand_and_an_index_of_ufunc_at():
    counts = np.zeros(3, np.float32)
    np.add.at(counts, AutoCastVariable([0, 2, 2], dtype="int64"), AutoCastVariable([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(counts, [1, 0, 5])


def test_a_value_is_read_as_in_keras_and_called_as_in_tf_keras():
    variable = _variable()
    with autocast_scope("float16"):
        for value in (variable.value, variable.value()):
            assert value.dtype == np.float16 and not value.flags.writeable
            np.testing.assert_array_equal(value, [1, 2, 3])
            assert type(value + 1) is np.ndarray and type(value.sum()) is np.float16
        assert type(variable.value()) is np.ndarray
    np.testing.assert_array_equal(ops.matmul(np.ones((1, 3), np.float32), variable.value.reshape(3, 1)), [[6]])


# ---- storage


def test_arrays_of_the_right_dtype_are_kept_without_a_copy(tmp_path):
    np.arange(4, dtype=np.float32).tofile(tmp_path / "weights")
    mapped = np.memmap(tmp_path / "weights", np.float32, mode="r")
    variable = AutoCastVariable(mapped)
    assert np.shares_memory(variable.numpy(), mapped)
    variable.assign_add(1.0)
    np.testing.assert_array_equal(mapped, [0, 1, 2, 3])
    variable.assign(mapped, copy=False)
    assert np.shares_memory(variable.numpy(), mapped)
    variable.assign(mapped)
    assert not np.shares_memory(variable.numpy(), mapped)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [(1.0, None, "float32"), ([1.0], None, "float32"), (np.ones(1), None, "float64"), (1, "float16", "float16"),
     (1, None, "int32"), (True, None, "bool"), ([1, 2], None, "int32"), ((1,), None, "int32"), ([True], None, "bool"),
     (2**40, "int64", "int64"),
     (np.int64(1), None, "int64"), (np.arange(2, dtype="u1"), None, "uint8"), (array("q", [1]), None, "int64"),
     (np.ones(1, ">f4"), None, "float32"), (np.ones(1, BF16), None, "bfloat16")],
)  # fmt: skip
def test_stored_dtype(value, dtype, expected):
    assert AutoCastVariable(value, dtype=dtype).true_dtype == expected
    assert AutoCastVariable(AutoCastVariable(value, dtype=dtype)).true_dtype == expected


def test_derived_values_are_made_once_per_value():
    variable, calls = _variable(), []

    def make(array):
        calls.append(array.dtype)
        return array.sum()

    with autocast_scope("float16"):
        assert variable.derived("sum", make) == variable.derived("sum", make) == 6
    assert calls == [np.float32] and variable.version == 0
    variable.assign([1, 1, 1])
    assert variable.derived("sum", make) == 3 and variable.version == 1


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_copies_and_pickles_drop_derived_values(clone):
    variable = _variable(name="kernel", trainable=False)
    variable.derived("key", lambda array: lambda: "not picklable")
    again = clone(variable)
    assert (again.name, again.trainable, again.true_dtype) == ("kernel", False, np.float32)
    assert again.derived("key", lambda array: "made again") == "made again"
    again.assign([7, 7, 7])
    np.testing.assert_array_equal(variable.numpy(), [1, 2, 3])
    with autocast_scope("float16"):
        assert again.value().dtype == np.float16


def test_the_array_of_a_state_is_not_that_of_the_variable():
    variable = AutoCastVariable([1.0, 2.0])
    variable.__getstate__()["value"].__setstate__((1, (1,), np.dtype("float32"), False, bytes(4)))
    np.testing.assert_array_equal(variable, [1, 2])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"value": [1.0]}, TypeError, "a pickled variable is damaged: `value` must be ndarray; it is [1.0]"),
        ({"value": np.array([1j])}, TypeError, "`value of a pickled variable` must be an array of"),
        ({"name": 3}, TypeError, "`name` must be str; it is 3"),
        ({"version": None}, TypeError, "`version` must be int; it is None"),
        ({"casts": ...}, ValueError, "a pickled variable is damaged: it has no `casts`"),
        ({"trainable": "yes"}, TypeError, "`trainable` must be bool | numpy.bool; it is 'yes'"),
    ],
)
def test_a_damaged_pickle_says_what_is_damaged(changes, error, message):
    state = {key: value for key, value in (_variable().__getstate__() | changes).items() if value is not ...}
    with pytest.raises(error, match=re.escape(message)):
        AutoCastVariable.__new__(AutoCastVariable).__setstate__(state)


def test_readers_never_see_a_mix_of_old_and_new():
    variable = AutoCastVariable(np.zeros(64, np.float32))
    stop, mixed = threading.Event(), []

    def read():
        with autocast_scope("float16"):
            while not stop.is_set():
                value = variable.value()
                if (value != value[0]).any():
                    mixed.append(value)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(200):
        variable.assign(np.full(64, number, np.float32))
    stop.set()
    for reader in readers:
        reader.join()
    with autocast_scope("float16"):
        assert not mixed and (variable.value() == 199).all()


def test_repr():
    variable = AutoCastVariable(1.0, name="x:0")
    assert repr(variable) == "<AutoCastVariable 'x:0' shape=() dtype=float32 dtype_to_cast_to=float32, numpy=1.0>"
    with autocast_scope("float16"):
        assert "dtype=float32 dtype_to_cast_to=float16" in repr(variable)


def test_a_variable_does_not_change_with_the_callers_array():
    array = np.arange(3, dtype=np.float32)
    variable = AutoCastVariable(array)
    with autocast_scope("float16"):
        variable.value()
        array[0] = 9
        assert variable.value()[0] == variable.numpy()[0] == 0
    frozen = np.arange(3, dtype=np.float32)
    frozen.flags.writeable = False
    assert np.shares_memory(AutoCastVariable(frozen).numpy(), frozen)


class _Holder:
    """An object that gives NumPy the array it keeps."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class _Exporter:
    """An object of another library: its array, by DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_a_variable_shares_no_memory_that_can_be_written_through_another_object(tmp_path):
    mapped = np.memmap(tmp_path / "weights", np.float32, "w+", shape=(3,))
    buffer = array("f", [1.0, 2.0, 3.0])
    held = np.ones(3, np.float32)
    for given, memory in ((mapped, mapped), (buffer, np.asarray(buffer)), (_Holder(held), held)):
        assert not np.shares_memory(AutoCastVariable(given).numpy(), memory)
        variable = AutoCastVariable(np.zeros(3, np.float32))
        assert not np.shares_memory(variable.assign(given).numpy(), memory)
        assert np.shares_memory(variable.assign(given, copy=False).numpy(), memory)
    view = held.view()
    view.flags.writeable = False
    for given in (view, np.frombuffer(memoryview(buffer).toreadonly(), np.float32), np.from_dlpack(_Exporter(held))):
        assert not np.shares_memory(AutoCastVariable(given).numpy(), given)
    mapped.flush()
    read_only = np.memmap(tmp_path / "weights", np.float32, "r", shape=(3,))
    assert np.shares_memory(AutoCastVariable(read_only).numpy(), read_only)


@pytest.mark.parametrize("value", [[0.5, 1.0], [np.nan, 1.0], [128.0, 1.0], [-129, 1], [np.inf, 0]])
def test_integer_variables_refuse_what_they_cannot_hold(value):
    variable = TFVariable(np.zeros(2, np.int8), name="codes")
    writes = (
        variable.assign,
        variable.assign_add,
        lambda updates: variable.scatter_update([0, 1], updates),
        lambda updates: AutoCastVariable(updates, dtype="int8", name="codes"),
    )
    for write in writes:
        with pytest.raises(TypeError, match="variable 'codes' must be integers from -128 to 127; received"):
            write(value)
    assert variable.version == 0


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool"])
def test_integer_variables_take_integers_of_any_dtype(dtype):
    variable = AutoCastVariable(np.zeros(2, np.int8))
    np.testing.assert_array_equal(variable.assign(ops.cast([1, 0], dtype)).numpy(), np.array([1, 0], np.int8))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_numbers_and_integers_take_the_dtype_of_the_variable(dtype):
    variable = AutoCastVariable(np.ones(3, np.float32))
    with autocast_scope(dtype):
        for other in (np.arange(3, dtype="i4"), np.arange(3), np.int64(2), np.float64(2), 2, 2.0):
            assert (variable + other).dtype == (other * variable).dtype == dtype
        assert (variable * np.ones(3, np.float64)).dtype == np.float64
        assert np.ldexp(AutoCastVariable(np.ones(3, np.float32), autocast=False), np.arange(3)).dtype == np.float32
    assert (AutoCastVariable(np.arange(3)) + np.arange(3)).dtype == np.arange(3).dtype
    sums = np.add.reduceat(AutoCastVariable(np.ones(3, np.float32)), np.array([0, 2]))
    np.testing.assert_array_equal(sums, np.float32([2, 1]))


def test_overwrite_with_gradient_is_kept():
    variable = AutoCastVariable([1.0])
    assert not variable.overwrite_with_gradient
    variable.overwrite_with_gradient = True
    assert pickle.loads(pickle.dumps(variable)).overwrite_with_gradient
    LossScaleOptimizer(SGD(0.5), 4.0).apply([np.array([2.0])], [variable])
    assert variable.numpy() == 2.0


def test_a_variable_is_a_condition():
    where = AutoCastVariable([True, False])
    np.testing.assert_array_equal(np.add([1.0, 2.0], [3.0, 4.0], where=where, out=np.zeros(2)), [4, 0])
    assert np.sum(np.ones(2), where=where) == 1


def test_a_list_of_integers_stays_in_the_dtype():
    whole = [1, 2, 3]
    assert (AutoCastVariable(np.ones(3), dtype="bfloat16") + whole).dtype.name == "bfloat16"


def test_assignments_take_the_arguments_of_tf_keras():
    variable = TFVariable([1.0])
    assert variable.assign([2.0], use_locking=True, name="step") is variable
    assert variable.assign_add([1.0], False, "step", False) is None
    assert variable.assign_sub([0.5], name="step", read_value=False) is None
    assert variable.numpy() == [2.5]
    assert variable.assign([5.0], read_value=False) is None and variable.numpy() == 5


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda v: setattr(v, "overwrite_with_gradient", "true"), TypeError, "must be a boolean"),
        (lambda v: AutoCastVariable([1.0], name=5), ValueError, "`name` must be a string; received name=5"),
        (lambda v: autocast_scope("int32"), ValueError, "can only be used with a floating-point target dtype"),
        (lambda v: AutoCastVariable([2**40]), TypeError, "must be integers from -2147483648 to 2147483647"),
        (lambda v: AutoCastVariable(2**63), TypeError, "must be integers from -2147483648 to 2147483647"),
        (lambda v: int(v), TypeError, r"Only scalar arrays can be converted to Python scalars\. Got: shape=\(2,\)"),
        (lambda v: float(v), TypeError, "Only scalar arrays"),
        (lambda v: v.gather(np.array([2**64 - 1], np.uint64)), IndexError, "index 18446744073709551615 is out of"),
        (lambda v: v.assign(np.ma.array([1.0, 2.0], mask=True)), TypeError, "`value` must not be a masked array"),
        (lambda v: AutoCastVariable(np.ma.array([1.0], mask=True)), TypeError, "`value` must not be a masked array"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call(AutoCastVariable([1.0, 2.0]))
