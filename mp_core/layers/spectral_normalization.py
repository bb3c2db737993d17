"""Spectral normalization: in training, divide a layer's kernel by its largest singular value."""

from typing import Any

from mp_core import ops
from mp_core.arrays import F32, F64, Array, dtypes
from mp_core.arrays.holding import call_with_value
from mp_core.layers.initializers import TruncatedNormal
from mp_core.layers.layer import Layer
from mp_core.layers.matrix import MatrixLayer
from mp_core.layers.parts import require_whole_batch
from mp_core.layers.shapes import Shape
from mp_core.layers.wrapping import Wrapping
from mp_core.policies.autocast import AutoCastVariable
from mp_core.utilities.arguments import positive_integer

__all__ = ["SpectralNormalization"]


class SpectralNormalization(Wrapping):
    """In training, divide the kernel of a layer by an estimate of its largest singular value.

    The kernel W is treated as a matrix (all other axes, last axis). Each call in training runs `power_iterations` steps
    ``v = normalize(u W'), u = normalize(v W)``, starting from the `u` of the previous call, and computes with
    ``W / sigma``, where ``sigma = v W u'``. Gradients pass through sigma, but not through u and v; W is trained.
    In inference the layer computes with W, as in Keras. To use the normalized kernel there, assign
    ``normalized_weights()[1]`` to it after training.

    Parameters
    ----------
    layer : Layer
        With a variable ``kernel`` or ``embeddings`` of floats.
    power_iterations : int
        Number of steps of a call in training.
    **kwargs : those of :class:`Layer`

    Attributes
    ----------
    vector_u : AutoCastVariable
        Shape (1, last axis of the kernel), not trained.

    References
    ----------
    Miyato et al., Spectral Normalization for Generative Adversarial Networks, 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from mp_core.layers import Dense
    >>> layer = SpectralNormalization(Dense(2, kernel_initializer="ones"), power_iterations=4)
    >>> x = np.ones((1, 2), np.float32)
    >>> layer(x), layer(x, training=True).round(3)  # the largest singular value is 2
    (array([[2., 2.]], dtype=float32), array([[1., 1.]], dtype=float32))
    """

    _arrays = ("inputs",)
    _options = ("power_iterations",)

    def __init__(self, layer: Layer, power_iterations: int = 1, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.power_iterations = positive_integer(power_iterations, "power_iterations")

    def build(self, input_shape: Shape) -> None:
        """Build the layer, and create `vector_u`."""
        if not self.layer.is_placed:
            self.layer.build(input_shape)
        layer = self.layer  # a MatrixLayer may hold codes or have LoRA; then only inference works
        shape = layer.form.geometry.shape if isinstance(layer, MatrixLayer) else self._kernel().shape
        self.vector_u = self.add_weight(
            (1, shape[-1]), TruncatedNormal(stddev=0.02), layer.variable_dtype, trainable=False, name="vector_u"
        )

    def call(self, inputs: Array, training: bool | None = False) -> Array:
        """Return the outputs of the layer, in the dtype of the inputs if these are floats."""
        if training:
            require_whole_batch(f"the SpectralNormalization '{self.name}' in training")
            vector, kernel = self.normalized_weights()
            self.vector_u.assign(vector)
            outputs: Array = call_with_value(self._kernel(), kernel, self.layer, inputs)
        else:
            outputs = self.layer(inputs)
        return ops.cast(outputs, inputs.dtype) if dtypes.is_float(inputs.dtype) else outputs

    def normalized_weights(self) -> tuple[Array, Array]:
        """Return the next `vector_u` and the kernel divided by sigma; if sigma is 0, return both unchanged."""
        variable = self._kernel()
        wide = F64 if variable.true_dtype == F64 else F32
        kernel, before = ops.cast(variable.numpy(), wide), ops.cast(self.vector_u.numpy(), wide)
        weights = kernel.reshape(-1, kernel.shape[-1])
        fixed, u = ops.stop_gradient(weights), before
        for _ in range(self.power_iterations):
            v = ops.normalize(ops.matmul(u, fixed.T))
            u = ops.normalize(ops.matmul(v, fixed))
        sigma = ops.matmul(ops.matmul(v, weights), u.T)
        is_zero = ops.equal(sigma, 0.0)
        divided = ops.divide(weights, ops.where(is_zero, 1.0, sigma)).reshape(kernel.shape)
        vector = ops.where(is_zero, before, u)
        return ops.cast(vector, self.vector_u.true_dtype), ops.cast(divided, variable.true_dtype)

    def _kernel(self) -> AutoCastVariable:
        """Return the kernel variable; raise ValueError if there is none."""
        found = self._found()
        if found is None:
            raise ValueError(
                f"`layer` of '{self.name}' must have a variable `kernel` or `embeddings` of floats, without LoRA; "
                f"received {self.layer!r}"
            )
        return found

    def _found(self) -> AutoCastVariable | None:
        """Return the kernel variable of the layer; None if there is none, or if it holds codes."""
        layer = vars(self).get("layer")  # the base constructor reads variables before `layer` is set
        found = next((getattr(layer, name) for name in ("kernel", "embeddings") if hasattr(layer, name)), None)
        is_variable = isinstance(found, AutoCastVariable) and dtypes.is_float(found.true_dtype)
        return found if is_variable else None

    def own_variables(self) -> list[AutoCastVariable]:
        """Return the variables of this layer, which include the kernel of the wrapped one, as in Keras."""
        kernel = self._found()
        return ([] if kernel is None else [kernel]) + super().own_variables()

    def _shape_after(self, shape: Shape) -> Shape | None:
        found = self.layer.compute_output_shape(shape)
        return found if isinstance(found, tuple) else None
