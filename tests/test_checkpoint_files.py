"""Conversion: which files and folders it reads, replaces, and leaves unchanged if it fails."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import ml_dtypes
import numpy as np
import processes
import pytest
from safetensors.numpy import save_file
from tensors import LINE, TENSORS, normal, raw

from mp_core.checkpoint import RequestError, convert, inspect, open_tensors, verify
from mp_core.files.checkpoint import conversion, work
from mp_core.files.checkpoint.folder import open_checkpoint
from mp_core.files.checkpoint.output import new_file


def test_an_existing_file_is_replaced_only_by_force(source, target):
    target.write_text("mine")
    with pytest.raises(FileExistsError, match=r"out\.safetensors exists; use force \(--force\) to replace it"):
        convert(source, target, "float16")
    assert target.read_text() == "mine"
    convert(source, target, "float16", force=True)
    assert open_tensors(target)["layer.weight"].dtype == np.float16
    with pytest.raises(FileNotFoundError, match="absent"):
        convert(source, target.parent / "absent" / "out", "float16")


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("link", [None, os.link, os.symlink])
def test_a_file_is_never_replaced_by_its_own_conversion(source, tmp_path, link, force):
    path, target = tmp_path / "model.safetensors", tmp_path / ("out" if link else "model.safetensors")
    shutil.copy(source, path)
    if link:
        link(path, target)
    for one, other in ((path, target), (target, path)):
        with pytest.raises(FileExistsError, match=r"is the input .*: it is not replaced"):
            convert(one, other, "bfloat16", force=force)
    assert path.read_bytes() == source.read_bytes() == target.read_bytes()


@pytest.mark.parametrize("what", ["", "model.safetensors.index.json"])
@pytest.mark.parametrize("how", ["itself", "symlink", "hard links", "one shard"])
def test_a_folder_is_never_replaced_by_its_own_conversion(sharded, tmp_path, what, how):
    out = tmp_path / "out"
    if how == "itself":
        out = sharded
    elif how == "symlink":
        out.symlink_to(sharded)
    else:
        out.mkdir()
        for path in sharded.glob("*-00001-*" if how == "one shard" else "[cm]*.*"):
            os.link(path, out / path.name)
    before = {path: path.read_bytes() for path in sharded.rglob("*") if path.is_file()}
    with pytest.raises(FileExistsError, match=r"is the input .*: it is not replaced"):
        convert(sharded / what, out, "bfloat16", force=True)
    assert {path: path.read_bytes() for path in sharded.rglob("*") if path.is_file()} == before


def test_a_new_file_is_whole_or_not_there(tmp_path):
    target, other = tmp_path / "out", tmp_path / "other"
    for content in (b"one", b"two"):
        with new_file(target, force=True, inputs=[other]) as stream:
            stream.write(content)
            assert target.exists() == (content == b"two")
        assert target.read_bytes() == content
    with pytest.raises(KeyboardInterrupt), new_file(target, force=True) as stream:
        stream.write(b"three")
        raise KeyboardInterrupt
    with pytest.raises(FileExistsError, match="force"), new_file(target, force=False):
        pass
    os.link(target, other)
    with pytest.raises(FileExistsError, match="is the input"), new_file(target, force=True, inputs=[other]):
        pass
    assert target.read_bytes() == b"two"
    assert sorted(os.listdir(tmp_path)) == ["other", "out"]


def test_a_new_file_may_be_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with processes.Process(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        with new_file(tmp_path / "pipe", force=False) as stream:
            stream.write(b"content")
        assert reader.communicate()[0] == b"content"


def test_errors_of_the_disk_name_the_target_and_no_temporary_name(source, target, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space") as caught, new_file(tmp_path / "x", force=False) as stream:
        assert ".tmp" in stream.name
        fail()
    assert caught.value.filename == str(tmp_path / "x")
    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match="No space") as caught:
        convert(source, target, "float16")
    assert caught.value.filename == str(target)
    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match="No space") as caught:
        inspect(source)
    assert caught.value.filename == str(source)


def test_links_keep_leading_to_what_is_replaced(source, sharded, tmp_path):
    for name, model in (("file", source), ("folder", sharded)):
        convert(model, tmp_path / f"{name}-1", "float16")
        (tmp_path / name).symlink_to(f"{name}-1")
        convert(model, tmp_path / name, "bfloat16", force=True)
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

    close = conversion.OutFile.__exit__
    monkeypatch.setattr(work.Work, "_write", write)
    monkeypatch.setattr(
        conversion.OutFile, "__exit__", lambda *a: (closed.append(len(begun) - len(ended)), close(*a))[1]
    )
    with pytest.raises(OSError, match="disk"):
        convert(tmp_path / "in.safetensors", target, "float16", threads=3)
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

    original = work.Work._write
    monkeypatch.setattr(work.Work, "_write", fail)
    with pytest.raises(error):
        convert(source, target, "int8", force=force)
    assert os.listdir(target.parent) == (["out.safetensors"] if force else [])
    assert not force or target.read_text() == "mine"


def test_a_full_disk_is_noticed_before_anything_is_written(source, target, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(OSError, match="bytes are needed"):
        convert(source, target, "float32")


@pytest.mark.parametrize(
    ("number", "ignored", "code"),
    [(signal.SIGTERM, False, 143), (signal.SIGHUP, False, 129), (signal.SIGHUP, True, 143)],
)
def test_a_signal_removes_what_was_begun_unless_it_is_ignored(tmp_path, number, ignored, code):
    path = tmp_path / "in.safetensors"
    header = json.dumps({"w": {"dtype": "F32", "shape": [2**15, 2**15], "data_offsets": [0, 2**32]}}).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2**32)
    program = "import sys, mp_core.cli as c; print(flush=True); sys.exit(c.main(sys.argv[1:]))"
    arguments = ["convert", path, "-o", tmp_path / "out", "--policy", "int8"]
    command = [*["nohup"] * ignored, sys.executable, "-c", program, *arguments]
    with processes.Process(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        while process.poll() is None and len(os.listdir(tmp_path)) < 2:
            pass
        process.send_signal(number)
        if ignored:
            time.sleep(0.2)
            assert process.poll() is None
            process.terminate()
        assert process.wait() == code
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
    report = convert(sharded / what, out, "int8")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    for file in set(index["weight_map"].values()):
        found = {name for name, owner in index["weight_map"].items() if owner == file}
        assert raw(out / file)[0].keys() == found
    assert "layer.weight.scale" in index["weight_map"]
    assert index["metadata"] == {"total_size": report["new_bytes"], "other": "kept"}
    convert(source, tmp_path / "single.safetensors", "int8")
    single = open_tensors(tmp_path / "single.safetensors")
    many = open_tensors(out)
    assert many.keys() == single.keys()
    for name, x in single.items():
        assert (getattr(x, "values", x) == getattr(many[name], "values", many[name])).all(), name
    assert verify(out, tmp_path / "single.safetensors")["failed"] == []
    others = {path.relative_to(out).as_posix() for path in out.rglob("*.json")}
    assert others == {"model.safetensors.index.json"} | (set() if what else {"config.json", "1_Pooling/config.json"})
    assert not (out / ".git").exists()


def test_a_file_goes_into_a_folder_and_a_folder_of_one_into_a_file(sharded, source, tmp_path):
    out, folder = tmp_path / "out", tmp_path / "single"
    out.mkdir()
    folder.mkdir()
    shutil.copy(source, folder / source.name)
    (folder / "config.json").write_text("{}")
    convert(source, out, "float16")
    assert os.listdir(out) == [source.name]
    with pytest.raises(FileExistsError, match="force"):
        convert(source, out, "float16")
    convert(folder, tmp_path / "one.safetensors", "float16")
    assert (tmp_path / "one.safetensors").read_bytes() == (out / source.name).read_bytes()
    convert(folder, tmp_path / "one.safetensors", "float16", force=True)
    with pytest.raises(RequestError, match="model has 2 safetensors files: the target must be a folder"):
        convert(sharded, tmp_path / "two.safetensors", "float16")
    with pytest.raises(RequestError, match=r"the target .*new/ is not a folder"):
        convert(source, f"{tmp_path}/new/", "float16")
    assert not (tmp_path / "new").exists()
    convert(folder, f"{tmp_path}/new.safetensors/", "float16")
    assert sorted(os.listdir(tmp_path / "new.safetensors")) == ["config.json", source.name]
    (tmp_path / "old.safetensors").mkdir()
    convert(sharded, tmp_path / "old.safetensors", "float16", force=True)
    assert (tmp_path / "old.safetensors" / "config.json").exists()


def test_weights_in_other_forms_and_what_is_excluded_are_left_out(sharded, tmp_path):
    stale = ["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "onnx/model.onnx", "onnx/config.json", "m.gguf"]
    other = ["notes.txt", "docs/a.md", "docs/b/c.md", "model.fp16.safetensors", "vocab.bin"]
    for name in (*stale, *other):
        (sharded / name).parent.mkdir(parents=True, exist_ok=True)
        (sharded / name).write_bytes(b"x")
    patterns = ["docs", "*.txt", "*.fp16.safetensors"]
    report = convert(sharded, tmp_path / "out", "int8", exclude=patterns)
    assert sorted(report["left_out"]) == sorted([*stale, *other[:-1]])
    files = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {"vocab.bin", "config.json", "1_Pooling/config.json"} < files and not files & {*stale, *other[:-1]}
    for pattern, message in (("*.md5", "excludes no file"), ("model-00001*", "cannot be excluded: an index lists it")):
        with pytest.raises(RequestError, match=message):
            convert(sharded, tmp_path / "x", "int8", exclude=[*patterns, pattern])


def test_nothing_is_left_where_descriptors_run_out(sharded, tmp_path):
    resource = pytest.importorskip("resource")
    folder, limits, codes = tmp_path / "out", resource.getrlimit(resource.RLIMIT_NOFILE), set()
    folder.mkdir()
    convert(sharded, folder / "new", "int8")  # what is loaded once is loaded
    shutil.rmtree(folder / "new")
    for free in range(12):
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) - 1 + free, limits[1]))
        try:
            convert(sharded, folder / "new", "int8")
        except OSError as error:
            codes.add(error.errno)
            assert ".tmp" not in str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert {path.name for path in folder.iterdir()} <= {"new"}
        shutil.rmtree(folder / "new", ignore_errors=True)
    assert codes == {errno.EMFILE}


@pytest.mark.parametrize("started", [0, 1])
def test_a_conversion_works_with_as_few_threads_as_can_start(source, tmp_path, monkeypatch, started):
    convert(source, tmp_path / "expected.safetensors", "int8", threads=4)
    start, left = threading.Thread.start, [started]

    def limited(self):
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    convert(source, tmp_path / "found.safetensors", "int8", threads=4)
    assert (tmp_path / "found.safetensors").read_bytes() == (tmp_path / "expected.safetensors").read_bytes()


def test_the_shards_of_an_index_are_found_once(sharded):
    (index,) = open_checkpoint(sharded).indices
    assert index.shards == ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    assert index.shards is index.shards


def test_a_folder_is_replaced_only_if_nothing_is_lost(sharded, tmp_path):
    out = tmp_path / "out"
    convert(sharded, out, "int8")
    with pytest.raises(FileExistsError, match="force"):
        convert(sharded, out, "float16")
    (out / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"'notes\.txt', which a conversion would not write"):
        convert(sharded, out, "float16", force=True)
    (out / "notes.txt").unlink()
    convert(sharded, out, "float16", force=True)
    assert open_tensors(out)["layer.weight"].dtype == np.float16
    assert sorted(os.listdir(tmp_path)) == ["model", "out"]
    with pytest.raises(RequestError, match="is inside the folder"):
        convert(sharded, sharded / "int8", "int8")
    with pytest.raises(FileExistsError, match="is not a folder"):
        convert(sharded, out / "config.json", "int8", force=True)


def test_a_folder_that_fails_disappears(sharded, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk")

    monkeypatch.setattr(conversion, "_index", fail)
    with pytest.raises(OSError, match="disk"):
        convert(sharded, tmp_path / "out", "int8")
    assert os.listdir(tmp_path) == ["model"]


def test_links_of_a_hub_s_cache_are_followed(sharded, tmp_path):
    snapshot = tmp_path / "hub" / "snapshots" / "abc"
    (tmp_path / "hub" / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(path for path in sharded.iterdir() if path.is_file()):
        shutil.copy(file, tmp_path / "hub" / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    convert(snapshot, tmp_path / "out", "int8")
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())
