"""Values and gradients: record a function and its backward pass once, then run both in compiled code."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from mp_core.arrays import F32, F64, Array
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.recorded import NotedCall, Recorded, Recording, UnseenError, current_recording
from mp_core.core.changes import count
from mp_core.core.convert import copied, filled
from mp_core.layers.plans.cache import Cache
from mp_core.layers.plans.examples import matching
from mp_core.layers.plans.plan import ForwardPlan, plan_key
from mp_core.layers.plans.recorded_call import record
from mp_core.layers.plans.state import State
from mp_core.ops.gradients.eager import EagerRecording
from mp_core.ops.gradients.products import REPLACEMENTS
from mp_core.ops.gradients.reverse import gradients
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.autocast.variable import as_stored, assign_each
from mp_core.utilities.tree import leaves, map_leaves

__all__ = [
    "ArrayGradients",
    "Assigned",
    "Differentiable",
    "GradientPlan",
    "ValueAndGrad",
    "assign_and_call",
    "assign_arrays",
    "checked_gradients",
    "grad",
    "has_wide",
    "start_noting",
    "value_and_grad",
    "without_shared_memory",
]  # fmt: skip

T = TypeVar("T")
_MOST_PLANS = 32
_MOST_SHAPES = 8  # combinations of shapes for which ArrayGradients caches a step

Assigned = list[tuple[AutoCastVariable, Array]]
"""Variables, and the arrays to assign to them."""


def value_and_grad(
    function: Callable[..., Any], variables: Sequence[AutoCastVariable], *, has_aux: bool = False
) -> "ValueAndGrad":
    """Return a function that computes `function` and its gradients with respect to variables.

    The first call with arrays of certain shapes records the operations, forwards and backwards. Later calls run them in
    compiled code with the current values of the variables. With float64 arrays or variables, every call computes
    operation by operation; likewise if a plan cannot record the function, for example because a decision depends on the
    value of a variable. The bits are the same.

    Variables that the function assigns, such as moving statistics, are assigned after everything has been computed: if
    the call fails, no variable has changed.

    Parameters
    ----------
    function : callable
        It returns a float array of one element, computed by layers, operations of mp_core, arithmetic
        (``x * scale + 1``) and views, as :func:`mp_core.compile` records them. Python numbers, ``if`` and loops are
        evaluated once, at the recording.
    variables : sequence of AutoCastVariable
        Float variables. Their layers must have been built.
    has_aux : bool
        Whether `function` returns a pair: the value, and other results (arrays in tuples, lists and dictionaries).

    Returns
    -------
    ValueAndGrad
        ``value, gradients = f(*inputs, **options)``, or ``(value, aux), gradients`` with `has_aux`.

    Examples
    --------
    >>> import mp_core as mp
    >>> from mp_core import AutoCastVariable
    >>> w = AutoCastVariable(np.float32([[1.0], [2.0]]), name="w")
    >>> f = value_and_grad(lambda x: mp.matmul(x, w), [w])
    >>> value, (gradient,) = f(np.float32([[3.0, 4.0]]))
    >>> float(value), gradient.tolist()
    (11.0, [[3.0], [4.0]])
    """
    return ValueAndGrad(function, variables, has_aux)


def grad(function: Callable[..., Any], variables: Sequence[AutoCastVariable]) -> Callable[..., list[Array]]:
    """Return a function that returns only the gradients: see :func:`value_and_grad`.

    Examples
    --------
    >>> import mp_core as mp
    >>> from mp_core import AutoCastVariable
    >>> w = AutoCastVariable(np.float32([1.0, 2.0]))
    >>> grad(lambda: mp.matmul(w, w), [w])()
    [array([2., 4.], dtype=float32)]
    """
    both = value_and_grad(function, variables)
    return lambda *inputs, **options: both(*inputs, **options)[1]


class Differentiable:
    """A function with trained variables, and the state that its plans for different shapes share.

    `assigned` are the variables that the plans so far assign: moving statistics, counts, states of random numbers.
    `packed_transposes` is the cache of :class:`~mp_core.arrays.recorded.Recording`.
    """

    def __init__(self, function: Callable[..., Any], variables: Sequence[AutoCastVariable]) -> None:
        self.function, self.variables = function, checked_variables(variables)
        self.assigned: list[AutoCastVariable] = []
        self.packed_transposes: dict[Any, Any] = {}
        self._plans: Cache[Any] = Cache(_MOST_PLANS)


class ValueAndGrad(Differentiable):
    """The result of :func:`value_and_grad`: it caches a plan for each combination of shapes.

    If a layer that the function calls changes, or the value of a variable that is not trained, the next call records
    again. Changes of other dependencies, such as global variables, are not noticed.
    """

    def __init__(
        self, function: Callable[..., Any], variables: Sequence[AutoCastVariable], has_aux: bool,
        allows_unused: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(function, variables)
        self.has_aux, self.allows_unused = has_aux, allows_unused
        self._is_wide = any(variable.true_dtype is F64 for variable in self.variables)

    def __call__(self, *inputs: Any, **options: Any) -> tuple[Any, list[Array]]:
        """Return the value and the gradients: float32 (float64) arrays, in the order of the variables."""
        value, aux, found, assigned = self.outputs_of(inputs, options)
        assign_arrays(assigned)
        return ((value, aux) if self.has_aux else value), found

    def outputs_of(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any, list[Array], Assigned]:
        """Return value, other results, gradients, and the assignments that a call would do; raise the same errors."""
        if current_recording() is not None:
            raise TypeError("there are no gradients of gradients: a function that finds gradients cannot be recorded")
        key = plan_key(inputs, options)
        plan = self._plans.get(key)
        if plan is None and (self._is_wide or has_wide((inputs, options))):
            return _computed(self, inputs, options)
        try:
            if plan is None:
                plan = self._plans.put(key, GradientPlan(self, inputs, options))
            plan.refresh()
        except UnseenError:
            plan = self._plans.put(key, _NoPlan(self))
        return plan.outputs_of(inputs, options)  # type: ignore[no-any-return]


class ArrayGradients:
    """Computes gradients with respect to arrays, such as those of a loss with respect to the outputs of parts.

    The function takes a list of float32 arrays and other arguments; it returns (value, other result).

    Examples
    --------
    >>> import mp_core as mp
    >>> find = ArrayGradients(lambda arrays, factor: (mp.mean(arrays[0] * factor), None))
    >>> find([np.float32([1.0, 3.0])], np.float32([2.0]))
    ((array(4., dtype=float32), None), [array([1., 1.], dtype=float32)])
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._steps: Cache[ValueAndGrad] = Cache(_MOST_SHAPES)

    def __call__(self, arrays: Sequence[Array], *others: Any) -> tuple[Any, list[Array]]:
        """Return (value, other result), and the gradient of each array."""
        step = self._steps.get_or_make(tuple(x.shape for x in arrays), lambda: self._step(arrays))
        for variable, x in zip(step.variables, arrays, strict=True):
            variable.assign(x)
        return step(*others)

    def _step(self, arrays: Sequence[Array]) -> ValueAndGrad:
        """Return a ValueAndGrad with a variable for each array, of its shape."""
        variables = [AutoCastVariable(np.zeros(x.shape, F32), autocast=False, name="output") for x in arrays]
        return ValueAndGrad(
            lambda *others: self._function([variable.read_value() for variable in variables], *others), variables, True
        )


class GradientPlan(ForwardPlan[Any]):
    """A plan of a value and its gradients. Trained and assigned variables are inputs of the plan."""

    def __init__(self, shared: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._shared, self._held = shared, [*shared.variables, *shared.assigned]
        super().__init__(self._differentiated, (inputs, []), options)

    def _recorded(self) -> Any:
        """Record; if the recording assigns variables that it read as constants, record again with them as inputs."""
        if self._last[1] is not None:
            self._shared.packed_transposes.clear()  # constants may have changed
        while True:
            values = [np.empty(v.shape, v.true_dtype) for v in self._held]
            self._tree = (self._tree[0][0], values), self._tree[1]
            changes, state = count(), State(None, {id(variable) for variable in self._held}, True)
            found = record(self._layer, self._tree, ((), {}), self._sizes, state)
            if len(self._assigned) == len(set(map(id, self._assigned)) & {id(v) for v in self._held}):
                state.add_variables(self._read)
                shells = [np.broadcast_to(np.empty((), x.dtype), x.shape) for x in values]  # hold no memory
                self._tree = (self._tree[0][0], shells), self._tree[1]
                self._read_by_steps = self._examples
                return changes, found
            self._held = list({id(v): v for v in (*self._held, *self._assigned)}.values())
            self._shared.assigned = self._held[len(self._shared.variables) :]

    def _differentiated(self, inputs: tuple[Any, ...], values: list[Any], **options: Any) -> Any:
        """Return value, other results, gradients, and the values of assigned variables."""
        recording = self.shared_recording()
        results = differentiated(recording, self._shared, list(zip(self._held, values, strict=True)), inputs, options)
        return *results, self.assigned_values(recording, results)

    @property
    def _recorded_function(self) -> Any:
        return self._shared.function

    def shared_recording(self) -> Recording:
        """Return the current recording, with the cache of transposed constants that all plans share."""
        recording = current_recording()
        assert recording is not None
        recording.packed_transposes = self._shared.packed_transposes
        return recording

    def assigned_values(self, recording: Recording, results: Any = ()) -> list[Any]:
        """Return the values of assigned variables, in memory of their own, since callers may write to `results`.

        Note which variables were assigned, and which were read as constants.
        """
        self._assigned = [variable for variable, _ in recording.assigned.values()]
        self._read = list(recording.read_variables.values())
        places = {recording.place(x)[0] for x in leaves(results) if type(x) is Recorded}
        values = [value for _, value in recording.assigned.values()]
        shared = [type(x) is Recorded and recording.place(x)[0] in places for x in values]
        return [recording.call(copied, (x,), {}) if both else x for x, both in zip(values, shared, strict=True)]

    def outputs_of(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any, list[Array], Assigned]:
        """Run the plan; return value, other results, gradients, and assignments to do."""
        self.refresh()
        arrays = self._arrays(inputs, options)
        value, aux, found, assigned = self.run_rows(arrays, ())
        return value, aux, found, list(zip(self._assigned, assigned, strict=True))

    def _arrays(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> list[Array]:
        """Return the arrays of a call, then the values of the input variables, in the order of the examples."""
        values, examples = [variable.numpy() for variable in self._held], self._read_by_steps
        given = [x for x in leaves(inputs) if isinstance(x, np.ndarray)] + values
        if options or len(given) != len(examples):  # compare the structure of all arguments with the examples
            return self._given((inputs, values), options)
        return [matching(x, example, index) for index, (x, example) in enumerate(zip(given, examples, strict=True))]


class _NoPlan:
    """Takes the place of a plan in the cache if the function cannot be recorded: it computes operation by operation."""

    def __init__(self, shared: ValueAndGrad) -> None:
        self._shared = shared

    def refresh(self) -> None:
        """Do nothing, since nothing is recorded."""

    def outputs_of(self, inputs: Any, options: Any) -> tuple[Any, Any, list[Array], Assigned]:
        """Compute what :meth:`GradientPlan.outputs_of` returns."""
        return _computed(self._shared, inputs, options)


def has_wide(tree: Any) -> bool:
    """Return whether a tree contains a float64 array, which plans do not support."""
    return any(isinstance(x, np.ndarray) and x.dtype == F64 for x in leaves(tree))


def _computed(shared: ValueAndGrad, inputs: Any, options: Any) -> tuple[Any, Any, list[Array], Assigned]:
    """Compute operation by operation; return value, other results, gradients, and assignments to do."""
    recording = EagerRecording()

    def run() -> Any:
        given = map_leaves(lambda x: recording.input(np.array(x, order="C")) if isinstance(x, np.ndarray) else x,
                           (inputs, options))  # fmt: skip
        held = [(variable, recording.input(np.array(variable.numpy()))) for variable in shared.variables]
        return differentiated(recording, shared, held, *given)

    value, aux, found = map_leaves(lambda x: x.array if type(x) is Recorded else x, recording.record(run))
    assigned = [(v, x.array.copy() if type(x) is Recorded else x) for v, x in recording.assigned.values()]
    return value, aux, found, assigned


def differentiated(
    recording: Recording, shared: ValueAndGrad, held: list[tuple[AutoCastVariable, Recorded]], inputs: Any, options: Any
) -> tuple[Any, Any, list[Any]]:
    """Call the function in a recording and add the backward pass; return value, other results and gradients."""
    values = {id(variable): value for variable, value in held}
    noted = start_noting(recording, shared.variables, held)
    result = shared.function(*inputs, **options)
    recording.noted_calls = None
    value, aux = result if shared.has_aux else (result, None)
    _check_value(value)
    one = recording.call(filled, (value.shape, value.dtype, 1.0), {})
    found = gradients(recording, noted, [(value, one)], [values[id(variable)] for variable in shared.variables])
    return value.reshape(()), aux, checked_gradients(recording, shared.variables, found, shared.allows_unused)


def start_noting(
    recording: Recording, trained: Iterable[AutoCastVariable], held: Iterable[tuple[AutoCastVariable, Any]]
) -> list[NotedCall]:
    """Override variables with recorded arrays, and start to note calls; return the list of noted calls."""
    wanted = {id(variable) for variable in trained}
    noted = recording.begin_noting(REPLACEMENTS)
    for variable, value in held:
        recording.override(variable, value, id(variable) in wanted)
    return noted


def checked_gradients(
    recording: Recording, variables: Sequence[AutoCastVariable], arrays: list[Any], allows_unused: bool = False
) -> list[Any]:
    """Return the gradients of variables, each in memory of its own; raise ValueError if one is None.

    With `allows_unused`, raise only if all are None.
    """
    lost = [variable.name for variable, gradient in zip(variables, arrays, strict=True) if gradient is None]
    if lost and not (allows_unused and len(lost) < len(arrays)):
        raise ValueError(f"the value does not depend on the variables {', '.join(map(repr, lost))}: no operation leads "
                         "from them to it")  # fmt: skip
    return without_shared_memory(recording, arrays)


def without_shared_memory(recording: Recording, arrays: list[Any]) -> list[Any]:
    """Copy arrays that share memory with an earlier one, or that have repeated elements; None stays None."""
    places = [None if x is None else recording.place(x)[0] for x in arrays]
    return [
        recording.call(copied, (x,), {}) if x is not None and (place in places[:index] or _is_repeated(x.array)) else x
        for index, (x, place) in enumerate(zip(arrays, places, strict=True))
    ]


def _is_repeated(x: Array) -> bool:
    """Return whether elements share memory, as in a result of `np.broadcast_to`."""
    return any(stride == 0 and length > 1 for stride, length in zip(x.strides, x.shape, strict=True))


def _check_value(value: Any) -> None:
    """Raise unless `value` is a recorded float array of one element."""
    if type(value) is not Recorded:
        raise ValueError(f"the function must return an array that depends on its variables; received {value!r}")
    if value.size != 1:
        raise ValueError(f"the value must have one element, as a loss has; received shape {value.shape}")
    if not is_float(value.dtype):
        raise TypeError(f"the value must be of a float type; received {value.dtype}")


def checked_variables(variables: Sequence[AutoCastVariable]) -> list[AutoCastVariable]:
    """Return a list of the variables; raise TypeError if one is not a float variable."""
    found = list(variables)
    for index, variable in enumerate(found):
        if not isinstance(variable, AutoCastVariable):
            raise TypeError(f"`variables` must be a list of variables; received {type(variable).__name__} at {index}")
        if not is_float(variable.true_dtype):
            raise TypeError(f"variable '{variable.name}' holds {variable.true_dtype}: integers have no gradient")
    return found


def assign_arrays(pairs: Iterable[tuple[AutoCastVariable, Array]]) -> None:
    """Assign arrays, without copies, to all variables; if interrupted, to none. No one else may refer to the arrays."""
    given = [(variable, as_stored(value, variable.true_dtype, variable.name)) for variable, value in pairs]
    assign_each([variable for variable, _ in given], [value for _, value in given])


def assign_and_call(pairs: Assigned, function: Callable[..., T], *args: Any) -> T:
    """Call :func:`assign_arrays`, then return ``function(*args)``; if it fails, undo the assignments."""
    variables = [variable for variable, _ in pairs]
    before = [variable.numpy() for variable in variables]
    try:
        assign_arrays(pairs)
        return function(*args)
    except BaseException:
        assign_each(variables, before)
        raise
