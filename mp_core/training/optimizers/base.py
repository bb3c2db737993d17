"""The step of an optimizer, which happens as a whole or not."""

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
from mp_core.training.optimizers.scales import check_floating, multiplied
from mp_core.training.optimizers.state import State, check_variable

__all__ = ["Optimizer", "Proposal"]

_logger = logging.getLogger(__name__)
_MOST = 2**31 - 1  # steps


class Proposal(NamedTuple):
    """What a step would assign, and whether all gradients were finite.

    Attributes
    ----------
    variables : list of AutoCastVariable
    arrays : list of ndarray
        Their new values.
    finite : bool
    """

    variables: list[AutoCastVariable]
    arrays: list[Array]
    finite: bool

    def commit(self) -> None:
        """Assign all of it."""
        assign_each(self.variables, self.arrays)


class _Values:
    """The values of variables during a step: new ones where they have changed."""

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


class Optimizer(State):
    """The base of the optimizers: Keras' arguments, clipping, decay, averages, accumulation, loss scale.

    A step computes all new values first and assigns them in the end, so that a step that fails changes no variable.

    A subclass either names the :attr:`slots` that it keeps for a variable and returns :meth:`rule` and :meth:`numbers`,
    or it overrides :meth:`update_step` as in Keras.

    Parameters
    ----------
    learning_rate : float, LearningRateSchedule or callable
        A callable takes no argument and returns the rate of the step.
    weight_decay : float, optional
        Before its update a variable loses ``weight_decay * learning_rate`` of itself.
    clipnorm, global_clipnorm : float, optional
        The largest norm of a gradient, or of all gradients together; larger ones are scaled down.
    clipvalue : float, optional
        The largest magnitude of an element of a gradient. Only one of the three may be given.
    use_ema : bool
        Keep an exponential moving average of each variable.
    ema_momentum : float
        The share of the old average in the new one.
    ema_overwrite_frequency : int, optional
        After how many steps the variables are set to their averages; None: only by :meth:`finalize_variable_values`.
    loss_scale_factor : float, optional
        A fixed loss scale: :meth:`scale_loss` multiplies by it, and gradients are divided by it.
    gradient_accumulation_steps : int, optional
        So many gradients are averaged before the variables are updated.
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
    """

    # ---- steps

    @property
    def loss_scale(self) -> float | None:
        """The fixed loss scale that was given as `loss_scale_factor`; None: there is none."""
        return self.loss_scale_factor

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss from which to compute the gradients."""
        check_floating(loss, "loss")
        return multiplied(loss, self.loss_scale or 1.0)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[AutoCastVariable] | None = None) -> None:
        """Call :meth:`apply_gradients` with the gradients of these variables, or of those of :meth:`build`."""
        self.apply_gradients(paired(grads, trainable_variables, self._built))

    def apply_gradients(self, grads_and_vars: GradientsAndVariables) -> AutoCastVariable:
        """Update the variables by their gradients, where these are not None; count the step unless there are no pairs.

        Raises
        ------
        TypeError
            These are no pairs of gradient and variable.
        ValueError
            Every gradient is None, one has another shape than its variable, or the optimizer was built for other
            variables. In no case a variable has changed.
        """
        pairs = checked_pairs(grads_and_vars)
        if pairs:
            self.proposed(pairs, self.loss_scale_factor or 1.0).commit()
        return self._iterations

    def proposed(self, pairs: list[tuple[Any, Any]], loss_scale: float) -> Proposal:
        """Return what a step with these gradients, which contain a loss scale, would assign.

        A loss scale optimizer commits it if the gradients are finite, and forgets it otherwise: so the search for
        infinities costs no pass of its own.
        """
        rate = float(self.learning_rate) if self._is_update() else 0.0  # a callable is asked once in each step
        found = self._updated_together(pairs, loss_scale, rate)
        if found is not None:
            return found
        for _, variable in pairs:
            check_variable(variable, self)
        if not self.built:
            self.build([variable for _, variable in pairs])
        self._check_known([variable for _, variable in pairs])
        given = [(_checked_gradient(gradient, v), v) for gradient, v in pairs if gradient is not None]
        if len(given) < len(pairs):
            self._warn_of_missing(pairs)
        values = _Values()
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
        values[self._iterations] = self._next()
        return values.proposal()

    def _updated_together(self, pairs: list[tuple[Any, Any]], loss_scale: float, rate: float) -> Proposal | None:
        """Return what a step would assign, if one call of compiled code computes all of it; otherwise None."""
        clips = self.clipnorm is not None or self.global_clipnorm is not None
        if not (self.built and self._fuses) or clips or self.use_ema or self.gradient_accumulation_steps is not None:
            return None
        if self._updates is None:
            ids = [id(variable) for variable in self._built or ()]
            kept, blocks = [self._states[each] for each in ids], [self._blocks[each] for each in ids]
            self._updates = updates.Updates(list(self._built or ()), kept, blocks)
        count = self._next()
        decays = [self._decay_of(v) * rate if id(v) in self._decayed else 0.0 for _, v in pairs]
        numbers = tuple(self.numbers(np.float32(rate), int(count), np.float32))
        new = self._updates.run(self.rule(), pairs, numbers, loss_scale, self.clipvalue or math.inf, decays)
        if new is None:
            return None
        return Proposal([*self._updates.changing, self._iterations], [*new[0], count], new[1])

    def _next(self) -> Array:
        """Return what `iterations` becomes by a step."""
        count = int(self._iterations) + 1
        if count > _MOST:
            raise OverflowError(f"`iterations` must be below {_MOST} before a step; set it to fewer to go on")
        return np.asarray(np.int32(count))

    def _check_known(self, variables: Iterable[AutoCastVariable]) -> None:
        for variable in variables:
            if id(variable) not in self._index:
                raise ValueError(
                    f"Unknown variable: {variable}. This optimizer can only be called for the variables it was "
                    "originally built with. When working with a new set of variables, you should recreate a new "
                    "optimizer instance."
                )

    def _warn_of_missing(self, pairs: list[tuple[Any, Any]]) -> None:
        if not self._warned:
            self._warned = True  # once is enough
            names = ", ".join(f"'{variable.name}'" for gradient, variable in pairs if gradient is None)
            _logger.warning("There are no gradients for these variables, which stay as they are: %s", names)

    def _is_update(self) -> bool:
        steps = self.gradient_accumulation_steps
        return steps is None or (int(self._iterations) + 1) % steps == 0

    def _overwrite(self, pairs: list[tuple[Array, AutoCastVariable]], values: _Values) -> None:
        """Let variables become their gradients, which have no loss scale in them; of several, the largest ones."""
        for gradient, variable in pairs:
            new = cast(gradient, variable.true_dtype)
            values.finite &= are_finite(gradient, "grads_and_vars")
            if self.gradient_accumulation_steps:
                total = self._accumulators[id(variable)]
                new = np.maximum(new, total.numpy())
                values[total] = np.zeros_like(new) if self._is_update() else new
            if self._is_update():
                values[variable] = new

    def _accumulate(self, g: Array, variable: AutoCastVariable, scale: float, values: _Values) -> Array:
        total, work = self._accumulators[id(variable)], formulas.work_type(variable.true_dtype)
        values.finite &= are_finite(g, "grads_and_vars")
        with np.errstate(all="ignore"):
            sums: Array = cast(g, work) / work(scale) + cast(total.numpy(), work)
        values[total] = cast(sums, variable.true_dtype)
        return sums

    def _mean(self, g: Array, variable: AutoCastVariable, scale: float, values: _Values) -> Array:
        sums = self._accumulate(g, variable, scale, values)
        values[self._accumulators[id(variable)]] = np.zeros(variable.shape, variable.true_dtype)
        mean: Array = sums / sums.dtype.type(self.gradient_accumulation_steps)
        return mean

    def _update(self, pairs: list[tuple[Array, AutoCastVariable]], scale: float, rate: float, values: _Values) -> None:
        step = int(self.iterations) + 1
        factors = self._factors([gradient for gradient, _ in pairs], scale)
        numbers: dict[Any, Sequence[Any]] = {}
        fused = []
        for (gradient, variable), factor in zip(pairs, factors, strict=True):
            decay = self._decay_of(variable) * rate if id(variable) in self._decayed else 0.0
            how = formulas.Preparation(scale, factor, self.clipvalue or math.inf, decay)
            work = formulas.work_type(variable.true_dtype)
            if work not in numbers:
                numbers[work] = self.numbers(work(rate), step, work)
            if self._fuses and variable.size and variable.true_dtype == F32:
                fused.append((gradient, variable, how))
            else:
                self._update_one(gradient, variable, numbers[work], how, values)
        if fused:
            self._update_fused(fused, numbers[np.float32], values)

    @property
    def _fuses(self) -> bool:
        """Whether kernels update float32 variables: a subclass has no update of its own."""
        kind: Any = type(self)
        return _has_no_update(kind)

    def _update_fused(
        self, items: list[tuple[Array, AutoCastVariable, Any]], numbers: Sequence[Any], values: _Values
    ) -> None:
        """Compute what :meth:`updated` returns, bit for bit, of float32 variables: in one pass over their memory.

        What is written is memory of the steps before that nobody reads any more, where there is such.
        """
        given = []
        for gradient, variable, how in items:
            g = gradient if gradient.dtype == F32 else cast(gradient, F32)
            kept = [state.numpy() for state in self._states[id(variable)]]
            given.append((variable.numpy(), g, kept, how, self._blocks[id(variable)]))
        found, finite = updates.update_each(self.rule(), given, tuple(numbers))
        values.finite &= finite
        for (_, variable, _), (new, arrays) in zip(items, found, strict=True):
            self._keep(variable, arrays, values)
            values[variable] = _constrained(variable, new)

    def _keep(self, variable: AutoCastVariable, arrays: Sequence[Array], values: _Values) -> None:
        """Note what is kept of a variable."""
        for state, array in zip(self._states[id(variable)], arrays, strict=True):
            values[state] = array

    def _update_one(
        self, gradient: Array, variable: AutoCastVariable, numbers: Sequence[Any], how: Any, values: _Values
    ) -> None:
        if type(self).update_step is not Optimizer.update_step:
            new, finite = self._by_update_step(gradient, variable, how, values)
        else:
            kept = [state.numpy() for state in self._states[id(variable)]]
            new, arrays, finite = self.updated(variable.numpy(), gradient, kept, numbers, how)
            self._keep(variable, arrays, values)
        values[variable] = _constrained(variable, new)
        values.finite &= finite

    def updated(
        self, w: Array, g: Array, slots: Sequence[Array], numbers: Sequence[Any], how: formulas.Preparation
    ) -> tuple[Array, list[Array], bool]:
        """Return the new value of a variable, those of its slots, and whether its gradient was finite."""
        return formulas.updated(self.rule(), w, g, slots, numbers, how)

    def rule(self) -> str:
        """Return the name of the formula: one of :data:`mp_core.training.optimizers.formulas.RULES`."""
        raise NotImplementedError(f"{type(self).__name__} must define `rule` and `numbers`, or `update_step`")

    def numbers(self, rate: Any, step: int, kind: Any) -> Sequence[Any]:
        """Return the numbers of the formula in step 1, 2 and so on, of type `kind`: float32 or float64."""
        return ()

    def update_step(self, gradient: Array, variable: AutoCastVariable, learning_rate: Any) -> None:
        """Update a variable and what is kept of it by :meth:`assign` and its siblings: for subclasses, as in Keras."""
        raise NotImplementedError

    def _by_update_step(
        self, gradient: Array, variable: AutoCastVariable, how: formulas.Preparation, values: _Values
    ) -> tuple[Array, bool]:
        """Return the new value that `update_step` gives, whose assignments are undone."""
        changing = [variable, *self._own]
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

    def _factors(self, gradients: list[Array], scale: float) -> list[float]:
        """Return the factor of each gradient that clips norms."""
        if self.clipnorm is not None:
            return [_factor(self.clipnorm, math.sqrt(_squares(g, scale))) for g in gradients]
        if self.global_clipnorm is not None:
            norm = math.sqrt(math.fsum(_squares(g, scale) for g in gradients))
            return [_factor(self.global_clipnorm, norm)] * len(gradients)
        return [1.0] * len(gradients)

    def _average(self, values: _Values) -> None:
        """Move the averages, and set the variables to them every `ema_overwrite_frequency` steps."""
        if not self.use_ema:
            return
        every = self.ema_overwrite_frequency
        overwrites = every is not None and (int(self.iterations) + 1) % every == 0
        momentum = self.ema_momentum if int(self.iterations) else 0.0
        for variable in self._built or ():
            average = self._averages.get(id(variable))
            if average is None:
                continue
            work = formulas.work_type(variable.true_dtype)
            mixed = work(momentum) * cast(average.numpy(), work) + work(1 - momentum) * cast(values[variable], work)
            values[average] = cast(mixed, variable.true_dtype)
            if overwrites:
                values[variable] = values[average]

    def finalize_variable_values(self, var_list: Sequence[AutoCastVariable]) -> None:
        """Set the variables to their averages at the end of training, if these are kept."""
        if self.use_ema and self.built:
            if self.averages_swapped:
                self.swap_averages()
            self._check_known(var_list)
            kept = [variable for variable in var_list if id(variable) in self._averages]
            assign_each(kept, [self._averages[id(variable)].numpy() for variable in kept])

    def swap_averages(self) -> None:
        """Exchange the values of the variables and their averages, all at once; a second call exchanges them back.

        Until then the attribute `averages_swapped` is True. Before :meth:`build` it does nothing.

        Raises
        ------
        ValueError
            No averages are kept: `use_ema` is False.

        Examples
        --------
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
            kept = [variable for variable in self._built or () if id(variable) in self._averages]
            averages = [self._averages[id(variable)] for variable in kept]
            assign_each([*kept, *averages], [np.array(each.numpy()) for each in (*averages, *kept)])
            self.averages_swapped = not self.averages_swapped


@cache
def _has_no_update(kind: Any) -> bool:
    names = ("update_step", "updated", "_update")
    return all(getattr(kind, name) is getattr(Optimizer, name) for name in names)


def _checked_gradient(gradient: Any, variable: AutoCastVariable) -> Array:
    """Return a gradient as an array of the shape of its variable; a number counts for all elements."""
    array = asarray(gradient, "grads_and_vars")
    if array.shape == variable.shape:
        return array
    if array.ndim or variable.overwrite_with_gradient:
        raise ValueError(
            f"The gradient of variable '{variable.name}' must have its shape {variable.shape}; received {array.shape}"
        )
    return np.broadcast_to(array, variable.shape)


def _constrained(variable: AutoCastVariable, new: Array) -> Array:
    """Return the new value of a variable after its constraint."""
    return new if variable.constraint is None else cast(variable.constraint(new), variable.true_dtype)


def _squares(g: Array, scale: float) -> float:
    """Return the sum of the squares of a gradient without its loss scale."""
    work = formulas.work_type(g.dtype)
    with np.errstate(all="ignore"):
        _, squares, by = squared(cast(g, work) / work(scale), None)
        return float(squares.reshape(())) / (1.0 if by is None else float(by.reshape(())) ** 2)


def _factor(largest: float, norm: float) -> float:
    """Return by what a gradient of this norm is multiplied; NaN if the norm is infinite or NaN."""
    return largest / max(norm, largest) if math.isfinite(norm) else math.nan
