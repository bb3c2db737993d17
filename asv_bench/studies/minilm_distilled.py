"""Print the gain of distillation over calibration for all-MiniLM-L6-v2: the table of docs/adapting.md.

``python asv_bench/studies/minilm_distilled.py`` prints it. The teacher is the model in float32. Students are calibrated
and trained with the first ``--texts`` of 200 news items, the first of the 300 that were published beside the 50 items
of the demonstration (docs/demo.md). Cosines are with the embeddings of the teacher, over the 50 items and over 40 more
of the 300: no student was trained with these. Time is CPU time, all threads together.
"""

import argparse
import time

import mp_core as mp
from mp_core.cli import demo
from mp_core.models import BertEncoder
from mp_core.models.tuning.evaluation import cosines

WAYS = (("int4/64", 0.75, 1e-4), ("int8", 0.75, 2e-5), ("int8", 0.85, 2e-5))
"""Scheme, `alpha` of the calibration, learning rate."""
HEAD = ("scheme", "alpha", "model", "minimum, 40 others", "mean", "minimum, the 50 items", "mean", "CPU seconds")
JUDGED = slice(200, 240)


def rows(scheme, alpha, rate, texts, epochs):
    """Yield the rows of a scheme: rounded without a sample, calibrated, distilled."""
    others, items = demo.background(), demo.documents_and_ratings()[0]
    teacher = BertEncoder.from_folder(demo.model_folder(), "float32")
    judged = [(part, teacher.encode(part)) for part in (others[JUDGED], items)]
    options = {"alpha": alpha, "learning_rate": rate, "epochs": epochs, "verbose": 0}
    ways = {
        "rounded": lambda: teacher.with_policy(scheme),
        "calibrated": lambda: mp.calibrate(teacher, others[:texts], scheme, alpha=alpha),
        "distilled": lambda: mp.distill(teacher, others[:texts], scheme, **options),
    }
    for name, way in ways.items():
        begin = time.process_time()
        student = way()
        took = f"{time.process_time() - begin:.0f}"
        found = [f"{x:.4f}" for part, vectors in judged for x in cosines(student.encode(part), vectors).values()]
        yield f"`{scheme}`", str(alpha), name, *found, took


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--texts", type=int, default=200, help="at most 200")
    parser.add_argument("--ways", type=int, nargs="+", default=range(len(WAYS)), help="which rows of WAYS")
    chosen = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    for way in chosen.ways:
        for row in rows(*WAYS[way], chosen.texts, chosen.epochs):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
