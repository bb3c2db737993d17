"""Published folders: harmless extra contents are accepted, and folders that cannot be opened are explained."""

import json
from pathlib import Path

import numpy as np
import pytest
import random_models
import tiny_bert

from mp_core import cli
from mp_core.models import BertEncoder, SparseEncoder
from mp_core.models.opening import class_of

HARMLESS = (
    {"model_args": {"trust_remote_code": True}},
    {"model_kwargs": {"attn_implementation": "sdpa", "add_pooling_layer": False, "torch_dtype": "auto"}},
    {"tokenizer_args": {"use_fast": True, "trust_remote_code": True}, "config_args": {"trust_remote_code": True}},
    {"processor_kwargs": {"use_fast": False}, "config_kwargs": {"revision": "main", "use_cache": False}},
)
HARMFUL = (
    ("model_args", {"torch_dtype": "float16"}),
    ("model_kwargs", {"num_hidden_layers": 1}),
    ("tokenizer_args", {"padding_side": "left"}),
    ("config_args", {"is_decoder": True}),
    ("processor_kwargs", ["use_fast"]),
)


def said(folder, settings):
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("settings", HARMLESS, ids=str)
def test_arguments_of_loaders_that_change_nothing_are_taken(tmp_path, settings):
    folder = tiny_bert.write(tmp_path / "model")
    expected = BertEncoder.from_folder(folder).encode("a b")
    np.testing.assert_array_equal(BertEncoder.from_folder(said(folder, settings)).encode("a b"), expected)


@pytest.mark.parametrize(("entry", "value"), HARMFUL, ids=str)
def test_others_are_refused_by_name(tmp_path, entry, value):
    folder = said(tiny_bert.write(tmp_path / "model"), {entry: value})
    with pytest.raises(
        ValueError, match=rf"sentence_bert_config\.json: {entry} is .*; expected an object with some of"
    ):
        BertEncoder.from_folder(folder)


@pytest.mark.parametrize("opened", [BertEncoder.from_folder, class_of, SparseEncoder.from_folder])
def test_the_name_of_a_published_model_says_that_nothing_is_downloaded(tmp_path, monkeypatch, opened):
    monkeypatch.chdir(tmp_path)
    name = "sentence-transformers/all-MiniLM-L6-v2"
    how = rf"{name} is not a folder here, and mp_core downloads nothing: `hf download {name} --local-dir FOLDER`"
    with pytest.raises(FileNotFoundError, match=how):
        opened(Path(name))
    (tmp_path / "sentence-transformers").mkdir()
    with pytest.raises(FileNotFoundError, match=how):
        opened(Path(name))


@pytest.mark.parametrize("command", ["embed", "convert"])
def test_so_does_the_command_line(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    words = {"embed": ["texts"], "convert": ["--output", "out", "--policy", "bfloat16", "--max-memory", "8GiB"]}
    (tmp_path / "texts").write_text("a\n")
    assert cli.main([command, "BAAI/bge-small-en-v1.5", *words[command]]) != 0
    assert "BAAI/bge-small-en-v1.5 is not a folder here, and mp_core downloads nothing" in capsys.readouterr().err


def test_other_folders_that_are_absent_are_said_to_be(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such file"):
        BertEncoder.from_folder(tmp_path / "absent")


def test_a_masked_model_without_modules_is_one_of_splade(tmp_path):
    library = random_models.library("sentence_transformers")
    network = random_models.made("bert", "ForMaskedLM")
    folder = random_models.save(network, tmp_path / "model")
    (folder / "1_Pooling" / "config.json").unlink()
    (folder / "1_Pooling").rmdir()
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "TokenizersBackend", "pad_token": "<pad>", "model_max_length": 40})
    )
    with pytest.warns(UserWarning, match="it is opened as SPLADE"):
        assert class_of(folder) is SparseEncoder
    texts = ["a b c", "h g f", "d"]
    expected = library.SparseEncoder(str(folder)).encode(texts, convert_to_sparse_tensor=False).numpy()
    found = SparseEncoder.from_folder(folder).encode_sparse(texts).toarray()
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    assert expected.any()


def test_another_network_without_modules_is_refused_by_its_class(tmp_path):
    folder = random_models.save(random_models.made("bert"), tmp_path / "model")
    with pytest.raises(
        ValueError, match=r"config\.json: architectures is \['BertModel'\]; expected a \.\.\.ForMaskedLM"
    ):
        SparseEncoder.from_folder(folder)


def test_a_japanese_tokenizer_is_refused_by_what_it_needs(tmp_path):
    folder = tiny_bert.write(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("[UNK]\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertJapaneseTokenizer"}')
    with pytest.raises(ValueError, match="'BertJapaneseTokenizer', which cuts texts at words that MeCab") as refusal:
        BertEncoder.from_folder(folder)
    assert "AutoTokenizer" not in str(refusal.value)
