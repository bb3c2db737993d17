"""Convert torch modules to layers of mp_core."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mp_core.interop.torch.layers import Flatten
from mp_core.interop.torch.linears import array_of
from mp_core.layers import (
    Activation,
    Dense,
    Dropout,
    Embedding,
    Layer,
    LayerNormalization,
    MultiHeadAttention,
    RMSNormalization,
    Sequential,
    Softmax,
)  # fmt: skip

__all__ = ["from_torch"]


def from_torch(module: nn.Module, policy: Any = None) -> Layer:
    """Convert a module to a layer of mp_core that computes the same in inference, with copies of the weights.

    Parameters
    ----------
    module : torch.nn.Module
        Linear, Embedding, LayerNorm, RMSNorm, MultiheadAttention (with ``batch_first=True``), GELU, SiLU, ReLU, ReLU6,
        Tanh, Sigmoid, Softmax, Dropout, Identity, Flatten, or a Sequential of these, in CPU memory.
    policy : DTypePolicy, str or DTypePolicyMap, optional
        The policy of all layers: ``"mixed_bfloat16"``, ``"int8_from_float32"`` ... Default: the global policy. A scheme
        quantizes only layers that support it.

    Returns
    -------
    Layer
        Unnamed modules in a Sequential get their index as a name.

    Raises
    ------
    ValueError
        mp_core has no layer for some modules: the message lists all of them.

    Examples
    --------
    >>> import numpy as np
    >>> module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    >>> layer = from_torch(module, "mixed_bfloat16")
    >>> layer(np.ones((3, 4), np.float32)).dtype
    dtype(bfloat16)
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"`module` must be a torch.nn.Module; received {type(module).__name__}")
    found = list(_obstacles(module, ""))
    if found:
        raise ValueError(f"`module` has {len(found)} modules without a layer in mp_core: {'; '.join(found)}")
    with torch.no_grad():
        return _layer(module, {} if policy is None else {"dtype": policy})


def _layer(module: nn.Module, common: dict[str, Any]) -> Layer:
    return _LAYERS[type(module)](module, common)


def _obstacles(module: nn.Module, path: str) -> Iterator[str]:
    """Yield the reasons why modules cannot be converted, each with the module's path."""
    where = f"{path or 'the module itself'} ({type(module).__name__})"
    if type(module) is nn.Sequential:
        for name, child in module.named_children():
            yield from _obstacles(child, f"{path}.{name}" if path else name)
    elif type(module) not in _LAYERS:
        yield where
    else:
        yield from (f"{where} with {what}" for what, holds in _LIMITS.get(type(module), ()) if holds(module))
        devices = {str(p.device) for p in module.parameters() if p.device.type != "cpu"}
        yield from (f"{where} on {device}" for device in sorted(devices))


def _values(tensor: Tensor) -> Any:
    return array_of(tensor.detach().contiguous()).copy()


def _linear(module: nn.Linear, common: dict[str, Any]) -> Layer:
    layer = Dense(module.out_features, use_bias=module.bias is not None, **common)
    layer.build((None, module.in_features))
    layer.set_matrix(_values(module.weight))
    _assign(layer.bias, module.bias)
    return layer


def _embedding(module: nn.Embedding, common: dict[str, Any]) -> Layer:
    layer = Embedding(module.num_embeddings, module.embedding_dim, **common)
    layer.build()
    layer.set_matrix(_values(module.weight))
    return layer


def _layer_norm(module: nn.LayerNorm, common: dict[str, Any]) -> Layer:
    lengths = module.normalized_shape
    layer = LayerNormalization(
        axis=list(range(-len(lengths), 0)),
        epsilon=module.eps,
        scale=module.weight is not None,
        center=module.bias is not None,
        **common,
    )
    if len(lengths) == 1:
        layer.build((None, *lengths))
        _assign(layer.gamma, module.weight)
        _assign(layer.beta, module.bias)
    return layer


def _rms_norm(module: nn.RMSNorm, common: dict[str, Any]) -> Layer:
    epsilon = torch.finfo(torch.float32).eps if module.eps is None else module.eps
    layer = RMSNormalization(epsilon=epsilon, **common)
    layer.build((None, *module.normalized_shape))
    _assign(layer.scale, module.weight)
    return layer


def _attention(module: Any, common: dict[str, Any]) -> Layer:
    size, bias = module.embed_dim, module.in_proj_bias
    layer = MultiHeadAttention(module.num_heads, module.head_dim, use_bias=bias is not None, **common)
    layer.build((None, None, size), (None, None, module.vdim), (None, None, module.kdim))
    joint: Tensor | None = module.in_proj_weight  # None if keys or values have lengths of their own
    separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    matrices: Any = separate if joint is None else joint.chunk(3)
    biases: Any = (None, None, None) if bias is None else bias.chunk(3)
    denses = (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense)
    for dense, weight, offset in zip(
        denses, (*matrices, module.out_proj.weight), (*biases, module.out_proj.bias), strict=True
    ):
        dense.set_matrix(_values(weight))
        _assign(dense.bias, offset)
    return layer


def _assign(variable: Any, tensor: Tensor | None) -> None:
    if tensor is not None:
        variable.assign(_values(tensor).reshape(variable.shape))


def _sequential(module: nn.Sequential, common: dict[str, Any]) -> Layer:
    layers = [_layer(child, common | {"name": name}) for name, child in module.named_children()]
    return Sequential(layers, **common)


def _activation(name: str) -> Callable[[Any, dict[str, Any]], Layer]:
    return lambda module, common: Activation(name, **common)


_LAYERS: dict[type[nn.Module], Callable[[Any, dict[str, Any]], Layer]] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.MultiheadAttention: _attention,
    nn.Sequential: _sequential,
    nn.GELU: lambda m, common: Activation("gelu" if m.approximate == "none" else "gelu_tanh", **common),
    nn.SiLU: _activation("silu"),
    nn.ReLU: _activation("relu"),
    nn.ReLU6: _activation("relu6"),
    nn.Tanh: _activation("tanh"),
    nn.Sigmoid: _activation("sigmoid"),
    nn.Identity: _activation("linear"),
    nn.Softmax: lambda m, common: Softmax(axis=m.dim, **common),
    nn.Dropout: lambda m, common: Dropout(m.p, **common),
    nn.Flatten: lambda m, common: Flatten(m.start_dim, m.end_dim, **common),
}
_LIMITS: dict[type[nn.Module], tuple[tuple[str, Callable[[Any], bool]], ...]] = {
    nn.Embedding: (("max_norm", lambda m: m.max_norm is not None),),
    nn.LayerNorm: (("more than one normalized axis", lambda m: len(m.normalized_shape) != 1),),
    nn.RMSNorm: (("more than one normalized axis", lambda m: len(m.normalized_shape) != 1),),
    nn.Softmax: (("dim=None", lambda m: m.dim is None),),
    nn.MultiheadAttention: (
        ("batch_first=False", lambda m: not m.batch_first),
        ("bias_k, bias_v", lambda m: m.bias_k is not None),
        ("add_zero_attn", lambda m: m.add_zero_attn),
    ),
}
