"""The table of products in docs/benchmarks.md, from the stored data: `python docs/figures/ratios.py` prints it."""

from collections.abc import Iterator
from statistics import geometric_mean

from roofline import DTYPES, best
from style import load

CPUS = {"zen4": "Zen 4", "zen5": "Zen 5", "amx": "Xeon with AMX", "zen3": "Zen 3 (AVX2)"}


def table() -> Iterator[str]:
    """Yield the lines: mp_core / fastest peer, as the mean over the shapes and the lowest, by CPU and type."""
    yield f"| | {' | '.join(name.removesuffix('_e4m3fn') for name in DTYPES)} |"
    yield "|---" * (len(DTYPES) + 1) + "|"
    for cpu, title in CPUS.items():
        yield f"| {title} | {' | '.join(cell(f'products-{cpu}', dtype) for dtype in DTYPES)} |"


def cell(name: str, dtype: str) -> str:
    found = best([record for record in load(name).records if (record.operation, record.dtype) == ("products", dtype)])
    peers: dict[str, float] = {}
    for (shape, contender), record in found.items():
        # For a batch of narrow matrices the only peer is a fallback of PyTorch, 8 to 39 times slower: not compared.
        if contender not in ("packed", "kn", "nk") and (dtype == "float32" or shape.count("x") == 2):
            peers[shape] = max(record.rate, peers.get(shape, 0.0))
    ratios = {shape: found[shape, "packed"].rate / rate for shape, rate in peers.items()}
    if not ratios:
        return "-"
    least = min(ratios, key=lambda shape: ratios[shape])
    return f"{geometric_mean(ratios.values()):.2f} ({ratios[least]:.2f}, {least})"


if __name__ == "__main__":
    print(*table(), sep="\n")
