"""Reranker: the scores of transformers and sentence-transformers for small random networks, and its promises."""

import json
import warnings

import numpy as np
import pytest
import random_models
from no_texts import NO_TEXTS, Frame
from safetensors.numpy import load_file, save_file
from servers import scorer
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import mp_core as mp
from mp_core.dtype_policies import DTypePolicyMap
from mp_core.models import Reranker
from mp_core.models.architectures import ARCHITECTURES
from mp_core.plans import eager

WORDS = random_models.WORDS
PAIRS = [("a b", "c d e"), ("", "a"), ("h", ""), ("a b c d e f g h " * 3, "b"), ("a " * 50, "b c " * 40), ("a b", "h")]
# Rounding errors of float32 sums of at most 48 products, in two blocks and a head.
FLOAT32 = 1e-5


def written(folder, name="bert", labels=1, **settings):
    """Save a random classifier of the library with a tokenizer that tells the texts of a pair apart."""
    network = random_models.made(name, "ForSequenceClassification", num_labels=labels, **settings)
    typed = getattr(network.config, "type_vocab_size", 1) > 1 and name == "bert"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(word, WORDS.index(word)) for word in ("<s>", "</s>")]
    pair = "<s> $A </s> $B:1 </s>:1" if typed else "<s> $A </s> $B </s>"
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", pair, ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"unk_token": "<unk>", "pad_token": "<pad>", "cls_token": "<s>", "sep_token": "</s>"}
    config = {"tokenizer_class": "TokenizersBackend", "model_max_length": 30} | special
    config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return network


def edit(path, **entries):
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def logits(network, folder, pairs, limit=30):
    """Return what the library makes of each pair alone."""
    import torch

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(limit)
    scores = []
    for pair in pairs:
        encoding = tokenizer.encode(*pair)
        given = {"input_ids": torch.tensor([encoding.ids])}
        if network.config.model_type == "bert":
            given["token_type_ids"] = torch.tensor([encoding.type_ids])
        with torch.no_grad():
            scores.append(network(**given).logits[0].numpy())
    return np.array(scores)


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("name", random_models.SCORED)
def test_scores_are_those_of_transformers(tmp_path, name, labels):
    network = written(tmp_path, name, labels)
    expected = logits(network, tmp_path, PAIRS)
    received = Reranker.from_folder(tmp_path).predict(PAIRS, activation="linear")
    assert received.dtype == np.float32
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(received, expected[:, 0] if labels == 1 else expected, rtol=0, atol=FLOAT32)


@pytest.mark.parametrize(
    "options",
    [{"classifier_pooling": "mean"}, {"classifier_bias": True, "norm_bias": True}, {"classifier_activation": "relu"}],
)
def test_every_option_of_the_head_of_modernbert_is_that_of_transformers(tmp_path, options):
    network = written(tmp_path, "modernbert", **options)
    received = Reranker.from_folder(tmp_path).predict(PAIRS, activation="linear")
    np.testing.assert_allclose(received, logits(network, tmp_path, PAIRS)[:, 0], rtol=0, atol=FLOAT32)


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("labels", [1, 3])
def test_a_saved_cross_encoder_scores_as_in_sentence_transformers(tmp_path, labels, typed):
    random_models.library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = pytest.importorskip("sentence_transformers").CrossEncoder
        base, saved = tmp_path / "base", tmp_path / "saved"
        base.mkdir()
        written(base, labels=labels)
        if not typed:
            edit(base / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
        model = library(str(base), device="cpu")
        model.save_pretrained(str(saved))
        expected = model.predict(PAIRS)
        for folder in (base, saved):
            received = Reranker.from_folder(folder).predict(PAIRS)
            np.testing.assert_allclose(received, expected, rtol=0, atol=FLOAT32)
        if labels == 1:
            ranked = Reranker.from_folder(saved).rank("a b", ["c d e", "h", "a"], top_k=2)
            library_ranked = model.rank("a b", ["c d e", "h", "a"], top_k=2)
            assert [index for index, _ in ranked] == [entry["corpus_id"] for entry in library_ranked]


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "int8_from_mixed_bfloat16"])
def test_scores_do_not_depend_on_the_batch(tmp_path, policy):
    written(tmp_path)
    reranker = Reranker.from_folder(tmp_path, policy)
    alone = np.concatenate([reranker.predict([pair]) for pair in PAIRS])
    for batch_size in (1, 2, 100):
        np.testing.assert_array_equal(reranker.predict(PAIRS, batch_size), alone)


# Shares of the spread of the scores: eight bits of every activation, and 127 steps to every row of int8.
@pytest.mark.parametrize(("policy", "most"), [("mixed_bfloat16", 0.05), ("int8_from_mixed_bfloat16", 0.2)])
def test_scores_under_other_policies_stay_near_those_in_float32(tmp_path, policy, most):
    written(tmp_path, labels=3)
    expected = Reranker.from_folder(tmp_path).predict(PAIRS)
    received = Reranker.from_folder(tmp_path, policy).predict(PAIRS)
    assert np.linalg.norm(received - expected) < most * np.linalg.norm(expected)


def test_a_converted_and_a_saved_folder_score_with_the_same_bits(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    written(source)
    quantized = Reranker.from_folder(source, "int8_from_mixed_bfloat16")
    quantized.save(tmp_path / "saved")
    mp.checkpoint.convert(source, tmp_path / "converted", policy="int8_from_mixed_bfloat16")
    expected = quantized.predict(PAIRS)
    np.testing.assert_array_equal(quantized.with_policy("int8_from_mixed_bfloat16").predict(PAIRS), expected)
    np.testing.assert_array_equal(Reranker.from_folder(tmp_path / "saved").predict(PAIRS), expected)
    converted = Reranker.from_folder(tmp_path / "converted")
    np.testing.assert_array_equal(converted.predict(PAIRS), expected)


@pytest.mark.parametrize(
    ("pairs", "error", "message"),
    [
        ("ab", TypeError, "`pairs` must be an iterable of pairs of str; received str"),
        (
            {("a", "b"): 1},
            TypeError,
            "`pairs` must be an iterable of pairs of str; received dict, which yields its keys",
        ),
        ({("a", "b")}, TypeError, "`pairs` must be an iterable of pairs of str; received set, which has no order"),
        (Frame(), TypeError, "`pairs` must be an iterable of pairs of str; received Frame, a table, which yields"),
        ([b"ab"], TypeError, r"`pairs\[0\]` must be a str or an iterable of str; received bytes"),
        ([{"a": "b"}], TypeError, r"`pairs\[0\]` must be a pair of str; received dict"),
        (None, TypeError, "`pairs` must be an iterable of pairs of str; received NoneType"),
        (("a", "b"), TypeError, r"`pairs\[0\]` must be a pair of str; received str"),
        ([("a", "b"), None], TypeError, r"`pairs\[1\]` must be a pair of str; received NoneType"),
        ([()], ValueError, r"`pairs\[0\]` must have two texts; received 0"),
        ([("a", "b", "c")], ValueError, r"`pairs\[0\]` must have two texts; received 3"),
        ([("a", None)], TypeError, r"`pairs\[0\]\[1\]` must be a str; received NoneType"),
        ([("a", "\ud800")], ValueError, r"`pairs\[0\]\[1\]` must be text that UTF-8 can encode"),
    ],
)
def test_what_is_no_pair_is_named(tmp_path, pairs, error, message):
    written(tmp_path)
    with pytest.raises(error, match=message):
        Reranker.from_folder(tmp_path).predict(pairs)


def test_no_pairs_have_no_scores(tmp_path):
    written(tmp_path)
    assert Reranker.from_folder(tmp_path).predict([]).shape == (0,)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"sentence_transformers": {"activation_fn": "custom.Thing"}}, "activation of the scores is 'custom.Thing'"),
        ({"sbert_ce_default_activation_function": 3}, "activation of the scores is 3; expected 'torch"),
        ({"id2label": []}, r"id2label is \[\]; expected an object with a name for every label"),
        ({"id2label": {"0": "a", "1": "b"}}, r"classifier.weight has shape \(1, 32\); expected \(2, 32\)"),
    ],
)
def test_what_a_folder_says_and_is_not_known_is_refused(tmp_path, entries, message):
    written(tmp_path)
    edit(tmp_path / "config.json", **entries)
    with pytest.raises(ValueError, match=message):
        Reranker.from_folder(tmp_path)


@pytest.mark.parametrize("entry", ["sentence_transformers", "sbert_ce_default_activation_function"])
def test_the_activation_of_the_folder_is_applied(tmp_path, entry):
    written(tmp_path)
    name = "torch.nn.modules.activation.Tanh"
    edit(tmp_path / "config.json", **{entry: {"activation_fn": name} if entry == "sentence_transformers" else name})
    reranker = Reranker.from_folder(tmp_path)
    np.testing.assert_allclose(
        reranker.predict(PAIRS), np.tanh(reranker.predict(PAIRS, activation="linear")), atol=1e-6
    )


@pytest.mark.parametrize(
    ("file", "entries", "message"),
    [
        ("config.json", {"id2label": {}}, r"config\.json: id2label is {}; expected an object with a name"),
        ("config.json", {"id2label": None, "num_labels": 0}, r"config\.json: num_labels is 0; expected a positive int"),
        (
            "config.json",
            {"sentence_transformers": [1]},
            r"config\.json: sentence_transformers is \[1\]; expected an obj",
        ),
        ("tokenizer_config.json", {"model_input_names": 3}, "model_input_names is 3; expected a list or null"),
    ],
)
def test_an_entry_that_is_refused_is_named_with_its_file(tmp_path, file, entries, message):
    written(tmp_path)
    edit(tmp_path / file, **entries)
    with pytest.raises(ValueError, match=message):
        Reranker.from_folder(tmp_path)


@pytest.mark.parametrize("entries", [{"id2label": None}, {"id2label": None, "num_labels": 2}])
def test_without_names_of_labels_there_are_as_many_as_the_configuration_says(tmp_path, entries):
    written(tmp_path, labels=2)
    edit(tmp_path / "config.json", **entries)
    assert Reranker.from_folder(tmp_path).predict(PAIRS).shape == (len(PAIRS), 2)


def test_the_pooling_of_modernbert_is_one_of_two(tmp_path):
    written(tmp_path, "modernbert")
    edit(tmp_path / "config.json", classifier_pooling="max")
    with pytest.raises(ValueError, match=r"config\.json: classifier_pooling is 'max'; expected 'cls' or 'mean'"):
        Reranker.from_folder(tmp_path)


def test_more_types_of_tokens_than_the_network_has_are_refused(tmp_path):
    written(tmp_path, type_vocab_size=1)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing("$A", "$A $B:1", [])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"types of tokens in a pair is 2; expected at most 1; type_vocab_size is 1"):
        Reranker.from_folder(tmp_path)


@pytest.mark.parametrize("name", random_models.SCORED)
def test_a_folder_without_a_head_is_refused_by_the_name_of_its_tensor(tmp_path, name):
    network = written(tmp_path, name)
    path, start = tmp_path / "model.safetensors", ARCHITECTURES[network.config.model_type].prefix
    tensors = load_file(path)
    save_file({key: value for key, value in tensors.items() if key.startswith(start)}, path)
    head = {key for key in tensors if not key.startswith(start) and key.endswith("weight")}
    with pytest.raises(ValueError, match=r"is missing; expected shape") as refusal:
        Reranker.from_folder(tmp_path)
    assert any(f"tensor {key} is missing" in str(refusal.value) for key in head)


@pytest.mark.parametrize("policy", ["int8", "int4/8", "int8/weight_only", "float8_e4m3fn", "map"])
@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "distilbert", "modernbert"])
def test_every_form_of_the_head_is_saved_with_the_same_bits(tmp_path, name, policy):
    source = tmp_path / "source"
    source.mkdir()
    written(source, name)
    if policy == "map":
        policy = DTypePolicyMap("float32", {"head/output": "int8_from_float32", "encoder/.*": "bfloat16"})
    reranker = Reranker.from_folder(source).with_policy(policy)
    reranker.save(tmp_path / "saved")
    again = Reranker.from_folder(tmp_path / "saved")
    np.testing.assert_array_equal(again.predict(PAIRS), reranker.predict(PAIRS))
    assert again.weight_bytes == reranker.weight_bytes
    assert again.model.head.output.quantized


def test_a_calibrated_reranker_is_saved_with_the_same_bits(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    written(source)
    exact = Reranker.from_folder(source)
    fitted = mp.calibrate(exact, (PAIRS,), "int8")
    assert fitted.model.head.output.inputs is not None
    assert 0 < np.abs(fitted.predict(PAIRS) - exact.predict(PAIRS)).max() < 0.1
    fitted.save(tmp_path / "saved")
    np.testing.assert_array_equal(Reranker.from_folder(tmp_path / "saved").predict(PAIRS), fitted.predict(PAIRS))


def test_the_tensors_of_the_head_have_their_names_in_the_file(tmp_path):
    written(tmp_path)
    reranker = Reranker.from_folder(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert set(reranker.kernel_names.values()) <= names
    assert reranker.kernel_names["head/output"] == "classifier.weight"
    assert reranker.tensor_names["head/dense"] == "bert.pooler.dense."


def test_pairs_are_any_sequences_and_a_pair_without_a_token_is_named(tmp_path):
    written(tmp_path)
    reranker = Reranker.from_folder(tmp_path)
    for pairs in (map(list, PAIRS), np.array(PAIRS), tuple(PAIRS)):
        np.testing.assert_array_equal(reranker(pairs), reranker.predict(PAIRS))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing("$A", "$A $B:1", [])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"`pairs\[1\]` must have a token; the model's tokenizer gives it none"):
        Reranker.from_folder(tmp_path).predict([("a", "b"), ("", "")])


@pytest.mark.parametrize("kind", NO_TEXTS)
def test_documents_that_yield_something_else_are_refused_by_name(tmp_path, kind):
    written(tmp_path)
    documents, received = NO_TEXTS[kind]
    with pytest.raises(TypeError, match=f"`documents` must be a str or an iterable of str; received {received}"):
        Reranker.from_folder(tmp_path).rank("a", documents)


def test_texts_in_dicts_are_ranked_and_scored_as_themselves(tmp_path):
    written(tmp_path)
    reranker = Reranker.from_folder(tmp_path)
    found = reranker.rank({"text": "a"}, [{"text": "b"}, "c d"])
    assert found == reranker.rank("a", ["b", "c d"])
    np.testing.assert_array_equal(reranker.predict([({"text": "a"}, "b")]), reranker.predict([("a", "b")]))
    with pytest.raises(TypeError, match=r"`query` must be a str .* received a dict with the keys 'query'"):
        reranker.rank({"query": "a"}, ["b"])


def test_ranks_keep_the_order_of_equals_and_name_what_is_no_text(tmp_path):
    written(tmp_path)
    reranker = Reranker.from_folder(tmp_path)
    assert [place for place, _ in reranker.rank("a", ["b"] * 5, top_k=3)] == [0, 1, 2]
    assert reranker.rank("a", []) == []
    with pytest.raises(TypeError, match="`query` must be a str; received NoneType"):
        reranker.rank(None, [])
    with pytest.raises(ValueError, match="`top_k` must be"):
        reranker.rank("a", ["b"], top_k=0)


def test_positions_that_were_changed_are_not_saved_without_their_types(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    written(source)
    reranker = Reranker.from_folder(source)
    table = reranker.model.embeddings.position.table
    table.assign(table.numpy() + 1)
    with pytest.raises(ValueError, match="embeddings/position was changed; files store positions and types separately"):
        reranker.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "mpnet"])
def test_pairs_have_the_same_scores_alone_by_a_plan_and_padded(name, tmp_path):
    written(tmp_path, name, labels=2)
    reranker = Reranker.from_folder(tmp_path)
    with eager():
        padded = reranker.predict(PAIRS)
    for threads in (1, 2):
        with mp.config.num_threads(threads):
            np.testing.assert_array_equal(reranker.predict(PAIRS), padded)
            np.testing.assert_array_equal(reranker.predict(PAIRS * 50, batch_size=200), np.tile(padded, (50, 1)))
            np.testing.assert_array_equal([reranker.predict([pair])[0] for pair in PAIRS], padded)
    assert reranker._plans._kept


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_single_texts_and_pairs_have_the_scores_of_transformers(tmp_path, name, labels):
    network = written(tmp_path, name, labels)
    inputs = ["a b", ("a b", "c d e"), "a " * 50, ("a " * 50, "b c " * 40), ""]
    expected = logits(network, tmp_path, [(each,) if isinstance(each, str) else each for each in inputs])
    reranker = Reranker.from_folder(tmp_path)
    tokens = reranker.tokenize(inputs)
    assert tokens.cut == [2, 3]
    received = reranker.predict_tokens(tokens, activation="linear")
    np.testing.assert_allclose(received, expected[:, 0] if labels == 1 else expected, rtol=0, atol=FLOAT32)


def test_pairs_are_called_inputs_or_sentences(tmp_path):
    reranker = Reranker.from_folder(scorer(tmp_path / "reranker", 1))
    expected = reranker.predict([("a b", "c")])
    for name in ("inputs", "sentences"):
        np.testing.assert_array_equal(reranker.predict(**{name: [("a b", "c")]}), expected)
    with pytest.raises(TypeError, match="`pairs` and `sentences` are the same argument"):
        reranker.predict([("a b", "c")], sentences=[("a b", "c")])


def test_the_two_halves_of_predict_give_its_bits_in_any_cut(tmp_path):
    written(tmp_path)
    reranker = Reranker.from_folder(tmp_path)
    tokens = reranker.tokenize(PAIRS)
    expected = reranker.predict(PAIRS)
    np.testing.assert_array_equal(reranker.predict_tokens(tokens), expected)
    order = [4, 0, 5, 3, 1, 2]
    parts = [tokens.select(order[:2]), tokens.select(order[2:])]
    assert [len(parts[0]), tokens.cut, parts[0].cut, parts[1].cut] == [2, [4], [0], []]
    np.testing.assert_array_equal(reranker.predict_tokens(type(tokens).joined(parts)), expected[order])
    assert type(tokens).joined(parts[::-1]).cut == [4]
    assert len(reranker.tokenize([])) == 0


@pytest.mark.parametrize("wrong", [[1], [("a",)], [{"a": "b"}], ["\ud800"]])
def test_tokenize_refuses_what_is_neither_a_text_nor_a_pair(tmp_path, wrong):
    written(tmp_path)
    with pytest.raises((TypeError, ValueError), match=r"`(inputs|pairs)\[0\]"):
        Reranker.from_folder(tmp_path).tokenize(wrong)


# ---- training


LABELED = [("a b", "c d", 1.0), ("e f", "g", 0.0), ("h", "a b c", 0.75), ("d e", "h", 0.25)]


@pytest.mark.parametrize(("name", "labels"), [("bert", 1), ("roberta", 1), ("distilbert", 3), ("modernbert", 1)])
def test_training_lowers_the_loss_and_the_folder_opens_with_the_same_scores(tmp_path, name, labels):
    (tmp_path / "model").mkdir()
    written(tmp_path / "model", name, labels)
    reranker = Reranker.from_folder(tmp_path / "model")
    data = LABELED if labels == 1 else [(*pair, place % 3) for place, (*pair, _) in enumerate(LABELED)]
    found = reranker.fit(data, epochs=8, batch_size=4, learning_rate=2e-3, dropout=0, seed=0, verbose=0).history["loss"]
    assert found[-1] < 0.8 * found[0]
    reranker.save(tmp_path / "tuned")
    np.testing.assert_array_equal(Reranker.from_folder(tmp_path / "tuned").predict(PAIRS), reranker.predict(PAIRS))


def test_the_first_loss_is_that_of_torch(tmp_path):
    torch = pytest.importorskip("torch")
    network = written(tmp_path)
    scores = torch.tensor(logits(network, tmp_path, [pair for *pair, _ in LABELED])[:, 0])
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(scores, torch.tensor([y for *_, y in LABELED]))
    found = Reranker.from_folder(tmp_path).fit(LABELED, batch_size=4, dropout=0, seed=0, verbose=0).history["loss"]
    np.testing.assert_allclose(found, [wanted.item()], rtol=1e-5)


@pytest.mark.parametrize("labels", [1, 3])
def test_groups_give_the_weights_of_the_whole_batch(tmp_path, labels, monkeypatch):
    written(tmp_path, labels=labels)
    data = LABELED if labels == 1 else [(*pair, place % 3) for place, (*pair, _) in enumerate(LABELED)]
    found = []
    for group in (4, 3):
        monkeypatch.setattr("mp_core.models.tuning.batches.GROUP", group)
        reranker = Reranker.from_folder(tmp_path)
        history = reranker.fit(
            data, epochs=2, batch_size=4, optimizer=mp.optimizers.SGD(0.1), dropout=0, seed=1, verbose=0
        )
        found.append([np.array(history.history["loss"]), *reranker.model.get_weights()])
    for whole, parts in zip(*found, strict=True):
        np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=2e-6)


def test_training_is_not_lost_by_another_policy(tmp_path):
    written(tmp_path / "model")
    reranker = Reranker.from_folder(tmp_path / "model")
    reranker.with_policy("int8")
    reranker.fit(LABELED, batch_size=4, verbose=0, seed=0)
    for use in (lambda: reranker.with_policy("int8"), lambda: mp.calibrate(reranker, (PAIRS,), "int8")):
        with pytest.raises(ValueError, match="the weights were trained, and "):
            use()
    adapted = Reranker.from_folder(tmp_path / "model", "int8")
    adapted.enable_lora(2)
    adapted.fit(LABELED, batch_size=4, learning_rate=0.1, warmup=0, verbose=0, seed=0)
    plain = Reranker.from_folder(tmp_path / "model").predict(PAIRS)
    assert (adapted.with_policy("float32").predict(PAIRS) != plain).any()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([("a", "b")], "must have a column 'label' or 'score'"),
        ([("a", "b", 0.5), ("c", "d", 1.5)], "label of row 1 of `data` must be from 0 to 1; received 1.5"),
        ([("a", "b", float("nan"))], "must be finite"),
        ([("a", "b", "c", 1.0)], "one or two texts a row"),
    ],
)
def test_examples_that_do_not_fit_are_refused(tmp_path, data, message):
    written(tmp_path)
    with pytest.raises(ValueError, match=message):
        Reranker.from_folder(tmp_path).fit(data)


def test_classes_are_whole_numbers(tmp_path):
    written(tmp_path, labels=3)
    with pytest.raises(ValueError, match="label of row 0 of `data` must be integers from 0 to 2"):
        Reranker.from_folder(tmp_path).fit([("a", "b", 0.5)])


def test_a_folder_of_jinas_fused_network_has_the_same_bits(tmp_path):
    """jina-reranker-v2 is an XLM-RoBERTa by other names, with one matrix for queries, keys and values."""
    written(tmp_path / "model", "xlm-roberta")
    path = tmp_path / "model" / "model.safetensors"
    pairs = [("a b", "c d e"), ("f", "a")]
    expected = Reranker.from_folder(tmp_path / "model").predict(pairs)
    names = {
        "embeddings.LayerNorm": "emb_ln",
        "attention.output.dense": "mixer.out_proj",
        "attention.output.LayerNorm": "norm1",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
        "output.LayerNorm": "norm2",
        "encoder.layer.": "encoder.layers.",
    }
    tensors, fused = load_file(path), {}
    for name, tensor in tensors.items():
        for today, other in names.items():
            name = name.replace(today, other)
        if "attention.self.query" in name:
            parts = [
                tensors[name.replace("layers", "layer").replace("query", part)] for part in ("query", "key", "value")
            ]
            fused[name.replace("attention.self.query", "mixer.Wqkv")] = np.concatenate(parts)
        elif "attention.self" not in name:
            fused[name] = tensor
    assert not fused.keys() & {name for name in tensors if ".layer." in name}
    save_file(fused, path)
    reranker = Reranker.from_folder(tmp_path / "model")
    np.testing.assert_array_equal(reranker.predict(pairs), expected)
    reranker.save(tmp_path / "again")
    np.testing.assert_array_equal(Reranker.from_folder(tmp_path / "again").predict(pairs), expected)
