"""Functions of ``keras.utils`` for training, and its names for serialization, from :mod:`mp_core.saving`."""

import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import Array, asarray
from mp_core.arrays.dtypes import is_float
from mp_core.layers.base.building import forget_names
from mp_core.layers.randomness import set_seed
from mp_core.layers.symbols import KerasTensor
from mp_core.training.saving import (
    CustomObjectScope,
    custom_object_scope,
    deserialize_keras_object,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
    serialize_keras_object,
)
from mp_core.utilities.absent import refusing
from mp_core.utilities.arguments import positive_integer

__all__ = [
    "CustomObjectScope",
    "PyDataset",
    "clear_session",
    "custom_object_scope",
    "deserialize_keras_object",
    "get_custom_objects",
    "get_registered_name",
    "get_registered_object",
    "is_keras_tensor",
    "normalize",
    "pack_x_y_sample_weight",
    "pad_sequences",
    "register_keras_serializable",
    "serialize_keras_object",
    "set_random_seed",
    "to_categorical",
    "unpack_x_y_sample_weight",
]


if not TYPE_CHECKING:  # so that type checkers report unknown names
    __getattr__, __dir__ = refusing("utils", __all__)


def set_random_seed(seed: int) -> None:
    """Call :func:`mp_core.random.set_seed`, and seed the generators of Python and NumPy, like Keras.

    >>> set_random_seed(7)
    >>> float(np.random.rand())
    0.07630828937395717
    """
    set_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def clear_session(free_memory: bool = True) -> None:
    """Restart the numbers in the default names of layers; `free_memory`, of Keras, has no effect.

    >>> from mp_core import layers
    >>> clear_session()
    >>> layers.Dense(2).name, layers.Dense(2).name
    ('dense', 'dense_1')
    """
    forget_names()


def is_keras_tensor(x: Any) -> bool:
    """Return whether `x` is a symbolic array, such as the result of :func:`mp_core.Input`.

    >>> import mp_core as mp
    >>> is_keras_tensor(mp.Input((3,))), is_keras_tensor(np.ones(3))
    (True, False)
    """
    return isinstance(x, KerasTensor)


def pack_x_y_sample_weight(x: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """Return a batch for ``fit``: x, (x, y) or (x, y, sample_weight), without parts that are None at the end.

    >>> pack_x_y_sample_weight([1], [2])
    ([1], [2])
    """
    if y is None and sample_weight is None:
        return (x,) if isinstance(x, list | tuple) else x
    return (x, y) if sample_weight is None else (x, y, sample_weight)


def unpack_x_y_sample_weight(data: Any) -> tuple[Any, Any, Any]:
    """Return inputs, targets and weights of a batch of ``train_step``; missing parts are None.

    >>> unpack_x_y_sample_weight(([1], [2]))
    ([1], [2], None)
    """
    parts = tuple(data) if isinstance(data, list | tuple) else (data,)
    if not 1 <= len(parts) <= 3:
        raise ValueError(f"`data` must be x, (x, y) or (x, y, sample_weight); received {len(parts)} parts")
    x, y, weights = (*parts, None, None)[:3]
    return x, y, weights


def to_categorical(x: ArrayLike, num_classes: int | None = None) -> Array:
    """Return one-hot rows in float32: 1 at the index of the class, 0 elsewhere.

    Parameters
    ----------
    x : array-like of int
        Indices of classes, from 0. A last axis of length 1 is removed.
    num_classes : int, optional
        Default: the largest index + 1.

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


def normalize(x: ArrayLike, axis: int = -1, order: int = 2) -> Array:
    """Return vectors divided by their norms; vectors of zeros stay zeros.

    Parameters
    ----------
    x : array-like
        Integers become float64.
    axis : int
        The axis of the vectors.
    order : int
        The order of the norm, at least 1; 2 is the Euclidean norm.

    Examples
    --------
    >>> normalize([[3.0, 4.0], [0.0, 0.0]])
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    array = np.atleast_1d(asarray(x, "x"))
    wide, order = array.astype(np.float64), positive_integer(order, "order")
    largest, most = np.abs(wide).max(axis, initial=0, keepdims=True), 2.0 ** (1000 / order)
    if not ((largest >= 1 / most) & (largest <= most) | (largest == 0)).all():  # powers would exceed float64
        wide = wide / np.where((largest > 0) & (largest < np.inf), largest, 1)
        array = wide.astype(array.dtype) if is_float(array.dtype) else wide
    norms = np.linalg.norm(wide, order, axis, keepdims=True)
    found: Array = array / np.where(norms == 0, 1, norms)
    return found.astype(array.dtype) if is_float(array.dtype) else found


def pad_sequences(
    sequences: Sequence[Sequence[Any]],
    maxlen: int | None = None,
    dtype: DTypeLike = "int32",
    padding: str = "pre",
    truncating: str = "pre",
    value: float | str = 0.0,
) -> Array:
    """Return sequences of different lengths as the rows of one array; further axes are those of the items.

    Parameters
    ----------
    sequences : sequence of sequences
    maxlen : int, optional
        The length of the rows. Default: the length of the longest sequence.
    dtype : dtype
    padding, truncating : {"pre", "post"}
        Whether to pad, or cut off, at the beginning or at the end.
    value : number or str
        The value for padding.

    Examples
    --------
    >>> pad_sequences([[1], [2, 3, 4]], maxlen=2)
    array([[0, 1],
           [3, 4]], dtype=int32)
    """
    for name, given in {"padding": padding, "truncating": truncating}.items():
        if given not in ("pre", "post"):
            raise ValueError(f"`{name}` must be 'pre' or 'post'; received {given!r}")
    if not all(hasattr(sequence, "__len__") for sequence in sequences):
        raise ValueError("`sequences` must be a sequence of sequences")
    rows = [np.asarray(sequence) for sequence in sequences]
    shape = next((row.shape[1:] for row in rows if len(row)), ())
    length = max(map(len, rows), default=0) if maxlen is None else positive_integer(maxlen, "maxlen")
    found = np.full((len(rows), length, *shape), value, dtype=dtype)
    for out, row in zip(found, rows, strict=True):
        kept = row[-length:] if truncating == "pre" else row[:length]
        if len(kept) == 0:
            continue
        if kept.shape[1:] != shape:
            raise ValueError(f"The items of `sequences` must have one shape; received {kept.shape[1:]} and {shape}")
        out[slice(-len(kept), None) if padding == "pre" else slice(len(kept))] = kept
    return found


class PyDataset:
    """A data set of batches: a subclass defines ``__len__`` and ``__getitem__``, which returns ``(x, y)``.

    Instead of ``__len__`` it may define the property `num_batches`. If that is None, the batches are endless: ``fit``
    needs `steps_per_epoch`, and an epoch continues where the last one ended.

    Parameters
    ----------
    workers, use_multiprocessing, max_queue_size
        Arguments of Keras without effect.

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
        """Return the batch `index`; subclasses define this method."""
        raise NotImplementedError(f"{type(self).__name__} must define `__getitem__`")

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches; without a number of batches, yield forever."""
        has_length = hasattr(self, "__len__") or type(self).num_batches is not PyDataset.num_batches
        steps = self.num_batches if has_length else None
        for index in count() if steps is None else range(steps):
            yield self[index]

    @property
    def num_batches(self) -> int | None:
        """The number of batches; None if they are endless."""
        if hasattr(self, "__len__"):
            return len(self)
        raise NotImplementedError(f"{type(self).__name__} must define `__len__` or the property `num_batches`")

    def on_epoch_begin(self) -> None:
        """Do nothing. Subclasses may define it; it is called before each epoch, evaluation or prediction."""

    def on_epoch_end(self) -> None:
        """Do nothing. Subclasses may define it; it is called after each epoch, evaluation or prediction."""
