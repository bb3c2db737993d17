"""The base of the metrics: variables that are updated with batches, and a result."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from types import FunctionType
from typing import Any, ClassVar, Self

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, F64, Array, asarray, dtypes
from mp_core.arrays.recorded import UnseenError
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.dtype_policies import get as policy_of
from mp_core.training.losses.arrays import same_rank
from mp_core.training.losses.loss import bound_arguments
from mp_core.utilities.docstrings import documented, parameters_of, with_sections
from mp_core.utilities.names import named, snake_case
from mp_core.utilities.registry import own_config
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["NAMED", "TOTALS", "FunctionMetric", "Mean", "Metric", "Sum", "as_float64", "quotient"]

TOTALS = "float64"
"""The dtype of sums and counts over batches: in float32, a count would stop at 2^24."""

NAMED = """
    Parameters
    ----------
    name : str, optional
    dtype : str or DTypePolicy, optional
        Dtype of the result, and default dtype of added variables; default: float32, whatever the policy of the model.
        Built-in metrics accumulate in float64.
"""
"""The parameters of all metrics."""

_NARROW = {np.dtype(np.float16).newbyteorder()} | {
    dtype for dtype in dtypes.ALLOWED.values() if dtypes.is_float(dtype) and dtype.itemsize < F32.itemsize
}
"""Floats of 16 and 8 bits, in both byte orders."""


def quotient(x: Any, y: Any) -> Any:
    """Return ``x / y``, and 0 where y is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(y == 0, x.dtype.type(0), x / y)[()]


def as_float64(x: Any, argument: str) -> Array:
    """Convert to float64; exact except for integers beyond 2^53."""
    try:
        return asarray(x, argument).astype(F64, copy=False)
    except UnseenError as error:
        raise UnseenError(
            "a metric cannot be updated in a recorded step, such as compute_loss: override compute_metrics"
        ) from error


def _widened(x: Any) -> Any:
    """Convert arrays of 16-bit or 8-bit floats to float32; return everything else unchanged."""
    dtype = getattr(x, "dtype", None)
    return ops.cast(x, F32) if isinstance(dtype, np.dtype) and dtype in _NARROW else x


def _widening_arguments(update: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method: narrow float arguments are converted to float32, as NumPy's sums of bfloat16 stop at 256."""

    @wraps(update)
    def update_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        return update(self, *map_leaves(_widened, args), **map_leaves(_widened, kwargs))

    return update_state


@documented(NAMED)
class Metric:
    """The base of the metrics: a subclass adds variables, and defines :meth:`update_state` and :meth:`result`.

    :meth:`update_state` of a subclass gets arrays of 16-bit and 8-bit floats as float32, also inside lists and
    dictionaries. If an attribute is a metric, :attr:`variables` includes its variables. A layer's variable that is an
    attribute is not included.

    >>> class Largest(Metric):
    ...     def __init__(self):
    ...         super().__init__(name="largest")
    ...         self.value = self.add_variable(name="value")
    ...     def update_state(self, y_true, y_pred, sample_weight=None):
    ...         self.value.assign(max(self.value.numpy(), np.abs(np.subtract(y_true, y_pred)).max()))
    ...     def result(self):
    ...         return float(self.value)
    >>> metric = Largest()
    >>> metric([1.0], [3.0]), metric([0.0], [0.5])  # the largest error of all batches
    (2.0, 2.0)
    """

    _is_metric = True  # layers list the metrics among their attributes, and lie below this room
    _direction: str | None = None
    """Direction of better values, as in Keras: ``"up"`` or ``"down"``; None: unknown."""
    _arguments: ClassVar[tuple[str, ...]] = ()
    """Names of the constructor's arguments without name and dtype; attributes have the same names."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls).get("update_state")
        if isinstance(own, FunctionType):
            cls.update_state = _widening_arguments(own)  # type: ignore[method-assign]

    def __init__(self, dtype: Any = None, name: str | None = None) -> None:
        self.name = named(name, type(self))
        self._dtype = policy_of("float32" if dtype is None else dtype).compute_dtype
        self._variables: list[AutoCastVariable] = []

    @property
    def dtype(self) -> str:
        """The dtype of the result."""
        return self._dtype

    @property
    def variables(self) -> list[AutoCastVariable]:
        """The variables of this metric, then the variables of metrics among its attributes."""
        return list({id(v): v for metric in self._flatten() for v in metric._own_variables()}.values())

    def _own_variables(self) -> list[AutoCastVariable]:
        """Return added variables, and variables among the attributes that do not belong to a layer."""
        found = (item for item in leaves(vars(self)) if isinstance(item, AutoCastVariable) and item.path == item.name)
        return list({id(v): v for v in (*self._variables, *found)}.values())

    def _flatten(self) -> Iterator["Metric"]:
        """Yield this metric and the metrics among its attributes, recursively, each once."""
        seen: set[int] = set()
        waiting: list[Metric] = [self]
        while waiting:
            metric = waiting.pop()
            if id(metric) not in seen:
                seen.add(id(metric))
                yield metric
                waiting.extend(reversed([item for item in leaves(vars(metric)) if isinstance(item, Metric)]))

    def add_variable(
        self, shape: Sequence[int] = (), initializer: Any = "zeros", dtype: Any = None, name: str = "variable"
    ) -> AutoCastVariable:
        """Add a variable, filled with ``"zeros"``, ``"ones"``, an array or the result of an initializer.

        :meth:`reset_state` sets it to zeros.
        """
        fill = {"zeros": np.zeros, "ones": np.ones}.get(initializer) if isinstance(initializer, str) else initializer
        target = policy_of(dtype or self.dtype).compute_dtype
        if callable(fill):
            value = fill(tuple(shape), target)
        elif hasattr(fill, "shape"):
            value = np.broadcast_to(asarray(fill, "initializer"), tuple(shape))
        else:
            raise ValueError(f"`initializer` must be 'zeros', 'ones', an array or a callable; received {initializer!r}")
        variable = AutoCastVariable(value, dtype=target, trainable=False, autocast=False, name=name)
        self._variables.append(variable)
        return variable

    add_weight = add_variable

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Update the variables with a batch of targets and outputs."""
        raise NotImplementedError(f"{type(self).__name__} must define `update_state`")

    def result(self) -> Any:
        """Return the value of all batches since the last :meth:`reset_state`."""
        raise NotImplementedError(f"{type(self).__name__} must define `result`")

    def reset_state(self) -> None:
        """Set the :attr:`variables` to zeros."""
        for variable in self.variables:
            variable.assign(np.zeros(variable.shape, variable.true_dtype))

    def _rounded(self, value: Any) -> Any:
        """Round a float64 value once to the dtype of the metric."""
        return ops.cast(np.asarray(value), self.dtype)[()]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Update the metric with a batch, and return the value of all batches so far."""
        self.update_state(*args, **kwargs)
        return self.result()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name}>"

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {name: getattr(self, name) for name in ("name", "dtype", *type(self)._arguments)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the metric with these arguments."""
        return cls(**own_config(config, cls.__name__))


def per_sample(values: Any, weight: Any, reduce: Callable[..., Array]) -> tuple[Array, Array | None]:
    """Return weighted values and weights per sample in float64; further axes are reduced."""
    values = as_float64(values, "values")
    if weight is not None:
        weight = as_float64(weight, "sample_weight")
        values, weight = same_rank(values, weight)
        if values.ndim > weight.ndim:
            values = reduce(values, axis=tuple(range(weight.ndim, values.ndim)))
        try:
            full = np.broadcast_to(weight, values.shape)
        except ValueError:
            raise ValueError(
                f"`sample_weight` must broadcast to the values, {values.shape}; received {weight.shape}"
            ) from None
        values = values * full
        weight = reduce(full, axis=tuple(range(1, full.ndim))) if full.ndim > 1 else full
    if values.ndim > 1:
        values = reduce(values, axis=tuple(range(1, values.ndim)))
    return values, weight


@documented(NAMED)
class Sum(Metric):
    """``sum(values * weights)``.

    >>> Sum()([1.0, 3.0], [1.0, 0.5])
    np.float32(2.5)
    """

    def __init__(self, name: str = "sum", dtype: Any = None) -> None:
        super().__init__(dtype, name)
        self.total = self.add_variable(dtype=TOTALS, name="total")

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        found, _ = per_sample(values, sample_weight, np.sum)
        self.total.assign_add(found.sum())

    def result(self) -> Any:
        return self._rounded(self.total.numpy())


@documented(NAMED)
class Mean(Metric):
    """``sum(values * weights) / sum(weights)``; 0 without values.

    >>> Mean()([1.0, 3.0], [3.0, 1.0])
    np.float32(1.5)
    """

    def __init__(self, name: str = "mean", dtype: Any = None) -> None:
        super().__init__(dtype, name)
        self.total = self.add_variable(dtype=TOTALS, name="total")
        self.count = self.add_variable(dtype=TOTALS, name="count")

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        found, weight = per_sample(values, sample_weight, np.mean)
        self.total.assign_add(found.sum())
        self.count.assign_add(float(found.size) if weight is None else weight.sum())

    def result(self) -> Any:
        return self._rounded(self._mean())

    def _mean(self) -> Any:
        """Return the mean in float64."""
        return quotient(self.total.numpy(), self.count.numpy())


class FunctionMetric(Mean):
    """The mean of a function of targets and outputs with stored arguments."""

    function: ClassVar[Callable[..., Array]]
    function_arguments: ClassVar[dict[str, Any]] = {}
    """Argument of the function -> default."""
    order: ClassVar[tuple[str, ...]] = ("name", "dtype")
    """The first arguments of the class, in Keras' order; the remaining `function_arguments` follow."""
    default_name: ClassVar[str | None] = None
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        defaults = {"name": cls.default_name or snake_case(cls.__name__), "dtype": None, **cls.function_arguments}
        names = [*cls.order, *(name for name in cls.function_arguments if name not in cls.order)]
        cls.__signature__ = inspect.Signature([inspect.Parameter(name, kind, default=defaults[name]) for name in names])
        parameters = parameters_of(cls.function) + NAMED
        cls.__doc__ = with_sections(cls.__doc__, parameters, signature=cls.__signature__)
        cls._arguments = tuple(cls.function_arguments)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        arguments = bound_arguments(type(self), args, kwargs)
        super().__init__(arguments.pop("name"), arguments.pop("dtype"))
        vars(self).update(arguments)

    @property
    def arguments(self) -> dict[str, Any]:
        """Argument of the function -> value, which is an attribute of the metric."""
        return {name: getattr(self, name) for name in self.function_arguments}

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        super().update_state(type(self).function(y_true, y_pred, **self.arguments), sample_weight)
