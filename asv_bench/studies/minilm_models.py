"""Write all-MiniLM-L6-v2 in the formats of the contenders of `peers.py minilm`: `python minilm_models.py FOLDER`.

| file | content | contender |
|---|---|---|
| float32.onnx | the network with mean pooling | onnxruntime, OpenVINO, NNCF |
| int8.onnx | the same by quantize_dynamic: int8 weights, one scale per column | onnxruntime |
| sample.npz | tokens of the news items for calibration | NNCF |
| fixed, int4-32, int4-64 | calibrated by mp_core on these news items | mp_core |
"""

import logging
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from minilm_inputs import SAMPLE, sample
from minilm_torch import SentenceEncoder
from onnxruntime.quantization import QuantType, quantize_dynamic

import mp_core as mp
from mp_core.cli import demo
from mp_core.models import BertEncoder

CALIBRATED = ("int8/fixed", "int4/32", "int4/64")  # policies


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    export(folder / "float32.onnx")
    logging.disable()  # a warning that advises to simplify the graph first, which makes this one 5 % slower
    quantize_dynamic(folder / "float32.onnx", folder / "int8.onnx", per_channel=True, weight_type=QuantType.QInt8)
    logging.disable(logging.NOTSET)
    rows = sample()
    np.savez(folder / "sample.npz", tokens=np.concatenate(rows), lengths=[len(row) for row in rows])
    plain = BertEncoder.from_folder(demo.model_folder())
    for policy in CALIBRATED:
        target = calibrated_folder(folder, policy)
        shutil.rmtree(target, ignore_errors=True)
        mp.calibrate(plain, demo.background()[:SAMPLE], policy).save(target)


def calibrated_folder(folder: Path, policy: str) -> Path:
    return folder / policy.removeprefix("int8/").replace("/", "-")


def export(path: Path) -> None:
    """Write the graph with attention as single steps, which onnxruntime and OpenVINO recognize as attention.

    Of four exports (attention as one step or several, with both exporters of torch) this is the fastest in both
    libraries: by 3 to 15 % for onnxruntime in float32, by 13 to 20 % in int8 (Zen 4, November 2026).
    """
    ids = torch.ones((2, 16), dtype=torch.int64)
    names = ["ids", "mask"]
    free = {name: {0: "documents", 1: "tokens"} for name in names} | {"embeddings": {0: "documents"}}
    with warnings.catch_warnings(action="ignore"), torch.inference_mode():
        torch.onnx.export(
            SentenceEncoder(torch.float32, "eager"),
            (ids, ids),
            path,
            input_names=names,
            output_names=["embeddings"],
            dynamic_axes=free,
            dynamo=False,
        )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
