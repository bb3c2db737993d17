"""The estimator: scikit-learn's own checks, and the encoder's embeddings as its output."""

import pickle
import warnings
from importlib.util import find_spec

import numpy as np
import pytest
import tiny_bert
from no_texts import NO_TEXTS
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from threadpoolctl import threadpool_info

from mp_core import config
from mp_core.interop import sklearn as interop
from mp_core.interop.sklearn import TextClassifier, TextEmbedder
from mp_core.models import BertEncoder

TEXTS = ["a b c", "d e", "", "h g f e d", "a", "c b a"] * 4
LABELS = ["a" in text for text in TEXTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny_bert.write(tmp_path_factory.mktemp("tiny") / "model"))


@pytest.fixture(scope="module")
def expected(folder):
    return BertEncoder.from_folder(folder, "mixed_bfloat16").encode(TEXTS, truncate_dim=5, normalize=True)


@pytest.fixture
def embedder(folder):
    return TextEmbedder(folder, policy="mixed_bfloat16", truncate_dim=5, normalize=True, batch_size=3)


@pytest.mark.parametrize("texts", [TEXTS, tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, object), iter(TEXTS)])
def test_embeddings_are_those_of_the_encoder(embedder, expected, texts):
    received = embedder.fit(TEXTS).transform(texts)
    assert received.dtype == np.float32
    np.testing.assert_array_equal(received, expected)


def test_fit_transform_is_fit_and_transform(embedder, expected):
    np.testing.assert_array_equal(embedder.fit_transform(TEXTS, LABELS), expected)
    assert embedder.transform([]).shape == (0, 5)


def test_columns_have_names(embedder):
    names = embedder.fit(TEXTS).get_feature_names_out()
    assert names.tolist() == [f"textembedder{place}" for place in range(5)]


@pytest.mark.skipif(not find_spec("pandas"), reason="needs pandas")
def test_a_table_in_and_a_table_out(embedder, expected):
    import pandas

    column = pandas.Series(TEXTS, index=range(100, 100 + len(TEXTS)))
    table = embedder.set_output(transform="pandas").fit_transform(column)
    assert list(table.columns) == list(embedder.get_feature_names_out()) and list(table.index) == list(column.index)
    np.testing.assert_array_equal(table.to_numpy(), expected)


def test_clones_are_unfitted_and_pickles_are_whole(embedder, expected, folder, tmp_path):
    embedder.fit(TEXTS)
    copied = clone(embedder)
    assert copied.get_params() == embedder.get_params()
    with pytest.raises(NotFittedError):
        copied.transform(TEXTS)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(embedder)).transform(TEXTS), expected)


def test_a_number_of_threads_holds_during_transform_only(embedder, monkeypatch):
    seen, before = [], config.get_num_threads()
    encode = BertEncoder.encode

    def noted(self, texts, **rest):
        seen.append(config.get_num_threads())
        return encode(self, texts, **rest)

    monkeypatch.setattr(BertEncoder, "encode", noted)
    embedder.set_params(n_threads=before + 2).fit(TEXTS).transform(TEXTS)
    embedder.set_params(n_threads=None).transform(TEXTS)
    assert seen == [before + 2, before + 2, before] and config.get_num_threads() == before


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_pipeline_is_searched_by_processes(folder, jobs):
    pipeline = make_pipeline(TextEmbedder(folder), LogisticRegression())
    grid = {"textembedder__policy": [None, "int8"], "textembedder__normalize": [True, False]}
    search = GridSearchCV(pipeline, grid, n_jobs=jobs, cv=2, error_score="raise").fit(TEXTS, LABELS)
    policy, normalize = (search.best_params_[f"textembedder__{name}"] for name in ("policy", "normalize"))
    embeddings = BertEncoder.from_folder(folder, policy).encode(TEXTS, normalize=normalize)
    alone = LogisticRegression().fit(embeddings, LABELS)
    np.testing.assert_array_equal(search.predict_proba(TEXTS), alone.predict_proba(embeddings))


def test_threadpoolctl_knows_mp_core_from_the_import_on():
    assert "mp_core" in [library["user_api"] for library in threadpool_info()]
    assert interop.__all__ == ["TextClassifier", "TextEmbedder"]


CHECKS = [
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_get_params_invariance",
    "check_set_params",
    "check_parameters_default_constructible",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_get_feature_names_out_error",
    "check_mixin_order",
]
"""Those of check_estimator that need no numbers as input; it runs the first one only of an estimator of texts."""


@pytest.mark.parametrize("name", CHECKS)
def test_checks_of_scikit_learn(embedder, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        getattr(estimator_checks, name)("TextEmbedder", embedder)


def test_check_estimator_finds_no_failure(embedder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reports = estimator_checks.check_estimator(embedder, on_skip=None)
    assert {report["status"] for report in reports} <= {"passed", "skipped"}


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ("one text", TypeError, "`X` must be an iterable of str; received str"),
        ({"text": "one text"}, TypeError, "`X` must be an iterable of str; received dict, which yields its keys"),
        (["a", None], TypeError, r"`X\[1\]` must be a str; received NoneType"),
        ([["a"]], TypeError, r"`X\[0\]` must be a str; received list"),
        (np.zeros(2), TypeError, r"`X\[0\]` must be a str"),
        (["\ud800"], ValueError, r"`X\[0\]` must be text that UTF-8 can encode"),
    ],
)
def test_what_is_no_text_is_refused(embedder, texts, error, message):
    with pytest.raises(error, match=message):
        embedder.fit(TEXTS).transform(texts)


@pytest.mark.parametrize("kind", NO_TEXTS)
def test_what_yields_something_else_than_texts_is_refused_by_name(embedder, kind):
    texts, received = NO_TEXTS[kind]
    for function in (embedder.fit, embedder.fit(TEXTS).transform, embedder.fit_transform):
        with pytest.raises(TypeError, match=f"`X` must be an iterable of str; received {received}"):
            function(texts)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"model": "/absent"}, "/absent"),
        ({"policy": "int3"}, "int3"),
        ({"batch_size": 0}, "`batch_size` must be"),
        ({"prompt_name": "poem"}, "`prompt_name` must be one of"),
        ({"n_threads": 0}, "must be an integer from 1 to 1024"),
        ({"truncate_dim": -1}, "`truncate_dim` must be"),
    ],
)
def test_bad_parameters_are_refused_by_fit(embedder, parameters, message):
    with pytest.raises((OSError, ValueError), match=message):
        embedder.set_params(**parameters).fit(TEXTS)


# ---- classes

WORDED = ["sports" if label else "weather" for label in LABELS]


@pytest.mark.parametrize("labels", [LABELS, WORDED, [3 if label else 7 for label in LABELS]])
def test_classes_are_learned_on_frozen_embeddings(folder, labels):
    classifier = TextClassifier(folder).fit(TEXTS, labels)
    regression = LogisticRegression(C=100).fit(classifier.encoder_.encode(TEXTS), labels)
    assert classifier.score(TEXTS, labels) >= regression.score(classifier.encoder_.encode(TEXTS), labels)
    probabilities = classifier.predict_proba(TEXTS)
    assert probabilities.shape == (len(TEXTS), 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(classifier.classes_[probabilities.argmax(axis=1)], classifier.predict(TEXTS))
    np.testing.assert_array_equal(classifier.decision_function(TEXTS) > 0, probabilities[:, 1] > 0.5)
    np.testing.assert_array_equal(classifier.encoder_.encode(TEXTS), BertEncoder.from_folder(folder).encode(TEXTS))


def test_three_classes_and_the_whole_network(tmp_path):
    folder = str(tiny_bert.write(tmp_path / "model", hidden_dropout_prob=0.0))
    labels = np.arange(len(TEXTS)) % 3
    texts = [f"{text} {'bdh'[label]}" for text, label in zip(TEXTS, labels, strict=True)]
    frozen = TextClassifier(folder).fit(texts, labels)
    tuned = TextClassifier(folder, fine_tune=True, epochs=30, learning_rate=1e-3).fit(texts, labels)
    assert tuned.score(texts, labels) >= frozen.score(texts, labels)
    assert (tuned.encoder_.encode(texts) != frozen.encoder_.encode(texts)).any()
    again = clone(tuned).fit(texts, labels)
    np.testing.assert_array_equal(again.predict_proba(texts), tuned.predict_proba(texts))
    kept = pickle.loads(pickle.dumps(tuned))
    np.testing.assert_array_equal(kept.predict_proba(texts), tuned.predict_proba(texts))


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["a", "b"], [1], r"`y` must have shape \(2,\)"),
        (["a", "b"], [1, 1], r"at least two classes; received \[1\]"),
        (["a", "b"], [1, np.nan], "must be finite"),
        (["a", 3], [1, 2], "must be a str"),
    ],
)
def test_classes_that_cannot_be_learned_are_refused(folder, texts, labels, message):
    with pytest.raises((TypeError, ValueError), match=message):
        TextClassifier(folder).fit(texts, labels)


def test_a_classifier_that_has_not_learned_says_so(folder):
    with pytest.raises(NotFittedError):
        TextClassifier(folder).predict(["a"])


def test_a_search_over_the_classifier_runs(folder):
    search = GridSearchCV(TextClassifier(folder), {"policy": ["float32", "int8"]}, cv=2).fit(TEXTS, LABELS)
    assert search.best_score_ > 0.8
