"""Open checkpoints as memory-mapped arrays, and read their policies."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path

from mp_core.arrays import Array
from mp_core.arrays.quantization import QuantizedArray
from mp_core.files.checkpoint.coding import SUFFIXES
from mp_core.files.checkpoint.folder import Checkpoint, Shard, open_checkpoint, refuse_tools, unique_tensors
from mp_core.files.checkpoint.header import Entry, load_json
from mp_core.files.checkpoint.maps import map_file
from mp_core.files.checkpoint.packed import Place, viewed
from mp_core.files.checkpoint.tensors import POLICIES, POLICY, Tensor, positive
from mp_core.policies.dtype_policies import policy_of
from mp_core.utilities.arguments import path_of

__all__ = ["most_and_others", "open_stored", "open_tensors", "policies_of", "stored_policies"]


def open_tensors(path: str | PathLike[str]) -> dict[str, Array | QuantizedArray]:
    """Map the tensors of a checkpoint into memory, without reading them.

    A file stays mapped, and one file handle stays open, while one of its arrays exists. The arrays are read-only views
    of the map; they may be unaligned. Writing into the file changes them, and if the file becomes shorter, reading
    beyond its new end ends the process (SIGBUS): replace the file instead (``os.replace``), as :func:`save_tensors`
    and :func:`convert` do. Models of texts check the length before each batch.

    Parameters
    ----------
    path : path
        A safetensors file, the ``.safetensors.index.json`` of a model in several files, or the folder of one model.
        Types are float64/32/16, bfloat16, float8_e4m3fn, float8_e5m2, integers and bool, and, only copied,
        float8_e8m0fnu, float8_e4m3fnuz, float8_e5m2fnuz, complex64.

    Returns
    -------
    dict of str to ndarray or QuantizedArray
        In the order of the header. Codes of mp_core are a :class:`QuantizedArray`; if the inputs have fixed scales,
        ``NAME.inputs_scale`` and ``NAME.inputs_zero_point`` follow. Float8 codes with the scales of another tool are a
        QuantizedArray too; other codes raise ValueError. If that tool's blocks span several lines, the scales are
        repeated, because a QuantizedArray has scales for each line.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> from safetensors.numpy import save_file
    >>> with TemporaryDirectory() as folder:
    ...     save_file({"x": np.arange(3, dtype="int8")}, Path(folder, "model.safetensors"))
    ...     open_tensors(Path(folder, "model.safetensors"))
    {'x': array([0, 1, 2], dtype=int8)}
    """
    return _tensors_in(open_checkpoint(path_of(path, "path")))


def open_stored(path: Path) -> tuple[dict[str, Array | QuantizedArray], tuple[str | None, dict[str, str]]]:
    """Return the results of :func:`open_tensors` and :func:`stored_policies`, but read the headers only once."""
    checkpoint = open_checkpoint(path)
    return _tensors_in(checkpoint), _policies_in(checkpoint)


def _tensors_in(checkpoint: Checkpoint) -> dict[str, Array | QuantizedArray]:
    refuse_tools(checkpoint)
    maps = {shard.path: map_file(shard.path) for shard in checkpoint.shards.values()}
    return {
        name: value
        for shard, tensor in unique_tensors(checkpoint).values()
        for name, value in _mapped(lambda place: viewed(maps[place.path], place), shard, tensor)
    }


def _mapped(
    read: Callable[[Place], Array], shard: Shard, tensor: Tensor
) -> Iterator[tuple[str, Array | QuantizedArray]]:
    """Yield the name and the mapped value of a tensor, then those of the scales of its inputs."""

    def view(entry: Entry) -> Array:
        return read(Place(tensor.name, shard.path, entry))

    if tensor.packed is not None:
        yield from tensor.packed.value(read).items()
        return
    values, coding = view(tensor.values), tensor.coding
    if coding is None:
        yield tensor.name, values
        return
    zeros = tensor.part("zero_point")
    inputs = {f"{tensor.name}.{suffix}": tensor.part(suffix) for suffix in SUFFIXES[2:]}
    found = {name: view(part) for name, part in inputs.items() if part is not None}
    try:
        scale = positive(view(tensor.scale), "scales")
        q = coding.array(values, scale, None if zeros is None else view(zeros))
        if coding.fixed_inputs:
            positive(found[f"{tensor.name}.inputs_scale"], "inputs_scale")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{shard.path}: tensor {tensor.name!r}: {error}") from None
    yield tensor.name, q
    yield from found.items()


def stored_policies(path: str | PathLike[str]) -> tuple[str | None, dict[str, str]]:
    """Return the policies under which the tensors of a checkpoint are stored.

    The first result is the name of the policy of all tensors except those in the second, tensor -> name of its policy.
    It is None if mp_core did not write the checkpoint.

    Parameters
    ----------
    path : path
        As for :func:`open_tensors`.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> from mp_core.checkpoint import save_tensors
    >>> with TemporaryDirectory() as folder:
    ...     tensors = {"a": np.ones(2), "b": np.ones(2)}
    ...     save_tensors(Path(folder, "x"), tensors, policy="float32", policies={"b": "mixed_bfloat16"})
    ...     stored_policies(Path(folder, "x"))
    ('float32', {'b': 'mixed_bfloat16'})
    """
    return _policies_in(open_checkpoint(path_of(path, "path")))


def _policies_in(checkpoint: Checkpoint) -> tuple[str | None, dict[str, str]]:
    shards = list(checkpoint.shards.values())
    (first, default, policies), *rest = [(shard, *policies_of(shard)) for shard in shards]
    for shard, other, own in rest:
        if other != default:
            raise ValueError(f"{first.path} and {shard.path} have the policies {default!r} and {other!r}")
        policies |= own
    if any(tensor.packed is not None for _, tensor in checkpoint.tensors):
        return most_and_others(policies)
    return default, policies


def most_and_others(policies: Mapping[str, str]) -> tuple[str | None, dict[str, str]]:
    """Return the policy of most tensors, or None, and those of tensors with another one.

    Tensors of another program have no policies; these are those under which layers use their codes without a change.
    """
    default = Counter(policies.values()).most_common(1)[0][0] if policies else None
    return default, {name: policy for name, policy in policies.items() if policy != default}


def policies_of(shard: Shard) -> tuple[str | None, dict[str, str]]:
    """Return the result of :func:`stored_policies` for one file."""
    metadata = shard.header.metadata
    what = f"{shard.path}: metadata {POLICIES}"
    named = load_json(metadata.get(POLICIES, "{}").encode(), what)
    for name in named:
        if name not in shard.tensors:
            raise ValueError(f"{what}: there is no tensor {name!r}")
    policies = {name: _policy_name(policy, f"{what}: {name!r}") for name, policy in named.items()}
    packed = ((tensor.name, tensor.packed) for tensor in shard.tensors.values() if tensor.packed is not None)
    policies |= {name: weight.policy for name, weight in packed if weight.policy is not None}
    default = metadata.get(POLICY)
    return None if default is None else _policy_name(default, f"{shard.path}: metadata {POLICY}"), policies


def _policy_name(policy: object, what: str) -> str:
    """Check a policy in a file and return its full name."""
    if not isinstance(policy, str):
        raise ValueError(f"{what}: a policy must be a string; received {policy!r}")
    try:
        return policy_of(policy).name
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
