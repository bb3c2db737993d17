"""Conversion of folders: shards, other files in their place, and interruptions."""

import errno
import json
import math
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor, _base, thread
from pathlib import Path

import numpy as np
import pytest
from interrupting import Tracer, interrupt, run
from safetensors.numpy import save_file
from tensors import normal, row_of

from mp_core.checkpoint import RequestError, convert, inspect, open_tensors, verify
from mp_core.files.checkpoint import conversion


def sharded(folder, shards, metadata=None):
    """Save shards and an index of them."""
    folder.mkdir()
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    files = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    index = {"metadata": metadata or {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_the_scale_of_a_tensor_may_not_be_named_like_one_of_another_shard(tmp_path):
    shards = {"a.safetensors": {"w": normal(64, 128)}, "b.safetensors": {"w.scale": normal(5)}}
    folder = sharded(tmp_path / "model", shards)
    with pytest.raises(RequestError, match=r"two tensors would have the name 'w.scale'"):
        convert(folder, tmp_path / "out", "int8")
    convert(folder, tmp_path / "out", "bfloat16")
    assert not verify(folder, tmp_path / "out", rtol=0.01)["failed"]


def test_a_shard_may_have_any_name(tmp_path):
    folder = sharded(tmp_path / "model", {"a.bin": {"v": normal(64, 8)}, "b.safetensors": {"w": normal(64, 8)}})
    convert(folder, tmp_path / "out", "bfloat16")
    assert {name for name, x in open_tensors(tmp_path / "out").items() if x.dtype.name == "bfloat16"} == {"v", "w"}


@pytest.mark.parametrize("when", ["old", "new"])
def test_an_interrupt_while_a_folder_is_replaced_leaves_one_whole(tmp_path, monkeypatch, when):
    folder, out = sharded(tmp_path / "model", {"a.safetensors": {"w": normal(64, 8)}}), tmp_path / "out"
    convert(folder, out, "bfloat16")
    rename = os.rename

    def interrupted(source, target):
        rename(source, target)
        if (Path(target) == out) == (when == "new"):
            monkeypatch.setattr(os, "rename", rename)
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(folder, out, "float16", force=True)
    assert open_tensors(out)["w"].dtype.name == {"old": "bfloat16", "new": "float16"}[when]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]


class Fails:
    """A function of the system that fails at one of its calls on a folder."""

    def __init__(self, function, folder):
        self.function, self.folder, self.calls, self.at = function, str(folder), 0, None

    def __call__(self, path, *rest, **options):
        if isinstance(path, str | Path) and str(path).startswith(self.folder):
            self.calls += 1
            if self.calls == self.at:
                raise OSError(errno.EIO, "fails once", str(path))
        return self.function(path, *rest, **options)


@pytest.mark.parametrize("name", ["stat", "lstat", "mkdir", "rename", "unlink", "rmdir", "scandir", "open"])
def test_a_folder_is_replaced_or_not_whatever_fails_once(tmp_path, monkeypatch, name):
    folder, out = sharded(tmp_path / "model", {"a.safetensors": {"w": normal(64, 8)}}), tmp_path / "out"
    convert(folder, out, "bfloat16")
    fails = Fails(getattr(os, name), tmp_path)
    monkeypatch.setattr(os, name, fails)
    convert(folder, out, "bfloat16", force=True)
    for at in range(1, fails.calls + 1):
        fails.calls, fails.at = 0, at
        try:
            convert(folder, out, "float16", force=True)
        except OSError as error:
            assert str(error.filename).startswith(str(tmp_path))
        fails.at = None
        assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"], at
        assert open_tensors(out)["w"].dtype.name in ("bfloat16", "float16")
        convert(folder, out, "bfloat16", force=True)


def test_an_error_of_a_map_names_its_file(tmp_path, monkeypatch):
    folder = sharded(tmp_path / "model", {"a.safetensors": {"w": normal(64, 8)}})

    def fails(*_, **__):
        raise OSError(errno.ENOMEM, "no room")

    monkeypatch.setattr(np, "memmap", fails)
    with pytest.raises(OSError, match="no room") as caught:
        open_tensors(folder)
    assert caught.value.filename == str(folder / "a.safetensors")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_everything_is_removed(tmp_path, monkeypatch, number, fails):
    folder, out = sharded(tmp_path / "model", {"a.safetensors": {"w": normal(64, 8)}}), tmp_path / "out"
    convert(folder, out, "bfloat16")
    rmtree = shutil.rmtree

    def fail(*_):
        raise OSError("disk")

    def interrupted(path, **options):
        signal.raise_signal(number)
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    if fails:
        monkeypatch.setattr(conversion, "_index", fail)
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            convert(folder, out, "float16", force=True)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert open_tensors(out)["w"].dtype.name == ("bfloat16" if fails else "float16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]


def test_an_interrupt_anywhere_in_pythons_threads_leaves_nothing_behind(tmp_path):
    """An exception within threading.Condition.wait may become RuntimeError("release unlocked lock") in CPython 3.11."""
    save_file({"v": normal(64, 8), "w": normal(64, 8)}, tmp_path / "in.safetensors")

    def act():
        convert(tmp_path / "in.safetensors", tmp_path / "out.safetensors", "int8", threads=2, force=True)

    act()
    tracer = Tracer("line")
    assert run(tracer, act) is None
    files = {threading.__file__, _base.__file__, thread.__file__}
    places = [place for place in tracer.seen if place[0].co_filename in files]
    assert len(places) > 20
    threads = threading.active_count()
    before = signal.signal(signal.SIGINT, lambda *_: interrupt())
    try:
        for place in places:  # which are passed depends on the other threads
            run(Tracer("line", place, lambda: signal.raise_signal(signal.SIGINT)), act)
            assert sorted(path.name for path in tmp_path.iterdir()) == ["in.safetensors", "out.safetensors"], place
            assert threading.active_count() == threads, place
    finally:
        signal.signal(signal.SIGINT, before)
    assert set(open_tensors(tmp_path / "out.safetensors")) == {"v", "w"}


def test_a_folder_is_replaced_in_any_thread(tmp_path):
    folder, out = sharded(tmp_path / "model", {"a.safetensors": {"w": normal(64, 8)}}), tmp_path / "out"
    with ThreadPoolExecutor(1) as executor:
        for policy in ("bfloat16", "float16"):
            executor.submit(convert, folder, out, policy, force=True).result()
    assert open_tensors(out)["w"].dtype.name == "float16"


def test_what_cannot_be_put_back_is_not_removed(tmp_path, monkeypatch):
    folder, out = sharded(tmp_path / "model", {"a.safetensors": {"w": normal(64, 8)}}), tmp_path / "out"
    convert(folder, out, "bfloat16")
    rename = os.rename

    def fail(source, target):
        if Path(target) == out:
            raise OSError("disk")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="disk"):
        convert(folder, out, "float16", force=True)
    (old,) = tmp_path.glob(".out.*")
    assert open_tensors(old)["w"].dtype.name == "bfloat16"


def test_links_in_a_folder_are_not_replaced(tmp_path):
    folder, out = sharded(tmp_path / "model", {"a.safetensors": {"w": normal(64, 8)}}), tmp_path / "out"
    convert(folder, out, "bfloat16")
    (out / "link").symlink_to(folder)
    with pytest.raises(FileExistsError, match="holds 'link'"):
        convert(folder, out, "bfloat16", force=True)


def test_a_name_may_be_as_long_as_a_file_system_allows(tmp_path, source):
    target = tmp_path / f"{'ä' * 118}.safetensors"
    convert(source, target, "bfloat16")
    assert target.exists()


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_scales_of_a_file_are_positive_and_finite(tmp_path, scale):
    path, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    save_file({"w": normal(4, 64)}, path)
    convert(path, out, "int8")
    content = out.read_bytes()
    good = open_tensors(out)["w"].scale.tobytes()
    out.write_bytes(content.replace(good, np.full(4, scale, np.float32).tobytes()))
    with pytest.raises(ValueError, match=r"out.safetensors: tensor 'w': scales must be positive and finite"):
        inspect(out)


def test_numbers_whose_squares_underflow_are_not_exact(tmp_path):
    path, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    save_file({"w": np.full((4, 64), 1e-200)}, path)
    report = convert(path, out, "bfloat16", fail_if=["sqnr<30"])
    row = row_of(report, "w")
    assert report["failed"] and row["flushed"] == 256 and all(math.isnan(row[key]) for key in ("rel_rmse", "cosine"))


@pytest.mark.parametrize("extra", ['{"x": ["\\ud800"]}', '{"x": NaN}'])
def test_an_index_holds_text_and_numbers(tmp_path, extra):
    folder = sharded(tmp_path / "model", {"a.safetensors": {"w": normal(64, 8)}})
    path = folder / "model.safetensors.index.json"
    path.write_text(path.read_text().replace('"metadata": {}', f'"metadata": {extra}'))
    with pytest.raises(ValueError, match="is not a valid index"):
        convert(folder, tmp_path / "out", "bfloat16")
