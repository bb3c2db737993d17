"""Inspection and verification: what is counted and measured, by the definitions."""

import math

import numpy as np
import pytest
from safetensors.numpy import save_file
from tensors import normal, row_of

from mp_core.checkpoint import convert_file, inspect_file, verify_files


def test_an_inspection_counts_by_the_definitions(tmp_path):
    x = np.array([[0, 1, -70000, 65504, 1e-5, -6e-5, 2.0**-14], [np.inf, -np.inf, np.nan, 3, 0, 0, 1e30]], np.float32)
    tensors = {"x": x, "ids": np.array([-(2**40), 5]), "none": np.zeros((0, 3), np.float16)}
    save_file(tensors, tmp_path / "m.safetensors", metadata={"a": "b"})
    report = inspect_file(tmp_path / "m.safetensors")
    row = row_of(report, "x")
    assert row == {
        "name": "x",
        "file": "m.safetensors",
        "shape": [2, 7],
        "dtype": "float32",
        "bytes": 56,
        "quantization": None,
        "max_abs": float(np.float32(1e30)),
        "above_float16": 2,
        "below_float16": 2,
        "infinite": 2,
        "nan": 1,
    }
    assert row_of(report, "ids")["max_abs"] == 2**40
    assert row_of(report, "none")["max_abs"] == 0
    assert report["metadata"] == {"m.safetensors": {"a": "b"}}
    assert report["bytes"] == sum(x.nbytes for x in tensors.values())


@pytest.mark.parametrize("policy", ["float16", "int8", "int4", "float8_e4m3fn"])
def test_verification_measures_what_conversion_did(source, target, policy):
    converted = convert_file(source, target, policy)
    verified = verify_files(source, target, rtol=1.0)
    assert verified["failed"] == []
    measures = ("max_abs_error", "rel_rmse", "sqnr", "cosine", "overflow", "flushed", "nan")
    for row in converted["tensors"]:
        assert {key: row_of(verified, row["name"])[key] for key in measures} == pytest.approx(
            {k: row[k] for k in measures}
        )
    lossy = [row["name"] for row in converted["tensors"] if row["rel_rmse"] > 0]
    assert [line.split(":")[0] for line in verify_files(source, target)["failed"]] == lossy


def test_verification_names_what_differs(tmp_path):
    x = normal(3, 4)
    a = {
        "x": x,
        "gone": x.copy(),
        "turned": x.copy(),
        "n": np.array([np.nan, np.inf], np.float32),
        "i": np.array([2**60]),
    }
    b = {
        "x": x,
        "new": x.copy(),
        "turned": x.T.copy(),
        "n": np.array([np.nan, 1], np.float32),
        "i": np.array([2**60 + 1]),
    }
    save_file(a, tmp_path / "a"), save_file(b, tmp_path / "b")
    report = verify_files(tmp_path / "a", tmp_path / "b", rtol=1e-3)
    assert sorted(line.split(":")[0] for line in report["failed"]) == ["gone", "n", "new", "turned"]
    assert any(line.startswith("i: ") for line in verify_files(tmp_path / "a", tmp_path / "b")["failed"])
    assert verify_files(tmp_path / "a", tmp_path / "a")["failed"] == []
    with pytest.raises(ValueError, match="`rtol` must be a number of at least 0"):
        verify_files(tmp_path / "a", tmp_path / "a", rtol=math.nan)
