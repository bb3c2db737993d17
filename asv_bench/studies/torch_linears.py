"""Compare the linears of torch with those of mp_core in BERT-base with random weights, in one interleaved run.

    python asv_bench/studies/torch_linears.py [--threads 1 2] [--tokens 128] [--rounds 15]

Between two contenders there is a pause, in which spinning threads, such as those of torch, fall asleep.
"""

import argparse
import statistics
import time
import warnings

import torch
from transformers import BertConfig, BertModel

from mp_core.interop.torch import replace_linears

PAUSE = 0.05  # seconds


def contenders():
    def model():
        torch.manual_seed(0)
        return BertModel(BertConfig()).eval()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantize_dynamic is deprecated
        dynamic = torch.ao.quantization.quantize_dynamic(model(), {torch.nn.Linear}, torch.qint8)
    return {
        "torch float32": model(),
        "torch bfloat16": model().bfloat16(),
        "torch dynamic int8": dynamic,
        "mp_core float32": replace_linears(model(), "float32"),
        "mp_core bfloat16": replace_linears(model(), "bfloat16"),
        "mp_core int8": replace_linears(model(), "int8"),
    }


def timed(models, ids, rounds):
    times = {name: [] for name in models}
    for round_ in range(rounds + 2):
        for name, model in models.items():
            time.sleep(PAUSE)
            start = time.perf_counter()
            model(ids)
            if round_ > 1:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, nargs="+", default=[128])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    models = contenders()
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for tokens in arguments.tokens:
            ids = torch.randint(0, 30000, (arguments.batch, tokens))
            with torch.inference_mode():
                medians = timed(models, ids, arguments.rounds)
            print(f"{threads} threads, {arguments.batch} x {tokens} tokens")
            for name, seconds in medians.items():
                against = ", ".join(
                    f"{medians[other] / seconds:.2f} of {other}" for other in ("torch float32", "torch dynamic int8")
                )
                print(f"  {name:20} {1e3 * seconds:8.2f} ms   {against}")


if __name__ == "__main__":
    main()
