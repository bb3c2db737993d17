"""Print the accuracy and speed of each quantization of all-MiniLM-L6-v2: the table of docs/quantization.md.

``python asv_bench/studies/minilm_accuracy.py`` prints it (the data: docs/demo.md). Every model is saved to a folder,
and opened without a policy. Cosines are with the embeddings in float32, over the 50 news items of the demonstration.
Calibrated models have seen the first 200 of the 300 other items that were published with them. Models are timed in
interleaved rounds, and the best round counts. ``--alphas`` prints the table of docs/calibration.md instead, evaluated
also on 40 more of the other items.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import mp_core as mp
from mp_core.cli import demo
from mp_core.models import BertEncoder
from mp_core.utilities.progress import progress

SCHEMES = {
    "float32": ("4", "what the others are compared with"),
    "mixed_bfloat16": ("4, read as 2", "nothing may be lost"),
    "int8": ("1", "the first choice: fastest, and no sample is needed"),
    "int8/fixed": ("1", "you have a sample: fixed scales, so an outlier does not coarsen the other inputs of its row"),
    "int8/weight_only": ("1", "accuracy before speed; with float16 too"),
    "int8/weight_only/64": ("1 + 4/64", "weights with outliers inside a channel"),
    "float8_e4m3fn": ("1", "models that were made for float8"),
    "int4/64": ("1/2 + 5/64", "size before all else, always with a sample"),
    "int4/32": ("1/2 + 5/32", "the same, a little larger and more accurate"),
}
"""Scheme -> bytes per weight, when to use it."""
HEAD = ("scheme", "bytes per weight", "MB", "cosine", "calibrated", "ms in 32", "ms alone", "when to use it")
ALPHAS = (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85)
SAMPLE, JUDGED = slice(200), slice(200, 240)
ROUNDS = 5
BATCHES = (32, 1)


def cosines(encoder, expected, texts):
    """Return the minimum and the mean over the texts."""
    received = encoder.encode(texts).astype(np.float64)
    lengths = np.linalg.norm(received, axis=1) * np.linalg.norm(expected, axis=1)
    found = (received * expected).sum(axis=1) / lengths
    return f"{found.min():.4f}", f"{found.mean():.4f}"


def milliseconds(encoder, texts, batch):
    """Return the milliseconds per text."""
    start = time.perf_counter()
    for first in range(0, len(texts), batch):
        encoder.encode(texts[first : first + batch])
    return (time.perf_counter() - start) / len(texts) * 1e3


def made(plain, sample, policy, folder):
    """Yield the model without and with calibration, opened from folders; None if a variant is not possible."""
    scheme = mp.dtype_policies.policy_of(policy).scheme
    ways = (
        (lambda: plain.with_policy(policy)) if scheme is None or scheme.inputs != "fixed" else None,
        (lambda: mp.calibrate(plain, sample, policy)) if scheme is not None and scheme.inputs != "dynamic" else None,
    )
    for number, way in enumerate(ways):
        if way is not None:
            way().save(folder / str(number))
        yield None if way is None else BertEncoder.from_folder(folder / str(number))


def schemes():
    """Yield the rows of the table of SCHEMES."""
    texts, sample = demo.documents_and_ratings()[0], demo.background()[SAMPLE]
    plain = BertEncoder.from_folder(demo.model_folder())
    expected = plain.encode(texts).astype(np.float64)
    show = sys.stderr.isatty()
    with tempfile.TemporaryDirectory() as parent:
        models, accuracy = [], []
        for policy in progress(SCHEMES, show=show, total=len(SCHEMES), unit="scheme"):
            folder = Path(parent, policy)
            folder.mkdir(parents=True)
            both = list(made(plain, sample, policy, folder))
            accuracy.append(["" if model is None else ", ".join(cosines(model, expected, texts)) for model in both])
            models.append(both[1] or both[0])
        best = np.full((len(models), len(BATCHES)), np.inf)
        for _ in progress(range(ROUNDS), show=show, total=ROUNDS, unit="round"):
            for column, batch in enumerate(BATCHES):
                took = [milliseconds(model, texts, batch) for model in models]
                best[:, column] = np.minimum(best[:, column], took)
    yield HEAD
    for policy, model, cosine, took in zip(SCHEMES, models, accuracy, best, strict=True):
        size, use = SCHEMES[policy]
        yield f"`{policy}`", size, f"{model.weight_bytes / 1e6:.1f}", *cosine, *(f"{time:.1f}" for time in took), use


def alphas():
    """Yield the rows of the table of ALPHAS."""
    others = demo.background()
    plain = BertEncoder.from_folder(demo.model_folder())
    sets = others[JUDGED], demo.documents_and_ratings()[0]
    expected = [plain.encode(texts).astype(np.float64) for texts in sets]
    yield "alpha", "minimum, 40 others", "mean, 40 others", "minimum, the 50 items", "mean, the 50 items"
    for alpha in ALPHAS:
        model = mp.calibrate(plain, others[SAMPLE], "int8", alpha=alpha)
        found = [cosines(model, exact, texts) for exact, texts in zip(expected, sets, strict=True)]
        yield f"{alpha}", *found[0], *found[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--alphas", action="store_true")
    for number, row in enumerate(alphas() if parser.parse_args().alphas else schemes()):
        print(f"| {' | '.join(row)} |", *["|---" * len(row) + "|"] * (not number), sep="\n")


if __name__ == "__main__":
    main()
