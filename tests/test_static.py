"""Static embeddings: the vectors of sentence-transformers for its own folders and those of model2vec."""

import json

import numpy as np
import pytest
import random_models
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from mp_core.models import BertEncoder

TEXTS = ["a b c", "h g f e d c b a a b " * 30, "d"]
WORDS = random_models.WORDS


@pytest.fixture(scope="module")
def library():
    return random_models.library("sentence_transformers")


def tokenizer():
    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(word, WORDS.index(word)) for word in ("<s>", "</s>")]
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    return made


def saved(library, folder, *others):
    """Save static embeddings, and return those of the texts."""
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    table = np.random.default_rng(0).standard_normal((len(WORDS), 16)).astype(np.float32)
    model = library.SentenceTransformer(modules=[StaticEmbedding(tokenizer(), table), *(make() for make in others)])
    model.save(str(folder))
    return model.encode(TEXTS)


def normalize():
    from sentence_transformers.sentence_transformer.modules import Normalize

    return Normalize()


@pytest.mark.parametrize("others", [(), (normalize,)], ids=["alone", "normalized"])
def test_embeddings_are_those_of_sentence_transformers(library, tmp_path, others):
    expected = saved(library, tmp_path / "model", *others)
    encoder = BertEncoder.from_folder(tmp_path / "model")
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, rtol=1e-5, atol=1e-6)
    assert encoder._plans._kept
    encoder.save(tmp_path / "again")
    np.testing.assert_allclose(library.SentenceTransformer(str(tmp_path / "again")).encode(TEXTS), expected, atol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "int8", "int4/16"])
def test_a_smaller_table_is_saved_and_opened(library, tmp_path, policy):
    expected = saved(library, tmp_path / "model", normalize)
    encoder = BertEncoder.from_folder(tmp_path / "model", policy)
    encoder.save(tmp_path / "again")
    received = BertEncoder.from_folder(tmp_path / "again").encode(TEXTS)
    np.testing.assert_array_equal(received, encoder.encode(TEXTS))
    assert (received * expected).sum(axis=1).min() > 0.98


@pytest.mark.parametrize("is_normalized", [False, True])
def test_a_folder_of_model2vec_is_one_too(library, tmp_path, is_normalized):
    expected = saved(library, tmp_path / "model", *([normalize] if is_normalized else []))
    table = load_file(tmp_path / "model" / "model.safetensors")["embedding.weight"]
    folder = tmp_path / "model2vec"
    folder.mkdir()
    save_file({"embeddings": table}, folder / "model.safetensors")
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": is_normalized}))
    encoder = BertEncoder.from_folder(folder)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, rtol=1e-5, atol=1e-6)
    encoder.save(tmp_path / "again")
    np.testing.assert_array_equal(BertEncoder.from_folder(tmp_path / "again").encode(TEXTS), encoder.encode(TEXTS))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"embeddings": (12, 4), "weights": (11,)}, "tensor weights is float32 of shape .11,.; expected 12 floating"),
        (
            {"embeddings": (12, 4), "mapping": (12,)},
            "tensor mapping is float32 of shape .12,.; expected a row below 12",
        ),
        ({"embeddings": (12, 4), "other": (12,)}, "has embeddings .12, 4., other .12,.; expected"),
        ({"embeddings": (12,)}, "has embeddings .12,.; expected"),
        ({"table": (12, 4)}, "has table .12, 4.; expected 'embedding.weight', or 'embeddings' and maybe"),
        ({"embeddings": (5, 4)}, "has a token 11; expected tokens below vocab_size, 5"),
    ],
)
def test_other_tables_are_refused_by_name(tmp_path, tensors, message):
    save_file({name: np.ones(shape, np.float32) for name, shape in tensors.items()}, tmp_path / "model.safetensors")
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "model2vec"}))
    with pytest.raises(ValueError, match=message):
        BertEncoder.from_folder(tmp_path)


@pytest.mark.parametrize("names", [("mapping",), ("weights",), ("mapping", "weights")], ids="+".join)
def test_vectors_that_tokens_share_are_folded_as_the_library_folds_them(library, tmp_path, names):
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    folder = tmp_path / "model"
    folder.mkdir()
    rng, count = np.random.default_rng(1), len(WORDS)
    rows = 5 if "mapping" in names else count
    tensors = {"embeddings": rng.standard_normal((rows, 16)).astype(np.float32)}
    own = {"mapping": rng.integers(0, rows, count), "weights": rng.uniform(0, 2, count).astype(np.float32)}
    save_file(tensors | {name: own[name] for name in names}, folder / "model.safetensors")
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": False}))
    expected = library.SentenceTransformer(modules=[StaticEmbedding.load(str(folder))]).encode(TEXTS)
    encoder = BertEncoder.from_folder(folder)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, rtol=1e-5, atol=1e-6)
    encoder.save(tmp_path / "again")
    np.testing.assert_array_equal(BertEncoder.from_folder(tmp_path / "again").encode(TEXTS), encoder.encode(TEXTS))


@pytest.mark.parametrize("row", [-1, 5])
def test_rows_that_are_not_there_are_refused(tmp_path, row):
    tensors = {"embeddings": np.ones((5, 4), np.float32), "mapping": np.full(len(WORDS), row)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "model2vec"}))
    with pytest.raises(ValueError, match=rf"mapping is int64 of shape \(12,\), {row} to {row}; expected a row below 5"):
        BertEncoder.from_folder(tmp_path)


@pytest.mark.parametrize(("dtype", "width", "count"), [(np.int64, 1 << 20, 1 << 12), (np.int8, 1 << 10, 1 << 20)])
def test_a_table_that_would_fill_the_memory_is_refused(tmp_path, dtype, width, count):
    tensors = {"embeddings": np.ones((1, width), np.float32), "mapping": np.zeros(count, dtype)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "model2vec"}))
    with pytest.raises(
        ValueError, match=rf"tensor mapping makes {count} rows of {width} numbers of \d+ bytes; expected"
    ):
        BertEncoder.from_folder(tmp_path)
