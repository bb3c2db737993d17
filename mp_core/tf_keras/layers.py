"""The layers of :mod:`mp_core.layers` under tf.keras' rules."""

from collections.abc import Sequence
from typing import Any, Self

from mp_core import layers
from mp_core.layers.symbols import KerasTensor
from mp_core.tf_keras.layer import Layer
from mp_core.tf_keras.mixed_precision.experimental.optimizer import wrap_optimizer
from mp_core.tf_keras.mixed_precision.policy import is_floating
from mp_core.training import models, sequential

__all__ = [
    "Activation",
    "Conv2D",
    "Dense",
    "Dropout",
    "EinsumDense",
    "Embedding",
    "Layer",
    "LayerNormalization",
    "Model",
    "Sequential",
    "Softmax",
]


class _Weighted(Layer):
    """A built-in layer with weights, which must be floating-point."""

    def build(self, input_shape: Any = None) -> None:
        if self.dtype is not None and not is_floating(self.dtype):
            name = type(self).__name__
            article = "An" if name[0] in "AEIOU" else "A"
            raise TypeError(
                f"{article} {name} layer can only be built with a floating-point dtype. Received: dtype={self.dtype}"
            )
        super().build(input_shape)


class Activation(Layer, layers.Activation):
    """:class:`mp_core.layers.Activation` under tf.keras' rules.

    >>> import numpy as np
    >>> Activation("linear", dtype="float16")(np.array([1, 2]))  # tf.keras casts only floating-point inputs
    array([1, 2])
    """


class Conv2D(_Weighted, layers.Conv2D):
    """:class:`mp_core.layers.Conv2D` under tf.keras' rules.

    >>> import numpy as np
    >>> layer = Conv2D(4, 3, dtype="mixed_float16")
    >>> layer(np.ones((1, 6, 6, 2))).shape, layer.dtype, layer.compute_dtype  # windows of 3 x 3 in 6 x 6
    ((1, 4, 4, 4), 'float32', 'float16')
    """


class Dense(_Weighted, layers.Dense):
    """:class:`mp_core.layers.Dense` under tf.keras' rules.

    >>> import numpy as np
    >>> layer = Dense(2, dtype="mixed_float16")
    >>> layer(np.ones((3, 5))).dtype, layer.dtype  # in tf.keras, `dtype` is the dtype of the variables
    (dtype('float16'), 'float32')
    """

    _matrix_name = "kernel"


class Dropout(Layer, layers.Dropout):
    """:class:`mp_core.layers.Dropout` under tf.keras' rules.

    >>> import numpy as np
    >>> Dropout(0.75, seed=1, dtype="float16")(np.ones((1, 8)), training=True)  # 0, or 1 / (1 - 0.75)
    array([[0., 4., 0., 0., 4., 0., 0., 0.]], dtype=float16)
    """


class EinsumDense(_Weighted, layers.EinsumDense):
    """:class:`mp_core.layers.EinsumDense` under tf.keras' rules.

    >>> import numpy as np
    >>> EinsumDense("abc,cd->abd", (None, 4))(np.ones((2, 3, 5))).shape
    (2, 3, 4)
    """

    _matrix_name = "kernel"


class Embedding(_Weighted, layers.Embedding):
    """:class:`mp_core.layers.Embedding` under tf.keras' rules.

    >>> import numpy as np
    >>> layer = Embedding(10, 4, dtype="mixed_float16")
    >>> layer(np.array([[1, 2, 3]])).shape, layer.embeddings.dtype
    ((1, 3, 4), dtype('float32'))
    """

    _matrix_name = "embeddings"


class LayerNormalization(_Weighted, layers.LayerNormalization):
    """:class:`mp_core.layers.LayerNormalization` under tf.keras' rules.

    >>> import numpy as np
    >>> LayerNormalization()(np.array([[1.0, 3.0]])).round(2)  # mean 2, deviation 1
    array([[-1.,  1.]], dtype=float32)
    """


class _WrapsOptimizer:
    """Wraps the optimizer of a model by the rule of tf.keras for the class of its policy."""

    def _wrapped_optimizer(self, optimizer: Any, auto_scale_loss: bool) -> Any:
        return wrap_optimizer(optimizer, self.dtype_policy) if auto_scale_loss else optimizer  # type: ignore[attr-defined]


class Model(_WrapsOptimizer, Layer, models.Model):
    """:class:`mp_core.Model` under tf.keras' rules: built from :func:`Input` and layers, or a subclass with ``call``.

    Parameters
    ----------
    inputs, outputs : KerasTensor, or list or dict of them, optional
    **kwargs
        See :class:`mp_core.Model`.

    Examples
    --------
    >>> from mp_core.tf_keras.mixed_precision.experimental import Policy
    >>> start = layers.Input((3,))
    >>> model = Model(start, Dense(2)(start), dtype=Policy("mixed_float16", loss_scale=8.0))
    >>> model.compile("sgd", "mse")
    >>> float(model.optimizer.loss_scale)
    8.0
    """


class Sequential(_WrapsOptimizer, Layer, sequential.Sequential):
    """:class:`mp_core.Sequential` under tf.keras' rules: the layers cast their inputs, the stack itself does not.

    Parameters
    ----------
    layers : sequence of Layer, or Layer, optional
        Layers of mp_core.tf_keras.
    name : str, optional
    **kwargs
        See :class:`mp_core.layers.Layer`; `autocast` defaults to False.

    Examples
    --------
    >>> import numpy as np
    >>> model = Sequential([Dense(4, dtype="mixed_float16"), Dense(2, dtype="float32")])
    >>> model(np.ones((3, 5))).dtype
    dtype('float32')
    >>> Sequential.from_config(model.get_config()).layers[0].dtype_policy
    <Policy "mixed_float16">
    """

    def __init__(
        self,
        layers: Sequence[Layer] | Layer | None = None,
        name: str | None = None,
        *,
        autocast: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(layers=layers, name=name, autocast=autocast, **kwargs)

    def append_unbuilt(self, layer: layers.Layer | KerasTensor) -> None:
        """Append a layer without building it; raise TypeError for a layer of Keras 3."""
        if not isinstance(layer, Layer | layers.InputLayer | KerasTensor):
            raise TypeError(
                "The added layer must be an instance of class mp_core.tf_keras.Layer. "
                f"Received: layer={layer!r} of type {type(layer)}."
            )
        super().append_unbuilt(layer)

    @classmethod
    def from_config(
        cls, config: dict[str, Any] | list[Any], custom_objects: dict[str, type[layers.Layer]] | None = None
    ) -> Self:
        """Return the model of a configuration; its layers are of mp_core.tf_keras, registered or in `custom_objects`.

        `config` may be a list of the configurations of layers, which early releases of Keras wrote.
        """
        return super().from_config({"layers": config} if isinstance(config, list) else config, custom_objects)


class Softmax(Layer, layers.Softmax):
    """:class:`mp_core.layers.Softmax` under tf.keras' rules.

    >>> import numpy as np
    >>> Softmax()(np.log([[1.0, 3.0]])).round(4)
    array([[0.25, 0.75]], dtype=float32)
    """
