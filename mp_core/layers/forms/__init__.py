"""Forms: how layers store their matrices and multiply by them. ``FORMS`` lists all forms."""

from mp_core.layers.forms.codes import Codes
from mp_core.layers.forms.fitted import KerasAWQ, KerasGPTQ
from mp_core.layers.forms.form import Float, Form, Geometry, Variable
from mp_core.layers.forms.keras import KerasFloat8, KerasInt4, KerasInt8
from mp_core.layers.forms.products import Inputs
from mp_core.layers.forms.ternary import Ternary
from mp_core.policies.dtype_policies import QUANTIZATION_MODES, DTypePolicy

__all__ = ["FORMS", "Codes", "Float", "Form", "Geometry", "Inputs", "Variable", "add_form", "form_of", "modes"]


def __dir__() -> list[str]:
    return __all__


_OURS = (Float, Codes, KerasInt8, KerasInt4, KerasFloat8, KerasGPTQ, KerasAWQ, Ternary)
FORMS: dict[str, type[Form]] = {form.name: form for form in _OURS}
"""Name -> form. A form with Keras' variables has the name of its quantization mode."""


def add_form(form: type[Form]) -> type[Form]:
    """Add a form to the table and return it; usable as a decorator.

    Parameters
    ----------
    form : subclass of Form
        Its `name` must be a quantization mode of policies. It replaces the form that has this name.

    Raises
    ------
    TypeError
        `form` is not a subclass of Form.
    ValueError
        Its `name` is not a quantization mode.

    Examples
    --------
    >>> ours = FORMS["ternary"]
    >>> @add_form
    ... class Unpacked(Form):
    ...     name = "ternary"
    >>> FORMS["ternary"].__name__
    'Unpacked'
    >>> add_form(ours).__name__
    'Ternary'
    """
    if not (isinstance(form, type) and issubclass(form, Form)):
        raise TypeError(f"`form` must be a subclass of Form; received {form!r}")
    name = getattr(form, "name", None)
    if name not in QUANTIZATION_MODES:
        raise ValueError(f"the `name` of a form must be one of {', '.join(QUANTIZATION_MODES)}; received {name!r}")
    FORMS[form.name] = form
    return form


def form_of(policy: DTypePolicy, *, ours: bool) -> type[Form] | None:
    """Return the form for a policy; None if there is none.

    Parameters
    ----------
    policy : DTypePolicy
    ours : bool
        Whether schemes that Keras has too, such as int8, use :class:`Codes` instead of Keras' variables.

    Examples
    --------
    >>> form_of(DTypePolicy("mixed_bfloat16"), ours=True).name
    'float'
    >>> from mp_core.dtype_policies import get
    >>> [form_of(get("int8_from_float32"), ours=ours).__name__ for ours in (True, False)]
    ['Codes', 'KerasInt8']
    """
    mode = policy.quantization_mode
    form = FORMS.get("float" if mode is None else mode)
    keras = form is not None and form.makes(policy)
    return Codes if policy.scheme is not None and (ours or not keras) else form


def modes(*, tables: bool) -> tuple[str, ...]:
    """Return the quantization modes that have a form: for tables if `tables`, else for kernels.

    Examples
    --------
    >>> modes(tables=False), modes(tables=True)  # tables have none of the others
    (('int8', 'int4', 'float8', 'gptq', 'awq', 'ternary'), ('int8', 'int4', 'ternary'))
    """
    return tuple(name for name, form in FORMS.items() if name in QUANTIZATION_MODES and (form.looks_up or not tables))
