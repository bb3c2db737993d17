"""Memory between two pages that must not be touched, for operands of kernels."""

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def forbid(address):
    """Let no access to the page at an address be survived."""
    assert _mprotect(address, PAGE, 0) == 0


class Guarded:
    """Memory between two pages without access; arrays are placed against either end."""

    def __init__(self, pages=40):
        self.memory = mmap.mmap(-1, (pages + 2) * PAGE)
        self.bytes = np.frombuffer(self.memory, np.uint8)
        self.start, self.size = self.bytes.ctypes.data, pages * PAGE
        for guard in (self.start, self.start + PAGE + self.size):
            forbid(guard)

    def place(self, x, end):
        """Return a copy of `x` that ends (or begins) where access ends (begins)."""
        assert x.nbytes <= self.size
        first = PAGE + (self.size - x.nbytes if end else 0)
        view = self.bytes[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
        view[...] = x
        return view


class Places:
    """Puts every array into memory of its own, until back() gives the last of it free."""

    def __init__(self, guards, end):
        self.guards, self.end, self.taken = guards, end, 0

    def __call__(self, x):
        self.taken += 1
        return self.guards[self.taken - 1].place(x, self.end)

    def back(self, count):
        self.taken -= count
