"""The base class of optimizers. A step updates all variables or none."""

import logging
import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import F32, Array, asarray, cast
from mp_core.arrays.finite import are_finite
from mp_core.core import updates
from mp_core.ops.norms import squared
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.autocast.variable import assign_each
from mp_core.training.optimizers import formulas
from mp_core.training.optimizers.protocol import GradientsAndVariables, checked_pairs, paired
from mp_core.training.optimizers.rounding import is_narrow, rounded, split
from mp_core.training.optimizers.scales import check_floating, multiplied
from mp_core.training.optimizers.state import OptimizerState, check_variable

__all__ = ["Optimizer", "Proposal"]

_logger = logging.getLogger(__name__)
_MAX_STEPS = 2**31 - 1  # the largest value of `iterations`, which is int32


class Proposal(NamedTuple):
    """The assignments of a step, not yet executed."""

    variables: list[AutoCastVariable]
    arrays: list[Array]  # the new values of the variables
    finite: bool  # whether all gradients were finite

    def commit(self) -> None:
        """Assign all values."""
        assign_each(self.variables, self.arrays)


class _NewValues:
    """The values of variables during a step: the new value if there is one, otherwise the current value."""

    def __init__(self) -> None:
        self._changed: dict[int, tuple[AutoCastVariable, Array]] = {}
        self.finite = True

    def __getitem__(self, variable: AutoCastVariable) -> Array:
        changed = self._changed.get(id(variable))
        return variable.numpy() if changed is None else changed[1]

    def __setitem__(self, variable: AutoCastVariable, array: Array) -> None:
        self._changed[id(variable)] = variable, array

    def proposal(self) -> Proposal:
        return Proposal([v for v, _ in self._changed.values()], [x for _, x in self._changed.values()], self.finite)


class Optimizer(OptimizerState):
    """The base of the optimizers: Keras' arguments, clipping, decay, averages, accumulation, loss scale.

    A step computes all new values before it assigns them, so that a step that fails changes no variable.

    A subclass overrides :meth:`update_step` as in Keras, or it defines :attr:`slots`, :meth:`rule` and :meth:`numbers`.

    Parameters
    ----------
    learning_rate : float, LearningRateSchedule or callable
        A callable takes no argument and returns the rate of the step.
    weight_decay : float, optional
        Before its update, a variable is multiplied by ``1 - weight_decay * learning_rate``.
    clipnorm, global_clipnorm : float, optional
        Limit of the norm of each gradient, or of all gradients together; gradients above it are scaled down.
    clipvalue : float, optional
        Limit of the magnitude of each element of a gradient. Only one of the three limits may be given.
    use_ema : bool
        Keep an exponential moving average of each variable.
    ema_momentum : float
        The weight of the old average in the new one.
    ema_overwrite_frequency : int, optional
        Assign the averages to the variables after every n steps; None: only in :meth:`finalize_variable_values`.
    loss_scale_factor : float, optional
        A fixed loss scale: :meth:`scale_loss` multiplies by it, and gradients are divided by it.
    gradient_accumulation_steps : int, optional
        Update the variables with the average of this many gradients.
    stochastic_rounding : bool
        Round the new values of variables and slots of 16 bits stochastically, so that small steps count on average.
        Without it, a step that is below half of the last bit of a weight is lost. Variables of other types are
        computed as without it.
    compensated : bool
        Keep for each variable of 16 bits what rounding its value loses, in one more slot of its type. The slot is
        added before the next step (Kahan's summation). With `stochastic_rounding` too, the slot is rounded
        stochastically, and the variable to nearest.
    seed : int
        The seed of `stochastic_rounding`, from 0 to 2**32 - 1. The random numbers depend on it, the step, the variable
        and the element only.
    name : str, optional

    Examples
    --------
    >>> class Sign(Optimizer):
    ...     def update_step(self, gradient, variable, learning_rate):
    ...         self.assign_sub(variable, learning_rate * np.sign(gradient))
    >>> variable = AutoCastVariable([1.0, 2.0])
    >>> optimizer = Sign(learning_rate=0.25)
    >>> steps = optimizer.apply_gradients([(np.float32([3.0, -5.0]), variable)])
    >>> variable.numpy(), int(optimizer.iterations)
    (array([0.75, 2.25], dtype=float32), 1)

    A variable of bfloat16, 1000 steps of 0.001:

    >>> from mp_core.optimizers import SGD
    >>> for options in ({}, {"compensated": True}, {"stochastic_rounding": True}):
    ...     variable, optimizer = AutoCastVariable(np.ones(99), dtype="bfloat16"), SGD(0.001, **options)
    ...     for _ in range(1000):
    ...         optimizer.apply([np.full(99, -1.0, np.float32)], [variable])
    ...     round(float(variable.numpy().astype(np.float32).mean()), 1)
    1.0
    2.0
    2.0
    """

    # ---- steps

    def build(self, trainable_variables: Sequence[AutoCastVariable]) -> None:
        """Create the slots of these variables; the optimizer then updates no others. A second call has no effect."""
        if (self.stochastic_rounding or self.compensated) and type(self).update_step is not Optimizer.update_step:
            raise TypeError(
                f"{type(self).__name__} overrides `update_step`, which assigns rounded values itself: define `rule` "
                "and `numbers` instead, or leave out `stochastic_rounding` and `compensated`"
            )
        super().build(trainable_variables)

    @property
    def loss_scale(self) -> Any:
        """The argument `loss_scale_factor`. A subclass may assign its own value, which does not scale losses."""
        return vars(self).get("loss_scale", self.loss_scale_factor)

    @loss_scale.setter
    def loss_scale(self, value: Any) -> None:
        vars(self)["loss_scale"] = value

    def scale_loss(self, loss: Any) -> Any:
        """Return ``loss * loss_scale_factor``; compute the gradients from it."""
        check_floating(loss, "loss")
        return multiplied(loss, self.loss_scale_factor or 1.0)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[AutoCastVariable] | None = None) -> None:
        """Call :meth:`apply_gradients` with the gradients of these variables, by default the ones of :meth:`build`."""
        self.apply_gradients(paired(grads, trainable_variables, self._built_for))

    def apply_gradients(self, grads_and_vars: GradientsAndVariables) -> AutoCastVariable:
        """Update the variables whose gradients are not None; count the step unless there are no pairs.

        It raises an error before it changes a variable: if all gradients are None, if a shape differs from its
        variable's, or if the optimizer was built for other variables.
        """
        pairs = checked_pairs(grads_and_vars)
        if pairs:
            self.proposed(pairs, self.loss_scale_factor or 1.0).commit()
        return self._iterations

    def proposed(self, pairs: list[tuple[Any, Any]], loss_scale: float) -> Proposal:
        """Return the assignments of a step; the gradients are still multiplied by `loss_scale`.

        A loss scale optimizer commits the proposal if the gradients are finite, and drops it otherwise. So checking for
        infinities needs no extra pass over memory.
        """
        rate = float(self.learning_rate) if self._is_update() else 0.0  # a callable is called once per step
        found = self._fused_step(pairs, loss_scale, rate)
        if found is not None:
            return found
        for _, variable in pairs:
            check_variable(variable, self)
        if not self.built:
            self.build([variable for _, variable in pairs])
        self._check_built_for([variable for _, variable in pairs])
        given = [(_checked_gradient(gradient, v), v) for gradient, v in pairs if gradient is not None]
        if len(given) < len(pairs):
            self._warn_of_missing(pairs)
        values = _NewValues()
        self._overwrite([pair for pair in given if pair[1].overwrite_with_gradient], values)
        trained = [pair for pair in given if not pair[1].overwrite_with_gradient]
        steps = self.gradient_accumulation_steps
        if steps is None:
            self._update(trained, loss_scale, rate, values)
        elif self._is_update():
            self._update([(self._mean(g, v, loss_scale, values), v) for g, v in trained], 1.0, rate, values)
        else:
            for gradient, variable in trained:
                self._accumulate(gradient, variable, loss_scale, values)
        self._average(values)
        values[self._iterations] = self._next_iteration()
        return values.proposal()

    def _fused_step(self, pairs: list[tuple[Any, Any]], loss_scale: float, rate: float) -> Proposal | None:
        """Return the assignments of a step if one call of compiled code can compute all of them; otherwise None."""
        clips = self.clipnorm is not None or self.global_clipnorm is not None
        if not (self.built and self._can_fuse) or clips or self.use_ema or self.gradient_accumulation_steps is not None:
            return None
        if self._updates is None:
            ids = [id(variable) for variable in self._built_for or ()]
            kept, blocks = [self._states[each] for each in ids], [self._blocks[each] for each in ids]
            rests = [self._rests.get(each) for each in ids]
            self._updates = updates.Updates(list(self._built_for or ()), kept, rests, blocks)
        count = self._next_iteration()
        decays = [self._decay_of(v) * rate if id(v) in self._decayed else 0.0 for _, v in pairs]
        numbers = tuple(self.numbers(np.float32(rate), int(count), np.float32))
        limit, key = self.clipvalue or math.inf, self._rounding_key()
        new = self._updates.run(self.rule(), pairs, numbers, loss_scale, limit, decays, key)
        if new is None:
            return None
        return Proposal([*self._updates.changing, self._iterations], [*new[0], count], new[1])

    def _rounding_key(self) -> Array | None:
        """Return the key of the random numbers of this step, or None if values are rounded to nearest."""
        return np.array([self.seed, int(self._iterations) + 1], np.uint32) if self.stochastic_rounding else None

    def _rounded(self, x: Array, variable: AutoCastVariable, beyond: int) -> Array:
        """Return the new average (`beyond` = 0) or accumulator (1) of a variable in its type."""
        identity = id(variable)
        number = 1 + len(self._states[identity]) + beyond
        return rounded(x, variable.true_dtype, self._rounding_key(), self._index[identity], number)

    def _next_iteration(self) -> Array:
        """Return the value of `iterations` after this step."""
        count = int(self._iterations) + 1
        if count > _MAX_STEPS:
            raise OverflowError(f"`iterations` must be below {_MAX_STEPS} before a step; reduce it to continue")
        return np.asarray(np.int32(count))

    def _check_built_for(self, variables: Iterable[AutoCastVariable]) -> None:
        for variable in variables:
            if id(variable) not in self._index:
                raise ValueError(
                    f"Unknown variable: {variable}. This optimizer can only be called for the variables it was "
                    "originally built with. When working with a new set of variables, you should recreate a new "
                    "optimizer instance."
                )

    def _warn_of_missing(self, pairs: list[tuple[Any, Any]]) -> None:
        if not self._has_warned:
            self._has_warned = True  # warn once
            names = ", ".join(f"'{variable.name}'" for gradient, variable in pairs if gradient is None)
            _logger.warning("There are no gradients for these variables; they are not updated: %s", names)

    def _is_update(self) -> bool:
        steps = self.gradient_accumulation_steps
        return steps is None or (int(self._iterations) + 1) % steps == 0

    def _overwrite(self, pairs: list[tuple[Array, AutoCastVariable]], values: _NewValues) -> None:
        """Assign gradients, which have no loss scale, to their variables; with accumulation, their maximum."""
        for gradient, variable in pairs:
            new = cast(gradient, variable.true_dtype)
            values.finite &= are_finite(gradient, "grads_and_vars")
            if self.gradient_accumulation_steps:
                total = self._accumulators[id(variable)]
                new = np.maximum(new, total.numpy())
                values[total] = np.zeros_like(new) if self._is_update() else new
            if self._is_update():
                values[variable] = new

    def _accumulate(self, g: Array, variable: AutoCastVariable, scale: float, values: _NewValues) -> Array:
        total, work = self._accumulators[id(variable)], formulas.work_type(variable.true_dtype)
        values.finite &= are_finite(g, "grads_and_vars")
        with np.errstate(all="ignore"):
            sums: Array = cast(g, work) / work(scale) + cast(total.numpy(), work)
        values[total] = self._rounded(sums, variable, 1)
        return sums

    def _mean(self, g: Array, variable: AutoCastVariable, scale: float, values: _NewValues) -> Array:
        sums = self._accumulate(g, variable, scale, values)
        values[self._accumulators[id(variable)]] = np.zeros(variable.shape, variable.true_dtype)
        mean: Array = sums / sums.dtype.type(self.gradient_accumulation_steps)
        return mean

    def _update(
        self, pairs: list[tuple[Array, AutoCastVariable]], scale: float, rate: float, values: _NewValues
    ) -> None:
        step = int(self.iterations) + 1
        factors = self._clip_factors([gradient for gradient, _ in pairs], scale)
        numbers: dict[Any, Sequence[Any]] = {}
        fused = []
        for (gradient, variable), factor in zip(pairs, factors, strict=True):
            decay = self._decay_of(variable) * rate if id(variable) in self._decayed else 0.0
            how = formulas.Preparation(scale, factor, self.clipvalue or math.inf, decay)
            work = formulas.work_type(variable.true_dtype)
            if work not in numbers:
                numbers[work] = self.numbers(work(rate), step, work)
            if self._can_fuse and variable.size and work is np.float32:
                fused.append((gradient, variable, how))
            else:
                self._update_one(gradient, variable, numbers[work], how, values)
        if fused:
            self._update_fused(fused, numbers[np.float32], values)

    @property
    def _can_fuse(self) -> bool:
        """Whether kernels can update variables: the subclass overrides no method of the update."""
        kind: Any = type(self)
        return _uses_base_update(kind)

    def _update_fused(
        self, items: list[tuple[Array, AutoCastVariable, Any]], numbers: Sequence[Any], values: _NewValues
    ) -> None:
        """Update variables of 32 and 16 bits in one pass over memory, with the bits of :meth:`updated`.

        The results are written into arrays of earlier steps that nothing references any more, if there are any.
        """
        given = []
        for gradient, variable, how in items:
            identity = id(variable)
            narrow = is_narrow(variable.true_dtype) and is_narrow(gradient.dtype)
            g = gradient if narrow or gradient.dtype == F32 else cast(gradient, F32)
            kept, compensation = [state.numpy() for state in self._states[identity]], self._rests.get(identity)
            rest = None if compensation is None else compensation.numpy()
            given.append((variable.numpy(), g, kept, rest, how, self._blocks[identity], self._index[identity]))
        found, finite = updates.update_each(self.rule(), given, tuple(numbers), self._rounding_key())
        values.finite &= finite
        for (_, variable, _), arrays in zip(items, found, strict=True):
            states = self._states[id(variable)]
            for state, array in zip(states, arrays, strict=False):
                values[state] = array
            self._set_value(variable, arrays[-1], None if len(arrays) == len(states) + 1 else arrays[-2], values)

    def _set_value(self, variable: AutoCastVariable, new: Array, rest: Array | None, values: _NewValues) -> None:
        """Set the new value of a variable, after its constraint; nothing is lost by rounding what that has changed."""
        constrained = values[variable] = _apply_constraint(variable, new)
        if rest is not None:
            kept = rest if constrained is new else np.where(constrained == new, rest, np.zeros_like(rest))
            values[self._rests[id(variable)]] = kept

    def _update_one(
        self, gradient: Array, variable: AutoCastVariable, numbers: Sequence[Any], how: Any, values: _NewValues
    ) -> None:
        if type(self).update_step is not Optimizer.update_step:
            new, finite = self._run_update_step(gradient, variable, how, values)
            values[variable] = _apply_constraint(variable, new)
            values.finite &= finite
            return
        dtype, key, place = variable.true_dtype, self._rounding_key(), self._index[id(variable)]
        states, rest = self._states[id(variable)], self._rests.get(id(variable))
        work = formulas.work_type(dtype)
        w, kept = cast(variable.numpy(), work), [cast(state.numpy(), work) for state in states]
        new, arrays, finite = self.updated(
            w if rest is None else w + cast(rest.numpy(), work), gradient, kept, numbers, how
        )
        for number, (state, array) in enumerate(zip(states, arrays, strict=True), 1):
            values[state] = rounded(array, state.true_dtype, key, place, number)
        if rest is None:
            self._set_value(variable, rounded(new, dtype, key, place, 0), None, values)
        else:
            self._set_value(variable, *split(new, dtype, key, place), values)
        values.finite &= finite

    def updated(
        self, w: Array, g: Array, slots: Sequence[Array], numbers: Sequence[Any], how: formulas.Preparation
    ) -> tuple[Array, list[Array], bool]:
        """Return the new value of a variable, the new values of its slots, and whether its gradient was finite.

        Variables and slots of 16 bits are given in float32; the caller rounds the results.
        """
        return formulas.updated(self.rule(), w, g, slots, numbers, how)

    def rule(self) -> str:
        """Return the name of the formula: one of :data:`mp_core.training.optimizers.formulas.RULES`."""
        raise NotImplementedError(f"{type(self).__name__} must define `rule` and `numbers`, or `update_step`")

    def numbers(self, rate: Any, step: int, kind: Any) -> Sequence[Any]:
        """Return the numbers of the formula as type `kind`, float32 or float64; the first `step` is 1."""
        return ()

    def update_step(self, gradient: Array, variable: AutoCastVariable, learning_rate: Any) -> None:
        """Update a variable and its slots with :meth:`assign`, :meth:`assign_add` etc.; subclasses override it."""
        raise NotImplementedError

    def _run_update_step(
        self, gradient: Array, variable: AutoCastVariable, how: formulas.Preparation, values: _NewValues
    ) -> tuple[Array, bool]:
        """Run `update_step`, collect the values that it assigns, and undo the assignments."""
        changing = [variable, *self._own_variables]
        before, stamps = [each.numpy() for each in changing], [each.stamp for each in changing]
        finite = are_finite(gradient, "grads_and_vars")
        with np.errstate(all="ignore"):
            w, g = formulas.prepared(variable.numpy(), gradient, how)
        try:
            variable.assign(cast(w, variable.true_dtype))
            self.update_step(cast(g, variable.true_dtype), variable, self.learning_rate)
            changed = [each for each, stamp in zip(changing, stamps, strict=True) if each.stamp is not stamp]
            after = [each.numpy() for each in changed]
        finally:
            assign_each(changing, before)
        for each, new in zip(changed, after, strict=True):
            values[each] = new
        return values[variable], finite

    def _clip_factors(self, gradients: list[Array], scale: float) -> list[float]:
        """Return the factor of each gradient that limits its norm."""
        if self.clipnorm is not None:
            return [_clip_factor(self.clipnorm, math.sqrt(_sum_of_squares(g, scale))) for g in gradients]
        if self.global_clipnorm is not None:
            norm = math.sqrt(math.fsum(_sum_of_squares(g, scale) for g in gradients))
            return [_clip_factor(self.global_clipnorm, norm)] * len(gradients)
        return [1.0] * len(gradients)

    def _average(self, values: _NewValues) -> None:
        """Update the averages; every `ema_overwrite_frequency` steps, assign them to the variables."""
        if not self.use_ema:
            return
        every = self.ema_overwrite_frequency
        overwrites = every is not None and (int(self.iterations) + 1) % every == 0
        momentum = self.ema_momentum if int(self.iterations) else 0.0
        for variable in self._built_for or ():
            average = self._averages.get(id(variable))
            if average is None:
                continue
            work = formulas.work_type(variable.true_dtype)
            mixed = work(momentum) * cast(average.numpy(), work) + work(1 - momentum) * cast(values[variable], work)
            values[average] = self._rounded(mixed, variable, 0)
            if overwrites:
                values[variable] = values[average]
                if id(variable) in self._rests:
                    values[self._rests[id(variable)]] = np.zeros(variable.shape, variable.true_dtype)

    def finalize_variable_values(self, var_list: Sequence[AutoCastVariable]) -> None:
        """Assign the averages to the variables at the end of training; without `use_ema` do nothing."""
        if self.use_ema and self.built:
            if self.averages_swapped:
                self.swap_averages()
            self._check_built_for(var_list)
            kept = [variable for variable in var_list if id(variable) in self._averages]
            rests = [self._rests[id(variable)] for variable in kept if id(variable) in self._rests]
            averages = [self._averages[id(variable)].numpy() for variable in kept]
            assign_each([*kept, *rests], [*averages, *(np.zeros(x.shape, x.true_dtype) for x in rests)])

    def swap_averages(self) -> None:
        """Exchange the values of the variables with their averages (`use_ema`); a second call exchanges them back.

        In between, the attribute `averages_swapped` is True. Before :meth:`build` the call does nothing.

        >>> from mp_core.optimizers import SGD
        >>> variable, optimizer = AutoCastVariable([1.0]), SGD(0.5, use_ema=True, ema_momentum=0.5)
        >>> for _ in range(2):
        ...     optimizer.apply([np.ones(1, np.float32)], [variable])
        >>> optimizer.swap_averages()
        >>> variable.numpy()  # 0.5 * 0.5 + 0.5 * 0.0
        array([0.25], dtype=float32)
        """
        if not self.use_ema:
            raise ValueError(f"`use_ema` of optimizer '{self.name}' must be True: it keeps no averages to swap")
        if self.built:
            kept = [variable for variable in self._built_for or () if id(variable) in self._averages]
            averages = [self._averages[id(variable)] for variable in kept]
            assign_each([*kept, *averages], [np.array(each.numpy()) for each in (*averages, *kept)])
            self.averages_swapped = not self.averages_swapped


@cache
def _uses_base_update(kind: Any) -> bool:
    """Whether a class overrides none of the methods that update a variable."""
    names = ("update_step", "updated", "_update")
    return all(getattr(kind, name) is getattr(Optimizer, name) for name in names)


def _checked_gradient(gradient: Any, variable: AutoCastVariable) -> Array:
    """Return a gradient as an array with the shape of its variable; a scalar is broadcast."""
    array = asarray(gradient, "grads_and_vars")
    if array.shape == variable.shape:
        return array
    if array.ndim or variable.overwrite_with_gradient:
        raise ValueError(
            f"The gradient of variable '{variable.name}' must have its shape {variable.shape}; received {array.shape}"
        )
    return np.broadcast_to(array, variable.shape)


def _apply_constraint(variable: AutoCastVariable, new: Array) -> Array:
    """Apply the constraint of a variable to its new value."""
    return new if variable.constraint is None else cast(variable.constraint(new), variable.true_dtype)


def _sum_of_squares(g: Array, scale: float) -> float:
    """Return the sum of the squares of a gradient that is divided by the loss scale."""
    work = formulas.work_type(g.dtype)
    with np.errstate(all="ignore"):
        _, squares, by = squared(cast(g, work) / work(scale), None)
        return float(squares.reshape(())) / (1.0 if by is None else float(by.reshape(())) ** 2)


def _clip_factor(largest: float, norm: float) -> float:
    """Return the factor that limits a norm to `largest`; NaN if the norm is infinite or NaN."""
    return largest / max(norm, largest) if math.isfinite(norm) else math.nan
