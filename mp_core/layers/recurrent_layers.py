"""Recurrent layers that create their cell: LSTM, GRU and SimpleRNN."""

from typing import Any, ClassVar, Self

from mp_core.layers.base.penalties import serialized
from mp_core.layers.base.state import penalties_of
from mp_core.layers.recurrent import RNN
from mp_core.layers.recurrent_cells import DROPOUT, WEIGHTS, Cell, GRUCell, LSTMCell, SimpleRNNCell
from mp_core.layers.seeds import Seed
from mp_core.utilities.names import snake_case
from mp_core.utilities.registry import custom_object_scope

__all__ = ["GRU", "LSTM", "SimpleRNN"]

_SWITCHES = """return_sequences, return_state, go_backwards, stateful, unroll, zero_output_for_mask : bool
        As in :class:`RNN`.
    **kwargs
        ``kernel_regularizer``, ``recurrent_regularizer``, ``bias_regularizer``, the corresponding constraints, and
        arguments of :class:`Layer`. For ``implementation`` see the cell; ``use_cudnn`` is ignored.
    """
_PENALTY_PREFIXES = ("kernel", "recurrent", "bias")
"""Prefixes of the arguments for regularizers and constraints."""
_CELL_KWARGS = ("implementation",)


class _CellAttribute:
    """An attribute of a layer that forwards to its cell."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, layer: "_CellLayer | None", owner: Any = None) -> Any:
        return self if layer is None else getattr(layer.cell, self._name)

    def __set__(self, layer: "_CellLayer", value: Any) -> None:
        setattr(layer.cell, self._name, value)


class _CellLayer(RNN):
    """The base of recurrent layers that create their cell from their own arguments."""

    _cell_class: ClassVar[type[Cell]]
    _repr_arguments = ("units",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_cell_class" in vars(cls):
            cls._options = (*cls._cell_class._options, *RNN._switches)
            cls.__doc__ = (cls.__doc__ or "").format(weights=WEIGHTS, dropout=DROPOUT, switches=_SWITCHES)
            for name in cls._cell_class._options:
                setattr(cls, name, attribute := _CellAttribute())
                attribute.__set_name__(cls, name)

    def __init__(self, cell_arguments: dict[str, Any], use_cudnn: bool | str = "auto", **kwargs: Any) -> None:
        if use_cudnn not in ("auto", True, False):
            raise ValueError(f"`use_cudnn` must be 'auto', True or False; received {use_cudnn!r}")
        kind = self._cell_class
        more = [name for name in kwargs if name in _CELL_KWARGS or name.partition("_")[0] in _PENALTY_PREFIXES]
        cell_arguments |= {name: kwargs.pop(name) for name in more}
        common = {name: kwargs[name] for name in ("dtype", "trainable") if name in kwargs}
        super().__init__(kind(**cell_arguments, **common, name=snake_case(kind.__name__)), **kwargs)

    def get_config(self) -> dict[str, Any]:
        return super(RNN, self).get_config() | serialized(penalties_of(self.cell))

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        with custom_object_scope(custom_objects):
            return super(RNN, cls).from_config(config)


class LSTM(_CellLayer):
    """Long short-term memory over sequences; :class:`LSTMCell` has the formulas.

    Parameters
    ----------
    units : int
        The size of the outputs, and of each of the two states.
    activation, recurrent_activation : str or callable, optional
    {weights}unit_forget_bias : bool
        Whether the bias of the forget gate is initialized with ones.
    {dropout}{switches}

    Examples
    --------
    >>> import numpy as np
    >>> layer = LSTM(4, return_sequences=True, return_state=True)
    >>> outputs, h, c = layer(np.ones((2, 5, 3), np.float32))
    >>> outputs.shape, h.shape, c.shape, [w.shape for w in layer.get_weights()]
    ((2, 5, 4), (2, 4), (2, 4), [(3, 16), (4, 16), (16,)])
    """

    _cell_class = LSTMCell

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
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: Seed = None,
        **kwargs: Any,
    ) -> None:
        cell_arguments = {
            "units": units, "activation": activation, "recurrent_activation": recurrent_activation,
            "use_bias": use_bias, "kernel_initializer": kernel_initializer,
            "recurrent_initializer": recurrent_initializer, "bias_initializer": bias_initializer,
            "unit_forget_bias": unit_forget_bias, "dropout": dropout, "recurrent_dropout": recurrent_dropout,
            "seed": seed,
        }  # fmt: skip
        super().__init__(cell_arguments, **kwargs)


class GRU(_CellLayer):
    """Gated recurrent units over sequences; :class:`GRUCell` has the formulas.

    Parameters
    ----------
    units : int
        The size of the outputs and of the state.
    activation, recurrent_activation : str or callable, optional
    {weights}{dropout}reset_after : bool
        Whether the reset gate multiplies the product of the state with its kernel; otherwise it multiplies the state.
    {switches}

    Examples
    --------
    >>> import numpy as np
    >>> layer = GRU(4, go_backwards=True)
    >>> layer(np.ones((2, 5, 3), np.float32)).shape, layer.cell.bias.shape
    ((2, 4), (2, 12))
    """

    _cell_class = GRUCell

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
        reset_after: bool = True,
        **kwargs: Any,
    ) -> None:
        cell_arguments = {
            "units": units, "activation": activation, "recurrent_activation": recurrent_activation,
            "use_bias": use_bias, "kernel_initializer": kernel_initializer,
            "recurrent_initializer": recurrent_initializer, "bias_initializer": bias_initializer,
            "dropout": dropout, "recurrent_dropout": recurrent_dropout, "seed": seed, "reset_after": reset_after,
        }  # fmt: skip
        super().__init__(cell_arguments, **kwargs)


class SimpleRNN(_CellLayer):
    """``h' = activation(inputs @ kernel + bias + h @ recurrent_kernel)`` for each step of sequences.

    Parameters
    ----------
    units : int
        The size of the outputs and of the state.
    activation : str or callable, optional
    {weights}{dropout}{switches}

    Examples
    --------
    >>> import numpy as np
    >>> ones = {{"kernel_initializer": "ones", "recurrent_initializer": "ones"}}
    >>> SimpleRNN(1, activation=None, return_sequences=True, **ones)(np.ones((1, 3, 2), np.float32))
    array([[[2.],
            [4.],
            [6.]]], dtype=float32)
    """

    _cell_class = SimpleRNNCell

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: Seed = None,
        **kwargs: Any,
    ) -> None:
        cell_arguments = {
            "units": units, "activation": activation, "use_bias": use_bias, "kernel_initializer": kernel_initializer,
            "recurrent_initializer": recurrent_initializer, "bias_initializer": bias_initializer, "dropout": dropout,
            "recurrent_dropout": recurrent_dropout, "seed": seed,
        }  # fmt: skip
        super().__init__(cell_arguments, **kwargs)
