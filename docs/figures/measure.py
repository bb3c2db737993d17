"""Measure data that depend on no peer and no machine: `python docs/figures/measure.py accuracy` or `layers`.

- accuracy: the largest errors of functions, on every 257th float32 number, and of products, as shares of the bound that
  docs/numerics.md proves.
- layers: the error of the embeddings of all-MiniLM-L6-v2 if only one layer is quantized; and the bytes of the weights
  under every policy.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "asv_bench"))

from benchmarks import accuracy  # noqa: E402

import mp_core as mp  # noqa: E402
from mp_core.benchmark import Record, Report  # noqa: E402
from mp_core.cli import demo  # noqa: E402

DTYPES, DEPTHS = ("float32", "float16", "bfloat16"), (16, 64, 256, 1024, 4096, 16384)
SCHEMES = ("bfloat16", "int8", "int8/weight_only", "float8_e4m3fn", "int4/64")
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16", "int8", "int8/weight_only/64", "int4/32", "int4/64")
TEXTS = slice(12)


def main() -> None:
    name = sys.argv[1]
    report = Report.here(f"python docs/figures/measure.py {name}")
    for record in {"accuracy": errors, "layers": layers}[name]():
        report.add(record)
    report.save(HERE / "data" / f"{name}.json")


def errors():
    """Yield errors of functions in ULP, then errors of products as shares of their bound."""
    for function in accuracy.FUNCTIONS:
        worst, where = accuracy.max_ulp(function, 257)
        yield Record("function", function, "float32", 1, "mp_core", round(worst, 3), "ULP", details={"where": where})
    products = accuracy.ProductError()
    for dtype in DTYPES:
        for k in DEPTHS:
            share = products.track_error_over_bound(mp.config.isa(), dtype, k)
            yield Record("product", f"8x{k}x32", dtype, 1, "mp_core", float(f"{share:.3g}"), "of the bound")


def layers():
    """Yield errors of embeddings by layer and scheme, then megabytes by policy."""
    encoder = mp.models.TextEncoder.from_folder(demo.model_folder())
    for row in mp.sensitivity(encoder, list(demo.documents_and_ratings()[0][TEXTS]), SCHEMES):
        error = float(f"{row.error.rmse:.4g}")
        yield Record("layer", row.path, row.policy, 1, "mp_core", error, "relative RMSE")
    for policy in POLICIES:
        size = encoder.with_policy(policy).weight_bytes / 1e6
        yield Record("weights", "all-MiniLM-L6-v2", policy, 1, "mp_core", round(size, 2), "MB")


if __name__ == "__main__":
    main()
