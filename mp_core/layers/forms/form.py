"""The base class of forms: how a layer stores its matrix, multiplies by it, and which numbers it stands for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.arrays.finite import all_finite
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.core.names import Activation
from mp_core.layers.forms.products import (
    Inputs,
    Product,
    multiplied,
    packed,
    product_by_group,
    product_of,
    widened,
)
from mp_core.ops import PackedMatrix
from mp_core.ops.convolution_specs import Windows
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.autocast.memory import drop_pages, is_shared
from mp_core.policies.autocast.variable import derived_from
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.utilities.arguments import state_of

__all__ = ["AddWeight", "Bias", "Float", "Form", "Geometry", "Variable", "check_finite", "constant_initializer"]


AddWeight = Callable[..., AutoCastVariable]
Values = Mapping[str, Any]
Bias = AutoCastVariable | None


class Variable(NamedTuple):
    """The description of a variable of a form, from which it is created.

    A dtype of None is the variable dtype of the policy. A `late` variable is created after the bias of the layer, which
    is the order of Keras' files. For an `overwritten` variable, optimizers assign the "gradient" as the new value.

    Examples
    --------
    >>> from mp_core.layers import Dense
    >>> layer = Dense(2, dtype="int8_from_float32")
    >>> layer.build((None, 3))
    >>> codes = layer.form.variables_of()["kernel"]
    >>> codes.shape, codes.dtype, codes.trainable
    ((3, 2), 'int8', False)
    """

    shape: tuple[int, ...]
    dtype: str | None
    initializer: Any
    trainable: bool = False
    late: bool = False
    overwritten: bool = False


@dataclass(frozen=True)
class Geometry:
    """The shape of a layer's matrix, and how the axes of its float variable map to it.

    Attributes
    ----------
    owner : str
        The path or name of the layer, for messages.
    name, shape : str, tuple of int
        Name and shape of the float variable, such as ``kernel``.
    rows, columns : int
        The shape of the matrix: (inputs, outputs) for a kernel, (entries, width) for a table.
    is_table : bool
        Whether rows are looked up (Embedding), instead of multiplied.
    scale_shape : tuple of int
        The shape in which Keras stores the scales of int8 codes.
    order : tuple of int
        Permutation of the variable's axes: first the axes that form the rows of the matrix, then the columns.
    groups : int
        Into how many groups the columns of a convolution are divided; each multiplies its part of the channels.

    Examples
    --------
    >>> kernel = Geometry("dense", "kernel", shape=(3, 2), rows=3, columns=2, is_table=False, scale_shape=(2,))
    >>> kernel.lines_shape, kernel.shared_axis  # (outputs, inputs); one scale per output, shared along the inputs
    ((2, 3), 0)
    """

    owner: str
    name: str
    shape: tuple[int, ...]
    rows: int
    columns: int
    is_table: bool
    scale_shape: tuple[int, ...]
    order: tuple[int, ...] = (0, 1)
    groups: int = 1

    @property
    def lines_shape(self) -> tuple[int, int]:
        """The shape of the matrix with one line per scale: (outputs, inputs), for a table (rows, columns)."""
        return (self.rows, self.columns) if self.is_table else (self.columns, self.rows)

    @property
    def shared_axis(self) -> int:
        """The axis of the matrix along which scales are shared: 0 for a kernel, 1 for a table."""
        return int(self.is_table)

    def arranged(self, stored: Array) -> Array:
        """Return the matrix (rows, columns) for the values of the variable."""
        return stored.reshape(self.shape).transpose(self.order).reshape(self.rows, self.columns)

    def by_group(self, matrix: Array) -> Array:
        """Return a matrix (rows, columns) as products read it: several groups as (groups, rows, columns / groups)."""
        if self.groups == 1:
            return matrix
        return matrix.reshape(self.rows, self.groups, self.columns // self.groups).swapaxes(0, 1)

    def restored(self, matrix: Array) -> Array:
        """Return the values of the variable for a matrix (rows, columns): the inverse of :meth:`arranged`."""
        parts = matrix.reshape([self.shape[axis] for axis in self.order])
        return parts.transpose(np.argsort(self.order))

    def transposed(self, matrix: Any) -> Any:
        """Convert between (rows, columns) and :attr:`lines_shape`: transpose a kernel, return a table unchanged."""
        return matrix if self.is_table else matrix.T


class Form:
    """How a layer stores its matrix.

    A subclass defines which variables there are (:meth:`variables_of`), how floats are converted to them
    (:meth:`encoded`), and what they stand for (:attr:`matrix`). Products multiply by an operand that is packed from
    :attr:`matrix` and cached; a new value of a variable invalidates it.

    Parameters
    ----------
    geometry : Geometry
    policy : DTypePolicy
        One that :meth:`makes` this form.
    config : dict, optional
        The :meth:`config` of a form whose settings this one copies.

    Examples
    --------
    >>> from mp_core.layers import Dense
    >>> layer = Dense(2)
    >>> layer.build((None, 3))
    >>> layer.form.name, layer.form.nbytes, layer.form.matrix.shape  # 3 * 2 numbers of 4 bytes, (outputs, inputs)
    ('float', 24, (2, 3))
    >>> layer.quantize("int8")
    >>> layer.form.name, layer.form.nbytes  # 6 codes, 2 scales of 4 bytes, in Keras' variables
    ('int8', 14)
    """

    name: ClassVar[str]
    """The key in :data:`~mp_core.forms.FORMS`; for a form with Keras' variables, the quantization mode."""
    is_float: ClassVar[bool] = False
    """Whether it stores the floats of the layer unchanged, so that the layer counts as not quantized."""
    is_trained: ClassVar[bool] = False
    """Whether it stores floats that are trained and rounded to codes; such a layer cannot be saved."""
    looks_up: ClassVar[bool] = True
    """Whether the table of an Embedding can have this form."""
    rounds_bias: bool = False
    """Whether the bias of a float32 layer is rounded to bfloat16, as in Keras' float8 layers."""

    def __init__(self, geometry: Geometry, policy: DTypePolicy, config: dict[str, Any] | None = None) -> None:
        self.geometry = geometry
        self.variables: dict[str, AutoCastVariable] = {}
        self.set_policy(policy)

    @classmethod
    def makes(cls, policy: DTypePolicy) -> bool:
        """Return whether this is the form for a policy."""
        return policy.quantization_mode == cls.name and policy.scheme is None

    def fits(self, policy: DTypePolicy) -> bool:
        """Return whether a layer with this form may get `policy`: the form and its variables would be the same."""
        if not self.makes(policy):
            return False
        other = type(self)(self.geometry, policy, self.config())
        return [v[:2] for v in self.variables_of().values()] == [v[:2] for v in other.variables_of().values()]

    def set_policy(self, policy: DTypePolicy) -> None:
        """Set a policy that :meth:`fits`. It decides whether each call quantizes the rows of its inputs."""
        self.policy, scheme = policy, policy.scheme
        self.dynamic = scheme is not None and scheme.inputs == "dynamic"

    def config(self) -> dict[str, Any]:
        """Return the constructor's further settings, as plain values for JSON."""
        return {}

    # ---- variables

    def variables_of(self) -> dict[str, Variable]:
        """Return name -> description of each variable, in order of creation."""
        raise NotImplementedError

    def check(self, floats: Array) -> None:
        """Raise ValueError if floats, in the shape of the layer's variable, cannot be converted to this form."""
        check_finite(floats, self.geometry)

    def encoded(self, floats: Array, dtype: str) -> dict[str, Array]:
        """Return the values of the variables by name.

        Parameters
        ----------
        floats : ndarray
            In the shape of the layer's variable; :meth:`check` has accepted them.
        dtype : str
            The variable dtype of the policy. Variables with dtype None have it.
        """
        raise NotImplementedError

    def add(self, add_weight: AddWeight, values: Values = MappingProxyType({}), late: bool = False) -> None:
        """Create the variables that are `late`, or those that are not.

        Parameters
        ----------
        add_weight : callable
            The method :meth:`Layer.add_weight` of the layer.
        values : mapping of str to ndarray or initializer
            Name of a variable -> value. Arrays are not copied. An initializer is used if the variable has none.
        late : bool
            Which variables to create.
        """
        for name, variable in self.variables_of().items():
            if variable.late == late:
                value = values.get(name)
                self.variables[name] = added = add_weight(
                    shape=variable.shape, dtype=variable.dtype, trainable=variable.trainable, name=name,
                    initializer=constant_initializer(value) if isinstance(value, np.ndarray)
                    else variable.initializer or value,
                    autocast=variable.dtype is None,
                )  # fmt: skip
                added.overwrite_with_gradient = variable.overwritten  # tf_keras' add_weight has no such argument

    def replace(self, floats: AutoCastVariable, add_weight: AddWeight, dtype: str) -> None:
        """Create the variables in place of the float variable of a layer."""
        values = self.encoded(floats.numpy(), dtype)
        self.add(add_weight, values)
        self.add(add_weight, values, late=True)

    def assign(self, floats: Array, dtype: str) -> None:
        """Assign floats to the variables. Read-only arrays that nobody else can write to are not copied."""
        self.check(floats)
        for name, value in self.encoded(floats, dtype).items():
            self.variables[name].assign(value, copy=is_shared(value))

    def merged(self, delta: Array, dtype: str) -> "Form":
        """Return a form with new variables for the matrix plus `delta`; raise ValueError if it cannot be quantized.

        Parameters
        ----------
        delta : ndarray
            In the shape of the layer's variable.
        dtype : str
            The variable dtype of the policy.
        """
        values = self._with_added(delta, dtype)
        form = type(self)(self.geometry, self.policy, self.config())
        form.variables = {name: variable.stored_as() for name, variable in self.variables.items()}
        for name, value in values.items():
            form.variables[name].assign(value)
        return form

    def _with_added(self, delta: Array, dtype: str) -> dict[str, Array]:
        """Return the values of the variables for the sum."""
        total = self.floats() + delta
        self.check(total)
        return self.encoded(total, dtype)

    def attribute(self, name: str) -> Any:
        """Return what ``layer.<name>`` returns for the name of a variable."""
        return self.variables[name]

    @property
    def nbytes(self) -> int:
        """The size of the stored variables in bytes."""
        return sum(variable.nbytes for variable in self.variables.values())

    # ---- the matrix and its products

    @property
    def matrix(self) -> QuantizedArray | Array:
        """The matrix in the shape (outputs, inputs), for a table (rows, columns)."""
        raise NotImplementedError

    def floats(self) -> Array:
        """Return the matrix as floats, in the shape of the layer's variable."""
        lines = self.matrix
        numbers = dequantize(lines) if isinstance(lines, QuantizedArray) else lines
        return self.geometry.restored(self.geometry.transposed(numbers))

    @property
    def inputs(self) -> Inputs | None:
        """The fixed scales and zero points by which inputs are quantized; None if there are none."""
        return None

    def multiply(
        self, rows: Array, bias: AutoCastVariable | None, activation: Activation | None, compute: Any,
        training: bool = False, windows: Windows | None = None, out_dtype: np.dtype[Any] | None = None,
    ) -> Array:  # fmt: skip
        """Return ``activation(rows @ kernel + bias)``, shape (..., outputs).

        Parameters
        ----------
        rows : ndarray, shape (..., inputs)
            Integers and booleans are cast to `compute` first. With `windows`, shape (batch, places ..., channels).
        bias : AutoCastVariable or None
            One element per output.
        activation : str or None
            The name of an activation that products can fuse.
        compute : dtype
            The compute dtype of the layer.
        training : bool
            Whether the call is part of training, so that delayed scaling updates its histories.
        windows : Windows, optional
            Of a convolution: the windows of `rows` are multiplied.
        out_dtype : dtype, optional
            The dtype of the result, at least as wide as `compute`. Default: that of the rows.
        """
        rows = floating(rows, compute)
        multiply, vector = self.product_for(rows.dtype), self.bias_vector(bias)
        product: Array = multiply(rows, vector, activation, compute, windows, out_dtype)
        return product

    def product_for(self, dtype: np.dtype[Any]) -> Product:
        """Return the function that multiplies rows of a dtype by the packed matrix, which is cached."""
        key = "dynamic" if self.dynamic else ("product", dtype)
        product: Product = self._derived(key, lambda: self._product(dtype))
        return product

    def _product(self, dtype: np.dtype[Any]) -> Product:
        """Pack the matrix for rows of a dtype, and return the function that multiplies by it."""
        if self.geometry.groups > 1:
            return product_by_group(self.matrix, self.inputs, self.dynamic, dtype, self.geometry.groups)
        stamps = self.stamps
        multiply, operand = product_of(self.matrix, self.inputs, self.dynamic, dtype)
        self.free_packed(operand, stamps)
        return multiply

    @property
    def stamps(self) -> dict[str, object]:
        """Name of a variable -> stamp of its current value."""
        return {name: variable.stamp for name, variable in self.variables.items()}

    def free_packed(self, operand: PackedMatrix | Array, stamps: Mapping[str, object], begin: int = 0) -> None:
        """Free variables whose values the packed matrix already holds. This form frees none.

        Parameters
        ----------
        operand : PackedMatrix or ndarray
            The packed matrix; it may hold several matrices side by side.
        stamps : mapping of str to object
            :attr:`stamps` before the matrix was read.
        begin : int
            The first column of `operand` that belongs to this matrix.
        """

    def take(self, indices: Array, compute: np.dtype[Any]) -> Array:
        """Return rows of a table, shape ``(*indices.shape, columns)``, in the dtype `compute`.

        Only these rows are cast or dequantized.
        """
        rows: Array = ops.take_rows(self._derived("matrix", lambda: self.matrix), indices, compute)
        return rows

    def read_bias(self, bias: AutoCastVariable) -> Array:
        """Return the bias, rounded to bfloat16 if this form does so."""
        value: Array = bias.read_value()
        rounds = self.rounds_bias and value.dtype.name == "float32"
        return ops.cast(ops.cast(value, "bfloat16"), "float32") if rounds else value

    def bias_vector(self, bias: Bias) -> Array | None:
        """Return the bias as a vector in float32, in which products sum; float64 stays float64."""
        if bias is None:
            return None
        return bias.derived((self.rounds_bias, bias.dtype), lambda _: widened(self.read_bias(bias).reshape(-1)))

    def _derived(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the cached result of `make`; a new value of a variable invalidates it."""
        return derived_from(list(self.variables.values()), key, make)

    def __setstate__(self, state: Any) -> None:
        owner = f"a pickled {type(self).__name__}"
        vars(self).update(state_of(state, {"geometry": Geometry, "policy": DTypePolicy, "variables": dict}, owner))
        state_of(self.variables, dict.fromkeys(self.variables_of(), AutoCastVariable), owner)


class Float(Form):
    """Unquantized floats, in the policy's variable dtype.

    Examples
    --------
    >>> from mp_core.layers import Dense
    >>> layer = Dense(2, dtype="mixed_bfloat16")
    >>> layer.build((None, 3))
    >>> {name: (x.shape, x.trainable) for name, x in layer.form.variables_of().items()}
    {'kernel': ((3, 2), True)}
    """

    name = "float"
    is_float = True

    @classmethod
    def makes(cls, policy: DTypePolicy) -> bool:
        return policy.quantization_mode is None

    def variables_of(self) -> dict[str, Variable]:
        return {self.geometry.name: Variable(self.geometry.shape, None, None, trainable=True)}

    def check(self, floats: Array) -> None:
        """Accept all floats."""

    def encoded(self, floats: Array, dtype: str) -> dict[str, Array]:
        return {self.geometry.name: floats}

    def assign(self, floats: Array, dtype: str) -> None:
        """Assign the variable. A matrix in a memory map stays there and is cast at each read."""
        if not self.variables[self.geometry.name].assign_from_file(floats):
            super().assign(floats, dtype)

    @property
    def matrix(self) -> QuantizedArray | Array:
        stored: Array = self.geometry.transposed(self.geometry.arranged(self.variables[self.geometry.name].numpy()))
        return stored

    def take(self, indices: Array, compute: np.dtype[Any]) -> Array:
        """Return rows of a table; only these rows are cast, and in a file only they are read."""
        variable = self.variables[self.geometry.name]
        table, stored = variable.source, variable.true_dtype
        first = compute if table.dtype is stored else stored  # rounded to the stored dtype, then to `compute`
        rows: Array = ops.take_rows(table, indices, first)
        return rows if first is compute else ops.cast(rows, compute)

    def multiply(
        self, rows: Array, bias: AutoCastVariable | None, activation: Activation | None, compute: Any,
        training: bool = False, windows: Windows | None = None, out_dtype: np.dtype[Any] | None = None,
    ) -> Array:  # fmt: skip
        """Return the product with the kernel in its read dtype; the packed kernel is cached."""
        kernel = self.variables[self.geometry.name]
        read = kernel.dtype
        made = kernel.derived(("packed", read), lambda stored: self._packed(stored, read))
        epilogue = {"out_dtype": out_dtype, "bias": self.bias_vector(bias), "activation": activation}
        return multiplied(floating(rows, compute), made, windows, **epilogue)

    def _packed(self, stored: Array, read: np.dtype[Any]) -> PackedMatrix | Array:
        made = packed(self.geometry.by_group(self.geometry.arranged(stored)), read)
        drop_pages(stored)
        return made


def check_finite(values: Array, geometry: Geometry) -> None:
    """Raise ValueError if a value is NaN or infinite; the message has its index."""
    if not all_finite(values):
        index = tuple(map(int, np.argwhere(~np.isfinite(values))[0]))
        raise ValueError(
            f"the {geometry.name} of layer '{geometry.owner}' must be finite to be quantized; "
            f"received {float(values[index])} at {index}"
        )


def floating(rows: Array, compute: Any) -> Array:
    """Return the inputs of a product as floats: integers and booleans are cast to `compute`."""
    return ops.cast(rows, compute) if rows.dtype.kind in "iub" else rows


def constant_initializer(value: Array) -> Callable[..., Array]:
    """Return an initializer that returns `value`, whatever shape and dtype it gets."""
    return lambda *_: value
