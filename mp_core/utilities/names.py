"""Default names of objects, derived from their classes."""

import re

__all__ = ["named", "snake_case"]


def snake_case(class_name: str) -> str:
    """Return the name of a class in the snake case of Keras, as in the names of layers, losses and files.

    >>> snake_case("MeanSquaredError"), snake_case("KLDivergence"), snake_case("Conv2D")
    ('mean_squared_error', 'kl_divergence', 'conv2d')
    """
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", class_name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def named(name: str | None, kind: type) -> str:
    """Return the given name of an object, or the name of its class in snake case."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"`name` must be a string; received name={name!r}")
    return name or snake_case(kind.__name__)
