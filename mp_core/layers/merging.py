"""Layers that merge several inputs: sum, product, extremes, concatenation."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from mp_core import ops
from mp_core.arrays import Array, dtypes
from mp_core.layers.layer import Layer
from mp_core.layers.masks import as_keep, from_masks
from mp_core.layers.shapes import WithSpecRule
from mp_core.ops.elementwise import concatenated, floating, rounded
from mp_core.ops.norms import over_length
from mp_core.ops.specs import Shape, Spec, end_to_end, joined, merged
from mp_core.utilities.arguments import axis_of, axis_or_axes, boolean, integer
from mp_core.utilities.docstrings import shown

__all__ = [
    "Add", "Average", "Concatenate", "Dot", "Maximum", "Merge", "Minimum", "Multiply", "Subtract",
    "with_merging_example",
]  # fmt: skip


def with_merging_example(numbers: str) -> Callable[[Any], Any]:
    """Return a decorator of a merging layer or function that adds the example of this family with its result."""
    arrays, result = "[np.float32([[1, 5]]), np.float32([[3, 4]])]", f"array([[{numbers}]], dtype=float32)"

    def decorate(merging: Any) -> Any:
        made = "()" if isinstance(merging, type) else ""
        return shown(f"import numpy as np\n>>> {{}}{made}({arrays})", result)(merging)

    return decorate


class Merge(WithSpecRule, Layer, nameable=False):
    """The base of merging layers: they are called with a list of arrays of the same batch size.

    Inputs with fewer axes than others get axes of length 1 after the batch axis.
    """

    supports_masking = True
    _function: ClassVar[Callable[..., Any]]
    _least: ClassVar[int] = 1
    _most: ClassVar[int | None] = None
    _binary_operation: ClassVar[Callable[..., Array] | None] = None  # for two inputs; plans can record it

    def call(self, inputs: Sequence[Array]) -> Array:
        """Return the merged inputs, a list of arrays, in the compute dtype."""
        self._check(inputs)
        axes = max(x.ndim for x in inputs)
        aligned = [x.reshape(*x.shape[:1], *(1,) * (axes - x.ndim), *x.shape[1:]) for x in inputs]
        try:
            np.broadcast_shapes(*(x.shape for x in aligned))
        except ValueError:
            raise self._shape_error(inputs) from None
        if self._binary_operation is not None and [x.dtype for x in aligned] == 2 * [self._compute]:
            return self._binary_operation(*aligned)
        return rounded(type(self)._function, *aligned, dtype=self._compute)

    def specs_after(self, inputs: Sequence[Spec]) -> Spec:
        """Return the spec with the broadcast shape; as in Keras, a length that is unknown in one input is unknown."""
        self._check(inputs)
        axes = max(x.ndim for x in inputs)
        aligned = [(*x.shape[:1], *(1,) * (axes - x.ndim), *x.shape[1:]) for x in inputs]
        return Spec(self._checked_shape(inputs, lambda: _broadcast_shape(aligned)), self._compute)

    def _checked_shape(self, inputs: Sequence[Spec], find: Callable[[], Shape]) -> Shape:
        """Return ``find()``; replace a ValueError by one that names the shapes of the inputs."""
        try:
            return find()
        except ValueError:
            raise self._shape_error(inputs) from None

    def _cast_type(self, x: Spec) -> np.dtype[Any]:
        """Return the dtype of an input after the cast to the compute dtype."""
        return self._compute if self.autocast and dtypes.is_float(x.dtype) else x.dtype

    @from_masks
    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the union of the masks; None unless all inputs have one."""
        if previous_mask is None or any(mask is None for mask in previous_mask):
            return None
        return functools.reduce(operator.or_, map(as_keep, previous_mask))

    def _check(self, inputs: Any) -> None:
        few = f"{self._least}" if self._most == self._least else f"{self._least} or more"
        several = isinstance(inputs, list | tuple) and self._least <= len(inputs) <= (self._most or len(inputs))
        if not several or not all(isinstance(x, np.ndarray | Spec) for x in inputs):
            raise ValueError(
                f"`inputs` of layer '{self.name}' must be a list of {few} arrays; received {inputs!r:.200}"
            )
        if any(x.ndim == 0 for x in inputs):
            raise self._shape_error(inputs)

    def _shape_error(self, inputs: Sequence[Array | Spec]) -> ValueError:
        shapes = [x.shape for x in inputs]
        return ValueError(f"The inputs of layer '{self.name}' do not fit each other: received shapes {shapes}")


def _broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """Return the broadcast shape; batch sizes must be equal."""
    lengths = [merged(*(shape[0] for shape in shapes))]
    for each in zip(*(shape[1:] for shape in shapes), strict=True):
        lengths.append(None if None in each else merged(*(n for n in each if n != 1), 1 if {*each} == {1} else None))
    return tuple(lengths)


def _reduced(function: Callable[[Any, Any], Any]) -> Any:
    """Return a function that combines any number of arrays, from left to right."""
    return staticmethod(lambda *arrays: functools.reduce(function, arrays))


@with_merging_example("4., 9.")
class Add(Merge):
    """The sum of the inputs, accumulated in float32."""

    _function, _binary_operation = _reduced(np.add), staticmethod(ops.add)


@with_merging_example("-2.,  1.")
class Subtract(Merge):
    """The first input minus the second."""

    _least = _most = 2
    _function = _reduced(np.subtract)


class MaskedMerge(Merge, nameable=False):
    """The base of merging layers that skip masked elements, except where all inputs are masked."""

    def call(self, inputs: Sequence[Array], mask: Sequence[Any] | None = None) -> Array:
        """Return the merged inputs, in the compute dtype.

        Parameters
        ----------
        inputs : sequence of ndarray
        mask : sequence of (ndarray of bool or None), optional
            A mask for each input, without the last axis. As in Keras, the mask of an input with fewer axes than others
            is ignored.
        """
        self._check(inputs)
        masks: Any = [None] * len(inputs) if mask is None else mask
        if len(masks) != len(inputs):
            raise ValueError(f"`mask` of layer '{self.name}' must be a list of {len(inputs)}; received {len(masks)}")
        axes = max(x.ndim for x in inputs)
        pairs = zip(inputs, masks, strict=True)
        keeps = [None if each is None or x.ndim < axes else self._keep(x, each) for x, each in pairs]
        return super().call(inputs) if all(keep is None for keep in keeps) else self._masked(inputs, keeps)

    def _keep(self, x: Array, mask: Any) -> Array:
        """Return the mask of an input with a last axis of length 1."""
        keep = as_keep(mask)
        if keep.ndim != x.ndim - 1 or any(n not in (1, length) for n, length in zip(keep.shape, x.shape, strict=False)):
            raise ValueError(
                f"`mask` of layer '{self.name}' must have the shape {x.shape[:-1]} of its input without the last axis; "
                f"received {keep.shape}"
            )
        return keep[..., np.newaxis]

    def _masked(self, inputs: Sequence[Array], keeps: Sequence[Array | None]) -> Array:
        """Merge the elements that masks keep; masks have a last axis of length 1."""
        (output, *others), (kept, *rest) = inputs, keeps
        for x, keep in zip(others, rest, strict=True):
            x = x if keep is None else np.where(keep, x, output)
            output = super().call([output if kept is None else np.where(kept, output, x), x])
            kept = None if kept is None or keep is None else kept | keep
        return output

    def specs_after(self, inputs: Sequence[Spec], mask: Any = None) -> Spec:
        """Return the spec of the outputs; masks do not change it."""
        return super().specs_after(inputs)


@with_merging_example(" 3., 20.")
class Multiply(MaskedMerge):
    """The elementwise product of the inputs; masked elements count as 1; where all inputs are masked, it is 0."""

    _function, _binary_operation = _reduced(np.multiply), staticmethod(ops.multiply)

    def _masked(self, inputs: Sequence[Array], keeps: Sequence[Array | None]) -> Array:
        pairs = zip(inputs, keeps, strict=True)
        factors = [x if keep is None else np.where(keep, x, x.dtype.type(1)) for x, keep in pairs]
        product = Merge.call(self, factors)
        known = [keep for keep in keeps if keep is not None]
        if len(known) < len(keeps):
            return product
        return np.where(functools.reduce(operator.or_, known), product, product.dtype.type(0))


@with_merging_example("2. , 4.5")
class Average(Merge):
    """The mean of the inputs, accumulated in float32."""

    _function = staticmethod(lambda *arrays: functools.reduce(np.add, arrays) / np.float32(len(arrays)))


@with_merging_example("3., 5.")
class Maximum(MaskedMerge):
    """The elementwise maximum of the inputs; masked elements are ignored."""

    _function = _reduced(np.maximum)


@with_merging_example("1., 4.")
class Minimum(MaskedMerge):
    """The elementwise minimum of the inputs; masked elements are ignored."""

    _function = _reduced(np.minimum)


@with_merging_example("1., 5., 3., 4.")
class Concatenate(Merge):
    """Concatenate the inputs along an axis.

    Parameters
    ----------
    axis : int
    **kwargs : those of :class:`Layer`
    """

    _options = _repr_arguments = ("axis",)

    def __init__(self, axis: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = integer(axis, "axis")

    def call(self, inputs: Sequence[Array]) -> Array:
        """Return the concatenated inputs; all other axes must have equal lengths."""
        self._check(inputs)
        axis = axis_of(self.axis, inputs[0].ndim)
        others = {(*x.shape[:axis], *x.shape[axis + 1 :]) for x in inputs}
        if len(others) > 1 or len({x.ndim for x in inputs}) > 1:
            raise self._shape_error(inputs)
        if any(x.dtype != inputs[0].dtype for x in inputs):
            return np.concatenate(inputs, axis=axis)
        return concatenated(*inputs, axis=axis)

    def specs_after(self, inputs: Sequence[Spec]) -> Spec:
        """Return the spec of the outputs; as in Keras, other lengths are those of the first input."""
        self._check(inputs)
        axis = axis_of(self.axis, inputs[0].ndim)
        shape = self._checked_shape(inputs, lambda: end_to_end([x.shape for x in inputs], axis))
        return Spec(shape, joined(*(Spec((), self._cast_type(x)) for x in inputs)))

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the concatenated masks; along the last axis, their union; None if no input has a mask."""
        if previous_mask is None or all(mask is None for mask in previous_mask):
            return None
        full = [
            np.ones(x.shape[:-1], bool) if mask is None else np.broadcast_to(as_keep(mask), x.shape[:-1])
            for x, mask in zip(inputs, previous_mask, strict=True)
        ]
        axis = axis_of(self.axis, inputs[0].ndim)
        return functools.reduce(operator.or_, full) if axis == inputs[0].ndim - 1 else np.concatenate(full, axis)


@shown("{}(axes=1)([np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])])", "array([[11.]], dtype=float32)")
class Dot(Merge):
    """The dot product of two inputs along one axis of each, for each sample.

    Parameters
    ----------
    axes : int or pair of int
        The axis of the first and of the second input to sum over; not the batch axis.
    normalize : bool
        Whether to divide vectors along these axes by their Euclidean norm first.
    **kwargs : those of :class:`Layer`
    """

    _least = _most = 2
    _options = _repr_arguments = ("axes", "normalize")

    def __init__(self, axes: int | Sequence[int], normalize: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axes = axis_or_axes(axes)
        if isinstance(self.axes, list) and len(self.axes) != 2:
            raise ValueError(f"`axes` must be an integer or a pair of them; received {axes!r}")
        self.normalize = boolean(normalize, "normalize")

    def call(self, inputs: Sequence[Array]) -> Array:
        """Return the dot products, shape (batch, other axes of the first, other axes of the second).

        They are accumulated in float32.
        """
        axes = self._summed_axes(inputs)
        a, b = (np.moveaxis(floating(x, self._compute), axis, -1) for x, axis in zip(inputs, axes, strict=True))
        if 0 in axes or a.shape[-1] != b.shape[-1] or len(a) != len(b):
            raise self._shape_error(inputs)
        if self.normalize:
            a, b = (rounded(lambda x: over_length(x, -1, 1e-12), x) for x in (a, b))
        rows, columns = a.reshape(len(a), -1, a.shape[-1]), b.reshape(len(b), -1, b.shape[-1])
        outputs = ops.matmul(rows, columns.swapaxes(1, 2))
        return outputs.reshape(len(a), *(a.shape[1:-1] + b.shape[1:-1] or (1,)))

    def specs_after(self, inputs: Sequence[Spec]) -> Spec:
        """Return the spec of the outputs.

        As in Keras, the lengths of the summed axes must be both known or both unknown, and the batch size is that of
        the first input.
        """
        one, two = self._summed_axes(inputs)
        a, b = (x.shape for x in inputs)
        if 0 in (one, two) or a[one] != b[two] or (a[0] != b[0] and None not in (a[0], b[0])):
            raise self._shape_error(inputs)
        rest = (*a[1:one], *a[one + 1 :], *b[1:two], *b[two + 1 :]) or (1,)
        kinds = (x if dtypes.is_float(x) else self._compute for x in map(self._cast_type, inputs))
        return Spec((a[0], *rest), joined(*(Spec((), kind) for kind in kinds)))

    def _summed_axes(self, inputs: Sequence[Any]) -> list[int]:
        self._check(inputs)
        pair = (self.axes,) * 2 if isinstance(self.axes, int) else self.axes
        return [axis_of(axis, x.ndim) for axis, x in zip(pair, inputs, strict=True)]

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """Return None, as Keras does."""
        return None
