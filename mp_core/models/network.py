"""The BERT network [1]_: layers, filled from a checkpoint, each under the policy of its path.

.. [1] J. Devlin, M.-W. Chang, K. Lee, K. Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for
   Language Understanding", NAACL 2019.
"""

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.dtype_policies import DTypePolicy
from mp_core.dtype_policies.map import unquantized
from mp_core.layers import Dense, Embedding, Layer, LayerNormalization, MultiHeadAttention
from mp_core.layers.layer import quantize_where
from mp_core.models.folder import ACTIVATIONS, Settings, Weights

__all__ = ["Network"]

L = TypeVar("L", bound=Layer)


class Network:
    """Token indices in, one vector for each token out.

    Parameters
    ----------
    settings : Settings
        The sizes.
    weights : Weights
        The checkpoint.
    policy : DTypePolicy
        Of all layers, or a map from their paths: ``embeddings/word``, ``embeddings/norm``, and ``encoder/layer_<i>/``
        with ``attention_norm``, ``intermediate``, ``output``, ``output_norm``, ``attention`` and the layers inside it.

    Attributes
    ----------
    kernel_names : dict of str to str
        The path of each layer with a kernel -> the name of its tensor in the checkpoint.
    tensor_names : dict of str to str
        The path of each layer with weights of its own -> how the names of its tensors begin.
    """

    def __init__(self, settings: Settings, weights: Weights, policy: DTypePolicy) -> None:
        build = _Builder(settings, weights, policy, unquantized(policy))
        self._words = build.words()
        self._positions = build.positions(self._words.compute_dtype)
        self._norm = build.norm("embeddings/norm", "embeddings.LayerNorm")
        self._blocks = [build.block(index) for index in range(settings.num_hidden_layers)]
        self.kernel_names = build.kernel_names
        self.tensor_names = build.tensor_names

    def __call__(self, ids: Array, attention_mask: Array | None) -> Array:
        """Return an array of shape (n, length, hidden_size) in the last layer's output dtype.

        Parameters
        ----------
        ids : ndarray of int, shape (n, length)
            Token indices.
        attention_mask : ndarray of bool, shape (n, 1, length), optional
            False for the tokens that nothing attends to.
        """
        words = self._words(ids)
        hidden: Array = self._norm(words, residual=np.broadcast_to(self._positions[: ids.shape[1]], words.shape))
        for block in self._blocks:
            hidden = block(hidden, attention_mask)
        return hidden

    @property
    def layers(self) -> list[Layer]:
        """The layers in the order of their use."""
        return [self._words, self._norm, *(layer for block in self._blocks for layer in block.layers)]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in the form in which a run reads them."""
        return self._positions.nbytes + sum(layer.weight_bytes for layer in self.layers)


@dataclass(frozen=True, slots=True)
class _Block:
    """Attention and a two-layer perceptron; what each adds to its input is normalized."""

    attention: MultiHeadAttention
    attention_norm: LayerNormalization
    intermediate: Dense
    output: Dense
    output_norm: LayerNormalization

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in the order of their use."""
        return self.attention, self.attention_norm, self.intermediate, self.output, self.output_norm

    def __call__(self, hidden: Array, attention_mask: Array | None) -> Array:
        attended = self.attention(hidden, hidden, attention_mask=attention_mask)
        hidden = self.attention_norm(attended, residual=hidden)
        hidden = self.output_norm(self.output(self.intermediate(hidden)), residual=hidden)
        return hidden


@dataclass(frozen=True, slots=True)
class _Builder:
    """Makes layers from the tensors of a checkpoint, each under the policy of its path."""

    settings: Settings
    weights: Weights
    policy: DTypePolicy
    unquantized: DTypePolicy
    kernel_names: dict[str, str] = field(default_factory=dict)
    tensor_names: dict[str, str] = field(default_factory=dict)

    def block(self, index: int) -> _Block:
        path, name = f"encoder/layer_{index}", f"encoder.layer.{index}"
        hidden, inner = self.settings.hidden_size, self.settings.intermediate_size
        activation = ACTIVATIONS[self.settings.hidden_act]
        return _Block(
            self.attention(f"{path}/attention", f"{name}.attention"),
            self.norm(f"{path}/attention_norm", f"{name}.attention.output.LayerNorm"),
            self.dense(f"{path}/intermediate", f"{name}.intermediate.dense", hidden, inner, activation),
            self.dense(f"{path}/output", f"{name}.output.dense", inner, hidden),
            self.norm(f"{path}/output_norm", f"{name}.output.LayerNorm"),
        )

    def dense(self, path: str, name: str, inputs: int, units: int, activation: str | None = None) -> Dense:
        layer = Dense(units, activation, kernel_initializer="zeros", name=path, dtype=self.unquantized)
        kernel = self.kernel(path, name, units, inputs).T
        return self._filled(layer, (None, None, inputs), [kernel, self.weights.take(f"{name}.bias", units)])

    def attention(self, path: str, name: str) -> MultiHeadAttention:
        width, heads, size = self.settings.hidden_size, self.settings.num_attention_heads, self.settings.head_size
        layer = MultiHeadAttention(heads, size, kernel_initializer="zeros", name=path, dtype=self.unquantized)
        weights = []
        for part in ("query", "key", "value"):
            kernel = self.kernel(f"{path}/{part}", f"{name}.self.{part}", width, width)
            bias = self.weights.take(f"{name}.self.{part}.bias", width)
            weights += [kernel.reshape(heads, size, width).transpose(2, 0, 1), bias.reshape(heads, size)]
        kernel = self.kernel(f"{path}/attention_output", f"{name}.output.dense", width, width)
        weights += [kernel.T.reshape(heads, size, width), self.weights.take(f"{name}.output.dense.bias", width)]
        return self._filled(layer, (None, None, width), weights)

    def kernel(self, path: str, name: str, units: int, inputs: int) -> Array:
        """Return the kernel of the layer at `path`, transposed as the checkpoint has it."""
        self.kernel_names[path] = f"{self.weights.prefix}{name}.weight"
        self.tensor_names[path] = f"{self.weights.prefix}{name}."
        return self.weights.take(f"{name}.weight", units, inputs)

    def norm(self, path: str, name: str) -> LayerNormalization:
        width = self.settings.hidden_size
        layer = LayerNormalization(epsilon=self.settings.layer_norm_eps, name=path, dtype=self.unquantized)
        weights = [self.weights.take(f"{name}.{part}", width) for part in ("weight", "bias")]
        self.tensor_names[path] = f"{self.weights.prefix}{name}."
        return self._filled(layer, (None, None, width), weights)

    def words(self) -> Embedding:
        rows, width = self.settings.vocab_size, self.settings.hidden_size
        layer = Embedding(rows, width, embeddings_initializer="zeros", name="embeddings/word", dtype=self.unquantized)
        table = self.weights.take("embeddings.word_embeddings.weight", rows, width)
        self.tensor_names["embeddings/word"] = f"{self.weights.prefix}embeddings.word_embeddings."
        return self._filled(layer, (None, None), [table])

    def positions(self, dtype: str) -> Array:
        """Return one row for each position: its embedding plus that of token type 0, the only type of a single text."""
        width = self.settings.hidden_size
        table = self.weights.take("embeddings.position_embeddings.weight", self.settings.max_position_embeddings, width)
        types = self.weights.take("embeddings.token_type_embeddings.weight", self.settings.type_vocab_size, width)
        return ops.cast(table + types[0], dtype)

    def _filled(self, layer: L, input_shape: tuple[int | None, ...], weights: list[Array]) -> L:
        """Build, load without a copy, then quantize what the policy says."""
        layer.build(input_shape)
        layer.set_weights(weights, copy=False)
        quantize_where(layer, self.policy)
        return layer
