"""The main instructions of each operation, by instruction set, as text for `show_config`."""

__all__ = ["kernel_names", "what_is_gained", "what_is_lost"]

# Keys are instruction sets. A set without an entry uses that of its name before the first "_".
_FMA = {
    "scalar": "double, rounded to odd where that matters",
    "neon": "fmla 4s",
    "avx2": "vfmadd231ps ymm",
    "avx512": "vfmadd231ps zmm",
}
_VECTORS = {
    "scalar": "4 x 128-bit vectors",
    "neon": "4 x 128-bit vectors",
    "avx2": "2 x 256-bit vectors",
    "avx512": "512-bit vectors",
}
_KERNELS: dict[str, dict[str, str]] = {
    "matmul float32": _FMA,
    "matmul float16": _FMA | {"scalar": "integer widening, then as float32", "neon": "fcvtl, fmla 4s"},
    "matmul bfloat16": _FMA
    | {
        "scalar": "multiply, add",
        "neon_bf16": "bfmlalt, bfmlalb",
        "avx512_bf16": "vdpbf16ps zmm",
        "avx512_amx": "tdpbf16ps",
    },
    "matmul int8": {
        "scalar": "16-bit integers",
        "avx2": "vpmaddwd ymm",
        "avx2_vnni": "vpdpbusd ymm",
        "avx512": "vpmaddwd zmm",
        "avx512_vnni": "vpdpbusd zmm",
        "avx512_bf16": "vpdpbusd zmm",
        "avx512_amx": "tdpbssd, tdpbusd",
        "neon": "smull, smlal",
        "neon_dotprod": "sdot",
        "neon_bf16": "sdot, usdot",
    },
    "cast float16": {"scalar": "32-bit integers", "avx2": "vcvtps2ph ymm", "avx512": "vcvtps2ph zmm", "neon": "fcvtn"},
    "cast bfloat16, float8": _VECTORS,
    "quantize": _VECTORS,
    "softmax": _VECTORS,
    "layer_norm, rms_norm": _VECTORS,
    "activations": _VECTORS,
}


def kernel_names(isa: str, reproducible: bool) -> dict[str, str]:
    """Return operation -> instruction set of its kernels, and the instruction that does most of their work."""
    family = isa.partition("_")[0]
    other = "its own vectors"
    names = {operation: f"{isa}: {table.get(isa) or table.get(family, other)}" for operation, table in _KERNELS.items()}
    if reproducible and isa == "avx512_amx":
        names["matmul bfloat16"] = f"{isa}: {_FMA['avx512']}"
    return names


def what_is_gained(isa: str, reproducible: bool) -> dict[str, str]:
    """Return type of weights -> its gain over float32 on an instruction set.

    Examples
    --------
    >>> what_is_gained("avx2", True)["bfloat16"]
    'half the memory; products take about the time of float32, as this instruction set has none for it'
    >>> what_is_gained("avx512_bf16", True)["bfloat16"]
    'half the memory, and on most CPUs faster products'
    """
    wide = f"half the memory; {_AS_FLOAT32}"
    names = kernel_names(isa, reproducible)
    native = isa != "scalar" and names["matmul bfloat16"] != names["matmul float32"]
    return {
        "bfloat16": "half the memory, and on most CPUs faster products" if native else wide,
        "float16": wide,
        "int8": "a quarter of the memory, and faster products",
    }


_AS_FLOAT32 = "products take about the time of float32, as this instruction set has none for it"


def what_is_lost(available: tuple[str, ...]) -> str | None:
    """Return a warning for a machine that can use only the portable instruction set; None if it has a better one.

    Examples
    --------
    >>> what_is_lost(("avx2", "scalar")) is None
    True
    """
    if available[0] != "scalar":
        return None
    return (
        "this CPU or build has none of the instruction sets that mp_core has kernels for, such as AVX2 with FMA and "
        "F16C: the portable kernels run. They give the same bits, but products of float32 and float16 emulate fused "
        "multiply-adds in float64 and are some seven (NumPy without AVX2) to thirty times slower than NumPy's float32 "
        "products; see docs/numerics.md"
    )
