"""What a form is: how a layer holds its matrix, multiplies by it, and says what it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mp_core import dtypes, ops
from mp_core.arguments import state_of
from mp_core.arrays import Array
from mp_core.autocast import AutoCastVariable
from mp_core.autocast.memory import is_shared
from mp_core.core.names import Activation
from mp_core.dtype_policies import DTypePolicy
from mp_core.loss_scale import all_finite
from mp_core.ops import PackedMatrix
from mp_core.quantization import QuantizedArray, dequantize

__all__ = ["AddWeight", "Float", "Form", "Geometry", "Inputs", "Variable"]

AddWeight = Callable[..., AutoCastVariable]
"""A layer's ``add_weight``."""


class Inputs(NamedTuple):
    """What quantizes the inputs of a product: ``x_j ~ scale_j * (q_j - zero_point_j)``.

    Attributes
    ----------
    scale : ndarray, shape (inputs,)
        float32; of float8 one scale, shape ().
    zero_point : ndarray or None, shape (inputs,)
        int8; None for float8.
    """

    scale: Any
    zero_point: Any = None


class Variable(NamedTuple):
    """What :meth:`Form.add` creates: a dtype of None is the policy's, an initializer of None the layer's."""

    shape: tuple[int, ...]
    dtype: str | None
    initializer: Any


@dataclass(frozen=True)
class Geometry:
    """The matrix of a layer, and how its float variable lies in it.

    Attributes
    ----------
    owner : str
        The layer, for messages.
    name : str
        The float variable's, of shape `shape`.
    shape : tuple of int
    rows, columns : int
        Its shape as a matrix.
    axis : int
        The axis of the matrix whose elements share scales: 0 for a kernel, 1 for a table.
    scale_shape : tuple of int
        The shape in which Keras stores the scales of int8 codes, one for each column of the matrix of a kernel.
    order : tuple of int
        The axes of the variable as they follow each other in the matrix: first those of its rows.
    """

    owner: str
    name: str
    shape: tuple[int, ...]
    rows: int
    columns: int
    axis: int
    scale_shape: tuple[int, ...]
    order: tuple[int, ...] = (0, 1)

    @property
    def is_table(self) -> bool:
        """Whether rows are looked up; otherwise inputs are multiplied by the columns."""
        return self.axis == 1

    @property
    def lines_shape(self) -> tuple[int, int]:
        """The shape of the matrix lines-major: (outputs, inputs), of a table (rows, columns)."""
        return (self.rows, self.columns) if self.is_table else (self.columns, self.rows)

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

    def transposed(self, matrix: Any) -> Any:
        """Return a matrix of rows and columns lines-major, or one that is lines-major as rows and columns."""
        return matrix if self.is_table else matrix.T


class Form:
    """How a layer holds its matrix.

    A subclass says which variables there are (:meth:`variables_of`) and how floats become them (:meth:`encoded`), and
    what they stand for (:attr:`matrix`); what multiplies is made of that once per value of the variables.

    Parameters
    ----------
    geometry : Geometry
    policy : DTypePolicy
        Under which the form is made.
    config : dict
        What :meth:`config` returned.

    Attributes
    ----------
    variables : dict of str to AutoCastVariable
        Empty before :meth:`add`.
    """

    name: ClassVar[str]
    """That of its row in the table; of a form that Keras has, the quantization mode."""
    is_float: ClassVar[bool] = False
    """Whether it holds floats that nothing is lost of."""
    looks_up: ClassVar[bool] = True
    """Whether a table can have this form."""
    trainable: ClassVar[bool] = False
    """Whether training would change the matrix."""

    def __init__(self, geometry: Geometry, policy: DTypePolicy, config: dict[str, Any] | None = None) -> None:
        self.geometry = geometry
        self.variables: dict[str, AutoCastVariable] = {}
        self.follow(policy)

    @classmethod
    def makes(cls, policy: DTypePolicy) -> bool:
        """Whether this form is what Keras makes of a policy of the mode that has its name."""
        return policy.scheme is None

    def fits(self, policy: DTypePolicy) -> bool:
        """Whether a layer that holds this form may get `policy`."""
        return policy.quantization_mode == self.name and self.makes(policy)

    def follow(self, policy: DTypePolicy) -> None:
        """Take from a policy that the form fits what it says about products."""

    def config(self) -> dict[str, Any]:
        """Return what the constructor needs beside geometry and policy, for ``json.dumps``."""
        return {}

    # ---- variables

    def variables_of(self) -> dict[str, Variable]:
        """Return the variables by name, in their order."""
        raise NotImplementedError

    def encoded(self, floats: Array, dtype: str) -> dict[str, Array]:
        """Return the values of the variables for floats of the shape of the layer's own variable.

        Parameters
        ----------
        floats : ndarray
            Finite, if the form is not one of floats.
        dtype : str
            In which variables without a dtype of their own are stored.
        """
        raise NotImplementedError

    def add(self, add_weight: AddWeight, initializer: Any = None, values: dict[str, Array] | None = None) -> None:
        """Create the variables, with `values` where there are any; the arrays are not copied."""
        for name, (shape, dtype, default) in self.variables_of().items():
            made = initializer if default is None else default
            if values is not None and name in values:
                made = _constant(values[name])
            self.variables[name] = add_weight(
                shape=shape, dtype=dtype, trainable=self.trainable, autocast=dtype is None, name=name, initializer=made
            )

    def add_rest(self, add_weight: AddWeight) -> None:
        """Create what comes after the bias in Keras' files."""

    def check(self, floats: Array) -> None:
        """Raise ValueError if floats of the shape of the layer's own variable cannot be brought into this form."""
        check_finite(floats, self.geometry)

    def replace(self, floats: AutoCastVariable, add_weight: AddWeight, dtype: str) -> None:
        """Create the variables in place of the float variable of a layer."""
        self.add(add_weight, values=self.encoded(floats.numpy(), dtype))
        self.add_rest(add_weight)

    def assign(self, floats: Array, dtype: str) -> None:
        """Give the variables the values of floats; arrays that nobody can write to are not copied."""
        self.check(floats)
        for name, value in self.encoded(floats, dtype).items():
            self.variables[name].assign(value, copy=is_shared(value))

    def attribute(self, name: str) -> Any:
        """Return what a layer has as the attribute of this name."""
        return self.variables[name]

    @property
    def nbytes(self) -> int:
        """The size of the variables as they are stored."""
        return sum(variable.nbytes for variable in self.variables.values())

    # ---- what they stand for

    @property
    def matrix(self) -> QuantizedArray | Array:
        """What products multiply, lines-major: (outputs, inputs), of a table (rows, columns)."""
        raise NotImplementedError

    @property
    def inputs(self) -> Inputs | None:
        """What quantizes the inputs, where that is fixed."""
        return None

    # ---- products

    def multiply(
        self,
        rows: Array,
        bias: AutoCastVariable | None,
        activation: Activation | None,
        compute: np.dtype[Any],
        training: bool = False,
    ) -> Array:
        """Return ``activation(rows @ kernel + bias)``, for a layer that computes in `compute`.

        The kernel is packed once per value, and the bias widened for the float32 sums.
        """
        rows = floating(rows, compute)
        product: Array = ops.matmul(rows, self._kernel(rows.dtype), bias=self._vector(bias), activation=activation)
        return product

    def take(self, indices: Array, compute: np.dtype[Any]) -> Array:
        """Return the rows at `indices` of a table, in `compute`."""

        def table() -> Array:
            matrix = self.matrix
            return dequantize(matrix, compute) if isinstance(matrix, QuantizedArray) else ops.cast(matrix, compute)

        rows: Array = self._made(("table", compute), table)[indices]
        return rows

    @property
    def rounds_bias(self) -> bool:
        """Whether the bias of float32 layers is rounded to bfloat16, as Keras' float8 layers do."""
        return False

    def read_bias(self, bias: AutoCastVariable) -> Array:
        """Return the bias as it is added here."""
        value: Array = bias.read_value()
        rounds = self.rounds_bias and value.dtype.name == "float32"
        return ops.cast(ops.cast(value, "bfloat16"), "float32") if rounds else value

    def _vector(self, bias: AutoCastVariable | None) -> Array | None:
        """Return the bias flat and in float32 (float64 as it is)."""
        if bias is None:
            return None

        def widen(_: Array) -> Array:
            vector = self.read_bias(bias).reshape(-1)
            return vector if vector.dtype.name == "float64" else ops.cast(vector, "float32")

        return bias.derived((self.rounds_bias, bias.dtype), widen)

    def _kernel(self, dtype: np.dtype[Any]) -> PackedMatrix | Array:
        """Return what inputs of a float type are multiplied by."""
        kernel: PackedMatrix | Array = self._made(
            ("kernel", dtype), lambda: packed(self.geometry.transposed(self.matrix), dtype)
        )
        return kernel

    def _made(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return ``make()``, made once per value of all variables; it is kept by the first of them."""
        first, *others = self.variables.values()
        kept: dict[str, Any] = first.derived(key, _nothing)
        last = kept.get("last")
        if last is not None:
            for variable, version in last[0]:
                if variable.version != version:
                    break
            else:
                return last[1]
        # Without the first itself: that would be a cycle, and a model's memory would wait for the garbage collector.
        versions = [(variable, variable.version) for variable in others]
        kept["last"] = last = versions, make()  # one at a time: an assigned scale replaces it
        return last[1]

    # ---- pickles

    def __setstate__(self, state: Any) -> None:
        owner = f"a pickled {type(self).__name__}"
        vars(self).update(state_of(state, {"geometry": Geometry, "variables": dict}, owner))
        try:
            missing = [name for name in self.variables_of() if name not in self.variables]
        except AttributeError as error:
            missing = [str(error.name)]
        if missing:
            raise ValueError(f"The state of {owner} is damaged: it has no `{missing[0]}`")
        for name, variable in self.variables.items():
            if not isinstance(variable, AutoCastVariable):
                raise TypeError(f"The state of {owner} is damaged: `{name}` must be a variable; it is {variable!r}")


class Float(Form):
    """Floats as they are, in the dtype of the policy's variables."""

    name = "float"
    is_float = True
    trainable = True

    @classmethod
    def makes(cls, policy: DTypePolicy) -> bool:
        """Whether `policy` is a plain one."""
        return policy.quantization_mode is None

    def fits(self, policy: DTypePolicy) -> bool:
        """Whether a layer that holds this form may get `policy`."""
        return self.makes(policy)

    def variables_of(self) -> dict[str, Variable]:
        """Return the layer's own variable."""
        return {self.geometry.name: Variable(self.geometry.shape, None, None)}

    def check(self, floats: Array) -> None:
        """All floats can."""

    def encoded(self, floats: Array, dtype: str) -> dict[str, Array]:
        """Return the floats themselves."""
        return {self.geometry.name: floats}

    @property
    def matrix(self) -> Array:
        """The stored floats."""
        stored: Array = self.geometry.arranged(self.variables[self.geometry.name].numpy())
        return self.geometry.transposed(stored)  # type: ignore[no-any-return]

    def take(self, indices: Array, compute: np.dtype[Any]) -> Array:
        """Return the rows at `indices`; only they are cast."""
        rows: Array = self.variables[self.geometry.name].numpy()[indices]
        return rows if rows.dtype is compute else ops.cast(rows, compute)

    def _kernel(self, dtype: np.dtype[Any]) -> PackedMatrix | Array:
        variable = self.variables[self.geometry.name]
        read = variable.dtype
        made: PackedMatrix | Array = variable.derived(
            ("packed", read), lambda stored: packed(self.geometry.arranged(stored), read)
        )
        return made


def check_finite(values: Array, geometry: Geometry) -> None:
    """Raise ValueError, with the index of the first, if there is a NaN or infinity among what is to be quantized."""
    if not all_finite(values):
        index = tuple(map(int, np.argwhere(~np.isfinite(values))[0]))
        raise ValueError(
            f"the {geometry.name} of layer '{geometry.owner}' must be finite to be quantized; "
            f"received {float(values[index])} at {index}"
        )


def floating(rows: Array, compute: np.dtype[Any]) -> Array:
    """Return the inputs of a product as floats."""
    return ops.cast(rows, compute) if rows.dtype.kind in "iub" else rows


def packed(kernel: QuantizedArray | Array, dtype: np.dtype[Any]) -> PackedMatrix | Array:
    """Return a kernel (inputs, outputs) as inputs of `dtype` are multiplied by it: float64 by floats, others packed."""
    wide = dtypes.name_of(dtype) in dtypes.WIDE
    if isinstance(kernel, QuantizedArray):
        return ops.pack(kernel) if wide else dequantize(kernel, dtype)
    return ops.pack(kernel, dtype=dtype) if wide else ops.cast(kernel, dtype)


def _constant(value: Array) -> Callable[..., Array]:
    return lambda *_: value


def _nothing(_: Array) -> dict[str, Any]:
    return {}
