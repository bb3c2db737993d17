"""Sparse and multi-vector encoders behind `mp-core serve` and `mp-core embed`: the numbers of their own methods."""

import json
from contextlib import contextmanager

import late_models
import numpy as np
import pytest
import test_m3
import test_routes
from servers import Server

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from mp_core import cli
from mp_core.cli import embed
from mp_core.models import BertEncoder, M3Encoder, MultiVectorEncoder, SparseEncoder

TEXTS = ["a b c", "d", "e f g h a b c d e"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    room = tmp_path_factory.mktemp("late")
    test_routes.inference_free(room / "sparse")
    late_models.colbert("bert", room / "multi", query_expansion={"strategy": "fixed", "length": 12})
    test_m3.write(room / "m3" / "model")
    test_routes.two_networks(room / "routed")
    return {name: room / name / "model" for name in ("sparse", "multi", "m3", "routed")}


@pytest.fixture(scope="module")
def server(folders, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "log"
    running = Server(*(f"{name}={folder}" for name, folder in folders.items()), log=log)
    yield running
    running.stop()


def as_json(vectors):
    return [[{"index": int(i), "value": float(x)} for i, x in zip(*vector, strict=True)] for vector in vectors]


def test_weights_of_tokens_are_those_of_the_encoder(server, folders):
    encoder = SparseEncoder.from_folder(folders["sparse"])
    for task in ("query", "document"):
        answer = server.get("/embed_sparse", {"inputs": TEXTS, "prompt_name": task})
        assert answer == as_json(encoder.encode_sparse(TEXTS, task=task))
    assert server.get("/embed_sparse", {"inputs": TEXTS[0]}) == as_json(encoder.encode_sparse(TEXTS[0]))


def test_vectors_of_tokens_are_those_of_the_encoder(server, folders):
    encoder = MultiVectorEncoder.from_folder(folders["multi"])
    for task in ("query", "document"):
        answer = server.get("/embed_all", {"inputs": TEXTS, "prompt_name": task})
        assert answer == [vectors.tolist() for vectors in encoder.encode_multi(TEXTS, task=task)]
    assert server.get("/embed_all", {"inputs": TEXTS}) == answer


def test_bge_m3_answers_all_three(server, folders):
    vectors = M3Encoder.from_folder(folders["m3"]).encode_all(TEXTS)
    body = {"inputs": TEXTS, "model": "m3"}
    assert server.get("/embed_sparse", body) == as_json(vectors.sparse)
    assert server.get("/embed_all", body) == [own.tolist() for own in vectors.multi]
    answer = server.get("/v1/embeddings", {"input": TEXTS, "model": "m3"})
    assert [one["embedding"] for one in answer["data"]] == vectors.dense.tolist()
    told = server.get("/info")["models"]
    assert {name: one["kind"] for name, one in told.items()} == {
        "sparse": "sparse", "multi": "multi-vector", "m3": "encoder", "routed": "encoder",
    }  # fmt: skip


def test_texts_take_the_route_of_their_prompt(server, folders):
    encoder = BertEncoder.from_folder(folders["routed"])
    for task in ("query", "document"):
        body = {"input": TEXTS, "model": "routed", "prompt_name": task}
        found = [one["embedding"] for one in server.get("/v1/embeddings", body)["data"]]
        assert found == getattr(encoder, f"encode_{task}")(TEXTS).tolist()


def test_what_a_model_cannot_do_is_refused_by_name(server):
    for path, model, message in (
        ("/embed_sparse", "multi", "multi is of kind multi-vector, not sparse; those of this kind are sparse, m3"),
        ("/embed_all", "sparse", "sparse is of kind sparse, not multi-vector; those of this kind are multi, m3"),
        ("/embed", "sparse", "sparse is of kind sparse, not encoder; those of this kind are m3, routed"),
    ):
        status, _, answer = server.ask(path, {"inputs": "a", "model": model})
        assert status == 422 and message in answer["error"]
    status, _, answer = server.ask("/embed_sparse", {"inputs": "a", "normalize": True})
    assert status == 422 and '"normalize" is unknown' in answer["error"]


def embedded(capfdbinary, folder, *options, code=0):
    assert cli.main(["embed", str(folder), "--quiet", *options]) == code
    out, error = capfdbinary.readouterr()
    return [json.loads(line) for line in out.splitlines()], error.decode()


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts").write_text("\n".join(TEXTS) + "\n")
    return str(tmp_path / "texts")


def test_lines_hold_what_the_encoder_gives(folders, texts, capfdbinary):
    sparse = SparseEncoder.from_folder(folders["sparse"]).encode_sparse(TEXTS, task="query")
    for line, (indices, values) in zip(
        embedded(capfdbinary, folders["sparse"], "--task", "query", texts)[0], sparse, strict=True
    ):
        assert line["indices"] == indices.tolist()
        np.testing.assert_array_equal(np.array(line["values"], np.float32), values)
    multi = MultiVectorEncoder.from_folder(folders["multi"]).encode_multi(TEXTS, task="query")
    for line, vectors in zip(embedded(capfdbinary, folders["multi"], "--task", "query", texts)[0], multi, strict=True):
        np.testing.assert_array_equal(np.array(line["embeddings"], np.float32), vectors)
    every = M3Encoder.from_folder(folders["m3"]).encode_all(TEXTS)
    lines = embedded(capfdbinary, folders["m3"], "--kind", "sparse", texts)[0]
    assert [line["indices"] for line in lines] == [indices.tolist() for indices, _ in every.sparse]
    lines = embedded(capfdbinary, folders["m3"], texts)[0]
    np.testing.assert_array_equal(np.array([line["embedding"] for line in lines], np.float32), every.dense)
    routed = BertEncoder.from_folder(folders["routed"])
    lines = embedded(capfdbinary, folders["routed"], "--task", "query", "--prompt-name", "query", texts)[0]
    expected = routed.encode_query(TEXTS)
    np.testing.assert_array_equal(np.array([line["embedding"] for line in lines], np.float32), expected)


@pytest.mark.parametrize("name", ["sparse", "multi"])
def test_progress_counts_the_texts_of_each_batch(name, folders, texts, capfd, monkeypatch):
    counts = []

    @contextmanager
    def counting(**_):
        yield counts.append

    monkeypatch.setattr(embed, "counting", counting)
    assert cli.main(["embed", str(folders[name]), "--batch-size", "2", texts]) == 0
    assert counts == [2] * (len(TEXTS) // 2) + [1] * (len(TEXTS) % 2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sparse", ["--kind", "dense"], "argument --kind: this model computes only sparse vectors"),
        ("sparse", ["--format", "npy"], "argument --format: must be jsonl for sparse vectors"),
        ("multi", ["--normalize"], "argument --normalize: not allowed with multi-vector vectors"),
        ("sparse", ["--truncate-dim", "3"], "argument --truncate-dim: not allowed with sparse vectors"),
        ("routed", ["--task", "other"], "argument --task: `task` must be 'query' or 'document'"),
        (
            "sparse",
            ["--task", "query", "--dask", "tcp://127.0.0.1:1"],
            "argument --dask: computes only dense vectors",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(name, options, message, folders, texts, capfd):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["embed", str(folders[name]), *options, texts])
    assert stopped.value.code == 2 and message in capfd.readouterr().err
