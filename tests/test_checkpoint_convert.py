"""Conversion: contents of files, checked with NumPy, ml_dtypes and the safetensors library; and errors."""

import json
import math
import os
import re

import ml_dtypes
import numpy as np
import pytest
from oracles import LARGEST, unpacked
from safetensors import safe_open
from safetensors.numpy import save_file
from tensors import FLOATS, LINE, TENSORS, normal, raw, row_of

import mp_core as mp
from mp_core import checkpoint
from mp_core.checkpoint import RequestError, convert, inspect, open_tensors, stored_policies, verify
from mp_core.dtype_policies import DTypePolicyMap, Scheme

PLAIN = ("float32", "float16", "bfloat16")
CODES = ("int8", "int8/tensor", "int8/weight_only/64", "int4/32", "int4/-1", "float8_e4m3fn", "float8_e5m2/32768")

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
    convert(tmp_path / "in.safetensors", target, policy, saturate=saturate)
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
    convert(source, target, "bfloat16")
    tensors, metadata = raw(target)
    assert list(tensors) == list(raw(source)[0])
    assert metadata == {"format": "pt", "author": "ä", "mp_core.policy": "bfloat16"}
    assert {name: tuple(shape) for name, (_, shape, _) in tensors.items()} == {n: x.shape for n, x in TENSORS.items()}


@pytest.mark.parametrize("policy", (*PLAIN, *CODES))
def test_the_safetensors_library_reads_what_is_written_and_it_is_aligned(source, target, policy):
    convert(source, target, policy)
    with safe_open(target, framework="numpy") as opened:
        assert set(opened.keys()) >= TENSORS.keys()
        assert opened.metadata()["mp_core.policy"] == (f"{policy}_from_mixed_bfloat16" if policy in CODES else policy)
    for name, array in open_tensors(target).items():
        for part in (array.values, array.scale) if isinstance(array, mp.QuantizedArray) else (array,):
            assert part.ctypes.data % part.itemsize == 0, name


# ---- codes


@pytest.mark.parametrize("policy", CODES)
def test_codes_are_the_formula_s_whatever_the_size(source, target, policy):
    report = convert(source, target, policy)
    dtype, *words = policy.split("/")
    group = next((int(word) for word in words if word.isdecimal()), None)
    tensors, metadata = raw(target)
    entries = json.loads(metadata["mp_core.quantization"])
    quantized = {name for name in FLOATS if TENSORS[name].ndim >= 2 and TENSORS[name].size}
    parts = ("scale", "zero_point") if dtype == "int4" else ("scale",)
    assert entries.keys() == quantized
    assert tensors.keys() == TENSORS.keys() | {f"{name}.{part}" for name in quantized for part in parts}
    for name, x in TENSORS.items():
        code, shape, content = tensors[name]
        if name not in quantized:
            assert (tuple(shape), content) == (x.shape, x.tobytes()), name
            continue
        kept = 0 if "tensor" in words else x.ndim - 1 if group else 1
        axes = {"axis": list(range(kept)), "group_size": group}
        assert entries[name] == {"dtype": dtype, "shape": list(x.shape)} | axes
        x = x.astype(np.float32)
        rows = x.reshape(math.prod(x.shape[:kept]), -1)
        width = group or rows.shape[1]
        pieces = [rows[:, i : i + width] for i in range(0, rows.shape[1], width)]
        low, high = (np.stack([f(piece, axis=1, initial=0) for piece in pieces], axis=1) for f in (np.min, np.max))
        if dtype == "int4":
            scale = (high - low) / np.float32(15)
            zero = np.clip(np.rint(-8 - low / scale), -8, 7)
        else:
            scale, zero = np.maximum(-low, high) / np.float32(LARGEST[dtype]), np.zeros_like(low)
        stored = [*x.shape[:kept], *[1] * (x.ndim - kept - 1), len(pieces)]
        for part, expected, kind in (("scale", scale, "F32"), ("zero_point", zero, "I8"))[: len(parts)]:
            assert tensors[f"{name}.{part}"][:2] == (kind, stored)
            found = np.frombuffer(tensors[f"{name}.{part}"][2], {"F32": np.float32, "I8": np.int8}[kind])
            np.testing.assert_array_equal(found.reshape(scale.shape), expected, err_msg=name)
        ratio = np.concatenate([p / s[:, np.newaxis] for p, s in zip(pieces, scale.T, strict=True)], axis=1)
        offset = np.concatenate(
            [np.repeat(z[:, np.newaxis], p.shape[1], 1) for p, z in zip(pieces, zero.T, strict=True)], axis=1
        )
        if dtype == "int4":
            assert code == "U8"
            assert tuple(shape) == (*x.shape[:-1], (x.shape[-1] + 1) // 2)
            codes = unpacked(np.frombuffer(content, np.uint8).reshape(shape), x.shape[-1])
            np.testing.assert_array_equal(codes, np.clip(np.rint(ratio) + offset, -8, 7).reshape(x.shape), err_msg=name)
        elif dtype == "int8":
            assert (code, tuple(shape)) == ("I8", x.shape)
            np.testing.assert_array_equal(np.frombuffer(content, np.int8), np.rint(ratio).ravel(), err_msg=name)
        else:
            assert (code, tuple(shape)) == ({"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}[dtype], x.shape)
            assert content == ratio.astype(getattr(ml_dtypes, dtype)).tobytes(), name
        opened = open_tensors(target)[name]
        assert (opened.dtype.name, opened.shape, opened.group_size) == (dtype, x.shape, group)
        check_measures(row_of(report, name), TENSORS[name], mp.dequantize(opened))


@pytest.mark.parametrize("scheme", [*CODES, "int8/weight_only/tensor", "int4/64", "float8_e4m3fn/tensor"])
def test_codes_are_those_that_the_scheme_makes_in_memory(tmp_path, target, scheme):
    tensors = {name: x for name, x in TENSORS.items() if name in FLOATS and x.ndim > 1 and x.size}
    beyond = normal(3, LINE + 70).astype(np.float64)
    beyond[0, 5], beyond[1] = 1e300, np.append(-1e300, np.zeros(LINE + 69))
    tensors |= {"beyond": beyond, "zeros": np.zeros((3, LINE + 2), np.float32), "above": normal(2, LINE + 2) + 9}
    save_file(tensors, tmp_path / "in.safetensors")
    convert(tmp_path / "in.safetensors", target, scheme)
    opened = open_tensors(target)
    for name, x in tensors.items():
        expected = Scheme.parse(scheme).quantize(x)
        assert Scheme.parse(scheme).describes(opened[name]), name
        for part in ("values", "scale", "zero_point"):
            found, wanted = getattr(opened[name], part), getattr(expected, part)
            assert (found is None) == (wanted is None), name
            assert found is None or found.tobytes() == wanted.tobytes(), (name, part)


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


@pytest.mark.parametrize("policy", ["int8", "int8/weight_only/64", "int4/-1", "float8_e4m3fn"])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_tensors_that_are_not_finite_are_not_quantized(tmp_path, target, policy, number):
    source = tmp_path / "in.safetensors"
    places = {"short": ((3, 64), (1, 63)), "cube": ((2, 3, 64), (1, 2, 5)), "long": ((2, LINE + 4), (1, LINE + 2))}
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64):
        for name, (shape, place) in places.items():
            x = normal(*shape).astype(dtype)
            x[place] = number
            save_file({name: x, "good": normal(2, 64)}, source)
            message = rf"in.safetensors: '{name}' must be finite to be quantized; received {number} at "
            with pytest.raises(ValueError, match=message + re.escape(f"{place}; use keep (--keep) to copy it instead")):
                convert(source, target, policy)
            assert not target.exists()
            report = convert(source, target, policy, keep=[name], force=True)
            assert row_of(report, name)["dtype"] == row_of(report, name)["new_dtype"]
            target.unlink()


def test_overflow_flushing_and_nan_are_counted(tmp_path, target):
    x = np.array([1.0, 1e6, -1e6, np.inf, np.nan, 1e-10, 0, -0.0, 65519], np.float32)
    save_file({"x": x, "y": x.copy(), "kept": x.copy()}, tmp_path / "in.safetensors")
    source = tmp_path / "in.safetensors"
    row = row_of(convert(source, target, "float16", keep=["kept"]), "x")
    assert (row["overflow"], row["flushed"], row["nan"], row["sqnr"]) == (3, 1, 1, -np.inf)
    report = convert(source, target, "float16", saturate=False, force=True, keep=["kept"])
    row = row_of(report, "x")
    assert (row["overflow"], row["flushed"], row["nan"], row["sqnr"]) == (2, 1, 1, -np.inf)
    row = row_of(report, "kept")
    assert (row["overflow"], row["flushed"], row["nan"], row["sqnr"]) == (0, 0, 1, np.inf)


@pytest.mark.parametrize("threads", [1, 3])
def test_files_depend_on_neither_threads_nor_memory(source, tmp_path, threads):
    convert(source, tmp_path / "a", "int4/64")
    convert(source, tmp_path / "b", "int4/64", threads=threads, max_memory=checkpoint.MIN_MEMORY)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with pytest.raises(ValueError, match="`max_memory` must be at least"):
        convert(source, tmp_path / "c", "int4/64", max_memory=checkpoint.MIN_MEMORY - 1)


# ---- which tensors


def test_keep_wins_over_map_and_the_first_map_wins(source, target):
    convert(
        source,
        target,
        "int8",
        map=[("stack", "float16"), (r"^layer\.", "bfloat16"), ("weight", "int4/64")],
        keep=["conv"],
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


def test_tables_that_are_added_stay_numbers(tmp_path, target):
    added = ("bert.embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight",
             "encoder.relative_attention_bias.weight")  # fmt: skip
    tensors = {name: normal(4, 64) for name in (*added, "embeddings.word_embeddings.weight")}
    save_file(tensors, tmp_path / "in.safetensors")
    convert(tmp_path / "in.safetensors", target, "int8", map=[("position", "int4/64")])
    opened = open_tensors(target)
    assert [opened[name].dtype.name for name in tensors] == ["float32"] * 3 + ["int8"]
    convert(tmp_path / "in.safetensors", target, "float16", force=True)
    assert {x.dtype.name for x in open_tensors(target).values()} == {"float16"}


def test_patterns_and_conditions_may_come_from_generators(source, target):
    report = convert(source, target, "float16", keep=(p for p in ["^layer"]), fail_if=(c for c in ["sqnr<1"]))
    assert row_of(report, "layer.weight")["new_dtype"] == "float32"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": ["layr"]}, "the pattern 'layr' matches no tensor"),
        ({"map": {"^weight": "int4/64"}}, r"the pattern '\^weight' matches no tensor"),
    ],
)
def test_what_would_have_no_effect_is_refused(source, target, options, message):
    with pytest.raises(RequestError, match=message):
        convert(source, target, **{"policy": "int8"} | options)
    assert not target.exists()


NO_MAPS = [None, 5, "a", {5: "int8"}, {b"a": "int8"}, ["ab"], [("a", ["int8"])], [("a", "int8", "b")]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "int7"}, "`policy` must be one of float32, .*received 'int7'"),
        ({"map": {"a": "int7"}}, "`policy` must be one of"),
        ({"policy": "int8_weight_only"}, "`policy` must be one of float32, .*received 'int8_weight_only'"),
        *(
            ({"map": given}, "`map` must be pairs of a pattern and a policy, both strings; received ")
            for given in NO_MAPS
        ),
        ({"policy": "int4"}, "must name its groups, as in int4/64"),
        ({"policy": "int4/63"}, "group sizes in files must be powers of two from 2 to 32768; received 'int4/63'"),
        ({"policy": "int4/65536"}, "group sizes in files must be"),
        ({"policy": "float64"}, "`policy` must be one under which files store weights; received 'float64'"),
        ({"policy": "float8_from_float32"}, "`policy` must be one under which files store weights"),
        ({"policy": "awq/4/64_from_float32"}, "`policy` must be one under which files store weights"),
        ({"policy": "int8/fixed"}, r"'int8/fixed' needs scales of inputs, .*calibrate \(--calibrate\)"),
        ({"map": {"a": "float8_e5m2/fixed/tensor"}}, "needs scales of inputs"),
        ({"keep": ["("]}, r"`keep` must be regular expressions; received '\('"),
        ({"map": {"a{99999999999}": "int8"}}, "`map` must be regular expressions"),
        ({"fail_if": ["snr<3"]}, "`fail_if` must be one of max_abs_error, .*received 'snr<3'"),
        ({"fail_if": ["sqnr<nan"]}, "`fail_if`"),
        ({"fail_if": ["sqnr=3"]}, "`fail_if`"),
        ({"threads": -1}, "positive"),
    ],
)
def test_wrong_arguments_are_named(source, target, options, message):
    with pytest.raises(ValueError, match=message):
        convert(source, target, **{"policy": "int8"} | options)


@pytest.mark.parametrize("path", [b"model.safetensors", None])
def test_what_is_no_path_is_named(source, target, path):
    for argument, call in {
        "source": lambda: convert(path, target, "int8"),
        "target": lambda: convert(source, path, "int8"),
        "path": lambda: inspect(path),
        "a": lambda: verify(path, source),
        "b": lambda: verify(source, path),
    }.items():
        with pytest.raises(
            TypeError, match=f"`{argument}` must be a path, a str or an os.PathLike of str; received {path}"
        ):
            call()
    with pytest.raises(TypeError, match="`path` must be a path"):
        open_tensors(path)


@pytest.mark.parametrize("policy", [["int8"], None, DTypePolicyMap("int8_from_float32")])
def test_a_policy_is_one_word(source, target, policy):
    with pytest.raises(TypeError, match="`policy` must be"):
        convert(source, target, policy)


def test_scales_that_would_take_a_name_are_refused(tmp_path, target):
    save_file({"a": normal(2, 2), "a.scale": normal(2)}, tmp_path / "in.safetensors")
    with pytest.raises(RequestError, match=r"two tensors would have the name 'a\.scale'"):
        convert(tmp_path / "in.safetensors", target, "int8")
    convert(tmp_path / "in.safetensors", target, "int8", keep=["a$"])


def test_a_tensor_that_would_be_taken_for_zero_points_is_refused(tmp_path, target):
    save_file({"a": normal(2, 2), "a.zero_point": np.ones((2, 1), np.int32)}, tmp_path / "in.safetensors")
    with pytest.raises(RequestError, match=r"'a\.zero_point' would be read as a part of the codes of 'a'"):
        convert(tmp_path / "in.safetensors", target, "int8")
    convert(tmp_path / "in.safetensors", target, "bfloat16")
    assert open_tensors(target).keys() == {"a", "a.zero_point"}


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("mixed_bfloat16", {"policy": "float32"}),
        ("params=float16,compute=bfloat16,output=float32", {"policy": "float16"}),
        ("int8_from_mixed_bfloat16", {"policy": "int8"}),
        ("int8/weight_only_from_float32", {"policy": "int8/weight_only"}),
        ("int4/32_from_float32", {"policy": "int4/32"}),
    ],
)
def test_a_dtype_policy_means_the_weights_that_its_layers_keep(tmp_path, name, same):
    save_file({"w": normal(6, 128), "b": normal(6)}, tmp_path / "in.safetensors")
    convert(tmp_path / "in.safetensors", tmp_path / "a", name)
    convert(tmp_path / "in.safetensors", tmp_path / "b", **same)
    (found, metadata), (expected, _) = raw(tmp_path / "a"), raw(tmp_path / "b")
    assert found == expected and metadata["mp_core.policy"] == name


def test_tensors_with_another_policy_are_named(source, tmp_path):
    out, again = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    convert(source, out, "int8", map=[("stack", "int4/64_from_float32"), ("conv", "float16")], keep=["many", "bias"])
    default, policies = stored_policies(out)
    assert default == "int8_from_mixed_bfloat16"
    assert policies == {
        "stack.weight": "int4/64_from_float32",
        "conv.weight": "float16",
        "many.weight": "mixed_bfloat16",
        "layer.bias": "mixed_bfloat16",
    }
    convert(out, again, "float16", keep=["stack", "^layer.weight"])
    assert stored_policies(again) == (
        "float16",
        {"layer.weight": "int8_from_mixed_bfloat16", "stack.weight": "int4/64_from_float32"},
    )
    convert(again, again.with_name("c"), "float32")
    assert raw(again.with_name("c"))[1].keys() == {"format", "author", "mp_core.policy"}


# ---- what is quantized already


def test_requantizing_needs_leave(source, tmp_path, target):
    small = tmp_path / "small.safetensors"
    convert(source, small, "int8", keep=["many"])
    with pytest.raises(RequestError, match=r"is quantized already \(int8\)"):
        convert(small, target, "int4/64")
    convert(small, target, "int4/64", allow_requantize=True)
    before, after = open_tensors(small), open_tensors(target)
    expected = Scheme.parse("int4/64").quantize(mp.dequantize(before["long.weight"]))
    np.testing.assert_array_equal(after["long.weight"].values, expected.values)
    np.testing.assert_array_equal(after["long.weight"].scale, expected.scale)


@pytest.mark.parametrize("policy", CODES)
def test_codes_can_be_kept_or_become_floats(source, tmp_path, target, policy):
    small = tmp_path / "small.safetensors"
    convert(source, small, policy)
    convert(small, target, "float32", keep=["conv", "long"])
    before, after = open_tensors(small), open_tensors(target)
    assert json.loads(raw(target)[1]["mp_core.quantization"]).keys() == {"conv.weight", "long.weight"}
    assert stored_policies(target) == (
        "float32",
        dict.fromkeys(("conv.weight", "long.weight"), f"{policy}_from_mixed_bfloat16"),
    )
    for name, x in before.items():
        if not isinstance(x, mp.QuantizedArray):
            continue
        if name in ("conv.weight", "long.weight"):
            assert after[name].values.tobytes() == x.values.tobytes()
            assert after[name].scale.tobytes() == x.scale.tobytes()
            np.testing.assert_array_equal(after[name].zero_point, x.zero_point)
        else:
            np.testing.assert_array_equal(after[name], mp.dequantize(x), err_msg=name)


def test_zero_points_are_read_and_kept(rng, tmp_path, target):
    x = rng.random((7, 40), np.float32) + 2
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
    convert(tmp_path / "in.safetensors", target, "float32")
    np.testing.assert_array_equal(open_tensors(target)["w"], mp.dequantize(q))
    convert(tmp_path / "in.safetensors", target, "float32", keep=["w"], force=True)
    np.testing.assert_array_equal(mp.dequantize(open_tensors(target)["w"]), mp.dequantize(q))


# ---- thresholds, dry runs, reports


def test_a_threshold_that_fails_leaves_nothing(source, target):
    report = convert(source, target, "int8", fail_if=["sqnr<40", "cosine < 0.5"])
    low = [row["name"] for row in report["tensors"] if row["sqnr"] < 40]
    assert low
    assert [line.split(":")[0] for line in report["failed"]] == low
    assert all(re.fullmatch(r".*: sqnr is 3\d\.\d+, which is sqnr < 40", line) for line in report["failed"])
    assert os.listdir(target.parent) == []
    assert convert(source, target, "int8", fail_if=["sqnr<20", "nan>0", "overflow>=1"])["failed"] == []
    assert target.exists()


def test_a_measure_that_is_no_number_fails(tmp_path, target):
    save_file({"x": np.full((2, 2), 1e300)}, tmp_path / "in.safetensors")
    report = convert(tmp_path / "in.safetensors", target, "float16", fail_if=["sqnr<1"])
    assert len(report["failed"]) == 1


def test_a_dry_run_states_sizes_and_writes_nothing(source, target):
    plan = convert(source, target, "int4/64", dry_run=True)
    assert os.listdir(target.parent) == []
    done = convert(source, target, "int4/64")
    assert plan["new_bytes"] == done["new_bytes"]
    for row, full in zip(plan["tensors"], done["tensors"], strict=True):
        assert row.items() <= full.items()
    tensors, _ = raw(target)
    assert sum(len(content) for *_, content in tensors.values()) == done["new_bytes"]
    assert done["bytes"] == sum(x.nbytes for x in TENSORS.values())


def test_the_names_are_at_hand():
    assert mp.checkpoint.convert is convert
    assert mp.checkpoint.inspect is inspect
    assert mp.checkpoint.verify is verify
    assert checkpoint is mp.checkpoint
