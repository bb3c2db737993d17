"""Models under a policy, their quantized layers fitted to a sample of their inputs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from mp_core.arrays import F32, Array
from mp_core.arrays.dtypes import finfo
from mp_core.arrays.quantization import QuantizedArray
from mp_core.layers import Dense, EinsumDense
from mp_core.layers.forms import Inputs
from mp_core.models.fitting.observing import Seen, observe
from mp_core.models.fitting.rounding import quantize_for
from mp_core.models.fitting.running import LayerLike, calls_of, layers_by_path
from mp_core.models.fitting.trial import Trial
from mp_core.ops import cast
from mp_core.policies.dtype_policies import DTypePolicy, Scheme, policy_of
from mp_core.policies.dtype_policies.map import mapped, policy_at
from mp_core.utilities.arguments import share

__all__ = ["calibrate"]

M = TypeVar("M", bound=LayerLike)

# An input whose range is no more than this share of the widest one counts as not seen in the sample. The same holds
# for the largest weight of an input, beside that of all inputs.
_UNSEEN = 1e-12
# An input that was not seen gets this share of the widest range, or of the largest weight.
_ASSUMED = 1e-3
# If no range (or no weight) exceeds this, all of them count as 1, because float32 must hold their quotients.
_TINY = 1e-30


def calibrate(model: M, sample: Any, policy: Any, *, alpha: float = 0.75, held_out: Any = None) -> M:
    """Return the model under a policy, its quantized Dense and EinsumDense layers fitted to a sample.

    The model runs on the sample in float32. Kernels are then rounded input by input: the rounding error of the weights
    of one input is propagated into the weights of the inputs that are correlated with it and rounded later (GPTQ
    [1]_). The scales of the kernels are those that they would have without a sample.

    int8 layers that quantize their inputs get fixed scales for these: ``int8`` becomes ``int8/fixed``. Each input j has
    a scale ``s_j = (range_j / 2) ** alpha / max|w_j| ** (1 - alpha)``, times a factor that all inputs of the layer
    share (SmoothQuant's rule [2]_), and a zero point that puts the middle of its range at code 0. Its weights w_j are
    multiplied by ``s_j`` before they are quantized. Layers that multiply the same inputs, such as query, key and value,
    get the same scales, by the root mean square of their ``max|w_j|``, so that these inputs are quantized once. Float8
    layers with fixed inputs get one scale for all inputs.

    Parameters
    ----------
    model : Layer
        Built, with unquantized weights; or anything with the same ``__call__``, ``flatten``, ``weight_bytes`` and
        ``with_policy``, such as a :class:`~mp_core.models.TextEncoder`. The model itself does not change.
    sample : array, tuple, dict or list
        The inputs of a call: its one argument, a tuple of them, or a dict of keyword arguments. A list, or an iterator,
        is several calls: that of an encoder holds texts. Where a call has an argument ``mask``, inputs of layers count
        only where it is True. Inputs beyond the ranges seen here are clipped later.
    policy : DTypePolicy or str
        A policy, a map of policies, or a scheme alone: ``"int8"`` means ``"int8_from_mixed_bfloat16"``.
    alpha : float
        The exponent of `range_j` above, for int8 layers that quantize their inputs: from 0, where the kernel alone
        decides about the scales of the inputs, to 1, where the ranges of the inputs do.
    held_out : array, tuple, dict or list, optional
        More inputs in the form of `sample`, with rare ones among them. Fixed scales are then made once more, for the
        ranges of both. Those are kept with which the worst output of these inputs is nearer to that in float32, as
        :func:`choose_policy` measures it by default.

    Returns
    -------
    Layer
        Of the type of `model`.

    Raises
    ------
    TypeError
        `model` is none of these, or `sample` does not fit it.
    ValueError
        `model` is not built, or is quantized; `policy` puts no Dense or EinsumDense layer in a scheme; `alpha` is not
        from 0 to 1; the sample, or `held_out`, gives a layer no inputs, or Inf or NaN; a kernel has Inf or NaN.

    References
    ----------
    .. [1] E. Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
       ICLR 2023.
    .. [2] G. Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models",
       ICML 2023.

    Examples
    --------
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
    reference, target = model.with_policy("float32"), _under(wanted, _fixed)
    result, exact = model.with_policy(_under(wanted, _not_fixed)), _kernels(reference)
    chosen = [path for path, layer in _kernels(result).items() if layer.quantized]
    schemes = {path: scheme for path in chosen if (scheme := policy_at(target, path).scheme) is not None}
    if not schemes:
        raise ValueError(f"`policy` must put a Dense or EinsumDense layer in a scheme such as int8; received {policy}")
    observed = {path: exact[path] for path in schemes}
    seen = observe(reference, calls, observed)
    _fit(result, exact, schemes, seen, target, alpha)
    if not rare or all(scheme.inputs != "fixed" for scheme in schemes.values()):
        return result
    ranges = observe(reference, rare, observed, "held_out")
    other = model.with_policy(_under(wanted, _not_fixed))  # a fitted model has changed the map that it was made with
    _fit(other, exact, schemes, {path: seen[path].widened(ranges[path]) for path in schemes}, target, alpha)
    return min(result, other, key=Trial(model, held_out).measured)


def _fit(
    model: LayerLike,
    exact: Mapping[str, Any],
    schemes: Mapping[str, Scheme],
    seen: Mapping[str, Seen],
    target: DTypePolicy,
    alpha: float,
) -> None:
    """Give layers of a model, by path, codes and scales for what was seen of their inputs."""
    fixed = {path: exact[path].matrix for path, s in schemes.items() if _is_int8(s) and not s.is_weight_only}
    weights, layers = _weights(fixed, seen), _kernels(model)
    for path, scheme in schemes.items():
        lines = cast(exact[path].matrix, "float64")
        fitted = _fitted(lines, scheme, seen[path], weights.get(path), alpha)
        layers[path].set_matrix(*fitted, policy=policy_at(target, path))


def _kernels(model: LayerLike) -> dict[str, Any]:
    return {path: layer for path, layer in layers_by_path(model).items() if isinstance(layer, (Dense, EinsumDense))}


def _under(policy: DTypePolicy, change: Callable[[Scheme], Scheme]) -> DTypePolicy:
    """Return the policy, or map of policies, with the schemes that `change` makes of its own."""

    def changed(own: DTypePolicy) -> DTypePolicy:
        if own.scheme is None or change(own.scheme) == own.scheme:
            return own
        return policy_of(f"{change(own.scheme)}_from_{own.get_config()['source_name']}")

    return mapped(policy, changed)


def _fixed(scheme: Scheme) -> Scheme:
    """Return the scheme of a layer that is fitted: inputs that it quantizes get fixed scales, but beside int4."""
    return scheme if scheme.is_weight_only or scheme.codes == "int4" else replace(scheme, inputs="fixed")


def _not_fixed(scheme: Scheme) -> Scheme:
    """Return a scheme that floats can be quantized by: without scales of inputs, which no sample has given yet."""
    return scheme if scheme.inputs != "fixed" else replace(scheme, inputs="dynamic" if _is_int8(scheme) else "float")


def _weights(kernels: dict[str, Array], seen: Mapping[str, Seen]) -> dict[str, Array]:
    """Return the largest magnitude of the weights of each input, by path.

    For kernels whose inputs have the same ranges it is the root mean square of theirs, so that they get the same scales
    of inputs. (Of one kernel alone it is its own to the bit.)
    """
    ranges = {path: (seen[path].low.tobytes(), seen[path].high.tobytes()) for path in kernels}
    largest: dict[tuple[bytes, bytes], list[Array]] = {}
    for path, lines in kernels.items():
        largest.setdefault(ranges[path], []).append(np.abs(cast(lines, "float64")).max(axis=0, initial=0.0))
    return {path: np.sqrt(np.mean(np.square(largest[key]), axis=0)) for path, key in ranges.items()}


def _fitted(
    lines: Array, scheme: Scheme, seen: Seen, weight: Array | None, alpha: float
) -> tuple[QuantizedArray, Inputs | None]:
    """Return a kernel (outputs, inputs) as codes for the inputs that were seen, and the scales of fixed inputs.

    `weight` has the largest weight of each input, if the scheme is int8 with fixed inputs.
    """
    if scheme.inputs != "fixed":
        return quantize_for(lines, scheme, seen.moments), None
    inputs = _float8_inputs(scheme, seen) if weight is None else _inputs(weight, seen, alpha)
    scale = np.broadcast_to(cast(inputs.scale, "float64"), lines.shape[1:])
    return quantize_for(lines * scale, scheme, seen.moments / scale / scale[:, np.newaxis]), inputs


def _inputs(weight: Array, seen: Seen, alpha: float) -> Inputs:
    """Return a scale and a zero point for each input, whose largest weights are given."""
    low, high = seen.low, seen.high
    half, weight = (_assumed(x) for x in ((high - low) / 2, weight))
    scale = half**alpha / weight ** (1 - alpha)
    scale = cast(scale * ((half / scale).max() / 127), F32)
    zero_point = np.clip(np.rint(-(low + high) / 2 / scale), -128, 127)
    return Inputs(scale, zero_point.astype(np.int8))


def _float8_inputs(scheme: Scheme, seen: Seen) -> Inputs:
    """Return one scale, by which the largest input is the largest code."""
    largest = max(-seen.low.min(initial=0.0), seen.high.max(initial=0.0))
    return Inputs(np.float32(largest / float(finfo(scheme.codes).max) if largest > _TINY else 1.0))


def _is_int8(scheme: Scheme) -> bool:
    return scheme.codes == "int8"


def _assumed(x: Array) -> Array:
    """Return ranges of inputs, or magnitudes of their weights, with something in place of what was not seen."""
    largest = x.max()
    return np.where(x > _UNSEEN * largest, x, _ASSUMED * largest) if largest > _TINY else np.ones_like(x)
