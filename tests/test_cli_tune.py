"""``mp-core tune``: its outputs and reports, resuming, and errors."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import processes
import pytest
import servers
import test_reranker
import tiny_bert
from command import usage_error
from tuned_folders import digest_of

import mp_core as mp
from mp_core import cli
from mp_core.cli import tuned
from mp_core.models import BertEncoder, Reranker
from mp_core.models.tuning.evaluation import correlation, cosines, ranking, retrieval

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PAIRS = [("a b", "c d"), ("e", "f g h"), ("b c d", "a"), ("h g", "e f"), ("c", "c h a b e")]


@pytest.fixture
def model(tmp_path):
    return str(tiny_bert.write(tmp_path / "model", **NO_DROPOUT))


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps({"query": a, "answer": b}) for a, b in PAIRS))
    return str(path)


def tune(*arguments):
    return cli.main(["tune", *map(str, arguments)])


def interrupted(*_, **__):
    raise KeyboardInterrupt


# ---- what it writes and says


def test_it_writes_a_folder_and_reports_the_quality_before_and_after(capsys, tmp_path, model, pairs):
    out = tmp_path / "out"
    options = ["--epochs", 40, "--batch-size", 5, "--learning-rate", 0.01, "--eval", pairs, "--json"]
    assert tune(model, pairs, "-o", out, *options) == 0
    output, progress = capsys.readouterr()
    report = json.loads(output)
    assert set(report["before"]) == {"recall@1", "recall@5", "recall@10", "mrr@10"}
    assert report["after"]["mrr@10"] > report["before"]["mrr@10"]
    assert len(report["losses"]) == len(report["steps"]) == 40
    assert report["losses"][-1] < report["losses"][0]
    assert "epoch 40/40, 5 of 5 examples, loss " in progress
    assert "examples/s" in progress
    found = retrieval(BertEncoder.from_folder(out), *map(list, zip(*PAIRS, strict=True)))
    assert found == report["after"]


@pytest.mark.parametrize("policy", ["int8", "mixed_bfloat16", "int4/8"])
def test_the_folder_has_the_policy_that_is_asked_for(capsys, tmp_path, model, pairs, policy):
    assert tune(model, pairs, "-o", tmp_path / "out", "--policy", policy, "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    encoder = BertEncoder.from_folder(tmp_path / "out")
    assert any(layer.quantized for layer in encoder.flatten()) == (policy != "mixed_bfloat16")
    assert encoder.encode(["a b"]).shape == (1, 16)


LORA = ["--lora", 2, "--policy", "int8", "--epochs", 60, "--batch-size", 5, "--learning-rate", 0.02]


@pytest.fixture
def adapted(model):
    """The encoder that LORA trains, before anything of it is written."""
    encoder = BertEncoder.from_folder(model, "int8")
    encoder.enable_lora(2, seed=0)
    encoder.fit(PAIRS, epochs=60, batch_size=5, learning_rate=0.02, seed=0, verbose=0)
    return encoder


def test_adapters_are_trained_beside_codes_and_the_sums_are_written(capsys, tmp_path, model, pairs, adapted):
    out = tmp_path / "out"
    assert tune(model, pairs, "-o", out, *LORA, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["losses"][-1] < report["losses"][0]
    encoder = BertEncoder.from_folder(out)
    assert all(layer.quantized for layer in encoder.flatten() if str(layer.path) in encoder.kernel_names)
    plain = BertEncoder.from_folder(model, "int8")
    assert (encoder.encode(["a b"]) != plain.encode(["a b"])).any()

    texts = [text for pair in PAIRS for text in pair]
    codes, trained = report["codes"], adapted.encode(texts)
    assert (codes["measure"], codes["beside"], codes["judged"]) == ("least cosine", "what was trained", len(texts))
    assert codes["merged"] == cosines(encoder.encode(texts), trained)
    assert codes["merged"]["least"] > 0.98 > cosines(plain.encode(texts), trained)["least"]


def test_the_adapter_alone_gives_the_vectors_that_were_trained(capsys, tmp_path, model, pairs, adapted):
    out = tmp_path / "out"
    options = [*LORA, "--adapter-only", "--eval", pairs, "--json"]
    assert tune(model, pairs, "-o", out, *options) == 0
    report = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in out.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    encoder = BertEncoder.from_folder(model, "int8")
    encoder.load_adapter(out)
    texts = [text for pair in PAIRS for text in pair]
    assert encoder.encode(texts).tobytes() == adapted.encode(texts).tobytes()
    assert report["after"] == retrieval(adapted, *map(list, zip(*PAIRS, strict=True)))
    assert "codes" not in report


def test_an_adapter_needs_a_rank_and_replaces_no_other_folder(capsys, tmp_path, model, pairs):
    command = ["tune", model, pairs, "--adapter-only", "-o"]
    assert "argument --adapter-only: needs --lora" in usage_error(capsys, *command, str(tmp_path / "out"))
    out = tiny_bert.write(tmp_path / "other")
    error = usage_error(capsys, *command, str(out), "--lora", "2", "--force")
    assert "other holds 'tokenizer.json', which a conversion would not write" in error


def test_codes_are_trained_to_give_the_vectors_of_the_floats(capsys, tmp_path, model, pairs):
    codes = ["--policy", "int4/8", "--distill"]
    for name, options in {"floats": [], "rounded": [*codes, 0], "trained": [*codes, 60]}.items():
        assert tune(model, pairs, "-o", tmp_path / name, "--quiet", *options) == 0
    texts = [text for pair in PAIRS for text in pair]
    floats, *codes = (
        BertEncoder.from_folder(tmp_path / name).encode(texts) for name in ("floats", "rounded", "trained")
    )
    rounded, trained = ((floats * vectors).sum(axis=1).mean() for vectors in codes)
    assert trained > rounded


@pytest.mark.parametrize(
    "options", [[], ["--policy", "mixed_bfloat16"], ["--policy", "int8", "--lora", "2"], ["--policy", "float8_e4m3fn"]]
)
def test_what_has_no_codes_to_train_is_refused(capsys, tmp_path, model, pairs, options):
    error = usage_error(capsys, "tune", model, pairs, "-o", str(tmp_path / "x"), "--distill", "1", *options)
    assert "argument --distill: needs --policy with int8 codes" in error


def test_codes_are_trained_unless_they_get_worse(capsys, tmp_path, model, monkeypatch):
    path, words, draws = tmp_path / "pairs.jsonl", tiny_bert.WORDS[4:], np.random.default_rng(0)
    rows = [[" ".join(draws.choice(words, draws.integers(2, 8))) for _ in range(2)] for _ in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)))
    options = [model, path, "--policy", "int4/8", "--json"]
    assert tune(*options, "-o", tmp_path / "out", "--distill", 20) == 0
    output, progress = capsys.readouterr()
    report = json.loads(output)
    found = report["codes"]
    assert report["policy"] == "int4/8_from_mixed_bfloat16"
    assert found["rounded"]["least"] < found["trained"]["least"] <= found["trained"]["mean"] < 1
    assert (found["kept"], found["judged"], found["texts"]) == ("trained", 9, 70)
    assert "mp-core: training the codes of int4/8_from_mixed_bfloat16 with 70 texts\n" in progress
    assert tune(*options, "-o", tmp_path / "default") == 0
    assert "codes" in json.loads(capsys.readouterr().out)

    other = tiny_bert.write(tmp_path / "other", pooling="cls_token")
    monkeypatch.setattr(tuned, "distill", lambda *_, **__: BertEncoder.from_folder(other, "int4/8"))
    assert tune(model, path, "-o", tmp_path / "worse", "--policy", "int4/8") == 0
    assert capsys.readouterr().out.endswith("; rounded kept\n")
    assert tune(*options, "-o", tmp_path / "rounded", "--distill", 0) == 0
    assert digest_of(tmp_path / "worse") == digest_of(tmp_path / "rounded") != digest_of(tmp_path / "out")


def test_scores_are_learned_by_their_order_and_judged_by_correlation(capsys, tmp_path, model):
    path = tmp_path / "scored.csv"
    rows = [f"{a},{b},{score}" for (a, b), score in zip(PAIRS, (0.1, 0.9, 0.4, 0.8, 0.2), strict=True)]
    path.write_text("\n".join(["first,second,score", *rows]))
    options = ["--epochs", 40, "--learning-rate", 0.01, "--eval", path, "--json"]
    assert tune(model, path, "-o", tmp_path / "out", *options) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["loss"] == "cosent"
    assert report["after"]["spearman"] > max(0.7, report["before"]["spearman"])


def test_the_curve_is_drawn(tmp_path, model, pairs):
    pytest.importorskip("matplotlib")
    assert tune(model, pairs, "-o", tmp_path / "out", "--plot", tmp_path / "loss.svg", "--quiet") == 0
    assert (tmp_path / "loss.svg").read_bytes().startswith(b"<svg")


def test_measures_are_those_of_their_definitions(tmp_path, model, rng):
    encoder = BertEncoder.from_folder(model)
    queries, documents = map(list, zip(*PAIRS, strict=True))
    scores = encoder.encode(queries, normalize=True) @ encoder.encode(documents, normalize=True).T
    places = [sorted(row, reverse=True).index(row[i]) + 1 for i, row in enumerate(scores.tolist())]
    found = retrieval(encoder, queries, documents)
    assert found["recall@1"] == np.mean([place <= 1 for place in places])
    np.testing.assert_allclose(found["mrr@10"], np.mean([1 / place for place in places]))
    assert retrieval(encoder, ["a", "b"], ["c d", "c d"])["recall@1"] == 1

    stats = pytest.importorskip("scipy.stats")
    labels = rng.integers(0, 3, 5).astype(np.float32)
    found = correlation(encoder, queries, documents, labels)
    cosines = np.diag(scores).astype(np.float64)
    np.testing.assert_allclose(found["pearson"], stats.pearsonr(cosines, labels)[0], rtol=1e-4)
    np.testing.assert_allclose(found["spearman"], stats.spearmanr(cosines, labels)[0], rtol=1e-9)


def test_vectors_of_zeros_have_a_cosine():
    """Those of static embeddings for an empty text: a NaN would say nothing of the others."""
    one, other = np.array([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]]), np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
    assert cosines(one[[0, 2]], other[[0, 2]]) == {"least": 1.0, "mean": 1.0}
    assert cosines(one, other)["least"] == 0.0


# ---- the same bytes


def command(*arguments):
    return [sys.executable, "-m", "mp_core", "tune", *map(str, arguments)]


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_bytes_of_one_that_was_not(tmp_path, model, pairs):
    whole, resumed, state = tmp_path / "whole", tmp_path / "resumed", tmp_path / "state"
    options = [model, pairs, "--epochs", "400", "--batch-size", "2", "--quiet"]
    assert processes.run(command(*options, "-o", whole)).returncode == 0
    with processes.Process(command(*options, "-o", resumed, "--resume", state)) as process:
        deadline = time.monotonic() + 120
        while not (state / "training.state").exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.wait()
    assert (state / "training.state").exists()
    assert not resumed.exists()
    assert processes.run(command(*options, "-o", resumed, "--resume", state, "--threads", 2)).returncode == 0
    assert digest_of(whole) == digest_of(resumed)


@pytest.mark.usefixtures("reproducible")
@pytest.mark.parametrize("options", [["--distill", 2], ["--lora", 2]], ids=["codes", "adapter"])
def test_codes_have_the_same_bytes_for_threads_and_sets_of_instructions(tmp_path, model, pairs, options):
    options = [model, pairs, "--policy", "int8", *options, "--quiet"]
    assert tune(*options, "-o", tmp_path / "one", "--threads", 1) == 0
    for isa in {"avx2", "scalar"} & {*mp.config.available_isas()}:
        environment = os.environ | {"MP_CORE_ISA": isa, "MP_CORE_REPRODUCIBLE": "1"}
        done = processes.run(command(*options, "-o", tmp_path / isa, "--threads", 2), env=environment)
        assert done.returncode == 0
        assert digest_of(tmp_path / isa) == digest_of(tmp_path / "one")


def test_workers_of_a_cluster_give_the_bytes_of_one_process(tmp_path, model, pairs):
    distributed = pytest.importorskip("distributed")
    many = tmp_path / "many.jsonl"
    many.write_text("\n".join([Path(pairs).read_text()] * 8))
    options = [model, many, "--epochs", 2, "--batch-size", 40, "--quiet"]
    assert tune(*options, "-o", tmp_path / "alone", "--chunk", 2) == 0
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0", silence_logs=50
    ) as cluster:
        assert tune(*options, "-o", tmp_path / "workers", "--dask", cluster.scheduler_address) == 0
    assert digest_of(tmp_path / "workers") == digest_of(tmp_path / "alone")


def test_workers_need_large_batches_and_an_address(capsys, tmp_path, model, pairs):
    command = ["tune", model, pairs, "-o", str(tmp_path / "out"), "--dask"]
    error = usage_error(capsys, *command, "absent:1", "--batch-size", "32")
    assert "argument --dask: needs --batch-size above 32; a worker computes 32 examples together" in error
    assert "must be the address of a scheduler" in usage_error(capsys, *command, "", "--batch-size", "33")


def test_what_comes_after_training_may_be_interrupted_too(capsys, tmp_path, model, pairs, monkeypatch):
    options = [model, pairs, "--epochs", 3, "--batch-size", 2, "--policy", "int8", "--quiet"]
    assert tune(*options, "-o", tmp_path / "whole") == 0
    with monkeypatch.context() as patch:
        patch.setattr(tuned, "distill", interrupted)
        assert tune(*options, "-o", tmp_path / "out", "--resume", tmp_path / "state") == 130
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(tuned._Steps, "on_train_batch_end", interrupted)  # no batch is trained again
    assert tune(*options, "-o", tmp_path / "out", "--resume", tmp_path / "state") == 0
    assert digest_of(tmp_path / "out") == digest_of(tmp_path / "whole")
    assert not (tmp_path / "state" / "training.state").exists()


@pytest.mark.parametrize("place", ["model", "model/state", "out", "out/state"])
def test_the_state_lies_beside_model_and_output(capsys, tmp_path, model, pairs, place):
    error = usage_error(capsys, "tune", model, pairs, "-o", str(tmp_path / "out"), "--resume", str(tmp_path / place))
    assert error.endswith(f"is {'OUT' if 'out' in place else 'MODEL'} or inside it; choose another folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "pairs.jsonl"]


def test_the_state_of_another_model_or_other_examples_is_refused(capsys, tmp_path, model, pairs, monkeypatch):
    options = ["-o", str(tmp_path / "out"), "--quiet", "--resume", str(tmp_path / "state")]
    with monkeypatch.context() as patch:
        patch.setattr(BertEncoder, "save", interrupted)
        assert tune(model, pairs, *options) == 130
    other = tiny_bert.write(tmp_path / "other", hidden_dropout_prob=0.5)
    assert "there the model's SHA-256 is " in usage_error(capsys, "tune", str(other), pairs, *options)
    with open(pairs, "a") as file:
        file.write('\n{"query": "a", "answer": "b"}')
    assert "there the SHA-256 of the examples is " in usage_error(capsys, "tune", model, pairs, *options)


def test_the_state_of_another_run_is_refused(capsys, tmp_path, model, pairs):
    state = tmp_path / "state"
    state.mkdir()
    (state / "training.state").write_bytes(b"x")
    (state / "tune.json").write_text(json.dumps({"epochs": 7}))
    command = ["tune", model, pairs, "-o", str(tmp_path / "out"), "--resume", str(state)]
    assert "has the state of another run: there the model's SHA-256 is None, here " in usage_error(capsys, *command)
    (state / "tune.json").write_text("[")
    assert tune(*command[1:]) == 3
    assert f"{state / 'tune.json'}: " in capsys.readouterr().err


# ---- what it refuses


def test_outputs_that_convert_refuses_are_refused_before_the_work(capsys, tmp_path, model, pairs):
    inside = usage_error(capsys, "tune", model, pairs, "-o", f"{model}/out")
    assert "is inside the folder" in inside
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "other.txt").write_text("x")
    assert "exists" in usage_error(capsys, "tune", model, pairs, "-o", str(tmp_path / "there"))
    error = usage_error(capsys, "tune", model, pairs, "-o", str(tmp_path / "there"), "--force")
    assert "other.txt" in error
    assert (tmp_path / "there" / "other.txt").read_text() == "x"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--learning-rate", "nan", "a finite number above 0"),
        ("--seed", "-1", "integer from 0 to 4294967295"),
        ("--epochs", "0", "at least 1"),
        ("--loss", "hinge", "hinge"),
    ],
)
def test_values_of_options_are_checked(capsys, tmp_path, model, pairs, option, value, message):
    assert message in usage_error(capsys, "tune", model, pairs, "-o", str(tmp_path / "out"), f"{option}={value}")


def test_training_that_diverges_writes_nothing(capsys, tmp_path, model, pairs):
    code = tune(model, pairs, "-o", tmp_path / "out", "--learning-rate", "1e30", "--epochs", 5)
    assert code == 3
    assert "training has diverged" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# ---- rerankers

QUESTIONS = {"a b": ["c d", "e"], "e f": ["g", "h a"], "h": ["c", "b d e"]}
LABELLED = [(query, text, 1 - place) for query, texts in QUESTIONS.items() for place, text in enumerate(texts)]


@pytest.fixture
def reranker(tmp_path):
    return str(servers.scorer(tmp_path / "reranker", 1, **NO_DROPOUT))


def labelled(path, rows=LABELLED):
    """Write rows of a query, a document and a label, and return the path."""
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_a_reranker_learns_to_rank(capsys, tmp_path, reranker):
    rows, out = labelled(tmp_path / "rows.jsonl"), tmp_path / "out"
    options = ["--epochs", 60, "--batch-size", 6, "--learning-rate", 0.01, "--eval", rows, "--json"]
    assert tune(reranker, rows, "-o", out, *options) == 0
    output, progress = capsys.readouterr()
    report = json.loads(output)
    assert report["loss"] == "cross_entropy"
    assert report["before"]["mrr@10"] < report["after"]["mrr@10"] == report["after"]["ndcg@10"] == 1
    assert report["losses"][-1] < 0.1 * report["losses"][0]
    assert "epoch 60/60, 6 of 6 examples, loss " in progress
    assert [Reranker.from_folder(out).rank(query, texts)[0][0] for query, texts in QUESTIONS.items()] == [0, 0, 0]


def test_a_tuned_reranker_has_the_scores_and_the_quality_of_a_cross_encoder(capsys, tmp_path):
    pytest.importorskip("sentence_transformers")
    from sentence_transformers.cross_encoder import CrossEncoder
    from sentence_transformers.cross_encoder.evaluation import CrossEncoderRerankingEvaluator

    base, out, rows = tmp_path / "base", tmp_path / "out", labelled(tmp_path / "rows.jsonl")
    base.mkdir()
    test_reranker.written(base)
    assert tune(base, rows, "-o", out, "--batch-size", 2, "--eval", rows, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    model = CrossEncoder(str(out), device="cpu")
    pairs = [row[:2] for row in LABELLED]
    received, before = (Reranker.from_folder(folder).predict(pairs) for folder in (out, base))
    np.testing.assert_allclose(received, model.predict(pairs), rtol=0, atol=1e-5)
    assert np.abs(received - before).max() > 1e-4
    samples = [{"query": query, "positive": [good], "negative": [bad]} for query, (good, bad) in QUESTIONS.items()]
    found = CrossEncoderRerankingEvaluator(samples, write_csv=False)(model)
    assert {name: found[name] for name in ("mrr@10", "ndcg@10")} == pytest.approx(report["after"])


@pytest.mark.parametrize("policy", ["int8", "int4/8"])
def test_the_codes_of_a_reranker_are_trained_to_give_the_scores_of_the_floats(capsys, tmp_path, reranker, policy):
    words, draws = tiny_bert.WORDS[4:], np.random.default_rng(0)
    texts = [" ".join(draws.choice(words, draws.integers(2, 8))) for _ in range(80)]
    rows = labelled(tmp_path / "rows.jsonl", [(texts[i], texts[i + 1], i % 2) for i in range(79)])
    out = tmp_path / "out"
    assert tune(reranker, rows, "-o", out, "--policy", policy, "--distill", 20, "--json") == 0
    found = json.loads(capsys.readouterr().out)["codes"]
    assert (found["measure"], found["judged"], found["texts"]) == ("largest difference of scores", 9, 70)
    assert found["trained"]["mean"] < found["rounded"]["mean"]
    assert found["kept"] == min(("rounded", "trained"), key=lambda name: found[name]["largest"])
    assert any(layer.quantized for layer in Reranker.from_folder(out).flatten())
    assert tune(reranker, rows, "-o", tmp_path / "rounded", "--policy", policy, "--distill", 0) == 0
    said = capsys.readouterr().out
    assert "largest difference of scores with the floats, 9 texts: rounded " in said
    assert "kept" not in said


def test_a_classifier_of_texts_is_judged_by_its_accuracy(capsys, tmp_path):
    model = servers.scorer(tmp_path / "classifier", 3, **NO_DROPOUT)
    rows = labelled(tmp_path / "rows.jsonl", [(text, i % 3) for i, text in enumerate("abcdefgh")])
    options = ["--epochs", 90, "--learning-rate", 0.01, "--policy", "int8", "--eval", rows, "--json"]
    assert tune(model, rows, "-o", tmp_path / "out", *options) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["before"]["accuracy"] < report["after"]["accuracy"] == 1
    assert set(report["codes"]) >= {"rounded", "trained"}


def test_graded_pairs_of_different_queries_are_judged_by_correlation(capsys, tmp_path, reranker):
    rows = labelled(tmp_path / "rows.jsonl", [(a, b, i / 4) for i, (a, b) in enumerate(PAIRS)])
    options = ["--epochs", 60, "--batch-size", 5, "--learning-rate", 0.01, "--eval", rows, "--json"]
    assert tune(reranker, rows, "-o", tmp_path / "out", *options) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["before"]["pearson"] < report["after"]["pearson"] > 0.9
    assert set(report["after"]) == {"pearson", "spearman"}


def test_ranks_are_measured_by_their_definitions(rng):
    metrics = pytest.importorskip("sklearn.metrics")
    queries = [f"query {i % 7}" for i in range(200)]
    scores, labels = rng.permutation(200).astype(np.float32), rng.integers(0, 4, 200) / 3
    parts = [(scores[i::7], labels[i::7]) for i in range(7)]
    found = ranking([*queries, "alone"], np.append(scores, 0), np.append(labels, 1))
    expected = np.mean([metrics.ndcg_score(y[None], x[None], k=10) for x, y in parts])
    np.testing.assert_allclose(found["ndcg@10"], expected)
    places = [next(i for i, j in enumerate(np.argsort(-x), 1) if y[j] == y.max()) for x, y in parts]
    np.testing.assert_allclose(found["mrr@10"], np.mean([1 / place if place <= 10 else 0 for place in places]))
    assert ranking(["a", "a"], np.zeros(2), np.array([1, 0]))["mrr@10"] == 0.5
    assert ranking(["a", "b"], np.zeros(2), np.array([1, 0])) == {}


def test_a_killed_run_of_a_reranker_goes_on_to_the_same_bytes(tmp_path, reranker, monkeypatch):
    rows = labelled(tmp_path / "rows.jsonl")
    options = [reranker, rows, "--epochs", 3, "--batch-size", 2, "--quiet"]
    assert tune(*options, "-o", tmp_path / "whole") == 0
    state = ["-o", tmp_path / "out", "--resume", tmp_path / "state"]
    with monkeypatch.context() as patch:
        patch.setattr(Reranker, "save", interrupted)
        assert tune(*options, *state) == 130
    assert not (tmp_path / "out").exists()
    assert tune(*options, *state) == 0
    assert digest_of(tmp_path / "out") == digest_of(tmp_path / "whole")


def test_what_does_not_train_a_reranker_is_refused(capsys, tmp_path, reranker, model, pairs):
    rows, out = labelled(tmp_path / "rows.jsonl"), str(tmp_path / "out")
    for folder, loss, allowed in ((reranker, "cosent", "cross_entropy, mse"), (model, "cross_entropy", "multiple_")):
        error = usage_error(capsys, "tune", folder, rows, "-o", out, "--loss", loss)
        assert f"argument --loss: the losses of a {'Reranker' if folder == reranker else 'TextEncoder'} are" in error
        assert allowed in error
    assert tune(reranker, pairs, "-o", out) == 3
    assert "must have a column 'label' or 'score'" in capsys.readouterr().err
    wrong = labelled(tmp_path / "wrong.jsonl", [("a", "b", 0.5), ("c", "d", 3.0)])
    assert tune(reranker, wrong, "-o", out) == 3
    assert "the label of line 2 of " in capsys.readouterr().err
    assert tune(reranker, rows, "-o", out, "--eval", wrong) == 3
    assert not (tmp_path / "out").exists()
