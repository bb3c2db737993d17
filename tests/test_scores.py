"""Scores of texts: where a decoder reads them, the probabilities in its folder, the order of saturated scores."""

import json
import warnings

import numpy as np
import pytest
import random_models
from test_reranker import FLOAT32, PAIRS, edit, logits, written

from mp_core.layers import activations
from mp_core.models import Classifier, Reranker
from mp_core.models.heads import Classifier as Network
from mp_core.models.heads import function_of_scores
from mp_core.models.reranker import ranked
from mp_core.models.tuning.evaluation import measured_scores
from mp_core.models.tuning.examples import read_examples
from mp_core.plans import eager

END = random_models.WORDS.index("</s>")
DECODERS = ["qwen3", "qwen2", "qwen2 both ways", "llama", "mistral", "phi3", "gemma", "gemma2", "gemma3_text",
            "embeddinggemma"]  # fmt: skip


PROBLEMS = [None, "single_label_classification", "multi_label_classification", "regression"]


# ---- the position at which decoders are read


def whose_end_pads(folder, name, labels=1):
    """Save a decoder whose padding token is the end token, behind which no text of its tokenizer goes on."""
    network = written(folder, name, labels, pad_token_id=END, eos_token_id=END)
    edit(folder / "tokenizer_config.json", pad_token="</s>", eos_token="</s>")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"] = [{"id": END, "content": "</s>", "special": True} | flags]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return network


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_whose_padding_token_is_the_end_token_is_read_before_it(tmp_path, name, labels):
    network = whose_end_pads(tmp_path, name, labels)
    pairs = [*PAIRS, ("a b", "c </s> </s> d </s> </s>"), ("a </s>", "b </s> </s>")]
    expected = logits(network, tmp_path, pairs).reshape(len(pairs), -1)
    reranker = Reranker.from_folder(tmp_path)
    for batch_size in (1, 100):
        received = reranker.predict(pairs, batch_size, activation="linear").reshape(len(pairs), -1)
        np.testing.assert_allclose(received, expected, rtol=0, atol=FLOAT32)
    with eager():
        np.testing.assert_array_equal(reranker.predict(pairs, activation="linear").reshape(len(pairs), -1), received)


@pytest.mark.parametrize("name", DECODERS)
def test_a_padded_batch_is_read_where_the_library_reads_it(tmp_path, name):
    import torch

    network = whose_end_pads(tmp_path, name, labels=2)
    ids, mask = random_models.ragged(END)
    ids[1, 3:7] = END  # the text itself ends in padding tokens
    ids[0, 0] = END  # and this one has no other token
    with torch.no_grad():
        expected = network(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask)).logits.numpy()
    ours = Reranker.from_folder(tmp_path).model
    assert ours.lengths([row[:length] for row, length in zip(ids, mask.sum(axis=1), strict=True)]) == [1, 3, 20, 33]
    np.testing.assert_allclose(ours(ids, mask=mask), expected, rtol=0, atol=FLOAT32)


def test_crossencoder_of_sentence_transformers_reads_the_same_position(tmp_path):
    random_models.library()
    library = pytest.importorskip("sentence_transformers").CrossEncoder
    whose_end_pads(tmp_path, "qwen3")
    pairs = [*PAIRS, ("a b", "c d </s>")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = library(str(tmp_path), device="cpu").predict(pairs)
    np.testing.assert_allclose(Reranker.from_folder(tmp_path).predict(pairs), expected, rtol=0, atol=FLOAT32)


@pytest.mark.parametrize("name", DECODERS)
def test_a_folder_that_names_no_padding_token_has_that_of_the_library(name):
    network = random_models.made(name, "ForSequenceClassification")
    kind = type(network.config)
    config = {key: value for key, value in network.config.to_dict().items() if key != "pad_token_id"}
    token = kind().pad_token_id
    assert Network(config)._padding == token
    assert Network(config | {"pad_token_id": None}).lengths([np.array([1, 0, 32000])]) == [3]
    with pytest.raises(ValueError, match="pad_token_id is 'x'; expected an int or null"):
        Network(config | {"pad_token_id": "x"})


def test_training_reads_the_score_at_the_same_position(tmp_path):
    torch = pytest.importorskip("torch")
    network = whose_end_pads(tmp_path, "qwen3")
    rows = [("a b", "c d e", 1.0), ("a b c", "h", 0.0), ("d", "e </s>", 1.0)]
    scores = torch.tensor(logits(network, tmp_path, [row[:2] for row in rows])[:, 0])
    expected = torch.nn.functional.binary_cross_entropy_with_logits(scores, torch.tensor([1.0, 0.0, 1.0]))
    history = Reranker.from_folder(tmp_path).fit(rows, dropout=0, learning_rate=1e-30, seed=0)
    assert history.history["loss"][0] == pytest.approx(float(expected), abs=FLOAT32)


def test_a_network_that_sees_both_ways_is_not_trained_on_what_it_would_read_wrongly(tmp_path):
    whose_end_pads(tmp_path, "qwen2 both ways")
    with pytest.raises(ValueError, match="row 0 of `data` ends in the padding token, which a network"):
        Reranker.from_folder(tmp_path).fit([("a", "b", 1.0)])


# ---- what problem_type says


@pytest.mark.parametrize(
    ("problem", "labels"),  # transformers 5 refuses a single label of one
    [(problem, labels) for problem in PROBLEMS for labels in (1, 3) if (problem, labels) != (PROBLEMS[1], 1)],
)
def test_probabilities_are_those_of_the_pipeline_of_transformers(tmp_path, problem, labels):
    written(tmp_path, "bert", labels)
    edit(tmp_path / "config.json", problem_type=problem)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = random_models.library().pipeline("text-classification", str(tmp_path), device="cpu", top_k=None)
        expected = pipeline(["a b c", "d"])
    classifier = Classifier.from_folder(tmp_path)
    for row, own in zip(classifier.probabilities(["a b c", "d"]), expected, strict=True):
        scores = {entry["label"]: entry["score"] for entry in own}
        np.testing.assert_allclose(row, [scores[name] for name in classifier.labels], rtol=0, atol=FLOAT32)


@pytest.mark.parametrize("wrong", ["ranking", 3, ["regression"]])
def test_a_problem_type_that_transformers_does_not_know_is_refused(tmp_path, wrong):
    written(tmp_path, "bert", 3)
    edit(tmp_path / "config.json", problem_type=wrong)
    with pytest.raises(ValueError, match=r"config\.json: problem_type is .*; expected None or 'single_label"):
        Classifier.from_folder(tmp_path)


MANY = [("a b c", [1.0, 0.0, 1.0]), ("d", [0.0, 0.0, 0.25])]


def test_several_labels_at_once_are_trained_as_transformers_trains_them(tmp_path):
    torch = pytest.importorskip("torch")
    network = written(tmp_path, "bert", 3)
    edit(tmp_path / "config.json", problem_type="multi_label_classification")
    network.config.problem_type = "multi_label_classification"
    classifier = Classifier.from_folder(tmp_path)
    losses = []
    for text, label in MANY:
        ids = torch.tensor(np.array(classifier.tokenize([text]).rows))
        with torch.no_grad():
            losses.append(float(network(input_ids=ids, labels=torch.tensor([label])).loss))
    history = classifier.fit(MANY, dropout=0, learning_rate=1e-30, seed=0)
    assert history.history["loss"][0] == pytest.approx(np.mean(losses), abs=FLOAT32)
    above = classifier.predict_tokens(classifier.tokenize([text for text, _ in MANY])) > 0
    found = measured_scores(classifier, read_examples(MANY, "eval"))
    assert found == {"accuracy": np.mean(above == (np.array([label for _, label in MANY]) > 0.5))}


@pytest.mark.parametrize("label", [1, [1.0, 0.0], [1.0, 0.0, 2.0], [-0.5, 0.0, 1.0]])
def test_a_label_of_another_kind_is_refused_where_a_text_may_have_several(tmp_path, label):
    written(tmp_path, "bert", 3)
    edit(tmp_path / "config.json", problem_type="multi_label_classification")
    with pytest.raises(ValueError, match=r"labels of `data` must be lists of 3 numbers from 0 to 1, as problem_type"):
        Classifier.from_folder(tmp_path).fit([("a", label)])


def test_the_function_of_scores_does_not_depend_on_the_number_of_labels_in_a_regression():
    assert function_of_scores({"problem_type": "regression"}, 1, "") == "linear"


# ---- the order of saturated scores


def test_saturated_scores_keep_their_order_and_equal_ones_that_of_the_documents():
    raw = np.array([20.0, 90.0, 20.0, 40.0, -200.0, -120.0], np.float32)
    order = ranked(raw, activations.get("sigmoid"))
    assert [place for place, _ in order] == [1, 3, 0, 2, 5, 4]
    assert [score for _, score in order] == activations.get("sigmoid")(raw)[[1, 3, 0, 2, 5, 4]].tolist()
    assert order[0][1] == order[2][1] == 1.0


def test_rank_orders_what_the_sigmoid_makes_equal(tmp_path):
    from safetensors.numpy import load_file, save_file

    written(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["classifier.bias"] = np.array([60.0], np.float32)  # every sigmoid is 1
    save_file(tensors, tmp_path / "model.safetensors")
    reranker = Reranker.from_folder(tmp_path)
    documents = ["h", "c d e", "a", "b b", "c d e"]
    raw = reranker.predict([("a b", text) for text in documents], activation="linear")
    ranks = reranker.rank("a b", documents)
    assert {score for _, score in ranks} == {1.0}
    assert [place for place, _ in ranks] == np.argsort(-raw, kind="stable").tolist() != list(range(5))
