"""Classifiers of texts and of tokens: the labels and scores of transformers for small random networks."""

import json
import warnings

import numpy as np
import pytest
import random_models

from mp_core.models import Classifier, TokenClassifier

torch = pytest.importorskip("torch")
FLOAT32 = 1e-5
TEXTS = ["a b c", "h g f e d c b a a b", "d", "c " * 60]
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
OF_TOKENS = ["bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "electra", "albert", "modernbert",
             "deberta-v3"]  # fmt: skip


def written(folder, name, head, labels, **settings):
    names = dict(enumerate(labels))
    network = random_models.made(name, head, id2label=names, label2id={v: k for k, v in names.items()}, **settings)
    random_models.save(network, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "TokenizersBackend", "model_max_length": 30, "unk_token": "<unk>", "pad_token": "<pad>",
        "cls_token": "<s>", "sep_token": "</s>", "model_input_names": ["input_ids", "attention_mask"],
    }))  # fmt: skip
    return network


def pipeline(task, folder, **options):
    transformers = random_models.library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.pipeline(task, str(folder), device="cpu", **options)


@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
def test_labels_of_texts_are_those_of_the_pipeline_of_transformers(tmp_path, problem):
    written(tmp_path, "bert", "ForSequenceClassification", ["bad", "so so", "good"], problem_type=problem)
    function = "sigmoid" if problem.startswith("multi") else "softmax"
    expected = pipeline("text-classification", tmp_path, top_k=None, function_to_apply=function)(TEXTS, truncation=True)
    classifier = Classifier.from_folder(tmp_path)
    assert classifier.labels == ("bad", "so so", "good")
    received = classifier.probabilities(TEXTS)
    for row, own in zip(received, expected, strict=True):
        scores = {entry["label"]: entry["score"] for entry in own}
        np.testing.assert_allclose(row, [scores[label] for label in classifier.labels], rtol=0, atol=FLOAT32)
    best = [max(own, key=lambda entry: entry["score"])["label"] for own in expected]
    assert [label for label, _ in classifier.classify(TEXTS)] == best
    assert classifier.classify([("a b", "c d")])[0][0] in classifier.labels


def test_one_label_is_a_probability_and_names_are_those_of_transformers(tmp_path):
    written(tmp_path, "bert", "ForSequenceClassification", ["x"])
    path = tmp_path / "config.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in said.items() if key != "id2label"} | {"num_labels": 1}))
    classifier = Classifier.from_folder(tmp_path)
    assert classifier.labels == ("LABEL_0",)
    assert classifier.probabilities(TEXTS).shape == (4, 1)
    path.write_text(json.dumps(said | {"id2label": {"7": "x"}}))
    with pytest.raises(ValueError, match=r"config\.json: id2label is .*; expected names of the labels '0' to '0'"):
        Classifier.from_folder(tmp_path)


@pytest.mark.parametrize("name", OF_TOKENS)
def test_labels_of_tokens_are_those_of_the_pipeline_of_transformers(tmp_path, name):
    written(tmp_path, name, "ForTokenClassification", LABELS)
    classifier = TokenClassifier.from_folder(tmp_path)
    texts = TEXTS[:3]
    library = pipeline("token-classification", tmp_path, ignore_labels=[])
    for text, received in zip(texts, classifier.predict(texts), strict=True):
        expected = library(text)
        assert [span.label for span in received] == [entry["entity"] for entry in expected]
        assert [(span.start, span.end) for span in received] == [(entry["start"], entry["end"]) for entry in expected]
        np.testing.assert_allclose(
            [span.score for span in received], [entry["score"] for entry in expected], atol=FLOAT32
        )
    library = pipeline("token-classification", tmp_path, aggregation_strategy="simple")
    for text, received in zip(texts, classifier.entities(texts), strict=True):
        expected = library(text)
        assert [(span.label, span.start, span.end) for span in received] == [
            (entry["entity_group"], entry["start"], entry["end"]) for entry in expected
        ]
        np.testing.assert_allclose(
            [span.score for span in received], [entry["score"] for entry in expected], atol=FLOAT32
        )


@pytest.mark.parametrize("policy", ["float32", "int8"])
def test_a_classifier_of_tokens_is_saved_with_the_same_labels(tmp_path, policy):
    (tmp_path / "first").mkdir()
    written(tmp_path / "first", "bert", "ForTokenClassification", LABELS)
    classifier = TokenClassifier.from_folder(tmp_path / "first", policy)
    classifier.save(tmp_path / "again")
    again = TokenClassifier.from_folder(tmp_path / "again")
    assert again.predict(TEXTS) == classifier.predict(TEXTS) == classifier.predict(TEXTS, batch_size=1)
    assert again(TEXTS[0]) == [again.predict(TEXTS)[0]]


def test_networks_without_such_a_head_are_refused(tmp_path):
    folder = random_models.save(random_models.made("qwen3"), tmp_path)
    with pytest.raises(ValueError, match="model_type is 'qwen3', whose scores mp_core lacks; expected 'bert'"):
        TokenClassifier.from_folder(folder)
