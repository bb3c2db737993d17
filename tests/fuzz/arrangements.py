"""Rearranging elements (places, shapes, windows): rows of the table of operations."""

import numpy as np
from oracles import gamma

from fuzz.arrays import shape, values
from fuzz.check import WIDE, Case, wide
from mp_core import ops

__all__ = ["ARRANGEMENTS"]


def moved(function, formula, draw_options=lambda rng, lengths: {}):
    """The elements of an array in other places: the formula takes the same options, drawn for the lengths of axes."""

    def draw(rng):
        x = values(rng, shape(rng, int(rng.integers(1, 4))), rng.choice(WIDE), special=0.3)
        options = draw_options(rng, x.shape)
        return Case(function, (x,), options, formula(wide(x), **options))

    return draw


def joined(function, formula, more):
    """Several arrays behind each other along an axis, of which there may be `more` than theirs."""

    def draw(rng):
        dtype, lengths = rng.choice(WIDE), shape(rng, int(rng.integers(1, 4)), most=3000)
        xs = tuple(values(rng, lengths, dtype, special=0.3) for _ in range(int(rng.integers(1, 4))))
        axis = _axis(rng, len(lengths) + more)
        return Case(lambda *xs: function(xs, axis=axis), xs, {}, formula([wide(x) for x in xs], axis=axis))

    return draw


def windows(function, combine, bound):
    """Windows of places, of one to three axes."""

    def draw(rng):
        lengths = (*shape(rng, int(rng.integers(3, 6)), most=4000, empty=0),)
        x = values(rng, lengths, rng.choice(WIDE), special=0.2)
        size = [int(rng.integers(1, min(length, 4) + 1)) for length in lengths[1:-1]]
        strides = [int(rng.integers(1, 4)) for _ in size]
        parts = np.lib.stride_tricks.sliding_window_view(wide(x), size, tuple(range(1, x.ndim - 1)))
        parts = parts[:, *(slice(None, None, step) for step in strides)]
        over = tuple(range(x.ndim, parts.ndim))
        share = bound(np.prod(size))
        error = share and share * np.abs(parts).sum(over)  # 0 also where a number is infinite
        return Case(function, (x,), {"size": size, "strides": strides}, combine(parts, axis=over), error)

    return draw


def token_places(rng):
    """Positions of tokens in rows with padding."""
    ids, padding = rng.integers(0, 4, shape(rng, 2)).astype(rng.choice(("int32", "int64"))), int(rng.integers(0, 3))
    kept = ids != padding
    return Case(ops.token_places, (ids,), {"padding": padding}, padding + np.cumsum(kept, axis=1) * kept)


def _axis(rng, axes):
    return int(rng.integers(-axes, axes))


def _pads(rng, lengths):
    return [tuple(int(x) for x in rng.integers(0, 3, 2)) for _ in lengths]


def _two_axes(first, second):
    return lambda rng, lengths: {first: _axis(rng, len(lengths)), second: _axis(rng, len(lengths))}


def _cut(rng, lengths):
    axis = _axis(rng, len(lengths))
    return {"indices_or_sections": sorted(int(x) for x in rng.integers(0, lengths[axis] + 1, 2)), "axis": axis}


ARRANGEMENTS = {
    "flip": moved(ops.flip, np.flip, lambda rng, lengths: {"axis": _axis(rng, len(lengths))}),
    "transpose": moved(
        ops.transpose, np.transpose, lambda rng, lengths: {"axes": tuple(map(int, rng.permutation(len(lengths))))}
    ),
    "swapaxes": moved(ops.swapaxes, lambda x, axis1, axis2: x.swapaxes(axis1, axis2), _two_axes("axis1", "axis2")),
    "moveaxis": moved(ops.moveaxis, np.moveaxis, _two_axes("source", "destination")),
    "ravel": moved(ops.ravel, np.ravel),
    "squeeze": moved(ops.squeeze, np.squeeze),
    "stop_gradient": moved(ops.stop_gradient, lambda x: x),
    "ones_like": moved(ops.ones_like, np.ones_like),
    "zeros_like": moved(ops.zeros_like, np.zeros_like),
    "reshape": moved(
        ops.reshape, lambda x, newshape: x.reshape(newshape), lambda rng, lengths: {"newshape": lengths[::-1]}
    ),
    "expand_dims": moved(ops.expand_dims, np.expand_dims, lambda rng, lengths: {"axis": _axis(rng, len(lengths) + 1)}),
    "broadcast_to": moved(
        ops.broadcast_to, np.broadcast_to, lambda rng, lengths: {"shape": (int(rng.integers(1, 4)), *lengths)}
    ),
    "pad": moved(
        ops.pad,
        lambda x, widths, value: np.pad(x, widths, constant_values=value),
        lambda rng, lengths: {"widths": _pads(rng, lengths), "value": float(rng.integers(-2, 3))},
    ),
    "pad_zeros": moved(
        ops.pad_zeros, lambda x, widths: np.pad(x, widths), lambda rng, lengths: {"widths": _pads(rng, lengths)}
    ),
    "split": moved(lambda x, **cut: ops.split(x, **cut)[1], lambda x, **cut: np.split(x, *cut.values())[1], _cut),
    "concatenate": joined(ops.concatenate, np.concatenate, 0),
    "stack": joined(ops.stack, np.stack, 1),
    "window_maxima": windows(ops.window_maxima, np.max, lambda n: 0.0),
    "window_sums": windows(ops.window_sums, np.sum, gamma),
    "token_places": token_places,
}
