"""``summary``: a table of the layers of a model."""

from collections.abc import Iterator, Sequence
from typing import Any

from mp_core.layers import Layer
from mp_core.utilities.tables import aligned
from mp_core.utilities.tree import leaves

__all__ = ["summary_of"]


def summary_of(model: Any, traced: Sequence[tuple[Layer, Any]], expand_nested: bool, show_trainable: bool) -> str:
    """Return a table of the layers of a model: output shapes and numbers of parameters.

    `traced` are pairs (layer, symbolic outputs) of each call; the shapes of other layers are shown as "?".
    """
    shapes: dict[int, list[str]] = {}
    for layer, outputs in traced:
        shapes.setdefault(id(layer), []).extend(str(x.shape) for x in leaves(outputs))
    head = ["layer (type)", "output shape", "parameters", "trainable"]
    rows = [head, *(_row(*found, shapes) for found in _layers(model, traced, expand_nested))]
    shown = rows if show_trainable else [row[:-1] for row in rows]
    lines = [f"{type(model).__name__} '{model.name}'", aligned(shown, left=(0, 1)), ""]
    trainable, others = model.trainable_weights, model.non_trainable_weights
    for what, variables in (("all", [*trainable, *others]), ("trainable", trainable), ("not trainable", others)):
        count, nbytes = sum(v.size for v in variables), sum(v.nbytes for v in variables)
        lines.append(f"{what + ' parameters':25}{count:,} ({_size(nbytes)})")
    return "\n".join(lines)


def _row(layer: Layer, indent: str, shapes: dict[int, list[str]]) -> list[str]:
    count = f"{layer.count_params():,}" if layer.built else "not built"
    outputs = ", ".join(dict.fromkeys(shapes.get(id(layer), ["?"])))
    return [f"{indent}{layer.name} ({type(layer).__name__})", outputs, count, "yes" if layer.trainable else "no"]


def _layers(
    model: Any, traced: Sequence[tuple[Layer, Any]], expand: bool, indent: str = ""
) -> Iterator[tuple[Layer, str]]:
    layers = list({id(layer): layer for layer, _ in traced}.values()) or model.layers
    for layer in layers:
        yield layer, indent
        if expand and hasattr(layer, "layers"):
            yield from _layers(layer, (), expand, indent + "  ")


def _size(nbytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if nbytes < 1024:
            return f"{nbytes:.2f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GB"
