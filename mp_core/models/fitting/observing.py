"""Observe the inputs of layers while a sample runs: their ranges, and the sums of their products."""

from typing import Any

import numpy as np

from mp_core.layers.forms.observed import InputStatistics, ObservedFloat
from mp_core.layers.plans import eager
from mp_core.models.fitting.running import LayerLike, ModelCall, mask_of

__all__ = ["observe"]


def observe(
    model: LayerLike, calls: list[ModelCall], layers: dict[str, Any], argument: str = "sample"
) -> dict[str, InputStatistics]:
    """Run a copy of the caller's model, and return path -> statistics of the inputs of some layers with float kernels.

    Raise ValueError, which calls the calls `argument`, if a layer got no inputs, or inputs that are not finite.
    """
    forms = {path: layer.form for path, layer in layers.items()}
    observing = {path: ObservedFloat(form) for path, form in forms.items()}
    for path, layer in layers.items():
        layer.form = observing[path]
    for call in calls:
        mask = mask_of(model, call)
        for form in observing.values():
            form.mask = mask
        with eager():
            model(*call.args, **call.kwargs)
    for path, layer in layers.items():
        layer.form = forms[path]
    found = {path: form.sums.result() for path, form in observing.items()}
    for path, seen in found.items():
        if not (observing[path].sums.rows and np.isfinite(seen.low).all() and np.isfinite(seen.high).all()):
            what = "has Inf or NaN there" if observing[path].sums.rows else "is empty or does not reach it"
            raise ValueError(f"`{argument}` must give layer '{path}' finite inputs; it {what}")
    return found
