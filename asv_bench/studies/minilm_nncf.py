"""Quantize all-MiniLM-L6-v2 for OpenVINO: `python minilm_nncf.py FOLDER`, in an environment that has NNCF.

Reads float32.onnx and sample.npz, which minilm_models.py wrote there, and writes int8.xml and int8.bin.
"""

import sys
from pathlib import Path

import nncf
import numpy as np
import openvino


def inputs(row: np.ndarray) -> dict[str, np.ndarray]:
    ids = row[np.newaxis].astype(np.int64)
    return {"ids": ids, "mask": np.ones_like(ids)}


def main(folder: Path) -> None:
    stored = np.load(folder / "sample.npz")
    rows = np.split(stored["tokens"], np.cumsum(stored["lengths"])[:-1])
    model = openvino.Core().read_model(folder / "float32.onnx")
    sample = nncf.Dataset(rows, inputs)
    quantized = nncf.quantize(model, sample, subset_size=len(rows), model_type=nncf.ModelType.TRANSFORMER)
    openvino.save_model(quantized, folder / "int8.xml", compress_to_fp16=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
