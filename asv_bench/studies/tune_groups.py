"""Measure the CPU seconds of groups of 32 pairs, which workers compute when a cluster fine-tunes MiniLM, on one thread.

    python tune_groups.py

The batches have three groups. Each result is pickled and read again, as between machines.
"""

import pickle
import random
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from tune_memory import WORDS

import mp_core as mp
from mp_core.cli import demo

PAIRS, BATCHES = 96, 2


class Here:
    """Replaces a cluster: computes the groups in this process, and measures the time."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.size = 0

    def job(self) -> "Here":
        """Return the object that computes the groups."""
        return self

    def __call__(self, compiled: Any, method: str, pieces: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield the result of a method for each group."""
        parts = compiled.model.in_parts()
        for piece in pieces:
            content = pickle.dumps(self.timed(method, lambda piece=piece: getattr(parts, method)(*piece)), protocol=5)
            self.size = len(content)
            result = self.timed(f"unpacking, {method}", lambda content=content: pickle.loads(content))
            begun = time.process_time()
            yield result
            self.seconds.setdefault(f"adding, {method}", []).append(time.process_time() - begun)

    def timed(self, name: str, function: Callable[[], Any]) -> Any:
        """Return the result of a function, and store its CPU seconds."""
        begun = time.process_time()
        result = function()
        self.seconds.setdefault(name, []).append(time.process_time() - begun)
        return result


def main() -> None:
    """Train all weights, then adapters over int8, and print the medians."""
    draw = random.Random(0)
    text = lambda: " ".join(draw.choice(WORDS) for _ in range(draw.randint(20, 40)))  # noqa: E731
    pairs = [(text(), text()) for _ in range(PAIRS * BATCHES)]
    for policy, rank in (("float32", None), ("int8_from_mixed_bfloat16", 8)):
        encoder = mp.models.BertEncoder.from_folder(demo.model_folder(), policy)
        if rank is not None:
            encoder.enable_lora(rank)
        here = Here()
        with mp.config.num_threads(1):
            encoder.fit(pairs, batch_size=PAIRS, seed=0, verbose=0, cluster=here)
        print(f"{policy}, LoRA {rank}: the gradients of a group have {here.size} bytes")
        for name, seconds in here.seconds.items():
            print(f"  {name}: {median(seconds):.4f} s")


if __name__ == "__main__":
    main()
