"""What distillation gains over calibration for all-MiniLM-L6-v2: the table of docs/adapting.md.

``python asv_bench/studies/minilm_distilled.py`` prints it. The teacher is the model in float32; students are calibrated
on and trained with the first 200 of the 300 other items that were published with the 50 news items of the demonstration
(docs/demo.md). Cosines are those with the embeddings of the teacher, over the 50 items and over 40 more of the others:
no student was trained with these. Time is that of the processor, all threads together.
"""

import argparse
import time

import numpy as np

import mp_core as mp
from mp_core import demo
from mp_core.models import BertEncoder

WAYS = (("int4/64", 0.75, 1e-4), ("int8", 0.75, 2e-5), ("int8", 0.85, 2e-5))
"""Scheme, `alpha` of the calibration, learning rate."""
HEAD = ("scheme", "alpha", "model", "minimum, 40 others", "mean", "minimum, the 50 items", "mean", "CPU seconds")
SAMPLE, JUDGED = slice(200), slice(200, 240)


def cosines(encoder, teacher, texts):
    """Return the minimum and the mean over the texts."""
    x, y = (model.encode(texts).astype(np.float64) for model in (encoder, teacher))
    found = (x * y).sum(axis=1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    return f"{found.min():.4f}", f"{found.mean():.4f}"


def rows(scheme, alpha, rate, epochs):
    """Yield the rows of a scheme, calibrated and distilled."""
    others, items = demo.background(), demo.documents_and_ratings()[0]
    teacher = BertEncoder.from_folder(demo.model_folder(), "float32")
    options = {"alpha": alpha, "learning_rate": rate, "epochs": epochs}
    ways = {
        "calibrated": lambda: mp.calibrate(teacher, others[SAMPLE], scheme, alpha=alpha),
        "distilled": lambda: mp.distill(teacher, others[SAMPLE], scheme, **options),
    }
    for name, way in ways.items():
        begin = time.process_time()
        student = way()
        took = f"{time.process_time() - begin:.0f}"
        found = *cosines(student, teacher, others[JUDGED]), *cosines(student, teacher, items)
        yield f"`{scheme}`", str(alpha), name, *found, took


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--epochs", type=int, default=4)
    epochs = parser.parse_args().epochs
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for way in WAYS:
        for row in rows(*way, epochs):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
