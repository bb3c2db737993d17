"""Inspection and verification: counts and measures, by their definitions."""

import math

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from tensors import normal, row_of, safetensors

from mp_core.checkpoint import Threshold, convert, inspect, open_tensors, verify


def test_an_inspection_counts_by_the_definitions(tmp_path):
    x = np.array([[0, 1, -70000, 65504, 1e-5, -6e-5, 2.0**-14], [np.inf, -np.inf, np.nan, 3, 0, 0, 1e30]], np.float32)
    tensors = {"x": x, "ids": np.array([-(2**40), 5]), "none": np.zeros((0, 3), np.float16)}
    save_file(tensors, tmp_path / "m.safetensors", metadata={"a": "b"})
    report = inspect(tmp_path / "m.safetensors")
    row = row_of(report, "x")
    assert row == {
        "name": "x",
        "file": "m.safetensors",
        "shape": [2, 7],
        "dtype": "float32",
        "bytes": 56,
        "quantization": None,
        "tool": None,
        "layout": None,
        "note": None,
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


@pytest.mark.parametrize("policy", ["float16", "int8", "int4/64", "float8_e4m3fn"])
def test_verification_measures_what_conversion_did(source, target, policy):
    converted = convert(source, target, policy)
    verified = verify(source, target, rtol=1.0)
    assert verified["failed"] == []
    measures = ("max_abs_error", "rel_rmse", "sqnr", "cosine", "overflow", "flushed", "nan")
    for row in converted["tensors"]:
        assert {key: row_of(verified, row["name"])[key] for key in measures} == pytest.approx(
            {k: row[k] for k in measures}
        )
    lossy = [row["name"] for row in converted["tensors"] if row["rel_rmse"] > 0]
    assert [line.split(":")[0] for line in verify(source, target)["failed"]] == lossy


@pytest.mark.parametrize(
    ("new", "expected"),
    [(1.0, 1.0), (0.9, 1 - 0.1**2 / 2), (1.5, 1 - 0.5**2 / 2), (-1.0, -1.0), (5.0, -1.0), (0.0, 0.0)],
)
def test_one_number_has_a_cosine_that_sees_how_far_it_is(tmp_path, new, expected):
    """The cosine of two numbers is 1 or -1, so that a condition for it would be met by any number."""
    files = [tmp_path / f"{name}.safetensors" for name in ("one", "other")]
    for file, value in zip(files, (1.0, new), strict=True):
        save_file({"scale": np.full(1, value)}, file)
    row = row_of(verify(*files, rtol=10.0), "scale")
    assert row["cosine"] == pytest.approx(expected)
    assert Threshold.parse("cosine<0.999").fails(row) == (expected < 0.999)


def test_types_that_no_policy_converts_are_kept_and_measured(tmp_path):
    """Scales of other quantizers, rotations as complex numbers: their files are read, too."""
    codes = {"F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"}
    header = {code: {"dtype": code, "shape": [2], "data_offsets": [2 * i, 2 * i + 2]} for i, code in enumerate(codes)}
    header["rotation"] = {"dtype": "C64", "shape": [1, 2], "data_offsets": [6, 22]}
    header["weight"] = {"dtype": "F32", "shape": [2, 2], "data_offsets": [22, 38]}
    rotation, weight = np.array([[3 + 4j, np.nan - 7j]], np.complex64), np.eye(2, dtype=np.float32)
    numbers = {"F8_E8M0": [1, 2], "F8_E4M3FNUZ": [1, 2], "F8_E5M2FNUZ": [2, np.nan]}
    ones = b"".join(np.array(numbers[code]).astype(getattr(ml_dtypes, name)).tobytes() for code, name in codes.items())
    data = ones + rotation.tobytes() + weight.tobytes()
    source, target = tmp_path / "source.safetensors", tmp_path / "target.safetensors"
    source.write_bytes(safetensors(header, data))

    report = inspect(source)
    assert {row["name"]: row["dtype"] for row in report["tensors"]} == {
        **codes,
        "rotation": "complex64",
        "weight": "float32",
    }
    assert [row_of(report, code)["max_abs"] for code in codes] == [2, 2, 2]
    assert row_of(report, "rotation")["max_abs"] == 5 and row_of(report, "rotation")["nan"] == 1

    converted = convert(source, target, "int8", fail_if=["nan>1"])
    assert converted["failed"] == [] and [row_of(converted, name)["nan"] for name in header] == [0, 0, 1, 1, 0]
    kept = open_tensors(target)
    assert b"".join(kept[name].tobytes() for name in (*codes, "rotation")) == data[:22]
    assert [line.split(":")[0] for line in verify(source, target)["failed"]] == []
    changed = bytearray(source.read_bytes())
    changed[-17] ^= 1  # of the last imaginary part
    (tmp_path / "changed.safetensors").write_bytes(changed)
    assert [line.split(":")[0] for line in verify(source, tmp_path / "changed.safetensors")["failed"]] == ["rotation"]


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
    report = verify(tmp_path / "a", tmp_path / "b", rtol=1e-3)
    assert sorted(line.split(":")[0] for line in report["failed"]) == ["gone", "n", "new", "turned"]
    assert any(line.startswith("i: ") for line in verify(tmp_path / "a", tmp_path / "b")["failed"])
    assert verify(tmp_path / "a", tmp_path / "a")["failed"] == []
    with pytest.raises(ValueError, match="`rtol` must be a number of at least 0"):
        verify(tmp_path / "a", tmp_path / "a", rtol=math.nan)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (np.array([2**53 + 1]), np.array([2.0**53]), False),
        (np.array([2.0**53]), np.array([2**53 + 1]), False),
        (np.array([2**63 - 1]), np.array([2.0**63]), False),
        (np.array([2**64 - 1], np.uint64), np.array([2.0**64], np.float32), False),
        (np.array([2**64 - 1], np.uint64), np.array([-1]), False),
        (np.array([2**53, -(2**63), 7]), np.array([2.0**53, -(2.0**63), 7]), True),
        (np.array([True, False]), np.array([1, 0], np.float32), True),
        (np.array([2**63], np.uint64), np.array([2.0**63]), True),
    ],
)
def test_integers_beyond_float64_differ_from_its_numbers(tmp_path, a, b, same):
    save_file({"x": a}, tmp_path / "a"), save_file({"x": b}, tmp_path / "b")
    assert (verify(tmp_path / "a", tmp_path / "b")["failed"] == []) is same


@pytest.mark.parametrize(("a", "b"), [([1.0, 2.0], [1e200, 1.0]), ([1e200, 2.0], [1.0, 1.0])])
def test_measures_of_numbers_whose_squares_overflow(tmp_path, a, b):
    save_file({"x": np.array(a)}, tmp_path / "a"), save_file({"x": np.array(b)}, tmp_path / "b")
    row = row_of(verify(tmp_path / "a", tmp_path / "b"), "x")
    assert row["max_abs_error"] == 1e200 and all(math.isnan(row[name]) for name in ("rel_rmse", "sqnr", "cosine"))
