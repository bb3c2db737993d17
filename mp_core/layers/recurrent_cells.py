"""The cells of recurrent layers: they compute one step of a sequence from its inputs and the previous states."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, dtypes
from mp_core.core.scopes import called_in
from mp_core.layers import activations, initializers
from mp_core.layers.forms.form import floating
from mp_core.layers.forms.products import packed, widened
from mp_core.layers.layer import Layer
from mp_core.layers.parts import rows_before
from mp_core.layers.seeds import Seed, generator_of, given_seed
from mp_core.ops.random import dropout as dropped
from mp_core.ops.recurrent import gated, lstm_step
from mp_core.policies.autocast import AutoCastVariable, scope_dtype
from mp_core.utilities.arguments import boolean, positive_integer, share

__all__ = ["Cell", "Draws", "GRUCell", "LSTMCell", "SimpleRNNCell", "sequence_draws"]

sequence_draws: ContextVar[dict[int, Any] | None] = ContextVar("mp_core.layers.draws", default=None)
"""``id(cell)`` -> random keys for the sequence that this thread or task processes; they are the same at all steps."""

WEIGHTS = """use_bias : bool
    kernel_initializer, recurrent_initializer, bias_initializer : str, dict or callable
    """
DROPOUT = """dropout, recurrent_dropout : float
        Fractions of the inputs and of the previous states that training sets to 0: the same elements at all steps.
    seed : int or SeedGenerator, optional
        Source of the random numbers for both.
    """
_REST = """**kwargs
        ``kernel_regularizer``, ``recurrent_regularizer``, ``bias_regularizer``, the corresponding constraints, and
        arguments of :class:`Layer`. ``implementation``, 1 or 2, as in Keras: 1 uses a separate dropout mask for each
        gate; `recurrent_dropout` implies 1.
    """


class Draws(NamedTuple):
    """Random keys for dropout, used at all steps of a sequence: none, one, or one for each gate."""

    inputs: tuple[Array, ...] = ()
    states: tuple[Array, ...] = ()


class Cell(Layer, nameable=False):
    """The base of the cells: two products, summed in float32, give the pre-activations of all gates.

    A subclass defines the number of gates, `_gates`, and :meth:`advanced`, which computes the new states.
    """

    _arrays = ("inputs",)
    _gates: ClassVar[int]
    _draws_by_gate: ClassVar[bool] = True
    _repr_arguments = ("units",)
    _options: tuple[str, ...] = (
        "units", "activation", "recurrent_activation", "use_bias", "kernel_initializer", "recurrent_initializer",
        "bias_initializer", "dropout", "recurrent_dropout", "seed",
    )  # fmt: skip
    bias: AutoCastVariable | None

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: Seed = None,
        implementation: int = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = positive_integer(units, "units")
        self.activation = activations.get(activation)
        self.recurrent_activation = activations.get(recurrent_activation)
        self.use_bias = boolean(use_bias, "use_bias")
        self.kernel_initializer = initializers.checked(kernel_initializer)
        self.recurrent_initializer = initializers.checked(recurrent_initializer)
        self.bias_initializer = initializers.checked(bias_initializer)
        self.dropout = share(dropout, "dropout")
        self.recurrent_dropout = share(recurrent_dropout, "recurrent_dropout")
        if implementation not in (1, 2):
            raise ValueError(f"`implementation` must be 1 or 2; received {implementation!r}")
        self.implementation = 1 if self.recurrent_dropout and self._draws_by_gate else int(implementation)
        self.seed = given_seed(seed)
        self.seed_generator = generator_of(seed) if self.dropout or self.recurrent_dropout else None

    @property
    def state_size(self) -> int | list[int]:
        """The size of the state, or of each state, for one sample."""
        return self.units

    @property
    def output_size(self) -> int:
        """The size of the outputs for one sample."""
        return self.units

    def get_initial_state(self, batch_size: int) -> list[Array]:
        """Return the states before the first step: zeros, each of shape (batch_size, units), in the compute dtype."""
        sizes = self.state_size if isinstance(self.state_size, list) else [self.state_size]
        return [np.zeros((batch_size, size), self._compute) for size in sizes]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create kernel, recurrent kernel and bias; `input_shape` is that of one step."""
        if len(input_shape) != 2 or input_shape[-1] is None:
            raise ValueError(
                f"The inputs of {type(self).__name__} at one step must have shape (batch, features) with known "
                f"features; received {tuple(input_shape)}"
            )
        self.depth, columns = input_shape[-1], self._gates * self.units
        self.kernel = self.add_weight((self.depth, columns), self.kernel_initializer, name="kernel")
        self.recurrent_kernel = self.add_weight(
            (self.units, columns), self.recurrent_initializer, name="recurrent_kernel"
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(self._bias_shape(columns), self._bias_start(), name="bias")

    def _bias_shape(self, columns: int) -> tuple[int, ...]:
        return (columns,)

    def _bias_start(self) -> Any:
        return self.bias_initializer

    def call(self, inputs: Array, states: Any, training: bool | None = False) -> tuple[Array, Any]:
        """Return the outputs of one step and the new states.

        Parameters
        ----------
        inputs : ndarray, shape (batch, features)
        states : ndarray or list of them, shape (batch, units)
        training : bool, optional
            Whether dropout is applied.
        """
        if inputs.ndim != 2:
            raise ValueError(
                f"`inputs` of layer '{self.name}' must have shape (batch, features); received {inputs.shape}"
            )
        draws = self.draws(training)
        is_list = isinstance(states, list | tuple)
        new = self.advanced(self.projected(inputs, draws), list(states) if is_list else [states], draws)
        return new[0], new if is_list else new[0]

    # ---- the two halves of a step

    def over_time(self, sequences: Array, training: Any) -> tuple[Array, Callable[[Array, Any], tuple[Array, Any]]]:
        """Compute ``inputs @ kernel + bias`` for all steps in one product; return it and a function for one step.

        The product has the shape (steps, batch, gates * units); ``step(part, states)`` returns the outputs and the new
        states.
        """
        draws = self.draws(training)

        def step(part: Array, states: Any) -> tuple[Array, Any]:
            new = self.in_scope(self.advanced, part, states, draws)
            return new[0], new

        return self.in_scope(self.projected, self._cast_input(sequences), draws), step

    def in_scope(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return ``function(*args)``; meanwhile variables are read in the dtype of this cell's calls."""
        return called_in(scope_dtype, self._nested_scope, function, args)

    def draws(self, training: Any) -> Draws:
        """Return the random keys of the current sequence; outside of a sequence, new ones."""
        if not training or self.seed_generator is None:
            return Draws()
        kept = sequence_draws.get()
        if kept is None:
            return self._new_draws()
        if id(self) not in kept:
            kept[id(self)] = self._new_draws()
        found: Draws = kept[id(self)]
        return found

    def _new_draws(self) -> Draws:
        assert self.seed_generator is not None
        count = self._gates if self.implementation == 1 else 1
        rates = self.dropout, self.recurrent_dropout
        return Draws(*(tuple(self.seed_generator.next() for _ in range(count if rate else 0)) for rate in rates))

    def projected(self, inputs: Array, draws: Draws) -> Array:
        """Return ``inputs @ kernel + bias`` in float32, for one step or for sequences; steps become the first axis."""
        if inputs.shape[-1] != self.depth:
            raise ValueError(
                f'The inputs of layer "{self.name}" must have shape (batch, {self.depth}) at each step; received shape '
                f"{inputs.shape}"
            )
        x = floating(inputs, self._compute)
        if not draws.inputs:
            return self._product(_steps_first(x), self.kernel, bias=self._input_bias())
        noise_shape = (None, 1, None) if x.ndim == 3 else None
        before = rows_before(x, self.name)
        each = [_steps_first(dropped(x, key, self.dropout, noise_shape, before)) for key in draws.inputs]
        return self._by_gate(each, self.kernel, self._input_bias())

    def advanced(self, part: Array, states: list[Array], draws: Draws) -> list[Array]:
        """Return the new states, the first of which is the output; `part` is a result of :meth:`projected`."""
        raise NotImplementedError

    def _recurrent(self, state: Array, draws: Draws, residual: Array | None = None, bias: Array | None = None) -> Array:
        """Return ``state @ recurrent_kernel``, plus `bias` and `residual` if given, in float32."""
        if not draws.states:
            return self._product(state, self.recurrent_kernel, bias=bias, residual=residual)
        sums = self._by_gate(self._dropped_states(state, draws), self.recurrent_kernel, bias)
        return sums if residual is None else ops.add(residual, sums)

    def _dropped_states(self, state: Array, draws: Draws) -> list[Array]:
        """Return the previous state after dropout: one array for all gates, or one for each."""
        before = rows_before(state, self.name)
        return [dropped(state, key, self.recurrent_dropout, None, before) for key in draws.states]

    def _by_gate(self, rows: list[Array], kernel: AutoCastVariable, bias: Array | None) -> Array:
        """Return the product of rows and a kernel; `rows` has one array for all gates, or one for each."""
        if len(rows) == 1:
            return self._product(rows[0], kernel, bias=bias)
        parts = [self._gate(number) for number in range(self._gates)]
        products = [
            self._product(x, kernel, part, bias=None if bias is None else bias[part])
            for x, part in zip(rows, parts, strict=True)
        ]
        return ops.concatenate(products, -1)

    def _gate(self, first: int, count: int = 1) -> slice:
        """Return the columns of some gates."""
        return slice(first * self.units, (first + count) * self.units)

    def _product(self, rows: Array, kernel: AutoCastVariable, columns: slice = slice(None), **epilogue: Any) -> Array:
        """Return the product with columns of a kernel, in float32; the packed kernel is cached."""
        dtype = kernel.dtype
        matrix = kernel.derived(
            ("packed", dtype, columns.start, columns.stop), lambda stored: packed(stored[:, columns], dtype)
        )
        product: Array = ops.matmul(rows, matrix, out_dtype=dtypes.result_type(self._compute, F32), **epilogue)
        return product

    def _input_bias(self) -> Array | None:
        return None if self.bias is None else self._widened(self.bias)

    @staticmethod
    def _widened(bias: AutoCastVariable) -> Array:
        """Return a bias in float32; float64 stays float64."""
        return bias.derived(("wide", bias.dtype), lambda _: widened(bias.read_value()))

    def _rounded(self, x: Array) -> Array:
        return x if x.dtype == self._compute else ops.cast(x, self._compute)


def _steps_first(x: Array) -> Array:
    return x.transpose(1, 0, 2) if x.ndim == 3 else x


def _named(function: Any) -> Any:
    """Return the name of an activation that kernels know, or another function itself."""
    return activations.FUSED.get(function, function)


class LSTMCell(Cell):
    """One step of long short-term memory: the cell of :class:`LSTM`.

    With s the recurrent activation and a the activation::

        i, f, g, o = split(inputs @ kernel + bias + h @ recurrent_kernel)
        c' = s(f) * c + s(i) * a(g)
        h' = s(o) * a(c')    # the new state, and the output

    Parameters
    ----------
    units : int
        The size of each of the two states, h and c.
    activation, recurrent_activation : str or callable, optional
    {weights}unit_forget_bias : bool
        Whether the bias of f is initialized with ones.
    {dropout}{rest}

    Examples
    --------
    >>> cell = LSTMCell(4)
    >>> outputs, states = cell(np.ones((2, 3), np.float32), cell.get_initial_state(2))
    >>> outputs.shape, [state.shape for state in states]
    ((2, 4), [(2, 4), (2, 4)])
    """

    _gates = 4
    _options = (*Cell._options, "unit_forget_bias")

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        unit_forget_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            units, activation, recurrent_activation, use_bias, kernel_initializer, recurrent_initializer,
            bias_initializer, **kwargs,
        )  # fmt: skip
        self.unit_forget_bias = boolean(unit_forget_bias, "unit_forget_bias")

    @property
    def state_size(self) -> list[int]:
        """The sizes of h and c for one sample."""
        return [self.units, self.units]

    def _bias_start(self) -> Any:
        if not self.unit_forget_bias:
            return self.bias_initializer

        def start(shape: tuple[int, ...], dtype: Any) -> Array:
            own, ones, n = initializers.get(self.bias_initializer), initializers.get("ones"), self.units
            return np.concatenate([own((n,), dtype), ones((n,), dtype), own((2 * n,), dtype)])

        return start

    def advanced(self, part: Array, states: list[Array], draws: Draws) -> list[Array]:
        """Return the new h and c."""
        h, c = states
        z = self._recurrent(h, draws, residual=part)
        gate, function = _named(self.recurrent_activation), _named(self.activation)
        h, c = lstm_step(z, c, (gate, function, function))
        return [self._rounded(h), self._rounded(c)]


class GRUCell(Cell):
    """One step of a gated recurrent unit: the cell of :class:`GRU`.

    With s the recurrent activation and a the activation::

        p_z, p_r, p_n = split(inputs @ kernel + bias)
        q_z, q_r, q_n = split(h @ recurrent_kernel + recurrent_bias)
        z, r = s(p_z + q_z), s(p_r + q_r)
        h' = z * h + (1 - z) * a(p_n + r * q_n)    # the new state, and the output

    Parameters
    ----------
    units : int
        The size of the state.
    activation, recurrent_activation : str or callable, optional
    {weights}{dropout}reset_after : bool
        Whether r multiplies q_n, as above. Otherwise r multiplies h before the product with its part of
        ``recurrent_kernel``, and there is no recurrent bias.
    {rest}

    Examples
    --------
    >>> cell = GRUCell(4)
    >>> outputs, states = cell(np.ones((2, 3), np.float32), cell.get_initial_state(2))
    >>> outputs.shape, cell.bias.shape
    ((2, 4), (2, 12))
    """

    _gates = 3
    _options = (*Cell._options, "reset_after")

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        reset_after: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            units, activation, recurrent_activation, use_bias, kernel_initializer, recurrent_initializer,
            bias_initializer, **kwargs,
        )  # fmt: skip
        self.reset_after = boolean(reset_after, "reset_after")

    def _bias_shape(self, columns: int) -> tuple[int, ...]:
        return (2, columns) if self.reset_after else (columns,)

    def _biases(self) -> tuple[Array | None, Array | None]:
        """Return the bias of the inputs and the bias of the previous state."""
        bias = None if self.bias is None else self._widened(self.bias)
        return (bias, None) if bias is None or not self.reset_after else (bias[0], bias[1])

    def _input_bias(self) -> Array | None:
        return self._biases()[0]

    def advanced(self, part: Array, states: list[Array], draws: Draws) -> list[Array]:
        """Return the new h."""
        (h,) = states
        gates, new, gate = self._gate(0, 2), self._gate(2), self.recurrent_activation
        if self.reset_after:
            inner = self._recurrent(h, draws, bias=self._biases()[1])
            of_gates, reset = inner[:, gates], inner[:, new]
        else:
            z, r, reset = self._dropped_states(h, draws) or [h] * 3
            pair = [self._product(x, self.recurrent_kernel, self._gate(n)) for n, x in enumerate((z, r))]
            of_gates = ops.concatenate(pair, -1)
        sums = ops.add(part[:, gates], of_gates)
        reset = gated(_named(gate), sums[:, self._gate(1)], reset)
        if not self.reset_after:
            reset = self._product(self._rounded(reset), self.recurrent_kernel, new)
        z, n = gate(sums[:, self._gate(0)]), self.activation(ops.add(part[:, new], reset))
        return [self._rounded(ops.add(ops.multiply(z, h), ops.multiply(ops.subtract(1.0, z), n)))]


class SimpleRNNCell(Cell):
    """One step of a simple recurrent layer: ``activation(inputs @ kernel + bias + h @ recurrent_kernel)``.

    Parameters
    ----------
    units : int
        The size of the state h, which is the output.
    activation : str or callable, optional
    {weights}{dropout}{rest}

    Examples
    --------
    >>> cell = SimpleRNNCell(2, kernel_initializer="ones", recurrent_initializer="ones", activation=None)
    >>> cell(np.float32([[1, 2, 3]]), np.float32([[10, 20]]))
    (array([[36., 36.]], dtype=float32), array([[36., 36.]], dtype=float32))
    """

    _gates = 1
    _draws_by_gate = False
    _options = tuple(option for option in Cell._options if option != "recurrent_activation")

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            units, activation, None, use_bias, kernel_initializer, recurrent_initializer, bias_initializer, **kwargs
        )

    def advanced(self, part: Array, states: list[Array], draws: Draws) -> list[Array]:
        """Return the new h."""
        return [self._rounded(self.activation(self._recurrent(states[0], draws, residual=part)))]


for _kind in (LSTMCell, GRUCell, SimpleRNNCell):
    _kind.__doc__ = (_kind.__doc__ or "").format(weights=WEIGHTS, dropout=DROPOUT, rest=_REST)
