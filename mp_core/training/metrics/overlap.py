"""Intersection over union of classes."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from mp_core.arrays import Array, asarray, dtypes
from mp_core.training.losses.arrays import EPSILON
from mp_core.training.metrics.metric import TOTALS, Metric
from mp_core.utilities.arguments import boolean, integer, number, positive_integer
from mp_core.utilities.docstrings import documented

__all__ = ["BinaryIoU", "IoU", "MeanIoU", "OneHotIoU", "OneHotMeanIoU"]


_IOU = documented("""
    Parameters
    ----------
    num_classes : int
    target_class_ids : sequence of int
        The averaged classes; classes that do not occur are skipped.
    threshold : float
    name : str, optional
    dtype : str, optional
        Default: int32, as in Keras. Fractional sample weights need a float dtype. Counts are int64, with a float dtype
        float64.
    ignore_class : int, optional
        Skip elements with this target. Elements outside of the classes are skipped too.
    sparse_y_true, sparse_y_pred : bool
        Whether targets or outputs are class numbers; otherwise the argmax along `axis` is the class.
    axis : int
""")


@_IOU
class IoU(Metric):
    """The mean over classes of ``tp / (tp + fp + fn)``.

    >>> IoU(2, [0])([0, 0, 1, 1], [0, 1, 0, 1]).round(4)
    np.float32(0.3333)
    """

    _arguments: ClassVar[tuple[str, ...]] = (
        "num_classes", "target_class_ids", "ignore_class", "sparse_y_true", "sparse_y_pred", "axis",
    )  # fmt: skip
    _direction = "up"

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Sequence[int],
        name: str | None = None,
        dtype: Any = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
    ) -> None:
        super().__init__("int32" if dtype is None else dtype, name)
        self.num_classes = positive_integer(num_classes, "num_classes")
        self.target_class_ids = [integer(each, "target_class_ids") for each in target_class_ids]
        if not all(0 <= each < self.num_classes for each in self.target_class_ids):
            raise ValueError(f"`target_class_ids` must be from 0 to {num_classes - 1}; received {target_class_ids}")
        self.ignore_class = None if ignore_class is None else integer(ignore_class, "ignore_class")
        self.sparse_y_true = boolean(sparse_y_true, "sparse_y_true")
        self.sparse_y_pred = boolean(sparse_y_pred, "sparse_y_pred")
        self.axis = integer(axis, "axis")
        totals = "int64" if dtypes.is_integer(dtypes.parse(self.dtype)) else TOTALS
        shape = self.num_classes, self.num_classes
        self.total_cm = self.add_variable(shape, dtype=totals, name="total_confusion_matrix")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        truth = self._classes(y_true, "y_true", self.sparse_y_true)
        found = self._classes(y_pred, "y_pred", self.sparse_y_pred)
        if truth.shape != found.shape:
            raise ValueError(f"`y_true` and `y_pred` must have as many classes; received {truth.size} and {found.size}")
        weight = self._weights(sample_weight, truth.shape)
        kept = (truth >= 0) & (truth < self.num_classes) & (found >= 0) & (found < self.num_classes)
        if self.ignore_class is not None:
            kept &= truth != self.ignore_class
        counts = np.zeros((self.num_classes, self.num_classes), weight.dtype)
        np.add.at(counts, (truth[kept], found[kept]), weight[kept])
        self.total_cm.assign_add(counts)

    def _classes(self, x: Any, argument: str, is_sparse: bool) -> Array:
        array = asarray(x, argument)
        return (array if is_sparse else array.argmax(self.axis)).reshape(-1).astype(np.int64)

    def _weights(self, sample_weight: Any, shape: tuple[int, ...]) -> Array:
        dtype = self.total_cm.true_dtype
        if sample_weight is None:
            return np.ones(shape, dtype)
        given = asarray(sample_weight, "sample_weight")
        weight: Array = np.broadcast_to(given.reshape(-1) if given.ndim > 1 else given, shape)
        if dtype.kind == "i" and np.any(weight % 1):
            raise ValueError(f"`sample_weight` must be integers: the dtype is {self.dtype}; use dtype='float32'")
        return weight.astype(dtype)

    def result(self) -> Any:
        """Return the mean over the classes that occur; 0 if none occurs."""
        counts = self.total_cm.numpy().astype(np.float64)
        right = counts.diagonal()
        all_of = counts.sum(0) + counts.sum(1) - right
        chosen = self.target_class_ids
        occur = all_of[chosen] > 0
        if not occur.any():
            return np.float32(0)
        return np.float32((right[chosen] / (all_of[chosen] + EPSILON)).sum() / occur.sum())


@_IOU
class BinaryIoU(IoU):
    """:class:`IoU` of two classes; outputs are class 1 if they are at or above a threshold.

    Parameters
    ----------
    threshold : float

    Examples
    --------
    >>> BinaryIoU(threshold=0.3)([0, 1, 0, 1], [0.1, 0.2, 0.4, 0.7]).round(4)
    np.float32(0.3333)
    """

    _arguments = ("target_class_ids", "threshold")

    def __init__(
        self, target_class_ids: Sequence[int] = (0, 1), threshold: float = 0.5, name: str | None = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(2, target_class_ids, name, dtype)
        self.threshold = number(threshold, "threshold")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(y_true, asarray(y_pred, "y_pred") >= self.threshold, sample_weight)


@_IOU
class MeanIoU(IoU):
    """:class:`IoU`, averaged over all classes.

    >>> MeanIoU(2)([0, 0, 1, 1], [0, 1, 0, 1]).round(4)
    np.float32(0.3333)
    """

    _arguments: ClassVar[tuple[str, ...]] = ("num_classes", "ignore_class", "sparse_y_true", "sparse_y_pred", "axis")

    def __init__(
        self, num_classes: int, name: str | None = None, dtype: Any = None, ignore_class: int | None = None,
        sparse_y_true: bool = True, sparse_y_pred: bool = True, axis: int = -1,
    ) -> None:  # fmt: skip
        targets = range(positive_integer(num_classes, "num_classes"))
        super().__init__(num_classes, targets, name, dtype, ignore_class, sparse_y_true, sparse_y_pred, axis)


@_IOU
class OneHotIoU(IoU):
    """:class:`IoU` for one-hot targets.

    >>> outputs = [[0.25, 0.75], [0.75, 0.25], [0.25, 0.75]]  # the largest are 1, 0, 1
    >>> OneHotIoU(2, [1])([[0, 1], [1, 0], [1, 0]], outputs).round(4)  # of class 1: 1 in both, 2 in one of them
    np.float32(0.5)
    """

    _arguments = ("num_classes", "target_class_ids", "ignore_class", "sparse_y_pred", "axis")

    def __init__(
        self, num_classes: int, target_class_ids: Sequence[int], name: str | None = None, dtype: Any = None,
        ignore_class: int | None = None, sparse_y_pred: bool = False, axis: int = -1,
    ) -> None:  # fmt: skip
        super().__init__(num_classes, target_class_ids, name, dtype, ignore_class, False, sparse_y_pred, axis)


@_IOU
class OneHotMeanIoU(MeanIoU):
    """:class:`MeanIoU` for one-hot targets.

    >>> outputs = [[0.25, 0.75], [0.75, 0.25], [0.25, 0.75], [0.25, 0.75]]  # the largest are 1, 0, 1, 1
    >>> OneHotMeanIoU(2)([[0, 1], [1, 0], [1, 0], [0, 1]], outputs).round(4)  # (1 / 2 + 2 / 3) / 2
    np.float32(0.5833)
    """

    _arguments = ("num_classes", "ignore_class", "sparse_y_pred", "axis")

    def __init__(
        self, num_classes: int, name: str | None = None, dtype: Any = None, ignore_class: int | None = None,
        sparse_y_pred: bool = False, axis: int = -1,
    ) -> None:  # fmt: skip
        super().__init__(num_classes, name, dtype, ignore_class, False, sparse_y_pred, axis)
