"""The instructions that do the work of each operation, by instruction set, in words for `show_config`."""

__all__ = ["kernel_names"]

# Keys are instruction sets. A set without an entry has that of the part of its name before the first "_".
_FMA = {"scalar": "fmaf", "avx2": "vfmadd231ps ymm", "avx512": "vfmadd231ps zmm"}
_VECTORS = {"scalar": "plain C", "avx2": "2 x 256-bit vectors", "avx512": "512-bit vectors"}
_KERNELS: dict[str, dict[str, str]] = {
    "matmul float32": _FMA,
    "matmul float16": _FMA | {"scalar": "integer widening, fmaf"},
    "matmul bfloat16": _FMA | {"avx512_bf16": "vdpbf16ps zmm", "avx512_amx": "tdpbf16ps"},
    "matmul int8": {
        "scalar": "32-bit integers",
        "avx2": "vpmaddwd ymm",
        "avx2_vnni": "vpdpbusd ymm",
        "avx512": "vpmaddwd zmm",
        "avx512_vnni": "vpdpbusd zmm",
        "avx512_bf16": "vpdpbusd zmm",
        "avx512_amx": "tdpbssd, tdpbusd",
    },
    "cast float16": {"scalar": "32-bit integers", "avx2": "vcvtps2ph ymm", "avx512": "vcvtps2ph zmm"},
    "cast bfloat16, float8": _VECTORS,
    "quantize": _VECTORS,
    "softmax": _VECTORS,
    "layer_norm, rms_norm": _VECTORS,
    "activations": _VECTORS,
}


def kernel_names(isa: str, reproducible: bool) -> dict[str, str]:
    """Return, by operation, the instruction set of its kernels and the instruction that does most of their work."""
    family = isa.partition("_")[0]
    other = "its own vectors"
    names = {operation: f"{isa}: {table.get(isa) or table.get(family, other)}" for operation, table in _KERNELS.items()}
    if reproducible and isa == "avx512_amx":
        names["matmul bfloat16"] = f"{isa}: {_KERNELS['matmul bfloat16']['avx512_bf16']}"
    return names
