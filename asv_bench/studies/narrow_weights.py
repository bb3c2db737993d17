"""Train weights of bfloat16 without masters: to nearest, with stochastic rounding, compensated; beside float32 masters.

    python narrow_weights.py digits --seeds 0 1 2 3 4
    python narrow_weights.py minilm --train 256 --eval 256 --seeds 0 1 2
    python narrow_weights.py memory --layers 8 --width 1024

digits is the recipe of docs/tutorial_training.md with 30 epochs. minilm is the task of tune_retrieval.py, one epoch of
AdamW with its schedule. Both compute in bfloat16 in all rows. They print the mean over the last tenth of the steps
(digits: the last epoch) of the training loss, and the accuracy or recall@10 afterwards; in parentheses is the standard
deviation over the seeds. memory trains dense layers for two steps in a process of its own, and prints the peak of its
resident memory less that before the model was made, in bytes a weight, beside the bytes of variables and slots.
"""

import argparse
import json
import subprocess
import sys
from statistics import mean, stdev
from typing import Any

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "float32 masters": ("mixed_bfloat16", {}),
    "nearest": ("bfloat16", {}),
    "stochastic": ("bfloat16", {"stochastic_rounding": True}),
    "compensated": ("bfloat16", {"compensated": True}),
    "both": ("bfloat16", {"compensated": True, "stochastic_rounding": True}),
}


def digits(way: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    import numpy as np
    from sklearn.datasets import load_digits

    import mp_core as mp

    policy, more = WAYS[way]
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    mp.random.set_seed(seed)
    model = mp.Sequential([
        mp.Input((64,)),
        mp.layers.Dense(128, "relu", dtype=policy),
        mp.layers.Dense(10, dtype=policy),
    ])  # fmt: skip
    loss = mp.losses.SparseCategoricalCrossentropy(from_logits=True)
    if more.get("stochastic_rounding"):
        more = more | {"seed": seed}
    model.compile(mp.optimizers.Adam(options.rate or 0.003, **more), loss, metrics=["accuracy"])
    history = model.fit(images[:1500], labels[:1500], epochs=options.epochs or 30, verbose=0)
    _, accuracy = model.evaluate(images[1500:], labels[1500:], verbose=0)
    return {"loss": float(history.history["loss"][-1]), "accuracy": float(accuracy)}


def minilm(way: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    from tune_retrieval import LONGEST, RATE, examples, recall

    import mp_core as mp
    from mp_core.cli import demo
    from mp_core.models.tuning.schedule import WarmupLinear

    policy, more = WAYS[way]
    task = examples()
    train, held = task["train"][: options.train], task["eval"][: options.eval]
    encoder = mp.models.BertEncoder.from_folder(demo.model_folder(), policy)
    encoder.max_seq_length = LONGEST
    epochs = options.epochs or 1
    steps = -(-len(train) // 32) * epochs
    if more.get("stochastic_rounding"):
        more = more | {"seed": seed}
    rate = WarmupLinear(options.rate or RATE, steps, round(0.1 * steps))
    optimizer = mp.optimizers.AdamW(rate, weight_decay=0.0, epsilon=1e-8, global_clipnorm=1.0, **more)
    losses: list[float] = []

    class Losses(mp.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            losses.append(float(logs["loss"]))

    encoder.fit(train, epochs=epochs, batch_size=32, optimizer=optimizer, seed=seed, verbose=0, callbacks=[Losses()])
    last = max(1, len(losses) // 10)
    return {"loss": mean(losses[-last:]), "recall": recall(encoder.encode, held)}


def memory(way: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    import resource

    import numpy as np

    import mp_core as mp

    policy, more = WAYS[way]
    width = options.width
    x = np.ones((8, width), np.float32)
    mp.matmul(x, x.T)  # the pool and its memory
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = mp.Sequential([mp.Input((width,)), *(mp.layers.Dense(width, dtype=policy) for _ in range(options.layers))])
    model.compile(mp.optimizers.AdamW(1e-4, **more), "mse")
    for _ in range(2):
        model.train_on_batch(x, x)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    held = [*model.variables, *model.optimizer.variables]
    weights = model.count_params()
    return {"state": sum(v.numpy().nbytes for v in held) / weights, "peak": (peak - before) * 1024 / weights}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=("digits", "minilm", "memory"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--rate", type=float)
    for name, start in (("train", 256), ("eval", 256), ("layers", 8), ("width", 1024)):
        parser.add_argument(f"--{name}", type=int, default=start)
    parser.add_argument("--one", nargs=2, metavar=("WAY", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(globals()[options.subject](options.one[0], int(options.one[1]), options)))
        return
    rows: dict[str, list[dict[str, float]]] = {way: [] for way in options.ways}
    for seed in options.seeds:
        for way in options.ways:
            command = [sys.executable, *sys.argv, "--one", way, str(seed)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rows[way].append(json.loads(done.stdout))
            print(way, seed, done.stdout.strip(), file=sys.stderr, flush=True)
    names = list(next(iter(rows.values()))[0])
    print(f"| | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for way, found in rows.items():
        cells = []
        for name in names:
            values = [each[name] for each in found]
            spread = f" ({stdev(values):.4f})" if len(values) > 1 else ""
            cells.append(f"{mean(values):.4f}{spread}")
        print(f"| {way} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
