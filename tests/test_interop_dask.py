"""Jobs on a cluster of processes: the bits of one process, whatever happens to the workers, and no work done twice."""

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import processes
import pytest
import tiny_bert
from no_texts import NO_TEXTS
from safetensors.numpy import load_file, save_file

from mp_core.checkpoint import RequestError, convert
from mp_core.config import get_num_threads
from mp_core.core import cpu
from mp_core.dtype_policies import QuantizedFloat8DTypePolicy
from mp_core.interop import cluster, dask, tasks
from mp_core.interop.dask import PartError, convert_shards, embed
from mp_core.interop.manifest import Manifest, digest_of_files
from mp_core.layers import Dense
from mp_core.models import BertEncoder

TEXTS = [" ".join("abcdefgh"[place % 7 : place % 7 + 1 + place % 5]) for place in range(50)]


@pytest.fixture(scope="module")
def client():
    with processes.cluster_client(2) as found:
        yield found


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_bert.write(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def expected(model):
    return BertEncoder.from_folder(model, "mixed_bfloat16").encode(TEXTS)


@pytest.fixture
def job(client, model, tmp_path):
    """Return a function that embeds texts 8 at a time, with other arguments where they are given."""

    def run(texts=TEXTS, **changes):
        arguments = {"model": model, "policy": "mixed_bfloat16", "output": tmp_path / "out", "part_size": 8} | changes
        return embed(client, texts, **arguments)

    return run


def joined(report):
    return np.concatenate([np.load(file) for file in report["files"]])


# ---- what a job gives


def test_embeddings_have_the_bits_of_one_process_and_a_second_run_does_nothing(job, expected):
    report = job()
    assert (report["done"], report["kept"], report["texts"], report["cut"]) == (7, 0, 50, 0)
    np.testing.assert_array_equal(joined(report), expected)
    before = {path: os.stat(path).st_mtime_ns for path in report["files"]}
    again = job(iter(TEXTS))
    assert (again["done"], again["kept"], again["files"]) == (0, 7, report["files"])
    assert before == {path: os.stat(path).st_mtime_ns for path in again["files"]}


def test_only_what_has_changed_is_done_again_and_what_is_gone_is_removed(job, expected, model):
    before = {path: os.stat(path).st_mtime_ns for path in job()["files"]}
    texts = [*TEXTS[:20], "h h h", *TEXTS[21:32]]
    report = job(texts)
    assert (report["done"], report["kept"]) == (1, 3)
    np.testing.assert_array_equal(joined(report), BertEncoder.from_folder(model, "mixed_bfloat16").encode(texts))
    assert [path for path in report["files"] if os.stat(path).st_mtime_ns != before[path]] == report["files"][2:3]
    folder = Path(report["files"][0]).parent
    assert sorted(path.name for path in folder.glob("*.npy")) == [f"part-00000{place}.npy" for place in range(4)]


def test_files_are_read_by_the_workers_in_their_order(job, model, tmp_path):
    first, second, empty = (tmp_path / name for name in ("first.txt", "second.txt", "empty.txt"))
    first.write_bytes(b"\xef\xbb\xbfa b\r\nc\n\nd e f")
    second.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    empty.write_bytes(b"")
    texts = ["a b", "c", "", "d e f", *TEXTS]
    report = job([first, empty, second])
    assert report["texts"] == len(texts) and report["done"] == 8
    np.testing.assert_array_equal(joined(report), BertEncoder.from_folder(model, "mixed_bfloat16").encode(texts))
    with second.open("a") as file:
        file.write("g\n")
    assert job([first, second])["done"] == 1


def test_parquet_has_texts_and_embeddings_side_by_side(job, expected):
    from pyarrow import dataset

    report = job(format="parquet")
    table = dataset.dataset(Path(report["files"][0]).parent, format="parquet").to_table()  # the manifest is hidden
    assert table["text"].to_pylist() == TEXTS
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), np.float32), expected)


def test_no_texts_are_one_empty_file(job, tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"")
    assert joined(job([])).shape == joined(job([tmp_path / "empty.txt"])).shape == (0, tiny_bert.WIDTH)


def test_texts_that_are_cut_are_counted(job, model):
    longest = BertEncoder.from_folder(model).max_length
    report = job(["a", "a " * longest, "b " * longest])
    assert report["cut"] == 2


def test_arguments_reach_the_encoder(job, model):
    arguments = {"normalize": False, "prompt": "a b ", "truncate_dim": 3}
    received = joined(job(batch_size=3, **arguments))
    np.testing.assert_array_equal(received, BertEncoder.from_folder(model, "mixed_bfloat16").encode(TEXTS, **arguments))


def test_a_worker_opens_the_model_once_and_has_the_threads_of_its_nanny(job, client):
    job()
    encoders = client.run(lambda: [id(encoder) for encoder in tasks._opened.values()])
    job(texts=TEXTS[::-1])
    assert client.run(lambda: [id(encoder) for encoder in tasks._opened.values()]) == encoders
    assert all(len(found) == 1 for found in encoders.values())
    counts = client.run(lambda: (cpu.threads_and_reason(), get_num_threads()))
    assert set(counts.values()) == {((1, "OMP_NUM_THREADS"), 1)}
    assert client.submit(tasks._threads, pure=False).result() == 1


# ---- what goes wrong


def slow_embedding(self, path, piece):
    time.sleep(0.1)
    return EMBEDDING(self, path, piece)


EMBEDDING = tasks.Embedding.__call__


def test_a_job_ends_right_if_a_worker_is_killed(job, client, expected):
    client.run(set_call, slow_embedding)
    victim = []

    def kill():
        time.sleep(0.25)
        pids = client.run(os.getpid)
        victim.append(next(iter(pids.values())))
        os.kill(victim[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    report = job(part_size=4)
    killer.join()
    assert victim
    np.testing.assert_array_equal(joined(report), expected)
    client.wait_for_workers(2, timeout=30)
    assert victim[0] not in client.run(os.getpid).values()
    client.run(set_call, EMBEDDING)


def set_call(function):
    tasks.Embedding.__call__ = function


def test_a_job_that_was_broken_off_goes_on(job, expected, monkeypatch, tmp_path):
    add, seen = cluster.Manifest.add, []

    def interrupted(self, part, result):
        add(self, part, result)
        seen.append(part)
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(cluster.Manifest, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        job()
    monkeypatch.undo()
    with open(tmp_path / "out" / ".mp_core_manifest.jsonl", "a") as file:
        file.write('{"part": "part-0000')  # a line that was being written when the machine failed
    (tmp_path / "out" / ".part-000006.npy.0123abcd.tmp").write_bytes(b"of a worker that was killed")
    report = job()
    assert (report["done"], report["kept"]) == (4, 3)
    np.testing.assert_array_equal(joined(report), expected)
    assert not list((tmp_path / "out").glob(".*.tmp"))


@pytest.mark.parametrize("size", [0, 1, -1, 4096])
def test_a_part_that_is_cut_off_or_grew_on_the_disk_is_done_again(job, expected, size):
    files = [Path(file) for file in job()["files"]]
    os.truncate(files[2], size if size >= 0 else files[2].stat().st_size + size)
    files[4].unlink()
    report = job()
    assert (report["done"], report["kept"]) == (2, 5)
    np.testing.assert_array_equal(joined(report), expected)
    assert job()["done"] == 0


def test_a_part_without_a_size_is_done_again(job, expected, tmp_path):
    job()
    manifest = tmp_path / "out" / ".mp_core_manifest.jsonl"
    records = [json.loads(line) for line in manifest.read_text().splitlines()]
    del records[3]["size"]  # as versions before wrote them
    manifest.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    report = job()
    assert (report["done"], report["kept"]) == (1, 6)
    np.testing.assert_array_equal(joined(report), expected)


def test_a_shard_that_is_cut_off_on_the_disk_is_converted_again(client, shards, tmp_path):
    first = convert_shards(client, shards, tmp_path / "out", "bfloat16")
    file = tmp_path / "out" / first["tensors"][0]["file"]
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    report = convert_shards(client, shards, tmp_path / "out", "bfloat16")
    assert (report["done"], file.read_bytes()) == (1, whole)


def test_a_part_that_fails_for_a_while_is_tried_again(client, tmp_path):
    parts = [cluster.OutputPart(f"{place}", f"{place}", (fails_at_first,)) for place in range(3)]
    with cluster.Manifest(tmp_path / "out", {}, "*", force=False) as manifest:
        assert cluster.run(client, manifest, parts, 2, False) == 3
    assert sorted(manifest.done) == ["0", "1", "2"]


def fails_at_first(path):
    tried = Path(path).with_name(f"{Path(path).name}.tried")
    count = len(tried.read_text()) if tried.exists() else 0
    tried.write_text("x" * (count + 1))
    if count < 2:
        raise OSError("the network is gone")
    Path(path).touch()
    return {"tries": count + 1}


def test_parts_that_fail_are_reported_and_the_others_are_done(job, client, tmp_path):
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text("a\nb\n")
    bad.write_bytes(b"a\n\xff\n")
    with pytest.raises(PartError, match=r"1 of 3 parts failed.*part-000001.npy: ValueError: .*bad.txt, line 2 is not"):
        job([good, bad, good])
    bad.write_bytes(b"a\nb\n")
    report = job([good, bad, good])
    assert (report["done"], report["kept"]) == (1, 2)


def test_a_file_that_changes_meanwhile_is_an_error(client, model, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("a\n")
    (piece,) = dask.pieces([path], 8)
    path.write_text("b\n")
    with pytest.raises(ValueError, match=r"texts\.txt has changed since the job began"):
        piece.read()


def test_what_is_read_twice_is_a_regular_file_with_lines_that_end(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        dask.pieces([tmp_path / "pipe"], 8)
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="sparse, line 1 has more than 67108864 bytes"):
        dask.pieces([tmp_path / "sparse"], 8)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_a_journal_that_never_ends_is_refused(tmp_path, make):
    make(tmp_path / ".mp_core_manifest.jsonl")
    with pytest.raises(ValueError, match=r"mp_core_manifest\.jsonl is not a regular file"):
        Manifest(tmp_path, {}, "*", force=False)


def _journal(folder, job, *names):
    """Write a journal that says that parts of these names are done."""
    folder.mkdir(exist_ok=True)
    records = [job, *({"part": name, "key": "x", "size": 4} for name in names)]
    (folder / ".mp_core_manifest.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


@pytest.mark.parametrize(
    "name", ["../precious.npy", "a/../../precious.npy", "/precious.npy", "", ".", "a\\b", "\ud800", 7, None]
)
@pytest.mark.parametrize("force", [False, True])
def test_a_journal_removes_no_file_outside_of_its_folder(tmp_path, name, force):
    precious, folder = tmp_path / "precious.npy", tmp_path / "out"
    precious.write_bytes(b"mine")
    name = str(precious) if name == "/precious.npy" else name
    _journal(folder, {"job": 1}, "part-1.npy", name)
    (folder / "part-1.npy").write_bytes(b"part")
    with pytest.raises(ValueError, match=r"manifest\.jsonl names the file .*; expected a name in its own folder"):
        Manifest(folder, {"job": 1}, "*", force=force)
    assert (folder / "part-1.npy").exists()  # nothing is removed before all names are checked
    with Manifest(folder, {"job": 2}, "*.npy", force=True) as manifest:  # of another job: it is not followed
        manifest.begin([])
    assert precious.read_bytes() == b"mine" and os.listdir(folder) == [".mp_core_manifest.jsonl"]


def test_a_line_that_is_nested_too_deeply_is_no_part(tmp_path):
    for line in "[" * 100_000, '{"part":' * 100_000:
        _journal(tmp_path, {"job": 1}, "part-1.npy")
        with open(tmp_path / ".mp_core_manifest.jsonl", "a") as journal:
            journal.write(f"{line}\n")
        with Manifest(tmp_path, {"job": 1}, "*.npy", force=False) as manifest:
            assert list(manifest.done) == ["part-1.npy"]


def test_only_files_that_are_called_like_parts_are_removed(tmp_path):
    folder = tmp_path / "out"
    for job in {"job": 1}, {"job": 2}:
        _journal(folder, job, "part-1.npy", "notes.txt")
        for name in "part-1.npy", "notes.txt":
            (folder / name).write_bytes(b"text")
        with Manifest(folder, {"job": 1}, "part-*", force=True) as manifest:
            manifest.begin([])
        assert sorted(os.listdir(folder)) == [".mp_core_manifest.jsonl", "notes.txt"]


@pytest.mark.parametrize("name", ["part-1.npy", "below/part-1.npy", ".mp_core_manifest.jsonl"])
def test_nothing_is_written_through_a_link_out_of_the_folder(tmp_path, name):
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / Path(name).name).write_bytes(b"mine")
    _journal(folder, {})
    link = folder / Path(name).parts[0]
    link.unlink(missing_ok=True)
    link.symlink_to(elsewhere / name if link.name == name else elsewhere)
    with (
        pytest.raises(ValueError, match="a link"),
        Manifest(folder, {}, "*", force=True) as manifest,
    ):
        manifest.begin([cluster.OutputPart(name, "x")])
    assert (elsewhere / Path(name).name).read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ("one text", TypeError, "`texts` must be an iterable of str or of paths; received str"),
        (Path("one"), TypeError, "`texts` must be an iterable of str or of paths; received PosixPath"),
        *((texts, TypeError, f"`texts` must be an .* received {received}") for texts, received in NO_TEXTS.values()),
        ({"a": "b"}, TypeError, "`texts` must be an .* received dict, which yields its keys"),
        (["a", 7], TypeError, r"`texts\[1\]` must be a str; received int"),
        ([Path("/dev/null"), "a"], TypeError, r"`texts\[1\]` must be a path, as `texts\[0\]` is; received str"),
        (["a", Path("/dev/null")], TypeError, r"`texts\[1\]` must be a str; received PosixPath"),
        (["\ud800"], ValueError, r"`texts\[0\]` must be text that UTF-8 can encode"),
        ([Path("/absent.txt")], FileNotFoundError, "absent.txt"),
        ([Path("/")], IsADirectoryError, "/"),
    ],
)
def test_what_is_no_text_is_refused_before_anything_is_written(job, tmp_path, texts, error, message):
    with pytest.raises(error, match=message):
        job(texts)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"format": "csv"}, ValueError, "`format` must be one of 'npy', 'parquet'; received 'csv'"),
        ({"part_size": 0}, ValueError, "`part_size` must be"),
        ({"retries": -1}, ValueError, "`retries` must be at least 0"),
        ({"retries": 1.5}, TypeError, "`retries` must be an integer"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be"),
        ({"prompt_name": "poem"}, ValueError, "`prompt_name` must be one of"),
        ({"policy": "int3"}, ValueError, "int3"),
        ({"model": "/absent"}, OSError, "/absent"),
        ({"output": "/absent/out"}, FileNotFoundError, "/absent/out"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(job, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        job(**changes)
    assert not (tmp_path / "out").exists()


def test_the_output_of_another_job_is_kept_unless_forced(job, expected, model, tmp_path):
    job(policy="int8")
    for changes, named in ({}, "policy"), ({"policy": "int8", "normalize": False}, "normalize"):
        with pytest.raises(
            FileExistsError, match=f"out is the output of a job with another {named}; use force to replace it"
        ):
            job(**changes)
    other = shutil.copytree(model, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name] * 2}, other / "model.safetensors")
    with pytest.raises(FileExistsError, match="with another model"):
        job(policy="int8", model=other)
    report = job(force=True)
    assert (report["done"], report["kept"]) == (7, 0)
    np.testing.assert_array_equal(joined(report), expected)


def test_a_folder_of_other_files_is_never_an_output(job, model, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("all of it")
    with pytest.raises(FileExistsError, match=r"has 'thesis.txt' and is not the output of a job"):
        job(force=True)
    with pytest.raises(FileExistsError, match="is inside the model's folder"):
        job(output=model / "out")
    with pytest.raises(FileExistsError):
        job(output=tmp_path / "out" / "thesis.txt")


def test_only_one_process_writes_into_a_folder(job, tmp_path):
    with (
        cluster.Manifest(tmp_path / "out", {}, "*", force=False),
        pytest.raises(FileExistsError, match="another process is writing into"),
    ):
        job()


def test_a_manifest_that_is_none_is_refused(job, tmp_path):
    (tmp_path / "out").mkdir()
    for content in ("", "[]\n", "no json\n", "\x00"):
        (tmp_path / "out" / ".mp_core_manifest.jsonl").write_text(content)
        with pytest.raises(FileExistsError, match="another"):
            job()


def test_a_worker_with_another_model_under_that_path_refuses_to_compute(model, tmp_path):
    other = shutil.copytree(model, tmp_path / "other")
    task = tasks.Embedding(str(other), ("config.json",), "another digest", None, {}, "npy")
    with pytest.raises(ValueError, match="differs from that of the process that began the job"):
        tasks._encoder(task)


# ---- checkpoints


@pytest.fixture
def shards(tmp_path, rng):
    """Write a checkpoint in three shards."""
    folder = tmp_path / "large"
    folder.mkdir()
    names = [f"model-0000{place}-of-00003.safetensors" for place in (1, 2, 3)]
    weights = {}
    for place, name in enumerate(names):
        tensors = {
            f"layer.{place}.weight": rng.standard_normal((32, 64), np.float32),
            f"layer.{place}.bias": np.ones(32),
        }
        save_file(tensors, folder / name)
        weights |= dict.fromkeys(tensors, name)
    index = {"metadata": {"total_size": 1}, "weight_map": weights}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def test_shards_become_the_files_that_convert_writes(client, shards, tmp_path):
    expected = convert(shards, tmp_path / "serial", "int8", keep=["layer.1"])
    report = convert_shards(client, shards, tmp_path / "out", "int8", keep=["layer.1"])
    assert contents(tmp_path / "out") == contents(tmp_path / "serial")
    assert (report["done"], report["kept"]) == (3, 0)
    for name in ("bytes", "new_bytes", "policy", "tensors"):
        assert report[name] == expected[name]
    again = convert_shards(client, shards, tmp_path / "out", "int8", keep=["layer.1"])
    assert (again["done"], again["kept"]) == (0, 3)
    assert again["tensors"] == report["tensors"]


def test_a_changed_shard_is_converted_again_and_no_other(client, shards, tmp_path):
    convert_shards(client, shards, tmp_path / "out", "bfloat16")
    path = shards / "model-00002-of-00003.safetensors"
    save_file({name: 2 * tensor for name, tensor in load_file(path).items()}, path)
    (shards / "config.json").write_text('{"model_type": "roberta"}')
    report = convert_shards(client, shards, tmp_path / "out", "bfloat16")
    assert (report["done"], report["kept"]) == (1, 2)
    convert(shards, tmp_path / "serial", "bfloat16")
    assert contents(tmp_path / "out") == contents(tmp_path / "serial")


def test_a_shard_that_cannot_be_converted_is_reported_and_nothing_can_be_loaded(client, shards, tmp_path):
    path = shards / "model-00003-of-00003.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"layer.2.weight": np.full((32, 64), np.nan, np.float32)}, path)
    with pytest.raises(
        PartError, match=r"1 of 3 parts failed.*00003-of-00003.safetensors: ValueError: .*layer.2.weigh"
    ):
        convert_shards(client, shards, tmp_path / "out", "int8")
    assert sorted(contents(tmp_path / "out")) == [f"model-0000{place}-of-00003.safetensors" for place in (1, 2)]
    save_file(tensors, path)
    assert convert_shards(client, shards, tmp_path / "out", "int8")["done"] == 1


def test_bad_requests_for_shards_are_refused(client, shards, tmp_path):
    for target in (shards, shards / "inside"):
        with pytest.raises(RequestError, match="is inside the folder that is converted"):
            convert_shards(client, shards, target, "int8")
    with pytest.raises(RequestError, match="`source` must be a folder"):
        convert_shards(client, shards / "model-00001-of-00003.safetensors", tmp_path / "out", "int8")
    with pytest.raises(ValueError, match="int3"):
        convert_shards(client, shards, tmp_path / "out", "int3")
    with pytest.raises(FileNotFoundError):
        convert_shards(client, tmp_path / "absent", tmp_path / "out", "int8")
    assert not (tmp_path / "out").exists()


def test_a_worker_knows_its_model_by_all_that_a_policy_has(model):
    """The repr of a policy of float8 does not name the length of its history."""
    names = "config.json", "model.safetensors"
    files = digest_of_files(Path(model), names)
    for length in (8, 16):
        policy = QuantizedFloat8DTypePolicy("float8", "float32", amax_history_length=length)
        encoder = tasks._encoder(tasks.Embedding(str(model), names, files, policy, {}, "npy"))
        policies = {layer.dtype_policy for layer in encoder.model.flatten() if isinstance(layer, Dense)}
        assert policies == {policy}
