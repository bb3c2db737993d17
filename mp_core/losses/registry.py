"""Losses by name, and their configurations."""

from typing import Any

from mp_core.dtype_policies.lookup import Registry
from mp_core.losses import classes, classification, overlap, regression, sequences
from mp_core.losses.loss import Loss

__all__ = ["CLASSES", "FUNCTIONS", "deserialize", "get", "serialize"]

CLASSES: dict[str, Any] = {name: getattr(classes, name) for name in classes.__all__}
"""Name -> class."""

FUNCTIONS: dict[str, Any] = {
    name: getattr(module, name)
    for module in (regression, classification, overlap, sequences)
    for name in module.__all__
    if name != "indices"
}
"""Name -> function, Keras' short names too."""

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


_REGISTRY = Registry(Loss, "loss", "keras.losses", CLASSES, FUNCTIONS)


def serialize(loss: Any) -> Any:
    """Return the class name and the configuration of a loss, as Keras writes them; of a function its name.

    Raises
    ------
    TypeError
        `loss` is no loss and no function.

    Examples
    --------
    >>> serialize(classes.Huber(0.5))["config"]["delta"]
    0.5
    """
    return _REGISTRY.serialize(loss)


def deserialize(name: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """Return the loss of a :func:`serialize` dictionary, or the class or function of a name.

    Raises
    ------
    TypeError, ValueError
        It names no loss; its arguments are not those of the class.

    Examples
    --------
    >>> deserialize("mse").__name__
    'mean_squared_error'
    """
    return _REGISTRY.deserialize(name, custom_objects)


def get(identifier: Any) -> Any:
    """Return the loss of a name such as ``"mse"``, of a dictionary, a loss or function itself, or None for None.

    Raises
    ------
    ValueError
        `identifier` is none of these.

    Examples
    --------
    >>> get("BinaryCrossentropy").from_logits
    False
    """
    return _REGISTRY.get(identifier)
