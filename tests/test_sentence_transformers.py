"""Folders of sentence-transformers: the embeddings of that library, for every setting that changes them."""

import json
import os
import shutil
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, BertWordPieceTokenizer, normalizers

from mp_core.models import BertEncoder
from mp_core.models.sentence_transformers import in_format
from mp_core.models.tokenizer import _Shortener

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh:,.![]", "##s", "##a", "##B", "##b", "MASK"]
WORDS += ["query", "passage", "hello", "Hello", "World", "world", "\u4e2d", "\u6587", "cafe", "caf\u00e9", "Caf\u00e9"]
TEXTS = [
    "Hello world",
    "hello Worlds, a b c!",
    "",
    "Caf\u00e9 \u4e2d\u6587caf\u00e9 [MASK] abs",
    "a b c d e f g h " * 5,
    "I\u0130 zzz",
]
POOLINGS = ["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
PROMPTS = {"prompts": {"query": "query: hello ", "passage": "passage: ", "empty": None}}


@pytest.fixture(scope="module")
def library():
    """Return the class SentenceTransformer, without the network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("sentence_transformers").SentenceTransformer


@pytest.fixture(scope="module")
def saved(library, tmp_path_factory):
    """Save a random model of 2 layers as the library does today, with mean pooling and Normalize."""
    import torch
    from sentence_transformers.sentence_transformer import modules
    from transformers import BertConfig, BertModel, BertTokenizer

    base, folder = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("saved")
    tokenizer = BertWordPieceTokenizer({word: place for place, word in enumerate(WORDS)}, lowercase=False)
    BertTokenizer(tokenizer_object=tokenizer._tokenizer, do_lower_case=False, model_max_length=24).save_pretrained(base)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
        initializer_range=0.5,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        BertModel(config).save_pretrained(base)
        parts = [modules.Transformer(str(base)), modules.Pooling(16, "mean"), modules.Normalize()]
        library(modules=parts, device="cpu").save(str(folder))
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def edit(path, *removed, **entries):
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({key: value for key, value in content.items() if key not in removed} | entries))


def agree(library, folder, *calls):
    """Check that the library and mp_core embed the texts alike, called with each of `calls`; return the last ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, encoder = library(str(folder), device="cpu"), BertEncoder.from_folder(folder)
        for arguments in calls or ({},):
            expected = model.encode(TEXTS, **arguments)
            received = encoder.encode(TEXTS, **renamed(**arguments))
            assert received.shape == expected.shape, arguments
            lengths = np.linalg.norm(expected, axis=1)
            np.testing.assert_allclose(np.linalg.norm(received, axis=1), lengths, rtol=1e-5, err_msg=str(arguments))
            assert ((received * expected).sum(axis=1, dtype=np.float64) / lengths**2).min() > 0.999999, arguments
    return received


def renamed(normalize_embeddings=None, **arguments):
    return {"normalize": normalize_embeddings} | arguments


def test_a_folder_as_it_is_saved_today(library, folder):
    assert json.loads((folder / "1_Pooling" / "config.json").read_text())["pooling_mode"] == "mean"
    embeddings = agree(library, folder)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("modes", [*POOLINGS, ["mean"], ["lasttoken", "mean"], POOLINGS])
def test_every_pooling_and_concatenations_of_them(library, folder, modes):
    edit(folder / "1_Pooling" / "config.json", pooling_mode=modes)
    agree(library, folder)


def old_layout(folder, *switches):
    """Turn a folder into one as sentence-transformers 0.4 to 1.0 saved it."""
    network = folder / "0_Transformer"
    network.mkdir()
    for path in list(folder.iterdir()):
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(network / path.name)
    (network / "sentence_bert_config.json").write_text('{"max_seq_length": 12, "do_lower_case": false}')
    (folder / "config_sentence_transformers.json").unlink()
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{path[2:]}"}
        for place, path in enumerate(("0_Transformer", "1_Pooling", "2_Normalize"))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "2_Normalize" / "config.json").unlink()
    pooling = {f"pooling_mode_{mode}": mode in switches for mode in ("cls_token", "mean_tokens", "max_tokens")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 16} | pooling))


@pytest.mark.parametrize("switches", [("mean_tokens",), ("cls_token",), ("max_tokens", "mean_tokens"), ()])
def test_the_layout_of_old_folders(library, folder, switches):
    old_layout(folder, *switches)
    agree(library, folder)
    assert BertEncoder.from_folder(folder).max_length == 12


@pytest.mark.parametrize("switch", ["mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"])
def test_the_other_switches_of_old_folders(library, folder, switch):
    old_layout(folder)
    edit(folder / "1_Pooling" / "config.json", **{f"pooling_mode_{switch}": True})
    agree(library, folder)


def test_without_normalize_in_modules_json_nothing_is_normalized(library, folder):
    path = folder / "modules.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:2]))
    embeddings = agree(library, folder)
    assert (np.linalg.norm(embeddings, axis=1) > 1.5).all()
    agree(library, folder, {"normalize_embeddings": True})


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("default", [None, "query", "document"])
def test_prompts(library, folder, include_prompt, default):
    edit(folder / "config_sentence_transformers.json", default_prompt_name=default, **PROMPTS)
    edit(folder / "1_Pooling" / "config.json", include_prompt=include_prompt, pooling_mode=POOLINGS)
    prompts = [{"prompt": prompt} for prompt in ("", "a Hello.", "a b c d e f g h " * 4)]
    names = [{"prompt_name": name} for name in ("passage", "query", "document", "empty")]
    agree(library, folder, {}, *prompts, *names)


def test_the_caller_says_whether_tokens_of_prompts_are_pooled(library, folder):
    encoder, model = BertEncoder.from_folder(folder), library(str(folder), device="cpu")
    for include in (False, True):
        encoder.set_pooling_include_prompt(include)
        model.set_pooling_include_prompt(include)
        found, expected = (one.encode(["hello a b", "c"], prompt="query: ") for one in (encoder, model))
        np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(TypeError, match="`include_prompt`"):
        encoder.set_pooling_include_prompt(1)


def test_truncated_embeddings_are_as_long_as_normalize_left_them(library, folder):
    edit(folder / "config_sentence_transformers.json", truncate_dim=7)
    calls = [{"truncate_dim": dim} for dim in (None, 5, 16, 100)]
    agree(library, folder, *calls, *({"normalize_embeddings": True} | call for call in calls))
    encoder = BertEncoder.from_folder(folder)
    assert encoder.dim == encoder.encode(TEXTS).shape[1] == 7


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "swish", "tanh"])
def test_activations(library, folder, activation):
    edit(folder / "config.json", hidden_act=activation)
    agree(library, folder)


@pytest.mark.parametrize(
    ("sentence_bert", "tokenizer"),
    [
        ({"do_lower_case": True}, {}),
        ({"do_lower_case": True}, {"do_lower_case": True}),
        ({}, {"do_lower_case": True}),
        ({}, {"do_lower_case": True, "strip_accents": False}),
        ({}, {"strip_accents": True}),
        ({}, {"tokenize_chinese_chars": False}),
        ({"max_seq_length": 9}, {}),
        ({"max_seq_length": 30}, {"model_max_length": 7}),
        ({}, {"model_max_length": 7}),
        ({"max_seq_length": None}, {"model_max_length": int(1e30)}),
    ],
)
def test_settings_of_the_tokenizer(library, folder, sentence_bert, tokenizer):
    edit(folder / "sentence_bert_config.json", **sentence_bert)
    edit(folder / "tokenizer_config.json", **tokenizer)
    agree(library, folder)


def test_a_tokenizer_of_no_stated_case_lowers_it(library, folder):
    edit(folder / "tokenizer_config.json", "do_lower_case")
    agree(library, folder)


@pytest.mark.parametrize(
    ("file", "entries", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "attention"}, "pooling_mode is 'attention'; expected 'cls' or"),
        ("1_Pooling/config.json", {"pooling_mode": []}, r"pooling_mode is \[\]; expected 'cls' or"),
        ("1_Pooling/config.json", {"pooling_mode": [["cls"]]}, "pooling_mode is .* or a list of them"),
        ("1_Pooling/config.json", {"embedding_dimension": 8}, "embedding_dimension is 8; expected hidden_size, 16"),
        ("1_Pooling/config.json", {"include_prompt": 0}, "include_prompt is 0; expected true or false"),
        ("1_Pooling/config.json", {"token_weights": True}, "setting 'token_weights' is unknown"),
        ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "None or 'sentence_embedding'"),
        ("sentence_bert_config.json", {"do_lower_case": "no"}, "do_lower_case is 'no'; expected true or false"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "expected 'feature-extraction'"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {}}}, "processing_kwargs is .*; expected None or"),
        ("sentence_bert_config.json", {"model_args": {"torch_dtype": "float16"}}, "model_args is .*; expected an obj"),
        ("sentence_bert_config.json", {"query_length": 8}, "query_length is 8; expected None"),
        ("sentence_bert_config.json", {"strip": True}, "setting 'strip' is unknown"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "expected 'SentenceTransformer'"),
        ("config_sentence_transformers.json", {"prompts": ["q"]}, r"prompts is \['q'\]; expected an object of strings"),
        ("config_sentence_transformers.json", {"prompts": {"q": 1}}, "expected an object of strings"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "q"},
            "default_prompt_name is 'q'; expected 'que",
        ),
        ("config_sentence_transformers.json", {"default_prompt_name": 1}, "expected a string or null"),
        ("config_sentence_transformers.json", {"truncate_dim": 0}, "truncate_dim is 0; expected a positive integer"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "maxsim"}, "expected None or 'cosine' or 'dot'"),
        ("config_sentence_transformers.json", {"truncate_dim": True}, "truncate_dim is True; expected a positive"),
        ("config_sentence_transformers.json", {"whiten": True}, "setting 'whiten' is unknown"),
        ("config.json", {"hidden_act": "quick_gelu"}, "hidden_act is 'quick_gelu'; expected 'gelu' or"),
        ("config.json", {"position_embedding_type": "relative_key"}, "expected 'absolute'"),
        ("config.json", {"pruned_heads": {"0": [1]}}, "pruned_heads is {'0': .*; expected {} or None"),
        ("config.json", {"add_cross_attention": True}, "add_cross_attention is True; expected False"),
        ("tokenizer_config.json", {"padding_side": "left"}, "padding_side is 'left'; expected 'right'"),
        ("tokenizer_config.json", {"do_lower_case": None}, "do_lower_case is None; expected true or false"),
        ("tokenizer_config.json", {"strip_accents": 1}, "strip_accents is 1; expected true, false or null"),
    ],
)
def test_what_would_change_embeddings_and_is_not_known_is_refused(folder, file, entries, message):
    edit(folder / file, **entries)
    with pytest.raises(ValueError, match=f"{file}: .*{message}"):
        BertEncoder.from_folder(folder)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (["Transformer"], "lists 1 modules; expected 'Transformer', 'Pooling' and maybe others"),
        (["Pooling", "Transformer"], "module 0 is 'sentence_transformers.models.Pooling'; expected 'Transformer' of"),
        (["Transformer", "Pooling", "LSTM"], "module 2 is 'sentence_transformers.models.LSTM'; expected 'Dense' or"),
        (["Transformer", "Pooling", "Normalize", "CNN"], "module 3 is .*CNN'; expected 'Dense' or 'LayerNorm' or"),
        (["WordEmbeddings", "Pooling"], "module 0 is 'sentence_transformers.models.WordEmbeddings'; expected"),
    ],
)
def test_other_modules_are_refused_by_name(folder, modules, message):
    listed = [{"type": f"sentence_transformers.models.{name}", "path": ""} for name in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(ValueError, match=f"modules.json.* {message}"):
        BertEncoder.from_folder(folder)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ({"type": "custom_st.Transformer"}, "module 0 is 'custom_st.Transformer'; expected 'Transformer' of sentence"),
        ({"type": None}, "type is None; expected a string"),
        ({"path": "../other"}, "path is '../other'; expected a path in the folder"),
        ({"path": "/etc"}, "path is '/etc'; expected a path in the folder"),
        ({"kwargs": ["task"]}, r"kwargs is \['task'\]; expected None or \[\]"),
    ],
)
def test_a_module_from_elsewhere_is_refused(folder, module, message):
    path = folder / "modules.json"
    first, *rest = json.loads(path.read_text())
    path.write_text(json.dumps([first | module, *rest]))
    with pytest.raises(ValueError, match=message):
        BertEncoder.from_folder(folder)


# ---- the names of the library


@pytest.fixture
def both(library, folder):
    """Return the library's model of a folder with prompts, and the encoder."""
    edit(folder / "config_sentence_transformers.json", **PROMPTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return library(str(folder), device="cpu"), BertEncoder.from_folder(folder)


def close(received, expected):
    """Check the bound of float32 sums over a network of this size; embeddings have length 1 here."""
    np.testing.assert_allclose(received, expected, atol=2e-6)


@pytest.mark.parametrize(
    "arguments",
    [
        {"normalize_embeddings": False, "show_progress_bar": None, "device": "cpu", "convert_to_numpy": True},
        {"normalize_embeddings": True, "truncate_dim": 5, "precision": "float32", "batch_size": 2},
        {"prompt_name": "query", "output_value": "sentence_embedding"},
        {"prompt": "passage: ", "precision": None, "show_progress_bar": False},
    ],
)
@pytest.mark.parametrize("name", ["encode", "encode_query", "encode_document"])
@pytest.mark.parametrize(
    "texts", [TEXTS, tuple(TEXTS), np.array(TEXTS), TEXTS[0]], ids=["list", "tuple", "array", "str"]
)
def test_encode_takes_the_arguments_of_the_library(both, name, texts, arguments):
    model, encoder = both
    expected = getattr(model, name)(texts, **arguments)
    received = getattr(encoder, name)(texts, **arguments)
    assert type(received) is np.ndarray and received.dtype == np.float32 and received.shape == expected.shape
    close(received, expected)


def test_queries_and_documents_have_the_prompts_of_their_task(both):
    _, encoder = both
    np.testing.assert_array_equal(encoder.encode_query(TEXTS), encoder.encode(TEXTS, prompt_name="query"))
    np.testing.assert_array_equal(encoder.encode_document(TEXTS), encoder.encode(TEXTS))
    del encoder.prompts["document"]
    np.testing.assert_array_equal(encoder.encode_document(TEXTS), encoder.encode(TEXTS, prompt_name="passage"))


def test_texts_are_called_inputs_or_sentences(both):
    model, encoder = both
    for name in ("encode", "encode_query", "encode_document"):
        for word in ("inputs", "sentences"):
            close(getattr(encoder, name)(**{word: TEXTS}), getattr(model, name)(inputs=TEXTS))


def test_embeddings_are_truncated_from_the_opening_on(library, folder):
    encoder = BertEncoder.from_folder(folder, truncate_dim=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = library(str(folder), device="cpu", truncate_dim=5)
    close(encoder.encode(TEXTS), model.encode(TEXTS))
    assert (encoder.truncate_dim, encoder.dim) == (5, model.get_embedding_dimension())
    assert encoder.with_policy("bfloat16").dim == 5
    encoder.truncate_dim = model.truncate_dim = None
    close(encoder.encode(TEXTS), model.encode(TEXTS))
    with pytest.raises(ValueError, match="`truncate_dim` must be a positive integer"):
        BertEncoder.from_folder(folder, truncate_dim=0)


def test_the_tokenizer_is_that_of_the_library(both):
    model, encoder = both
    received, expected = encoder.tokenizer(TEXTS, truncation=True), model.tokenizer(TEXTS, truncation=True)
    assert received["input_ids"] == expected["input_ids"]
    assert [row.tolist() for row in encoder.tokenize(TEXTS).rows] == expected["input_ids"]
    assert encoder.tokenizer is encoder.tokenizer
    with pytest.raises(AttributeError):
        encoder.tokenizer = model.tokenizer


def test_tensors_are_those_of_the_library_and_share_memory(both):
    import torch

    model, encoder = both
    for texts in (TEXTS, TEXTS[0]):
        for arguments in ({"convert_to_tensor": True}, {"convert_to_numpy": False}):
            expected, received = model.encode(texts, **arguments), encoder.encode(texts, **arguments)
            assert type(received) is type(expected) and len(received) == len(expected)
            for row, right in zip(received, expected, strict=True):
                assert row.dtype == torch.float32 and row.shape == right.shape
                close(row, right)
    assert encoder.encode([], convert_to_tensor=True).shape == (0, 16)
    array = np.ones((2, 3), np.float32)
    assert in_format(array, {"convert_to_tensor": True}, False).data_ptr() == array.ctypes.data


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"device": "cuda"}, ValueError, "`device` must be None or 'cpu'; received 'cuda'"),
        ({"device": ["cpu", "cpu"]}, ValueError, "`device` must be"),
        ({"output_value": "token_embeddings"}, ValueError, "`output_value` must be 'sentence_embedding'; received"),
        ({"output_value": None}, ValueError, "`output_value` must be 'sentence_embedding'; received None"),
        ({"precision": "int4"}, ValueError, "`precision` must be 'float32' or .* or None; received 'int4'"),
        ({"sentences": "a"}, TypeError, "`texts` and `sentences` are the same argument; received both"),
        ({"pool": {}}, ValueError, "`pool` must be None"),
        ({"chunk_size": 8}, ValueError, "`chunk_size` must be None"),
        ({"normalize_embeddings": 1}, TypeError, "`normalize_embeddings` must be True or False"),
        ({"convert_to_tensor": "yes"}, TypeError, "`convert_to_tensor` must be True or False"),
        ({"normalize": False, "normalize_embeddings": True}, ValueError, "`normalize_embeddings` exclude each other"),
        ({"task": "query"}, TypeError, "unexpected keyword argument 'task'"),
    ],
)
def test_arguments_that_are_not_served_are_refused_by_name(folder, arguments, error, message):
    encoder = BertEncoder.from_folder(folder)
    with pytest.raises(error, match=message):
        encoder.encode(TEXTS, **arguments)


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities(library, folder, name):
    import torch

    edit(folder / "config_sentence_transformers.json", similarity_fn_name=name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, encoder = library(str(folder), device="cpu"), BertEncoder.from_folder(folder)
    assert encoder.similarity_fn_name == model.similarity_fn_name == name
    rng = np.random.default_rng(28)
    a, b, c = (rng.standard_normal((rows, 16), np.float32) for rows in (4, 7, 4))
    b[0] = 0
    for one, other in ((a, b), (a[0], b), (list(a), list(b)), (torch.tensor(a), torch.tensor(b))):
        received = encoder.similarity(one, other)
        assert isinstance(received, torch.Tensor) == isinstance(one, torch.Tensor)
        np.testing.assert_allclose(received, model.similarity(one, other), rtol=1e-5, atol=1e-5)
    received = encoder.similarity_pairwise(a, c)
    np.testing.assert_allclose(received, model.similarity_pairwise(a, c), rtol=1e-5, atol=1e-5)
    assert encoder.similarity(a[:0], b).shape == (0, 7)


def test_a_similarity_that_is_set_is_used(folder):
    from sentence_transformers.util import SimilarityFunction

    encoder = BertEncoder.from_folder(folder)
    assert encoder.similarity_fn_name == "cosine"
    for name in ("dot", SimilarityFunction.DOT_PRODUCT):
        encoder.similarity_fn_name = name
        assert encoder.similarity([[1.0, 2.0]], [[3.0, 4.0]]).tolist() == [[11.0]]
    for bad in ("maxsim", 3, []):
        with pytest.raises(ValueError, match="`similarity_fn_name` must be one of 'cosine', 'dot', 'euclidean', 'man"):
            encoder.similarity_fn_name = bad
    with pytest.raises(ValueError, match=r"`embeddings2` must have rows of 2 numbers; received shape \(1, 3\)"):
        encoder.similarity([[1, 2]], [[1, 2, 3]])
    with pytest.raises(ValueError, match="`embeddings2` must have the shape of `embeddings1`"):
        encoder.similarity_pairwise([[1, 2]], [[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="`embeddings1` must have the shape"):
        encoder.similarity(np.zeros((1, 2, 3)), [[1, 2, 3]])


def test_the_attributes_of_the_library(both):
    model, encoder = both
    for name in ("similarity_fn_name", "max_seq_length", "default_prompt_name"):
        assert getattr(encoder, name) == getattr(model, name), name
    assert encoder.get_embedding_dimension() == model.get_embedding_dimension() == 16
    assert encoder.get_sentence_embedding_dimension() == 16
    assert str(model.device) == encoder.device
    model.max_seq_length = encoder.max_seq_length = 7
    assert encoder.max_length == 7
    close(encoder.encode(TEXTS), model.encode(TEXTS))
    for bad in (1, 33, 0):
        with pytest.raises(ValueError, match="`max_seq_length` must be"):
            encoder.max_seq_length = bad


def test_the_evaluators_of_the_library_give_the_same_scores(both):
    from sentence_transformers.sentence_transformer import evaluation

    first, second = TEXTS[:5], TEXTS[1:]
    corpus, queries = dict(zip("abcdef", TEXTS, strict=True)), {"q": "hello a b", "r": "caf\u00e9 world"}
    evaluators = [
        evaluation.EmbeddingSimilarityEvaluator(first, second, [0.1, 0.9, 0.4, 0.3, 0.7]),
        evaluation.BinaryClassificationEvaluator(first, second, [0, 1, 0, 1, 1]),
        evaluation.TripletEvaluator(first, second, TEXTS[:1] * 5),
        evaluation.InformationRetrievalEvaluator(queries, corpus, {"q": {"a"}, "r": {"d", "b"}}),
        evaluation.ParaphraseMiningEvaluator(corpus, [("a", "b"), ("c", "d")]),
        evaluation.RerankingEvaluator([{"query": "hello", "positive": first[:1], "negative": first[1:]}]),
    ]
    for evaluator in evaluators:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected, received = evaluator(both[0]), evaluator(both[1])
        assert received.keys() == expected.keys()
        for name, value in expected.items():
            assert received[name] == pytest.approx(value, abs=1e-4), (type(evaluator), name)


def test_the_utilities_of_the_library_take_the_encoder_and_its_embeddings(both):
    from sentence_transformers import util

    mined = [util.paraphrase_mining(model, TEXTS) for model in both]
    assert [pair[1:] for pair in mined[0]] == [pair[1:] for pair in mined[1]]
    np.testing.assert_allclose([pair[0] for pair in mined[1]], [pair[0] for pair in mined[0]], atol=1e-5)
    found = [util.semantic_search(model.encode_query("hello"), model.encode_document(TEXTS))[0] for model in both]
    assert [hit["corpus_id"] for hit in found[0]] == [hit["corpus_id"] for hit in found[1]]


# ---- long texts

PIECES = [
    "a",
    "b",
    "Hello",
    "中",
    "[MASK]",
    "[",
    "MASK]",
    "]",
    ",",
    "...",
    " ",
    "\n\t",
    "\r",
    "\u00a0",
    "\u3000",
    "\x00",
]
PIECES += [
    "\u0301",
    "e\u0301",
    "\u200b",
    "\ufffd",
    "\x1c",
    "\u00b0",
    "\U0001f600",
    "\u3002",
    "\uac00",
    "\u0e01\u0e34",
    "foo bar",
]
PIECES += ["a" * 90, "0" * 250, "\u00e4" * 120, "Z" * 99 + "\u00df", " " * 300, "\u0301" * 40, "]" * 20]


def tokenizer_of(added, **settings):
    wordpiece = BertWordPieceTokenizer({word: place for place, word in enumerate(WORDS)}, **settings)._tokenizer
    wordpiece.add_tokens(added)
    wordpiece.enable_truncation(6)
    return wordpiece


TOKENIZERS = [
    tokenizer_of([]),
    tokenizer_of([], lowercase=False),
    tokenizer_of([], handle_chinese_chars=False, strip_accents=False),
    tokenizer_of([AddedToken("foo bar", normalized=True), AddedToken("[x]y", lstrip=True, rstrip=True)]),
    tokenizer_of([AddedToken("lo", normalized=True), AddedToken(",,[]", single_word=True)]),
    tokenizer_of([AddedToken("Z" * 150 + "]", normalized=False)]),
]
in_turn = tokenizer_of([])
in_turn.normalizer = normalizers.Sequence([normalizers.Lowercase(), in_turn.normalizer])
TOKENIZERS.append(in_turn)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), min_size=5, max_size=60), st.sampled_from(TOKENIZERS))
def test_a_shortened_text_has_the_same_first_tokens(pieces, tokenizer):
    text = "".join(pieces)
    shorter = _Shortener.of(tokenizer, 6)(text)
    expected, received = tokenizer.encode(text), tokenizer.encode(shorter)
    assert received.ids == expected.ids
    assert bool(received.overflowing) == bool(expected.overflowing)


@pytest.mark.parametrize(
    ("added", "text"),
    [
        ("foo bar", "foo  bar " * 100),
        ("lo", ("a" * 150 + "lo" + "a" * 150 + " ") * 100),
        ("  ", "\u00ad" + "  a" * 100),
    ],
)
def test_added_tokens_are_found_where_they_are_and_nowhere_else(added, text):
    tokenizer = tokenizer_of([AddedToken(added)])
    assert tokenizer.encode(_Shortener.of(tokenizer, 6)(text)).ids == tokenizer.encode(text).ids


@pytest.mark.parametrize("piece", ["a ", "a", "Hello, ", "中", " ", ".", "\n", "a" * 150 + "\t", "[MASK]", "[", "word"])
def test_of_a_long_text_the_tokenizer_sees_little(piece):
    tokenizer = tokenizer_of([])
    shorter = _Shortener.of(tokenizer, 6)(piece * (10**6 // len(piece)))
    assert len(shorter) < 4000


def test_no_other_tokenizer_gets_shorter_texts():
    from tokenizers import pre_tokenizers

    tokenizer = tokenizer_of([])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert _Shortener.of(tokenizer, 6) is None


def test_texts_that_are_cut_are_reported(folder):
    encoder = BertEncoder.from_folder(folder)
    assert encoder.max_length == 24
    cut = []
    texts = ["a " * 22, "a " * 23, "b", "a " * 100_000]
    embeddings = encoder.encode(texts, on_cut=cut.append)
    assert cut == [[1, 3]]
    np.testing.assert_array_equal(embeddings[[1, 3]], embeddings[[0, 0]])
    encoder.encode(["a", "b"], on_cut=pytest.fail)
