"""Files made to harm: one line of error and exit code 3, no crash, nothing written, nothing hidden."""

import contextlib
import io
import json
import os
import struct
import sys
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tensors import safetensors

import mp_core as mp
from mp_core import cli
from mp_core.checkpoint import convert, inspect, open_tensors, save_tensors, stored_policies
from mp_core.files.checkpoint.header import load_json

pytestmark = pytest.mark.usefixtures("young_process")


def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


EIGHT = b"\0" * 8
HEADERS = {
    "nothing": b"",
    "half a length": b"\x10\0\0",
    "length 0": struct.pack("<Q", 0) + EIGHT,
    "header beyond the end": safetensors({"x": tensor()}, EIGHT, length=10**6),
    "length 2^64 - 1": safetensors({"x": tensor()}, EIGHT, length=2**64 - 1),
    "not JSON": safetensors(b"{...}", EIGHT),
    "a list": safetensors(b"[1, 2]"),
    "white space first": safetensors(b" {}"),
    "not UTF-8": safetensors(b'{"\xff\xfe": 1}'),
    "half a character": safetensors(rb'{"\ud800": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', EIGHT),
    "half a character in the metadata": safetensors(rb'{"__metadata__": {"a": "\ud800"}}'),
    "deep": safetensors(b'{"a":' * 100_000),
    "deep lists": safetensors(b'{"a":' + b"[" * 1_000_000),
    "a long number": safetensors(b'{"x": {"dtype": "F32", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 8]}}'),
    "a name twice": safetensors(
        b'{"x": %(t)b, "x": %(t)b}' % {b"t": json.dumps(tensor()).encode()},
        EIGHT,
    ),
    "a key twice": safetensors(b'{"x": {"dtype": "F32", "dtype": "I32", "shape": [2], "data_offsets": [0, 8]}}', EIGHT),
    "metadata not strings": safetensors({"__metadata__": {"a": 1}}),
    "metadata a list": safetensors({"__metadata__": []}),
    "an entry a number": safetensors({"x": 5}, EIGHT),
    "a key missing": safetensors({"x": {"dtype": "F32", "shape": [2]}}, EIGHT),
    "a key too many": safetensors({"x": tensor() | {"strides": [1]}}, EIGHT),
    "unknown dtype": safetensors({"x": tensor("F31")}, EIGHT),
    "dtype a number": safetensors({"x": tensor(32)}, EIGHT),
    "dtype steers the terminal": safetensors({"x": tensor("\x1b[2J\n")}, EIGHT),
    "another dtype": safetensors({"x": tensor("F64")}, EIGHT),
    "negative size": safetensors({"x": tensor(shape=(-2,))}, EIGHT),
    "negative sizes": safetensors({"x": tensor(shape=(-2, -1))}, EIGHT),
    "size a float": safetensors({"x": tensor(shape=(2.0,))}, EIGHT),
    "size true": safetensors({"x": tensor("F64", (True,))}, EIGHT),
    "shape a number": safetensors({"x": tensor() | {"shape": 2}}, EIGHT),
    "65 axes": safetensors({"x": tensor(shape=[1] * 64 + [2])}, EIGHT),
    "sizes that wrap": safetensors({"x": tensor(shape=(2**62, 2**62, 0), offsets=(0, 0))}),
    "a size that wraps": safetensors({"x": tensor(shape=(2**64 + 2,))}, EIGHT),
    "negative offsets": safetensors({"x": tensor(offsets=(-8, 0))}, EIGHT),
    "offsets turned": safetensors({"x": tensor(offsets=(8, 0))}, EIGHT),
    "three offsets": safetensors({"x": tensor(offsets=(0, 4, 8))}, EIGHT),
    "offsets beyond the end": safetensors({"x": tensor(offsets=(8, 16))}, EIGHT),
    "a gap": safetensors({"x": tensor(), "y": tensor(offsets=(12, 20))}, b"\0" * 20),
    "an overlap": safetensors({"x": tensor(), "y": tensor(offsets=(4, 12))}, b"\0" * 12),
    "one inside another": safetensors(
        {"x": tensor(shape=(4,), offsets=(0, 16)), "y": tensor(offsets=(4, 12))}, EIGHT * 2
    ),
    "the same bytes twice": safetensors({"x": tensor(), "y": tensor()}, EIGHT),
    "empty inside another": safetensors({"x": tensor(), "y": tensor(shape=(0,), offsets=(4, 4))}, EIGHT),
    "bytes left over": safetensors({"x": tensor()}, EIGHT + b"\0"),
    "bytes missing": safetensors({"x": tensor()}, EIGHT[1:]),
}


def quantized(changes=(), scale=(1.0, 2.0), **tensors):
    entry = {"dtype": "int8", "shape": [2, 3], "axis": [0], "group_size": None} | dict(changes)
    parts = {"w": np.ones((2, 3), np.int8), "w.scale": np.array(scale, np.float32).reshape(2, 1)} | tensors
    return {name: part for name, part in parts.items() if part is not None}, {"w": entry}


OTHERS = {
    "a pointer of Git LFS": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 90868376\n",
        "is a Git LFS pointer, not the file itself; run `git lfs pull`",
    ),
    "a pickle in a zip": (b"PK\x03\x04" + bytes(90), "is a PyTorch pickle; convert it to safetensors first"),
    "a pickle": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j" + bytes(90), "is a PyTorch pickle; convert it to safetensors first"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(90), "is an HDF5 file"),
    "GGUF": (b"GGUF\3\0\0\0" + bytes(90), "is a GGUF file"),
    "a page": (b"<!DOCTYPE html><html>404</html>", "is a web page"),
    "half of it": (
        safetensors({"x": tensor(shape=(25_000_000,), offsets=(0, 10**8))}, bytes(10**6)),
        "is truncated: 1.0 of 100.0 MB (",
    ),
    "half of the header": (
        safetensors({"x": tensor()}, length=10**6),
        "is truncated: it has ",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_file_of_another_kind_is_called_that(tmp_path, case):
    path = tmp_path / "model.safetensors"
    path.write_bytes(OTHERS[case][0])
    check_refused(path, f"model.safetensors {OTHERS[case][1]}")


def test_a_length_may_look_like_a_pickle(tmp_path):
    path = tmp_path / "m.safetensors"
    text = json.dumps({"x": tensor()}).encode().ljust(640)
    path.write_bytes(safetensors(text, EIGHT))
    assert path.read_bytes()[:2] == b"\x80\x02" and list(open_tensors(path)) == ["x"]


def test_what_is_missing_is_said_with_what_is_there(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name, message in (
        (None, "model.safetensors is missing; the folder is empty"),
        ("config.json", "model.safetensors is missing; the folder has only config.json"),
        ("pytorch_model.bin", "is missing; the folder has pytorch_model.bin: convert it to safetensors first"),
    ):
        if name:
            (folder / name).write_text("{}")
        check_refused(folder / "model.safetensors", message)
    check_refused(folder, "pytorch_model.bin")  # what converts reads it, and finds it damaged
    (folder / "pytorch_model.bin").rename(folder / "tf_model.h5")
    check_refused(folder, "has no safetensors file; the folder has tf_model.h5: convert it to safetensors first")
    assert "absent/m.safetensors: No such file or directory" in run("inspect", tmp_path / "absent" / "m.safetensors")[2]


SCHEMES = {
    "no tensor": quantized(w=None),
    "no scale": quantized(**{"w.scale": None}),
    "scale of another shape": quantized(**{"w.scale": np.ones((1, 2), np.float32)}),
    "scale of another type": quantized(**{"w.scale": np.ones((2, 1))}),
    "zero point of another type": quantized(**{"w.zero_point": np.ones((2, 1), np.int16)}),
    "codes of another type": quantized(w=np.ones((2, 3), np.uint8)),
    "another dtype": quantized({"dtype": "int7"}),
    "dtype a list": quantized({"dtype": ["int8"]}),
    "another shape": quantized({"shape": [3, 2]}),
    "a huge shape": quantized({"shape": [2, 3, 2**70]}),
    "shape none": quantized({"shape": None}),
    "shape ()": quantized({"shape": []}),
    "packed, too short": quantized({"dtype": "int4"}, w=np.ones((2, 1), np.uint8)),
    "axis 1": quantized({"axis": [1]}),
    "axis 0, 1": quantized({"axis": [0, 1]}),
    "axis -1": quantized({"axis": [-1]}),
    "axis a string": quantized({"axis": "0"}),
    "groups of 3": quantized({"group_size": 3}),
    "groups of 0": quantized({"group_size": 0}),
    "groups of -2": quantized({"group_size": -2}),
    "groups of true": quantized({"group_size": True}),
    "huge groups": quantized({"group_size": 2**40}),
    "groups of all": quantized({"group_size": 2, "axis": []}),
    "an entry a string": (quantized()[0], {"w": "int8"}),
    "entries a list": (quantized()[0], ["w"]),
    "a scale that is another's values": (
        quantized()[0] | {"w.scale.scale": np.ones((2, 1), np.float32)},
        quantized()[1] | {"w.scale": {"dtype": "int8", "shape": [2, 1], "axis": [0], "group_size": None}},
    ),
}
RELATIVE_SCALES = {"zero": (1, 0), "negative": (1, -1), "infinite": (1, np.inf), "nan": (np.nan, 1)}


def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = stopped.code
    return code, out.getvalue(), err.getvalue()


def check_refused(path, named, *, inspected=True):
    """All commands end with one line that names the file, and write nothing; `inspect` may leave links out."""
    target = path.parent / "out"
    commands = [["verify", path, path], ["convert", path, "-o", target, "--policy", "int8"]]
    for command in [*commands, *[["inspect", path]] * inspected]:
        code, out, err = run(*command)
        assert (code, out, err.count("\n")) == (3, "", 1), (command, code, out, err)
        assert err.startswith("mp-core: error: ")
        assert named in err
        assert err[:-1].isprintable()
    assert not [name for name in os.listdir(path.parent) if name == "out" or name.startswith(".out")]


@pytest.mark.parametrize("case", HEADERS)
def test_broken_headers_are_refused_by_file(tmp_path, case):
    path = tmp_path / "model.safetensors"
    path.write_bytes(HEADERS[case])
    check_refused(path, "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        open_tensors(path)


@pytest.mark.parametrize("case", SCHEMES)
def test_broken_descriptions_of_codes_are_refused_by_file(tmp_path, case):
    path = tmp_path / "model.safetensors"
    tensors, schemes = SCHEMES[case]
    save_file(tensors, path, metadata={"mp_core.quantization": json.dumps(schemes)})
    check_refused(path, "mp_core.quantization")
    with pytest.raises(ValueError, match=r"model\.safetensors: metadata mp_core\.quantization"):
        open_tensors(path)


@pytest.mark.parametrize("case", RELATIVE_SCALES)
def test_scales_must_be_positive_and_finite(tmp_path, case):
    tensors, schemes = quantized(scale=RELATIVE_SCALES[case])
    save_file(tensors, tmp_path / "m.safetensors", metadata={"mp_core.quantization": json.dumps(schemes)})
    with pytest.raises(ValueError, match="tensor 'w': scales must be positive and finite"):
        open_tensors(tmp_path / "m.safetensors")


def test_what_looks_hostile_but_is_not(tmp_path):
    header = {
        "": tensor(),
        "\n\x1b[2J\u202e": tensor(offsets=(8, 16)),
        "none": tensor(shape=(0, 2**60 - 1), offsets=(16, 16)),
        "point": tensor(shape=(), offsets=(16, 20)),
    }
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors(header, b"\0" * 20))
    assert list(open_tensors(path)) == list(header)
    code, out, err = run("inspect", path)
    assert (code, err) == (0, "")
    assert out.replace("\n", "").isprintable()
    for policy in ("int8", "float16"):
        assert run("convert", path, "-o", tmp_path / policy, "--policy", policy)[::2] == (0, "")
        assert list(open_tensors(tmp_path / policy)) == list(header)


def test_metadata_of_null_are_none(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors({"__metadata__": None, "x": tensor()}, EIGHT))
    assert list(open_tensors(path)) == list(load_file(path)) == ["x"]
    assert inspect(path)["metadata"] == {"m.safetensors": {}}
    convert(path, tmp_path / "out", "float16")
    assert inspect(tmp_path / "out")["metadata"] == {"out": {"mp_core.policy": "float16"}}


def write_index(folder, weight_map, **more):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map} | more))
    return folder / "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"x": np.ones((2, 2), np.float32)}, folder / "a.safetensors")
    save_file({"y": np.ones((2, 2), np.float32)}, folder / "b.safetensors")
    save_file({"z": np.ones((2, 2), np.float32)}, tmp_path / "other.safetensors")
    return folder


INDICES = {
    "a path upwards": ({"z": "../other.safetensors"}, "not the name of a file beside the index"),
    "an absolute path": ({"z": "/etc/passwd"}, "not the name of a file beside the index"),
    "a folder": ({"z": ".."}, "not the name of a file beside the index"),
    "no name": ({"z": ""}, "not the name of a file beside the index"),
    "a NUL": ({"z": "a\0b"}, "not the name of a file beside the index"),
    "a file that is not there": ({"x": "c.safetensors"}, "c.safetensors"),
    "the index itself": ({"x": "model.safetensors.index.json"}, "not a valid safetensors file"),
    "a tensor that is not there": ({"x": "a.safetensors", "w": "b.safetensors"}, "tensor 'w' is not in b.safetensors"),
    "a tensor elsewhere": ({"x": "b.safetensors"}, "tensor 'x' is not in b.safetensors"),
    "numbers": ({"x": 1}, "weight_map must map"),
    "a list": ([], "weight_map must map"),
    "nothing": ({}, "weight_map must map"),
}


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("case", INDICES)
def test_broken_indices_are_refused_by_reason(folder, case, whole):
    weight_map, message = INDICES[case]
    index = write_index(folder, weight_map)
    check_refused(folder if whole else index, message)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b'{"weight_map": {"x": "a", "x": "b"}}', b"[" * 10**6])
def test_indices_that_are_no_json_are_refused(folder, text):
    (folder / "model.safetensors.index.json").write_bytes(text)
    check_refused(folder, "model.safetensors.index.json is not a valid index")


def test_a_small_index_takes_little_memory(folder):
    index = write_index(folder, {"x": "a.safetensors", "y": "b.safetensors"})
    open_tensors(index)
    tracemalloc.start()
    try:
        open_tensors(index)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_lists_in_lists_are_read_in_linear_time():
    depth, count = 900, 200_000
    content = b'{"a":' + b"[" * depth + b",".join([b'"b"'] * count) + b"]" * depth + b"}"
    began = time.process_time()
    inner = load_json(content, "x")["a"]
    assert time.process_time() - began < 2  # 10 s if each string passes through all lists around it
    for _ in range(depth - 1):
        (inner,) = inner
    assert len(inner) == count
    with pytest.raises(ValueError, match="surrogates not allowed"):
        load_json(b'{"a":[[["b"],["\\ud800"]]]}', "x")


def test_metadata_of_an_index_must_be_an_object(folder):
    check_refused(write_index(folder, {"x": "a.safetensors"}, metadata=[1]), "metadata must be an object")


def test_a_tensor_in_two_shards_is_refused(folder):
    save_file({"x": np.ones(2), "y": np.ones(2)}, folder / "b.safetensors")
    check_refused(
        write_index(folder, {"x": "a.safetensors", "y": "b.safetensors"}), "tensor 'x' is in a.safetensors and in"
    )


@pytest.mark.parametrize("whole", [False, True])
def test_links_out_of_the_folder_are_refused(folder, whole):
    (folder / "b.safetensors").unlink()
    (folder / "b.safetensors").symlink_to("../other.safetensors")
    index = write_index(folder, {"x": "a.safetensors", "z": "b.safetensors"})
    check_refused(folder if whole else index, "b.safetensors is a link that leads out of", inspected=not whole)


def test_links_that_lead_out_or_nowhere_are_refused_by_name(folder):
    (folder / "outside").mkdir()
    for name, end, message in (
        ("config.json", "/etc/passwd", "config.json is a link that leads out of"),
        ("c.safetensors", "../other.safetensors", "c.safetensors is a link that leads out of"),
        ("loop", "loop", "loop"),
        ("sub", ".", "sub is a link to a folder"),
        ("outside/up", "/etc", "up is a link that leads out of"),
        ("gone", "nowhere", "gone"),
    ):
        (folder / name).symlink_to(end)
        check_refused(folder, message, inspected=False)
        report = inspect(folder)
        assert report["left_out"] == [name]
        assert [row["name"] for row in report["tensors"]] == ["x", "y"]
        code, out, _ = run("inspect", folder)
        assert code == 0 and f"left out: {name}\n" in out
        (folder / name).unlink()


@pytest.mark.skipif(sys.platform == "win32", reason="has no named pipes in folders")
def test_a_pipe_or_device_is_no_file(tmp_path, folder):
    os.mkfifo(folder / "pipe")
    check_refused(folder, "pipe is not a regular file")
    check_refused(folder / "pipe", "pipe is not a regular file")
    assert run("inspect", "/dev/zero")[0] == 3


def test_a_file_that_shrinks_is_noticed(tmp_path, monkeypatch):
    from mp_core.files.checkpoint import conversion as module

    path = tmp_path / "m.safetensors"
    save_file({"x": np.ones((600, 600), np.float32)}, path)
    original = module._convert

    def shrinking(*arguments):
        os.truncate(path, 5000)
        return original(*arguments)

    monkeypatch.setattr(module, "_convert", shrinking)
    assert "m.safetensors became shorter" in run("convert", path, "-o", tmp_path / "out", "--policy", "int8")[2]
    assert os.listdir(tmp_path) == ["m.safetensors"]


# ---- chance


def seed_file(path):
    x = np.linspace(-3, 3, 3 * 70, dtype=np.float32).reshape(3, 70)
    save_file({"w": x, "b": x[0].copy(), "h": x.astype(np.float16), "i": np.arange(5)}, path, metadata={"format": "pt"})
    return path


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    seed_file(folder / "float")
    convert(folder / "float", folder / "int4", "int4/32", map={"h": "float8_e5m2/32"})
    fixed = {"w": mp.quantize(np.ones((3, 70), np.float32)), "w.inputs_scale": np.ones(70, np.float32)}
    fixed["w.inputs_zero_point"] = np.arange(70, dtype=np.int8)
    save_tensors(folder / "fixed", fixed, policy="int8/fixed/tensor", policies={"w": "int8/fixed"})
    return [(folder / name).read_bytes() for name in ("float", "int4", "fixed")]


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete", "digit"]), st.integers(0, 2**16), st.binary(min_size=1, max_size=4)
    ),
    min_size=1,
    max_size=6,
)


def edited(content, edits):
    content = bytearray(content)
    for kind, position, new in edits:
        position %= len(content) or 1
        if kind == "set":
            content[position : position + len(new)] = new
        elif kind == "insert":
            content[position:position] = new
        elif kind == "delete":
            del content[position : position + 8 * len(new)]
        else:  # the next digit of the header becomes another
            digits = [i for i in range(position, len(content)) if 48 <= content[i] < 58]
            if digits:
                content[digits[0]] = 48 + new[0] % 10
    return bytes(content)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2), EDITS)
@example(0, [("delete", 0, b"aaaa")])
@example(0, [("set", 556, b"\x00\x00\x81\x7f")])  # a signaling NaN
def test_random_damage_is_refused_or_harmless(seeds, tmp_path_factory, which, edits):
    folder = tmp_path_factory.mktemp("fuzz")
    path = folder / "m.safetensors"
    path.write_bytes(edited(seeds[which], edits))
    results = [
        run("inspect", path),
        run("convert", path, "-o", folder / "out", "--policy", "int8", "--allow-requantize"),
    ]
    for code, _, err in results:
        assert code in (0, 2, 3)
        assert err.count("\n") == (code > 0)
    assert (folder / "out").exists() == (results[1][0] == 0)
    try:
        opened = open_tensors(path)
        stored_policies(path)
    except ValueError:
        return
    for array in opened.values():
        np.asarray(mp.dequantize(array) if isinstance(array, mp.QuantizedArray) else array).tobytes()
    names = {row["name"] for row in inspect(path)["tensors"]}
    assert names <= opened.keys() and all("inputs" in name for name in opened.keys() - names)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**65)
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["F32", "I8"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["F32", "I8", "U8"]) | JSON, "shape": JSON, "data_offsets": JSON}
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(max_size=3), ENTRY | JSON, max_size=3), JSON)
def test_random_headers_are_refused_or_harmless(tmp_path_factory, header, schemes):
    path = tmp_path_factory.mktemp("fuzz") / "m.safetensors"
    metadata = {"__metadata__": {"mp_core.quantization": json.dumps(schemes)}}
    path.write_bytes(safetensors(json.dumps(header | metadata).encode("utf-8", "surrogatepass"), EIGHT))
    code, _, err = run("inspect", path)
    assert (code, err.count("\n")) in ((0, 0), (3, 1))
