"""What each quantization of all-MiniLM-L6-v2 costs: ``python asv_bench/minilm_accuracy.py`` (the data: docs/demo.md).

Cosines with the embeddings of the same model in float32, over the 50 news items of the demonstration. What is fitted to
a sample gets the first 200 of the 300 other items that were published with them. All that is not quantized computes in
bfloat16.
"""

import numpy as np

import mp_core as mp
from mp_core import demo
from mp_core.models import BertEncoder
from mp_core.tables import aligned

SCHEMES = ("int8", "int8/weight_only", "int8/weight_only/64", "float8_e4m3fn", "float8_e4m3fn/64", "int4/64", "int4/32")


def cosines(encoder, expected, texts):
    received = encoder.encode(texts).astype(np.float64)
    lengths = np.linalg.norm(received, axis=1) * np.linalg.norm(expected, axis=1)
    return (received * expected).sum(axis=1) / lengths


def main():
    (texts, _), sample = demo.documents_and_ratings(), demo.background()[:200]
    encoder = BertEncoder.from_folder(demo.model_folder(), "float32")
    expected = encoder.encode(texts).astype(np.float64)
    rows = [["policy", "fitted by", "MB", "minimum", "mean"]]

    def add(policy, fitted, other):
        found = cosines(other, expected, texts)
        rows.append([policy, fitted, f"{other.weight_bytes / 1e6:.1f}", f"{found.min():.4f}", f"{found.mean():.4f}"])

    add("mixed_bfloat16", "", encoder.with_policy("mixed_bfloat16"))
    for scheme in SCHEMES:
        add(scheme, "", encoder.with_policy(f"{scheme}_from_mixed_bfloat16"))
        add(scheme, "calibrate", mp.calibrate(encoder, sample, scheme))
    print(aligned(rows, left=(0, 1)))


if __name__ == "__main__":
    main()
