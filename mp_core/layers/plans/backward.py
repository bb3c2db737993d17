"""Values and their gradients: a function recorded forwards and backwards once, and run by compiled code."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from mp_core.arrays import F32, F64, Array
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.recorded import Noted, Recorded, Recording, UnseenError, under_way
from mp_core.core.changes import count
from mp_core.core.convert import copied, filled
from mp_core.layers.plans.cache import Cache
from mp_core.layers.plans.examples import like
from mp_core.layers.plans.plan import ForwardPlan, plan_key
from mp_core.layers.plans.recorded_call import record
from mp_core.layers.plans.state import State
from mp_core.ops.gradients.eager import EagerRecording
from mp_core.ops.gradients.products import WHOLE
from mp_core.ops.gradients.reverse import gradients
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.autocast.variable import as_stored, assign_each
from mp_core.utilities.tree import leaves, map_leaves

__all__ = [
    "ArrayGradients", "Assigned", "Differentiable", "GradientPlan", "ValueAndGrad", "apart", "assign_arrays",
    "assigned_if", "found_apart", "grad", "has_wide", "noting", "value_and_grad",
]  # fmt: skip

T = TypeVar("T")
_MOST_PLANS = 32
_MOST_SHAPES = 8  # of arrays, for which ArrayGradients keeps steps

Assigned = list[tuple[AutoCastVariable, Array]]
"""Variables, and what they are to be assigned."""


def value_and_grad(
    function: Callable[..., Any], variables: Sequence[AutoCastVariable], *, has_aux: bool = False
) -> "ValueAndGrad":
    """Return a function that computes what `function` does, and the gradients with respect to variables.

    Its first call with arrays of certain shapes records the operations forwards and backwards; each later one runs them
    by compiled code, with the values that the variables have then. With float64 arrays or variables it computes call by
    call, and so it does where a plan cannot see what the function computes: a count of integers that a layer keeps, or
    a decision by the value of a variable. The bits are the same.

    Variables that the function assigns, such as moving statistics, get their values once all is computed: if the call
    fails, none of them has changed.

    Parameters
    ----------
    function : callable
        It returns a float array of one element, made of layers, of the operations of mp_core, of arithmetic
        (``x * scale + 1``) and of views: what :func:`mp_core.compile` records. Python's numbers, ``if`` and loops
        count as they were at the recording.
    variables : sequence of AutoCastVariable
        Float ones. Layers that have them are built.
    has_aux : bool
        Whether `function` returns a pair: the value, and other results (arrays in tuples, lists and dictionaries).

    Returns
    -------
    ValueAndGrad
        ``value, gradients = f(*inputs, **options)``, or ``(value, aux), gradients`` with `has_aux`.

    Raises
    ------
    TypeError
        `variables` has something else than float variables.

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
    """Return a function that returns the gradients alone: see :func:`value_and_grad`.

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
    """A function, the variables whose gradients are found, and what its plans for all shapes share.

    Parameters
    ----------
    function : callable
    variables : sequence of AutoCastVariable

    Attributes
    ----------
    assigned : list of AutoCastVariable
        Those that the plans so far assign: moving statistics, counts, the states of random numbers.
    transposed : dict
        What the rules of gradients have made of constants.

    Raises
    ------
    TypeError
        `variables` has something else than float variables.
    """

    def __init__(self, function: Callable[..., Any], variables: Sequence[AutoCastVariable]) -> None:
        self.function, self.variables = function, checked_variables(variables)
        self.assigned: list[AutoCastVariable] = []
        self.transposed: dict[Any, Any] = {}
        self._plans: Cache[Any] = Cache(_MOST_PLANS)


class ValueAndGrad(Differentiable):
    """What :func:`value_and_grad` returns: it keeps a plan for each combination of shapes.

    A plan holds while the layers that the function calls, and the variables that are not trained, stay as they are;
    after a change of these the next call records anew. What else the function depends on (a global variable, say)
    counts as it was when it was recorded.

    Parameters
    ----------
    function, variables, has_aux
        Those of :func:`value_and_grad`.
    allows_unused : bool
        Whether some variables may have no path to the value: their gradients are None.
    """

    def __init__(
        self, function: Callable[..., Any], variables: Sequence[AutoCastVariable], has_aux: bool,
        allows_unused: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(function, variables)
        self.has_aux, self.allows_unused = has_aux, allows_unused
        self._is_wide = any(variable.true_dtype is F64 for variable in self.variables)

    def __call__(self, *inputs: Any, **options: Any) -> tuple[Any, list[Array]]:
        """Return the value and the gradients: float32 (float64) arrays, in the order of the variables.

        Raises
        ------
        ValueError
            The value has several elements, or a variable has no path to it. Or something that the function computes is
            no operation (an :class:`~mp_core.plans.UnseenError`), or it assigns a variable that is trained.
        TypeError
            The value is no float array. Or an operation has no gradient
            (:class:`~mp_core.ops.gradients.registry.UngradedError`).
        """
        value, aux, found, assigned = self.outputs_of(inputs, options)
        assign_arrays(assigned)
        return ((value, aux) if self.has_aux else value), found

    def outputs_of(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any, list[Array], Assigned]:
        """Return the value, the rest, the gradients, and what variables are to be assigned; errors as of a call."""
        if under_way() is not None:
            raise TypeError("gradients of gradients are not there: a function that finds gradients cannot be recorded")
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
    """Finds the gradients of a function with respect to arrays: of the loss of a batch, to the outputs of its parts.

    Parameters
    ----------
    function : callable
        From a list of float32 arrays and other arguments to a value, and another result.

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
        """Return the value and the other result, and the gradient of each array."""
        step = self._steps.made(tuple(x.shape for x in arrays), lambda: self._step(arrays))
        for variable, x in zip(step.variables, arrays, strict=True):
            variable.assign(x)
        return step(*others)

    def _step(self, arrays: Sequence[Array]) -> ValueAndGrad:
        """Return a step in which variables stand for arrays of these shapes."""
        variables = [AutoCastVariable(np.zeros(x.shape, F32), autocast=False, name="output") for x in arrays]
        return ValueAndGrad(
            lambda *others: self._function([variable.read_value() for variable in variables], *others), variables, True
        )


class GradientPlan(ForwardPlan[Any]):
    """A plan of a value and its gradients; the variables that are trained, or assigned, are inputs of it."""

    def __init__(self, shared: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._shared, self._held = shared, [*shared.variables, *shared.assigned]
        super().__init__(self._differentiated, (inputs, []), options)

    def _recorded(self) -> Any:
        """Return a new recording: another one if it assigns variables that it read as constants before."""
        if self._last[1] is not None:
            self._shared.transposed.clear()  # constants have changed, perhaps
        while True:
            values = [np.empty(v.shape, np.int32 if v.true_dtype.kind in "iu" else v.true_dtype) for v in self._held]
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
        """Return the value, the rest, the gradients, and what is assigned."""
        recording = self.begun()
        results = differentiated(recording, self._shared, list(zip(self._held, values, strict=True)), inputs, options)
        return *results, self.noted_state(recording, results)

    @property
    def _recorded_function(self) -> Any:
        return self._shared.function

    def begun(self) -> Recording:
        """Return the recording under way, which shares with those of the other plans what rules make of constants."""
        recording = under_way()
        assert recording is not None
        recording.transposed = self._shared.transposed
        return recording

    def noted_state(self, recording: Recording, results: Any = ()) -> list[Any]:
        """Return what variables are assigned, which shares no memory with `results`: the caller may write to these.

        The variables are remembered, and those that were read.
        """
        self._assigned = [variable for variable, _ in recording.assigned.values()]
        self._read = list(recording.read.values())
        places = {recording.place(x)[0] for x in leaves(results) if type(x) is Recorded}
        values = [value for _, value in recording.assigned.values()]
        shared = [type(x) is Recorded and recording.place(x)[0] in places for x in values]
        return [recording.call(copied, (x,), {}) if both else x for x, both in zip(values, shared, strict=True)]

    def outputs_of(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any, list[Array], Assigned]:
        """Return the value, the rest, the gradients, and what variables are to be assigned."""
        self.refresh()
        arrays = self._arrays(inputs, options)
        value, aux, found, assigned = self.run_rows(arrays, ())
        return value, aux, found, list(zip(self._assigned, assigned, strict=True))

    def _arrays(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> list[Array]:
        """Return the arrays of a call, and the values of variables, in the order of the examples."""
        values, examples = [variable.numpy() for variable in self._held], self._read_by_steps
        given = [x for x in leaves(inputs) if isinstance(x, np.ndarray)] + values
        if options or len(given) != len(examples):  # not only arrays: names and lists must be those of the examples
            return self._given((inputs, values), options)
        return [like(x, example, index) for index, (x, example) in enumerate(zip(given, examples, strict=True))]


class _NoPlan:
    """What is kept in the place of a plan for what no plan can repeat: it computes call by call."""

    def __init__(self, shared: ValueAndGrad) -> None:
        self._shared = shared

    def refresh(self) -> None:
        """Do nothing: each call computes anew."""

    def outputs_of(self, inputs: Any, options: Any) -> tuple[Any, Any, list[Array], Assigned]:
        """Return what :meth:`GradientPlan.outputs_of` returns."""
        return _computed(self._shared, inputs, options)


def has_wide(tree: Any) -> bool:
    """Whether there is an array of float64, which plans do not have."""
    return any(isinstance(x, np.ndarray) and x.dtype == F64 for x in leaves(tree))


def _computed(shared: ValueAndGrad, inputs: Any, options: Any) -> tuple[Any, Any, list[Array], Assigned]:
    """Return the value, the rest, the gradients, and what variables are to be assigned, computed call by call."""
    recording = EagerRecording()

    def run() -> Any:
        given = map_leaves(lambda x: recording.input(np.array(x, order="C")) if isinstance(x, np.ndarray) else x,
                           (inputs, options))  # fmt: skip
        held = [(variable, recording.input(np.array(variable.numpy()))) for variable in shared.variables]
        return differentiated(recording, shared, held, *given)

    value, aux, found = map_leaves(lambda x: x.array if type(x) is Recorded else x, recording.of(run))
    assigned = [(v, x.array.copy() if type(x) is Recorded else x) for v, x in recording.assigned.values()]
    return value, aux, found, assigned


def differentiated(
    recording: Recording, shared: ValueAndGrad, held: list[tuple[AutoCastVariable, Recorded]], inputs: Any, options: Any
) -> tuple[Any, Any, list[Any]]:
    """Return what a function returns in a recording, and the gradients, which become part of it."""
    values = {id(variable): value for variable, value in held}
    noted = noting(recording, shared.variables, held)
    result = shared.function(*inputs, **options)
    recording.noted = None
    value, aux = result if shared.has_aux else (result, None)
    _check_value(value)
    one = recording.call(filled, (value.shape, value.dtype, 1.0), {})
    found = gradients(recording, noted, [(value, one)], [values[id(variable)] for variable in shared.variables])
    return value.reshape(()), aux, found_apart(recording, shared.variables, found, shared.allows_unused)


def noting(
    recording: Recording, trained: Iterable[AutoCastVariable], held: Iterable[tuple[AutoCastVariable, Any]]
) -> list[Noted]:
    """Let variables be recorded arrays from now on, and return the list in which the recording notes calls."""
    wanted = {id(variable) for variable in trained}
    noted = recording.begin_noting(WHOLE)
    for variable, value in held:
        recording.hold(variable, value, id(variable) in wanted)
    return noted


def found_apart(
    recording: Recording, variables: Sequence[AutoCastVariable], arrays: list[Any], allows_unused: bool = False
) -> list[Any]:
    """Return the gradients of variables, no two in the same memory; raise if one has none (`allows_unused`: if all)."""
    lost = [variable.name for variable, gradient in zip(variables, arrays, strict=True) if gradient is None]
    if lost and not (allows_unused and len(lost) < len(arrays)):
        raise ValueError(f"the value does not depend on the variables {', '.join(map(repr, lost))}: no operation leads "
                         "from them to it")  # fmt: skip
    return apart(recording, arrays)


def apart(recording: Recording, arrays: list[Any]) -> list[Any]:
    """Return arrays of which no two share memory, nor two elements of one; None as it is."""
    places = [None if x is None else recording.place(x)[0] for x in arrays]
    return [
        recording.call(copied, (x,), {}) if x is not None and (place in places[:index] or _is_repeated(x.array)) else x
        for index, (x, place) in enumerate(zip(arrays, places, strict=True))
    ]


def _is_repeated(x: Array) -> bool:
    """Whether elements share memory, as in what `np.broadcast_to` returns."""
    return any(stride == 0 and length > 1 for stride, length in zip(x.strides, x.shape, strict=True))


def _check_value(value: Any) -> None:
    """Raise unless it is a recorded float array of one element."""
    if type(value) is not Recorded:
        raise ValueError(f"the function must return an array that depends on its variables; received {value!r}")
    if value.size != 1:
        raise ValueError(f"the value must have one element, as a loss has; received shape {value.shape}")
    if not is_float(value.dtype):
        raise TypeError(f"the value must be of a float type; received {value.dtype}")


def checked_variables(variables: Sequence[AutoCastVariable]) -> list[AutoCastVariable]:
    """Return variables; raise TypeError for what is none, or has no gradient."""
    found = list(variables)
    for index, variable in enumerate(found):
        if not isinstance(variable, AutoCastVariable):
            raise TypeError(f"`variables` must be a list of variables; received {type(variable).__name__} at {index}")
        if not is_float(variable.true_dtype):
            raise TypeError(f"variable '{variable.name}' holds {variable.true_dtype}: integers have no gradient")
    return found


def assign_arrays(pairs: Iterable[tuple[AutoCastVariable, Array]]) -> None:
    """Assign arrays that nobody else has, to all variables or, interrupted, to none."""
    given = [(variable, as_stored(value, variable.true_dtype, variable.name)) for variable, value in pairs]
    assign_each([variable for variable, _ in given], [value for _, value in given])


def assigned_if(pairs: Assigned, function: Callable[..., T], *args: Any) -> T:
    """Assign arrays that nobody else has, and return what a function returns; if that fails, undo the assignments."""
    variables = [variable for variable, _ in pairs]
    before = [variable.numpy() for variable in variables]
    try:
        assign_arrays(pairs)
        return function(*args)
    except BaseException:
        assign_each(variables, before)
        raise
