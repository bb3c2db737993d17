"""Arrays to other libraries through DLPack; tensors of torch as operands and as `out`; JAX."""

import ctypes
import gc
import os
import sys
import weakref

import ml_dtypes
import numpy as np
import processes
import pytest
import torch
from oracles import assert_same_bits

import mp_core as mp
from mp_core.core.dlpack import from_dlpack
from mp_core.core.dlpack_export import CODES, Exported
from mp_core.dtypes import ALLOWED, STORED

TORCH = {
    name: getattr(torch, name)
    for name in (*ALLOWED, "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
}  # fmt: skip
BF16 = np.dtype(ml_dtypes.bfloat16)


def bits_of(tensor):
    """The bytes of a tensor, by torch's own view."""
    return tensor.contiguous().view(torch.uint8).numpy()


def some(name, shape=(3, 4), seed=0):
    x = np.random.default_rng(seed).standard_normal(shape) * 4
    dtype = ALLOWED.get(name) or STORED[name]
    return abs(x).astype(np.float32).astype(dtype) if name == "float8_e8m0fnu" else x.astype(dtype)


# ---- export


@pytest.mark.parametrize("name", TORCH)
def test_torch_reads_every_type_it_has_on_the_same_memory(name):
    x = some(name)
    tensor = mp.interop.to_torch(x)
    assert tensor.dtype is TORCH[name] and tuple(tensor.shape) == x.shape
    assert tensor.data_ptr() == x.ctypes.data
    np.testing.assert_array_equal(bits_of(tensor), x.view(np.uint8))
    assert_same_bits(mp.cast(tensor, x.dtype), x)
    assert torch.from_dlpack(mp.interop.dlpack(x)).data_ptr() == x.ctypes.data


@pytest.mark.parametrize(
    "view", [lambda x: x[::2, 1:], lambda x: x.T, lambda x: x[1:1], lambda x: x[0, 0:1], np.squeeze]
)
def test_torch_reads_views_by_their_strides(view):
    x = view(some("bfloat16", (6, 5)))
    tensor = mp.interop.to_torch(x, copy=False)
    assert tensor.data_ptr() == x.ctypes.data or x.size == 0
    np.testing.assert_array_equal(tensor.float().numpy(), x.astype(np.float32))


def test_a_scalar_array_is_exported():
    x = np.array(2.5, BF16)
    tensor = mp.interop.to_torch(x)
    assert tensor.item() == 2.5 and tensor.data_ptr() == x.ctypes.data


def test_a_product_of_torch_tensors_goes_back_without_a_copy():
    a, b = torch.randn(5, 64).bfloat16(), torch.randn(64, 32).bfloat16()
    result = mp.matmul(a, b)
    tensor = mp.interop.to_torch(result)
    assert tensor.dtype is torch.bfloat16 and tensor.data_ptr() == result.ctypes.data
    exact = a.double() @ b.double()
    bound = 2.0**-8 * exact.abs() + 64 * 2.0**-23 * (a.double().abs() @ b.double().abs())
    assert (tensor.double() - exact).abs().le(bound).all()


def test_what_torch_cannot_share_is_copied_or_refused():
    x = some("bfloat16")
    frozen = x.view()
    frozen.flags.writeable = False
    fields = np.zeros(4, np.dtype([("a", BF16), ("b", np.uint8)]))["a"]
    for given, reason in (
        (frozen, "is read-only"),
        (x[::-1], "has negative strides, or parts of elements"),
        (np.arange(4.0)[::-1], "has negative strides"),
        (fields, "parts of elements"),
        (np.arange(4.0).astype(">f8"), "is not in native byte order"),
    ):
        tensor = mp.interop.to_torch(given)
        np.testing.assert_array_equal(tensor.double().numpy(), given.astype(np.float64))
        with pytest.raises(ValueError, match=f"torch cannot share an array that .*{reason}"):
            mp.interop.to_torch(given, copy=False)
    assert mp.interop.to_torch(x, copy=True).data_ptr() != x.ctypes.data
    with pytest.raises(TypeError, match="`copy` must be True or False"):
        mp.interop.to_torch(x, copy=1)
    with pytest.raises(TypeError, match="torch has no tensors of float8_e4m3b11fnuz"):
        mp.interop.to_torch(some("float8_e4m3b11fnuz"))


def test_variables_give_their_value_and_what_is_no_array_is_refused():
    variable = mp.AutoCastVariable(np.ones(3, np.float32))
    with mp.autocast.autocast_scope("bfloat16"):
        assert mp.interop.to_torch(variable).dtype is torch.bfloat16
        with pytest.raises(ValueError, match="read-only"):
            mp.interop.to_torch(variable, copy=False)
    for x, message in (
        (mp.quantize([1.0]), "a QuantizedArray cannot be converted to an ndarray"),
        (mp.pack(np.eye(2, dtype=np.float32)), "a PackedMatrix cannot be converted to an ndarray"),
        (np.ma.masked_array([1.0]), "must not be a masked array"),
        (np.array(["a"]), "`x` must be of NumPy's numbers or of int8"),
        (np.array([None]), "`x` must be of NumPy's numbers"),
    ):
        with pytest.raises(TypeError, match=message):
            mp.interop.dlpack(x)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "float32", "int8", "bool"])
def test_jax_shares_aligned_memory_and_copies_other(name):
    block = np.zeros(1024, np.uint8)
    start = -block.ctypes.data % 64
    x = block[start : start + 4 * ALLOWED[name].itemsize].view(ALLOWED[name])
    x[:] = [1, 0, 1, 1]
    array = mp.interop.to_jax(x, copy=False)
    assert array.unsafe_buffer_pointer() == x.ctypes.data and array.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(array), x)
    np.testing.assert_array_equal(np.asarray(mp.interop.to_jax(x[1:])), x[1:])
    np.testing.assert_array_equal(np.asarray(mp.interop.to_jax(x[::-2])), x[::-2])
    with pytest.raises(ValueError, match=r"not contiguous|not aligned|negative"):
        mp.interop.to_jax(x[::-2], copy=False)
    with pytest.raises(ValueError, match="aligned"):
        mp.interop.to_jax(x[1:], copy=False)


# ---- the capsule


class _Head(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
    ]


def head_of(capsule):
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return _Head.from_address(pointer(capsule, b"dltensor_versioned"))


def test_the_capsule_is_of_the_version_that_is_asked_for():
    x = some("bfloat16")
    for wanted in (None, (), (0, 8)):
        assert 'capsule object "dltensor"' in repr(Exported(x).__dlpack__(max_version=wanted))
    head = head_of(capsule := Exported(x).__dlpack__(max_version=(1, 0)))
    assert (head.major, head.minor, head.flags) == (1, 1, 0)
    head = head_of(capsule := Exported(x).__dlpack__(max_version=(2, 3), copy=True))
    assert (head.major, head.flags) == (1, 2)
    x.flags.writeable = False
    head = head_of(capsule := Exported(x).__dlpack__(max_version=(1, 0)))
    assert head.flags == 1
    head = head_of(capsule := Exported(x.astype("int4")).__dlpack__(max_version=(1, 1)))
    assert head.flags == 4
    del capsule
    with pytest.raises(BufferError, match="version 0 cannot say that an array is read-only"):
        Exported(x).__dlpack__()
    with pytest.raises(BufferError, match=r"before version 1.1 cannot say that elements of int4 take a byte"):
        Exported(x.astype("int4")).__dlpack__(max_version=(1, 0))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"stream": 1}, ValueError, "`stream` must be None for memory of the CPU; received 1"),
        ({"dl_device": (2, 0)}, BufferError, r"`dl_device` must be \(1, 0\), the CPU; received \(2, 0\)"),
        ({"dl_device": 3}, TypeError, "not iterable"),
        ({"max_version": 1}, TypeError, "not iterable"),
        ({"max_version": "1"}, TypeError, "not supported between"),
    ],
)
def test_arguments_that_the_standard_does_not_know(arguments, error, message):
    with pytest.raises(error, match=message):
        Exported(some("bfloat16")).__dlpack__(**arguments)


def test_strides_that_torch_would_die_of_are_refused():
    with pytest.raises(BufferError, match="strides must be whole elements, 2 bytes each, and not negative"):
        Exported(some("bfloat16")[::-1]).__dlpack__()
    assert torch.from_dlpack(Exported(some("bfloat16")[::-1]), copy=True).shape == (3, 4)


def test_capsules_release_the_array_exactly_once():
    x = some("bfloat16")
    gone = weakref.ref(x)
    before = sys.getrefcount(x)
    exported = Exported(x)
    for version in (None, (1, 0)):  # that nobody consumes
        capsule = exported.__dlpack__(max_version=version)
        assert sys.getrefcount(x) == before + 2
        del capsule
        assert sys.getrefcount(x) == before + 1
    tensor, array = torch.from_dlpack(exported), from_dlpack(exported, ALLOWED)  # that are consumed
    assert sys.getrefcount(x) == before + 3
    del exported, x
    gc.collect()
    assert gone() is not None
    part = tensor[1:]
    del tensor
    array[1, 0] = 7
    assert part[0, 0].item() == 7
    del array
    assert gone() is not None
    del part
    assert gone() is None


def test_a_thread_without_python_may_call_the_deleter():
    x = some("bfloat16", (100,))
    gone = weakref.ref(x)
    tensor = torch.from_dlpack(Exported(x)).requires_grad_()
    tensor.sum().backward()  # torch's own threads hold it
    del x, tensor
    gc.collect()
    assert gone() is None


def test_tensors_may_outlive_the_interpreter():
    code = (
        "import numpy, torch, ml_dtypes, mp_core as mp\n"
        "t = mp.interop.to_torch(numpy.ones(9, ml_dtypes.bfloat16))\n"
        "torch.keep = t, mp.interop.dlpack(numpy.ones(9, ml_dtypes.bfloat16)).__dlpack__()\n"
    )
    done = processes.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert (done.returncode, done.stderr) == (0, "")


def test_every_code_of_whole_bytes_comes_back():
    for name in set(CODES) - {"int4", "uint4", "float4_e2m1fn"}:
        x = some(name)
        back = from_dlpack(Exported(x), ALLOWED | STORED)
        assert back.ctypes.data == x.ctypes.data and back.dtype == x.dtype
        assert_same_bits(mp.cast(Exported(x), "float32"), mp.cast(x, "float32"))


# ---- `out`

F32 = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
W = np.random.default_rng(2).standard_normal((8, 8)).astype(np.float32)
OPERATIONS = {
    "cast": lambda x, out: mp.cast(x, "bfloat16", out=out),
    "cast of float64": lambda x, out: mp.cast(x.astype(np.float64), "bfloat16", out=out),
    "matmul": lambda x, out: mp.matmul(x, W, out_dtype="bfloat16", out=out),
    "matmul of float64": lambda x, out: mp.matmul(x.astype(np.float64), W, out_dtype="bfloat16", out=out),
    "dynamic_matmul": lambda x, out: mp.dynamic_matmul(
        x, mp.pack(mp.quantize(W, axis=1)), out_dtype="bfloat16", out=out
    ),
    "einsum": lambda x, out: mp.einsum("ij,jk->ik", x, W, out_dtype="bfloat16", out=out),
    "einsum of permuted axes": lambda x, out: mp.einsum("ij,kj->ki", W, x, out_dtype="bfloat16", out=out),
    "softmax": lambda x, out: mp.softmax(x.astype(BF16), out=out),
    "layer_norm": lambda x, out: mp.layer_norm(x.astype(BF16), out=out),
    "layer_norm along rows": lambda x, out: mp.layer_norm(x.astype(BF16), axis=0, out=out),
    "rms_norm": lambda x, out: mp.rms_norm(x.astype(BF16), out=out),
    "gelu": lambda x, out: mp.gelu(x.astype(BF16), out=out),
    "relu": lambda x, out: mp.relu(x.astype(BF16), out=out),
    "relu6": lambda x, out: mp.relu6(x.astype(BF16), out=out),
    "sigmoid": lambda x, out: mp.sigmoid(x.astype(BF16), out=out),
    "silu": lambda x, out: mp.silu(x.astype(BF16), out=out),
    "tanh": lambda x, out: mp.tanh(x.astype(BF16), out=out),
    "dequantize": lambda x, out: mp.dequantize(mp.quantize(x, axis=0), "bfloat16", out=out),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("strided", [False, True])
def test_a_torch_tensor_receives_the_result(operation, strided):
    call = OPERATIONS[operation]
    expected = call(F32, None)
    tensor = torch.full((8, 16), -9.0, dtype=torch.bfloat16)
    out = tensor[::2, ::2] if strided else tensor[:4].view(-1)[:32].view(4, 8)
    assert call(F32, out) is out
    assert_same_bits(out.contiguous().view(torch.int16).numpy().view(BF16), expected)
    if strided:
        assert tensor[1::2].eq(-9).all() and tensor[:, 1::2].eq(-9).all()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: torch.empty(5, 8, dtype=torch.bfloat16), ValueError, r"shape \(4, 8\); received \(5, 8\)"),
        (lambda: torch.empty(4, 8, dtype=torch.float16), TypeError, "`out` must have dtype bfloat16; received float16"),
        (lambda: torch.empty(4, 8, dtype=torch.bfloat16, requires_grad=True), TypeError, "`out` .*require grad"),
        (lambda: torch.empty(4, 8, dtype=torch.bfloat16, device="meta"), TypeError, "`out` must be"),
        (lambda: OnGpu(), TypeError, r"`out` must be in CPU memory; received a tensor on device \(2, 0\)"),
        (lambda: read_only(), ValueError, "`out` must be writeable"),
        (lambda: [0.0], TypeError, "`out` must be a numpy.ndarray or a tensor in CPU memory; received list"),
    ],
)  # fmt: skip
def test_tensors_that_cannot_receive_a_result_are_refused(operation, make, error, message):
    with pytest.raises(error, match=message):
        OPERATIONS[operation](F32, make())


class OnGpu:
    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **_):
        raise AssertionError("asked for memory of another device")


def read_only():
    """A JAX array: it is constant, but its capsules are of version 0, which does not say so."""
    return mp.interop.to_jax(np.zeros((4, 8), BF16))


def test_out_may_be_the_tensor_of_an_operand():
    a = torch.randn(8, 8)
    expected = mp.matmul(a.numpy().copy(), W)
    assert mp.matmul(a, W, out=a) is a
    np.testing.assert_array_equal(a.numpy(), expected)


def test_out_runs_its_code_before_views_are_taken():
    x = np.ones(8, np.float32)

    class Out:
        __dlpack_device__ = x.__dlpack_device__

        def __dlpack__(self, **keywords):
            x.shape = (2, 4)
            return np.empty((2, 4), np.float32).__dlpack__(**keywords)

    assert mp.softmax(x, out=Out()) is not None
