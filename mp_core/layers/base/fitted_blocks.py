"""Keras' gptq and awq: quantize a model block by block, each fitted to the outputs of the blocks before it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mp_core.arrays import Array, asarray
from mp_core.layers.base.state import VariableOwner, flat_layers
from mp_core.layers.forms.observed import InputStatistics, ObservedFloat

if TYPE_CHECKING:
    from mp_core.layers.forms.fitted import KerasGPTQ
    from mp_core.layers.matrix import MatrixLayer

__all__ = ["convert_on_sample", "windows"]


def convert_on_sample(
    model: VariableOwner, config: Any, convert: Callable[[Any], None], forms: Sequence[tuple[Any, Any]]
) -> None:
    """Convert the layers of blocks to forms that are fitted to a sample. Layers outside of all blocks stay floats.

    Parameters
    ----------
    model : Layer
    config : GPTQConfig or AWQConfig
        Of mp_core or of Keras, with a dataset.
    convert : callable
        Converts layers, given as `forms`, with the nearest codes.
    forms : sequence of (Layer, KerasGPTQ)
        The layers to quantize below `model`, and checked forms without variables.

    Raises
    ------
    TypeError
        The dataset is not an iterable of texts or arrays, or the structure is not a dict.
    ValueError
        The dataset has no tokens, or texts without a tokenizer; the structure has no blocks; a layer of a block gets no
        inputs from the sample, or inputs with Inf or NaN.
    """
    before, blocks = _structure(model, config)
    inputs: list[Any] = list(windows(config))
    for layer in before:
        inputs = [layer(x) for x in inputs]
    wanted = {id(part): (part, form) for part, form in forms}
    for block in blocks:
        own = [wanted.pop(id(part)) for part in flat_layers(block) if id(part) in wanted]
        if own:
            seen = _observe(block, inputs, [part for part, _ in own])
            for (part, form), statistics in zip(own, seen, strict=True):
                values = _fitted(part, form, statistics, config.get_config())
                convert([(part, form)])
                for name, value in values.items():
                    form.variables[name].assign(value)
        if block is not blocks[-1]:
            inputs = [_first(block(x)) for x in inputs]


def windows(config: Any) -> Array:
    """Return the sample of a configuration: windows of its tokens at equal distances, shape (samples, 1, length).

    The texts or arrays of the dataset are joined, and repeated if they have fewer tokens than the windows together.
    """
    tokens = np.concatenate([np.empty(0, np.int32), *(_tokens(part, config) for part in _parts(config.dataset))])
    if not tokens.size:
        raise ValueError("`dataset` must have tokens; it is empty")
    count, length = config.num_samples, config.sequence_length
    tokens = np.tile(tokens, -(-count * length // tokens.size)) if tokens.size < count * length else tokens
    last = tokens.size - length
    starts = np.arange(count) * max(1, (last + 1) // count) % (last + 1)
    found: Array = np.lib.stride_tricks.sliding_window_view(tokens, length)[starts][:, np.newaxis]
    return found


def _parts(dataset: Any) -> Iterable[Any]:
    if isinstance(dataset, str | bytes) or not isinstance(dataset, Iterable):
        raise TypeError(f"`dataset` must be an iterable of texts or arrays; received {type(dataset).__name__}")
    return dataset


def _tokens(part: Any, config: Any) -> Array:
    """Return the tokens of a text or an array, shape (tokens,)."""
    if isinstance(part, str):
        tokenize = getattr(config.tokenizer, "tokenize", config.tokenizer)
        if not callable(tokenize):
            raise ValueError(f"`tokenizer` must tokenize the texts of `dataset`; received {config.tokenizer!r}")
        part = tokenize(part)
    tokens = asarray(part, "dataset").reshape(-1)
    if tokens.dtype.kind not in "iu":
        raise TypeError(f"`dataset` must hold integers or texts; received an array of {tokens.dtype}")
    return tokens.astype(np.int32)


def _structure(model: VariableOwner, config: Any) -> tuple[list[Any], list[Any]]:
    """Return the layers before the first block, and the blocks."""
    structure = config.quantization_layer_structure
    if structure is None:
        structure = getattr(model, "get_quantization_layer_structure", lambda mode: None)(config.mode)
    if structure is None:
        return [], [model]
    if not isinstance(structure, Mapping):
        raise TypeError(f"`quantization_layer_structure` must be a dict; received {structure!r}")
    blocks = list(structure.get("sequential_blocks", []))
    if not blocks:
        raise ValueError("`quantization_layer_structure` must have 'sequential_blocks'; it has none")
    return list(structure.get("pre_block_layers", [])), blocks


def _observe(block: Any, inputs: list[Any], parts: "list[MatrixLayer]") -> list[InputStatistics]:
    """Call a block with all inputs, and return the statistics of the inputs of some of its layers."""
    from mp_core.layers.plans.scopes import eager  # its package imports layers, which derive from classes here

    forms = [part.form for part in parts]
    observing = [ObservedFloat(form) for form in forms]
    for part, observed in zip(parts, observing, strict=True):
        part.form = observed
    with eager():
        for x in inputs:
            block(x)
    for part, form, observed in zip(parts, forms, observing, strict=True):
        part.form = form
        if not observed.sums.rows:
            raise ValueError(f"the sample must reach layer '{part.path}', which its block does not call")
    seen = [observed.sums.result() for observed in observing]
    for part, statistics in zip(parts, seen, strict=True):
        if not (np.isfinite(statistics.low).all() and np.isfinite(statistics.high).all()):
            raise ValueError(f"the sample must give layer '{part.path}' finite inputs; it has Inf or NaN there")
    return seen


def _fitted(
    part: "MatrixLayer", form: "KerasGPTQ", seen: InputStatistics, settings: dict[str, Any]
) -> dict[str, Array]:
    """Return the values of the variables of a form that are fitted to the inputs of a layer."""
    floats = part.form.variables[part.form.geometry.name].numpy()
    return form.fitted(floats, seen, settings, part.variable_dtype)


def _first(outputs: Any) -> Any:
    """Return the output that the next block gets."""
    return outputs[0] if isinstance(outputs, tuple | list) else outputs
