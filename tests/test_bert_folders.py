"""The BERT encoder and broken folders: errors name the file and entry, and nothing stays open or changed."""

import gc
import json
import math
import os
import pickle
import sys
from contextlib import nullcontext
from copy import deepcopy

import numpy as np
import pytest
import servers
import tiny_bert
from fuzz import folders
from safetensors.numpy import load_file, save_file
from tiny_bert import edit_json
from tokenizers import Tokenizer, processors

from mp_core import dtypes
from mp_core.models import BertEncoder, Reranker
from mp_core.models.opening import class_of
from mp_core.plans import eager


@pytest.fixture
def folder(tmp_path):
    return tiny_bert.write(tmp_path / "model")


def edit_tensor(name, change):
    def edit(folder):
        tensors = load_file(folder / "model.safetensors")
        tensor = change(tensors.pop(name))
        save_file(tensors if tensor is None else tensors | {name: tensor}, folder / "model.safetensors")

    return edit


def without(name, *entries):
    def edit(folder):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({key: content[key] for key in content if key not in entries}))

    return edit


def template(folder, single, special=("[CLS]", "[SEP]")):
    """Have the tokenizer of a folder put a text between other tokens."""
    path = str(folder / "tokenizer.json")
    known = Tokenizer.from_file(path)
    ends = [(word, tiny_bert.WORDS.index(word)) for word in special]
    known.post_processor = processors.TemplateProcessing(single=single, special_tokens=ends)
    known.save(path)


def special_tokens(**entries):
    def edit(folder):
        template(folder, "[CLS] [CLS] $A [SEP]")
        edit_json("sentence_bert_config.json", max_seq_length=2)(folder)
        edit_json("config.json", **entries)(folder)

    return edit


def remove(name):
    return lambda folder: (folder / name).unlink()


def overwrite(name, text):
    return lambda folder: (folder / name).write_text(text)


BIAS = "encoder.layer.1.output.dense.bias"
QUERY = "encoder.layer.0.attention.self.query.weight"
BROKEN = {
    "no config": (remove("config.json"), OSError, r"config\.json"),
    "no weights": (remove("model.safetensors"), OSError, r"model\.safetensors"),
    "no tokenizer": (remove("tokenizer.json"), OSError, r"tokenizer\.json"),
    "words alone": (
        lambda folder: (folder / "tokenizer.json").rename(folder / "vocab.txt"),
        OSError,
        r"tokenizer\.json is missing; the folder has vocab\.txt, from which transformers' AutoTokenizer",
    ),
    "no pooling": (remove("1_Pooling/config.json"), OSError, r"1_Pooling.config\.json"),
    "config no JSON": (overwrite("config.json", "{"), ValueError, r"config\.json is not valid JSON"),
    "config a list": (overwrite("config.json", "[]"), ValueError, r"config\.json holds a JSON list; expected a dict"),
    "tokenizer no tokenizer": (
        overwrite("tokenizer.json", "{}"),
        ValueError,
        r"tokenizer\.json is not a valid tokenizer",
    ),
    "tokenizer that panics": (
        edit_json(
            "tokenizer.json",
            post_processor={
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            },
        ),
        ValueError,
        r"tokenizer\.json is not a valid tokenizer: no entry found",
    ),
    "token beyond the vocabulary": (
        edit_json("tokenizer.json", model={"type": "WordLevel", "vocab": {"[UNK]": 12}, "unk_token": "[UNK]"}),
        ValueError,
        r"tokenizer\.json has a token 12; expected tokens below vocab_size, 12",
    ),
    "architecture": (
        edit_json("config.json", model_type="gpt2"),
        ValueError,
        r"config\.json: model_type is 'gpt2'; expected 'bert'",
    ),
    "activation": (
        edit_json("config.json", hidden_act="mish"),
        ValueError,
        r"config\.json: hidden_act is 'mish'; expected 'gelu' or 'gelu_python' or",
    ),
    "missing entry": (
        edit_json("config.json", hidden_size=None),
        ValueError,
        r"config\.json: hidden_size is None; expected a positive int below 2\^31",
    ),
    "count true": (
        edit_json("config.json", num_hidden_layers=True),
        ValueError,
        r"config\.json: num_hidden_layers is True; expected a positive int below 2\^31",
    ),
    "count beyond int32": (
        edit_json("config.json", max_position_embeddings=10**30),
        ValueError,
        r"config\.json: max_position_embeddings is 10{30}; expected a positive int below 2\^31",
    ),
    "epsilon NaN": (
        edit_json("config.json", layer_norm_eps=math.nan),
        ValueError,
        r"config\.json: layer_norm_eps is nan; expected a positive, finite float",
    ),
    "epsilon infinite": (
        edit_json("config.json", layer_norm_eps=math.inf),
        ValueError,
        r"config\.json: layer_norm_eps is inf; expected a positive, finite float",
    ),
    "no architecture": (
        without("config.json", "model_type"),
        ValueError,
        r"config\.json: model_type is absent; expected 'bert' or",
    ),
    "one position": (
        edit_json("config.json", max_position_embeddings=1),
        ValueError,
        r"config\.json: max_position_embeddings is 1; expected an int from 2 to 1048576",
    ),
    "more positions than memory": (
        edit_json("config.json", max_position_embeddings=2**30),
        ValueError,
        r"config\.json: max_position_embeddings is 1073741824; expected an int from 2 to 1048576",
    ),
    "blocks that are not there": (
        edit_json("config.json", num_hidden_layers=4096),
        ValueError,
        r"model\.safetensors has tensors of 2 blocks; expected num_hidden_layers=4096",
    ),
    "vocabulary beyond the tensor": (
        edit_json("config.json", vocab_size=2**31 - 1),
        ValueError,
        r"word_embeddings\.weight has shape \(12, 16\); .* of vocab_size=2147483647, hidden_size=16$",
    ),
    "perceptron beyond the tensor": (
        edit_json("config.json", intermediate_size=2**31 - 1),
        ValueError,
        r"output\.dense\.weight has shape \(16, 24\); .* of hidden_size=16, intermediate_size=2147483647$",
    ),
    "positions beyond the tensor": (
        edit_json("config.json", max_position_embeddings=11),
        ValueError,
        r"position_embeddings\.weight has shape \(10, 16\); .* of max_position_embeddings=11, hidden_size=16$",
    ),
    "types beyond the tensor": (
        edit_json("config.json", type_vocab_size=3),
        ValueError,
        r"token_type_embeddings\.weight has shape \(2, 16\); .* of type_vocab_size=3, hidden_size=16$",
    ),
    "a width that is the default": (
        without("config.json", "hidden_size", "num_attention_heads"),
        ValueError,
        r"of vocab_size=12, hidden_size=768; config\.json does not have hidden_size, and this is the default",
    ),
    "fewer positions than special tokens": (
        special_tokens(max_position_embeddings=2),
        ValueError,
        r"tokenizer\.json: the number of special tokens of a text is 3; expected at most 2, what max_position_embedd",
    ),
    "a limit below the special tokens": (
        special_tokens(),
        ValueError,
        r"special tokens of a text is 3; expected at most 2, what max_seq_length or model_max_length leaves to a text",
    ),
    "heads": (
        edit_json("config.json", num_attention_heads=3),
        ValueError,
        r"hidden_size is 16; expected a multiple of",
    ),
    "vocabulary": (
        edit_json("config.json", vocab_size=8),
        ValueError,
        r"tokenizer\.json has a token 11; expected tokens below vocab_size, 8",
    ),
    "pooling switch a string": (
        edit_json("1_Pooling/config.json", pooling_mode_cls_token="false"),
        ValueError,
        r"1_Pooling.config\.json: pooling_mode_cls_token is 'false'; expected true or false",
    ),
    "pooling width": (
        edit_json("1_Pooling/config.json", word_embedding_dimension=384),
        ValueError,
        r"1_Pooling.config\.json: word_embedding_dimension is 384; expected hidden_size, 16",
    ),
    "modules no objects": (
        overwrite("modules.json", "[1, 2]"),
        ValueError,
        r"modules\.json lists 1; expected JSON objects only",
    ),
    "extra module": (
        overwrite("modules.json", '[{"type": "sentence_transformers.models.Dense"}]'),
        ValueError,
        r"modules\.json: module 0 is 'sentence_transformers\.models\.Dense'; expected 'Transformer'",
    ),
    "limit": (
        edit_json("sentence_bert_config.json", max_seq_length=0),
        ValueError,
        r"sentence_bert_config\.json: max_seq_length is 0; expected an integer of at least 2",
    ),
    "limit NaN": (
        edit_json("sentence_bert_config.json", max_seq_length=math.nan),
        ValueError,
        r"sentence_bert_config\.json: max_seq_length is nan; expected an integer of at least 2",
    ),
    "limit a fraction": (
        edit_json("tokenizer_config.json", model_max_length=2.5),
        ValueError,
        r"tokenizer_config\.json: model_max_length is 2\.5; expected an integer of at least 2",
    ),
    "leftover layer": (
        edit_json("config.json", num_hidden_layers=1),
        ValueError,
        r"model\.safetensors: tensor encoder\.layer\.1\.\S+ is left over; expected num_hidden_layers=1",
    ),
    "truncated weights": (
        lambda folder: os.truncate(folder / "model.safetensors", 3000),
        ValueError,
        r"model\.safetensors is truncated",
    ),
    "missing tensor": (
        edit_tensor(BIAS, lambda _: None),
        ValueError,
        rf"model\.safetensors: tensor {BIAS} is missing; expected shape \(16,\)",
    ),
    "wrong shape": (
        edit_tensor(QUERY, lambda tensor: tensor[:8].copy()),
        ValueError,
        rf"model\.safetensors: tensor {QUERY} has shape \(8, 16\); expected \(16, 16\)",
    ),
    "wrong dtype": (
        edit_tensor(QUERY, lambda tensor: tensor.astype(np.int32)),
        ValueError,
        rf"model\.safetensors: tensor {QUERY} has dtype int32; expected a floating-point type",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_is_refused_by_file_and_entry(folder, case):
    break_it, error, message = BROKEN[case]
    break_it(folder)
    with pytest.raises(error, match=message):
        BertEncoder.from_folder(folder)


def test_a_tokenizer_without_a_token_for_unknown_words_refuses_them(folder):
    edit_json("tokenizer.json", model={"type": "WordLevel", "vocab": {"a": 4}, "unk_token": "[UNK]"})(folder)
    encoder = BertEncoder.from_folder(folder)
    assert len(encoder.encode(["a"])) == 1
    with pytest.raises(ValueError, match="tokenizer cannot take a text: WordLevel error"):
        encoder.encode(["a", "b"])


@pytest.mark.parametrize("mode", [nullcontext, eager])
def test_a_text_with_more_tokens_than_positions_is_named(folder, mode):
    template(folder, "[CLS] $A $A [SEP]")
    encoder = BertEncoder.from_folder(folder)
    with mode(), pytest.raises(ValueError, match=r"`texts\[1\]` must have at most 10 tokens; .* gives it 12"):
        encoder.encode(["a", "a b c d e"])


def test_a_limit_that_is_refused_changes_nothing(folder):
    template(folder, "[CLS] [CLS] $A [SEP]")
    encoder = BertEncoder.from_folder(folder)
    expected = encoder.encode(["a b c"])
    with pytest.raises(ValueError, match="the number of special tokens of a text is 3; expected at most 2"):
        encoder.max_seq_length = 2
    assert encoder.max_seq_length == 10
    np.testing.assert_array_equal(encoder.encode(["a b c"]), expected)


def test_what_is_no_path_is_named():
    with pytest.raises(TypeError, match="`path` must be a path, a str or an"):
        BertEncoder.from_folder(None)


def test_a_missing_package_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match="pip install tokenizers"):
        BertEncoder.from_folder(folder)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc")
def test_no_file_stays_open_after_the_encoder_or_a_failure(folder):
    gc.collect()  # models of earlier tests
    before = len(os.listdir("/proc/self/fd"))
    encoder = BertEncoder.from_folder(folder)
    encoder.encode(tiny_bert.TEXTS)
    del encoder
    edit_tensor(BIAS, lambda _: None)(folder)
    with pytest.raises(ValueError, match="is missing"):
        BertEncoder.from_folder(folder)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def _kinds(folder):
    rng = np.random.default_rng(0)
    yield BertEncoder.from_folder(tiny_bert.write(folder / "encoder")), "encode", tiny_bert.TEXTS
    yield Reranker.from_folder(servers.scorer(folder / "reranker", 1)), "predict", [("a b", "c")]
    for kind, way in (("sparse", "encode_sparse"), ("tokens", "encode_multi")):
        path = folders.write(folder / kind, "bert", kind, rng)
        yield class_of(path).from_folder(path), way, tiny_bert.TEXTS


def test_a_file_that_becomes_shorter_is_an_error_before_each_batch(tmp_path):
    """Reading a map behind the end of its file ends the process (SIGBUS). Another file in its place changes nothing."""
    for model, way, inputs in _kinds(tmp_path):
        compute, file = getattr(model, way), model._folder / "model.safetensors"
        compute(inputs)
        (tmp_path / "shorter").write_bytes(b"short")
        kept = file.with_name("kept")
        os.link(file, kept)
        os.replace(tmp_path / "shorter", file)
        compute(inputs)
        os.truncate(kept, 100)
        told = r"the file had \d+ bytes when it was opened, and has 100 now: open it again"
        with pytest.raises(OSError, match=told) as info:
            compute(inputs)
        assert info.value.filename == str(file) and not model.maps.are_whole


def test_copies_know_the_files_of_their_weights(folder):
    encoder = BertEncoder.from_folder(folder)
    others = encoder.with_policy("bfloat16"), deepcopy(encoder)
    pickled = pickle.loads(pickle.dumps(encoder))
    expected = encoder.encode("a b")
    os.truncate(folder / "model.safetensors", 100)
    assert not any(model.maps.are_whole for model in (encoder, *others))
    np.testing.assert_array_equal(pickled.encode("a b"), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_folder_of_halves_has_the_bits_of_its_own_numbers_in_float32(tmp_path, dtype):
    halves, floats = tiny_bert.write(tmp_path / "halves"), tiny_bert.write(tmp_path / "floats")
    stored = {name: x.astype(dtypes.parse(dtype)) for name, x in tiny_bert.tensors().items()}
    save_file(stored, halves / "model.safetensors")
    save_file({name: x.astype(np.float32) for name, x in stored.items()}, floats / "model.safetensors")
    found, expected = (BertEncoder.from_folder(each, "float32").encode(tiny_bert.TEXTS) for each in (halves, floats))
    np.testing.assert_array_equal(found, expected)
