"""Where the inputs of a model come in."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Self

import numpy as np

from mp_core import dtype_policies, dtypes
from mp_core.arrays import Array, cast
from mp_core.dtype_policies import DTypePolicy, standardize_dtype
from mp_core.layers.base.ends import origin_of, replaceable_property, set_origin
from mp_core.layers.layer import Layer
from mp_core.layers.symbols import Call, KerasTensor
from mp_core.utilities.arguments import boolean, positive_integer

__all__ = ["Input", "InputLayer", "tensor_of"]


class InputLayer(Layer):
    """The first layer of a :class:`Sequential`, and each input of a :class:`Functional`: the inputs as a dtype.

    Parameters
    ----------
    batch_shape : sequence of (int or None), optional
        The shape of the inputs; None is any length, and the batch may have any.
    sparse, ragged, optional : bool
        Keras'; they must be off.
    dtype : dtype or DTypePolicy, optional
        What inputs of every other dtype are cast to: integers wrap around, fractions are cut off. Of a policy the
        compute dtype is meant. Default: :func:`mp_core.config.floatx`, whatever the default policy is.
    shape : sequence of (int or None), optional
        In the place of `batch_shape`: the shape of one sample. It may be called `input_shape`, as in tf.keras.
    batch_size : int, optional
        Beside `shape`; default: any.
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> InputLayer((None, 2))(np.array([[1, 2]]))
    array([[1., 2.]], dtype=float32)
    """

    _sample_independence = "always"
    _arrays = ("inputs",)
    _keeps_dtype = True
    supports_masking = True
    _options = _told = ("batch_shape",)
    sparse = ragged = optional = False
    """Keras': inputs are dense arrays that are there."""

    def __init__(
        self,
        batch_shape: Sequence[int | None] | None = None,
        sparse: bool = False,
        ragged: bool = False,
        optional: bool = False,
        dtype: Any = None,
        *,
        shape: Sequence[int | None] | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        shape = kwargs.pop("input_shape", shape)  # names of tf.keras, which Keras takes too
        batch_shape = kwargs.pop("batch_input_shape", batch_shape)
        super().__init__(dtype=_plain(dtype), autocast=False, **kwargs)
        switches = {"sparse": sparse, "ragged": ragged, "optional": optional}
        on = [name for name, value in switches.items() if value is not None and boolean(value, name)]
        if on:
            raise ValueError(f"`{on[0]}` must be False: inputs are dense arrays that are there; received True")
        if (shape is None) == (batch_shape is None) or (batch_shape is not None and batch_size is not None):
            raise ValueError(
                "give `shape`, with or without `batch_size`, or `batch_shape` alone; received "
                f"shape={shape!r}, batch_size={batch_size!r}, batch_shape={batch_shape!r}"
            )
        if batch_shape is None:
            if not isinstance(shape, list | tuple):
                raise ValueError(f"`shape` must be a sequence of int or None; received {shape!r}")
            batch_shape = (None if batch_size is None else positive_integer(batch_size, "batch_size"), *shape)
        if not isinstance(batch_shape, list | tuple):
            raise ValueError(f"`batch_shape` must be a sequence of int or None; received {batch_shape!r}")
        self.batch_shape = tuple(None if n is None else positive_integer(n, "batch_shape") for n in batch_shape)

    @replaceable_property
    def input(self) -> Any:
        """The symbolic array that stands for the inputs in a graph."""
        return tensor_of(self)

    output = input

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the layer of a configuration: one of tf.keras, too."""
        return cls(**config)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments; as in Keras, `dtype` is a name."""
        return super().get_config() | {"dtype": self.dtype}

    def call(self, inputs: Array, rows: int | None = None) -> Array:
        """Return the inputs in the dtype of this layer; `rows` is that of :meth:`taken`.

        Raises
        ------
        ValueError
            They have another shape than `batch_shape`.
        """
        inputs = self.taken(inputs, rows)
        if any(n not in (None, length) for n, length in zip(self.batch_shape[1:], inputs.shape[1:], strict=True)):
            raise self._unfit(inputs)
        return inputs

    def taken(self, inputs: Array, rows: int | None = None) -> Array:
        """Return the inputs as a :class:`Sequential` takes them: with the number of axes and the dtype of this layer.

        As in Keras, lengths may be others, and one axis of length 1 may be missing at the end, or be too many there.

        Parameters
        ----------
        inputs : ndarray
        rows : int, optional
            The inputs are read by an :class:`Embedding` with so many rows, and by nothing else. Integers stay as they
            are if the dtype holds all of its indices: the look-up would turn them back, and plans cannot cast integers.

        Raises
        ------
        ValueError
            They have another number of axes.
        """
        if not isinstance(inputs, np.ndarray):
            raise TypeError(f"`inputs` of '{self.name}' must be an array; received {inputs!r:.200}")
        axes = len(self.batch_shape)
        if inputs.ndim != axes:
            if inputs.ndim == axes + 1 and inputs.shape[-1] == 1:
                inputs = inputs.reshape(inputs.shape[:-1])
            elif inputs.ndim == axes - 1 and self.batch_shape[-1] == 1:
                inputs = inputs.reshape(*inputs.shape, 1)
            else:
                raise self._unfit(inputs)
        if inputs.dtype == self._compute:
            return inputs
        if rows is not None and inputs.dtype.kind in "iu" and rows <= _counted(self._compute):
            return inputs
        return inputs.astype(np.bool_) if self._compute == np.bool_ else cast(inputs, self._compute)

    def whole(self, inputs: Any, rows: int | None = None) -> Any:
        """Return the inputs; floats, bytes and bools become int32 if they are read as integers: plans cannot cast them.

        Floats are cut off at the point. `rows` is that of :meth:`taken`.
        """
        reads_integers = self._compute.kind in "iu" or (rows is not None and rows <= _counted(self._compute))
        if not (reads_integers and isinstance(inputs, np.ndarray)):
            return inputs
        is_other = inputs.dtype.itemsize == 1 and (rows is not None or inputs.dtype != self._compute)
        if not (is_other or dtypes.is_float(inputs.dtype)):
            return inputs
        with np.errstate(invalid="ignore"):  # of infinities come numbers that are no indices
            return inputs.astype(np.int32)

    def _unfit(self, inputs: Array) -> ValueError:
        return ValueError(f"Input '{self.name}' must have shape {self.batch_shape}; received {inputs.shape}")


def Input(  # noqa: N802 - Keras' name
    shape: Sequence[int | None] | None = None,
    batch_size: int | None = None,
    dtype: Any = None,
    sparse: bool | None = None,
    ragged: bool | None = None,
    batch_shape: Sequence[int | None] | None = None,
    name: str | None = None,
    tensor: None = None,
    optional: bool = False,
) -> KerasTensor:
    """Return an input of a functional model: call layers with it, and make a model of what they return.

    Parameters
    ----------
    shape : sequence of (int or None), optional
        Of one sample, without the batch; None is any length.
    batch_size : int, optional
        Default: any.
    dtype : dtype, optional
        Inputs are cast to it. Default: :func:`mp_core.config.floatx`.
    batch_shape : sequence of (int or None), optional
        `batch_size` and `shape` together.
    name : str, optional
    sparse, ragged, tensor, optional
        Keras'; they must be off.

    Raises
    ------
    ValueError
        Neither or both of `shape` and `batch_shape` are there, or an argument that must be off is on.

    Examples
    --------
    >>> from mp_core.layers import Dense
    >>> x = Input((3,), name="x")
    >>> Dense(4, name="y")(x)
    <KerasTensor shape=(None, 4), dtype=float32, name=y>
    """
    if tensor is not None:
        raise ValueError("`tensor` must be None: inputs of a model are those of its call")
    switches = {"sparse": bool(sparse), "ragged": bool(ragged), "optional": optional}
    return tensor_of(InputLayer(batch_shape, dtype=dtype, name=name, shape=shape, batch_size=batch_size, **switches))


def tensor_of(layer: InputLayer) -> KerasTensor:
    """Return what an input layer stands for in a graph."""
    if not layer.built:
        layer.build(layer.batch_shape)
    call = origin_of(layer)
    if call is None:
        call = Call(layer)
        call.outputs.append(KerasTensor(layer.batch_shape, dtypes.parse(layer.dtype), call))
        set_origin(layer, call)
    found: KerasTensor = call.outputs[0]
    return found


@cache
def _counted(dtype: Any) -> int:
    """Return how many integers from 0 on a dtype holds without a gap."""
    if dtypes.is_float(dtype):
        return int(2 ** (dtypes.finfo(dtype).nmant + 1))
    return 2 if dtype == np.bool_ else int(np.iinfo(dtype).max)


def _plain(dtype: Any) -> DTypePolicy:
    """Return the policy of one dtype."""
    if isinstance(dtype, dict | DTypePolicy):
        return DTypePolicy(dtype_policies.get(dtype).compute_dtype)
    if isinstance(dtype, str) and dtype.startswith("mixed_"):
        return DTypePolicy(DTypePolicy(dtype).compute_dtype)
    return DTypePolicy(standardize_dtype(dtype))
