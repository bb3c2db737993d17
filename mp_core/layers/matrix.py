"""The base of layers with a matrix, by which they multiply or whose rows they look up."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import ArrayLike

from mp_core.arrays import Array, asarray
from mp_core.arrays.quantization import QuantizedArray
from mp_core.core.changes import undone_if_it_fails
from mp_core.layers.base.building import configured_forms
from mp_core.layers.base.contents import contents_of
from mp_core.layers.base.ends import end_of
from mp_core.layers.forms import FORMS, Codes, Float, Form, Geometry, Inputs, form_of, modes
from mp_core.layers.layer import Layer
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.autocast.memory import is_shared
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.policies.dtype_policies.map import weight_only
from mp_core.policies.dtype_policies.quantized import parse_quantized
from mp_core.policies.quantizers.quantizer import has_floating_inputs

__all__ = ["MatrixLayer", "set_form"]


class MatrixLayer(Layer):
    """A layer with one matrix, which is stored in the attribute `form`, a :class:`~mp_core.forms.Form`.

    The variables of the form are attributes of the layer: ``kernel``, ``kernel_scale``, ``codes`` ...
    """

    _matrix_name: ClassVar[str]
    """The name of the float variable. Each class with its own way to compute with the matrix must set it again."""
    _is_table: ClassVar[bool] = False
    _quantizes: ClassVar[bool] = True
    """Whether the layer supports other forms than floats."""
    form: Form
    codes: AutoCastVariable
    scale: AutoCastVariable
    zero_point: AutoCastVariable
    inputs_scale: AutoCastVariable
    inputs_zero_point: AutoCastVariable

    @property
    def matrix(self) -> QuantizedArray | Array:
        """The matrix in the shape (outputs, inputs), for a table (rows, columns).

        The stored floats, or codes with their scales; float32 if a QuantizedArray cannot represent the codes. With
        fixed :attr:`inputs` it stands for the weights times the scales of their inputs.
        """
        return self.form.matrix

    @property
    def inputs(self) -> Inputs | None:
        """The fixed scales and zero points of the inputs, if any: ``x_j ~ scale_j * (q_j - zero_point_j)``."""
        return self.form.inputs

    @property
    def multiplies(self) -> bool:
        """Whether calls multiply by the matrix in any form: Dense, EinsumDense and convolutions do."""
        return self._quantizes and not self._is_table

    def set_matrix(
        self, value: ArrayLike | QuantizedArray, inputs: Inputs | None = None, *, policy: DTypePolicy | None = None
    ) -> None:
        """Replace the matrix by floats or by codes.

        Arrays that nobody can write to, as those of a read-only memory map, are not copied. If a kernel in such a map
        has another floating-point dtype than the layer, it stays there and is cast at each read.

        Parameters
        ----------
        value : array-like or QuantizedArray
            In the shape of :attr:`matrix`. Floats are quantized if the policy has a scheme. Codes need a policy with
            their scheme.
        inputs : Inputs, optional
            Only with codes: the fixed scales and zero points of the inputs. They change a policy ``int8`` to
            ``int8/fixed``.
        policy : DTypePolicy, optional
            Only with codes: the new policy of the layer. Default: its current policy.

        Raises
        ------
        ValueError
            The layer is not built; the codes of `value` do not have the scheme of the policy; floats to quantize are
            not finite. After any error nothing has changed.
        """
        if not self.built:
            raise ValueError(f"`set_matrix` needs a built layer; '{self.name}' is not built")
        undone_if_it_fails(contents_of([self]), self._set_matrix, value, inputs, policy)

    def _set_matrix(self, value: Any, inputs: Inputs | None, policy: DTypePolicy | None) -> None:
        if isinstance(value, QuantizedArray):
            self._set_codes(value, inputs, self._policy() if policy is None else policy)
        elif inputs is not None:
            raise ValueError(f"`inputs` go with codes, which stand for weights times scales; received {type(value)}")
        elif policy is not None:
            raise ValueError(f"`policy` goes with codes; received {policy} with {type(value)}")
        else:
            self._set_floats(asarray(value, "value"))

    def _set_floats(self, value: Array) -> None:
        geometry, policy = self.form.geometry, self._policy()
        if value.shape != geometry.lines_shape:
            raise self._matrix_error(f"it has shape {geometry.lines_shape}; received {value.shape}")
        floats = geometry.restored(geometry.transposed(value))
        if policy.scheme is None:
            self.form.assign(floats, self.variable_dtype)
            return
        form = Codes(geometry, policy)
        form.check(floats)
        form.add(self.add_weight, form.encoded(floats, self.variable_dtype))
        self._set_form(form)

    def _set_codes(self, value: QuantizedArray, inputs: Inputs | None, policy: DTypePolicy) -> None:
        if policy.scheme is None:
            raise self._matrix_error(f"its policy '{policy.name}' names no codes; received codes of {value.dtype}")
        if inputs is not None and policy.scheme.inputs == "dynamic":
            source = policy.get_config()["source_name"]
            policy = parse_quantized(f"{replace(policy.scheme, inputs='fixed')}_from_{source}")
        form = Codes(self.form.geometry, policy, {"zero_point": value.zero_point is not None})
        try:
            values = form.values_of(value, inputs)
        except ValueError as error:
            raise self._matrix_error(str(error)) from None
        owned = {name: part.copy() if is_shared(part) else part for name, part in values.items()}
        form.add(self.add_weight, owned)
        self._set_form(form)
        if policy != self._policy():
            self._set_policy(policy)

    def share_codes(self, other: "MatrixLayer") -> bool:
        """Store the codes of another layer instead of equal ones of this layer; return False if the forms differ.

        Both must have been set to the same floats or codes. The other layer owns the variables.
        """
        mine, theirs = self.form, other.form
        alike = type(mine) is type(theirs) is Codes and mine.variables_of() == theirs.variables_of()
        if not alike or mine.policy.scheme != theirs.policy.scheme:
            return False
        self._variables[:] = [v for v in self._variables if not any(v is own for own in mine.variables.values())]
        mine.variables = theirs.variables
        return True

    def _matrix_error(self, reason: str) -> ValueError:
        geometry = self.form.geometry
        return ValueError(f"the {geometry.name} of layer '{geometry.owner}' cannot be set: {reason}")

    # ---- forms

    def _add_matrix(
        self,
        initializer: Any,
        shape: tuple[int, ...],
        rows: int,
        columns: int,
        scale_shape: tuple[int, ...],
        order: tuple[int, ...] = (0, 1),
        groups: int = 1,
    ) -> None:
        """Create the matrix in the form of the policy, or in the one that the configuration gives."""
        geometry = Geometry(
            self.path or self.name, self._matrix_name, shape, rows, columns, self._is_table, scale_shape, order, groups
        )
        configured = configured_forms.get().get(str(self.path))
        if configured is not None:
            self._set_policy(self._get_policy(configured.get("policy")))
        self.form = self._new_form(geometry, self._policy(), configured=configured)
        self.form.add(self.add_weight, {self._matrix_name: initializer})
        self.quantized = not self.form.is_float

    def _add_kernel(self, bias_shape: tuple[int, ...] | None, *geometry: Any) -> None:
        """Create the kernel, the bias (unless its shape is None) and late variables, in the order of Keras' files."""
        layer: Any = self
        self._add_matrix(layer.kernel_initializer, *geometry)
        self.bias = None
        if bias_shape is not None:
            self.bias = self.add_weight(shape=bias_shape, initializer=layer.bias_initializer, name="bias")
        self.form.add(self.add_weight, late=True)

    def _new_form(
        self, geometry: Geometry, policy: DTypePolicy, *, ours: bool = False, configured: dict[str, Any] | None = None
    ) -> Form:
        """Return a new form for `policy`, without variables; raise if the layer does not support it."""
        form = form_of(policy, ours=ours) if self._quantizes else Float
        if configured is not None:
            form = FORMS.get(str(configured.get("form")))
            if form is None or not form.makes(policy):
                raise ValueError(f"layer '{geometry.owner}' cannot have form {configured} under '{policy.name}'")
        if form is None or (geometry.is_table and not form.looks_up):
            raise NotImplementedError(
                f"Invalid quantization mode. Expected one of {self._modes}. "
                f"Received: quantization_mode={policy.quantization_mode}"
            )
        if not form.is_float:
            self._check_product()
        return form(geometry, policy, configured)

    def _check_product(self) -> None:
        """Raise NotImplementedError unless the layer can be quantized."""

    def _form_under(self, policy: DTypePolicy, *, ours: bool = False) -> Form:
        form = self._new_form(self.form.geometry, policy, ours=ours)
        form.check(self.form.variables[self._matrix_name].numpy())
        return form

    def _convert(self, form: Form) -> None:
        form.replace(self.form.variables[self._matrix_name], self.add_weight, self.variable_dtype)
        self._set_form(form)

    def _set_form(self, form: Form) -> None:
        """Set a form whose variables exist already, and drop the variables of the old form."""
        gone = {id(v) for v in self.form.variables.values()} - {id(v) for v in form.variables.values()}
        self._variables[:] = [variable for variable in self._variables if id(variable) not in gone]
        self.form, self.quantized = form, not form.is_float
        self._apply_policy()

    def _apply_policy(self) -> None:
        super()._apply_policy()
        form = vars(self).get("form")
        if form is not None and form.fits(self._applied_policy):
            form.set_policy(self._applied_policy)

    # ---- quantization

    @property
    def _modes(self) -> tuple[str, ...]:  # type: ignore[override]
        return modes(tables=self._is_table) if self._quantizes else ()

    def _mode_under(self, mode: str, quantizers: dict[str, Any] | None) -> str:
        floating = has_floating_inputs(quantizers, self._shared_axes(self.get_config()))
        return "int8" if floating and self._is_table else mode  # a table has no inputs to quantize

    def _can_quantize(self, type_check: bool) -> bool:
        return self._quantizes and not self.quantized and (self._implementation() is type(self) or not type_check)

    def _implementation(self) -> type["MatrixLayer"]:
        """Return the class, this one or a base, that defines how the layer computes with the matrix."""
        return next(cls for cls in type(self).__mro__ if "_matrix_name" in vars(cls))

    def _keeps_form(self, policy: DTypePolicy) -> bool:
        return not self.built or self.form.is_float or self.form.fits(policy)

    def _saved_variables(self) -> list[AutoCastVariable]:
        """Return the variables in the order of Keras' files: matrix, bias, scales; late variables after the bias."""
        variables, bias = self.own_variables(), vars(self).get("bias")
        if bias is None:
            return variables
        name, first = next(iter(self.form.variables_of().items()))
        begin = [bias] if first.late else [self.form.variables[name], bias]
        return [*begin, *(variable for variable in variables if all(variable is not known for known in begin))]

    def _quantized_form(self, policy: DTypePolicy) -> Form | None:
        mode = policy.quantization_mode
        if mode is None or type(self).call is not self._implementation().call or not self._can_quantize(False):
            return None
        if policy.scheme is None and mode in FORMS and mode not in self._modes:
            return None
        return self._form_under(policy, ours=True)

    # ---- attributes and configurations

    if not TYPE_CHECKING:  # type checkers use the declared attributes

        def __getattr__(self, name: str) -> Any:
            form = vars(self).get("form")
            if form is not None and name in form.variables:
                return form.attribute(name)
            if form is None and name in ("form", "matrix", "inputs", self._matrix_name):
                raise AttributeError(f"You must build the layer before accessing `{name}`.")
            if name in ("input", "output"):
                end_of(self, name)  # raises an error that explains how to get one
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'", name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        form = vars(self).get("form")
        if form is not None and name in form.variables:
            raise AttributeError(f"`{name}` of layer '{self.name}' is a variable of its form: assign to it")
        super().__setattr__(name, value)

    def _form_in_config(self, given: DTypePolicy) -> dict[str, Any] | None:
        if not self.built or self.form.is_float:
            return None
        made = self._new_form(self.form.geometry, self._policy())
        if given == self._policy() and type(made) is type(self.form) and made.config() == self.form.config():
            return None
        return {"form": self.form.name, "policy": self._policy().name} | self.form.config()

    @classmethod
    def _under_quantizers(cls, config: dict[str, Any], quantizers: Any) -> dict[str, Any]:
        if has_floating_inputs(quantizers, cls._shared_axes(config)) and not cls._is_table:
            return config | {"dtype": weight_only(cls._get_policy(config.get("dtype")))}
        return config

    @classmethod
    def _shared_axes(cls, config: dict[str, Any]) -> tuple[set[int], int]:
        """Return the axes of the float variable along which scales are shared, and its number of axes."""
        return {int(cls._is_table)}, 2


def set_form(layer: MatrixLayer, form: Form) -> None:
    """Set the form of a layer; its variables exist already. The variables of the old form are dropped."""
    layer._set_form(form)
