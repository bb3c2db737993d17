"""Damaged folders, read in a separate process: each raises an error that names it, or runs."""

import json
import os
import sys
from pathlib import Path

import processes
import pytest
import random_models
import tiny_bert
from tokenizers import Tokenizer, processors

from mp_core.layers.base.contents import LayerContents
from mp_core.models import BertEncoder, Reranker

HERE = Path(__file__).parent
KINDS = ("bert", "roberta", "distilbert", "mpnet", "modernbert")


def whole(folder, name, **sizes):
    """Write a folder that is an encoder and a reranker."""
    sizes |= {"hidden_size": 16, "intermediate_size": 24} | ({"hidden_dim": 24} if name == "distilbert" else {})
    folder.mkdir()
    random_models.save(random_models.made(name, "ForSequenceClassification", num_labels=1, **sizes), folder)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    listed = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ends = [(word, random_models.WORDS.index(word)) for word in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B </s>", ends)
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    room = tmp_path_factory.mktemp("hostile")
    for name in KINDS:
        whole(room / name, name)
    return room


def test_mutated_folders_are_refused_by_name_or_run(folders, tmp_path):
    program = [sys.executable, HERE / "hostile_folders.py", folders, tmp_path / "log", "0", "60"]
    quiet = os.environ | {"RUST_BACKTRACE": "0"}
    done = processes.run(program, capture_output=True, text=True, timeout=300, env=quiet, check=False)
    assert done.returncode == 0, f"folder {(tmp_path / 'log').read_text()}: {done.stdout}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("name", KINDS)
def test_a_network_of_one_position_is_refused(name, tmp_path):
    positions = 3 if name in ("roberta", "mpnet") else 1  # of which two are not used
    whole(tmp_path / name, name, max_position_embeddings=positions)
    (tmp_path / name / "modules.json").unlink()
    for kind in (BertEncoder, Reranker):
        with pytest.raises(ValueError, match=rf"config\.json: max_position_embeddings is {positions}; expected an int"):
            kind.from_folder(tmp_path / name)


def test_long_lists_in_a_configuration_are_no_parts_of_the_network(tmp_path):
    folder = tiny_bert.write(tmp_path / "model", layer_types=[[] for _ in range(10**5)])
    parts = LayerContents(BertEncoder.from_folder(folder).model.flatten())
    assert len(parts.containers) < 1000


def test_settings_have_a_bounded_number_of_values_and_messages_a_length(tmp_path):
    folder = tiny_bert.write(tmp_path / "model", layer_types=[[] for _ in range(10**6)])
    with pytest.raises(ValueError, match=r"config\.json has some \d{7} values; expected at most 1048576"):
        BertEncoder.from_folder(folder)
    folder = tiny_bert.write(tmp_path / "other", hidden_act=[[] for _ in range(10**5)])
    with pytest.raises(ValueError, match=r"hidden_act is \[\[\], .*\.\.\.; expected") as refusal:
        BertEncoder.from_folder(folder)
    assert len(str(refusal.value)) < 3000


FILES = (
    "config.json", "modules.json", "1_Pooling/config.json", "tokenizer.json", "tokenizer_config.json",
    "sentence_bert_config.json", "config_sentence_transformers.json", "model.safetensors.index.json",
    "model.safetensors",
)  # fmt: skip
PLANTED = {
    "device": ("os.symlink('/dev/zero', path)", "is not a regular file"),
    "pipe": ("os.mkfifo(path)", "is not a regular file"),
    "huge": ("open(path, 'wb').truncate(1 << 40)", "has more than|not a valid safetensors file"),
}
LOADS = """
import os, re, resource, shutil, sys
from mp_core.models import BertEncoder
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
whole, room, message, *names = sys.argv[1:]
for name in names:
    folder = shutil.copytree(whole, os.path.join(room, name.replace("/", "_")))
    path = os.path.join(folder, name)
    if os.path.exists(path):
        os.remove(path)
    {plant}
    try:
        BertEncoder.from_folder(folder)
    except (OSError, ValueError) as error:
        assert re.search(f"{{re.escape(name)}}.*({{message}})", str(error)), error
    else:
        raise AssertionError(name)
"""


@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_no_file_of_bounded_size_is_refused_by_name(kind, tmp_path):
    plant, message = PLANTED[kind]
    folder = tiny_bert.write(tmp_path / "whole")
    program = [sys.executable, "-c", LOADS.format(plant=plant), folder, tmp_path, message, *FILES]
    done = processes.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
