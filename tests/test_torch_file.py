"""Files of torch.save: the tensors of torch; hostile files run no code, do not crash and take no memory."""

import io
import json
import os
import pickle
import random
import struct
import zipfile
import zlib

import numpy as np
import pytest
import random_models

from mp_core.checkpoint import convert, open_tensors
from mp_core.files.checkpoint.torch_file import open_torch
from mp_core.models import BertEncoder

torch = pytest.importorskip("torch")
DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def saved(content, path):
    torch.save(content, path)
    return path


def numbers(tensor):
    return tensor.detach().double().numpy()


def test_tensors_are_those_of_torch(tmp_path):
    base = torch.arange(60.0).reshape(5, 12)
    tensors = {dtype: torch.arange(7).to(getattr(torch, dtype)) for dtype in DTYPES}
    tensors |= {"turned": base.T, "part": base[1:4, 2::3], "number": torch.tensor(3.5), "empty": torch.zeros(0, 4)}
    tensors |= {"parameter": torch.nn.Parameter(base), "shared": base[2], "wide": torch.ones(1).expand(3, 4)}
    found = open_torch(saved(tensors, tmp_path / "pytorch_model.bin"))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].shape == tuple(tensor.shape)
        assert found[name].dtype.name == str(tensor.dtype).removeprefix("torch.")
        np.testing.assert_array_equal(found[name].astype(np.float64), numbers(tensor))
        assert not found[name].size or not found[name].flags.writeable


def test_a_state_of_a_network_and_one_under_a_name_are_read(tmp_path):
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    for content in (network.state_dict(), {"epoch": 3, "state_dict": network.state_dict()}):
        found = open_torch(saved(content, tmp_path / "a.bin"))
        assert found.keys() == network.state_dict().keys()
        np.testing.assert_array_equal(found["0.weight"], numbers(network[0].weight))


def written(folder, network, shards=1):
    """Write a network as a folder of before safetensors."""
    random_models.save(network, folder)
    (folder / "model.safetensors").unlink()
    tensors = list(network.state_dict().items())
    if shards == 1:
        torch.save(dict(tensors), folder / "pytorch_model.bin")
        return
    names = {name: f"pytorch_model-{place % shards}.bin" for place, (name, _) in enumerate(tensors)}
    for file in set(names.values()):
        torch.save({name: tensor for name, tensor in tensors if names[name] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("policy", ["float32", "int8"])
def test_a_folder_with_such_a_file_is_opened_and_saved(tmp_path, shards, policy):
    network, texts = random_models.made("bert"), ["a b c", "d"]
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
    expected = BertEncoder.from_folder(random_models.save(network, tmp_path / "new"), policy).encode(texts)
    written(tmp_path / "old", network, shards)
    encoder = BertEncoder.from_folder(tmp_path / "old", policy)
    np.testing.assert_array_equal(encoder.encode(texts), expected)
    encoder.save(tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").exists()
    assert not list((tmp_path / "again").glob("*.bin"))
    np.testing.assert_array_equal(BertEncoder.from_folder(tmp_path / "again").encode(texts), expected)


@pytest.mark.parametrize("shards", [1, 3])
def test_an_old_folder_is_converted_with_its_modules(tmp_path, shards):
    (tmp_path / "old" / "2_Dense").mkdir(parents=True)
    network, texts = random_models.made("bert"), ["a b c", "d"]
    written(tmp_path / "old", network, shards)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")]
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in modules]
    (tmp_path / "old" / "modules.json").write_text(json.dumps(listed))
    torch.save(
        {"linear.weight": torch.ones(3, 32), "linear.bias": torch.zeros(3)}, tmp_path / "old/2_Dense/pytorch_model.bin"
    )
    (tmp_path / "old/2_Dense/config.json").write_text(json.dumps({"in_features": 32, "out_features": 3}))
    encoder = BertEncoder.from_folder(tmp_path / "old")
    report = convert(tmp_path / "old", tmp_path / "new", "float32")
    assert {row["file"] for row in report["tensors"]} == {"model.safetensors", "2_Dense/model.safetensors"}
    assert not list((tmp_path / "new").rglob("*.bin*"))
    np.testing.assert_array_equal(BertEncoder.from_folder(tmp_path / "new").encode(texts), encoder.encode(texts))
    for place in (tmp_path / "old", tmp_path / "old" / "new"):
        with pytest.raises(ValueError, match=r"the target .* is .*, or is inside it"):
            convert(tmp_path / "old", place, "float32", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


def test_what_is_excluded_from_an_old_folder_is_not_read(tmp_path):
    (tmp_path / "old" / "2_Dense").mkdir(parents=True)
    written(tmp_path / "old", random_models.made("bert"), 1)
    excluded = ["2_Dense/pytorch_model.bin", "half.safetensors"]
    for name in excluded:
        (tmp_path / "old" / name).write_bytes(b"x")
    report = convert(tmp_path / "old", tmp_path / "new", "float32", exclude=["2_Dense/*", "half.*"])
    assert sorted(report["left_out"]) == excluded
    assert [path.name for path in (tmp_path / "new").rglob("*.safetensors")] == ["model.safetensors"]


def test_a_file_of_torch_is_converted(tmp_path):
    path = saved({"a": torch.ones(2, 3), "b": torch.arange(3)}, tmp_path / "a.pt")
    convert(path, tmp_path / "a.safetensors", "bfloat16")
    found = open_tensors(tmp_path / "a.safetensors")
    assert {name: tensor.dtype.name for name, tensor in found.items()} == {"a": "bfloat16", "b": "int64"}


def test_a_shard_outside_of_the_folder_is_refused(tmp_path):
    written(tmp_path, random_models.made("bert"), 2)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "../b.bin"}}))
    with pytest.raises(ValueError, match=r"names the file '\.\./b\.bin'; expected a name in its own folder"):
        BertEncoder.from_folder(tmp_path)


class Command:
    def __reduce__(self):
        return os.system, ("touch PWNED",)


class Deep:
    def __reduce__(self):
        return eval, ("1",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": Command()}, r"has the name (posix|nt)\.system; expected a dictionary of tensors, and no code"),
        ({"a": Deep()}, r"has the name .*eval"),
        ({"a": torch.ones(1), "b": 3}, "has a int under 'b'"),
        ({3: torch.ones(1)}, "has a damaged pickle"),
        ([torch.ones(1)], "has a list"),
        (torch.ones(2), "has a _Placed"),
        ({"a": torch.ones(2).to_sparse()}, r"has the name torch\._utils\._rebuild_sparse_tensor"),
        ({"a": torch.nn.Linear(1, 1)}, r"has the name torch\.nn\.modules\.linear\.Linear"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, r"has the name torch\.ComplexFloatStorage"),
    ],
)
def test_what_is_no_tensor_is_refused_by_name(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    path = saved(content, tmp_path / "a.bin")
    with pytest.raises(ValueError, match=message):
        open_torch(path)
    assert not (tmp_path / "PWNED").exists()


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.bin"
    torch.save({"a": torch.ones(1)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"is not an archive of torch\.save .*before PyTorch 1\.6"):
        open_torch(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "x")
    with pytest.raises(ValueError, match=r"has 0 members data\.pkl; expected one"):
        open_torch(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({}, 2))
        archive.writestr("a/byteorder", "big")
    with pytest.raises(ValueError, match="byte order"):
        open_torch(path)


def packed(pickled, members, compression=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr("a/data.pkl", pickled)
        for name, content in members.items():
            archive.writestr(f"a/data/{name}", content)
    return stream.getvalue()


def parts(path):
    with zipfile.ZipFile(path) as archive:
        pickled = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        root = pickled.removesuffix("data.pkl")
        members = {
            name.removeprefix(f"{root}data/"): archive.read(name) for name in archive.namelist() if "/data/" in name
        }
        return archive.read(pickled), members


def test_storages_that_do_not_fit_are_refused(tmp_path):
    path = saved({"a": torch.arange(6.0).reshape(2, 3)}, tmp_path / "a.bin")
    pickled, members = parts(path)
    for content, message in (
        (packed(pickled, {}), "needs the member data/0"),
        (packed(pickled, members, zipfile.ZIP_DEFLATED), "not compressed"),
        (packed(pickled, {"0": b"1234"}), "has a storage of 6 float32; its member has 4 bytes"),
        (packed(pickled.replace(b"K\x02K\x03", b"K\x03K\x03"), members), "ends at element 8 of a storage of 6"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            open_torch(path)


@pytest.mark.parametrize("count", [24, 200])
def test_tensors_share_storages_up_to_32_times_the_bytes_of_the_file(tmp_path, count):
    table = torch.ones(1 << 18)
    path = saved({f"layers.{i}.weight": table.view(2, -1) for i in range(count)}, tmp_path / "shared.bin")
    if count > 32:
        with pytest.raises(ValueError, match=r"its tensors, which share storages, have 209715200 together; allowed"):
            open_torch(path)
        return
    found = open_torch(path)
    assert len(found) == count
    assert len({x.__array_interface__["data"][0] for x in found.values()}) == 1  # none is a copy


def test_mutants_of_a_file_are_refused_or_read(tmp_path):
    path = saved({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.int8)}, tmp_path / "a.bin")
    whole, (pickled, members), draw = path.read_bytes(), parts(path), random.Random(0)
    for count in range(1000):
        start = pickled if count % 2 else whole
        changed = bytearray(start)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(packed(bytes(changed), members) if count % 2 else changed)
        try:
            for tensor in open_torch(path).values():
                tensor.astype(np.float64).sum()
        except (ValueError, OSError) as error:
            assert str(path) in str(error)


def crafted(path, length, place, comment=b""):
    """Write an archive whose directory places the member data/0 at some byte: all other places are as they must be."""
    storage = b"X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuJ" + struct.pack("<i", length)
    shape = b"J" + struct.pack("<i", length) + b"\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtRs."
    program = b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((" + storage + b"tQK\0" + shape
    names, shift = (b"a/data.pkl", b"a/data/0"), 1000  # the archive claims to begin behind bytes that are not there
    sizes, sums = (len(program), 4 * length), (zlib.crc32(program), 0)
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, sums[0], sizes[0], sizes[0], 10, 0) + names[0] + program
    central = b"".join(
        struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, crc, size, size, len(name), 0, 0, 0, 0, 0, at) + name
        for name, size, crc, at in zip(names, sizes, sums, (shift, shift + place), strict=True)
    )
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2, 2, len(central), len(local) + shift, len(comment))
    path.write_bytes(local + central + end + comment)
    return path


def test_a_member_before_the_first_byte_is_refused(tmp_path):
    head = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 400, 400, 0, 0)
    path = crafted(tmp_path / "pytorch_model.bin", 100, -100, bytes(300) + head + bytes(70))
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("a/data/0").header_offset == -100
    with pytest.raises(ValueError, match=r"tensor w needs the member data/0, which is not within the file"):
        open_torch(path)


@pytest.mark.parametrize("twice", ["archive/data.pkl", "archive/data/0"])
def test_a_member_that_is_there_twice_is_refused(tmp_path, twice):
    path = saved({"w": torch.ones(4)}, tmp_path / "archive.pt")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(twice, archive.read(twice))
    with pytest.raises(ValueError, match=rf"it has two entries {twice}; expected one"):
        open_torch(path)
