"""What each quantization of all-MiniLM-L6-v2 costs: ``python asv_bench/minilm_accuracy.py`` (the data: docs/demo.md).

Cosines with the embeddings of the same model in float32, over the 50 news items of the demonstration. What needs a
sample gets the first 50 of the 300 other items that were published with them. All that is not quantized computes in
bfloat16; files are read back into float32.
"""

import tempfile
from pathlib import Path

import numpy as np

import mp_core as mp
from mp_core import demo
from mp_core.models import BertEncoder
from mp_core.tables import aligned

POLICIES = (
    "mixed_bfloat16",
    "int8_from_mixed_bfloat16",
    "int8/weight_only_from_mixed_bfloat16",
    "int4/64_from_mixed_bfloat16",
)
FILES = ("int8", "int8/weight_only/64", "float8_e4m3fn/64", "int4/64")


def cosines(encoder, expected, texts):
    received = encoder.encode(texts).astype(np.float64)
    lengths = np.linalg.norm(received, axis=1) * np.linalg.norm(expected, axis=1)
    return (received * expected).sum(axis=1) / lengths


def main():
    folder, (texts, _), sample = demo.model_folder(), demo.documents_and_ratings(), demo.background()[:50]
    encoder = BertEncoder.from_folder(folder)
    expected = encoder.encode(texts).astype(np.float64)
    rows = [["quantized", "fitted by", "MB", "minimum", "mean"]]

    def add(what, fitted, nbytes, other):
        found = cosines(other, expected, texts)
        rows.append([what, fitted, f"{nbytes / 1e6:.1f}", f"{found.min():.4f}", f"{found.mean():.4f}"])

    for policy in POLICIES:
        other = encoder.with_policy(policy)
        add(policy, "", other.weight_bytes, other)
        if policy != "mixed_bfloat16":
            other = mp.calibrate(encoder, sample, policy)
            add(policy, "calibrate", other.weight_bytes, other)
    for policy in FILES:
        with tempfile.TemporaryDirectory() as parent:
            out = Path(parent, "model")
            report = mp.checkpoint.convert(folder, out, policy)
            add(f"convert --policy {policy}", "", report["new_bytes"], BertEncoder.from_folder(out, "float32"))
    print(aligned(rows, left=(0, 1)))


if __name__ == "__main__":
    main()
