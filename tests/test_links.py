"""A broken link is an error that names it, also where a file may be absent."""

import os

import pytest
import tiny_bert

from mp_core.checkpoint import open_tensors
from mp_core.files.checkpoint.sources import open_parts
from mp_core.models import BertEncoder, MultiVectorEncoder, SparseEncoder
from mp_core.models.opening import class_of
from mp_core.utilities.system import is_present

OPTIONAL = (
    "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "tokenizer_config.json",
    "2_Normalize/config.json", "model.safetensors.index.json", "tokenizer.json",
)  # fmt: skip
OPENERS = {"BertEncoder": BertEncoder.from_folder, "class_of": class_of}


def dangling(path):
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(path.parent / "blobs" / "lost")


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_file_that_is_a_link_to_nothing_is_refused_by_name(tmp_path, name):
    folder = tiny_bert.write(tmp_path / "model")
    dangling(folder / name)
    with pytest.raises(FileNotFoundError, match=rf"{name} is a link to .*blobs/lost, which does not exist"):
        BertEncoder.from_folder(folder)


def test_so_is_a_folder(tmp_path):
    folder = tiny_bert.write(tmp_path / "model")
    (folder / "modules.json").unlink()
    (folder / "1_Pooling").rename(tmp_path / "away")
    (folder / "1_Pooling").symlink_to("lost")
    for open_folder in OPENERS.values():
        with pytest.raises(FileNotFoundError, match="1_Pooling is a link to lost, which does not exist"):
            open_folder(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_so_are_weights(tmp_path, name):
    folder = tiny_bert.write(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    dangling(folder / name)
    with pytest.raises(FileNotFoundError, match=rf"{name} is a link to"):
        BertEncoder.from_folder(folder)
    if name.endswith("json"):
        with pytest.raises(FileNotFoundError, match=rf"{name} is a link to"):
            open_parts(folder)


@pytest.mark.parametrize("kind", [SparseEncoder, MultiVectorEncoder])
def test_so_are_the_modules_of_other_encoders(tmp_path, kind):
    folder = tiny_bert.write(tmp_path / "model")
    dangling(folder / "modules.json")
    with pytest.raises(FileNotFoundError, match=r"modules\.json is a link to"):
        kind.from_folder(folder)


def test_so_is_a_file_of_weights_alone(tmp_path):
    dangling(tmp_path / "weights" / "a.safetensors")
    with pytest.raises(FileNotFoundError, match=r"a\.safetensors is a link to .*blobs/lost, which does not exist"):
        open_tensors(tmp_path / "weights" / "a.safetensors")


def test_links_to_something_and_absent_files_are_as_they_were(tmp_path):
    folder = tiny_bert.write(tmp_path / "model")
    (folder / "modules.json").rename(tmp_path / "elsewhere.json")
    (folder / "modules.json").symlink_to(tmp_path / "elsewhere.json")
    (tmp_path / "linked").symlink_to(folder)
    assert BertEncoder.from_folder(tmp_path / "linked").encode("a").shape == (16,)
    assert not is_present(tmp_path / "linked" / "absent.json")
    assert not is_present(tmp_path / "absent" / "absent.json")
    assert not is_present(tmp_path / "elsewhere.json" / "below a file")
    os.symlink("loop", tmp_path / "loop")
    with pytest.raises(OSError, match=r"symbolic links.*loop"):
        is_present(tmp_path / "loop")
