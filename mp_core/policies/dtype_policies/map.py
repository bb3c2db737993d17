"""Maps from layer paths to policies."""

import re
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Self

from mp_core.policies.dtype_policies.policy import DTypePolicy
from mp_core.policies.dtype_policies.quantized import QuantizedDTypePolicy, SchemeDTypePolicy
from mp_core.policies.dtype_policies.registry import deserialize, get, serialize
from mp_core.policies.dtype_policies.schemes import Scheme
from mp_core.utilities.patterns import matcher
from mp_core.utilities.registry import own_config

__all__ = ["DTypePolicyMap", "mapped", "policy_at", "unquantized", "weight_only"]

_MATCHES = ("fullmatch", "search")
_CACHED_PATHS = 1 << 17


class DTypePolicyMap(DTypePolicy, MutableMapping[str, DTypePolicy]):
    """A mapping from layer paths, or regular expressions for them, to policies.

    A look-up returns the policy of the exact key; else of the one key that matches the path as a regular expression;
    else the default policy. It never raises KeyError. None, the path of a layer that is not built, means the default
    policy: ``policies[None] = policy`` sets the default of a map that was made without one. The dtypes, the mode and
    the scheme of a map are those of its default policy.

    Parameters
    ----------
    default_policy : DTypePolicy, str, dict or None
        The policy of paths without a key. None takes the default policy of the process when the map is made. If such a
        map is serialized, it gets the default policy of the process that loads it.
    policy_map : dict, optional
        Path or regular expression -> anything that :func:`get` accepts. It is copied. An expression that may match too
        slowly is refused: it has repeats or alternatives within repeats, or more than a few neighbouring repeats.
    match : {"fullmatch", "search"}
        Whether a regular expression must match the whole path (Keras 3.12 and later) or any part (Keras 3.4 to 3.11).

    Examples
    --------
    >>> policies = DTypePolicyMap("float32", {"encoder/layer_[0-9]+/.*": "mixed_bfloat16"})
    >>> policies["encoder/layer_3/query"], policies["pooler"]
    (<DTypePolicy "mixed_bfloat16">, <DTypePolicy "float32">)
    """

    __slots__ = ("_argument", "_default", "_hits", "_match", "_matchers", "_policies")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, default_policy: Any = None, policy_map: Any = None, match: str = "fullmatch") -> None:
        if policy_map is not None and not isinstance(policy_map, dict):
            raise TypeError(
                f"If specified, `policy_map` must be a dict. Received: policy_map={policy_map!r} "
                f"(of type {type(policy_map)})"
            )
        if match not in _MATCHES:
            raise ValueError(f"`match` must be one of {', '.join(_MATCHES)}. Received: match={match!r}")
        self._default = get(default_policy)
        self._argument = self._default if isinstance(default_policy, DTypePolicy) else default_policy
        if default_policy is not None and isinstance(self._default, DTypePolicyMap):
            raise ValueError("`default_policy` cannot be a `DTypePolicyMap`.")
        self._match = match
        self._policies: dict[str, DTypePolicy] = {}
        self._matchers: dict[str, tuple[str, Callable[[str], object]]] = {}
        self._hits: dict[str, DTypePolicy] = {}
        self.update(policy_map or {})

    @property
    def default_policy(self) -> DTypePolicy:
        """The policy of paths without a key."""
        return self._default

    @property
    def name(self) -> str:
        """``map_`` and the name of the default policy."""
        return f"map_{self._default.name}"

    @property
    def compute_dtype(self) -> str:
        return self._default.compute_dtype

    @property
    def variable_dtype(self) -> str:
        return self._default.variable_dtype

    @property
    def output_dtype(self) -> str:
        return self._default.output_dtype

    @property
    def quantization_mode(self) -> str | None:
        return self._default.quantization_mode

    @property
    def scheme(self) -> Scheme | None:
        return self._default.scheme

    def __getitem__(self, key: Any) -> DTypePolicy:
        policy = self._policies.get(key)
        if policy is None:
            policy = self._hits.get(key)
        return self._look_up(key) if policy is None else policy

    def _look_up(self, path: Any) -> DTypePolicy:
        if path is None:
            return self._default
        if not isinstance(path, str):
            raise TypeError(f"a path must be a string; received {path!r}")
        own = self._policies.get(re.escape(path))  # a key that `replace` escaped
        if own is not None:
            return own
        starts = path.startswith
        keys = [key for key, (prefix, matches) in self._matchers.items() if starts(prefix) and matches(path)]
        if len(keys) > 1:
            raise ValueError(
                f"Path '{path}' matches multiple dtype policy specification keys: {keys}. "
                "Please make sure each path only matches at most one key."
            )
        policy = self._policies[keys[0]] if keys else self._default
        if len(self._hits) >= _CACHED_PATHS:
            self._hits.clear()
        self._hits[path] = policy
        return policy

    def __copy__(self) -> Self:
        return type(self)(self._argument, self._policies, self._match)

    def __setitem__(self, key: Any, policy: Any) -> None:
        if key is None:
            self._set_default(get(policy))
            return
        if not isinstance(key, str):
            raise TypeError(f"a path must be a string; received {key!r}")
        if key in self._policies:
            raise ValueError(
                f"{key} already exist in the DTypePolicyMap with value {self._policies[key]}. Delete it first."
            )
        try:
            value = get(policy)
        except ValueError as error:
            raise ValueError(
                "Cannot interpret the assigned value by `dtype_policies.get`. "
                f"Received: key={key}, value={policy!r}. {error}"
            ) from None
        try:
            matches = matcher(key, self._match)
        except ValueError as error:
            raise ValueError(f"The key {key!r} is not a valid regular expression: {error}") from None
        self._policies[key] = value
        self._matchers[key] = _literal_prefix(key) if self._match == "fullmatch" else "", matches
        self._hits.clear()

    def _set_default(self, policy: DTypePolicy) -> None:
        if isinstance(policy, DTypePolicyMap):
            raise ValueError("`default_policy` cannot be a `DTypePolicyMap`.")
        if self._argument is not None and policy != self._default:
            raise ValueError(f"the default policy (the key None) is {self._default} already; received {policy}")
        self._default = self._argument = policy
        self._hits.clear()

    def replace(self, path: str, policy: DTypePolicy) -> None:
        """Set the policy of one path, replacing its key if there is one. An invalid pattern is escaped."""
        try:
            matcher(path, self._match)
        except ValueError:
            path = re.escape(path)
        if path in self:
            del self[path]
        self[path] = policy

    def __delitem__(self, key: str) -> None:
        del self._policies[key], self._matchers[key]
        self._hits.clear()

    def __contains__(self, key: object) -> bool:
        return key in self._policies

    def __len__(self) -> int:
        return len(self._policies)

    def __iter__(self) -> Iterator[str]:
        return iter(self._policies)

    def entries(self) -> tuple[dict[str, Any], ...]:
        """Return the internal dictionaries, for reading only."""
        return self._policies, self._matchers, self._hits

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments.

        If the map was made without a default policy, the names of plain policies are left out of its entries, as in
        Keras. On loading, the default policy of the process replaces them.
        """
        entries = {key: serialize(policy) for key, policy in self._policies.items()}
        if self._argument is None:
            for entry in entries.values():
                deferred = "source_name" if "source_name" in entry["config"] else "name"
                if deferred in entry["config"]:  # a nested map has neither
                    entry["config"][deferred] = None
        match = {} if self._match == "fullmatch" else {"match": self._match}
        return {"default_policy": self._argument, "policy_map": entries} | match

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        entries = own_config(config, "policy").get("policy_map")
        if isinstance(entries, dict):
            entries = {key: deserialize(entry) for key, entry in entries.items()}
        return cls(**(config | {"policy_map": entries}))

    def __repr__(self) -> str:
        mapping = [(key, policy.name) for key, policy in self._policies.items()]
        return f"<DTypePolicyMap default_policy={self._default.name}, mapping={mapping}>"

    __str__ = __repr__

    def _key(self) -> tuple[Any, ...]:
        return (self._default, self._match, self._policies)


def policy_at(policy: DTypePolicy, path: str | None) -> DTypePolicy:
    """Return the policy of the layer at `path`: ``policy[path]`` for a map, otherwise `policy` itself."""
    return policy[path] if isinstance(policy, DTypePolicyMap) and path else policy


def mapped(policy: DTypePolicy, change: Callable[[DTypePolicy], DTypePolicy]) -> DTypePolicy:
    """Return ``change(policy)``; for a map, a map with `change` applied to every policy in it."""
    if not isinstance(policy, DTypePolicyMap):
        return change(policy)
    policies = {path: mapped(entry, change) for path, entry in policy.items()}
    return DTypePolicyMap(mapped(policy.default_policy, change), policies, policy._match)


def unquantized(policy: DTypePolicy) -> DTypePolicy:
    """Return the policy, or map of policies, with which weights are loaded before they are quantized."""
    return mapped(policy, lambda own: get(own.get_config()["source_name"]) if own.quantization_mode else own)


def weight_only(policy: DTypePolicy) -> DTypePolicy:
    """Return the policy, or map of policies, with int8 made weight-only, so that inputs are not quantized."""

    def change(own: DTypePolicy) -> DTypePolicy:
        if type(own) is QuantizedDTypePolicy and own.quantization_mode == "int8":
            return SchemeDTypePolicy("int8/weight_only", own.source_name)
        return own

    return mapped(policy, change)


def _literal_prefix(pattern: str) -> str:
    """Return characters with which every full match begins. Comparing them first is cheaper than matching."""
    literal = re.match(r"[\w/ -]*", pattern)
    if "|" in pattern or literal is None:
        return ""
    prefix, rest = literal[0], pattern[literal.end() :]
    return prefix[:-1] if rest[:1] in ("*", "?", "{") else prefix
