"""``mp-core tune``: what it writes and reports, resuming, and what it refuses."""

import hashlib
import json
import os
import random
import sys
import time

import numpy as np
import processes
import pytest
import tiny_bert
from command import usage_error

from mp_core import cli
from mp_core.models import BertEncoder
from mp_core.models.tuning.evaluation import correlation, retrieval

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
    assert losses[-1] < 0.9 * losses[0]
    encoder = BertEncoder.from_folder(out)
    assert all(layer.quantized for layer in encoder.flatten() if str(layer.path) in encoder.kernel_names)
    plain = BertEncoder.from_folder(model, "int8")
    assert (encoder.encode(["a b"]) != plain.encode(["a b"])).any()


def test_codes_are_trained_to_give_the_vectors_of_the_floats(capsys, tmp_path, model, pairs):
    for name, options in {"floats": [], "rounded": ["--policy", "int4/8"], "trained": ["--distill", 60]}.items():
        options = [*options, *(["--policy", "int4/8"] if name == "trained" else [])]
        assert tune(model, pairs, "-o", tmp_path / name, "--quiet", *options) == 0
    texts = [text for pair in PAIRS for text in pair]
    floats, *codes = (
        BertEncoder.from_folder(tmp_path / name).encode(texts) for name in ("floats", "rounded", "trained")
    )
    rounded, trained = ((floats * vectors).sum(axis=1).mean() for vectors in codes)
    assert trained > rounded
    assert "needs --policy with codes" in usage_error(
        capsys, "tune", model, pairs, "-o", str(tmp_path / "x"), "--distill", "1"
    )


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


def test_the_state_of_another_run_is_refused(capsys, tmp_path, model, pairs):
    state = tmp_path / "state"
    state.mkdir()
    (state / "training.state").write_bytes(b"x")
    (state / "tune.json").write_text(json.dumps({"epochs": 7}))
    error = usage_error(capsys, "tune", model, pairs, "-o", str(tmp_path / "out"), "--resume", str(state))
    assert "has the state of another run: its --epochs is 7, here 1" in error


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


# ---- hostile examples

TEXTS = ["a b", "c", "d e f", "h g " * 9, "zebra", "\u00e9\u00e8", "\u4e2d\u6587", "x" * 1000]
WRONG = ["", " ", "\x00", 3, None, [], {}, True, float("nan"), "\ud800"]
SCORES = [0.0, 1.0, 0.5, -1, 7, float("nan"), float("inf"), 10**400, "0.5", None, True, [0.1], {}]


def hostile(seed):
    """Return the name of a file, its bytes, and options: mostly of sound examples, some of them damaged."""
    rng = random.Random(seed)
    count, columns = rng.choice([0, 1, 2, 4, 4, 8, 8, 8]), rng.choice([1, 2, 2, 2, 2, 2, 3])
    names = ["query", "answer", "negative", "other"][:columns] + (["score"] if rng.random() < 0.4 else [])
    same = rng.random() < 0.1
    rows = []
    for _ in range(count):
        row = {name: rng.choice(SCORES if rng.random() < 0.05 else [0.0, 0.5, 1.0]) if name == "score" else (
            rng.choice(WRONG if rng.random() < 0.01 else TEXTS)) for name in names}  # fmt: skip
        if rng.random() < 0.03:
            row.pop(rng.choice(names))
        if rng.random() < 0.02:
            row["extra"] = rng.choice(TEXTS)
        rows.append(rows[0] if rows and same else row)
    if rng.random() < 0.01 and rows:
        rows[0][names[0]] = "a b c " * 170_000
    kind = rng.choice([".jsonl", ".jsonl", ".csv", ".tsv", ".txt"] if rng.random() < 0.1 else [".jsonl", ".csv"])
    if kind == ".jsonl":
        lines = [json.dumps(row if rng.random() < 0.98 else list(row.values())) for row in rows]
    else:
        mark = "\t" if kind == ".tsv" else ","
        lines = [mark.join(names), *(mark.join(str(cell) for cell in row.values()) for row in rows)]
    for _ in range(rng.choice([0, 0, 0, 0, 0, 1])):
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(["", " ", "{", '"', "[[[", "null", "3", "\x00", ",,,,"]))
    content = "\n".join(lines).encode(errors="surrogatepass")
    if rng.random() < 0.03:
        content = content[: rng.randrange(len(content) + 1)] + rng.choice([b"\xff", b"\xef\xbb\xbf", b""])
    fitting = ["cosine", "cosent"] if "score" in names else ["multiple_negatives", "multiple_negatives_symmetric"]
    losses = fitting if rng.random() < 0.8 else ["cosine", "triplet", "mse", "margin_mse", *fitting]
    options = ["--loss", rng.choice(losses)] if rng.random() < 0.7 else []
    return f"examples{kind}", content, [*options, "--batch-size", str(rng.choice([1, 2, 4, 4, 4]))]


CASES = int(os.environ.get("MP_CORE_HOSTILE", "40"))


def test_hostile_examples_are_an_error_or_a_right_result_and_nothing_is_half_written(capsys, tmp_path, model):
    done = 0
    for seed in range(CASES):
        name, content, options = hostile(seed)
        (tmp_path / name).write_bytes(content)
        out = tmp_path / "out"
        try:
            code = tune(model, tmp_path / name, "-o", out, "--quiet", *options)
        except SystemExit as stopped:
            code = stopped.code
        error = capsys.readouterr().err
        assert code in (0, 2, 3), (seed, code)
        assert (code == 0) == out.exists(), seed
        assert (code == 0) == (error == ""), (seed, error)
        assert "Traceback" not in error, (seed, error)
        if code == 0:
            done += 1
            assert np.isfinite(BertEncoder.from_folder(out).encode(["a b", "c"])).all(), seed
            for path in sorted(out.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            out.rmdir()
        assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []
    assert CASES < 40 or 0.15 * CASES < done < 0.9 * CASES
