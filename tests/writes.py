"""Every way by which NumPy, or Python through NumPy, could write into a variable, tried on one variable.

Run as a program, it tries them on a variable that reads a mapped file, where one write would end the process.
"""

import ctypes
import io
import sys

import numpy as np

from mp_core.autocast import autocast_scope
from mp_core.layers import Dense

ONES = np.ones((2, 2), np.float32)

# What takes the variable itself for the array to write into.
INTO_VARIABLES = {
    "v[0] =": lambda v: v.__setitem__(0, 9),
    "del v[0]": lambda v: v.__delitem__(0),
    "v += 1": lambda v: v.__iadd__(1),
    "v -= 1": lambda v: v.__isub__(1),
    "v *= 2": lambda v: v.__imul__(2),
    "v /= 2": lambda v: v.__itruediv__(2),
    "v **= 2": lambda v: v.__ipow__(2),
    "v @= x": lambda v: v.__imatmul__(ONES),
    "add.at": lambda v: np.add.at(v, [0], 1),
    "subtract.at": lambda v: np.subtract.at(v, ([0], [1]), 1),
    "maximum.at": lambda v: np.maximum.at(v, np.array([1]), 9),
    "negative.at": lambda v: np.negative.at(v, [0]),
    "add.at of itself": lambda v: np.add.at(v, [0], v[:1]),
    "add out=": lambda v: np.add(ONES, 1, out=v),
    "add, positional": lambda v: np.add(ONES, 1, v),
    "divmod out=": lambda v: np.divmod(ONES, 2, out=(None, v)),
    "frexp out=": lambda v: np.frexp(ONES, out=(v, None)),
    "matmul out=": lambda v: np.matmul(ONES, ONES, out=v),
    "add.reduce out=": lambda v: np.add.reduce(np.ones((2, 2, 2)), out=v),
    "add.accumulate out=": lambda v: np.add.accumulate(ONES, out=v),
    "add.reduceat out=": lambda v: np.add.reduceat(ONES, [0, 1], out=v),
    "add.outer out=": lambda v: np.add.outer(ONES[0], ONES[0], out=v),
    "sum out=": lambda v: np.sum(np.ones((2, 2, 2)), axis=0, out=v),
    "mean out=": lambda v: np.mean(np.ones((2, 2, 2)), axis=0, out=v),
    "cumsum out=": lambda v: np.cumsum(ONES, axis=0, out=v),
    "clip out=": lambda v: np.clip(ONES, 3, 4, out=v),
    "round out=": lambda v: np.round(ONES, out=v),
    "take out=": lambda v: np.take(ONES, [0, 1], axis=0, out=v),
    "dot out=": lambda v: np.dot(ONES, ONES, out=v),
    "einsum out=": lambda v: np.einsum("ij,jk->ik", ONES, ONES, out=v),
    "concatenate out=": lambda v: np.concatenate([ONES[:1], ONES[:1]], out=v),
    "median out=": lambda v: np.median(np.ones((2, 2, 2)), axis=0, out=v),
    "fft out=": lambda v: np.fft.fft(ONES, out=v),
    "copyto": lambda v: np.copyto(v, 9),
    "put": lambda v: np.put(v, [0], 9),
    "place": lambda v: np.place(v, ONES > 0, [9]),
    "putmask": lambda v: np.putmask(v, ONES > 0, 9),
    "put_along_axis": lambda v: np.put_along_axis(v, np.zeros((1, 2), int), 9, 0),
    "fill_diagonal": lambda v: np.fill_diagonal(v, 9),
    "nan_to_num": lambda v: np.nan_to_num(v, copy=False),
    "random out=": lambda v: np.random.default_rng(0).random(out=v, dtype=np.float32),
    "nditer": lambda v: np.nditer(v, op_flags=[["readwrite"]]),
    "ndarray.sort": lambda v: np.ndarray.sort(v),
    "ndarray.fill": lambda v: np.ndarray.fill(v, 9),
    "memoryview": lambda v: memoryview(v),
    "readinto": lambda v: io.BytesIO(bytes(16)).readinto(v),
    "from_buffer": lambda v: ctypes.c_char.from_buffer(v),
}  # fmt: skip

# How arrays come from a variable without a copy.
ARRAYS = {
    "numpy()": lambda v: v.numpy(),
    "value": lambda v: v.value,
    "value()": lambda v: v.value(),
    "read_value()": lambda v: v.read_value(),
    "__array__(copy=False)": lambda v: np.array(v, copy=False),
    "__array__()": lambda v: v.__array__(),
    "asarray": np.asarray,
    "asanyarray": np.asanyarray,
    "require": lambda v: np.require(v, requirements="A"),
    "v[...]": lambda v: v[...],
    "v[:1]": lambda v: v[:1],
    "iter": lambda v: next(iter(v)),
    "ravel": np.ravel,
    "transpose": np.transpose,
    "diagonal": np.diagonal,
    "broadcast_to": lambda v: np.broadcast_to(v, (3, 2, 2)),
    "as_strided": lambda v: np.lib.stride_tricks.as_strided(v, (2,), (4,)),
    "nditer": lambda v: np.nditer(v).operands[0],
    "frombuffer": lambda v: np.frombuffer(v.numpy(), v.true_dtype),
    "memoryview": lambda v: np.asarray(memoryview(v.numpy())),
    "derived": lambda v: v.derived("itself", lambda stored: stored),
    "matrix": lambda v: np.asmatrix(v),
    "masked": lambda v: np.ma.asarray(v).data,
}


def _through_bases(array):
    """Make the first array writeable that is found behind this one."""
    base = array
    while base is not None:
        if isinstance(base, np.ndarray):
            base.setflags(write=True)
            base[...] = 9
        base = base.base if isinstance(base, np.ndarray) else getattr(base, "obj", None)
    raise ValueError("no base is writeable")


def _bases_of_bases(array):
    """Write into whichever array behind this one is writeable."""
    base = array.base
    while base is not None:
        if isinstance(base, np.ndarray) and base.flags.writeable:
            base[...] = 9
            return
        base = base.base if isinstance(base, np.ndarray) else getattr(base, "obj", None)
    raise ValueError("no base is writeable")


# What writes into an array.
INTO_ARRAYS = {
    "a[...] =": lambda a: a.__setitem__(..., 9),
    "a += 1": lambda a: a.__iadd__(1),
    "a @= x": lambda a: a.__imatmul__(np.ones(a.shape[-1:] * 2, a.dtype)),
    "fill": lambda a: a.fill(9),
    "flat": lambda a: a.flat.__setitem__(0, 9),
    "put": lambda a: a.put([0], 9),
    "setfield": lambda a: a.setfield(9, a.dtype),
    "sort": lambda a: a.sort(),
    "partition": lambda a: a.partition(0),
    "byteswap": lambda a: a.byteswap(inplace=True),
    "resize": lambda a: a.resize((9, 9)),
    "setflags": lambda a: a.setflags(write=True),
    "flags": lambda a: setattr(a.flags, "writeable", True),
    "bases": _through_bases,
    "writeable bases": _bases_of_bases,
    "add out=": lambda a: np.add(a, 1, out=a),
    "copyto": lambda a: np.copyto(a, 9),
    "place": lambda a: np.place(a, np.ones(a.shape, bool), [9]),
    "putmask": lambda a: np.putmask(a, np.ones(a.shape, bool), 9),
    "put_along_axis": lambda a: np.put_along_axis(a, np.zeros((1,) * a.ndim, int), 9, 0),
    "nan_to_num": lambda a: np.nan_to_num(a, copy=False),
    "shuffle": lambda a: np.random.default_rng(0).shuffle(a),
    "nditer": lambda a: np.nditer(a, op_flags=[["readwrite"]]),
    "memoryview": lambda a: memoryview(a).__setitem__((0,) * a.ndim, 9),
    "readinto": lambda a: io.BytesIO(bytes(16)).readinto(a),
    "from_buffer": lambda a: ctypes.c_char.from_buffer(a),
    "frombuffer": lambda a: np.frombuffer(a, np.uint8).__setitem__(0, 9),
    "from_dlpack": lambda a: np.from_dlpack(a).__setitem__(..., 9),
    "as_strided": lambda a: np.lib.stride_tricks.as_strided(a, writeable=True).__setitem__(..., 9),
    "matrix": lambda a: np.asmatrix(a).__setitem__(..., 9),
    "masked": lambda a: np.ma.array(a, copy=False, order="A").__setitem__(..., 9),
    "view": lambda a: a.view(np.uint8 if a.ndim else None).__setitem__(..., 9),
}  # fmt: skip
REFUSALS = (AttributeError, BufferError, RuntimeError, TypeError, ValueError)


def written(make, dtype=None):
    """Return which ways do not raise, or change a variable that `make` makes, inside a scope of `dtype`."""
    found = []
    through_arrays = {
        f"{source}: {name}": lambda v, write=write, read=read: write(read(v))
        for source, read in ARRAYS.items()
        for name, write in INTO_ARRAYS.items()
    }
    for name, write in (INTO_VARIABLES | through_arrays).items():
        variable = make()
        with autocast_scope(dtype):
            before = variable.read_value().tobytes(), variable.numpy().tobytes(), variable.shape, variable.true_dtype
            try:
                write(variable)
            except REFUSALS:
                pass
            else:
                found.append(f"{name} is silent")
            after = variable.read_value().tobytes(), variable.numpy().tobytes(), variable.shape, variable.true_dtype
        if after != before:
            found.append(f"{name} writes")
    return found


def mapped(path):
    """Return a variable of a layer that reads a file through a read-only map."""
    layer = Dense(2, use_bias=False)
    layer.build((None, 2))
    layer.set_weights([np.memmap(path, np.float32, "r", shape=(2, 2))], copy=False)
    return layer.kernel


if __name__ == "__main__":
    np.array([[1, 2], [3, 4]], np.float32).tofile(sys.argv[1])
    for dtype in (None, "float16"):
        print(*written(lambda: mapped(sys.argv[1]), dtype), sep="\n")
    np.testing.assert_array_equal(np.fromfile(sys.argv[1], np.float32), [1, 2, 3, 4])
