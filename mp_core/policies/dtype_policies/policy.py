"""Plain dtype policies and the default policy of the process."""

from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np

from mp_core.arrays import cast, dtypes, imported
from mp_core.arrays.products.panels import PackedMatrix
from mp_core.arrays.quantization import QuantizedArray
from mp_core.core.scopes import innermost, replace_innermost
from mp_core.policies.dtype_policies.schemes import Scheme
from mp_core.utilities.registry import own_config
from mp_core.utilities.suggest import suggestion

__all__ = [
    "MIXED",
    "DTypePolicy",
    "FloatDTypePolicy",
    "default_as_set",
    "dtype_policy",
    "replace_default",
    "scoped_default",
    "standardize_dtype",
]

_ALLOWED = frozenset(dtypes.ALLOWED) | {"string", "complex64", "complex128"}
_PYTHON_TYPES = {
    bool: "bool",
    int: "int32",
    float: "float32",
    str: "string",
    complex: "complex64",
    "int": "int32",
}
MIXED = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
"""Name of a policy with float32 variables -> the type in which it computes."""
_ROLES = {"p": "params", "params": "params", "c": "compute", "compute": "compute", "o": "output", "output": "output"}
_SHORT_DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "half": "float16",
    "f32": "float32",
    "full": "float32",
    "f64": "float64",
}


class _Spec(NamedTuple):
    name: str
    variable: str
    compute: str
    output: str


def standardize_dtype(dtype: Any) -> str:
    """Return Keras' name of a dtype.

    Parameters
    ----------
    dtype : str, numpy.dtype, scalar type, Python type, dtype of PyTorch or TensorFlow, or None
        None means :func:`mp_core.dtypes.floatx`. NumPy's own spellings, such as ``"half"`` and ``"f4"``, are not
        accepted.

    Examples
    --------
    >>> standardize_dtype(np.float16), standardize_dtype("int"), standardize_dtype(float)
    ('float16', 'int32', 'float32')
    """
    if dtype is None:
        return dtypes.floatx()
    if isinstance(dtype, (str, type)):
        dtype = _PYTHON_TYPES.get(dtype, dtype)
    name = getattr(dtype, "name", getattr(dtype, "__name__", dtypes.foreign_name(dtype)))
    name = dtype if isinstance(dtype, str) else name
    if name not in _ALLOWED:
        raise ValueError(f"Invalid dtype: {dtype!r}. Expected one of {', '.join(sorted(_ALLOWED))}.")
    return str(name)


def _parse_roles(text: str) -> _Spec:
    """Parse ``params=float32,compute=bfloat16,output=float32`` (jmp's grammar: short names, any subset, any order)."""
    roles: dict[str, str] = {}
    for item in text.split(","):
        key, _, value = item.partition("=")
        dtype = _SHORT_DTYPES.get(value, value)
        if key not in _ROLES:
            raise ValueError(f"Unknown key {key!r}; expected one of {', '.join(_ROLES)}.")
        if dtype not in dtypes.ALLOWED or not dtypes.is_float(dtypes.ALLOWED[dtype]):
            raise ValueError(f"Unknown dtype {value!r}; expected a float type such as 'float32' or 'bf16'.")
        roles[_ROLES[key]] = dtype
    variable = roles.get("params", "float32")
    compute = roles.get("compute", variable)
    output = roles.get("output", compute)
    return _Spec(f"params={variable},compute={compute},output={output}", variable, compute, output)


@lru_cache(maxsize=256)
def _parse(name: str) -> _Spec:
    if name in MIXED:
        return _Spec(name, "float32", MIXED[name], MIXED[name])
    try:
        if "=" in name:
            return _parse_roles(name)
        dtype = standardize_dtype(name)
    except ValueError as error:
        is_plain = "_from_" not in name and "/" not in name  # other names are quantized policies, which `get` takes
        hint = suggestion(name, (*MIXED, *sorted(_ALLOWED))) if is_plain else ""
        raise ValueError(
            f"Cannot convert '{name}' to a mixed precision DTypePolicy{hint or '.'} Expected 'mixed_float16', "
            "'mixed_bfloat16', the name of a dtype such as 'float32', or "
            f"'params=float32,compute=bfloat16,output=float32'. {error}"
        ) from None
    return _Spec(name, dtype, dtype, dtype)


class DTypePolicy:
    """The dtypes in which a layer stores its variables, computes, and returns its outputs.

    It is immutable and hashable. Two policies are equal if their classes and names are equal; ``DTypePolicy`` and
    ``FloatDTypePolicy`` count as one class. float8 policies must also have equal lengths of history.

    Parameters
    ----------
    name : str, optional
        ``"mixed_float16"``, ``"mixed_bfloat16"``, the name of a dtype, or
        ``"params=float32,compute=bfloat16,output=float32"``. Default: the name of :func:`dtype_policy`.

    Examples
    --------
    >>> policy = DTypePolicy("mixed_bfloat16")
    >>> policy, policy.compute_dtype, policy.variable_dtype
    (<DTypePolicy "mixed_bfloat16">, 'bfloat16', 'float32')
    >>> DTypePolicy("c=bf16,o=f32").output_dtype
    'float32'
    """

    __slots__ = ("_name", "_spec")

    def __init__(self, name: str | None = None) -> None:
        if name is None:
            name = dtype_policy().name
        if not isinstance(name, str):
            raise TypeError(
                f"'name' must be a string, such as 'mixed_float16'. Received: name={name} (of type {type(name)})"
            )
        self._spec = _parse(name)
        self._name = self._spec.name

    def __reduce_ex__(self, protocol: Any) -> Any:
        return super().__reduce_ex__(max(protocol, 2))  # older protocols cannot pickle __slots__

    @property
    def name(self) -> str:
        """The name. :func:`get` accepts it, unless it begins with the name of a quantization mode."""
        return self._name

    @property
    def compute_dtype(self) -> str:
        """The dtype in which the layer computes."""
        return self._spec.compute

    @property
    def variable_dtype(self) -> str:
        """The dtype in which the layer stores its variables."""
        return self._spec.variable

    @property
    def output_dtype(self) -> str:
        """The dtype of the layer's outputs: the compute dtype unless the name says otherwise."""
        return self._spec.output

    @property
    def quantization_mode(self) -> str | None:
        """The quantization mode, None for a plain policy."""
        return None

    @property
    def scheme(self) -> Scheme | None:
        """How layers store quantized weights; None for plain policies and for modes, such as gptq, without one."""
        return None

    def convert_input(self, x: Any, autocast: bool, dtype: str) -> Any:
        """Cast `x` to `dtype` if it is a floating-point array and `autocast` is true.

        Objects without ``__array__`` or ``__dlpack__`` (Python numbers, strings, None) are returned as they are.
        Integer, boolean and complex arrays are never cast.
        """
        if not isinstance(x, np.ndarray):
            offered = hasattr(x, "__array__") or (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"))
            if not offered or isinstance(x, QuantizedArray | PackedMatrix):
                return x
            x = imported(x, "inputs")
        if not autocast or not dtypes.is_float(x.dtype):
            return x
        target = dtypes.parse(dtype)
        return x if x.dtype is target else cast(x, target)

    def of_keras(self) -> "DTypePolicy":
        """Return the equivalent policy of Keras 3: itself, unless its class is one of another API, such as tf.keras."""
        return self

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that construct an equal policy."""
        return {"name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the policy with the arguments `config`."""
        return cls(**own_config(config, "policy"))

    def __repr__(self) -> str:
        return f'<{_kind(self).__name__} "{self.name}">'

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DTypePolicy) and _kind(self) is _kind(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((_kind(self), self._key()))

    def _key(self) -> tuple[Any, ...]:
        """Return the key by which policies of one class are compared."""
        return (self.name,)


class FloatDTypePolicy(DTypePolicy):
    """Keras' other name of :class:`DTypePolicy`: equal to it and printed like it, but serialized under its own name.

    >>> FloatDTypePolicy("mixed_float16") == DTypePolicy("mixed_float16")
    True
    """

    __slots__ = ()


def _kind(policy: DTypePolicy) -> type[DTypePolicy]:
    return DTypePolicy if type(policy) is FloatDTypePolicy else type(policy)


_default: DTypePolicy | None = None
scoped_default: ContextVar[Any] = ContextVar("mp_core.dtype_policy")
"""The default inside :func:`policy_scope`, in this thread or task."""


def dtype_policy() -> DTypePolicy:
    """Return the default policy of new layers. If none was set, it has the name :func:`mp_core.dtypes.floatx`.

    >>> dtype_policy()
    <DTypePolicy "float32">
    """
    return default_as_set().of_keras()


def default_as_set() -> DTypePolicy:
    """Return the default policy with the class that was set, which may be that of another API, such as tf.keras."""
    for policy in (innermost(scoped_default.get(None), None), _default):
        if policy is not None:  # an empty DTypePolicyMap is falsy
            return policy
    return DTypePolicy(dtypes.floatx())


def replace_default(policy: DTypePolicy | None) -> None:
    """Set the default policy of the innermost scope, or else of the process; None follows floatx again."""
    global _default
    if not replace_innermost(scoped_default, DTypePolicy(dtypes.floatx()) if policy is None else policy):
        _default = policy
