"""Simulate how the plan of MiniLM scales on many cores.

``python asv_bench/studies/simulate_schedule.py`` prints the result.

One thread is measured: the time of a pass of some texts, and of each operation of a shared pass, divided into tasks as
for P threads. Simulated threads then take the longest waiting pass or task, like the threads of the pool.

- Texts are divided into passes by the encoder's own rule. Parallel passes have no barrier. One pass for all threads has
  a barrier after each operation.
- The barrier is measured with two threads and takes P / 2 times as long for P: all of them add to one counter.
- Each pass reads the weights once, from a memory whose bandwidth all cores share (--bandwidth, GB/s).

Not simulated: clock rates that fall when many cores work, caches that cores share, NUMA. P = 1 and 2 are also measured,
with the encoder's plan, and printed beside the predictions. The weights are random.
"""

import argparse
import heapq
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

import mp_core as mp
from mp_core.models import TextNetwork
from mp_core.models.ragged import RaggedTexts, _Pooled, cut

MINILM = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
SHAPES = (32, 128), (8, 64), (1, 32)  # texts, tokens of each
THREADS = 1, 2, 4, 8, 16, 32, 64
STEPS = 500  # layers of the plan that measures the barrier


def seconds(run: Callable[[], Any], budget: float = 1.0) -> float:
    """Return the shortest time of the calls within some seconds: the least disturbed one."""
    run()
    times, end = [], perf_counter() + budget
    while perf_counter() < end:
        begin = perf_counter()
        run()
        times.append(perf_counter() - begin)
    return min(times)


def finish(tasks: list[float], threads: int) -> float:
    """Return when the last task ends, if each free thread takes the next task."""
    ends = [0.0] * min(threads, len(tasks))
    for task in tasks:
        heapq.heapreplace(ends, ends[0] + task)
    return max(ends)


def barrier() -> float:
    """Return the time of an operation on two threads, less half its time on one: the seconds of the barrier."""

    def chain(x: Any) -> Any:
        for _ in range(STEPS):
            x = mp.relu(x)
        return x

    x = np.ones((64, 512), np.float32)  # as many elements as two threads share
    plan, taken = mp.compile(chain, x), []
    for threads in (1, 2):
        with mp.config.num_threads(threads):
            taken.append(seconds(lambda: plan(x)) / STEPS)
    return max(taken[1] - taken[0] / 2, 0.0)


class Simulation:
    """The schedules of one model."""

    def __init__(self, policy: str, bandwidth: float) -> None:
        model, rng = TextNetwork(MINILM), np.random.default_rng(0)
        model.build()
        model.set_weights([0.05 * rng.standard_normal(weight.shape) for weight in model.get_weights()])
        self.model = model if policy == "float32" else model.with_policy(policy)
        self.texts = RaggedTexts(self.model, _Pooled(self.model, ("mean",), 0), MINILM["hidden_size"])
        hidden = np.zeros((1, 8, MINILM["hidden_size"]), self.model.embeddings(np.zeros((1, 8), int)).dtype)
        self.weights = mp.compile(self.model.encoder, hidden).memory.constants
        self.bandwidth, self.barrier = bandwidth, barrier()
        self.passes: dict[tuple[int, int], float] = {}

    def measured(self, texts: int, length: int, threads: int) -> float:
        """Return the measured seconds of the texts on this machine."""
        ids, lengths = np.ones(texts * length, np.int32), [length] * texts
        with mp.config.num_threads(threads):
            return seconds(lambda: self.texts(ids, lengths))

    def one_pass(self, texts: int, length: int) -> float:
        """Return the seconds of a pass on one thread."""
        if (texts, length) not in self.passes:
            ids, lengths = np.ones(texts * length, np.int32), np.full(texts, length)
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            arrays = [ids, self.model.embeddings.places(ids, offsets), offsets]
            with mp.config.num_threads(1):
                run = lambda: self.texts.plan.run_rows(arrays, (len(ids), texts))  # noqa: E731
                self.passes[texts, length] = seconds(run)
        return self.passes[texts, length]

    def predicted(self, texts: int, length: int, threads: int) -> float:
        """Return the predicted seconds of the texts on a number of cores."""
        passes = cut([length] * texts, threads)
        read = len(passes) * self.weights / self.bandwidth
        if threads == 1 or len(passes) > 1:
            longest_first = sorted((self.one_pass(last - first, length) for first, last in passes), reverse=True)
            return max(finish(longest_first, threads), read)
        plan = mp.compile(self.model, np.ones((texts, length), np.int32))
        runs = [plan.profile(repeat=1, cut=threads) for _ in range(max(5, 1500 // (texts * length)))]
        spent = len(runs[0]) * self.barrier * threads / 2
        for same in zip(*runs, strict=True):
            fastest = min(step.seconds for step in same)
            spent += finish([fastest / same[0].tasks] * same[0].tasks, threads)
        return max(spent, read)


def main() -> None:
    """Print a table for each policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", nargs="+", default=["float32", "mixed_bfloat16", "int8_from_mixed_bfloat16"])
    parser.add_argument("--bandwidth", type=float, default=200.0, help="of the memory, in GB/s (default 200)")
    arguments = parser.parse_args()
    for policy in arguments.policy:
        simulation = Simulation(policy, arguments.bandwidth * 1e9)
        print(f"{policy}: {simulation.weights / 1e6:.0f} MB of weights, {simulation.barrier * 1e6:.2f} us a barrier")
        print("| texts x tokens | " + " | ".join(f"{threads}" for threads in THREADS) + " | here: 1, 2 (predicted) |")
        for texts, length in SHAPES:
            taken = [simulation.predicted(texts, length, threads) for threads in THREADS]
            here = [f"{texts / simulation.measured(texts, length, n):.0f} ({texts / taken[n - 1]:.0f})" for n in (1, 2)]
            row = " | ".join(f"{taken[0] / time:.1f}" for time in taken)
            print(f"| {texts} x {length} | {row} | {', '.join(here)} documents/s |", flush=True)


if __name__ == "__main__":
    main()
