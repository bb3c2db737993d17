"""The policy of a layer: the dtypes in which it stores and computes, and how its weights are quantized.

Weights are quantized in place, by a policy that is set, or in a copy; all of them, or none if one fails.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, Self

from mp_core.arrays import dtypes
from mp_core.arrays.quantization.codes import CODES
from mp_core.core.changes import undone_if_it_fails
from mp_core.layers.base.contents import contents_of
from mp_core.layers.base.losses import LossOwner
from mp_core.layers.filters import chooser
from mp_core.layers.forms import Form
from mp_core.policies import dtype_policies
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.dtype_policies import QUANTIZATION_MODES, DTypePolicy, DTypePolicyMap, QuantizedDTypePolicy
from mp_core.policies.dtype_policies.map import policy_at, unquantized
from mp_core.policies.dtype_policies.quantized import parse_quantized
from mp_core.policies.quantizers.configurations import mode_and_quantizers
from mp_core.utilities.arguments import boolean

__all__ = [
    "UNSCOPED",
    "PolicyOwner",
    "already_quantized",
    "apply_to_all",
    "computes_in",
    "convert_to",
    "form_under",
    "forms_where",
    "policy_of",
]

UNSCOPED: Any = object()
"""In the place of the scope of variables, where a call runs in none."""


class PolicyOwner(LossOwner):
    """The part of a layer that has its policy, and quantizes its weights."""

    quantized: bool
    _dtype_policy: DTypePolicy
    _get_policy = staticmethod(dtype_policies.get)  # the tf.keras face has its own rule
    _modes: tuple[str, ...] = ()
    """The quantization modes in which a layer computes."""
    _keeps_dtype: bool = False  # whether the dtype is that of data, which :meth:`with_policy` leaves as it is
    _dtype_at_build: str = ""
    """The dtype of variables that the policy said when :meth:`build` was called first."""
    exceeds_float16: bool = False
    """Whether outputs are beyond the range of float16, so that calls compute in float32 instead."""

    @property
    def dtype_policy(self) -> DTypePolicy:
        """The policy, or the map in which it is looked up.

        Setting it changes what a built layer computes in, not what it stores; a quantized policy quantizes the layer,
        ``"int4_from_..."`` in blocks of 128, so that it becomes ``"int4/128_from_..."``. If the layer has a map, the
        map gets the new policy for `path`.
        """
        return self._dtype_policy

    @dtype_policy.setter
    def dtype_policy(self, value: Any) -> None:
        self._change_policy(self._get_policy(value))

    def _change_policy(self, policy: DTypePolicy) -> None:
        """Compute under another policy, which may quantize the layer; if that fails, nothing has changed."""
        mode = policy.quantization_mode if isinstance(policy, QuantizedDTypePolicy) else None
        is_quantized = _is_quantized(self)
        if is_quantized and not self._keeps_form(policy):
            raise already_quantized(self, f"dtype_policy={policy.name}")
        if is_quantized or not self.built or mode is None:
            undone_if_it_fails(contents_of([self]), self._set_policy, policy)
        elif mode == "gptq":
            raise ValueError("Implicitly enabling GPTQ quantization by setting `dtype_policy` is not supported.")
        else:
            config = policy.get_config()
            target = _policy_of_mode("int4", config["source_name"]) if config["mode"] == "int4" else policy
            self._quantize_parts(config["mode"], lambda _: target)

    def _set_policy(self, policy: DTypePolicy) -> None:
        owner = self._dtype_policy
        if isinstance(owner, DTypePolicyMap) and self._path:
            owner.replace(self._path, policy)
        else:
            self._dtype_policy = policy
        self._apply_policy()

    def _policy(self) -> DTypePolicy:
        return policy_at(self._dtype_policy, self._path)

    def _apply_policy(self) -> None:
        """Work out once what every call needs: the dtypes of inputs and outputs, and the scopes of its variables."""
        policy = self._policy()
        self._convert_input = policy.convert_input
        self._applied = policy
        self._casting = self.autocast, self.compute_dtype
        self._compute: Any = dtypes.ALLOWED.get(self.compute_dtype)
        self._output: Any = dtypes.ALLOWED.get(self._without_overflow(policy.output_dtype))
        floating = self._compute is not None and dtypes.is_float(self._compute)
        mixed = floating and (self.compute_dtype != policy.variable_dtype or self._stores_others())
        self._outer_scope = self._compute if mixed else UNSCOPED
        self._nested_scope = self._compute if floating and self.autocast else None

    def _stores_others(self) -> bool:
        """Whether variables were built under another policy, in another dtype than the compute dtype.

        One that has a dtype of its own, such as those of LoRA, is none of them, as in Keras.
        """
        then = self._dtype_at_build
        is_other = self.built and then != self.compute_dtype
        return is_other and any(v.autocast and v.true_dtype.name == then for v in self.own_variables())

    @property
    def compute_dtype(self) -> str:
        """The dtype in which calls compute, which the policy says.

        Some layers of :mod:`mp_core.models` compute in float32 where it says float16.
        """
        return self._without_overflow(self._applied.compute_dtype)

    def _without_overflow(self, dtype: str) -> str:
        return "float32" if self.exceeds_float16 and dtype == "float16" else dtype

    @property
    def variable_dtype(self) -> str:
        """The dtype of the variables, which the policy says."""
        return self._applied.variable_dtype

    @property
    def quantization_mode(self) -> str | None:
        """The quantization mode, which the policy says."""
        return self._applied.quantization_mode

    @property
    def autocast(self) -> bool:
        """Whether floating-point arguments are cast to the compute dtype."""
        on: bool = vars(self)["autocast"]
        return on

    @autocast.setter
    def autocast(self, value: bool) -> None:
        undone_if_it_fails(contents_of([self]), self._set_autocast, boolean(value, "autocast"))

    def _set_autocast(self, on: bool) -> None:
        vars(self)["autocast"] = on
        self._apply_policy()

    @property
    def dtype(self) -> str:
        """The dtype of the variables."""
        return self.variable_dtype

    @property
    def input_dtype(self) -> str:
        """The dtype to which inputs are cast."""
        return self.compute_dtype

    def with_policy(self, policy: Any) -> Self:
        """Return a copy that stores, computes and quantizes as if it had been made under another policy.

        A subclass of Dense, EinsumDense or Embedding with a ``call`` of its own stays in floats.

        Parameters
        ----------
        policy : DTypePolicy, str, dict or dtype
            Of this layer and those below it; a map is looked up by their paths.

        Raises
        ------
        ValueError
            The layer is not built, weights are quantized already, or are to be and not finite; a dtype of `policy` is
            not floating-point.
        NotImplementedError
            A layer does not compute in a quantization mode of `policy`.

        Examples
        --------
        >>> import numpy as np
        >>> from mp_core.layers import Dense
        >>> layer = Dense(2, kernel_initializer="ones")
        >>> layer.build((None, 3))
        >>> layer.with_policy("bfloat16")(np.ones((1, 3))), layer.dtype
        (array([[3, 3]], dtype=bfloat16), 'float32')
        """
        return self._copy_under(self._get_policy(policy))

    def _copy_under(self, policy: DTypePolicy) -> Self:
        parts = list(self.flatten())
        if not self.built or any(part.quantized for part in parts):
            state = "quantized" if self.built else "not built"
            raise ValueError(f"`with_policy` needs a built layer with unquantized weights; '{self.name}' is {state}.")
        plain = unquantized(policy)
        moved: dict[int, Any] = {}  # what deepcopy takes instead of copying
        for part in parts:
            wanted = policy_at(plain, part.path).variable_dtype
            if wanted not in dtypes.ALLOWED or not dtypes.is_float(dtypes.ALLOWED[wanted]):
                raise ValueError(f"`with_policy` needs floating-point dtypes; '{part.name}' would store {wanted}")
            moved |= {id(v): v.stored_as(wanted if part._follows_policy(v) else None) for v in part.own_variables()}
        copy = deepcopy(self, moved)
        for part in copy.flatten():
            if not part._keeps_dtype:
                part._dtype_policy = part._get_policy(plain)
                part._apply_policy()
        convert_to(forms_where(copy, policy))
        return copy

    # ---- quantization

    def quantize(
        self, mode: str | None = None, type_check: bool = True, config: Any = None, filters: Any = None
    ) -> None:
        """Quantize the weights of this layer, or of the layers below it, in place.

        Parameters
        ----------
        mode : str, optional
            What a policy's name has before ``_from_``: ``"int8"``, ``"int8/weight_only"``, ``"int4"`` (blocks of 128)
            or ``"int4/<block size>"``, ``"float8"``. Not needed beside a `config`.
        type_check : bool
            Refuse subclasses of the layers that have an implementation.
        config : QuantizationConfig, optional
            One of :mod:`mp_core.quantizers` or of Keras, with the quantizers that its mode has by default.
        filters : str, sequence of str or callable, optional
            Only these layers: regular expressions, one of which is found in the name of a layer, or a function of the
            layer. The policy of what holds them stays as it is.

        Raises
        ------
        ValueError
            The layer is not built, is quantized already, or has weights that are not finite; `mode` does not exist, or
            not work with its policy; `config` says something else than `mode`, or other quantizers; `filters` are
            wrong, or choose no layer that can be quantized.
        NotImplementedError
            The layer, or mp_core, does not compute in `mode`. In every case nothing has changed.

        Examples
        --------
        >>> from mp_core.layers import Dense, Sequential
        >>> model = Sequential([Dense(64, name="hidden"), Dense(2, name="head")])
        >>> model.build((None, 8))
        >>> model.quantize("int8", filters="hidden")
        >>> [layer.quantization_mode for layer in model.layers]
        ['int8', None]
        """
        mode, quantizers = mode_and_quantizers(mode, config)
        if not self.built:
            raise ValueError(f"Cannot quantize a layer that isn't yet built. Layer '{self.name}' isn't built yet.")
        if _is_quantized(self):
            raise already_quantized(self, f"mode={mode}")
        self._quantize_parts(
            mode,
            lambda part: _policy_of_mode(part._mode_under(mode, quantizers), part._policy().name),
            type_check,
            filters,
        )

    def _quantize_parts(
        self,
        mode: str,
        policy_of: Callable[["PolicyOwner"], DTypePolicy],
        type_check: bool = True,
        filters: Any = None,
    ) -> None:
        """Quantize this layer and those below it that are meant, each under its policy."""
        family, chosen = mode.partition("/")[0], chooser(filters)
        every = [part for part in self.flatten() if part._can_quantize(type_check)]
        known = [part for part in every if chosen(part)]
        if filters is not None and not known:
            raise ValueError(f"`filters` must choose one of {[part.name for part in every]}; received {filters!r}")
        parts = [part for part in known if family in CODES or family in part._modes]
        if not parts and family in (*QUANTIZATION_MODES, *CODES):
            modes = tuple(dict.fromkeys(name for part in known for name in part._modes))
            raise NotImplementedError(
                f"Invalid quantization mode. Expected one of {modes}. Received: mode={mode}"
                if modes
                else f"{type(self).__name__} cannot be quantized: Dense, EinsumDense and Embedding can, with "
                "`type_check=False` their subclasses, and the layers that hold them."
            )
        own = policy_of(self)
        policies = [policy_of(part) for part in parts]
        forms: Forms = [(part, part._form_under(policy)) for part, policy in zip(parts, policies, strict=True)]
        whole = own if filters is None else None
        undone_if_it_fails(contents_of([self, *parts]), self._convert_below, forms, whole)

    def _convert_below(self, forms: "Forms", own: DTypePolicy | None) -> None:
        """Bring layers into forms, and this one that holds them, if all of it is quantized, under its own policy."""
        _convert(forms)
        is_among = any(part is self for part, _ in forms)
        if own is not None or is_among:
            self.quantized = True
        if own is not None and not is_among:
            self._set_policy(own)

    # What a layer with a matrix says of it. The others have none.

    def _mode_under(self, mode: str, quantizers: dict[str, Any] | None) -> str:
        """Return the mode of this layer; raise ValueError for quantizers that are not the default ones."""
        return mode

    def _can_quantize(self, type_check: bool) -> bool:
        """Whether this type, or unless `type_check` a base of it, has a matrix that can be quantized."""
        return False

    def _form_under(self, policy: DTypePolicy) -> Form:
        """Return the form to which a policy quantizes the matrix, checked but without variables."""
        raise NotImplementedError

    def _convert(self, form: Form) -> None:
        """Bring the floats of the matrix into another form."""
        raise NotImplementedError

    def _form_where(self, policy: DTypePolicy) -> Form | None:
        """Return the checked form that `policy` makes of the matrix of this layer; None if it has none, or stays."""
        return None

    def _keeps_form(self, policy: DTypePolicy) -> bool:
        """Whether the matrix need not change its form under another policy."""
        return True

    def _follows_policy(self, variable: AutoCastVariable) -> bool:
        """Whether the policy says the dtype in which a variable is stored."""
        return variable.true_dtype.name == self.dtype

    # ---- pickles

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self._apply_policy()  # a dtype that was pickled is equal to the original, but not the same object


Forms = list[tuple[PolicyOwner, Form]]
"""Layers, each with the form that it gets."""


def policy_of(layer: PolicyOwner) -> DTypePolicy:
    """Return the policy of a layer: of a map the one for its path."""
    return layer._policy()


def apply_to_all(layers: Iterable[PolicyOwner], policy: DTypePolicy) -> None:
    """Let layers compute under a policy, whatever theirs were: it quantizes none, and no map is changed."""
    for layer in layers:
        layer._dtype_policy = policy
        layer._apply_policy()


def computes_in(layer: PolicyOwner, dtype: Any) -> bool:
    """Whether a call of a layer inside of another computes in this dtype, and returns it."""
    return layer._nested_scope is dtype and layer._output is dtype


def form_under(layer: PolicyOwner, policy: DTypePolicy) -> Form:
    """Return the form to which a policy quantizes the matrix of a layer, checked but without variables."""
    return layer._form_under(policy)


def forms_where(layer: PolicyOwner, policy: DTypePolicy) -> Forms:
    """Return `layer` and those below it with checked forms where `policy`, or a map's for their paths, names codes.

    Subclasses of layers that know how do so too, unless they have a ``call`` of their own. A mode that other layers
    compute in, as float8 for an Embedding, leaves a layer as it is.
    """
    forms = [(part, part._form_where(policy_at(policy, part.path))) for part in layer.flatten()]
    return [(part, form) for part, form in forms if form is not None]


def convert_to(forms: Forms) -> None:
    """Bring layers into forms, and under the policies of these; if that fails, none has changed."""
    undone_if_it_fails(contents_of([part for part, _ in forms]), _convert, forms)


def already_quantized(layer: PolicyOwner, received: str) -> ValueError:
    """Return the error that a quantized layer raises for what would quantize it once more."""
    return ValueError(
        f"Layer '{layer.name}' is already quantized with dtype_policy='{layer._policy().name}'. Received: {received}"
    )


def _is_quantized(layer: PolicyOwner) -> bool:
    """Whether a layer, or as its policy says those below it, hold quantized weights already."""
    return layer.quantized or layer.quantization_mode is not None


def _convert(forms: Forms) -> None:
    for part, form in forms:
        part._convert(form)
        part._set_policy(form.policy)


def _policy_of_mode(mode: str, source_name: str) -> DTypePolicy:
    """Return the policy that :meth:`Layer.quantize` gives: of Keras' blocks where `mode` leaves their size open."""
    if mode == "int4":
        mode = "int4/128"
    return parse_quantized(f"{mode}_from_{source_name}")
