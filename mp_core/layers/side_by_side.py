"""Several Dense layers with the same inputs: one product with their concatenated kernels."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mp_core import ops
from mp_core.arrays import Array, dtypes
from mp_core.arrays.formats import FOURS
from mp_core.arrays.quantization import QuantizedArray
from mp_core.layers import activations
from mp_core.layers.base.quantization import computes_in
from mp_core.layers.dense import Dense, with_lora
from mp_core.layers.forms import Float, Form
from mp_core.layers.forms.products import packed, product_of
from mp_core.policies.autocast import AutoCastVariable, autocast_scope
from mp_core.policies.autocast.memory import drop_pages
from mp_core.policies.autocast.variable import derived_from

if TYPE_CHECKING:
    from mp_core.layers.layer import Layer

__all__ = ["side_by_side"]

Product = Callable[[Array], Array]


def side_by_side(layers: Sequence[Dense], inputs: Array) -> list[Array]:
    """Return ``[layer(inputs) for layer in layers]`` with the same bits, if possible as views of one product.

    One product is possible if:

    - all layers are Dense, without activation, and compute in the dtype of the inputs;
    - all kernels are floats, or all are 4-bit codes of one type, or all are int8 codes without groups and zero points;
    - codes: inputs are quantized dynamically, or by the same fixed scales for all layers;
    - no kernel is being trained, since it changes at every step.

    The product of LoRA is added to each view.
    """
    product = _cached_product(layers, inputs) if all(_is_plain(layer, inputs) for layer in layers) else None
    if product is None:
        return [layer(inputs) for layer in layers]
    outputs, parts, end = product(inputs), [], 0
    for layer in layers:
        part = outputs[..., end : end + layer.units]
        parts.append(with_lora(layer, part, inputs))
        end += layer.units
    return parts


def _is_plain(layer: "Layer", inputs: Array) -> bool:
    """Return whether a call of the layer is only a product in the dtype of the inputs."""
    return (
        type(layer) is Dense
        and layer.built
        and layer.activation is activations.linear
        and computes_in(layer, inputs.dtype)
        and inputs.shape[-1:] == (layer.depth,)
        and not any(variable.is_held for variable in _variables(layer))
    )


def _cached_product(layers: Sequence[Dense], inputs: Array) -> Product | None:
    """Return the cached product of the layers; new variables, values or kinds of forms invalidate it."""

    def make() -> Product | None:
        with autocast_scope(inputs.dtype):
            return _joined_product([layer.form for layer in layers], [layer.bias for layer in layers], inputs.dtype)

    variables = [variable for layer in layers for variable in _variables(layer)]
    return derived_from(variables, ("side by side", inputs.dtype, *(type(layer.form) for layer in layers)), make)


def _variables(layer: Dense) -> list[AutoCastVariable]:
    return [*layer.form.variables.values(), *([] if layer.bias is None else [layer.bias])]


def _joined_product(forms: list[Form], biases: list[AutoCastVariable | None], dtype: np.dtype[Any]) -> Product | None:
    """Return the product with the concatenated matrices of forms; None if it might have other bits."""
    vectors = [form.bias_vector(bias) for form, bias in zip(forms, biases, strict=True)]
    given = [vector for vector in vectors if vector is not None]
    if len(given) not in (0, len(forms)) or dtypes.name_of(dtype) not in dtypes.WIDE:
        return None
    bias = np.concatenate(given) if given else None
    if all(type(form).multiply is Float.multiply for form in forms):
        return _of_floats(forms, bias, dtype)
    if all(type(form).multiply is Form.multiply for form in forms) and _quantize_alike(forms):
        return _of_codes(forms, bias, dtype)
    return None


def _quantize_alike(forms: list[Form]) -> bool:
    """Return whether all forms quantize rows to the same codes: dynamically, or by the same fixed scales."""
    first, *others = [form.inputs for form in forms]
    if first is None:
        return all(form.dynamic and form.inputs is None for form in forms)
    return all(other is not None and all(map(np.array_equal, first, other)) for other in others)


def _of_floats(forms: list[Form], bias: Array | None, dtype: np.dtype[Any]) -> Product | None:
    variables = [form.variables[form.geometry.name] for form in forms]
    if any(variable.dtype is not dtype for variable in variables):
        return None
    stored = [variable.numpy() for variable in variables]
    cast = [form.geometry.arranged(ops.cast(value, dtype)) for form, value in zip(forms, stored, strict=True)]
    kernel = packed(np.concatenate(cast, axis=1), dtype)
    for value in stored:
        drop_pages(value)
    return lambda rows: ops.matmul(rows, kernel, bias=bias)


def _of_codes(forms: list[Form], bias: Array | None, dtype: np.dtype[Any]) -> Product | None:
    stamps, inputs = [form.stamps for form in forms], forms[0].inputs
    matrices: list[Any] = [form.matrix for form in forms]
    if not all(isinstance(q, QuantizedArray) and q.axis == (0,) for q in matrices):
        return None
    kinds = {(dtypes.name_of(q.dtype), q.group_size, q.zero_point is None) for q in matrices}
    if len(kinds) > 1 or not all(kind == ("int8", None, True) or kind[0] in FOURS for kind in kinds):
        return None
    first = matrices[0]
    values, scale = (np.concatenate([getattr(q, name) for q in matrices]) for name in ("values", "scale"))
    zero = None if first.zero_point is None else np.concatenate([q.zero_point for q in matrices])
    shape = sum(q.shape[0] for q in matrices), first.shape[1]
    joined = QuantizedArray(values, scale, zero, (0,), first.group_size, first.dtype, shape)
    multiply, operand = product_of(joined, inputs, inputs is None, dtype)
    begin = 0
    for form, stamp, q in zip(forms, stamps, matrices, strict=True):
        form.free_packed(operand, stamp, begin)
        begin += q.shape[0]
    return lambda rows: multiply(rows, bias, None, dtype)
