"""``mp-core tune``: what it writes and reports, resuming, and what it refuses."""

import hashlib
import json
import sys
import time

import numpy as np
import processes
import pytest
import tiny_bert
from command import usage_error

from mp_core import cli
from mp_core.cli import tuned
from mp_core.models import BertEncoder
from mp_core.models.tuning.evaluation import correlation, cosines, retrieval

PAIRS = [("a b", "c d"), ("e", "f g h"), ("b c d", "a"), ("h g", "e f"), ("c", "c h a b e")]


@pytest.fixture
def model(tmp_path):
    return str(tiny_bert.write(tmp_path / "model", hidden_dropout_prob=0.0))


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps({"query": a, "answer": b}) for a, b in PAIRS))
    return str(path)


def digest_of(folder):
    parts = [f"{path.relative_to(folder)}".encode() + path.read_bytes() for path in sorted(folder.rglob("*.*"))]
    return hashlib.sha256(b"".join(parts)).hexdigest()


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


def test_adapters_are_trained_beside_codes_and_the_sums_are_written(capsys, tmp_path, model, pairs):
    out = tmp_path / "out"
    options = ["--lora", 2, "--policy", "int8", "--epochs", 30, "--batch-size", 5, "--learning-rate", 0.02, "--json"]
    assert tune(model, pairs, "-o", out, *options) == 0
    losses = json.loads(capsys.readouterr().out)["losses"]
    assert losses[-1] < losses[0]
    encoder = BertEncoder.from_folder(out)
    assert all(layer.quantized for layer in encoder.flatten() if str(layer.path) in encoder.kernel_names)
    plain = BertEncoder.from_folder(model, "int8")
    assert (encoder.encode(["a b"]) != plain.encode(["a b"])).any()


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


def test_workers_of_a_cluster_give_the_bytes_of_one_process(tmp_path, model, pairs):
    distributed = pytest.importorskip("distributed")
    options = [model, pairs, "--epochs", 3, "--batch-size", 5, "--chunk", 2, "--quiet"]
    assert tune(*options, "-o", tmp_path / "alone") == 0
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, silence_logs=50
    ) as cluster:
        assert tune(*options, "-o", tmp_path / "workers", "--dask", cluster.scheduler_address) == 0
    assert digest_of(tmp_path / "workers") == digest_of(tmp_path / "alone")


def test_workers_need_chunks_and_an_address(capsys, tmp_path, model, pairs):
    command = ["tune", model, pairs, "-o", str(tmp_path / "out"), "--dask"]
    for options in ([], ["--chunk", "32"]):
        error = usage_error(capsys, *command, "absent:1", *options)
        assert "argument --dask: needs --chunk below --batch-size, 32: workers compute chunks" in error
    assert "must be the address of a scheduler" in usage_error(capsys, *command, "", "--chunk", "2")


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
    assert error.endswith(f"is {'OUT' if 'out' in place else 'MODEL'}, or in it")
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
    assert "lies inside the folder" in inside
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
