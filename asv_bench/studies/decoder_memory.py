"""Measure the memory of a decoder: opened from a float32 folder under each policy, then one query, on one thread.

    python decoder_memory.py float32 bfloat16 mixed_bfloat16 int8 int4/64

The network is random, by default with the sizes of Qwen3-Embedding-0.6B. Each line is a separate process, in MB
(1e6 bytes): the weights, counted from their shapes; then the growth of the process since it imported mp_core: after
opening, after the query, and the peak until each of the two (VmRSS and VmHWM of Linux).
"""

import argparse
import tempfile
from multiprocessing import get_context
from pathlib import Path

TOKENS = 32
MB = 1e6


def write(blocks: int, vocabulary: int, folder: Path) -> None:
    """Write the network."""
    from decoder_files import save

    save(blocks, vocabulary, folder)


def resident() -> tuple[float, float]:
    """Return the resident memory of this process, and its peak."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    now, most = (int(lines[name].split()[0]) * 1024 / MB for name in ("VmRSS", "VmHWM"))
    return now, most


def measure(policy: str, folder: Path) -> None:
    """Print the line of a policy."""
    import numpy as np

    import mp_core as mp
    from mp_core.models import BertEncoder

    before, _ = resident()
    encoder = BertEncoder.from_folder(folder, policy)
    opened, most_opened = resident()
    with mp.config.num_threads(1):
        encoder.embed_tokens(np.random.default_rng(0).integers(0, 256, (1, TOKENS)))
    asked, most = resident()
    figures = (opened - before, asked - before, most_opened - before, most - before)
    print(f"{policy:16}", f"{encoder.weight_bytes / MB:9.0f}", *(f"{each:9.0f}" for each in figures), flush=True)


def main() -> None:
    """Write the network, then measure each policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="+", metavar="POLICY")
    parser.add_argument("--blocks", type=int, default=28)
    parser.add_argument("--vocabulary", type=int, default=151669)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = [(write, (options.blocks, options.vocabulary, folder))]
        steps += [(measure, (policy, folder)) for policy in options.policies]
        print(f"{'policy':16}", *(f"{each:>9}" for each in ("weights", "opened", "asked", "most", "most")))
        for target, arguments in steps:
            process = get_context("spawn").Process(target=target, args=arguments)
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(f"{target.__name__}{arguments} ended with {process.exitcode}")


if __name__ == "__main__":
    main()
