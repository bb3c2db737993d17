"""What metrics are: float32 variables that batches add to, and a result."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from mp_core.arrays import Array
from mp_core.autocast import AutoCastVariable
from mp_core.dtype_policies import get as policy_of
from mp_core.dtype_policies.lookup import own_config
from mp_core.losses.arrays import floats, same_rank
from mp_core.losses.loss import bound_arguments, snake_case, with_parameters

__all__ = ["FunctionMetric", "Mean", "Metric", "Sum", "quotient"]


def quotient(x: Any, y: Any) -> Any:
    """Return ``x / y``, and 0 where y is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(y == 0, x.dtype.type(0), x / y)[()]


class Metric:
    """The base of the metrics: a subclass adds variables, and defines :meth:`update_state` and :meth:`result`.

    Parameters
    ----------
    dtype : str or DTypePolicy, optional
        Of the variables; default: float32, whatever the policy of the model.
    name : str, optional

    Raises
    ------
    TypeError, ValueError
        An argument is not as above.

    Examples
    --------
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

    def __init__(self, dtype: Any = None, name: str | None = None) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"`name` must be a string; received name={name!r}")
        self.name = name or snake_case(type(self).__name__)
        self._dtype = policy_of("float32" if dtype is None else dtype).compute_dtype
        self._variables: list[AutoCastVariable] = []

    @property
    def dtype(self) -> str:
        """The dtype of the variables."""
        return self._dtype

    @property
    def variables(self) -> list[AutoCastVariable]:
        """The variables that :meth:`update_state` changes."""
        return list(self._variables)

    def add_variable(
        self, shape: Sequence[int] = (), initializer: Any = "zeros", dtype: Any = None, name: str = "variable"
    ) -> AutoCastVariable:
        """Add a variable of ``"zeros"``, ``"ones"`` or what an initializer returns; :meth:`reset_state` zeros it."""
        fill = {"zeros": np.zeros, "ones": np.ones}.get(initializer, initializer)
        if not callable(fill):
            raise ValueError(f"`initializer` must be 'zeros', 'ones' or a callable; received {initializer!r}")
        value = fill(tuple(shape), policy_of(dtype or self.dtype).compute_dtype)
        variable = AutoCastVariable(value, trainable=False, autocast=False, name=name)
        self._variables.append(variable)
        return variable

    add_weight = add_variable

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Count a batch: subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} must define `update_state`")

    def result(self) -> Any:
        """Return the value of all batches since the last :meth:`reset_state`: subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} must define `result`")

    def reset_state(self) -> None:
        """Forget all batches."""
        for variable in self._variables:
            variable.assign(np.zeros(variable.shape, variable.true_dtype))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Count a batch, and return the value of all so far."""
        self.update_state(*args, **kwargs)
        return self.result()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name}>"

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"name": self.name, "dtype": self.dtype}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the metric with these arguments.

        Raises
        ------
        TypeError, ValueError
            `config` is no dictionary of the constructor's arguments.
        """
        return cls(**own_config(config, cls.__name__))


def samples(values: Any, weight: Any, reduce: Callable[..., Array], dtype: Any) -> tuple[Array, Array | None]:
    """Return a value for each sample, and what it weighs: further axes are reduced.

    Raises
    ------
    ValueError
        The weights do not broadcast to the values.
    """
    values = np.asarray(floats(values, "values"), dtype)
    if weight is not None:
        weight = np.asarray(floats(weight, "sample_weight"), dtype)
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


class Sum(Metric):
    """The sum of values, weighted.

    Parameters
    ----------
    name, dtype
        Those of :class:`Metric`.

    Examples
    --------
    >>> Sum()([1.0, 3.0], [1.0, 0.5])
    np.float32(2.5)
    """

    def __init__(self, name: str = "sum", dtype: Any = None) -> None:
        super().__init__(dtype, name)
        self.total = self.add_variable(name="total")

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Add values, each times what it weighs."""
        found, _ = samples(values, sample_weight, np.sum, self.dtype)
        self.total.assign_add(found.sum())

    def result(self) -> Any:
        """Return the sum."""
        return self.total.numpy()[()]


class Mean(Metric):
    """The mean of values, weighted; 0 of none.

    Parameters
    ----------
    name, dtype
        Those of :class:`Metric`.

    Examples
    --------
    >>> Mean()([1.0, 3.0], [3.0, 1.0])
    np.float32(1.5)
    """

    def __init__(self, name: str = "mean", dtype: Any = None) -> None:
        super().__init__(dtype, name)
        self.total, self.count = self.add_variable(name="total"), self.add_variable(name="count")

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Add values, each times what it weighs; further axes than the first one are averaged."""
        found, weight = samples(values, sample_weight, np.mean, self.dtype)
        self.total.assign_add(found.sum())
        self.count.assign_add(np.asarray(found.size if weight is None else weight.sum(), self.dtype))

    def result(self) -> Any:
        """Return the mean."""
        return quotient(self.total.numpy(), self.count.numpy())


class FunctionMetric(Mean):
    """The mean of a function of targets and outputs, whose arguments it keeps."""

    function: ClassVar[Callable[..., Array]]
    own: ClassVar[dict[str, Any]] = {}
    """The arguments of the function, and their defaults."""
    order: ClassVar[tuple[str, ...]] = ("name", "dtype")
    """The first arguments of the class, in Keras' order; those of `own` that are missing follow."""
    default_name: ClassVar[str | None] = None
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls) -> None:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        defaults = {"name": cls.default_name or snake_case(cls.__name__), "dtype": None, **cls.own}
        names = [*cls.order, *(name for name in cls.own if name not in cls.order)]
        cls.__signature__ = inspect.Signature([inspect.Parameter(name, kind, default=defaults[name]) for name in names])
        cls.__doc__ = with_parameters(cls, "Metric", "name, dtype")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        arguments = bound_arguments(type(self), args, kwargs)
        super().__init__(arguments.pop("name"), arguments.pop("dtype"))
        self.arguments = arguments

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        """Count a batch of targets and outputs."""
        super().update_state(type(self).function(y_true, y_pred, **self.arguments), sample_weight)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return super().get_config() | self.arguments
