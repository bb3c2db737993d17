"""What a form is: how a layer holds its matrix, multiplies by it, and says which numbers it stands for."""

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
from mp_core.layers.forms.products import Inputs, Product, packed, product_of, widened
from mp_core.ops import PackedMatrix
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.autocast.memory import drop_pages, is_shared
from mp_core.policies.autocast.variable import derived_from
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.utilities.arguments import state_of

__all__ = ["AddWeight", "Bias", "Float", "Form", "Geometry", "Variable", "check_finite"]


AddWeight = Callable[..., AutoCastVariable]
Values = Mapping[str, Any]
Bias = AutoCastVariable | None


class Variable(NamedTuple):
    """A variable of a form before it is created.

    A dtype of None is the variable dtype of the policy. One that is `late` is created after the bias of the layer, as
    Keras' files have it. An optimizer takes the gradient of one that is `overwritten` for its new value.

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
    """The matrix of a layer, and how its float variable lies in it.

    Attributes
    ----------
    owner : str
        The path or name of the layer, for messages.
    name, shape : str, tuple of int
        Those of the float variable, such as ``kernel``.
    rows, columns : int
        The shape of the matrix: of a kernel (inputs, outputs), of a table (entries, width).
    is_table : bool
        Whether it is a table whose rows are looked up, and no kernel that multiplies.
    scale_shape : tuple of int
        The shape in which Keras stores the scales of int8 codes.
    order : tuple of int
        The axes of the variable in the order in which the matrix has them: those of its rows first.

    Examples
    --------
    >>> kernel = Geometry("dense", "kernel", shape=(3, 2), rows=3, columns=2, is_table=False, scale_shape=(2,))
    >>> kernel.lines_shape, kernel.shared_axis  # (outputs, inputs); a scale for each output is shared along the inputs
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

    @property
    def lines_shape(self) -> tuple[int, int]:
        """The shape of the matrix lines-major: (outputs, inputs), of a table (rows, columns)."""
        return (self.rows, self.columns) if self.is_table else (self.columns, self.rows)

    @property
    def shared_axis(self) -> int:
        """The axis of the matrix along which scales are shared: 0 for a kernel, 1 for a table."""
        return int(self.is_table)

    def arranged(self, stored: Array) -> Array:
        """Return the matrix, (rows, columns), of an array with the elements of the variable in its own order."""
        return stored.reshape(self.shape).transpose(self.order).reshape(self.rows, self.columns)

    def restored(self, matrix: Array) -> Array:
        """Return an array of the shape of the variable of a matrix (rows, columns): the inverse of :meth:`arranged`."""
        parts = matrix.reshape([self.shape[axis] for axis in self.order])
        return parts.transpose(np.argsort(self.order))

    def transposed(self, matrix: Any) -> Any:
        """Return a matrix (rows, columns) lines-major, or a lines-major one as (rows, columns)."""
        return matrix if self.is_table else matrix.T


class Form:
    """How a layer holds its matrix.

    A subclass says which variables there are (:meth:`variables_of`), how floats become them (:meth:`encoded`), and what
    they stand for (:attr:`matrix`). The operand that products multiply by is made of :attr:`matrix`, and made again
    when a variable has got another value.

    Parameters
    ----------
    geometry : Geometry
    policy : DTypePolicy
        One that :meth:`makes` this form.
    config : dict, optional
        What :meth:`config` returned for a form that this one is to be like.

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
    """The name of its row in the table; of a form of the Keras integration, the quantization mode."""
    is_float: ClassVar[bool] = False
    """Whether it holds the floats of the layer as they are, so that the layer counts as not quantized."""
    is_trained: ClassVar[bool] = False
    """Whether it holds floats of which training makes codes: files have those only when it has ended."""
    looks_up: ClassVar[bool] = True
    """Whether the table of an Embedding can have this form."""
    rounds_bias: bool = False
    """Whether the bias of a float32 layer is rounded to bfloat16, as in Keras' float8 layers."""

    def __init__(self, geometry: Geometry, policy: DTypePolicy, config: dict[str, Any] | None = None) -> None:
        self.geometry = geometry
        self.variables: dict[str, AutoCastVariable] = {}
        self.follow(policy)

    @classmethod
    def makes(cls, policy: DTypePolicy) -> bool:
        """Whether a policy can make this form."""
        return policy.quantization_mode == cls.name and policy.scheme is None

    def fits(self, policy: DTypePolicy) -> bool:
        """Whether a layer that holds this form may get `policy`: that makes this form, with variables like these."""
        if not self.makes(policy):
            return False
        other = type(self)(self.geometry, policy, self.config())
        return [v[:2] for v in self.variables_of().values()] == [v[:2] for v in other.variables_of().values()]

    def follow(self, policy: DTypePolicy) -> None:
        """Go on under a policy that :meth:`fits`: it decides whether rows of inputs are quantized as they come."""
        self.policy, scheme = policy, policy.scheme
        self.dynamic = scheme is not None and scheme.inputs == "dynamic"

    def config(self) -> dict[str, Any]:
        """Return what the constructor needs beside geometry and policy, as ``json.dumps`` takes it."""
        return {}

    # ---- variables

    def variables_of(self) -> dict[str, Variable]:
        """Return the variables by name, in their order."""
        raise NotImplementedError

    def check(self, floats: Array) -> None:
        """Raise ValueError if floats of the shape of the layer's own variable cannot be brought into this form."""
        check_finite(floats, self.geometry)

    def encoded(self, floats: Array, dtype: str) -> dict[str, Array]:
        """Return the values of the variables by name.

        Parameters
        ----------
        floats : ndarray
            Of the shape of the layer's own variable, and checked by :meth:`check`.
        dtype : str
            The variable dtype of the policy: that of the variables whose own dtype is None.
        """
        raise NotImplementedError

    def add(self, add_weight: AddWeight, values: Values = MappingProxyType({}), late: bool = False) -> None:
        """Create the variables that are `late`, or those that are not.

        Parameters
        ----------
        add_weight : callable
            The method :meth:`Layer.add_weight` of the layer.
        values : mapping of str to ndarray or initializer
            By the names of variables. Arrays are not copied; an initializer counts where the variable has none of its
            own.
        late : bool
            Which variables to create.
        """
        for name, variable in self.variables_of().items():
            if variable.late == late:
                value = values.get(name)
                self.variables[name] = added = add_weight(
                    shape=variable.shape, dtype=variable.dtype, trainable=variable.trainable, name=name,
                    initializer=_constant(value) if isinstance(value, np.ndarray) else variable.initializer or value,
                    autocast=variable.dtype is None,
                )  # fmt: skip
                added.overwrite_with_gradient = variable.overwritten  # the method of a face may have no such argument

    def replace(self, floats: AutoCastVariable, add_weight: AddWeight, dtype: str) -> None:
        """Create the variables in place of the float variable of a layer."""
        self.add(add_weight, self.encoded(floats.numpy(), dtype))
        self.add(add_weight, late=True)

    def assign(self, floats: Array, dtype: str) -> None:
        """Give the variables the values of floats; arrays that nobody can write to are not copied."""
        self.check(floats)
        for name, value in self.encoded(floats, dtype).items():
            self.variables[name].assign(value, copy=is_shared(value))

    def merged(self, delta: Array, dtype: str) -> "Form":
        """Return a form like this one, with variables of its own, of a matrix to which something has been added.

        Parameters
        ----------
        delta : ndarray
            What is added, of the shape of the layer's own variable.
        dtype : str
            The variable dtype of the policy.

        Raises
        ------
        ValueError
            The sum is to be quantized and not finite.
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
        """Return the attribute of the layer that has the name of a variable."""
        return self.variables[name]

    @property
    def nbytes(self) -> int:
        """The size of the variables as they are stored."""
        return sum(variable.nbytes for variable in self.variables.values())

    # ---- what they stand for, and its products

    @property
    def matrix(self) -> QuantizedArray | Array:
        """What products multiply by, lines-major: shape (outputs, inputs), of a table (rows, columns)."""
        raise NotImplementedError

    def floats(self) -> Array:
        """Return the numbers that the variables stand for, of the shape of the layer's own variable."""
        lines = self.matrix
        numbers = dequantize(lines) if isinstance(lines, QuantizedArray) else lines
        return self.geometry.restored(self.geometry.transposed(numbers))

    @property
    def inputs(self) -> Inputs | None:
        """The fixed scales and zero points by which inputs are quantized; None where there are none."""
        return None

    def multiply(
        self, rows: Array, bias: AutoCastVariable | None, activation: Activation | None, compute: Any,
        training: bool = False,
    ) -> Array:  # fmt: skip
        """Return ``activation(rows @ kernel + bias)``.

        Parameters
        ----------
        rows : ndarray, shape (..., inputs)
            Integers and booleans are cast to `compute` first.
        bias : AutoCastVariable or None
            With as many elements as there are outputs.
        activation : str or None
            The name of one that products apply.
        compute : dtype
            In which the layer computes.
        training : bool
            Whether the call is one of training, of which delayed scaling keeps account.

        Returns
        -------
        ndarray, shape (..., outputs)
        """
        rows = floating(rows, compute)
        key = "dynamic" if self.dynamic else ("product", rows.dtype)
        multiply = self._made(key, lambda: self._product(rows.dtype))
        product: Array = multiply(rows, self.bias_vector(bias), activation, compute)
        return product

    def _product(self, dtype: np.dtype[Any]) -> Product:
        """Return the product with the matrix, which is packed now, for rows of a type."""
        stamps = self.stamps
        multiply, operand = product_of(self.matrix, self.inputs, self.dynamic, dtype)
        self.lie_in(operand, stamps)
        return multiply

    @property
    def stamps(self) -> dict[str, object]:
        """The stamp of each variable, by name."""
        return {name: variable.stamp for name, variable in self.variables.items()}

    def lie_in(self, operand: PackedMatrix | Array, stamps: Mapping[str, object], begin: int = 0) -> None:
        """Give back the memory of variables whose values are in what the matrix was packed as: here of none.

        Parameters
        ----------
        operand : PackedMatrix or ndarray
            Of the matrix, or of several side by side.
        stamps : mapping of str to object
            :attr:`stamps` before the matrix was read.
        begin : int
            The first column of the operand that belongs to the matrix.
        """

    def take(self, indices: Array, compute: np.dtype[Any]) -> Array:
        """Return the rows at `indices` of a table in the dtype `compute`: the shape of `indices`, then columns.

        Only these rows are cast or dequantized.
        """
        rows: Array = ops.take_rows(self._made("matrix", lambda: self.matrix), indices, compute)
        return rows

    def read_bias(self, bias: AutoCastVariable) -> Array:
        """Return the bias as products of this form add it."""
        value: Array = bias.read_value()
        rounds = self.rounds_bias and value.dtype.name == "float32"
        return ops.cast(ops.cast(value, "bfloat16"), "float32") if rounds else value

    def bias_vector(self, bias: Bias) -> Array | None:
        """Return the bias flat, as products add it: widened for the float32 sums (float64 as it is)."""
        if bias is None:
            return None
        return bias.derived((self.rounds_bias, bias.dtype), lambda _: widened(self.read_bias(bias).reshape(-1)))

    def _made(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` returns; it is called again only when a variable has another value than the last time."""
        return derived_from(list(self.variables.values()), key, make)

    def __setstate__(self, state: Any) -> None:
        owner = f"a pickled {type(self).__name__}"
        vars(self).update(state_of(state, {"geometry": Geometry, "policy": DTypePolicy, "variables": dict}, owner))
        state_of(self.variables, dict.fromkeys(self.variables_of(), AutoCastVariable), owner)


class Float(Form):
    """Floats as they are, in the dtype of the policy's variables.

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
        """Whether `policy` is a plain one."""
        return policy.quantization_mode is None

    def variables_of(self) -> dict[str, Variable]:
        """Return the layer's own variable."""
        return {self.geometry.name: Variable(self.geometry.shape, None, None, trainable=True)}

    def check(self, floats: Array) -> None:
        """All floats can."""

    def encoded(self, floats: Array, dtype: str) -> dict[str, Array]:
        """Return the floats themselves."""
        return {self.geometry.name: floats}

    def assign(self, floats: Array, dtype: str) -> None:
        """Give the variable its value; a kernel in the map of a file stays there, and is cast whenever it is read."""
        if self.geometry.is_table or not self.variables[self.geometry.name].assign_from_file(floats):
            super().assign(floats, dtype)

    @property
    def matrix(self) -> QuantizedArray | Array:
        """The stored floats."""
        stored: Array = self.geometry.transposed(self.geometry.arranged(self.variables[self.geometry.name].numpy()))
        return stored

    def take(self, indices: Array, compute: np.dtype[Any]) -> Array:
        """Return the rows at `indices` of a table; only they are cast."""
        rows: Array = ops.take_rows(self.variables[self.geometry.name].numpy(), indices, compute)
        return rows

    def multiply(
        self, rows: Array, bias: AutoCastVariable | None, activation: Activation | None, compute: Any,
        training: bool = False,
    ) -> Array:  # fmt: skip
        """Return the product with the kernel as it reads here, packed once."""
        kernel = self.variables[self.geometry.name]
        read = kernel.dtype
        made = kernel.derived(("packed", read), lambda stored: self._packed(stored, read))
        product: Array = ops.matmul(floating(rows, compute), made, bias=self.bias_vector(bias), activation=activation)
        return product

    def _packed(self, stored: Array, read: np.dtype[Any]) -> PackedMatrix | Array:
        made = packed(self.geometry.arranged(stored), read)
        drop_pages(stored)
        return made


def check_finite(values: Array, geometry: Geometry) -> None:
    """Raise ValueError, with the index of the first, if there is a NaN or infinity among what is to be quantized."""
    if not all_finite(values):
        index = tuple(map(int, np.argwhere(~np.isfinite(values))[0]))
        raise ValueError(
            f"the {geometry.name} of layer '{geometry.owner}' must be finite to be quantized; "
            f"received {float(values[index])} at {index}"
        )


def floating(rows: Array, compute: Any) -> Array:
    """Return the inputs of a product as floats."""
    return ops.cast(rows, compute) if rows.dtype.kind in "iub" else rows


def _constant(value: Array) -> Callable[..., Array]:
    return lambda *_: value
