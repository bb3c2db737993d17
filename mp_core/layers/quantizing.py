"""How layers get quantized weights: in place, by a policy that is set, or in a copy; all of them, or none if one fails.

What a layer knows of its own matrix are the methods of :class:`~mp_core.layers.Layer` under "quantization".
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from mp_core import dtypes
from mp_core.core.changes import undone_if_it_fails
from mp_core.dtype_policies import QUANTIZATION_MODES, DTypePolicy, QuantizedDTypePolicy
from mp_core.dtype_policies.map import policy_at, unquantized
from mp_core.dtype_policies.quantized import parse_quantized
from mp_core.forms import Form
from mp_core.layers.contents import contents_of
from mp_core.layers.filters import chooser
from mp_core.quantization.codes import CODES
from mp_core.quantizers.configurations import mode_and_quantizers

__all__ = ["already_quantized", "change_policy", "convert_to", "copy_under", "forms_where", "quantize"]


def quantize(layer: Any, mode: str | None, type_check: bool, config: Any, filters: Any) -> None:
    """Do what :meth:`Layer.quantize` says."""
    mode, quantizers = mode_and_quantizers(mode, config)
    if not layer.built:
        raise ValueError(f"Cannot quantize a layer that isn't yet built. Layer '{layer.name}' isn't built yet.")
    if _is_quantized(layer):
        raise already_quantized(layer, f"mode={mode}")
    _quantize(
        layer,
        mode,
        lambda part: _policy_of_mode(part._mode_under(mode, quantizers), part._policy().name),
        type_check,
        filters,
    )


def change_policy(layer: Any, policy: DTypePolicy) -> None:
    """Let a layer compute under another policy, which may quantize it; if that fails, nothing has changed."""
    mode = policy.quantization_mode if isinstance(policy, QuantizedDTypePolicy) else None
    if _is_quantized(layer):
        if not layer._keeps_form(policy):
            raise already_quantized(layer, f"dtype_policy={policy.name}")
        undone_if_it_fails(contents_of([layer]), layer._set_policy, policy)
    elif not layer.built or mode is None:
        undone_if_it_fails(contents_of([layer]), layer._set_policy, policy)
    elif mode == "gptq":
        raise ValueError("Implicitly enabling GPTQ quantization by setting `dtype_policy` is not supported.")
    else:
        config = policy.get_config()
        target = _policy_of_mode("int4", config["source_name"]) if config["mode"] == "int4" else policy
        _quantize(layer, config["mode"], lambda _: target)


def copy_under(layer: Any, policy: DTypePolicy) -> Any:
    """Do what :meth:`Layer.with_policy` says."""
    parts = list(layer.flatten())
    if not layer.built or any(part.quantized for part in parts):
        state = "quantized" if layer.built else "not built"
        raise ValueError(f"`with_policy` needs a built layer with unquantized weights; '{layer.name}' is {state}.")
    plain = unquantized(policy)
    moved: dict[int, Any] = {}  # what deepcopy takes instead of copying
    for part in parts:
        wanted = policy_at(plain, part.path).variable_dtype
        if wanted not in dtypes.ALLOWED or not dtypes.is_float(dtypes.ALLOWED[wanted]):
            raise ValueError(f"`with_policy` needs floating-point dtypes; '{part.name}' would store {wanted}")
        moved |= {id(v): v.stored_as(wanted if part._follows_policy(v) else None) for v in part.own_variables()}
    copy = deepcopy(layer, moved)
    for part in copy.flatten():
        if not part._keeps_dtype:
            part._dtype_policy = part._get_policy(plain)
            part._apply_policy()
    convert_to(forms_where(copy, policy))
    return copy


def forms_where(layer: Any, policy: DTypePolicy) -> list[tuple[Any, Form]]:
    """Return `layer` and those below it with checked forms where `policy`, or a map's for their paths, names codes.

    Subclasses of layers that know how do so too, unless they have a ``call`` of their own. A mode that other layers
    compute in, as float8 for an Embedding, leaves a layer as it is.
    """
    forms = [(part, part._form_where(policy_at(policy, part.path))) for part in layer.flatten()]
    return [(part, form) for part, form in forms if form is not None]


def convert_to(forms: list[tuple[Any, Form]]) -> None:
    """Bring layers into forms, and under the policies of these; if that fails, none has changed."""
    undone_if_it_fails(contents_of([part for part, _ in forms]), _convert, forms)


def already_quantized(layer: Any, received: str) -> ValueError:
    """Return the error that a quantized layer raises for what would quantize it once more."""
    return ValueError(
        f"Layer '{layer.name}' is already quantized with dtype_policy='{layer._policy().name}'. Received: {received}"
    )


def _is_quantized(layer: Any) -> bool:
    """Whether a layer, or as its policy says those below it, hold quantized weights already."""
    return layer.quantized or layer.quantization_mode is not None


def _quantize(
    layer: Any, mode: str, policy_of: Callable[[Any], DTypePolicy], type_check: bool = True, filters: Any = None
) -> None:
    """Quantize a layer and those below it that are meant, each under its policy."""
    family, chosen = mode.partition("/")[0], chooser(filters)
    every = [part for part in layer.flatten() if part._can_quantize(type_check)]
    known = [part for part in every if chosen(part)]
    if filters is not None and not known:
        raise ValueError(f"`filters` must choose one of {[part.name for part in every]}; received {filters!r}")
    parts = [part for part in known if family in CODES or family in part._modes]
    if not parts and family in (*QUANTIZATION_MODES, *CODES):
        modes = tuple(dict.fromkeys(name for part in known for name in part._modes))
        raise NotImplementedError(
            f"Invalid quantization mode. Expected one of {modes}. Received: mode={mode}"
            if modes
            else f"{type(layer).__name__} cannot be quantized: Dense, EinsumDense and Embedding can, with "
            "`type_check=False` their subclasses, and the layers that hold them."
        )
    own = policy_of(layer)
    policies = [policy_of(part) for part in parts]
    forms = [(part, part._form_under(policy)) for part, policy in zip(parts, policies, strict=True)]
    whole = own if filters is None else None
    undone_if_it_fails(contents_of([layer, *parts]), _convert_below, layer, forms, whole)


def _convert(forms: list[tuple[Any, Form]]) -> None:
    for part, form in forms:
        part._convert(form)
        part._set_policy(form.policy)


def _convert_below(layer: Any, forms: list[tuple[Any, Form]], own: DTypePolicy | None) -> None:
    """Bring layers into forms, and the one that holds them, if all of it is quantized, under its own policy."""
    _convert(forms)
    is_among = any(part is layer for part, _ in forms)
    if own is not None or is_among:
        layer.quantized = True
    if own is not None and not is_among:
        layer._set_policy(own)


def _policy_of_mode(mode: str, source_name: str) -> DTypePolicy:
    """Return the policy that :meth:`Layer.quantize` gives: of Keras' blocks where `mode` leaves their size open."""
    if mode == "int4":
        mode = "int4/128"
    return parse_quantized(f"{mode}_from_{source_name}")
