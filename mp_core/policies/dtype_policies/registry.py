"""Convert names and dictionaries to policies and back; set the default policy."""

from collections.abc import Iterator
from re import findall
from typing import Any

from mp_core.arrays.quantization.microscaling import MICROSCALING
from mp_core.core.scopes import Scope
from mp_core.policies.dtype_policies.policy import (
    MIXED,
    DTypePolicy,
    dtype_policy,
    replace_default,
    scoped_default,
    standardize_dtype,
)
from mp_core.policies.dtype_policies.quantized import QUANTIZATION_MODES, parse_quantized
from mp_core.policies.dtype_policies.schemes import SPELLINGS, Scheme
from mp_core.utilities.registry import check_depth, class_and_config, known_classes
from mp_core.utilities.serialization import serialize_keras_object
from mp_core.utilities.suggest import meant

__all__ = ["deserialize", "get", "policy_names", "policy_of", "policy_scope", "serialize", "set_dtype_policy"]


_QUANTIZED = (*QUANTIZATION_MODES, *MICROSCALING)
"""How the names of quantized policies start."""


def _from_name(name: str) -> DTypePolicy:
    return parse_quantized(name) if name.startswith(_QUANTIZED) else DTypePolicy(name)


def get(identifier: Any) -> DTypePolicy:
    """Return the policy for an identifier.

    Parameters
    ----------
    identifier : DTypePolicy, str, dict, dtype or None
        A policy (returned as it is; one of tf.keras as the DTypePolicy of the same name), a name, a :func:`serialize`
        dict, a dtype, or None for the default. A *name* that starts with a quantization mode must be a pair such as
        ``"int8_from_float32"``; for the unquantized dtype pass ``np.dtype("int8")`` or ``DTypePolicy("int8")``.

    Raises
    ------
    ValueError
        `identifier` is none of these.

    Examples
    --------
    >>> get("int8_from_mixed_bfloat16")
    <QuantizedDTypePolicy "int8_from_mixed_bfloat16">
    >>> str(get("params=float32,compute=bfloat16,output=float32"))
    'params=float32,compute=bfloat16,output=float32'
    """
    if isinstance(identifier, DTypePolicy):
        return identifier.of_keras()
    if isinstance(identifier, str):
        return _from_name(identifier)
    if identifier is None:
        return dtype_policy()
    if isinstance(identifier, dict):
        return deserialize(identifier)
    check_depth(identifier)
    try:
        return DTypePolicy(standardize_dtype(identifier))
    except ValueError:
        raise ValueError(
            "Cannot interpret `dtype` argument. Expected a DTypePolicy, its name, its config or a dtype. "
            f"Received: dtype={identifier!r} (of type {type(identifier)})"
        ) from None


PLAIN = ("float32", *MIXED.values(), *MIXED)
"""The names of policies that do not quantize, for help and error messages."""


def policy_of(word: DTypePolicy | str, argument: str = "policy") -> DTypePolicy:
    """Return the policy that a user named. Models, files and the command line all use this function.

    Parameters
    ----------
    word : DTypePolicy or str
        The name of a policy; or only the spelling of a :class:`Scheme`, such as ``"int8"`` or ``"int4/64"``, which
        means the scheme with ``mixed_bfloat16``; or a policy or map of policies. (For :func:`get`, as for Keras,
        ``"int8"`` alone is an error.)
    argument : str
        The name of the word in error messages.

    Raises
    ------
    TypeError
        `word` is neither a string nor a policy.
    ValueError
        `word` names no policy; the message lists the known ones.

    Examples
    --------
    >>> policy_of("int8")
    <QuantizedDTypePolicy "int8_from_mixed_bfloat16">
    >>> policy_of("int4/64").scheme, policy_of("mixed_float16").scheme
    (Scheme(codes='int4', inputs='float', group_size=64, per='group'), None)
    """
    if isinstance(word, DTypePolicy):
        return get(word)
    if not isinstance(word, str):
        raise TypeError(f"`{argument}` must be a policy or its name; received {word!r}")
    try:
        return _of_word(word)
    except ValueError as error:
        reason = f" ({error})" if "_from_" in word or word == "int4" else ""
        other = _meant(word)
        hint = "" if other is None else f"; did you mean {other}?"
        raise ValueError(
            f"`{argument}` must be one of {', '.join((*PLAIN, *SPELLINGS))}, or SCHEME_from_POLICY such as "
            f"int8_from_mixed_bfloat16; received {word!r}{hint}{reason}"
        ) from None


def _of_word(word: str) -> DTypePolicy:
    scheme = word.startswith(_QUANTIZED) and "_from_" not in word
    return get(f"{Scheme.parse(word)}_from_mixed_bfloat16" if scheme else word)


def _meant(word: str) -> str | None:
    """Return the word that was most likely meant, with the same group size; None if there is none."""
    size = next(iter(findall(r"/(\d+)", word)), "64")
    known = [*PLAIN, *(spelling.replace("N", size) for spelling in SPELLINGS)]
    others = [meant(part, known) for part in word.split("_from_")]
    other = None if None in others else "_from_".join(map(str, others))
    if other is None or other == word:
        return None
    try:
        _of_word(other)
    except ValueError:
        return None
    return other


def serialize(policy: DTypePolicy) -> dict[str, Any]:
    """Return `policy` as the dictionary that Keras writes into its files.

    Raises
    ------
    TypeError
        `policy` is not a policy object. Names of policies are refused too.

    Examples
    --------
    >>> serialize(DTypePolicy("float32"))["config"]
    {'name': 'float32'}
    """
    if not isinstance(policy, DTypePolicy):
        raise TypeError(f"`policy` must be a policy, such as DTypePolicy('float32'); received {policy!r}")
    return serialize_keras_object(policy)  # type: ignore[no-any-return]


def deserialize(config: dict[str, Any], custom_objects: dict[str, type[DTypePolicy]] | None = None) -> DTypePolicy:
    """Return the policy of a :func:`serialize` dictionary. Its class is looked up by name; ``module`` may be absent.

    Policy and PolicyV1, the class names in files of tf.keras, mean DTypePolicy.

    Raises
    ------
    ValueError
        `config` is not such a dictionary, or ``class_name`` names neither a class of `custom_objects` nor a policy
        class, your own subclasses included.

    Examples
    --------
    >>> deserialize({"class_name": "DTypePolicy", "config": {"name": "mixed_float16"}})
    <DTypePolicy "mixed_float16">
    >>> deserialize({"class_name": "PolicyV1", "config": {"name": "mixed_float16", "loss_scale": None}})
    <DTypePolicy "mixed_float16">
    """
    check_depth(config)
    known = sorted(_subclasses(DTypePolicy), key=lambda cls: -len(cls.__mro__))  # a class wins over its subclasses
    classes = {cls.__name__: cls for cls in known}
    if not (isinstance(config, dict) and str(config.get("module")).startswith("mp_core.")):
        classes |= dict.fromkeys(_OF_TF_KERAS, DTypePolicy)
    found, own = class_and_config(config, known_classes(DTypePolicy, classes, custom_objects), "policy")
    if found is DTypePolicy and config["class_name"] in _OF_TF_KERAS:
        own = {key: value for key, value in own.items() if key != "loss_scale"}
    policy: DTypePolicy = found.from_config(own)
    return policy


_OF_TF_KERAS = ("Policy", "PolicyV1")
"""The class names in files of tf.keras. PolicyV1 has a loss scale, which layers ignore."""


def policy_names() -> set[str]:
    """Return the class names of policies that configurations may have, besides registered ones."""
    return {cls.__name__ for cls in _subclasses(DTypePolicy)}.union(_OF_TF_KERAS)


def _subclasses(cls: type[DTypePolicy]) -> Iterator[type[DTypePolicy]]:
    yield cls
    for subclass in cls.__subclasses__():
        yield from _subclasses(subclass)


def _checked(policy: Any) -> DTypePolicy:
    if isinstance(policy, DTypePolicy):
        return policy
    if isinstance(policy, str):
        return _from_name(policy)
    raise ValueError(
        "Invalid `policy` argument. Expected the string name of a policy (such as 'mixed_float16') or a `DTypePolicy` "
        f"instance. Received: policy={policy} (of type {type(policy)})"
    )


def set_dtype_policy(policy: DTypePolicy | str) -> None:
    """Set the default policy of new layers: that of the innermost :func:`policy_scope`, or else of the process.

    Raises
    ------
    ValueError
        `policy` is neither a policy nor the name of one.

    Examples
    --------
    >>> with policy_scope("float32"):  # so that the change below ends with the block
    ...     set_dtype_policy("mixed_bfloat16")
    ...     dtype_policy()
    <DTypePolicy "mixed_bfloat16">
    """
    replace_default(_checked(policy))


def policy_scope(policy: DTypePolicy | str) -> Scope[DTypePolicy]:
    """Make `policy` the default inside a ``with`` block, in this thread or task.

    Examples
    --------
    >>> with policy_scope("mixed_bfloat16"):
    ...     get(None)
    <DTypePolicy "mixed_bfloat16">
    """
    inner = _checked(policy)
    return Scope(scoped_default, inner, inner)
