"""Layers without variables: activations, softmax, masking, identity."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core import ops
from mp_core.arrays import Array, dtypes
from mp_core.layers import activations
from mp_core.layers.layer import Layer
from mp_core.layers.masks import as_keep
from mp_core.layers.shapes import Shape, same_shape, same_shape_along
from mp_core.ops.elementwise import floating
from mp_core.utilities.arguments import axis_or_axes, number
from mp_core.utilities.docstrings import shown

__all__ = [
    "ELU", "Activation", "ActivityRegularization", "Identity", "LeakyReLU", "Masking", "ReLU", "Softmax",
]  # fmt: skip


@shown('{}("relu")(np.array([-1.0, 2.0]))', "array([0., 2.], dtype=float32)")
class Activation(Layer):
    """An activation function as a layer.

    Parameters
    ----------
    activation : str or callable
    **kwargs : those of :class:`Layer`
    """

    _builds_nothing = True
    _sample_independence = "always"
    supports_masking = True
    _options = ("activation",)

    def __init__(self, activation: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation = activations.get(activation)

    def call(self, inputs: Array) -> Array:
        outputs: Array = self.activation(inputs)
        return outputs

    def _shape_after(self, shape: Shape) -> Shape | None:
        return shape if activations.keeps_shape(self.activation) else None


@shown("{}(max_value=6.0)(np.array([-1.0, 2.0, 9.0]))", "array([0., 2., 6.], dtype=float32)")
class ReLU(Layer):
    """``min(x, max_value)`` where ``x > threshold``, else ``negative_slope * (x - threshold)``.

    Parameters
    ----------
    max_value : float, optional
    negative_slope, threshold : float
    **kwargs : those of :class:`Layer`
    """

    _builds_nothing = True
    _sample_independence = "always"
    _arrays = ("inputs",)
    supports_masking = True
    _shape_after = same_shape
    _options = ("max_value", "negative_slope", "threshold")

    def __init__(
        self, max_value: float | None = None, negative_slope: float = 0.0, threshold: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.max_value = None if max_value is None else number(max_value, "max_value", 0.0)
        self.negative_slope = number(negative_slope, "negative_slope", 0.0)
        self.threshold = number(threshold, "threshold", 0.0)

    def call(self, inputs: Array) -> Array:
        """Return the outputs, computed in float32 and rounded once."""
        x = floating(inputs, self._compute)
        return activations.relu(x, self.negative_slope, self.max_value, self.threshold)


@shown("{}(0.5)(np.array([-1.0, 2.0]))", "array([-0.5,  2. ], dtype=float32)")
class LeakyReLU(Layer):
    """``x`` where ``x >= 0``, else ``negative_slope * x``.

    Parameters
    ----------
    negative_slope : float
    **kwargs : those of :class:`Layer`
    """

    _builds_nothing = True
    _sample_independence = "always"
    _arrays = ("inputs",)
    supports_masking = True
    _shape_after = same_shape
    _options = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.negative_slope = number(negative_slope, "negative_slope", 0.0)

    def call(self, inputs: Array) -> Array:
        """Return the outputs, computed in float32 and rounded once."""
        return activations.leaky_relu(floating(inputs, self._compute), self.negative_slope)


@shown("{}()(np.array([0.0, 2.0]))", "array([0., 2.], dtype=float32)")
class ELU(Layer):
    """``x`` where ``x >= 0``, else ``alpha * (exp(x) - 1)``.

    Parameters
    ----------
    alpha : float
    **kwargs : those of :class:`Layer`
    """

    _builds_nothing = True
    _sample_independence = "always"
    _arrays = ("inputs",)
    supports_masking = True
    _shape_after = same_shape
    _options = ("alpha",)

    def __init__(self, alpha: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.alpha = number(alpha, "alpha")

    def call(self, inputs: Array) -> Array:
        """Return the outputs, computed in float32 and rounded once."""
        return activations.elu(floating(inputs, self._compute), self.alpha)


@shown("{}()(np.array([1.0, 1.0, 5.0]), mask=np.array([True, True, False]))", "array([0.5, 0.5, 0. ], dtype=float32)")
class Softmax(Layer):
    """Softmax along an axis.

    Parameters
    ----------
    axis : int or sequence of int
        The axes over which the outputs sum to 1.
    **kwargs : those of :class:`Layer`
    """

    _builds_nothing = True
    _sample_independence = "always"
    supports_masking = True
    _shape_after = same_shape_along
    _options = _repr_arguments = ("axis",)

    def __init__(self, axis: int | Sequence[int] = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = axis_or_axes(axis)
        if isinstance(self.axis, list) and len(set(self.axis)) < len(self.axis):
            raise ValueError(f"`axis` must name no axis twice; received axis={axis!r}")

    def call(self, inputs: Array, mask: ArrayLike | None = None) -> Array:
        """Return the softmax over the elements where `mask` (bool, or 0 and 1) is True, else 0."""
        keep = None if mask is None else as_keep(mask)
        return ops.softmax(inputs, axis=self.axis, mask=keep)


class Masking(Layer):
    """Mask steps whose elements all equal `mask_value`: outputs are 0 and the mask is False there.

    Parameters
    ----------
    mask_value : float
    **kwargs : those of :class:`Layer`

    Examples
    --------
    >>> layer = Masking(9.0)
    >>> layer(np.array([[[9.0, 9.0], [9.0, 2.0]]])).tolist()
    [[[0.0, 0.0], [9.0, 2.0]]]
    >>> layer.compute_mask(np.array([[[9.0, 9.0], [9.0, 2.0]]]))
    array([[False,  True]])
    """

    _builds_nothing = True
    _arrays = ("inputs",)
    supports_masking = True
    _shape_after = same_shape
    _options = _repr_arguments = ("mask_value",)

    def __init__(self, mask_value: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mask_value = number(mask_value, "mask_value")

    def compute_mask(self, inputs: Array, previous_mask: Any = None) -> Array:
        """Return where an element along the last axis differs from `mask_value`."""
        return self._others(self._cast_input(inputs))[..., 0]

    def call(self, inputs: Array) -> Array:
        """Return the inputs, with 0 at masked steps."""
        return np.where(self._others(inputs), inputs, inputs.dtype.type(0))

    def _others(self, inputs: Array) -> Array:
        """Return where an element along the last axis differs from `mask_value`; that axis is kept with length 1."""
        value = inputs.dtype.type(self.mask_value) if dtypes.is_float(inputs.dtype) else self.mask_value
        return np.any(np.not_equal(inputs, value), axis=-1, keepdims=True)  # type: ignore[no-any-return]


@shown('{}(dtype="float16")(np.float32([1.0, 1 / 3]))  # its compute dtype', "array([1.    , 0.3333], dtype=float16)")
class Identity(Layer):
    """The inputs, unchanged except for the cast to the compute dtype."""

    _builds_nothing = True
    _sample_independence = "always"
    supports_masking = True
    _shape_after = same_shape

    def call(self, inputs: Any) -> Any:
        """Return the inputs."""
        return inputs


class ActivityRegularization(Identity):
    """The identity. It adds ``l1 * sum(abs(x)) + l2 * sum(x**2)``, divided by the batch size, to the training loss.

    Parameters
    ----------
    l1, l2 : float
        At least 0.
    **kwargs : those of :class:`Layer`

    Examples
    --------
    >>> import mp_core as mp
    >>> dense = mp.layers.Dense(2, use_bias=False, kernel_initializer="identity")
    >>> model = mp.Sequential([mp.Input((2,)), dense, ActivityRegularization(l1=0.25)])
    >>> model.compile("sgd", "mse")
    >>> x = np.float32([[3.0, -1.0]])
    >>> float(model.train_on_batch(x, x))  # outputs equal targets, so the loss is 0.25 * (3 + 1)
    1.0
    """

    _options = ("l1", "l2")

    def __init__(self, l1: float = 0.0, l2: float = 0.0, **kwargs: Any) -> None:
        self.l1, self.l2 = number(l1, "l1", 0), number(l2, "l2", 0)
        penalty = {"class_name": "L1L2", "config": {"l1": self.l1, "l2": self.l2}} if self.l1 or self.l2 else None
        super().__init__(activity_regularizer=penalty, **kwargs)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("activity_regularizer", None)
        return config
