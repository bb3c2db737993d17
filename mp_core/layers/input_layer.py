"""Input layers: the inputs of a model."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Self

import numpy as np

from mp_core.arrays import Array, cast, dtypes
from mp_core.layers.base.ends import origin_of, replaceable_property, set_origin
from mp_core.layers.layer import Layer
from mp_core.layers.symbols import Call, KerasTensor
from mp_core.policies import dtype_policies
from mp_core.policies.dtype_policies import DTypePolicy, standardize_dtype
from mp_core.utilities.arguments import boolean, positive_integer
from mp_core.utilities.docstrings import shown

__all__ = ["Input", "InputLayer", "tensor_of"]


@shown("{}((None, 2))(np.array([[1, 2]]))", "array([[1., 2.]], dtype=float32)")
class InputLayer(Layer):
    """The first layer of a :class:`Sequential`, and each input of a :class:`Functional`: casts inputs to a dtype.

    Parameters
    ----------
    batch_shape : sequence of (int or None), optional
        The shape of the inputs. None means any length; the length of the batch axis is not checked.
    sparse, ragged, optional : bool
        Arguments of Keras; they must be False.
    dtype : dtype or DTypePolicy, optional
        The dtype to which inputs are cast; integers wrap around, fractions are truncated. For a policy, its compute
        dtype. Default: :func:`mp_core.config.floatx`, whatever the default policy is.
    shape : sequence of (int or None), optional
        Instead of `batch_shape`: the shape of one sample. As in tf.keras, the argument may be named `input_shape`.
    batch_size : int, optional
        Only with `shape`; default: any.
    **kwargs : those of :class:`Layer`
    """

    _sample_independence = "always"
    _arrays = ("inputs",)
    _keeps_dtype = True
    supports_masking = True
    _options = _repr_arguments = ("batch_shape",)
    sparse = ragged = optional = False
    """Attributes of Keras. Inputs are dense, and never missing."""

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
        shape = kwargs.pop("input_shape", shape)  # tf.keras' names, which Keras accepts too
        batch_shape = kwargs.pop("batch_input_shape", batch_shape)
        super().__init__(dtype=_plain_policy(dtype), autocast=False, **kwargs)
        switches = {"sparse": sparse, "ragged": ragged, "optional": optional}
        on = [name for name, value in switches.items() if value is not None and boolean(value, name)]
        if on:
            raise ValueError(f"`{on[0]}` must be False: all inputs of mp_core are dense and required; received True")
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
        """The symbolic array of the inputs."""
        return tensor_of(self)

    output = input

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the layer of a configuration of mp_core, Keras or tf.keras."""
        return cls(**config)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments; as in Keras, `dtype` is a name."""
        return super().get_config() | {"dtype": self.dtype}

    def call(self, inputs: Array, rows: int | None = None) -> Array:
        """Return the inputs in the dtype of this layer; see :meth:`fitted` for `rows`."""
        inputs = self.fitted(inputs, rows)
        if any(n not in (None, length) for n, length in zip(self.batch_shape[1:], inputs.shape[1:], strict=True)):
            raise self._shape_error(inputs)
        return inputs

    def fitted(self, inputs: Array, rows: int | None = None) -> Array:
        """Return the inputs with the number of axes and the dtype of this layer, as :class:`Sequential` needs them.

        As in Keras, lengths are not checked, and one last axis of length 1 is added or removed if necessary. `rows` is
        given if only an :class:`Embedding` with this many rows reads the inputs. Then integers are not cast if the
        dtype can represent all of its indices: the look-up would cast them back, and plans cannot cast integers.
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
                raise self._shape_error(inputs)
        if inputs.dtype == self._compute:
            return inputs
        if rows is not None and inputs.dtype.kind in "iu" and rows <= _exact_integers(self._compute):
            return inputs
        return inputs.astype(np.bool_) if self._compute == np.bool_ else cast(inputs, self._compute)

    def with_integers(self, inputs: Any, rows: int | None = None) -> Any:
        """Return the inputs; cast floats, bytes and bools to int32 if layers read integers, since plans cannot do it.

        Fractions are truncated. See :meth:`fitted` for `rows`.
        """
        reads_integers = self._compute.kind in "iu" or (rows is not None and rows <= _exact_integers(self._compute))
        if not (reads_integers and isinstance(inputs, np.ndarray)):
            return inputs
        is_other = inputs.dtype.itemsize == 1 and (rows is not None or inputs.dtype != self._compute)
        if not (is_other or dtypes.is_float(inputs.dtype)):
            return inputs
        with np.errstate(invalid="ignore"):  # infinities become invalid indices, which the look-up rejects
            return inputs.astype(np.int32)

    def _shape_error(self, inputs: Array) -> ValueError:
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
    """Return a symbolic input of a functional model: call layers with it, and make a model of their outputs.

    Parameters
    ----------
    shape : sequence of (int or None), optional
        The shape of one sample, without the batch axis. None means any length.
    batch_size : int, optional
        Default: any.
    dtype : dtype, optional
        The dtype to which inputs are cast. Default: :func:`mp_core.config.floatx`.
    batch_shape : sequence of (int or None), optional
        `batch_size` and `shape` in one argument.
    name : str, optional
    sparse, ragged, tensor, optional
        Arguments of Keras; they must be False or None.

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
    """Return the symbolic array of an input layer; create it at the first call."""
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
def _exact_integers(dtype: Any) -> int:
    """Return n such that a dtype represents all integers from 0 to n - 1."""
    if dtypes.is_float(dtype):
        return int(2 ** (dtypes.finfo(dtype).nmant + 1))
    return 2 if dtype == np.bool_ else int(np.iinfo(dtype).max)


def _plain_policy(dtype: Any) -> DTypePolicy:
    """Return a policy that stores and computes in one dtype."""
    if isinstance(dtype, dict | DTypePolicy):
        return DTypePolicy(dtype_policies.get(dtype).compute_dtype)
    if isinstance(dtype, str) and dtype.startswith("mixed_"):
        return DTypePolicy(DTypePolicy(dtype).compute_dtype)
    return DTypePolicy(standardize_dtype(dtype))
