"""Fixed scales for the inputs of quantized layers, and kernels rounded for these inputs."""

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from mp_core.arguments import share
from mp_core.arrays import Array
from mp_core.calibration.running import Call, Model, calls_of, layers_by_path, mask_of
from mp_core.codes import CODES
from mp_core.layers import Dense, EinsumDense
from mp_core.layers.forms import Codes, Form, Inputs
from mp_core.ops import cast, matmul
from mp_core.quantization import QuantizedArray, for_each_element
from mp_core.rounding import feedback, round_rows

__all__ = ["calibrate", "input_moments"]

M = TypeVar("M", bound=Model)

# Up to this share of the widest range, an input's range counts as not seen in the sample; kernel rows likewise.
_UNSEEN = 1e-12
# The share of the widest range that an input gets in place of a range that was not seen.
_ASSUMED = 1e-3
# If no range, or no weight, is larger, all count as 1, because float32 must hold their quotients.
_TINY = 1e-30


def calibrate(model: M, sample: Any, policy: Any, *, alpha: float = 0.75) -> M:
    """Return the model under a policy, its int8 and int4 Dense and EinsumDense layers fitted to a sample.

    The model runs on the sample in float32. Kernels are rounded anew, row by row, so that what one row loses the later
    ones make up for as far as the inputs of the sample allow (GPTQ [1]_); scales stay as they are.

    Where the inputs are quantized too, they get fixed scales: each input a step of its own, ``s_j = (range_j / 2) **
    alpha / max|kernel_j| ** (1 - alpha)`` up to a common factor (SmoothQuant's rule [2]_), by which row j of the kernel
    is multiplied first, and a zero point in the middle of its range.

    Parameters
    ----------
    model : Layer
        Built, with unquantized weights; or anything with the same ``__call__``, ``flatten``, ``weight_bytes`` and
        ``with_policy``, such as a :class:`~mp_core.models.BertEncoder`. The model itself does not change.
    sample : array, tuple, dict or list
        The inputs of a call: its one argument, a tuple of them, or a dict of keyword arguments. A list, or an iterator,
        is several calls: that of an encoder holds texts. Where a call has an argument ``mask``, inputs of layers count
        only where it is True. Inputs beyond the ranges seen here are clipped later.
    policy : DTypePolicy or str
        Such as ``"int8_from_mixed_bfloat16"`` or ``"int4/64_from_mixed_bfloat16"``, or a map with such entries.
    alpha : float
        For layers that quantize their inputs.
        From 0, where the kernel alone decides about the steps, to 1, where the inputs do.

    Returns
    -------
    Layer
        Of the type of `model`.

    Raises
    ------
    TypeError
        `model` is none of these, or `sample` does not fit it.
    ValueError
        `model` is not built, or quantized; `policy` puts none of the layers in int8 or int4; `alpha` is not from 0 to
        1; the sample does not reach a layer, or has Inf or NaN there; a kernel has.

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
    >>> bool(np.abs(fixed(x) - exact).max() < 0.05), [weight.name for weight in fixed.weights[3:]]
    (True, ['inputs_scale', 'inputs_zero_point'])
    """
    alpha = share(alpha, "alpha")
    calls = calls_of(model, sample)
    reference, result = model.with_policy("float32"), model.with_policy(policy)
    chosen = {path: layer for path, layer in _kernels(result).items() if _rounds(layer.form)}
    if not chosen:
        raise ValueError(f"`policy` must put a Dense or EinsumDense layer in int8 or int4; received {policy}")
    exact: dict[str, Any] = _kernels(reference)
    inputs = _observed(reference, calls, {path: exact[path] for path in chosen})
    for path, layer in chosen.items():
        _fit(layer, cast(exact[path].matrix, "float64"), inputs[path], alpha)
    return result


def input_moments(encoder: Any, texts: Any) -> dict[str, Array]:
    """Return ``sum x x'`` over the inputs x of every kernel, in float64, by its name in the encoder's checkpoint."""
    calls = calls_of(encoder, texts if isinstance(texts, str) else list(texts))
    reference = encoder.with_policy("float32")
    seen = _observed(reference, calls, _kernels(reference))
    return {name: seen[path].moments for path, name in encoder.kernel_names.items()}


def _rounds(form: Form) -> bool:
    return isinstance(form, Codes) and form.scheme.codes in ("int8", "int4")


def _kernels(model: Model) -> dict[str, Any]:
    return {path: layer for path, layer in layers_by_path(model).items() if isinstance(layer, (Dense, EinsumDense))}


@dataclass
class _Inputs:
    """The inputs of a layer so far: the range of each, which always holds 0, and the sums of their products."""

    low: Array
    high: Array
    moments: Array

    def add(self, rows: Array) -> None:
        self.low, self.high = np.minimum(self.low, rows.min(axis=0)), np.maximum(self.high, rows.max(axis=0))
        # A float32 product, with the same bits everywhere, of inputs below 1.
        exponent = int(np.frexp(np.abs(rows).max())[1])
        small = cast(np.ldexp(rows, -exponent), "float32")
        self.moments += np.ldexp(cast(matmul(small.T, small), "float64"), 2 * exponent)


def _observed(model: Model, calls: list[Call], layers: dict[str, Any]) -> dict[str, _Inputs]:
    """Run the model and return the inputs of these layers of it."""
    seen: dict[str, _Inputs] = {}
    masks: list[Array | None] = [None]
    for path, layer in layers.items():
        layer.call = partial(_recorded, seen, path, layer, layer.call, masks)
    for call in calls:
        masks[0] = mask_of(model, call)
        model(*call.args, **call.kwargs)
    for path in layers:
        if path not in seen or not (np.isfinite(seen[path].low) & np.isfinite(seen[path].high)).all():
            found = "has Inf or NaN there" if path in seen else "is empty or does not reach it"
            raise ValueError(f"`sample` must give layer '{path}' finite inputs; it {found}")
    return seen


def _recorded(
    seen: dict[str, _Inputs],
    path: str,
    layer: Any,
    call: Any,
    masks: list[Array | None],
    inputs: Array,
    **kwargs: Any,
) -> Any:
    outputs = call(inputs, **kwargs)  # first: it checks the shape
    depth, mask = layer.depth, masks[0]
    rows = cast(layer.rows_of(inputs), "float64")
    rows = rows[mask] if mask is not None and mask.shape == rows.shape[:-1] else rows.reshape(-1, depth)
    if rows.size:
        if path not in seen:
            seen[path] = _Inputs(np.zeros(depth), np.zeros(depth), np.zeros((depth, depth)))
        seen[path].add(rows)
    return outputs


def _fit(layer: Any, matrix: Array, inputs: _Inputs, alpha: float) -> None:
    """Round the matrix for these inputs, with steps and zero points for them where the layer quantizes them."""
    moments, scheme, fixed = inputs.moments, layer.form.scheme, None
    q = layer.matrix
    if scheme.inputs == "dynamic":
        fixed = _fixed(matrix, inputs, alpha)
        steps = cast(fixed.scale, "float64")
        matrix = matrix * steps
        moments = moments / steps / steps[:, np.newaxis]
        q = scheme.quantize(cast(matrix, "float32"))
    step, zero = (
        np.broadcast_to(0.0 if part is None else cast(for_each_element(part, q), "float64"), q.shape).T
        for part in (q.scale, q.zero_point)
    )
    low, high = CODES[scheme.codes].qmin, CODES[scheme.codes].qmax

    def nearest(x: Array, row: int) -> Array:
        values: Array = (np.clip(np.rint(x / step[row]) + zero[row], low, high) - zero[row]) * step[row]
        return values

    rounded = round_rows(matrix.T, feedback(moments), nearest)
    codes = (np.rint(rounded / step) + zero).T
    values = codes.astype(q.dtype)
    layer.set_matrix(QuantizedArray(values, q.scale, q.zero_point, q.axis, q.group_size), fixed)


def _fixed(matrix: Array, inputs: _Inputs, alpha: float) -> Inputs:
    """Return scales and zero points for the inputs of a matrix."""
    low, high = inputs.low, inputs.high
    half, weight = (_assumed(x) for x in ((high - low) / 2, np.abs(matrix).max(axis=0, initial=0.0)))
    steps: Array = half**alpha / weight ** (1 - alpha)
    steps *= (half / steps).max() / 127
    zeros = np.clip(np.rint(-(low + high) / 2 / steps), -128, 127)
    return Inputs(cast(steps, "float32"), zeros.astype(np.int8))


def _assumed(x: Array) -> Array:
    """Return ranges of inputs, or magnitudes of kernel rows, with something in place of what was not seen."""
    largest = x.max()
    return np.where(x > _UNSEEN * largest, x, _ASSUMED * largest) if largest > _TINY else np.ones_like(x)
