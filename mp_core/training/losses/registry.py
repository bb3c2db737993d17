"""Losses by name, and their configurations."""

from typing import Any

from mp_core.files.family import Family
from mp_core.training.losses import classes, classification, overlap, regression, sequences
from mp_core.training.losses.loss import Loss

__all__ = ["CLASSES", "FUNCTIONS", "deserialize", "get", "serialize"]

CLASSES: dict[str, Any] = {name: getattr(classes, name) for name in classes.__all__}
"""Name -> class."""

FUNCTIONS: dict[str, Any] = {
    name: getattr(module, name)
    for module in (regression, classification, overlap, sequences)
    for name in module.__all__
    if name != "indices"
}
"""Name -> function, with Keras' short names."""

FUNCTIONS |= {
    short: FUNCTIONS[name]
    for name, shorts in {
        "mean_squared_error": ("mse", "MSE"),
        "mean_absolute_error": ("mae", "MAE"),
        "mean_absolute_percentage_error": ("mape", "MAPE"),
        "mean_squared_logarithmic_error": ("msle", "MSLE"),
        "kl_divergence": ("kld", "KLD", "kullback_leibler_divergence"),
        "log_cosh": ("logcosh",),
        "binary_crossentropy": ("bce", "BCE"),
        "binary_focal_crossentropy": ("bfce", "BFCE"),
    }.items()
    for short in shorts
}


serialize, deserialize, get = Family(Loss, "loss", CLASSES, FUNCTIONS).functions(__name__, "name")
