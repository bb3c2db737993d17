"""Conversion: what the files hold, by NumPy, ml_dtypes and the safetensors library; what is left where it fails."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tiny_bert
from oracles import LARGEST, unpacked
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import mp_core as mp
from mp_core import checkpoint
from mp_core.checkpoint import POLICIES, RequestError, convert_file, inspect_file, open_tensors, verify_files
from mp_core.checkpoint import convert as convert_module
from mp_core.models import BertEncoder

RNG = np.random.default_rng(3)
LINE = 2**16  # the most elements that are worked on at once


def normal(*shape, dtype="float32"):
    return RNG.standard_normal(shape).astype(dtype)


TENSORS = {
    "layer.weight": normal(70, 33),
    "layer.bias": normal(70),
    "norm.weight": normal(33, dtype="float16"),
    "conv.weight": normal(6, 5, 3, 3),
    "stack.weight": normal(3, 40, 64, dtype=ml_dtypes.bfloat16),
    "double.weight": normal(9, 8, dtype="float64"),
    "long.weight": normal(2, 2 * LINE + 1001),
    "many.weight": normal(3, 701, 131),
    "column.weight": normal(300, 1),
    "ids": np.arange(12).reshape(3, 4),
    "flags": np.array([[True, False]]),
    "scalar": np.array(2.5, np.float32),
    "empty": np.zeros((4, 0), np.float32),
}
FLOATS = {name for name, x in TENSORS.items() if x.dtype.kind in "fV"}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "model.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt", "author": "ä"})
    return path


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out.safetensors"


def row_of(report, name):
    return next(row for row in report["tensors"] if row["name"] == name)


def raw(path):
    """Dtype codes and bytes of all tensors, by a parser of its own."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    data = content[8 + length :]
    return {name: (e["dtype"], e["shape"], data[slice(*e["data_offsets"])]) for name, e in header.items()}, metadata


# ---- casts


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("policy", ["float32", "float16", "bfloat16"])
def test_casts_are_those_of_ml_dtypes(tmp_path, target, policy, saturate):
    dtype = np.dtype(getattr(ml_dtypes, policy, policy))
    special = np.array(
        [0, -0.0, 1e-45, 6e-8, 1e-5, 65519.9, 65520, -7e4, 3.4e38, -3.4028235e38, np.inf, -np.inf, np.nan]
    )
    tensors = {**TENSORS, "special": special.astype(np.float32), "wide": np.array([1e300, -1e-300, 1 + 2**-40])}
    save_file(tensors, tmp_path / "in.safetensors")
    convert_file(tmp_path / "in.safetensors", target, policy, saturate=saturate)
    opened = open_tensors(target)
    for name, x in tensors.items():
        y = opened[name]
        if x.dtype.kind not in "fV":
            assert y.dtype == x.dtype and y.tobytes() == x.tobytes()
            continue
        with np.errstate(over="ignore"):
            expected = x.astype(dtype)
        if saturate:
            wide = x.astype(np.float64)
            clamped = np.copysign(np.float64(ml_dtypes.finfo(dtype).max), wide).astype(dtype)
            beyond = ~np.isfinite(expected.astype(np.float64)) & ~np.isnan(wide)
            same = x.dtype == dtype  # copied as it is
            expected = expected if same else np.where(beyond, clamped, expected)
        assert y.dtype == dtype, name
        np.testing.assert_array_equal(y.astype(np.float64), expected.astype(np.float64), err_msg=name)


def test_shapes_order_and_metadata_stay(source, target):
    convert_file(source, target, "bfloat16")
    tensors, metadata = raw(target)
    assert list(tensors) == list(raw(source)[0])
    assert metadata == {"format": "pt", "author": "ä", "mp_core.policy": "bfloat16"}
    assert {name: tuple(shape) for name, (_, shape, _) in tensors.items()} == {n: x.shape for n, x in TENSORS.items()}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_safetensors_library_reads_what_is_written_and_it_is_aligned(source, target, policy):
    convert_file(source, target, policy)
    with safe_open(target, framework="numpy") as opened:
        assert set(opened.keys()) >= TENSORS.keys()
        assert opened.metadata()["mp_core.policy"] == policy
    for name, array in open_tensors(target).items():
        for part in (array.values, array.scale) if isinstance(array, mp.QuantizedArray) else (array,):
            assert part.ctypes.data % part.itemsize == 0, name


# ---- codes


@pytest.mark.parametrize("granularity", [None, "channel", "tensor", "group:32", "group:32768"])
@pytest.mark.parametrize("policy", [policy for policy, (_, default) in POLICIES.items() if default])
def test_codes_are_the_formula_s_whatever_the_size(source, target, policy, granularity):
    report = convert_file(source, target, policy, granularity=granularity)
    dtype = POLICIES[policy][0]
    tensors, metadata = raw(target)
    entries = json.loads(metadata["mp_core.quantization"])
    assert metadata["mp_core.policy"] == policy
    quantized = {name for name in FLOATS if TENSORS[name].ndim >= 2 and TENSORS[name].size}
    assert entries.keys() == quantized
    assert tensors.keys() == TENSORS.keys() | {f"{name}.scale" for name in quantized}
    for name, x in TENSORS.items():
        code, shape, content = tensors[name]
        if name not in quantized:
            assert (tuple(shape), content) == (x.shape, x.tobytes()), name
            continue
        default = "channel" if policy == "int8" or x.shape[-1] < 64 else "group:64"
        chosen = granularity or default
        group = int(chosen[6:]) if chosen.startswith("group") else None
        kept = {"channel": 1, "tensor": 0}.get(chosen, x.ndim - 1)
        assert entries[name] == {
            "dtype": dtype,
            "shape": list(x.shape),
            "axis": list(range(kept)),
            "group_size": group,
            "policy": policy,
        }
        x = x.astype(np.float32)
        rows = x.reshape(math.prod(x.shape[:kept]), -1)
        width = group or rows.shape[1]
        pieces = [rows[:, i : i + width] for i in range(0, rows.shape[1], width)]
        scale = np.stack([np.abs(piece).max(axis=1) for piece in pieces], axis=1) / np.float32(LARGEST[dtype])
        stored_scale = np.frombuffer(tensors[f"{name}.scale"][2], np.float32)
        assert tensors[f"{name}.scale"][:2] == (
            "F32",
            [*x.shape[:kept], *[1] * (x.ndim - kept - 1), len(pieces)],
        )
        np.testing.assert_array_equal(stored_scale.reshape(scale.shape), scale, err_msg=name)
        ratio = np.concatenate([p / s[:, np.newaxis] for p, s in zip(pieces, scale.T, strict=True)], axis=1)
        if dtype == "int4":
            assert code == "U8"
            assert tuple(shape) == (*x.shape[:-1], (x.shape[-1] + 1) // 2)
            codes = unpacked(np.frombuffer(content, np.uint8).reshape(shape), x.shape[-1])
            np.testing.assert_array_equal(codes, np.rint(ratio).reshape(x.shape), err_msg=name)
        elif dtype == "int8":
            assert (code, tuple(shape)) == ("I8", x.shape)
            np.testing.assert_array_equal(np.frombuffer(content, np.int8), np.rint(ratio).ravel(), err_msg=name)
        else:
            assert (code, tuple(shape)) == ({"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}[dtype], x.shape)
            assert content == ratio.astype(getattr(ml_dtypes, dtype)).tobytes(), name
        opened = open_tensors(target)[name]
        assert (opened.dtype.name, opened.shape, opened.group_size) == (dtype, x.shape, group)
        check_measures(row_of(report, name), TENSORS[name], mp.dequantize(opened))


def check_measures(row, x, y):
    """Check a row of a report of finite tensors by the definitions."""
    x, y = x.astype(np.float64).ravel(), y.astype(np.float64).ravel()
    noise, signal = ((x - y) ** 2).sum(), (x**2).sum()
    assert row["max_abs_error"] == pytest.approx(np.abs(x - y).max(), rel=1e-12)
    assert row["rel_rmse"] == pytest.approx(math.sqrt(noise / signal), rel=1e-9)
    assert row["sqnr"] == pytest.approx(10 * math.log10(signal / noise) if noise else math.inf, rel=1e-9)
    assert row["cosine"] == pytest.approx((x @ y) / math.sqrt(signal * (y @ y)), rel=1e-9)
    assert row["flushed"] == ((x != 0) & (y == 0)).sum()
    assert (row["overflow"], row["nan"]) == (0, 0)


def test_infinities_become_the_largest_code_in_short_and_long_rows(tmp_path, target):
    long = normal(2, LINE + 4)
    long[0, 5], long[0, -1], long[1, 7] = np.inf, -np.inf, np.nan
    nothing = np.zeros((2, LINE + 4), np.float32)
    nothing[0, 0], nothing[1, -1] = -np.inf, np.inf
    save_file({"long": long, "nothing": nothing, "short": long[:, :64].copy()}, tmp_path / "in.safetensors")
    for policy in ("int8", "int4", "float8_e4m3fn"):
        report = convert_file(tmp_path / "in.safetensors", target, policy, granularity="channel", force=True)
        opened = open_tensors(target)
        for name, x in (("long", long), ("nothing", nothing), ("short", long[:, :64])):
            expected = mp.quantize(x, axis=0, dtype=POLICIES[policy][0])
            np.testing.assert_array_equal(opened[name].values, expected.values, err_msg=name)
            np.testing.assert_array_equal(opened[name].scale, expected.scale, err_msg=name)
            row = row_of(report, name)
            assert (row["overflow"], row["nan"]) == (np.isinf(x).sum(), np.isnan(x).sum())
            assert (row["max_abs_error"], row["sqnr"]) == (np.inf, -np.inf)


def test_overflow_flushing_and_nan_are_counted(tmp_path, target):
    x = np.array([1.0, 1e6, -1e6, np.inf, np.nan, 1e-10, 0, -0.0, 65519], np.float32)
    save_file({"x": x, "y": x.copy(), "kept": x.copy()}, tmp_path / "in.safetensors")
    source = tmp_path / "in.safetensors"
    row = row_of(convert_file(source, target, "float16", keep=["kept"]), "x")
    assert (row["overflow"], row["flushed"], row["nan"], row["sqnr"]) == (3, 1, 1, -np.inf)
    report = convert_file(source, target, "float16", saturate=False, force=True, keep=["kept"])
    row = row_of(report, "x")
    assert (row["overflow"], row["flushed"], row["nan"], row["sqnr"]) == (2, 1, 1, -np.inf)
    row = row_of(report, "kept")
    assert (row["overflow"], row["flushed"], row["nan"], row["sqnr"]) == (0, 0, 1, np.inf)


@pytest.mark.parametrize("threads", [1, 3])
def test_files_depend_on_neither_threads_nor_memory(source, tmp_path, threads):
    convert_file(source, tmp_path / "a", "int4")
    convert_file(source, tmp_path / "b", "int4", threads=threads, max_memory=checkpoint.MIN_MEMORY)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with pytest.raises(ValueError, match="`max_memory` must be at least"):
        convert_file(source, tmp_path / "c", "int4", max_memory=checkpoint.MIN_MEMORY - 1)


# ---- which tensors


def test_keep_wins_over_map_and_the_first_map_wins(source, target):
    convert_file(
        source, target, "int8", map=[("stack", "float16"), (r"^layer\.", "bfloat16"), ("weight", "int4")], keep=["conv"]
    )
    opened = open_tensors(target)
    dtypes = {name: array.dtype.name for name, array in opened.items()}
    assert dtypes == {
        "layer.weight": "bfloat16",
        "layer.bias": "bfloat16",
        "norm.weight": "float16",
        "conv.weight": "float32",
        "stack.weight": "float16",
        "double.weight": "int4",
        "long.weight": "int4",
        "many.weight": "int4",
        "column.weight": "int4",
        "ids": "int64",
        "flags": "bool",
        "scalar": "float32",
        "empty": "float32",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": ["layr"]}, "the pattern 'layr' matches no tensor"),
        ({"map": {"^weight": "int4"}}, r"the pattern '\^weight' matches no tensor"),
        ({"policy": "float16", "granularity": "tensor"}, "no tensor would be quantized"),
    ],
)
def test_what_would_have_no_effect_is_refused(source, target, options, message):
    with pytest.raises(RequestError, match=message):
        convert_file(source, target, **{"policy": "int8"} | options)
    assert not target.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "int7"}, "`policy` must be one of float32, .*received 'int7'"),
        ({"map": {"a": "int7"}}, "`policy` must be one of"),
        ({"keep": ["("]}, r"`keep` must hold regular expressions; received '\('"),
        ({"map": {"a{99999999999}": "int8"}}, "`map` must hold regular expressions"),
        ({"granularity": "group:63"}, "`granularity` must be 'channel', .*received 'group:63'"),
        ({"granularity": "group:65536"}, "`granularity`"),
        ({"granularity": "row"}, "`granularity`"),
        ({"fail_if": ["snr<3"]}, "`fail_if` must be one of max_abs_error, .*received 'snr<3'"),
        ({"fail_if": ["sqnr<nan"]}, "`fail_if`"),
        ({"fail_if": ["sqnr=3"]}, "`fail_if`"),
        ({"threads": -1}, "positive"),
    ],
)
def test_wrong_arguments_are_named(source, target, options, message):
    with pytest.raises(ValueError, match=message):
        convert_file(source, target, **{"policy": "int8"} | options)


def test_scales_that_would_take_a_name_are_refused(tmp_path, target):
    save_file({"a": normal(2, 2), "a.scale": normal(2)}, tmp_path / "in.safetensors")
    with pytest.raises(RequestError, match=r"'a\.scale' would be the name of two tensors"):
        convert_file(tmp_path / "in.safetensors", target, "int8")
    convert_file(tmp_path / "in.safetensors", target, "int8", keep=["a$"])


def test_a_tensor_that_would_be_taken_for_zero_points_is_refused(tmp_path, target):
    save_file({"a": normal(2, 2), "a.zero_point": np.ones((2, 1), np.int32)}, tmp_path / "in.safetensors")
    with pytest.raises(RequestError, match=r"'a\.zero_point' would be taken for the zero points of 'a'"):
        convert_file(tmp_path / "in.safetensors", target, "int8")
    convert_file(tmp_path / "in.safetensors", target, "bfloat16")
    assert open_tensors(target).keys() == {"a", "a.zero_point"}


# ---- what is quantized already


def test_requantizing_needs_leave(source, tmp_path, target):
    small = tmp_path / "small.safetensors"
    convert_file(source, small, "int8", keep=["many"])
    with pytest.raises(RequestError, match="holds int8 codes already"):
        convert_file(small, target, "int4")
    convert_file(small, target, "int4", allow_requantize=True)
    before, after = open_tensors(small), open_tensors(target)
    expected = mp.quantize(mp.dequantize(before["long.weight"]), axis=0, dtype="int4", group_size=64)
    np.testing.assert_array_equal(after["long.weight"].values, expected.values)
    np.testing.assert_array_equal(after["long.weight"].scale, expected.scale)


@pytest.mark.parametrize("granularity", ["channel", "group:64"])
@pytest.mark.parametrize("policy", ["int8", "int4", "float8_e5m2"])
def test_codes_can_be_kept_or_become_floats(source, tmp_path, target, policy, granularity):
    small = tmp_path / "small.safetensors"
    convert_file(source, small, policy, granularity=granularity)
    convert_file(small, target, "float32", keep=["conv", "long"])
    before, after = open_tensors(small), open_tensors(target)
    assert json.loads(raw(target)[1]["mp_core.quantization"]).keys() == {"conv.weight", "long.weight"}
    for name, x in before.items():
        if not isinstance(x, mp.QuantizedArray):
            continue
        if name in ("conv.weight", "long.weight"):
            assert after[name].values.tobytes() == x.values.tobytes()
            assert after[name].scale.tobytes() == x.scale.tobytes()
        else:
            np.testing.assert_array_equal(after[name], mp.dequantize(x), err_msg=name)


def test_zero_points_are_read_and_kept(tmp_path, target):
    x = RNG.random((7, 40), np.float32) + 2
    q = mp.quantize(x, axis=0, dtype="uint8", symmetric=False)
    entry = {"dtype": "uint8", "shape": [7, 40], "axis": [0], "group_size": None}
    save_file(
        {"w": q.values, "w.scale": q.scale, "w.zero_point": q.zero_point},
        tmp_path / "in.safetensors",
        metadata={"mp_core.quantization": json.dumps({"w": entry})},
    )
    opened = open_tensors(tmp_path / "in.safetensors")
    assert list(opened) == ["w"]
    np.testing.assert_array_equal(mp.dequantize(opened["w"]), mp.dequantize(q))
    convert_file(tmp_path / "in.safetensors", target, "float32")
    np.testing.assert_array_equal(open_tensors(target)["w"], mp.dequantize(q))
    convert_file(tmp_path / "in.safetensors", target, "float32", keep=["w"], force=True)
    np.testing.assert_array_equal(mp.dequantize(open_tensors(target)["w"]), mp.dequantize(q))


# ---- thresholds, dry runs, reports


def test_a_threshold_that_fails_leaves_nothing(source, target):
    report = convert_file(source, target, "int8", fail_if=["sqnr<40", "cosine < 0.5"])
    low = [row["name"] for row in report["tensors"] if row["sqnr"] < 40]
    assert low
    assert [line.split(":")[0] for line in report["failed"]] == low
    assert all(re.fullmatch(r".*: sqnr is 3\d\.\d+, which is sqnr < 40", line) for line in report["failed"])
    assert os.listdir(target.parent) == []
    assert convert_file(source, target, "int8", fail_if=["sqnr<20", "nan>0", "overflow>=1"])["failed"] == []
    assert target.exists()


def test_a_measure_that_is_no_number_fails(tmp_path, target):
    save_file({"x": np.full((2, 2), 1e300)}, tmp_path / "in.safetensors")
    report = convert_file(tmp_path / "in.safetensors", target, "float16", fail_if=["sqnr<1"])
    assert len(report["failed"]) == 1


def test_a_dry_run_states_sizes_and_writes_nothing(source, target):
    plan = convert_file(source, target, "int4", dry_run=True)
    assert os.listdir(target.parent) == []
    done = convert_file(source, target, "int4")
    assert plan["new_bytes"] == done["new_bytes"]
    for row, full in zip(plan["tensors"], done["tensors"], strict=True):
        assert row.items() <= full.items()
    tensors, _ = raw(target)
    assert sum(len(content) for *_, content in tensors.values()) == done["new_bytes"]
    assert done["bytes"] == sum(x.nbytes for x in TENSORS.values())


# ---- files and folders


def test_an_existing_file_is_replaced_only_by_force(source, target):
    target.write_text("mine")
    with pytest.raises(FileExistsError, match=r"out\.safetensors exists; force \(--force\) replaces it"):
        convert_file(source, target, "float16")
    assert target.read_text() == "mine"
    convert_file(source, target, "float16", force=True)
    assert open_tensors(target)["layer.weight"].dtype == np.float16
    with pytest.raises(FileExistsError, match="is a folder"):
        convert_file(source, target.parent, "float16", force=True)
    with pytest.raises(FileNotFoundError, match="absent"):
        convert_file(source, target.parent / "absent" / "out", "float16")


def test_a_file_can_be_replaced_by_its_own_conversion(source, tmp_path):
    path = tmp_path / "model.safetensors"
    shutil.copy(source, path)
    convert_file(path, path, "bfloat16", force=True)
    expected = TENSORS["layer.weight"].astype(ml_dtypes.bfloat16)
    assert open_tensors(path)["layer.weight"].tobytes() == expected.tobytes()


def test_links_keep_leading_to_what_is_replaced(source, sharded, tmp_path):
    for name, model in (("file", source), ("folder", sharded)):
        convert_file(model, tmp_path / f"{name}-1", "float16")
        (tmp_path / name).symlink_to(f"{name}-1")
        convert_file(model, tmp_path / name, "bfloat16", force=True)
        assert (tmp_path / name).is_symlink()
        assert open_tensors(tmp_path / f"{name}-1")["layer.weight"].dtype == ml_dtypes.bfloat16


def test_no_thread_uses_a_file_that_closes(tmp_path, target, monkeypatch):
    save_file({"x": normal(4 * LINE)}, tmp_path / "in.safetensors")
    begun, ended, closed = [], [], []

    def write(*_):
        begun.append(1)
        first = len(begun) == 1
        time.sleep(0.1 if first else 0.4)
        ended.append(1)
        if first:
            raise OSError("disk")

    close = convert_module.OutFile.__exit__
    monkeypatch.setattr(convert_module._Work, "_write", write)
    monkeypatch.setattr(
        convert_module.OutFile, "__exit__", lambda *a: (closed.append(len(begun) - len(ended)), close(*a))[1]
    )
    with pytest.raises(OSError, match="disk"):
        convert_file(tmp_path / "in.safetensors", target, "float16", threads=3)
    assert len(begun) > 1
    assert closed == [0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("force", [False, True])
def test_a_failure_leaves_everything_as_it_was(source, target, monkeypatch, error, force):
    if force:
        target.write_text("mine")
    calls = []

    def fail(*_):
        calls.append(1)
        if len(calls) == 3:
            assert len(os.listdir(target.parent)) == 1 + force
            raise error
        return original(*_)

    original = convert_module._Work._write
    monkeypatch.setattr(convert_module._Work, "_write", fail)
    with pytest.raises(error):
        convert_file(source, target, "int8", force=force)
    assert os.listdir(target.parent) == (["out.safetensors"] if force else [])
    assert not force or target.read_text() == "mine"


def test_a_full_disk_is_noticed_before_anything_is_written(source, target, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(OSError, match="bytes are needed"):
        convert_file(source, target, "float32")


def test_sigterm_removes_what_was_begun(tmp_path):
    path = tmp_path / "in.safetensors"
    header = json.dumps({"w": {"dtype": "F32", "shape": [2**15, 2**15], "data_offsets": [0, 2**32]}}).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2**32)
    code = "import sys, mp_core.cli as c; print(flush=True); sys.exit(c.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "convert", path, "-o", tmp_path / "out", "--policy", "int8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        while process.poll() is None and len(os.listdir(tmp_path)) < 2:
            pass
        process.terminate()
        assert process.wait() == 143
    assert os.listdir(tmp_path) == ["in.safetensors"]


@pytest.fixture
def sharded(tmp_path):
    """A folder as the hub has it: two shards, an index, files beside them and below."""
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "big").write_text("x")
    (folder / "config.json").write_text("{}")
    (folder / "1_Pooling" / "config.json").write_text("[1]")
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    names = list(TENSORS)
    halves = [{name: TENSORS[name] for name in half} for half in (names[:6], names[6:])]
    for file, half in zip(files, halves, strict=True):
        save_file(half, folder / file, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": 1, "other": "kept"},
        "weight_map": {name: file for file, half in zip(files, halves, strict=True) for name in half},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("what", ["", "model.safetensors.index.json"])
def test_shards_stay_shards_and_the_index_follows(sharded, tmp_path, source, what):
    out = tmp_path / "out"
    report = convert_file(sharded / what, out, "int8")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    for file in set(index["weight_map"].values()):
        found = {name for name, owner in index["weight_map"].items() if owner == file}
        assert raw(out / file)[0].keys() == found
    assert "layer.weight.scale" in index["weight_map"]
    assert index["metadata"] == {"total_size": report["new_bytes"], "other": "kept"}
    convert_file(source, tmp_path / "single.safetensors", "int8")
    single = open_tensors(tmp_path / "single.safetensors")
    many = open_tensors(out)
    assert many.keys() == single.keys()
    for name, x in single.items():
        assert (getattr(x, "values", x) == getattr(many[name], "values", many[name])).all(), name
    assert verify_files(out, tmp_path / "single.safetensors")["failed"] == []
    others = {path.relative_to(out).as_posix() for path in out.rglob("*.json")}
    assert others == {"model.safetensors.index.json"} | (set() if what else {"config.json", "1_Pooling/config.json"})
    assert not (out / ".git").exists()


def test_a_folder_is_replaced_only_if_nothing_is_lost(sharded, tmp_path):
    out = tmp_path / "out"
    convert_file(sharded, out, "int8")
    with pytest.raises(FileExistsError, match="force"):
        convert_file(sharded, out, "float16")
    (out / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"'notes\.txt', which a conversion would not write"):
        convert_file(sharded, out, "float16", force=True)
    (out / "notes.txt").unlink()
    convert_file(sharded, out, "float16", force=True)
    assert open_tensors(out)["layer.weight"].dtype == np.float16
    assert sorted(os.listdir(tmp_path)) == ["model", "out"]
    with pytest.raises(RequestError, match="lies inside the folder"):
        convert_file(sharded, sharded / "int8", "int8")
    with pytest.raises(FileExistsError, match="is no folder"):
        convert_file(sharded, out / "config.json", "int8", force=True)


def test_a_folder_that_fails_disappears(sharded, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk")

    monkeypatch.setattr(convert_module, "_index", fail)
    with pytest.raises(OSError, match="disk"):
        convert_file(sharded, tmp_path / "out", "int8")
    assert os.listdir(tmp_path) == ["model"]


def test_links_of_a_hub_s_cache_are_followed(sharded, tmp_path):
    snapshot = tmp_path / "hub" / "snapshots" / "abc"
    (tmp_path / "hub" / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(path for path in sharded.iterdir() if path.is_file()):
        shutil.copy(file, tmp_path / "hub" / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    convert_file(snapshot, tmp_path / "out", "int8")
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())


# ---- inspect and verify


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


# ---- a model


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_model_loads_what_is_written(tmp_path, policy, sharded):
    folder = tiny_bert.write(tmp_path / "model")
    if sharded:
        tensors = load_file(folder / "model.safetensors")
        files = {name: f"part{i % 2}.safetensors" for i, name in enumerate(tensors)}
        for file in set(files.values()):
            save_file({name: x for name, x in tensors.items() if files[name] == file}, folder / file)
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    report = convert_file(folder, tmp_path / "small", policy)
    reference = BertEncoder.from_folder(folder).encode(["a b c", "d e"])
    for compute in ("float32", "mixed_bfloat16", "int8_from_float32"):
        found = BertEncoder.from_folder(tmp_path / "small", compute).encode(["a b c", "d e"])
        cosines = (found * reference).sum(axis=1)
        assert cosines.min() > (0.9 if policy == "int4" else 0.99), compute
    if policy == "int8":  # a matrix of int8 codes and the layer's own quantization of it are the same codes
        opened = open_tensors(tmp_path / "small")["encoder.layer.0.output.dense.weight"]
        layer = BertEncoder.from_folder(tmp_path / "small", "int8_from_float32")._network._blocks[0].output
        np.testing.assert_array_equal(layer.kernel.numpy().T, opened.values)
    assert report["failed"] == []


def test_the_names_are_at_hand():
    assert mp.convert_file is convert_file
    assert mp.inspect_file is inspect_file
    assert mp.verify_files is verify_files
    assert Path(checkpoint.__file__).parent.name == "checkpoint"


# ---- rounding for inputs


@pytest.fixture
def rounded_for(rng, tmp_path):
    """A file with a kernel of 300 lines in several boxes, inputs that hang together, and their moments."""
    x = rng.standard_normal((2000, 640)) @ (np.eye(640) + rng.standard_normal((640, 640)) / 25) + 0.5
    kernel = rng.standard_normal((300, 640), np.float32)
    save_file({"kernel": kernel, "bias": kernel[0]}, tmp_path / "in.safetensors")
    return tmp_path / "in.safetensors", kernel.astype(np.float64), x, {"kernel": x.T @ x}


@pytest.mark.parametrize("granularity", [None, "channel", "tensor", "group:32"])
@pytest.mark.parametrize("policy", [policy for policy, (_, default) in POLICIES.items() if default])
def test_moments_make_products_closer_with_the_same_scales(rounded_for, target, policy, granularity):
    source, kernel, x, moments = rounded_for
    opened = []
    for given in (None, moments):
        convert_file(source, target, policy, granularity=granularity, moments=given, force=True)
        opened.append(open_tensors(target)["kernel"])
    nearest, rounded = (np.sqrt(((x @ (mp.dequantize(q) - kernel).T) ** 2).mean()) for q in opened)
    assert rounded < 0.75 * nearest
    np.testing.assert_array_equal(opened[0].scale, opened[1].scale)


def test_moments_give_the_same_file_with_any_number_of_threads_and_instruction_set(isa, rounded_for, target):
    source, _, _, moments = rounded_for
    written = set()
    for threads in (1, 3):
        convert_file(source, target, "int4", moments=moments, threads=threads, force=True)
        written.add(target.read_bytes())
    with mp.config.num_threads(1):
        before = mp.config.isa()
        mp.config.set_isa("scalar")
        try:
            convert_file(source, target, "int4", moments=moments, force=True)
        finally:
            mp.config.set_isa(before)
    assert written == {target.read_bytes()}


def test_infinity_and_nan_do_not_spread(rounded_for, target):
    source, kernel, _, moments = rounded_for
    kernel = kernel.astype(np.float32)
    plain = dict(zip(("kernel", "bias"), (kernel, kernel[0]), strict=True))
    kernel[3, 7], kernel[4, 8] = -np.inf, np.nan
    save_file(plain, source)
    convert_file(source, target, "int8", moments=moments)
    received = mp.dequantize(open_tensors(target)["kernel"])
    finite = np.where(np.isfinite(kernel), kernel, 0)
    assert received[3, 7] == -np.abs(finite[3]).max() and received[4, 8] == 0
    finite[3, 7] = received[3, 7]
    assert np.abs(received - finite).max() < 0.2


@pytest.mark.parametrize(
    ("moments", "message"),
    [
        ({"other": np.eye(640)}, "the moments of 'other' belong to no tensor"),
        ({"bias": np.eye(640)}, "no tensor that has some would be quantized"),
        ({"kernel": np.eye(3)}, r"'kernel' must be finite floats of shape \(640, 640\); received float64 of shape"),
        ({"kernel": np.eye(640, dtype=int)}, "received int64"),
        ({"kernel": np.full((640, 640), np.nan)}, "must be finite floats"),
    ],
)
def test_moments_that_do_not_fit(rounded_for, target, moments, message):
    with pytest.raises(RequestError, match=message):
        convert_file(rounded_for[0], target, "int8", moments=moments)
    assert not target.exists()


def test_moments_of_nothing_round_to_nearest(rounded_for, target):
    source = rounded_for[0]
    convert_file(source, target, "int8")
    expected = target.read_bytes()
    convert_file(source, target, "int8", moments={"kernel": np.zeros((640, 640))}, force=True)
    assert target.read_bytes() == expected
