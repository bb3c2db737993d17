"""``mp-core convert --calibrate``: calibrate an encoder on sample texts, save it, and report its losses."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mp_core.cli import options
from mp_core.cli.embed import read_texts
from mp_core.files import checkpoint
from mp_core.files.checkpoint import RequestError, Threshold
from mp_core.files.checkpoint.conversion import LAYOUTS_TO
from mp_core.files.checkpoint.conversion_plan import plain_name
from mp_core.files.checkpoint.errors import failures
from mp_core.files.checkpoint.folder import Checkpoint, open_checkpoint
from mp_core.files.checkpoint.output import check_free, replace, temporary_beside
from mp_core.models import TextEncoder
from mp_core.models.fitting import calibrate
from mp_core.policies.dtype_policies import DTypePolicyMap, policy_of
from mp_core.utilities.patterns import matcher
from mp_core.utilities.system import files_below

__all__ = ["convert"]

_REJECTED: dict[str, Callable[[argparse.Namespace], bool]] = {
    "--exclude": lambda given: bool(given.exclude),
    "--no-saturate": lambda given: not given.saturate,
    "--dry-run": lambda given: given.dry_run,
    "--max-memory": lambda given: given.max_memory is not None,
    "--to": lambda given: given.to != LAYOUTS_TO[0],
}
"""Option that --calibrate rejects (the whole encoder is in memory and is saved whole) -> whether it is given."""


def convert(arguments: argparse.Namespace, policy: str, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Run ``mp-core convert --calibrate`` and return a report like that of :func:`mp_core.checkpoint.convert`.

    `policy` is that of all layers that no pattern matches; `pairs` are (pattern for names of tensors, policy of the
    layers whose weights match). The arguments `calibrate` and `held_out` of the command are names of text files.
    """
    for option, is_given in _REJECTED.items():
        if is_given(arguments):
            raise argparse.ArgumentError(None, f"argument {option}: not allowed with argument --calibrate")
    thresholds = [Threshold.parse(condition) for condition in arguments.fail_if]
    target = Path(arguments.output).resolve()
    source = open_checkpoint(Path(arguments.model))
    if not Path(arguments.model).is_dir() or target.suffix == ".safetensors":
        raise RequestError(
            f"with --calibrate, MODEL and OUT must be folders; received {arguments.model} and {arguments.output}"
        )
    if source.folder.resolve() in target.parents:
        raise RequestError(f"the target {target} is inside the folder that is converted; choose another place")
    check_free(target, _target_files(source), source.paths, force=arguments.force)
    encoder = TextEncoder.from_folder(arguments.model, "float32" if arguments.allow_requantize else None)
    quantized = next((layer for layer in encoder.flatten() if layer.quantized), None)
    if quantized is not None:
        raise RequestError(
            f"{arguments.model} is quantized already, in layer '{quantized.path}'; use --allow-requantize to quantize "
            "it again"
        )
    policies = _policies_by_layer(encoder, policy, pairs, arguments.keep)
    texts = list(read_texts(arguments.calibrate))
    options.announce(arguments, f"calibrating {len(encoder.tensor_names)} layers on {len(texts):,} texts")
    held_out = list(read_texts(arguments.held_out)) if arguments.held_out else None
    fitted = calibrate(encoder, texts, policies, held_out=held_out)
    with temporary_beside(target) as temporary:
        options.announce(arguments, f"writing {arguments.output} and measuring its losses")
        fitted.save(temporary)
        report = _report(source, temporary, thresholds)
        if not report["failed"]:
            saved = {path.relative_to(temporary).as_posix() for path in files_below(temporary)}
            replace(temporary, target, saved, source.paths, force=arguments.force)
    named = {"source": arguments.model, "target": arguments.output, "policy": policies.default_policy.name}
    return named | report


def _target_files(source: Checkpoint) -> set[str]:
    """Return all names of files that the new folder may have."""
    return source.files | {Path(name).with_name("model.safetensors").as_posix() for name in source.shards}


def _policies_by_layer(
    encoder: TextEncoder, policy: str, pairs: Sequence[tuple[str, str]], keep: Sequence[str]
) -> DTypePolicyMap:
    """Turn patterns for names of weights into a map of policies by layer."""
    default = policy_of(policy)
    rules = [(pattern, plain_name(default)) for pattern in keep]
    rules += [(pattern, policy_of(mapped).name) for pattern, mapped in pairs]
    matchers: list[tuple[Callable[[str], object], str]] = [(matcher(pattern, "search"), own) for pattern, own in rules]
    names = {path: encoder.kernel_names.get(path, f"{start}weight") for path, start in encoder.tensor_names.items()}
    for (pattern, _), (matches, _) in zip(rules, matchers, strict=True):
        if not any(map(matches, names.values())):
            raise RequestError(f"the pattern {pattern!r} matches the weights of no layer")
    found = {path: next((own for matches, own in matchers if matches(name)), None) for path, name in names.items()}
    return DTypePolicyMap(default, {path: own for path, own in found.items() if own is not None})


def _report(source: Checkpoint, folder: Path, thresholds: Sequence[Threshold]) -> dict[str, Any]:
    """Compare the new model in a folder with its source."""
    saved = open_checkpoint(folder)
    name = next(name for name, shard in saved.shards.items() if "mp_core.policy" in shard.header.metadata)
    index = f"{name}.index.json"
    before = index if any(known.name == index for known in source.indices) else name
    rows = checkpoint.verify(source.folder / before, folder / name)["tensors"]
    return {
        "bytes": sum(row["bytes"] for row in rows),
        "new_bytes": sum(row["new_bytes"] for row in rows),
        "left_out": source.left_out,
        "codes": sum(tensor.coding is not None for tensor in saved.shards[name].tensors.values()),
        "failed": failures(rows, thresholds),
        "tensors": [{"name": row["name"], "file": name} | row for row in rows],
    }
