"""Data as batches: arrays, sequences with a length, and iterables; with weights of samples and of classes."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from mp_core import dtypes
from mp_core.arrays import Array, asarray, imported
from mp_core.utilities.arguments import float_of, integer, positive_integer
from mp_core.utilities.tree import leaves, leaves_as, map_leaves

__all__ = [
    "ArrayBatches", "Batch", "Batches", "KeptBatches", "batch_parts", "batches_of", "concatenated", "number_of_samples",
    "one_batch", "outputs_like", "part_of", "split",
]  # fmt: skip

_DEFAULT_BATCH_SIZE = 32


class Batch(NamedTuple):
    """Inputs, targets and weights of some samples; the last two may be None."""

    x: Any
    y: Any = None
    weights: Any = None


class Batches:
    """Where batches come from."""

    is_endless = False
    """Whether a pass over the data has no end."""

    @property
    def steps(self) -> int | None:
        """The batches of one pass over the data; None: that is not known."""
        return None

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of one pass."""
        raise NotImplementedError

    def call_hook(self, name: str) -> None:
        """Tell the source that an epoch of training, an evaluation or a prediction begins or ends, if it listens."""

    def between_hooks(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches of an epoch; before and after them the source is told."""
        self.call_hook("on_epoch_begin")
        yield from batches
        self.call_hook("on_epoch_end")

    def skip_epochs(self, count: int) -> None:
        """Tell the source of epochs that were over before training was interrupted: it may arrange itself in them."""
        for _ in range(count):
            self.call_hook("on_epoch_begin")
            self.call_hook("on_epoch_end")

    def limited_to(self, steps: int | None, argument: str) -> Iterator[Batch]:
        """Yield the batches of one pass between hooks: the first ones, if `argument` says how many; warn of too few."""
        self.check_end(steps, argument)
        return self.between_hooks(self._first(steps, argument))

    def _first(self, steps: int | None, argument: str) -> Iterator[Batch]:
        done = 0
        for batch in islice(self.epoch(0), steps):
            yield batch
            done += 1
        if steps is not None and done < steps:
            warnings.warn(f"the data have {done} batches, fewer than `{argument}={steps}`", stacklevel=2)

    def check_end(self, steps: int | None, argument: str) -> None:
        """Raise ValueError if a pass would never end, and no number of steps ends it."""
        if steps is None and self.is_endless:
            raise ValueError(f"`{argument}` must be given: the data have no end, as their `num_batches` is None")


def batches_of(
    x: Any,
    y: Any = None,
    weights: Any = None,
    *,
    batch_size: int | None = None,
    class_weight: Mapping[int, float] | None = None,
    order: Callable[[int, int], Array] | None = None,
    steps: int | None = None,
) -> Batches:
    """Return the batches of what ``fit`` and its like are given.

    Parameters
    ----------
    x : array-like, list or dict of them, object with ``__len__`` and ``__getitem__``, or iterable
        Arrays, or where batches ``(x,)``, ``(x, y)`` or ``(x, y, weights)`` come from.
    y, weights : array-like, or list or dict of them, optional
        Beside arrays.
    batch_size : int, optional
        Default: with `steps`, as many samples as make so many batches of arrays; otherwise 32.
    class_weight : mapping of int to float, optional
        The weight of the samples of each class.
    order : callable, optional
        ``order(samples, epoch)`` returns the order of samples in an epoch; default: as they are.
    steps : int, optional
        How many batches the caller takes.

    Raises
    ------
    TypeError
        `x` is none of these, or `y`, `weights` or `batch_size` come beside batches.
    ValueError
        Arrays have different numbers of samples, none, or NaN among their elements.
    """
    class_weights = _class_weights_or_none(class_weight, weights)
    if x is None or isinstance(x, str | bytes) or hasattr(x, "toarray"):
        is_sparse = hasattr(x, "toarray")
        kind = f"a sparse {type(x).__name__}, whose `toarray()` is an array" if is_sparse else f"{x!r:.50}"
        raise TypeError(f"`x` must be arrays, a sequence of batches or an iterable; received {kind}")
    if _is_arrays(x):
        data = _checked_batch(Batch(x, y, weights), class_weights)
        if batch_size is None:
            size = (
                _DEFAULT_BATCH_SIZE
                if steps is None
                else -(-number_of_samples(data.x) // positive_integer(steps, "steps"))
            )
        else:
            size = positive_integer(batch_size, "batch_size")
        return ArrayBatches(data, size, order)
    _check_batches(x)
    for name, value in (("y", y), ("sample_weight", weights), ("batch_size", batch_size)):
        if value is not None:
            raise ValueError(f"`{name}` must be None: `x` is a {type(x).__name__}, which makes batches itself")
    if hasattr(x, "__getitem__") and (hasattr(x, "__len__") or hasattr(type(x), "num_batches")):
        return _SequenceBatches(x, class_weights, order)
    if hasattr(x, "__iter__"):
        return _IterableBatches(x, class_weights)
    raise TypeError(f"`x` must be arrays, a sequence of batches or an iterable; received {type(x).__name__}")


def one_batch(x: Any, y: Any, weights: Any, class_weight: Mapping[int, float] | None) -> Batch:
    """Return checked arrays as one batch; arguments as for :func:`batches_of`."""
    return _checked_batch(Batch(x, y, weights), _class_weights_or_none(class_weight, weights))


def _check_batches(x: Any) -> None:
    """Raise TypeError for a dict, or a list with arrays in it, whose other parts are none: it has no batches either."""
    if isinstance(x, dict) or (isinstance(x, list | tuple) and any(map(_is_array, x))):
        for key, part in x.items() if isinstance(x, dict) else enumerate(x):
            if not _is_arrays(part):
                raise TypeError(f"`x` must have arrays for all inputs; received {part!r:.50} at {key!r}")


def _is_arrays(x: Any) -> bool:
    """Whether it is an array, or lists and dictionaries of arrays or of plain numbers."""
    if isinstance(x, list | tuple | dict):
        return all(map(_is_arrays, x.values() if isinstance(x, dict) else x))
    return isinstance(x, bool | int | float | np.generic) or _is_array(x)


def _is_array(x: Any) -> bool:
    """Whether it is an array, of NumPy or of another library: pandas' tables too."""
    return not isinstance(x, np.generic) and (hasattr(x, "__dlpack__") or hasattr(x, "__array__"))


def _checked_batch(data: Batch, class_weights: "_ClassWeights | None" = None) -> Batch:
    """Return checked arrays of equally many samples, in the types in which models read them."""
    named = ((data.x, "x"), (data.y, "y"), (data.weights, "sample_weight"))
    data = Batch(*(None if part is None else _as_arrays(part, name) for part, name in named))
    counts = {
        name: [len(x) for x in leaves(part) if x is not None]
        for part, (_, name) in zip(data, named, strict=True)
        if part is not None
    }
    found = {count for each in counts.values() for count in each}
    if data.x is None or found == {0}:
        raise ValueError(f"`x` must have at least one sample; received {'None' if data.x is None else 'none'}")
    if len(found) != 1:
        raise ValueError(f"arrays must have equally many samples; received {counts}")
    if class_weights is not None:
        data = data._replace(weights=class_weights.of(data.y))
    return data


def _as_arrays(tree: Any, name: str) -> Any:
    """Return arrays where there were array-likes, and None for outputs without; a list of numbers is one array."""
    if isinstance(tree, dict):
        return {key: _as_arrays(value, name) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        given = list(leaves(tree))
        if any(map(_is_array, given)) or (given and all(part is None for part in given)):
            return [_as_arrays(value, name) for value in tree]
    return None if tree is None and name != "x" else _as_array(tree, name)


def _as_array(x: Any, name: str) -> Array:
    """Return an array as models read it: float64 as floatx, integers as int32; raise for NaN."""
    array = imported(x, name)
    if array.dtype == object and _is_array(x) and not isinstance(x, np.ndarray):
        array = _numbers_of_table(array, name)
    if array.ndim == 0:
        raise ValueError(f"`{name}` must have an axis of samples; received a number")
    if array.dtype == np.int32:
        return array
    if array.dtype.kind in "iu" and array.dtype.itemsize > 1:
        if array.size and not -(2**31) <= int(array.min()) <= int(array.max()) < 2**31:
            raise ValueError(f"integers of `{name}` must fit int32; received {array.min()} to {array.max()}")
        return array.astype(np.int32, copy=False)
    array = asarray(array, name)
    if dtypes.is_float(array.dtype):
        if array.dtype == np.float64:
            array = array.astype(dtypes.parse(dtypes.floatx()))
        if np.isnan(array).any():
            place = tuple(map(int, np.argwhere(np.isnan(array))[0]))
            raise ValueError(f"`{name}` must have no NaN; received one at index {place}")
    return array


def _numbers_of_table(array: Array, name: str) -> Array:
    """Return the numbers of a table whose columns have different types, or types with missing values, as pandas'.

    Bools alone stay bools, and integers beside them are integers.

    Raises
    ------
    ValueError
        A value is missing, or is no number.
    """
    types = {type(value) for value in array.flat}
    others = tuple(
        kind for kind in types if not issubclass(kind, bool | int | float | np.bool_ | np.integer | np.floating)
    )
    for place, value in np.ndenumerate(array) if others else ():
        if isinstance(value, others):
            at = place[0] if array.ndim == 1 else place
            raise ValueError(f"`{name}` must be a table of numbers without missing ones; received {value!r} at {at}")
    return array.astype(np.result_type(np.bool_, *types))


def batch_parts(batch: Batch) -> tuple[Any, ...]:
    """Return a batch as ``train_step`` gets it: ``(x,)``, ``(x, y)`` or ``(x, y, weights)``."""
    return tuple(batch) if batch.weights is not None else tuple(batch[:2]) if batch.y is not None else (batch.x,)


def number_of_samples(x: Any) -> int:
    """Return the length of the first axis of arrays."""
    return len(next(leaves(x)))


def split(data: Batch, fraction: float) -> tuple[Batch, Batch]:
    """Return all samples but the last ones, and these: as many as `fraction` says.

    Raises
    ------
    TypeError
        The data are no arrays.
    ValueError
        `fraction` is not between 0 and 1, or leaves no sample on one side.
    """
    if not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise ValueError(f"`validation_split` must be between 0 and 1; received {fraction!r}")
    if not _is_arrays(data.x):
        raise TypeError(f"`validation_split` needs arrays; `x` is a {type(data.x).__name__}: pass `validation_data`")
    data = _checked_batch(data)
    count = number_of_samples(data.x)
    at = math.floor(count * (1 - fraction))
    if not 0 < at < count:
        raise ValueError(f"`validation_split={fraction}` leaves {at} of {count} samples to train with")
    return part_of(data, slice(at)), part_of(data, slice(at, None))


def part_of(data: Batch, index: Any) -> Batch:
    """Return some samples of a batch."""
    return Batch(
        *(None if part is None else map_leaves(lambda x: None if x is None else x[index], part) for part in data)
    )


class ArrayBatches(Batches):
    """Arrays, cut into batches; the last one may be shorter."""

    def __init__(self, data: Batch, size: int, order: Callable[[int, int], Array] | None = None) -> None:
        self.data, self.size, self._order = data, size, order
        self.samples = number_of_samples(data.x)

    @property
    def steps(self) -> int:
        """The batches of one pass over the data."""
        return -(-self.samples // self.size)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of an epoch: slices of the arrays, or copies in the order of the epoch."""
        order = None if self._order is None else self._order(self.samples, number)
        for start in range(0, self.samples, self.size):
            part = slice(start, min(start + self.size, self.samples))
            yield part_of(self.data, part if order is None else order[part])


class _SequenceBatches(Batches):
    """An object that returns batch by batch by index, as Keras' PyDataset does; an order is one of batches."""

    def __init__(self, source: Any, class_weights: "_ClassWeights | None", order: Any) -> None:
        self._source, self._class_weights, self._order = source, class_weights, order
        self.is_endless = self.steps is None

    @property
    def steps(self) -> int | None:
        """The batches of one pass: ``num_batches``, or the length of what has no such attribute."""
        if not hasattr(type(self._source), "num_batches"):
            return len(self._source)
        found = self._source.num_batches
        return None if found is None else integer(found, "num_batches")

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of an epoch; without a last one they come in order."""
        steps = self.steps
        if steps is None:
            indices: Iterable[int] = count()
        else:
            indices = range(steps) if self._order is None else self._order(steps, number).tolist()
        for index in indices:
            yield _batch_from_item(self._source[index], self._class_weights)

    def call_hook(self, name: str) -> None:
        """Call a method of the source, if it has one."""
        getattr(self._source, name, lambda: None)()


class _IterableBatches(Batches):
    """An iterable; a generator goes on where the last epoch has left it."""

    def __init__(self, source: Any, class_weights: "_ClassWeights | None") -> None:
        self._source, self._class_weights = source, class_weights

    @property
    def steps(self) -> int | None:
        """The length of the iterable, if it has one: a DataLoader of torch over an iterable says TypeError."""
        try:
            return len(self._source)
        except TypeError:
            return None

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield what the iterable yields."""
        for item in self._source:
            yield _batch_from_item(item, self._class_weights)


class KeptBatches(Batches):
    """The first batches of an iterator, which are the same ones in every epoch: validation compares epochs.

    Parameters
    ----------
    batches : Batches
    steps : int, optional
        How many are kept; default: all.
    """

    def __init__(self, batches: Batches, steps: int | None) -> None:
        self._steps, self._batches = steps, batches
        self._batches_in_memory: list[Batch] | None = None

    @property
    def steps(self) -> int | None:
        """How many are kept, if that is known."""
        return self._steps

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches, which the first epoch takes from the iterator."""
        if self._batches_in_memory is None:
            self._batches_in_memory = list(islice(self._batches.epoch(0), self._steps))
        return iter(self._batches_in_memory)


def _batch_from_item(item: Any, class_weights: "_ClassWeights | None") -> Batch:
    """Return a batch that somebody has made: ``x``, ``(x,)``, ``(x, y)`` or ``(x, y, weights)``."""
    parts = tuple(item) if isinstance(item, list | tuple) else (item,)
    if not 1 <= len(parts) <= 3 or parts[0] is None:
        received = f"{len(parts)} parts" if parts and parts[0] is not None else f"{item!r:.50}"
        raise ValueError(f"a batch of `x` must be (x,), (x, y) or (x, y, sample_weight); received {received}")
    return _checked_batch(Batch(*parts), class_weights)


def concatenated(parts: Sequence[Any]) -> Any:
    """Return the outputs of all samples from those of some batches or passes each, arranged as these are."""
    columns = zip(*(outputs_like(parts[0], part) for part in parts), strict=True)
    found = map(np.concatenate, columns)
    return map_leaves(lambda _: next(found), parts[0])


def outputs_like(first: Any, outputs: Any) -> Iterator[Array]:
    """Yield the outputs of a batch in the order of those of the first one: keys may come in another order.

    Raises
    ------
    ValueError
        They are arranged differently.
    """
    try:
        yield from leaves_as(first, outputs)
    except ValueError as error:
        raise ValueError(f"the outputs of every batch {error}") from None


def _class_weights_or_none(class_weight: Mapping[int, float] | None, weights: Any) -> "_ClassWeights | None":
    """Return the weights of classes, if some are given instead of weights of samples."""
    if class_weight is not None and weights is not None:
        raise ValueError("`class_weight` and `sample_weight` exclude each other: multiply them")
    return None if class_weight is None else _ClassWeights(class_weight)


class _ClassWeights:
    """The weight of each class, by its number."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        if not isinstance(weights, Mapping) or not all(
            isinstance(key, int | np.integer) and 0 <= key < 2**31 and math.isfinite(float_of(value))
            for key, value in weights.items()
        ):
            raise ValueError(f"`class_weight` must be a dict of class number and finite weight; received {weights!r}")
        self._classes = np.array(sorted(weights), np.int64)
        self._weights = np.array([weights[key] for key in sorted(weights)] or [1], np.float32)

    def of(self, y: Any) -> Array:
        """Return the weight of each sample, by its class: a number, or the place of the greatest of a row."""
        if not isinstance(y, np.ndarray) or y.ndim > 2:
            raise ValueError("`class_weight` needs targets that are one array, of the numbers of classes or one-hot")
        has_rows = y.ndim > 1 and y.shape[-1] > 1
        if has_rows and not np.allclose(y.astype(np.float32).sum(-1), 1, atol=0.01):
            raise ValueError(
                f"`class_weight` needs one class for each sample: rows of targets must be one-hot, with the sum 1; "
                f"received shape {y.shape} with other sums. Give `sample_weight` instead"
            )
        classes = y.argmax(-1) if has_rows else y.reshape(len(y))
        with np.errstate(invalid="ignore"):
            whole = classes.astype(np.int64)
        if not np.array_equal(whole, classes):
            raise ValueError(
                "`class_weight` needs targets that are numbers of classes, which are integers; received others"
            )
        places = np.searchsorted(self._classes, whole)
        known = np.isin(whole, self._classes)
        return np.where(known, self._weights[np.where(known, places, 0)], np.float32(1))
