"""Recurrent layers: apply a cell to sequences step by step."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from mp_core import ops
from mp_core.arrays import Array, dtypes
from mp_core.core.scopes import called_in
from mp_core.layers.base.building import has_argument
from mp_core.layers.layer import Layer
from mp_core.layers.masks import as_keep, from_masks
from mp_core.layers.parts import with_batch_axis_of
from mp_core.layers.recurrent_cells import Cell, sequence_draws
from mp_core.layers.seeds import StateHolder
from mp_core.layers.shapes import Shape
from mp_core.layers.wrapping import layer_in
from mp_core.policies.autocast import AutoCastVariable
from mp_core.utilities.arguments import boolean
from mp_core.utilities.registry import custom_object_scope
from mp_core.utilities.serialization import serialize_keras_object
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["RNN", "StackedRNNCells"]


class RNN(Layer):
    """Apply a cell to the steps of sequences in order; each step gets the states that the previous step returned.

    Parameters
    ----------
    cell : Layer, or sequence of them
        ``cell(inputs of one step, states)`` returns the outputs, shape (batch, ...), and the new states, in the same
        structure. It has a `state_size`, an int or a list of int, and may have an `output_size` and
        ``get_initial_state(batch_size)``. Several cells are stacked as in :class:`StackedRNNCells`.
    return_sequences : bool
        Whether to return the outputs of all steps instead of the last one.
    return_state : bool
        Whether to return the last states after the outputs.
    go_backwards : bool
        Whether to process the steps from last to first. The outputs are in the order of processing.
    stateful : bool
        Whether a call starts from the last states of the previous call, until :meth:`reset_state`.
    unroll : bool
        Ignored: plans are always unrolled. Keras has this argument.
    zero_output_for_mask : bool
        Whether outputs of masked steps are 0 instead of those of the previous step.
    **kwargs : those of :class:`Layer`

    Examples
    --------
    >>> class Sum(Layer):
    ...     state_size = 2
    ...
    ...     def call(self, inputs, states):
    ...         total = inputs + states[0]
    ...         return total, [total]
    >>> RNN(Sum(), return_sequences=True)(np.float32([[[1, 2], [3, 4], [5, 6]]]))
    array([[[ 1.,  2.],
            [ 4.,  6.],
            [ 9., 12.]]], dtype=float32)
    """

    _arrays = ("sequences",)
    supports_masking = True
    _switches: ClassVar[tuple[str, ...]] = (
        "return_sequences", "return_state", "go_backwards", "stateful", "unroll", "zero_output_for_mask",
    )  # fmt: skip
    _options = _switches
    _repr_arguments = ("cell",)

    def __init__(
        self,
        cell: Any,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        zero_output_for_mask: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cell: Any = StackedRNNCells(cell) if isinstance(cell, list | tuple) else checked_cell(cell, "cell")
        self.return_sequences = boolean(return_sequences, "return_sequences")
        self.return_state = boolean(return_state, "return_state")
        self.go_backwards = boolean(go_backwards, "go_backwards")
        self.stateful = boolean(stateful, "stateful")
        self.unroll = boolean(unroll, "unroll")
        self.zero_output_for_mask = boolean(zero_output_for_mask, "zero_output_for_mask")
        self._state_holder: StateHolder | None = None

    @property
    def _returns_list(self) -> bool:  # type: ignore[override]
        return self.return_state

    @property
    def state_size(self) -> list[Any]:
        """The sizes of the cell's states for one sample; for stacked cells, a list of sizes per cell."""
        size = self.cell.state_size
        return list(size) if isinstance(size, list | tuple) else [size]

    def build(self, sequences_shape: Shape, initial_state_shape: Any = None) -> None:
        """Build the cell for one step, and create the states of a `stateful` layer."""
        self._check_rank(sequences_shape)
        if not self.cell.built:
            self.cell.build((sequences_shape[0], *sequences_shape[2:]))
        if self.stateful and self._state_holder is None:
            batch = sequences_shape[0]
            if batch is None:
                raise ValueError(
                    f"layer '{self.name}' is stateful, so its batch size must be known when it is built; "
                    f"received shape {tuple(sequences_shape)}: use Input(batch_shape=...)"
                )
            self._state_holder = StateHolder(map_leaves(self._variable, self.get_initial_state(batch)))

    def _check_rank(self, shape: Sequence[Any]) -> None:
        if len(shape) < 3:
            raise ValueError(
                f"`sequences` of layer '{self.name}' must have shape (batch, steps, features); received {tuple(shape)}"
            )

    def _variable(self, value: Array) -> AutoCastVariable:
        return AutoCastVariable(value, dtype=self.variable_dtype, trainable=False, autocast=False, name="rnn_state")

    def call(self, sequences: Array, initial_state: Any = None, mask: Any = None, training: bool | None = False) -> Any:
        """Return the outputs, and with `return_state` the states.

        Parameters
        ----------
        sequences : ndarray, shape (batch, steps, ...)
        initial_state : ndarray or list of them, optional
            The states before the first step. Default: those of the previous call if the layer is stateful, else zeros.
        mask : array-like of bool, shape (batch, steps), optional
            Where it is False, the step is skipped and the states do not change.
        training : bool, optional

        Returns
        -------
        outputs : ndarray, shape (batch, ...) or with `return_sequences` (batch, steps, ...)
        *states : ndarray or list of them
            With `return_state`.
        """
        self._check_rank(sequences.shape)
        if not sequences.shape[1]:
            raise ValueError(
                f"`sequences` of layer '{self.name}' must have at least one step; received shape {sequences.shape}"
            )
        states = self._states_before(len(sequences), initial_state)
        states = map_leaves(lambda x: with_batch_axis_of(sequences, x), states)
        keep = None if mask is None else self._checked_mask(mask, sequences)
        drawn = sequence_draws.get()
        arguments = sequences, states, keep, training
        outputs, states = called_in(sequence_draws, {} if drawn is None else drawn, self._run_over, arguments)
        outputs, states = map_leaves(self._in_own_dtype, outputs), map_leaves(self._in_own_dtype, states)
        if self._state_holder is not None:
            self._state_holder.assign(states)
        found = ops.stack(outputs, 1) if self.return_sequences else outputs[-1]
        return (found, *states) if self.return_state else found

    def _in_own_dtype(self, x: Array) -> Array:
        return x if x.dtype == self._compute else ops.cast(x, self._compute)

    def _checked_mask(self, mask: Any, sequences: Array) -> Array:
        """Return the mask as booleans; raise ValueError if its shape is wrong."""
        keep = as_keep(mask)
        if keep.shape != sequences.shape[:2]:
            raise ValueError(
                f"`mask` of layer '{self.name}' must have shape {sequences.shape[:2]}; received {keep.shape}"
            )
        return keep

    def _run_over(
        self, sequences: Array, states: Any, keep: Array | None, training: Any
    ) -> tuple[list[Array], list[Any]]:
        """Return the outputs of all steps in order of processing, or only the last one; and the final states."""
        cell = self.cell
        if isinstance(cell, Cell) and type(cell).call is Cell.call:
            parts, step = cell.over_time(sequences, training)
        else:
            options = {"training": training} if has_argument(type(cell).call, "training") else {}
            parts = np.swapaxes(sequences, 0, 1)

            def step(part: Array, states: Any) -> tuple[Array, Any]:
                outputs, new = cell(part, states, **options)
                return outputs, list(new) if isinstance(new, list | tuple) else [new]

        outputs: list[Array] = []
        for index in self._order(len(parts)):
            output, new = step(parts[index], states)
            if keep is not None:
                output, new = self._masked(keep[:, index], output, new, states)
            outputs, states = [*outputs, output] if self.return_sequences else [output], new
        return outputs, states

    def _order(self, steps: int) -> Iterator[int]:
        return iter(range(steps)[::-1] if self.go_backwards else range(steps))

    def _masked(self, keep: Array, output: Array, new: Any, states: Any) -> tuple[Array, Any]:
        """Return outputs and states of a step; where it is masked, those of the previous step."""
        last = states[0] if not isinstance(states[0], list | tuple) else states[-1][0]  # stacked cells: the last one's
        before = np.zeros((), output.dtype) if self.zero_output_for_mask else last
        old = iter(leaves(states))
        return _select_rows(keep, output, before), map_leaves(lambda x: _select_rows(keep, x, next(old)), new)

    # ---- states

    def get_initial_state(self, batch_size: int) -> list[Any]:
        """Return the states before the first step: the cell's own, else zeros in its compute dtype."""
        return _initial_states(self.cell, batch_size)

    def _states_before(self, batch: int, given: Any) -> list[Any]:
        """Return the states before the first step, in the compute dtype of the cell."""
        kept = batch if self._state_holder is None else next(leaves(self._state_holder.variables)).shape[0]
        if kept != batch:
            raise ValueError(
                f"layer '{self.name}' is stateful, and keeps the states of {kept} samples; received a batch of {batch}"
            )
        if given is None:
            given = self.get_initial_state(batch) if self._state_holder is None else self._state_holder.read()
        states = list(given) if isinstance(given, list | tuple) else [given]
        wanted = map_leaves(lambda size: (batch, size), self.state_size)
        shapes = map_leaves(np.shape, states)
        if list(leaves(shapes)) != list(leaves(wanted)) or len(states) != len(wanted):
            raise ValueError(f"`initial_state` of layer '{self.name}' must have shapes {wanted}; received {shapes}")
        compute = self.cell.compute_dtype
        return [map_leaves(lambda x: x if x.dtype.name == compute else ops.cast(x, compute), x) for x in states]

    @property
    def states(self) -> list[Any] | None:
        """The variables with the states of a stateful layer; None before it is built."""
        found: list[Any] | None = None if self._state_holder is None else self._state_holder.variables
        return found

    def reset_state(self) -> None:
        """Set the states of a stateful layer to zero."""
        holder = self._state_holder
        if holder is not None:
            holder.assign(map_leaves(lambda v: np.zeros(v.shape, v.true_dtype), holder.variables))

    reset_states = reset_state

    # ---- masks, shapes and configurations

    @from_masks
    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the sequences with `return_sequences`, else None; states have no mask."""
        mask = next(leaves(previous_mask), None) if self.return_sequences else None
        return [mask, *(None for _ in self.state_size)] if self.return_state else mask

    def _shape_after(self, shape: Shape) -> Any:
        self._check_rank(shape)
        first, size = self.state_size[0], getattr(self.cell, "output_size", None)
        size = (first[0] if isinstance(first, list | tuple) else first) if size is None else size
        outputs = (shape[0], shape[1], size) if self.return_sequences else (shape[0], size)
        states = map_leaves(lambda n: (shape[0], n), self.state_size)
        return (outputs, *states) if self.return_state else outputs

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"cell": serialize_keras_object(self.cell)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        with custom_object_scope(custom_objects):
            return super().from_config(config | {"cell": layer_in(config, "cell")})


class StackedRNNCells(Layer):
    """Several cells as one: each gets the outputs of the previous cell at the same step.

    Parameters
    ----------
    cells : sequence of Layer
        Cells as in :class:`RNN`.
    **kwargs : those of :class:`Layer`

    Examples
    --------
    >>> from mp_core.layers import GRUCell, LSTMCell
    >>> layer = RNN(StackedRNNCells([LSTMCell(3), GRUCell(2)]))
    >>> layer(np.ones((4, 5, 6), np.float32)).shape, layer.state_size
    ((4, 2), [[3, 3], 2])
    """

    _repr_arguments = ("cells",)

    def __init__(self, cells: Sequence[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(cells, list | tuple) or not cells:
            raise ValueError(f"`cells` must be a sequence of cells; received {cells!r}")
        self.cells = [checked_cell(cell, "cells") for cell in cells]

    @property
    def state_size(self) -> list[Any]:
        """The size, or list of sizes, of each cell's states."""
        return [cell.state_size for cell in self.cells]

    @property
    def output_size(self) -> Any:
        """The size of the last cell's outputs."""
        return _output_size(self.cells[-1])

    def get_initial_state(self, batch_size: int) -> list[Any]:
        """Return the states of each cell before the first step."""
        return [_states_at_start(cell, batch_size) for cell in self.cells]

    def build(self, input_shape: Shape) -> None:
        """Build the cells, each for the outputs of the previous one."""
        for cell in self.cells:
            if not cell.built:
                cell.build(input_shape)
            input_shape = (input_shape[0], _output_size(cell))

    def call(self, inputs: Array, states: Any, training: bool | None = False) -> tuple[Array, list[Any]]:
        """Return the outputs of the last cell, and the states of each.

        Parameters
        ----------
        inputs : ndarray, shape (batch, ...)
        states : list of (ndarray or list of them)
        training : bool, optional
        """
        after = []
        for cell, before in zip(self.cells, states, strict=True):
            options = {"training": training} if has_argument(type(cell).call, "training") else {}
            is_list = isinstance(before, list | tuple)
            inputs, new = cell(inputs, list(before) if is_list else [before], **options)
            new = list(new) if isinstance(new, list | tuple) else [new]
            after.append(new if is_list else new[0])
        return inputs, after

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"cells": [serialize_keras_object(cell) for cell in self.cells]}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        cells = config.get("cells") if isinstance(config, dict) else None
        if not isinstance(cells, list | tuple):
            raise ValueError(f"the config of a StackedRNNCells must have a list of `cells`; received {config!r:.200}")
        with custom_object_scope(custom_objects):
            found = [layer_in({"cells": cell}, "cells") for cell in cells]
            return super().from_config(config | {"cells": found})


def checked_cell(cell: Any, argument: str) -> Any:
    """Return the cell; raise ValueError unless it is a layer with a `state_size`."""
    size = getattr(cell, "state_size", None)
    sizes = list(size) if isinstance(size, list | tuple) else [size]
    if not isinstance(cell, Layer) or not all(isinstance(n, int | np.integer) for n in leaves(sizes)):
        raise ValueError(
            f"`{argument}` must be a Layer with a `state_size`, an int or a list of them; received {cell!r}"
        )
    return cell


def _output_size(cell: Any) -> Any:
    size = getattr(cell, "output_size", None)
    first = cell.state_size[0] if isinstance(cell.state_size, list | tuple) else cell.state_size
    return first if size is None else size


def _states_at_start(cell: Any, batch_size: int) -> Any:
    """Return the state or states of a cell before the first step: its own, else zeros in its compute dtype."""
    if hasattr(cell, "get_initial_state"):
        return cell.get_initial_state(batch_size=batch_size)
    zeros = partial(np.zeros, dtype=dtypes.parse(cell.compute_dtype))
    return map_leaves(lambda size: zeros((batch_size, size)), cell.state_size)


def _initial_states(cell: Any, batch_size: int) -> list[Any]:
    states = _states_at_start(cell, batch_size)
    return list(states) if isinstance(states, list | tuple) else [states]


def _select_rows(keep: Array, x: Array, other: Array) -> Array:
    """Return the rows of `x` where a mask is True, else those of `other`."""
    mask = np.reshape(keep, (-1, *(1 for _ in x.shape[1:])))
    chosen: Array = ops.where(mask, x, other)
    return chosen
