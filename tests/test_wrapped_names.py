"""Names of tensors with prefixes of other programs, and the errors for names that no network has."""

import numpy as np
import pytest
import random_models
from safetensors.numpy import load_file, save_file

from mp_core.models import BertEncoder, Reranker

TEXTS = ["a b c", "d e f g"]
BEFORE = (
    "_orig_mod.", "module.", "0.auto_model.", "module._orig_mod.", "_orig_mod.module.", "model.", "self.network.",
    "module.student.",
)  # fmt: skip


def renamed(folder, rename):
    path = folder / "model.safetensors"
    tensors = {rename(name): np.array(x) for name, x in load_file(path).items()}
    save_file(tensors, path)
    return folder


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("name", ["bert", "qwen3", "t5", "distilbert"])
def test_names_of_wrappers_change_no_bit(tmp_path, name, before):
    folder = random_models.save(random_models.made(name), tmp_path / "model")
    expected = BertEncoder.from_folder(folder).encode(TEXTS)
    encoder = BertEncoder.from_folder(renamed(folder, before.__add__))
    np.testing.assert_array_equal(encoder.encode(TEXTS), expected)
    encoder.save(tmp_path / "saved")
    np.testing.assert_array_equal(BertEncoder.from_folder(tmp_path / "saved").encode(TEXTS), expected)


def test_a_head_beside_the_network_may_be_wrapped_too(tmp_path):
    network = random_models.made("roberta", "ForSequenceClassification", num_labels=1)
    folder = random_models.save(network, tmp_path / "model")
    pairs = [("a b", "c d")]
    tokenizer = random_models.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ends = [(word, random_models.WORDS.index(word)) for word in ("<s>", "</s>")]
    tokenizer.post_processor = random_models.processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B </s>", ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    expected = Reranker.from_folder(folder).predict(pairs)
    for before in "module.", "student.", "roberta.":  # one after the other
        np.testing.assert_array_equal(Reranker.from_folder(renamed(folder, before.__add__)).predict(pairs), expected)


@pytest.mark.parametrize("place", [0, 1])
def test_other_names_are_told_with_what_was_expected(tmp_path, place):
    folder = renamed(random_models.save(random_models.made("bert"), tmp_path / "model"), "student.".__add__)
    tensors = load_file(folder / "model.safetensors")
    others = ({"aside": np.zeros(3)}, {name.replace("student", "teacher"): x for name, x in tensors.items()})
    save_file(tensors | others[place], folder / "model.safetensors")  # which of them is the network?
    first = r"the first tensor is '(aside|student\..*)', expected names such as 'encoder\.layer\.0\.[a-z.]*\.weight'"
    with pytest.raises(ValueError, match=rf"has tensors of 0 blocks; expected num_hidden_layers=2; {first}"):
        BertEncoder.from_folder(folder)


def test_a_network_with_and_without_a_wrapper_is_refused(tmp_path):
    folder = random_models.save(random_models.made("bert"), tmp_path / "model")
    tensors = {name: np.array(x) for name, x in load_file(folder / "model.safetensors").items()}
    save_file(tensors | {f"module.{name}": x for name, x in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"has the tensors .* and .*; expected one network"):
        BertEncoder.from_folder(folder)


def test_a_table_of_t5_under_its_second_name_is_read_and_saved(tmp_path):
    folder = random_models.save(random_models.made("t5"), tmp_path / "model")
    expected = BertEncoder.from_folder(folder).encode(TEXTS)
    encoder = BertEncoder.from_folder(renamed(folder, lambda name: name.replace("shared.", "encoder.embed_tokens.")))
    np.testing.assert_array_equal(encoder.encode(TEXTS), expected)
    encoder.save(tmp_path / "saved")
    np.testing.assert_array_equal(BertEncoder.from_folder(tmp_path / "saved").encode(TEXTS), expected)
