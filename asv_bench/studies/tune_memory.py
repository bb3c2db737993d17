"""Measure peak memory and CPU seconds of fine-tuning steps of MiniLM on pairs of random tokens, on one thread.

    python tune_memory.py 1024 --chunk 32

Start a new process for each run, because the peak is that of the process.
"""

import argparse
import random
import time

import mp_core as mp
from mp_core.cli import demo

WORDS = (demo.model_folder() / "vocab.txt").read_text(encoding="utf-8").split()[2000:12000]


class Steps(mp.callbacks.Callback):
    """Prints the CPU seconds of each step, and the peak of memory so far."""

    def on_train_batch_begin(self, batch, logs=None):
        """Store the time at which the step begins."""
        self.begun = time.process_time()

    def on_train_batch_end(self, batch, logs=None):
        """Print the time of the step, and the peak."""
        seconds = time.process_time() - self.begun
        print(f"step {batch}: {seconds:.2f} s of CPU, peak {demo.peak_rss_bytes() / 2**20:.0f} MiB", flush=True)


def main() -> None:
    """Train some steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batch", type=int, help="pairs of a step")
    parser.add_argument("--chunk", type=int, help="number of pairs whose activations are kept")
    parser.add_argument("--words", type=int, default=40, help="the most words of a text; each has half of that or more")
    parser.add_argument("--steps", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(0)

    def text() -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randint(options.words // 2, options.words)))

    pairs = [(text(), text()) for _ in range(options.batch * options.steps)]
    encoder = mp.models.BertEncoder.from_folder(demo.model_folder(), "float32")
    with mp.config.num_threads(1):
        encoder.fit(pairs, batch_size=options.batch, chunk=options.chunk, seed=0, verbose=0, callbacks=[Steps()])


if __name__ == "__main__":
    main()
