"""Folders of PyLate 3 and of Stanford's ColBERT: the vectors of sentence-transformers 6 for the same folder."""

import json
import shutil
import warnings

import late_models
import numpy as np
import pytest
import random_models
from oracles import assert_same_bits
from safetensors.numpy import load_file, save_file
from test_multi import TEXTS, assert_close
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from mp_core.models import MultiVectorEncoder

torch = pytest.importorskip("torch")
st = pytest.importorskip("sentence_transformers")


def pylate(folder, **settings):
    """Write a folder as PyLate 3 does, with markers that the tokenizer has as tokens."""
    from sentence_transformers.base.modules import Dense

    late_models.network("bert", "Model", folder)
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_tokens([AddedToken(marker, normalized=True) for marker in ("[Q] ", "[D] ")])
    tokenizer.save(str(path))
    torch.manual_seed(1)
    (folder / "1_Dense").mkdir()
    Dense(32, 8, bias=False, activation_function=torch.nn.Identity()).save(str(folder / "1_Dense"))
    kept = ("in_features", "out_features", "bias", "activation_function")
    said = json.loads((folder / "1_Dense" / "config.json").read_text())
    (folder / "1_Dense" / "config.json").write_text(json.dumps({name: said[name] for name in kept}))
    kinds = ("sentence_transformers.models.Transformer", ""), ("pylate.models.Dense.Dense", "1_Dense")
    listed = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (kind, path) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(listed))
    own = {"model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 12}
    own |= {"document_length": 20, "attend_to_expansion_tokens": False, "skiplist_words": ["b"], "prompts": {}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(own | settings))
    return folder


def stanford(folder, **settings):
    """Write a folder as Stanford's ColBERT does: the product is in the file of the network."""
    late_models.network("bert", "Model", folder)
    late_models.change(folder / "config.json", architectures=["HF_ColBERT"])
    tensors = {f"bert.{name}": x for name, x in load_file(folder / "model.safetensors").items()}
    tensors["linear.weight"] = np.random.default_rng(1).standard_normal((8, 32)).astype(np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    words = [*random_models.WORDS, "[unused0]", "[unused1]", ".", ","]
    path = folder / "tokenizer.json"
    before = Tokenizer.from_file(str(path))
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.post_processor = pre_tokenizers.Whitespace(), before.post_processor
    tokenizer.save(str(path))
    own = {"query_maxlen": 12, "doc_maxlen": 20, "attend_to_mask_tokens": False, "dim": 8, "checkpoint": "elsewhere"}
    (folder / "artifact.metadata").write_text(json.dumps(own | settings))
    return folder


def library(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return st.MultiVectorEncoder(str(folder), device="cpu", local_files_only=True)


@pytest.mark.parametrize(
    ("write", "settings"),
    [
        (pylate, {}),
        (pylate, {"attend_to_expansion_tokens": True, "skiplist_words": None, "prompts": {"query": "a "}}),
        (pylate, {"do_query_expansion": False}),
        (pylate, {"query_prefix": "c ", "document_prefix": "unknown "}),
        (stanford, {}),
        (stanford, {"attend_to_mask_tokens": True, "mask_punctuation": False}),
        (stanford, {"query_token_id": "h", "doc_token_id": "g"}),
    ],
)
def test_vectors_are_those_of_the_library(write, settings, tmp_path):
    folder = write(tmp_path / "model", **settings)
    texts = [*TEXTS, "a . b , c"]
    expected, encoder = library(folder), MultiVectorEncoder.from_folder(folder)
    assert_close(encoder.encode_multi(texts, task="query"), expected.encode_query(texts, convert_to_numpy=True))
    assert_close(encoder.encode_multi(texts), expected.encode_document(texts, convert_to_numpy=True))


@pytest.mark.parametrize("write", [pylate, stanford])
def test_a_saved_encoder_has_the_same_bits(write, tmp_path):
    encoder = MultiVectorEncoder.from_folder(write(tmp_path / "model"), "int8")
    encoder.save(tmp_path / "saved")
    again = MultiVectorEncoder.from_folder(tmp_path / "saved")
    for vectors, others in zip(again.encode_multi(TEXTS), encoder.encode_multi(TEXTS), strict=True):
        assert_same_bits(vectors, others)


def test_bad_folders_are_refused_by_name(tmp_path):
    model = pylate(tmp_path / "pylate")
    path = model / "config_sentence_transformers.json"
    before = path.read_text()
    for entries, message in (
        ({"query_length": 1}, "query_length is 1; expected an integer of at least 2"),
        ({"query_prefix": 3}, "query_prefix is 3; expected a string or null"),
        ({"skiplist_words": "a"}, "skiplist_words is 'a'; expected a list of str or null"),
        ({"similarity_fn_name": "other"}, "similarity_fn_name is 'other'"),
        ({"other": 1}, "setting 'other' is unknown"),
        ({"query_length": 99}, "query_expansion.length is 99"),
    ):
        late_models.change(path, **entries)
        with pytest.raises(ValueError, match=message):
            MultiVectorEncoder.from_folder(model)
        path.write_text(before)
    model = stanford(tmp_path / "stanford")
    for entries, message in (
        ({"query_maxlen": "a"}, "query_maxlen is 'a'; expected an integer of at least 2"),
        ({"similarity": "l2"}, "similarity is 'l2'; expected 'cosine'"),
    ):
        shutil.copy(model / "artifact.metadata", tmp_path)
        late_models.change(model / "artifact.metadata", **entries)
        with pytest.raises(ValueError, match=f"artifact.metadata: {message}"):
            MultiVectorEncoder.from_folder(model)
        shutil.copy(tmp_path / "artifact.metadata", model)
    tensors = load_file(model / "model.safetensors")
    del tensors["linear.weight"]
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(ValueError, match=r"tensor linear\.weight is missing"):
        MultiVectorEncoder.from_folder(model)
