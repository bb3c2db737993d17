"""Recognize codes of other quantization tools by the names and types of their tensors.

mp_core reads float8 codes with scales to multiply by: one per tensor, per index of the first axis, or per block. A
block spans a power of two of elements along an axis, such as 128 x 128 in DeepSeek-V3. All other codes are refused,
with the name of the tool.
"""

import re
from collections.abc import Collection, Mapping

from mp_core.files.checkpoint.header import Entry

__all__ = ["FLOAT8", "blocks_of", "is_code", "scale_names", "tool_of"]

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
_CODES = ("int8", "uint8", "int32", "float8_e4m3fnuz", "float8_e5m2fnuz")
_SCALES = ("float32", "float16", "bfloat16", "float8_e8m0fnu")
_TOOLS = {
    "GPTQ": r"\.g_idx",
    "GPTQ or AWQ": r"\.(qweight|qzeros)",
    "bitsandbytes": r"\.(absmax|quant_map|nested_absmax|nested_quant_map|SCB|quant_state\..*)",
    "compressed-tensors": r"\.weight_packed",
    "HQQ": r"\.W_q",
}
"""Tool -> regular expression for the ends of its tensors' names."""


def is_code(entry: Entry) -> bool:
    """Return whether a tensor has a type that tools use for codes with scales."""
    return entry.dtype.name in (*_CODES, *FLOAT8)


def scale_names(name: str, names: Collection[str]) -> list[str]:
    """Return those of `names` under which tools store the scales of the codes called `name`."""
    stem = name.removesuffix("weight")
    written = [f"{name}_scale_inv", f"{name}_scale", f"{name}.scale", f"{name}_scales", f"{name}_scale_2"]
    if stem != name:
        written += [f"{stem}scale_weight", f"{stem}scale"]
    return [found for found in written if found in names]


def blocks_of(shape: tuple[int, ...], scales: Entry) -> tuple[int, ...] | None:
    """Return how many neighbours along each axis share a scale; None if the shapes do not determine it."""
    counts = scales.shape
    if scales.dtype.name not in _SCALES or not shape or 0 in shape:
        return None
    if set(counts) <= {1}:
        counts = (1,) * len(shape)
    elif counts == shape[:1]:
        counts = (*counts, *[1] * (len(shape) - 1))
    if len(counts) != len(shape) or 0 in counts:
        return None
    # If count > 1, ceil(n / block) == count for at most one power of two.
    blocks = [
        n if count == 1 else 1 << (-(-n // count) - 1).bit_length() for n, count in zip(shape, counts, strict=True)
    ]
    fits = all(-(-n // block) == count for n, block, count in zip(shape, blocks, counts, strict=True))
    return tuple(blocks) if fits else None


def tool_of(name: str, entries: Mapping[str, Entry]) -> str | None:
    """Return the tool that wrote a tensor if mp_core cannot read its codes, else None."""
    for tool, ending in _TOOLS.items():
        if re.search(rf"{ending}$", name):
            return tool
    beside = scale_names(name, entries)
    if beside and is_code(entries[name]):
        return f"a tool that writes {', '.join(beside)}"
    if name.endswith("_blocks") and f"{name.removesuffix('_blocks')}_scales" in entries:
        return "MXFP4"
    if name.endswith("._data") and f"{name.removesuffix('._data')}._scale" in entries:
        return "quanto"
    return None
