"""The instructions that do the work of each operation, by instruction set, in words for `show_config`."""

__all__ = ["kernel_names"]

# Keys are instruction sets. A set without an entry has that of the part of its name before the first "_".
_FMA = {"scalar": "fmaf", "neon": "fmla 4s", "avx2": "vfmadd231ps ymm", "avx512": "vfmadd231ps zmm"}
_VECTORS = {
    "scalar": "plain C",
    "avx2": "2 x 256-bit vectors",
    "avx512": "512-bit vectors",
    "neon": "4 x 128-bit vectors",
}
_KERNELS: dict[str, dict[str, str]] = {
    "matmul float32": _FMA,
    "matmul float16": _FMA | {"scalar": "integer widening, fmaf", "neon": "fcvtl, fmla 4s"},
    "matmul bfloat16": _FMA
    | {"avx512_bf16": "vdpbf16ps zmm", "avx512_amx": "vdpbf16ps zmm", "avx512_amx_bf16": "tdpbf16ps"}
    | {"neon_bf16": "bfmlalt, bfmlalb"},
    "matmul int8": {
        "scalar": "32-bit integers",
        "avx2": "vpmaddwd ymm",
        "avx2_vnni": "vpdpbusd ymm",
        "avx512": "vpmaddwd zmm",
        "avx512_vnni": "vpdpbusd zmm",
        "avx512_bf16": "vpdpbusd zmm",
        "avx512_amx": "tdpbssd, tdpbusd",
        "neon": "smull, smlal",
        "neon_dotprod": "sdot",
        "neon_bf16": "sdot, usdot",
        "avx512_amx_bf16": "tdpbssd, tdpbusd",
    },
    "cast float16": {"scalar": "32-bit integers", "avx2": "vcvtps2ph ymm", "avx512": "vcvtps2ph zmm", "neon": "fcvtn"},
    "cast bfloat16, float8": _VECTORS,
    "quantize": _VECTORS,
    "softmax": _VECTORS,
    "layer_norm, rms_norm": _VECTORS,
    "activations": _VECTORS,
}


def kernel_names(isa: str) -> dict[str, str]:
    """Return, by operation, the instruction set of its kernels and the instruction that does most of their work."""
    family = isa.partition("_")[0]
    other = "its own vectors"
    return {operation: f"{isa}: {table.get(isa) or table.get(family, other)}" for operation, table in _KERNELS.items()}
