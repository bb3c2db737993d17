"""What quantized layers store: Keras' variables for the matrix of a layer, one set for each form.

- int8: ``name`` int8 of its own shape and ``name_scale``, for ``name / name_scale``.
- int4 by channel: ``name`` int8, two codes to a byte along the columns, and ``name_scale``, for the same.
- int4 in blocks: also ``name_zero``, int8, and ``g_idx``, the block of each place: ``(name - name_zero) * name_scale``.
- float8: ``name`` as it was; a scale and a history of maxima each for inputs, kernel and gradients.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mp_core.arrays import Array, cast
from mp_core.dtype_policies import DTypePolicy, QuantizedFloat8DTypePolicy
from mp_core.dtypes import finfo
from mp_core.loss_scale import all_finite
from mp_core.quantizers import (
    AbsMaxQuantizer,
    abs_max_quantize,
    abs_max_quantize_grouped_with_zero_point,
    deserialize,
    pack_int4,
    unpack_int4,
)

__all__ = [
    "MODES",
    "Codes",
    "Form",
    "Matrix",
    "add_matrix",
    "add_scaling",
    "assign_codes",
    "assign_matrix",
    "block_index",
    "check_finite",
    "code_grid",
    "floating_inputs",
    "form_of",
    "replace_matrix",
]


class Codes:
    """The attribute of a matrix that is stored as int4: the codes, int8 of the matrix's shape, read-only.

    A matrix in another form is an attribute of the layer itself, which comes first.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, layer: Any, owner: type | None = None) -> Any:
        if layer is None:
            return self
        packed = vars(layer).get(f"_{self._name}")
        if packed is None:
            raise AttributeError(f"You must build the layer before accessing `{self._name}`.")
        m = layer._matrix
        codes = unpack_int4(packed.numpy(), m.columns, axis=-1).reshape(m.shape)
        codes.flags.writeable = False
        return codes


MODES = ("int8", "int4", "float8")
"""The quantization modes in which layers compute."""


@dataclass(frozen=True)
class Matrix:
    """The matrix of a layer that can be quantized.

    Attributes
    ----------
    name : str
        The layer's attribute, a variable of shape `shape`.
    shape : tuple of int
    rows, columns : int
        Its shape as a matrix.
    axis : int
        The axis of the matrix whose elements share scales: 0 for a kernel, 1 for a table.
    scale_shape : tuple of int
        The shape in which Keras stores the scales of int8 codes, one for each column of the matrix of a kernel.
    order : tuple of int
        The axes of the variable as they follow each other in the matrix: first those of its rows. int4 codes are, as in
        Keras, those of the variable in its own order, cut into as many rows.
    """

    name: str
    shape: tuple[int, ...]
    rows: int
    columns: int
    axis: int
    scale_shape: tuple[int, ...]
    order: tuple[int, ...] = (0, 1)

    @property
    def in_order(self) -> bool:
        """Whether the variable lies in memory as its matrix does."""
        return self.order == tuple(range(len(self.order)))

    def arranged(self, stored: Array) -> Array:
        """Return the matrix of what has the elements of the variable, in its own order."""
        return stored.reshape(self.shape).transpose(self.order).reshape(self.rows, self.columns)

    def restored(self, matrix: Array) -> Array:
        """Return the variable of a matrix: the inverse of :meth:`arranged`."""
        parts = matrix.reshape([self.shape[axis] for axis in self.order])
        return parts.transpose(np.argsort(self.order))


@dataclass(frozen=True)
class Form:
    """How a matrix is stored.

    Attributes
    ----------
    mode : str
        The quantization mode.
    block : int
        Of int4: the length of a block, -1 for a whole channel.
    history : int
        Of float8: the length of a history of maxima.
    """

    mode: str
    block: int = -1
    history: int = 0

    @property
    def codes(self) -> tuple[int, int]:
        """The smallest and the largest code of a symmetric quantization, by Keras' formulas."""
        return (-127, 127) if self.mode == "int8" else (-8, 7)


def form_of(policy: DTypePolicy) -> Form | None:
    """Return the form that a policy asks for, None for floats."""
    mode = policy.quantization_mode
    if mode is None:
        return None
    if mode == "float8":
        default = QuantizedFloat8DTypePolicy.default_amax_history_length
        return Form(mode, history=getattr(policy, "amax_history_length", default))
    return Form(mode, getattr(policy, "block_size", -1))


def floating_inputs(config: Any, scale_axes: tuple[set[int], int]) -> bool:
    """Whether a ``quantization_config`` of Keras leaves the inputs of an int8 layer as they are.

    Parameters
    ----------
    config : dict or None
    scale_axes : tuple of (set of int, int)
        The axes of the matrix whose elements share scales, and how many axes it has.

    Raises
    ------
    ValueError
        `config` is neither a dict nor None, or has quantizers that mp_core does not have.
    """
    if config is None:
        return False
    if not isinstance(config, dict):
        raise ValueError(f"`quantization_config` must be a dict of Keras or None; received {config!r}")
    given = config["config"] if config.get("config") is not None else {}
    if not isinstance(given, dict):
        raise ValueError(f"the `config` of a `quantization_config` must be a dict; received {given!r}")
    int8 = config.get("class_name") == "Int8QuantizationConfig"
    axes, ndim = scale_axes
    expected = AbsMaxQuantizer(sorted(axes), Form("int8" if int8 else "int4").codes)
    weights = given.get("weight_quantizer") and deserialize(given["weight_quantizer"])
    if isinstance(weights, AbsMaxQuantizer):
        chosen = tuple(sorted(axis % max(ndim, 1) for axis in weights.axis or (-1,)))
        weights = AbsMaxQuantizer(chosen, weights.value_range, weights.epsilon, weights.output_dtype)
    if weights not in (None, expected):
        raise ValueError(f"mp_core quantizes with `weight_quantizer` None or {expected}; received {weights}")
    inputs = given.get("activation_quantizer") and deserialize(given["activation_quantizer"])
    allowed = (None, AbsMaxQuantizer(), AbsMaxQuantizer(-1)) if int8 else (None,)
    if inputs not in allowed:
        raise ValueError(f"mp_core quantizes with `activation_quantizer` {allowed[-1]}; received {inputs}")
    return int8 and "activation_quantizer" in given and inputs is None


def add_matrix(layer: Any, initializer: Any) -> None:
    """Create the matrix of `layer` as its policy stores it.

    Raises
    ------
    NotImplementedError
        The policy asks for a mode in which the layer does not compute.
    """
    m, form = layer._matrix, form_of(layer._policy())
    if form is not None:
        layer._check_mode(form.mode)
    if form is None or form.mode == "float8":
        setattr(layer, m.name, layer.add_weight(shape=m.shape, initializer=initializer, name=m.name))
    else:
        _add_codes(layer, form, {})
    layer._form, layer.quantized = form, form is not None


def check_finite(layer: Any, values: Array) -> None:
    """Raise ValueError, with the index of the first, if there is a NaN or infinity among what is to be quantized."""
    if not all_finite(values):
        index = tuple(map(int, np.argwhere(~np.isfinite(values))[0]))
        raise ValueError(
            f"the {layer._matrix.name} of layer '{layer.path or layer.name}' must be finite to be quantized; "
            f"received {float(values[index])} at {index}"
        )


def replace_matrix(layer: Any, policy: DTypePolicy) -> None:
    """Replace the float matrix of `layer` by what `policy` stores instead."""
    m, form = layer._matrix, form_of(policy)
    assert form is not None
    if form.mode == "float8":
        add_scaling(layer, form.history)
    else:
        variable = getattr(layer, m.name)
        values = _encoded(variable.numpy(), m, form, layer.variable_dtype)
        delattr(layer, m.name)
        _add_codes(layer, form, values)
    layer._form, layer.quantized = form, True


def assign_matrix(layer: Any, weights: Any) -> None:
    """Give the matrix of `layer` the values of a float array, in the form in which it is stored."""
    m, form = layer._matrix, layer._form
    values = {m.name: weights}
    if form is not None:
        floats = np.asarray(weights)
        check_finite(layer, floats)
        values = _encoded(floats, m, form, layer.variable_dtype)
    for name, value in values.items():
        getattr(layer, name if form is None else _attribute(m, form, name)).assign(value)


def add_scaling(layer: Any, length: int) -> None:
    """Create what delayed float8 scaling keeps; the part of the gradients is there for Keras' files alone."""
    if length < 1:
        raise ValueError(f"`amax_history_length` must be positive; received {length}")
    for part in ("inputs", "kernel", "outputs_grad"):
        for what, shape, initializer in (("scale", (), "ones"), ("amax_history", (length,), "zeros")):
            name = f"{part}_{what}"
            kwargs = {"dtype": "float32", "autocast": False, "name": name}
            setattr(layer, name, layer.add_weight(shape=shape, initializer=initializer, **kwargs))


def _add_codes(layer: Any, form: Form, values: dict[str, Array]) -> None:
    """Create the variables of codes, of zeros and ones where `values` has none."""
    for name, (shape, dtype, initializer) in _variables(layer._matrix, form).items():
        value = values.get(name)
        variable = layer.add_weight(
            shape=shape, dtype=dtype, trainable=False, autocast=dtype is None, name=name,
            initializer=initializer if value is None else lambda *_, made=value: made,
        )  # fmt: skip
        setattr(layer, _attribute(layer._matrix, form, name), variable)


def _attribute(m: Matrix, form: Form, name: str) -> str:
    """Return the attribute that holds a variable: packed codes are internal, :class:`Codes` reads them."""
    return f"_{name}" if form.mode == "int4" and name == m.name else name


def _variables(m: Matrix, form: Form) -> dict[str, tuple[tuple[int, ...], str | None, Any]]:
    """Return name -> (shape, dtype, initializer); a dtype of None is the policy's."""
    scale = f"{m.name}_scale"
    if form.mode == "int8":
        return {m.name: (m.shape, "int8", "zeros"), scale: (m.scale_shape, None, "ones")}
    shared, channels = (m.rows, m.columns) if m.axis == 0 else (m.columns, m.rows)
    codes: dict[str, Any] = {m.name: ((m.rows, (m.columns + 1) // 2), "int8", "zeros")}
    if form.block < 0:
        return codes | {scale: ((channels,), None, "ones")}
    size = min(form.block, max(shared, 1))
    blocks = -(-shared // size)
    shape = (blocks, channels) if m.axis == 0 else (channels, blocks)
    return codes | {
        scale: (shape, None, "ones"),
        f"{m.name}_zero": (shape, "int8", "zeros"),
        "g_idx": ((shared,), "float32", lambda *_: (np.arange(shared) // size).astype(np.float32)),
    }


def _encoded(values: Array, m: Matrix, form: Form, dtype: str) -> dict[str, Array]:
    """Return name -> value, by Keras' formulas, for scales that are stored in `dtype`."""
    scale_name = f"{m.name}_scale"
    if form.mode == "int8":
        codes, scale = _abs_max(m.arranged(values), m.axis, form.codes, dtype)
        return {m.name: m.restored(codes), scale_name: scale.reshape(m.scale_shape)}
    matrix = values.reshape(m.rows, m.columns)
    if form.block < 0:
        codes, scale = _abs_max(matrix, m.axis, form.codes, dtype)
        return {m.name: pack_int4(codes, axis=-1)[0], scale_name: scale.reshape(-1)}
    parts = abs_max_quantize_grouped_with_zero_point(matrix if m.axis == 0 else matrix.T, form.block)
    codes, scale, zero = parts if m.axis == 0 else (part.T for part in parts)
    return {m.name: pack_int4(codes, axis=-1)[0], scale_name: scale, f"{m.name}_zero": zero}


def _abs_max(matrix: Array, axis: int, value_range: tuple[int, int], dtype: str) -> tuple[Array, Array]:
    """Return codes and scales, of which none is beyond the range of `dtype`: in float16, 127 / 0.001 would be."""
    codes, scale = abs_max_quantize(matrix, axis, value_range)
    largest = scale.dtype.type(finfo(dtype).max)
    beyond = scale > largest
    if beyond.any():
        with np.errstate(over="ignore"):  # of what is not small
            coarse = np.rint(cast(matrix, scale.dtype) * largest)
        codes, scale = np.where(beyond, coarse, codes).astype(codes.dtype), np.where(beyond, largest, scale)
    return codes, scale


def code_grid(layer: Any) -> tuple[Array, Array, tuple[int, int]]:
    """Return step and zero point of every place of the matrix of `layer`, in float64, and the range of its codes."""
    m, form = layer._matrix, layer._form
    shape = m.rows, m.columns
    scale = cast(layer.kernel_scale.numpy(), "float64").reshape(-1, m.columns)
    if form.mode == "int8":
        return np.broadcast_to(1 / scale, shape), np.zeros(shape), form.codes
    if form.block < 0:
        step, zero = 1 / scale, np.zeros(scale.shape)
    else:
        block, _ = block_index(layer, len(scale))
        step, zero = scale[block], cast(layer.kernel_zero.numpy(), "float64")[block]
    return m.arranged(np.broadcast_to(step, shape)), m.arranged(np.broadcast_to(zero, shape)), form.codes


def assign_codes(layer: Any, codes: Array) -> None:
    """Give the kernel of `layer` these codes, of the shape of its matrix; scales and zero points stay."""
    m = layer._matrix
    stored = m.restored(codes.astype(np.int8))
    if layer._form.mode == "int8":
        layer.kernel.assign(stored)
    else:
        layer._kernel.assign(pack_int4(stored.reshape(m.rows, m.columns), -1)[0])


def block_index(layer: Any, blocks: int) -> tuple[Array, int | None]:
    """Return the block of each place along the axis that shares scales, from ``g_idx``, and the length of blocks.

    The length is None where blocks are not equal runs of neighbours, as they were made.

    Raises
    ------
    ValueError
        ``g_idx`` was given numbers that are no blocks.
    """

    def check(stored: Array) -> tuple[Array, int | None]:
        with np.errstate(invalid="ignore"):
            index = stored.astype(np.intp)
        if not np.array_equal(index, stored) or (index.size and not 0 <= index.min() <= index.max() < blocks):
            raise ValueError(f"`g_idx` of layer '{layer.name}' must hold integers from 0 to {blocks - 1}")
        size = min(layer._form.block, max(index.size, 1))
        return index, size if np.array_equal(index, np.arange(index.size) // size) else None

    made: tuple[Array, int | None] = layer.g_idx.derived(("blocks", blocks), check)
    return made
