"""Random arrays: shapes around the widths of kernels, special values, every layout, memory that ends at a page."""

import numpy as np
from guards import Guarded, Places
from oracles import exactly

__all__ = ["Memory", "contiguous", "shape", "values"]

SIZES = (1, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 130)
EDGES = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, -6e-8, 2.0**-126)


def shape(rng, axes, most=20_000, empty=0.03):
    """Return lengths of so many axes, with at most `most` elements; one in some shapes is 0."""
    lengths = [int(rng.choice(SIZES)) for _ in range(axes)]
    while np.prod(lengths) > most:
        lengths[int(np.argmax(lengths))] = int(rng.integers(1, 9))
    if axes and rng.random() < empty:
        lengths[rng.integers(axes)] = 0
    return tuple(lengths)


def values(rng, lengths, dtype, special=0.0):
    """Return numbers of many sizes in a type; in one array of 1 / `special`, some of them are special values."""
    x = np.asarray(rng.standard_normal(lengths) * 2.0 ** rng.integers(-6, 7, lengths))
    if x.size and rng.random() < special:
        places = rng.integers(0, x.size, 4)
        x.flat[places] = rng.choice(EDGES, 4)
    return np.asarray(exactly(x.astype(np.float32), np.dtype(dtype)))


def contiguous(x):
    """Return a copy in rows; of an array without axes, one without axes."""
    return np.array(x, order="C", copy=True)


class Memory:
    """Lays out arrays of one case; what it gave is valid until the next :meth:`again`."""

    def __init__(self):
        self.guards = {end: Places([Guarded(pages=24) for _ in range(4)], end) for end in (True, False)}

    def again(self):
        """Take all memory back for the next case."""
        for places in self.guards.values():
            places.back(places.taken)

    def laid(self, rng, x):
        """Return an array of the same elements in some layout: between guarded pages, or with any strides."""
        end = bool(rng.integers(2))
        places = self.guards[end]
        if rng.random() < 0.4 and x.nbytes <= places.guards[0].size and places.taken < len(places.guards):
            return places(x)
        return LAYOUTS[rng.integers(len(LAYOUTS))](rng, x) if x.ndim else contiguous(x)


def _columns(rng, x):
    return np.asfortranarray(x)


def _reversed(rng, x):
    backward = tuple(slice(None, None, -1) if rng.random() < 0.5 else slice(None) for _ in range(x.ndim))
    return contiguous(x[backward])[backward]


def _gaps(rng, x):
    """Elements lie apart along some axes, between others that nobody should read."""
    steps = rng.integers(1, 4, x.ndim)
    wide = np.full([length * step for length, step in zip(x.shape, steps, strict=True)], 77, x.dtype)
    view = wide[tuple(slice(None, None, step) for step in steps)]
    view[...] = x
    return view


def _transposed(rng, x):
    order = rng.permutation(x.ndim)
    return contiguous(x.transpose(order)).transpose(np.argsort(order))


def _misaligned(rng, x):
    """The first element lies at an odd address."""
    return np.frombuffer(bytearray(b"\0" + x.tobytes()), np.uint8)[1:].view(x.dtype).reshape(x.shape)


LAYOUTS = (lambda rng, x: contiguous(x), _columns, _reversed, _gaps, _transposed, _misaligned)
