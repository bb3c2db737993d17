"""Int8 layers whose inputs have fixed scales, found on a sample: then a call does not look for the largest input."""

from functools import partial
from typing import Any, TypeVar

import numpy as np

from mp_core.layers import Dense, EinsumDense, Layer
from mp_core.models import BertEncoder
from mp_core.ops import cast
from mp_core.quantizers import abs_max_quantize

__all__ = ["Model", "as_inputs", "calibrate", "layers_by_path", "run_model"]

Array = np.ndarray[Any, Any]
Model = BertEncoder | Layer
M = TypeVar("M", BertEncoder, Layer)

_LEAST = 1e-3  # of the widest range: what an input gets at least that hardly varies on the sample
_TINY = 1e-30  # ranges and weights below count as 0


def calibrate(model: M, sample: Any, policy: Any, *, alpha: float = 0.75) -> M:
    """Return the model under a policy, the inputs of its int8 Dense and EinsumDense layers quantized with fixed scales.

    The model runs on the sample in float32, and the range of each input of these layers is recorded. Each input gets
    a step of its own, ``s_j = (range_j / 2) ** alpha / max|kernel_j| ** (1 - alpha)`` up to a common factor
    (SmoothQuant's rule [1]_), by which row j of the kernel is multiplied before it is quantized anew, and a zero point
    in the middle of its range.

    Parameters
    ----------
    model : BertEncoder or Layer
        With unquantized weights; a layer must be built. The model itself does not change.
    sample : sequence of str, array, or tuple of arrays
        What `model` is run on: texts for an encoder; for a layer its inputs, a tuple if it takes several. Inputs beyond
        the ranges seen here are clipped later.
    policy : DTypePolicy or str
        Such as ``"int8_from_mixed_bfloat16"``, or a map in which some layers are in int8.
    alpha : float
        From 0, where the kernel alone decides about the steps, to 1, where the inputs do.

    Returns
    -------
    BertEncoder or Layer

    Raises
    ------
    TypeError
        `model` is none of these.
    ValueError
        `model` is not built, or quantized; `policy` quantizes none of the layers; `alpha` is not from 0 to 1; the
        sample does not reach a layer, or has Inf or NaN there.

    References
    ----------
    .. [1] G. Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models",
       ICML 2023.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> layer = Dense(8)
    >>> x = rng.standard_normal((100, 16)).astype(np.float32)
    >>> exact = layer(x)
    >>> fixed = calibrate(layer, x, "int8_from_float32")
    >>> bool(np.abs(fixed(x) - exact).max() < 0.05), [weight.name for weight in fixed.weights[3:]]
    (True, ['inputs_scale', 'inputs_zero_point'])
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"`alpha` must be from 0 to 1; received {alpha}")
    inputs = as_inputs(model, sample)
    reference, result = model.with_policy("float32"), model.with_policy(policy)
    exact: dict[str, Any] = dict(layers_by_path(reference))
    chosen = {
        path: layer
        for path, layer in layers_by_path(result).items()
        if isinstance(layer, (Dense, EinsumDense)) and layer.quantizes_inputs
    }
    if not chosen:
        raise ValueError(f"`policy` must put a Dense or EinsumDense layer in int8; received {policy}")
    ranges: dict[str, tuple[Array, Array]] = {}
    for path, layer in chosen.items():
        exact[path].call = partial(_recorded, ranges, path, layer.depth, exact[path].call)
    run_model(reference, inputs)
    for path, layer in chosen.items():
        if path not in ranges or not np.isfinite(ranges[path]).all():
            found = "has Inf or NaN there" if path in ranges else "does not reach it"
            raise ValueError(f"`sample` must give layer '{path}' finite inputs; it {found}")
        _fix(layer, exact[path].kernel.numpy(), *ranges[path], alpha)
    return result


def as_inputs(model: Model, sample: Any) -> Any:
    """Return a sample so that it can be used several times: texts as a list."""
    if isinstance(model, BertEncoder):
        return [sample] if isinstance(sample, str) else list(sample)
    if not isinstance(model, Layer):
        raise TypeError(f"`model` must be a BertEncoder or a Layer; received {type(model).__name__}")
    return sample


def run_model(model: Model, inputs: Any) -> Any:
    """Return the outputs for :func:`as_inputs`."""
    if isinstance(model, BertEncoder):
        return model.encode(inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def layers_by_path(model: Model) -> dict[str, Layer]:
    """Return the layers of a model by path."""
    owners = model.layers if isinstance(model, BertEncoder) else [model]
    parts = [part for owner in owners for part in owner.flatten()]
    return {str(part.path): part for part in parts if isinstance(part, Layer)}


def _recorded(ranges: dict[str, tuple[Array, Array]], path: str, depth: int, call: Any, inputs: Array) -> Any:
    """Widen the range of each input, which always holds 0, and call the layer."""
    rows = cast(inputs, "float64").reshape(-1, depth)
    if rows.size:
        low, high = ranges.get(path, (0.0, 0.0))
        ranges[path] = np.minimum(low, rows.min(axis=0)), np.maximum(high, rows.max(axis=0))
    return call(inputs)


def _fix(layer: Any, kernel: Array, low: Array, high: Array, alpha: float) -> None:
    """Quantize the kernel for inputs in these ranges, and fix their steps and zero points."""
    matrix = cast(kernel, "float64").reshape(layer.depth, -1)
    half, weight = (_not_tiny(x) for x in ((high - low) / 2, np.abs(matrix).max(axis=1, initial=0.0)))
    steps = half**alpha / weight ** (1 - alpha)
    steps *= (half / steps).max() / 127
    zeros = np.clip(np.rint(-(low + high) / 2 / steps), -128, 127)
    codes, scale = abs_max_quantize(matrix * steps[:, np.newaxis], axis=0, epsilon=_TINY)
    for variable, value in zip(layer.fix_inputs(), (1 / steps, zeros), strict=True):
        variable.assign(value)
    layer.kernel.assign(codes.reshape(layer.kernel.shape))
    layer.kernel_scale.assign(scale.reshape(layer.kernel_scale.shape))


def _not_tiny(x: Array) -> Array:
    largest = x.max()
    return np.maximum(x, _LEAST * largest) if largest > _TINY else np.ones_like(x)
