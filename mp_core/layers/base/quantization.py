"""The policy of a layer: the dtypes in which it stores and computes, and how its weights are quantized.

Weights are quantized in place (``quantize``), by setting ``dtype_policy``, or in a copy (``with_policy``). If one layer
fails, none is changed.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial
from typing import Any, Self

from mp_core.arrays import dtypes
from mp_core.arrays.quantization.codes import CODES
from mp_core.arrays.quantization.microscaling import MICROSCALING
from mp_core.core.changes import undone_if_it_fails
from mp_core.layers.base.contents import contents_of
from mp_core.layers.base.fitted_blocks import convert_on_sample
from mp_core.layers.base.losses import LossOwner
from mp_core.layers.base.state import flat_layers
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
    "policy_of",
    "quantized_forms",
]

UNSCOPED: Any = object()
"""Sentinel: no scope sets the dtype in which variables are read."""


class PolicyOwner(LossOwner):
    """Base of layers: has the policy, and quantizes the weights."""

    quantized: bool
    _dtype_policy: DTypePolicy
    _get_policy = staticmethod(dtype_policies.get)  # the tf.keras face has its own rule
    _modes: tuple[str, ...] = ()
    """The quantization modes in which a layer computes."""
    _keeps_dtype: bool = False  # whether the dtype describes data, so that :meth:`with_policy` does not change it
    _dtype_at_build: str = ""
    """The policy's variable dtype when :meth:`build` was called first."""
    exceeds_float16: bool = False
    """Whether outputs exceed the range of float16, so that calls compute in float32 instead."""

    @property
    def dtype_policy(self) -> DTypePolicy:
        """The policy, or the map in which it is looked up.

        Setting it changes the dtype in which a built layer computes, not the dtype of its variables. A quantized
        policy quantizes the layer; ``"int4_from_..."`` becomes ``"int4/128_from_..."``, with blocks of 128. If the
        layer has a map, the entry for `path` is replaced.
        """
        return self._dtype_policy

    @dtype_policy.setter
    def dtype_policy(self, value: Any) -> None:
        self._change_policy(self._get_policy(value))

    def _change_policy(self, policy: DTypePolicy) -> None:
        """Set another policy, which may quantize the layer; if that fails, nothing changes."""
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
        """Cache what every call needs: the dtypes of inputs and outputs, and the scopes of variables."""
        policy = self._policy()
        self._convert_input = policy.convert_input
        self._applied_policy = policy
        self._casting = self.autocast, self.compute_dtype
        self._compute: Any = dtypes.ALLOWED.get(self.compute_dtype)
        self._output: Any = dtypes.ALLOWED.get(self._without_overflow(policy.output_dtype))
        floating = self._compute is not None and dtypes.is_float(self._compute)
        mixed = floating and (self.compute_dtype != policy.variable_dtype or self._stores_others())
        self._outer_scope = self._compute if mixed else UNSCOPED
        self._nested_scope = self._compute if floating and self.autocast else None

    def _stores_others(self) -> bool:
        """Return whether variables were built under another policy, in another dtype than the compute dtype.

        Variables created with an explicit dtype, as those of LoRA, do not count, as in Keras.
        """
        then = self._dtype_at_build
        is_other = self.built and then != self.compute_dtype
        return is_other and any(v.autocast and v.true_dtype.name == then for v in self.own_variables())

    @property
    def compute_dtype(self) -> str:
        """The policy's compute dtype.

        Some layers of :mod:`mp_core.models` replace float16 by float32, because their outputs exceed its range.
        """
        return self._without_overflow(self._applied_policy.compute_dtype)

    def _without_overflow(self, dtype: str) -> str:
        return "float32" if self.exceeds_float16 and dtype == "float16" else dtype

    @property
    def variable_dtype(self) -> str:
        """The policy's dtype of variables."""
        return self._applied_policy.variable_dtype

    @property
    def quantization_mode(self) -> str | None:
        """The policy's quantization mode."""
        return self._applied_policy.quantization_mode

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

        A subclass of Dense, EinsumDense, Embedding or a convolution that defines ``call`` is not quantized.

        Parameters
        ----------
        policy : DTypePolicy, str, dict or dtype
            For this layer and those below it; a map is looked up by their paths.

        Raises
        ------
        ValueError
            The layer is not built, or weights are quantized already or not finite.
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
        parts = list(flat_layers(self))
        if not self.built or any(part.quantized for part in parts):
            state = "quantized" if self.built else "not built"
            raise ValueError(f"`with_policy` needs a built layer with unquantized weights; '{self.name}' is {state}.")
        plain = unquantized(policy)
        moved: dict[int, Any] = {}  # memo of deepcopy: variable -> its copy in the new dtype
        for part in parts:
            wanted = policy_at(plain, part.path).variable_dtype
            if wanted not in dtypes.ALLOWED or not dtypes.is_float(dtypes.ALLOWED[wanted]):
                raise ValueError(f"`with_policy` needs floating-point dtypes; '{part.name}' would store {wanted}")
            moved |= {id(v): v.stored_as(wanted if part._follows_policy(v) else None) for v in part.own_variables()}
        copy = deepcopy(self, moved)
        for part in flat_layers(copy):
            if not part._keeps_dtype:
                part._dtype_policy = part._get_policy(plain)
                part._apply_policy()
        convert_to(quantized_forms(copy, policy))
        return copy

    # ---- quantization

    def quantize(
        self, mode: str | None = None, type_check: bool = True, config: Any = None, filters: Any = None
    ) -> None:
        """Quantize the weights of this layer, or of the layers below it, in place.

        Parameters
        ----------
        mode : str, optional
            The part of a policy's name before ``_from_``: ``"int8"``, ``"int8/weight_only"``, ``"int4"`` (blocks of
            128), ``"int4/<block size>"``, ``"gptq/<bits>/<group size>"``, ``"awq/4/<group size>"`` or ``"float8"``. Not
            needed with a `config`.
        type_check : bool
            Reject subclasses of the layers that have an implementation.
        config : QuantizationConfig, optional
            One of :mod:`mp_core.quantizers` or of Keras, with the default quantizers of its mode. With the dataset of
            a GPTQConfig or an AWQConfig, the kernels of the blocks that it names are fitted to this sample, block after
            block; the layers outside of all blocks stay floats.
        filters : str, sequence of str or callable, optional
            Quantize only these layers: regular expressions that are searched in a layer's name, or a function of the
            layer. The policies of the layers that hold them do not change.

        Raises
        ------
        ValueError
            The layer is not built, is quantized already, or has weights that are not finite; `mode` does not fit the
            layer's policy; or `filters` match no layer that can be quantized.
        NotImplementedError
            The layer, or mp_core, does not compute in `mode`. After any error nothing has changed.

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
        convert = None
        if getattr(config, "dataset", None) is not None:
            convert = partial(convert_on_sample, self, config, _convert)
        self._quantize_parts(
            mode,
            lambda part: _policy_of_mode(part._mode_under(mode, quantizers), part._policy().name),
            type_check,
            filters,
            convert,
        )

    def _quantize_parts(
        self,
        mode: str,
        policy_of: Callable[["PolicyOwner"], DTypePolicy],
        type_check: bool = True,
        filters: Any = None,
        convert: "Callable[[Forms], None] | None" = None,
    ) -> None:
        """Quantize this layer and those below it that match `filters`, each under ``policy_of(layer)``.

        `convert` converts the layers to their forms. Default: without a sample.
        """
        family, chosen, known_codes = mode.partition("/")[0], chooser(filters), (*CODES, *MICROSCALING)
        every = [part for part in flat_layers(self) if part._can_quantize(type_check)]
        known = [part for part in every if chosen(part)]
        if filters is not None and not known:
            raise ValueError(f"`filters` must choose one of {[part.name for part in every]}; received {filters!r}")
        parts = [part for part in known if family in known_codes or family in part._modes]
        if not parts and family in (*QUANTIZATION_MODES, *known_codes):
            modes = tuple(dict.fromkeys(name for part in known for name in part._modes))
            raise NotImplementedError(
                f"Invalid quantization mode. Expected one of {modes}. Received: mode={mode}"
                if modes
                else f"{type(self).__name__} cannot be quantized: Dense, EinsumDense, Embedding and Conv can, with "
                "`type_check=False` their subclasses, and the layers that hold them."
            )
        own = policy_of(self)
        policies = [policy_of(part) for part in parts]
        forms: Forms = [(part, part._form_under(policy)) for part, policy in zip(parts, policies, strict=True)]
        whole = own if filters is None else None
        undone_if_it_fails(contents_of([self, *parts]), self._convert_below, convert or _convert, forms, whole)

    def _convert_below(self, convert: "Callable[[Forms], None]", forms: "Forms", own: DTypePolicy | None) -> None:
        """Convert layers to forms; if this layer is not among them, set its policy `own`, unless that is None."""
        convert(forms)
        is_among = any(part is self for part, _ in forms)
        if own is not None or is_among:
            self.quantized = True
        if own is not None and not is_among:
            self._set_policy(own)

    # Layers with a matrix override these methods.

    def _mode_under(self, mode: str, quantizers: dict[str, Any] | None) -> str:
        """Return the mode for this layer; raise ValueError for quantizers that are not the default ones."""
        return mode

    def _can_quantize(self, type_check: bool) -> bool:
        """Return whether this class has a matrix that can be quantized; without `type_check` a base class is enough."""
        return False

    def _form_under(self, policy: DTypePolicy) -> Form:
        """Return the form that a policy gives the matrix; the weights are checked, the form has no variables yet."""
        raise NotImplementedError

    def _convert(self, form: Form) -> None:
        raise NotImplementedError

    def _quantized_form(self, policy: DTypePolicy) -> Form | None:
        """Return the checked form that `policy` gives the matrix; None if there is none, or its form stays the same."""
        return None

    def _keeps_form(self, policy: DTypePolicy) -> bool:
        return True

    def _follows_policy(self, variable: AutoCastVariable) -> bool:
        """Return whether a variable is stored in the policy's variable dtype."""
        return variable.true_dtype.name == self.dtype

    # ---- pickles

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self._apply_policy()  # calls compare dtypes by identity; an unpickled dtype is equal, but another object


Forms = list[tuple[PolicyOwner, Form]]
"""Layers and the forms to which they are converted."""


def policy_of(layer: PolicyOwner) -> DTypePolicy:
    """Return the policy of a layer; if it has a map, the entry for its path."""
    return layer._policy()


def apply_to_all(layers: Iterable[PolicyOwner], policy: DTypePolicy) -> None:
    """Replace the policies of layers. No layer is quantized, and no map is changed."""
    for layer in layers:
        layer._dtype_policy = policy
        layer._apply_policy()


def computes_in(layer: PolicyOwner, dtype: Any) -> bool:
    """Return whether nested calls of a layer compute in this dtype and return it."""
    return layer._nested_scope is dtype and layer._output is dtype


def form_under(layer: PolicyOwner, policy: DTypePolicy) -> Form:
    """Return the form that a policy gives the matrix of a layer; weights are checked, variables not yet created."""
    return layer._form_under(policy)


def quantized_forms(layer: PolicyOwner, policy: DTypePolicy) -> Forms:
    """Return the layers, from `layer` down, that `policy` (or its entry for their path) quantizes, and checked forms.

    Subclasses of quantizable layers are included, unless they define ``call``. A layer that does not compute in the
    mode of its policy, as an Embedding in float8, is left out.
    """
    forms = [(part, part._quantized_form(policy_at(policy, part.path))) for part in flat_layers(layer)]
    return [(part, form) for part, form in forms if form is not None]


def convert_to(forms: Forms) -> None:
    """Convert layers to forms, and set the policies of these; if one fails, none is changed."""
    undone_if_it_fails(contents_of([part for part, _ in forms]), _convert, forms)


def already_quantized(layer: PolicyOwner, received: str) -> ValueError:
    """Return the error for an attempt to quantize a layer twice."""
    return ValueError(
        f"Layer '{layer.name}' is already quantized with dtype_policy='{layer._policy().name}'. Received: {received}"
    )


def _is_quantized(layer: PolicyOwner) -> bool:
    """Return whether a layer is quantized already, or its policy says so for the layers below it."""
    return layer.quantized or layer.quantization_mode is not None


def _convert(forms: Forms) -> None:
    for part, form in forms:
        part._convert(form)
        part._set_policy(form.policy)


def _policy_of_mode(mode: str, source_name: str) -> DTypePolicy:
    """Return the policy that :meth:`Layer.quantize` sets; plain int4 gets blocks of 128, as in Keras."""
    if mode == "int4":
        mode = "int4/128"
    return parse_quantized(f"{mode}_from_{source_name}")
