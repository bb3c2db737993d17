"""Batches of arrays, sequences and iterables, with sample weights and class weights."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import Array, asarray, dtypes, imported
from mp_core.utilities.arguments import float_of, integer, positive_integer
from mp_core.utilities.tree import leaves, leaves_as, map_leaves

__all__ = [
    "ArrayBatches", "Batch", "Batches", "KeptBatches", "batch_parts", "batches_of", "concatenated", "number_of_samples",
    "one_batch", "outputs_like", "part_of", "split",
]  # fmt: skip

_DEFAULT_BATCH_SIZE = 32


class Batch(NamedTuple):
    """Inputs, targets and sample weights; targets and weights may be None."""

    x: Any
    y: Any = None
    weights: Any = None


class Batches:
    """Base of the sources of batches."""

    is_endless = False
    """Whether a pass over the data never ends."""

    @property
    def steps(self) -> int | None:
        """The number of batches of one pass over the data; None: not known."""
        return None

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of one pass."""
        raise NotImplementedError

    def call_hook(self, name: str) -> None:
        """Call ``on_epoch_begin`` or ``on_epoch_end`` of the data set, if it has them; evaluations count as epochs."""

    def between_hooks(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches of an epoch; call the hooks before and after them."""
        self.call_hook("on_epoch_begin")
        yield from batches
        self.call_hook("on_epoch_end")

    def skip_epochs(self, count: int) -> None:
        """Call the hooks of epochs that an interrupted training completed: a data set may shuffle itself in them."""
        for _ in range(count):
            self.call_hook("on_epoch_begin")
            self.call_hook("on_epoch_end")

    def limited_to(self, steps: int | None, argument: str) -> Iterator[Batch]:
        """Yield the first `steps` batches of one pass, default all, between hooks; warn if there are fewer.

        Messages call `steps` by the name `argument`.
        """
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
        """Raise ValueError if a pass never ends and `steps` is None."""
        if steps is None and self.is_endless:
            raise ValueError(f"`{argument}` must be given: the data never end, because their `num_batches` is None")


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
    """Return the batches of the data arguments of ``fit``, ``evaluate`` and ``predict``.

    `x` is arrays, nested in lists and dicts, or a source of batches ``(x,)``, ``(x, y)`` or ``(x, y, weights)``: an
    object with ``__len__`` and ``__getitem__``, or an iterable. Then `y`, `weights` and `batch_size` must be None.
    ``order(samples, epoch)`` returns a permutation of the samples; default: unchanged order. `steps` is the number of
    batches that the caller takes. The default of `batch_size` is ceil(samples / `steps`) if it is given, otherwise 32.
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
    """Raise TypeError for a dict or list of inputs in which some parts are not arrays: these are not batches either."""
    if isinstance(x, dict) or (isinstance(x, list | tuple) and any(map(_is_array, x))):
        for key, part in x.items() if isinstance(x, dict) else enumerate(x):
            if not _is_arrays(part):
                raise TypeError(f"`x` must have arrays for all inputs; received {part!r:.50} at {key!r}")


def _is_arrays(x: Any) -> bool:
    """Whether `x` is an array, or nested lists and dictionaries of arrays or plain numbers."""
    if isinstance(x, list | tuple | dict):
        return all(map(_is_arrays, x.values() if isinstance(x, dict) else x))
    return isinstance(x, bool | int | float | np.generic) or _is_array(x)


def _is_array(x: Any) -> bool:
    """Whether `x` is an array of NumPy or another library, or a pandas table."""
    return not isinstance(x, np.generic) and (hasattr(x, "__dlpack__") or hasattr(x, "__array__"))


def _checked_batch(data: Batch, class_weights: "_ClassWeights | None" = None) -> Batch:
    """Convert a batch to arrays with the dtypes that models read; check that all have the same number of samples."""
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
    """Convert array-likes in nested lists and dictionaries to arrays; a list of numbers becomes one array."""
    if isinstance(tree, dict):
        return {key: _as_arrays(value, name) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        given = list(leaves(tree))
        if any(map(_is_array, given)) or (given and all(part is None for part in given)):
            return [_as_arrays(value, name) for value in tree]
    return None if tree is None and name != "x" else _as_array(tree, name)


def _as_array(x: Any, name: str) -> Array:
    """Convert to an array as models read it: float64 to floatx, integers to int32. NaN raises ValueError."""
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
    """Convert a table with columns of different types (pandas, also nullable types) to an array of numbers.

    The dtype is NumPy's common type: bool if all values are bools, an integer type for bools and integers.
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
    """Split off the last samples: return the first ``1 - fraction`` of the samples, and the rest."""
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
    """Return the samples of a batch at an index: a slice or an array of positions."""
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
        return -(-self.samples // self.size)

    def epoch(self, number: int) -> Iterator[Batch]:
        order = None if self._order is None else self._order(self.samples, number)
        for start in range(0, self.samples, self.size):
            part = slice(start, min(start + self.size, self.samples))
            yield part_of(self.data, part if order is None else order[part])


class _SequenceBatches(Batches):
    """An object that returns batches by index, like Keras' PyDataset; `order` permutes whole batches."""

    def __init__(self, source: Any, class_weights: "_ClassWeights | None", order: Any) -> None:
        self._source, self._class_weights, self._order = source, class_weights, order
        self.is_endless = self.steps is None

    @property
    def steps(self) -> int | None:
        """The number of batches of one pass: ``num_batches`` if the class has it, otherwise ``len()``."""
        if not hasattr(type(self._source), "num_batches"):
            return len(self._source)
        found = self._source.num_batches
        return None if found is None else integer(found, "num_batches")

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of an epoch; an endless sequence keeps its order."""
        steps = self.steps
        if steps is None:
            indices: Iterable[int] = count()
        else:
            indices = range(steps) if self._order is None else self._order(steps, number).tolist()
        for index in indices:
            yield _batch_from_item(self._source[index], self._class_weights)

    def call_hook(self, name: str) -> None:
        getattr(self._source, name, lambda: None)()


class _IterableBatches(Batches):
    """An iterable of batches; a generator continues where the last epoch stopped."""

    def __init__(self, source: Any, class_weights: "_ClassWeights | None") -> None:
        self._source, self._class_weights = source, class_weights

    @property
    def steps(self) -> int | None:
        """The length of the iterable, or None; torch's DataLoader over an iterable has ``__len__`` that raises."""
        try:
            return len(self._source)
        except TypeError:
            return None

    def epoch(self, number: int) -> Iterator[Batch]:
        for item in self._source:
            yield _batch_from_item(item, self._class_weights)


class KeptBatches(Batches):
    """Keep the first batches of an iterator in memory, so that every epoch is validated with the same batches."""

    def __init__(self, batches: Batches, steps: int | None) -> None:
        self._steps, self._batches = steps, batches
        self._batches_in_memory: list[Batch] | None = None

    @property
    def steps(self) -> int | None:
        return self._steps

    def epoch(self, number: int) -> Iterator[Batch]:
        if self._batches_in_memory is None:
            self._batches_in_memory = list(islice(self._batches.epoch(0), self._steps))
        return iter(self._batches_in_memory)


def _batch_from_item(item: Any, class_weights: "_ClassWeights | None") -> Batch:
    """Check a batch of the user's data: ``x``, ``(x,)``, ``(x, y)`` or ``(x, y, weights)``."""
    parts = tuple(item) if isinstance(item, list | tuple) else (item,)
    if not 1 <= len(parts) <= 3 or parts[0] is None:
        received = f"{len(parts)} parts" if parts and parts[0] is not None else f"{item!r:.50}"
        raise ValueError(f"a batch of `x` must be (x,), (x, y) or (x, y, sample_weight); received {received}")
    return _checked_batch(Batch(*parts), class_weights)


def concatenated(parts: Sequence[Any]) -> Any:
    """Concatenate the outputs of several batches or passes along the sample axis; keep their arrangement."""
    columns = zip(*(outputs_like(parts[0], part) for part in parts), strict=True)
    found = map(np.concatenate, columns)
    return map_leaves(lambda _: next(found), parts[0])


def outputs_like(first: Any, outputs: Any) -> Iterator[Array]:
    """Yield the outputs of a batch in the order of `first`, the outputs of the first batch: dict order may differ."""
    try:
        yield from leaves_as(first, outputs)
    except ValueError as error:
        raise ValueError(f"the outputs of every batch {error}") from None


def _class_weights_or_none(class_weight: Mapping[int, float] | None, weights: Any) -> "_ClassWeights | None":
    """Return the class weights if given; with sample weights too, raise ValueError."""
    if class_weight is not None and weights is not None:
        raise ValueError("`class_weight` and `sample_weight` exclude each other: multiply them into `sample_weight`")
    return None if class_weight is None else _ClassWeights(class_weight)


class _ClassWeights:
    """Class number -> weight."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        if not isinstance(weights, Mapping) or not all(
            isinstance(key, int | np.integer) and 0 <= key < 2**31 and math.isfinite(float_of(value))
            for key, value in weights.items()
        ):
            raise ValueError(f"`class_weight` must be a dict of class number and finite weight; received {weights!r}")
        self._classes = np.array(sorted(weights), np.int64)
        self._weights = np.array([weights[key] for key in sorted(weights)] or [1], np.float32)

    def of(self, y: Any) -> Array:
        """Return the weight of each sample. Its class is an integer target, or the argmax of a one-hot row."""
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
            raise ValueError("`class_weight` needs targets that are class numbers (integers); received other values")
        places = np.searchsorted(self._classes, whole)
        known = np.isin(whole, self._classes)
        return np.where(known, self._weights[np.where(known, places, 0)], np.float32(1))
