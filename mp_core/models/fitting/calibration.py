"""``calibrate``: quantize a model for a sample of its inputs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from mp_core.arrays import F32, Array
from mp_core.arrays.dtypes import finfo
from mp_core.arrays.quantization import QuantizedArray
from mp_core.layers.forms import Inputs
from mp_core.layers.forms.observed import InputStatistics
from mp_core.layers.forms.rounding import quantize_for
from mp_core.layers.matrix import MatrixLayer
from mp_core.models.fitting.observing import observe
from mp_core.models.fitting.running import LayerLike, calls_of, layers_by_path
from mp_core.models.fitting.trial import Trial
from mp_core.ops import cast
from mp_core.policies.dtype_policies import DTypePolicy, Scheme, policy_of
from mp_core.policies.dtype_policies.map import mapped, policy_at
from mp_core.utilities.arguments import share

__all__ = ["calibrate"]

M = TypeVar("M", bound=LayerLike)

# An input with range <= _UNSEEN * (widest range) counts as not seen in the sample. Likewise an input whose largest
# weight is <= _UNSEEN * (largest weight of all inputs).
_UNSEEN = 1e-12
# An unseen input gets the range _ASSUMED * (widest range), or the weight _ASSUMED * (largest weight).
_ASSUMED = 1e-3
# If no range (or no weight) exceeds _TINY, all count as 1, so that their quotients fit float32.
_TINY = 1e-30


def calibrate(model: M, sample: Any, policy: Any, *, alpha: float = 0.75, held_out: Any = None) -> M:
    """Return the model under a policy, with its quantized kernels (not tables) fitted to a sample.

    The model runs on the sample in float32. Kernels are then rounded input by input: the rounding error of the weights
    of one input is propagated into the weights of correlated inputs that are rounded later (GPTQ [1]_). The scales of
    the kernels do not depend on the sample.

    int8 layers that quantize their inputs get fixed scales for the inputs: ``int8`` becomes ``int8/fixed``.

    - The scale of input j is ``s_j = c * (range_j / 2) ** alpha / max|w_j| ** (1 - alpha)`` (SmoothQuant [2]_); c is
      the same for all inputs of the layer. The zero point maps the middle of the range to code 0.
    - The weights w_j are multiplied by ``s_j`` before they are quantized.
    - Layers with the same inputs, such as query, key and value, get the same scales, so that the inputs are quantized
      once: ``max|w_j|`` is replaced by its root mean square over these layers.

    Float8 layers with fixed inputs get one scale for all inputs.

    Parameters
    ----------
    model : Layer
        Built and unquantized. Also accepted: an object with the same ``__call__``, ``flatten``, ``weight_bytes`` and
        ``with_policy``, such as a :class:`~mp_core.models.TextEncoder`. The model itself does not change.
    sample : array, tuple, dict or list
        The inputs of a call: its only argument, a tuple of arguments, or a dict of keyword arguments. A list or an
        iterator is several calls; for an encoder, a list of texts. If a call has an argument ``mask``, only positions
        with True count. Later inputs outside the ranges of the sample are clipped.
    policy : DTypePolicy or str
        A policy, a map of policies, or a scheme alone: ``"int8"`` means ``"int8_from_mixed_bfloat16"``.
    alpha : float
        The exponent above, from 0 (only the kernel determines the scales of inputs) to 1 (only the ranges do).
    held_out : array, tuple, dict or list, optional
        Further inputs in the form of `sample`, including rare ones. The scales of inputs are computed a second time,
        for the ranges of both. Of the two models, return the one whose worst output on `held_out` is closer to float32,
        as :func:`choose_policy` measures it by default.

    Returns
    -------
    Layer
        With the type of `model`.

    Raises
    ------
    ValueError
        `model` is not built, or is quantized; `policy` quantizes no kernel; `sample` or `held_out` gives a layer no
        inputs, or Inf or NaN.

    References
    ----------
    .. [1] E. Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
       ICLR 2023.
    .. [2] G. Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models",
       ICML 2023.

    Examples
    --------
    >>> from mp_core.layers import Dense
    >>> rng = np.random.default_rng(0)
    >>> layer = Dense(8)
    >>> x = rng.standard_normal((100, 16)).astype(np.float32)
    >>> exact = layer(x)
    >>> fixed = calibrate(layer, x, "int8_from_float32")
    >>> bool(np.abs(fixed(x) - exact).max() < 0.05), fixed.inputs.scale.shape
    (True, (16,))
    """
    alpha = share(alpha, "alpha")
    calls, wanted = calls_of(model, sample), policy_of(policy)
    held_out = list(held_out) if isinstance(held_out, Iterator) else held_out
    rare = [] if held_out is None else calls_of(model, held_out, "held_out")
    if held_out is not None and not rare:
        raise ValueError(f"`held_out` must have inputs, or be None; received {held_out!r}")
    reference, target = model.with_policy("float32"), _with_schemes(wanted, _with_fixed_inputs)
    result, exact = model.with_policy(_with_schemes(wanted, _without_fixed_inputs)), _kernels(reference)
    chosen = [path for path, layer in _kernels(result).items() if layer.quantized]
    schemes = {path: scheme for path in chosen if (scheme := policy_at(target, path).scheme) is not None}
    if not schemes:
        raise ValueError(f"`policy` must put a layer with a kernel in a scheme such as int8; received {policy}")
    observed = {path: exact[path] for path in schemes}
    seen = observe(reference, calls, observed)
    _fit(result, exact, schemes, seen, target, alpha)
    if not rare or all(scheme.inputs != "fixed" for scheme in schemes.values()):
        return result
    ranges = observe(reference, rare, observed, "held_out")
    other = model.with_policy(_with_schemes(wanted, _without_fixed_inputs))  # a new map: fitting changed the first
    _fit(other, exact, schemes, {path: seen[path].with_ranges_of(ranges[path]) for path in schemes}, target, alpha)
    return min(result, other, key=Trial(model, held_out).error_in_metric)


def _fit(
    model: LayerLike,
    exact: Mapping[str, Any],
    schemes: Mapping[str, Scheme],
    seen: Mapping[str, InputStatistics],
    target: DTypePolicy,
    alpha: float,
) -> None:
    """Set codes and scales of the layers at the paths of `schemes`, from the statistics of their inputs."""
    fixed = {path: exact[path].matrix for path, s in schemes.items() if _is_int8(s) and not s.is_weight_only}
    weights, layers = _largest_weights(fixed, seen), _kernels(model)
    for path, scheme in schemes.items():
        lines = cast(exact[path].matrix, "float64")
        fitted = _fit_kernel(lines, scheme, seen[path], weights.get(path), alpha)
        layers[path].set_matrix(*fitted, policy=policy_at(target, path))


def _kernels(model: LayerLike) -> dict[str, Any]:
    layers = layers_by_path(model).items()
    return {path: layer for path, layer in layers if isinstance(layer, MatrixLayer) and layer.multiplies}


def _with_schemes(policy: DTypePolicy, change: Callable[[Scheme], Scheme]) -> DTypePolicy:
    """Return a policy or a map of policies in which `change` is applied to each scheme."""

    def changed(own: DTypePolicy) -> DTypePolicy:
        if own.scheme is None or change(own.scheme) == own.scheme:
            return own
        return policy_of(f"{change(own.scheme)}_from_{own.get_config()['source_name']}")

    return mapped(policy, changed)


def _with_fixed_inputs(scheme: Scheme) -> Scheme:
    """Return the scheme of a calibrated layer: quantized inputs get fixed scales if the codes allow it."""
    return scheme if scheme.is_weight_only or not scheme.can_fix_inputs else replace(scheme, inputs="fixed")


def _without_fixed_inputs(scheme: Scheme) -> Scheme:
    """Return a scheme that needs no sample: without fixed scales of inputs."""
    return scheme if scheme.inputs != "fixed" else replace(scheme, inputs="dynamic" if _is_int8(scheme) else "float")


def _largest_weights(kernels: dict[str, Array], seen: Mapping[str, InputStatistics]) -> dict[str, Array]:
    """Return path -> ``max|w_j|`` of each input j.

    Kernels whose inputs have the same ranges get the root mean square of their values, and so the same scales of
    inputs.
    """
    ranges = {path: (seen[path].low.tobytes(), seen[path].high.tobytes()) for path in kernels}
    largest: dict[tuple[bytes, bytes], list[Array]] = {}
    for path, lines in kernels.items():
        largest.setdefault(ranges[path], []).append(np.abs(cast(lines, "float64")).max(axis=0, initial=0.0))
    return {path: np.sqrt(np.mean(np.square(largest[key]), axis=0)) for path, key in ranges.items()}


def _fit_kernel(
    lines: Array, scheme: Scheme, seen: InputStatistics, weight: Array | None, alpha: float
) -> tuple[QuantizedArray, Inputs | None]:
    """Return the codes of a kernel of shape (outputs, inputs), and the scales of fixed inputs.

    `weight` is ``max|w_j|`` of each input if the scheme is int8 with fixed inputs, otherwise None.
    """
    if scheme.inputs != "fixed":
        return quantize_for(lines, scheme, seen.moments), None
    inputs = _float8_inputs(scheme, seen) if weight is None else _int8_inputs(weight, seen, alpha)
    scale = np.broadcast_to(cast(inputs.scale, "float64"), lines.shape[1:])
    return quantize_for(lines * scale, scheme, seen.moments / scale / scale[:, np.newaxis]), inputs


def _int8_inputs(weight: Array, seen: InputStatistics, alpha: float) -> Inputs:
    """Return scale and zero point of each input; `weight` is ``max|w_j|``."""
    low, high = seen.low, seen.high
    half, weight = (_with_assumed_values(x) for x in ((high - low) / 2, weight))
    scale = half**alpha / weight ** (1 - alpha)
    scale = cast(scale * ((half / scale).max() / 127), F32)
    zero_point = np.clip(np.rint(-(low + high) / 2 / scale), -128, 127)
    return Inputs(scale, zero_point.astype(np.int8))


def _float8_inputs(scheme: Scheme, seen: InputStatistics) -> Inputs:
    """Return one scale, which maps the largest input to the largest code."""
    largest = max(-seen.low.min(initial=0.0), seen.high.max(initial=0.0))
    return Inputs(np.float32(largest / float(finfo(scheme.codes).max) if largest > _TINY else 1.0))


def _is_int8(scheme: Scheme) -> bool:
    return scheme.codes == "int8"


def _with_assumed_values(x: Array) -> Array:
    """Return ranges of inputs or magnitudes of weights, with assumed values for unseen inputs."""
    largest = x.max()
    return np.where(x > _UNSEEN * largest, x, _ASSUMED * largest) if largest > _TINY else np.ones_like(x)
