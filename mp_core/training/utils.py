"""Keras' ``utils`` that training needs."""

import random
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import Array
from mp_core.layers.randomness import set_seed
from mp_core.utilities.arguments import positive_integer

__all__ = ["PyDataset", "set_random_seed", "to_categorical"]


def __dir__() -> list[str]:
    return __all__


def set_random_seed(seed: int) -> None:
    """Call :func:`mp_core.random.set_seed`, and seed the generators of Python and NumPy, as Keras does."""
    set_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def to_categorical(x: ArrayLike, num_classes: int | None = None) -> Array:
    """Return rows of zeros with a 1 at the number of each class, in float32.

    Parameters
    ----------
    x : array-like of int
        Numbers of classes from 0; an axis of length 1 at the end is left out.
    num_classes : int, optional
        Default: the greatest number, and 1.

    Raises
    ------
    TypeError, ValueError
        `x` has no integers, or one that is no class.

    Examples
    --------
    >>> to_categorical([1, 0], 3)
    array([[0., 1., 0.],
           [1., 0., 0.]], dtype=float32)
    """
    classes = np.asarray(x)
    if classes.dtype.kind == "f" and not np.any(classes % 1):
        classes = classes.astype(np.int64)
    if classes.dtype.kind not in "iu":
        raise TypeError(f"`x` must be integers; received {classes.dtype}")
    if classes.ndim > 1 and classes.shape[-1] == 1:
        classes = classes.reshape(classes.shape[:-1])
    least, most = (int(classes.min()), int(classes.max())) if classes.size else (0, -1)
    count = most + 1 if num_classes is None else positive_integer(num_classes, "num_classes")
    if least < 0 or most >= count:
        raise ValueError(f"`x` must be numbers of classes from 0 to {count - 1}; received {least} to {most}")
    found = np.zeros((*classes.shape, count), np.float32)
    np.put_along_axis(found, classes[..., np.newaxis].astype(np.int64), 1, axis=-1)
    return found


class PyDataset:
    """Batches by their number: a subclass defines ``__len__`` and ``__getitem__``, which returns ``(x, y)``.

    Parameters
    ----------
    workers, use_multiprocessing, max_queue_size
        Keras', without effect.

    Examples
    --------
    >>> class Squares(PyDataset):
    ...     def __len__(self):
    ...         return 3
    ...
    ...     def __getitem__(self, index):
    ...         x = np.full((2, 1), index, np.float32)
    ...         return x, x * x
    >>> len(Squares())
    3
    """

    def __init__(self, workers: int = 1, use_multiprocessing: bool = False, max_queue_size: int = 10) -> None:
        self.workers, self.use_multiprocessing, self.max_queue_size = workers, use_multiprocessing, max_queue_size

    def __getitem__(self, index: int) -> Any:
        """Return a batch: subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} must define `__getitem__`")

    @property
    def num_batches(self) -> int:
        """How many batches there are."""
        return len(self)  # type: ignore[arg-type]

    def on_epoch_end(self) -> None:
        """Do nothing: called after an epoch."""
