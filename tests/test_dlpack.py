"""Tensors of other libraries by DLPack: a producer of a bfloat16 tensor, like torch."""

import ctypes

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core.arrays import imported


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class Producer:
    """Exports an array as a DLPack tensor of a type that NumPy's own import refuses."""

    def __init__(self, array, code, device=1):
        self.array, self.deleted, self.device = array, 0, device
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        self.managed = _Managed(
            _Tensor(array.ctypes.data, device, 0, array.ndim, code, 8 * array.itemsize, 1, shape, strides, 0),
            None,
            _Deleter(self._delete),
        )
        self.keep = shape, strides

    def _delete(self, _):
        self.deleted += 1

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)


@pytest.mark.parametrize(("dtype", "code"), [("bfloat16", 4), ("float8_e4m3fn", 10), ("float8_e5m2", 12)])
def test_dlpack_tensors_that_numpy_refuses(dtype, code, rng):
    x = rng.standard_normal((5, 6)).astype(dtype)[::2, 1:]
    producer = Producer(x, code)
    assert_same_bits(mp.cast(producer, "float32"), x.astype(np.float32))
    assert producer.deleted == 1


def test_dlpack_of_numpy_types_and_of_other_devices():
    class Plain:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            return np.arange(3.0).__dlpack__(**keywords)

    class Empty(Plain):
        def __dlpack__(self, **keywords):
            return None

    assert mp.cast(Plain(), "float16").tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(TypeError, match="must be an unused 'dltensor'"):
        mp.cast(Empty(), "float16")
    with pytest.raises(TypeError, match="must be in CPU memory"):
        mp.cast(Producer(np.zeros(2, np.uint16), 4, device=2), "float32")
    with pytest.raises(TypeError, match="DLPack tensors must be"):
        mp.cast(Producer(np.zeros(2, np.uint16), 17), "float32")


def test_objects_that_mislead_are_refused():
    class Negative(Producer):
        def is_neg(self):
            return True

    class Nowhere(Producer):
        def __dlpack_device__(self):
            return ()

    class Masked:
        def __array__(self, dtype=None, copy=None):
            return np.ma.masked_array([1.0, 2.0], [True, False])

    x = np.zeros(2, np.uint16)
    for wrong, text in (
        (Negative(x, 4), "resolve_neg"),
        (Nowhere(x, 4), "must be an array or a plain tensor"),
        (Masked(), "must not be a masked array"),
    ):
        with pytest.raises(TypeError, match=f"`x` .*{text}"):
            mp.cast(wrong, "float32")
        with pytest.raises(TypeError, match=f"`a` .*{text}"):
            mp.matmul(wrong, np.eye(2))
    missing = Producer(x, 4)
    missing.managed.tensor.data = None
    with pytest.raises(TypeError, match="must have memory"):
        mp.cast(missing, "float32")


def _lengths(*numbers):
    return (ctypes.c_int64 * len(numbers))(*numbers)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("ndim", -1, "must have 0 to 64 axes; received -1"),
        ("ndim", 65, "must have 0 to 64 axes; received 65"),
        ("shape", None, "must have a shape"),
        ("shape", _lengths(-1, 2), "must have lengths of at least 0; received -1"),
        ("shape", _lengths(2, 2**63 - 1), "must fit into memory"),
        ("strides", _lengths(2**62, 1), "must fit into memory"),
        ("strides", _lengths(-(2**63), 1), "must fit into memory"),
        ("strides", _lengths(2**61, 2**61), "must fit into memory"),
        ("lanes", 4, "DLPack tensors must be on the CPU"),
        ("device_type", 2, "DLPack tensors must be on the CPU"),
    ],
)
@pytest.mark.parametrize(("dtype", "code"), [("bfloat16", 4), ("float32", 2), ("int8", 0)])
def test_a_capsule_that_cannot_be_is_refused(dtype, code, field, value, message):
    producer = Producer(np.zeros((3, 3), dtype), code)
    setattr(producer.managed.tensor, field, value)
    with pytest.raises(TypeError, match=f"`x` must be an array or a plain tensor: .*{message}"):
        mp.cast(producer, "float16")


def test_a_capsule_without_strides_is_contiguous_and_lengths_of_1_and_0_have_any():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    producer = Producer(x, 2)
    producer.managed.tensor.strides = None
    assert_same_bits(mp.cast(producer, "float32"), x)
    producer.managed.tensor.shape = _lengths(2**40, 2**40)
    with pytest.raises(TypeError, match="must fit into memory"):
        mp.cast(producer, "float32")
    for shape in ((1, 6), (2**40, 0)):
        producer = Producer(x, 2)
        producer.managed.tensor.shape = producer.keep_shape = _lengths(*shape)
        producer.managed.tensor.strides = producer.keep_strides = _lengths(2**63 - 1, 1)
        assert_same_bits(mp.cast(producer, "float32"), x.reshape(shape) if 0 not in shape else np.empty(shape, "f4"))


@pytest.mark.parametrize("error", [ValueError, KeyError, AttributeError, OSError, BufferError])
def test_an_error_of_a_producer_is_the_cause_of_ours(error):
    class Failing:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **_):
            raise error("not today")

    class Nowhere(Failing):
        def __dlpack_device__(self):
            raise error("not today")

    for x in (Failing(), Nowhere()):
        with pytest.raises(TypeError, match=r"`x` must be an array or a plain tensor: .*not today") as caught:
            mp.cast(x, "float16")
        assert type(caught.value.__cause__) is error


def test_version_0_may_only_be_read(rng):
    """A producer of version 0 knows no keywords."""

    class Old(Producer):
        def __dlpack__(self):
            return super().__dlpack__()

    x = rng.standard_normal((3, 4)).astype(np.float32)
    assert_same_bits(mp.cast(Old(x, 2), "float32"), x)
    assert not imported(Old(x, 2), "x").flags.writeable  # version 0 cannot say, and JAX's arrays are constant


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy 2.0 exports version 0 only")
def test_version_1_says_what_may_only_be_read():
    x = np.arange(4.0)
    x.flags.writeable = False

    class New:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            return x.__dlpack__(**keywords)

    assert not imported(New(), "x").flags.writeable
    assert_same_bits(mp.cast(New(), "float16"), x.astype(np.float16))


@pytest.mark.parametrize("dtype", [name for name in mp.dtypes.ALLOWED if "bfloat" not in name and "float8" not in name])
def test_every_type_of_numpy_comes_by_dlpack(dtype):
    class Plain:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            return x.__dlpack__(**keywords)

    x = np.arange(6).reshape(2, 3).astype(dtype)[:, ::-2]
    got = imported(Plain(), "x")
    assert got.dtype == x.dtype and np.shares_memory(got, x)
    np.testing.assert_array_equal(got, x)


def test_types_that_are_only_stored_come_as_arrays_where_dlpack_has_none():
    class Both(Producer):
        def __array__(self, dtype=None, copy=None):
            return self.array.view("float8_e8m0fnu")

    assert mp.cast(Both(np.array([127, 128], np.uint8), 14), "float32").tolist() == [1.0, 2.0]
