"""Accuracies: the share of correct outputs."""

from typing import Any, ClassVar

import numpy as np

from mp_core.arrays import Array, asarray, cast
from mp_core.training.losses.arrays import PAIRS, same_rank
from mp_core.training.metrics.metric import FunctionMetric
from mp_core.utilities.arguments import positive_integer
from mp_core.utilities.docstrings import documented

__all__ = [
    "Accuracy", "BinaryAccuracy", "CategoricalAccuracy", "SparseCategoricalAccuracy", "SparseTopKCategoricalAccuracy",
    "TopKCategoricalAccuracy", "accuracy", "binary_accuracy", "categorical_accuracy", "sparse_categorical_accuracy",
    "sparse_top_k_categorical_accuracy", "top_k_categorical_accuracy",
]  # fmt: skip


_ONE_HOT = documented("""
    Parameters
    ----------
    y_true, y_pred : array-like
        One-hot targets and outputs along the last axis.
""")
_CLASSES = documented("""
    Parameters
    ----------
    y_true : array-like
        Class numbers. Shape of the outputs without the last axis, or with length 1 there.
    y_pred : array-like
        The last axis is classes.
""")


def _arrays(y_true: Any, y_pred: Any) -> tuple[Array, Array]:
    """Convert targets and outputs to arrays with dtypes that NumPy can compare."""
    y_true, y_pred = asarray(y_true, "y_true"), asarray(y_pred, "y_pred")
    return tuple(x if x.dtype.kind in "biuf" else cast(x, "float32") for x in (y_true, y_pred))  # type: ignore[return-value]


def _check_same_shape(y_true: Array, y_pred: Array) -> tuple[Array, Array]:
    """Raise ValueError if the shapes differ: broadcasting would compare targets with outputs of other samples."""
    if y_true.shape != y_pred.shape:
        raise ValueError(f"`y_true` and `y_pred` must have one shape; received {y_true.shape} and {y_pred.shape}")
    return y_true, y_pred


@documented(PAIRS)
def accuracy(y_true: Any, y_pred: Any) -> Array:
    """Return 1 where an output equals its target, else 0, in float32.

    >>> accuracy([1, 2, 3], [1, 0, 3])
    array([1., 0., 1.], dtype=float32)
    """
    y_true, y_pred = _check_same_shape(*same_rank(*_arrays(y_true, y_pred)))
    return _ones(y_true == y_pred)


@documented(PAIRS)
def binary_accuracy(y_true: Any, y_pred: Any, threshold: float = 0.5) -> Array:
    """Return 1 where ``y_true == (y_pred > threshold)``, else 0, in float32; targets are 0 and 1.

    Parameters
    ----------
    threshold : float

    Examples
    --------
    >>> binary_accuracy([1, 0], [0.75, 0.75])
    array([1., 0.], dtype=float32)
    """
    y_true, y_pred = _check_same_shape(*same_rank(*_arrays(y_true, y_pred)))
    return _ones(y_true == (y_pred > threshold))


@_ONE_HOT
def categorical_accuracy(y_true: Any, y_pred: Any) -> Array:
    """Return 1 where ``argmax(y_true) == argmax(y_pred)`` along the last axis, else 0, in float32.

    >>> categorical_accuracy([[0, 1], [1, 0]], [[0.25, 0.75], [0.25, 0.75]])
    array([1., 0.], dtype=float32)
    """
    y_true, y_pred = _check_same_shape(*_arrays(y_true, y_pred))
    return _ones(y_true.argmax(-1) == y_pred.argmax(-1))


@_CLASSES
def sparse_categorical_accuracy(y_true: Any, y_pred: Any) -> Array:
    """Return 1 where ``y_true == argmax(y_pred)`` along the last axis, else 0, in float32.

    >>> sparse_categorical_accuracy([1, 0], [[0.25, 0.75], [0.25, 0.75]])
    array([1., 0.], dtype=float32)
    """
    y_true, y_pred = _arrays(y_true, y_pred)
    return _ones(_classes(y_true, y_pred) == y_pred.argmax(-1))


@_ONE_HOT
def top_k_categorical_accuracy(y_true: Any, y_pred: Any, k: int = 5) -> Array:
    """Return 1 where fewer than `k` outputs are larger than the output of the target class, else 0, in float32.

    Parameters
    ----------
    k : int

    Examples
    --------
    >>> top_k_categorical_accuracy([[0, 0, 1]], [[0.5, 0.2, 0.3]], k=2)
    array([1.], dtype=float32)
    """
    y_true, y_pred = _check_same_shape(*_arrays(y_true, y_pred))
    return _in_top_k(y_true.argmax(-1), y_pred, k)


@_CLASSES
def sparse_top_k_categorical_accuracy(y_true: Any, y_pred: Any, k: int = 5, from_sorted_ids: bool = False) -> Array:
    """Return :func:`top_k_categorical_accuracy` for targets that are class numbers.

    Parameters
    ----------
    k : int
    from_sorted_ids : bool
        Whether outputs are class numbers, best first; then the first `k` count.

    Examples
    --------
    >>> sparse_top_k_categorical_accuracy([2], [[0.5, 0.2, 0.3]], k=2)
    array([1.], dtype=float32)
    """
    y_true, y_pred = _arrays(y_true, y_pred)
    classes = _classes(y_true, y_pred)
    if from_sorted_ids:
        return _ones((classes[..., None] == y_pred[..., : positive_integer(k, "k")]).any(-1))
    return _in_top_k(classes, y_pred, k)


def _classes(y_true: Array, y_pred: Array) -> Array:
    if y_true.ndim == y_pred.ndim and y_true.shape[-1:] == (1,):
        y_true = y_true[..., 0]
    if y_true.shape != y_pred.shape[:-1]:
        raise ValueError(
            f"`y_true` must have the shape of `y_pred` without the last axis, {y_pred.shape[:-1]}; received "
            f"{y_true.shape}"
        )
    return y_true


def _in_top_k(classes: Array, y_pred: Array, k: int) -> Array:
    """Return 1 where fewer than k outputs are larger; 0 for invalid classes, and for outputs that are not finite."""
    positive_integer(k, "k")
    exists = (classes >= 0) & (classes < y_pred.shape[-1])
    at = np.where(exists, classes, 0).astype(np.int64)[..., None]
    output = np.take_along_axis(y_pred, at, -1)
    return _ones(exists & np.isfinite(output[..., 0]) & ((y_pred > output).sum(-1) < k))


def _ones(x: Any) -> Array:
    return np.asarray(x, np.float32)


class Accuracy(FunctionMetric):
    """The share of outputs equal to their target: :func:`accuracy`.

    >>> Accuracy()([1, 2, 3, 4], [1, 0, 3, 4])  # 3 of 4
    np.float32(0.75)
    """

    function = staticmethod(accuracy)
    _direction = "up"


class BinaryAccuracy(FunctionMetric):
    """The share of correct outputs for two classes: :func:`binary_accuracy`.

    >>> outputs = [0.25, 0.75, 0.75, 0.75]
    >>> BinaryAccuracy()([0, 1, 0, 0], outputs), BinaryAccuracy(threshold=0.8)([0, 1, 0, 0], outputs)
    (np.float32(0.5), np.float32(0.75))
    """

    function = staticmethod(binary_accuracy)
    _direction = "up"
    function_arguments: ClassVar[dict[str, Any]] = {"threshold": 0.5}


class CategoricalAccuracy(FunctionMetric):
    """The share of correct outputs for one-hot targets: :func:`categorical_accuracy`.

    >>> CategoricalAccuracy()([[0, 1], [1, 0]], [[0.25, 0.75], [0.25, 0.75]], sample_weight=[3.0, 1.0])  # 3 / (3 + 1)
    np.float32(0.75)
    """

    function = staticmethod(categorical_accuracy)
    _direction = "up"


class SparseCategoricalAccuracy(FunctionMetric):
    """The share of correct outputs for integer targets: :func:`sparse_categorical_accuracy`.

    >>> metric = SparseCategoricalAccuracy()
    >>> metric([1], [[0.25, 0.75]]), metric([0], [[0.25, 0.75]])  # after the second batch 1 of 2
    (np.float32(1.0), np.float32(0.5))
    """

    function = staticmethod(sparse_categorical_accuracy)
    _direction = "up"


class TopKCategoricalAccuracy(FunctionMetric):
    """The share of one-hot targets whose class is among the `k` largest outputs: :func:`top_k_categorical_accuracy`.

    >>> TopKCategoricalAccuracy(k=2)([[0, 0, 1], [0, 1, 0]], [[0.5, 0.2, 0.3], [0.5, 0.2, 0.3]])  # second, third
    np.float32(0.5)
    """

    function = staticmethod(top_k_categorical_accuracy)
    _direction = "up"
    function_arguments: ClassVar[dict[str, Any]] = {"k": 5}
    order = ("k", "name", "dtype")


class SparseTopKCategoricalAccuracy(FunctionMetric):
    """The share of integer targets that are among the `k` largest outputs: :func:`sparse_top_k_categorical_accuracy`.

    >>> outputs = [[0.4, 0.3, 0.2, 0.1]] * 4  # the classes 0, 1, 2, 3 come first, second, third, fourth
    >>> [float(SparseTopKCategoricalAccuracy(k)([0, 1, 2, 3], outputs)) for k in (1, 2, 3)]
    [0.25, 0.5, 0.75]
    """

    function = staticmethod(sparse_top_k_categorical_accuracy)
    _direction = "up"
    function_arguments: ClassVar[dict[str, Any]] = {"k": 5, "from_sorted_ids": False}
    order = ("k", "name", "dtype", "from_sorted_ids")
    from_sorted_ids: bool

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        if not self.from_sorted_ids:
            del config["from_sorted_ids"]
        return config
