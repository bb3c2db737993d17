"""`mp-core serve`: OpenAI's client and curl get the bits of each text alone, and the server ends in order."""

import asyncio
import base64
import json
import shutil
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from math import exp

import numpy as np
import processes
import pytest
import tiny_bert
from oracles import assert_same_bits
from servers import LIMIT, Server, scorer, written

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from mp_core.models import BertEncoder, Reranker
from mp_core.serving.models import open_models
from mp_core.serving.routes import ROUTES

TEXTS = tiny_bert.TEXTS
PAIRS = [("a b", "c d"), ("a b", "e f g h a b c d e f g"), ("a b", "")]
DOCUMENTS = [document for _, document in PAIRS]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return written(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="module")
def encoder(folders):
    return BertEncoder.from_folder(folders["encoder"])


@pytest.fixture(scope="module")
def server(folders, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "log"
    running = Server(*folders.values(), f"org/other={folders['encoder']}", log=log)
    yield running
    running.stop()


@pytest.fixture
def start(folders, tmp_path):
    """Start servers of the encoder with other options; they end with the test."""
    servers = []

    def started(*options):
        servers.append(Server(folders["encoder"], *options, log=tmp_path / f"log{len(servers)}"))
        return servers[-1]

    yield started
    for server in servers:
        server.stop(signal.SIGKILL)


def embedded(answer):
    data = answer["data"]
    assert [row["index"] for row in data] == list(range(len(data)))
    return np.array([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in data])


# ---- /v1


@pytest.fixture
def client(server):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", timeout=LIMIT, max_retries=0) as client:
        yield client


def test_the_client_of_openai_gets_the_bits_of_encode(client, encoder):
    expected = encoder.encode(TEXTS)
    for name in ("encoder", "org/other"):
        for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            answer = client.embeddings.create(model=name, input=TEXTS, **form)
            rows = [row.embedding for row in answer.data]
            if form.get("encoding_format") == "base64":
                rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
            assert_same_bits(np.array(rows, np.float32), expected)
            assert answer.model == name
    single = client.embeddings.create(model="encoder", input="a b c")
    assert_same_bits(np.array(single.data[0].embedding, np.float32), encoder.encode("a b c"))


def test_the_client_of_openai_is_told_the_tokens_and_what_was_cut(client):
    answer = client.embeddings.create(model="encoder", input=TEXTS)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (5 + 2 + 3 + 10 + 6, 26)
    assert answer.model_extra["truncated"] == [3]
    assert "truncated" not in client.embeddings.create(model="encoder", input="a").model_extra


def test_the_client_of_openai_gets_shorter_embeddings_of_length_one(client, encoder):
    answer = client.embeddings.create(model="encoder", input=TEXTS, dimensions=5)
    rows = np.array([row.embedding for row in answer.data], np.float32)
    assert_same_bits(rows, encoder.encode(TEXTS, truncate_dim=5, normalize=True))
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)


def test_the_client_of_openai_sees_the_models(client):
    names = [model.id for model in client.models.list()]
    assert names == ["encoder", "reranker", "classifier", "org/other"]
    model = client.models.retrieve("org/other")
    assert (model.id, model.model_extra["kind"], model.model_extra["dimensions"]) == ("org/other", "encoder", 16)


@pytest.mark.parametrize(
    ("arguments", "error", "status", "words"),
    [
        ({"model": "absent"}, "NotFoundError", 404, "encoder, org/other"),
        ({"model": "reranker"}, "BadRequestError", 400, "of kind reranker"),
        ({"input": []}, "BadRequestError", 400, '"input" must be'),
        ({"input": [[1, 2]]}, "BadRequestError", 400, "send text"),
        ({"dimensions": 17}, "BadRequestError", 400, "at most 16"),
        ({"extra_body": {"odd": 1}}, "BadRequestError", 400, '"odd" is unknown'),
        ({"extra_body": {"truncate": False}}, "BadRequestError", 400, "text 3 has more than 10 tokens"),
        ({"extra_body": {"prompt_name": "odd"}}, "BadRequestError", 400, "query"),
    ],
)
def test_the_client_of_openai_raises_its_own_errors(client, arguments, error, status, words):
    import openai

    with pytest.raises(getattr(openai, error)) as raised:
        client.embeddings.create(**{"model": "encoder", "input": TEXTS} | arguments)
    assert raised.value.status_code == status
    assert words in raised.value.body["message"]


def test_rerank_gives_the_order_and_the_bits_of_predict(server, folders):
    scores = Reranker.from_folder(folders["reranker"]).predict(PAIRS)
    body = {"model": "reranker", "query": "a b", "documents": [DOCUMENTS[0], {"text": DOCUMENTS[1]}, DOCUMENTS[2]]}
    answer = server.get("/v1/rerank", body)
    order = np.argsort(-scores)
    assert [row["index"] for row in answer["results"]] == order.tolist()
    assert_same_bits(np.array([row["relevance_score"] for row in answer["results"]], np.float32), scores[order])
    assert answer["truncated"] == [1]
    top = server.get("/v1/rerank", body | {"top_n": 1, "return_documents": True})["results"]
    assert [row["document"] for row in top] == [{"text": DOCUMENTS[order[0]]}]


# ---- the routes of text-embeddings-inference, by curl


def curl(*arguments):
    if not shutil.which("curl"):
        pytest.skip("without curl")
    done = processes.run(["curl", "-sS", "--max-time", str(LIMIT), *arguments], capture_output=True, timeout=2 * LIMIT)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_curl_gets_embeddings(server, encoder):
    body = json.dumps({"inputs": TEXTS})
    answer = curl(f"{server.address}/embed", "-H", "Content-Type: application/json", "-d", body, "-D", "-")
    head, _, content = answer.partition("\r\n\r\n")
    assert_same_bits(np.array(json.loads(content), np.float32), encoder.encode(TEXTS))
    assert {"x-compute-tokens: 26", "x-truncated: 1"} <= set(head.lower().split("\r\n"))
    raw = json.loads(curl(f"{server.address}/embed", "-d", json.dumps({"inputs": "a b c", "normalize": False})))
    assert_same_bits(np.array(raw, np.float32), encoder.encode(["a b c"], normalize=False))


def test_curl_gets_ranks(server, folders):
    reranker = Reranker.from_folder(folders["reranker"])
    for raw in (False, True):
        body = {"query": "a b", "texts": DOCUMENTS, "raw_scores": raw, "return_text": True}
        answer = json.loads(curl(f"{server.address}/rerank", "-d", json.dumps(body)))
        scores = reranker.predict(PAIRS, activation="linear" if raw else "sigmoid")
        order = np.argsort(-scores)
        assert [(row["index"], row["text"]) for row in answer] == [(i, DOCUMENTS[i]) for i in order]
        assert_same_bits(np.array([row["score"] for row in answer], np.float32), scores[order])


def test_curl_gets_predictions(server, folders):
    classifier = Reranker.from_folder(folders["classifier"])
    logits = classifier.predict([("a b", "c")], activation="linear")[0]
    for inputs, nested in (["a b", "c"], False), ([["a b"], ["a b", "c"]], True):
        body = {"inputs": inputs, "model": "classifier"}
        answer = json.loads(curl(f"{server.address}/predict", "-d", json.dumps(body)))
        found = answer[-1] if nested else answer
        order = np.argsort(-logits)
        assert [row["label"] for row in found] == [f"label {index}" for index in order]
        shares = np.exp(logits - logits.max())
        np.testing.assert_allclose([row["score"] for row in found], (shares / shares.sum())[order], rtol=1e-5)
    single = server.get("/predict", {"inputs": "a b", "model": "classifier", "raw_scores": True})
    assert {row["label"] for row in single} == {"label 0", "label 1", "label 2"}
    score = server.get("/predict", {"inputs": ["a b", "c d"]})[0]["score"]  # of the reranker, the first that predicts
    raw = Reranker.from_folder(folders["reranker"]).predict([("a b", "c d")], activation="linear")[0]
    assert score == pytest.approx(1 / (1 + exp(-raw)), rel=1e-5)


@pytest.mark.parametrize(
    ("problem", "labels", "function"),
    [
        ("multi_label_classification", 3, "sigmoid"),
        ("single_label_classification", 3, "softmax"),
        ("regression", 3, "linear"),
        ("regression", 1, "linear"),
        (None, 1, "sigmoid"),
    ],
)
def test_predictions_are_what_the_problem_type_of_the_folder_says(tmp_path, problem, labels, function):
    folder = scorer(tmp_path / "scorer", labels, problem_type=problem)
    (served,), route = open_models({"scorer": folder}), ROUTES["/predict"]
    fields = {"inputs": "a b c", "raw_scores": False, "parameters": None}
    asked = route.ask(served, fields)
    rows = served.compute(served.tokenize(asked.inputs), asked.options)
    expected = Reranker.from_folder(folder).predict_tokens(served.tokenize(["a b c"]), activation=function).ravel()
    found = {row["label"]: row["score"] for row in route.answer(served, fields, rows, {})}
    assert found == {f"label {index}": float(score) for index, score in enumerate(expected)}


def test_ranks_and_predictions_have_the_order_of_scores_that_the_sigmoid_makes_equal(folders):
    served, other = open_models({name: folders[name] for name in ("reranker", "classifier")})
    scores, texts = np.array([20, 90, 20, 40, -200, -120], np.float32), list("abcdef")
    order = [1, 3, 0, 2, 5, 4]
    shown = [1.0, 1.0, 1.0, 1.0]
    fields = {"query": "a", "texts": texts, "raw_scores": False, "return_text": False}
    for raw, first in ((False, shown), (True, [90.0, 40.0, 20.0, 20.0])):
        answer = ROUTES["/rerank"].answer(served, fields | {"raw_scores": raw, "parameters": None}, scores, {})
        assert [row["index"] for row in answer] == order
        assert [row["score"] for row in answer][:4] == pytest.approx(first)
    fields = {"query": "a", "documents": texts, "return_documents": False, "top_n": None}
    results = ROUTES["/v1/rerank"].answer(served, fields, scores, {})["results"]
    assert [row["index"] for row in results] == order
    fields = {"inputs": "a", "raw_scores": False, "parameters": None}
    answer = ROUTES["/predict"].answer(other, fields, np.array([[-300, 90, -200]], np.float32), {})
    assert [(row["label"], row["score"]) for row in answer] == [("label 1", 1.0), ("label 2", 0.0), ("label 0", 0.0)]


def test_info_names_the_first_model_as_tei_does_and_all_models(server):
    info = server.get("/info")
    assert (info["model_id"], info["model_type"]) == ("encoder", {"embedding": {"pooling": "mean"}})
    assert (info["max_input_length"], info["auto_truncate"]) == (tiny_bert.POSITIONS, True)
    assert info["models"]["classifier"]["labels"] == ["label 0", "label 1", "label 2"]


def test_errors_of_these_routes_have_the_form_of_tei(server):
    for path, body in (("/embed", {"inputs": 1}), ("/rerank", {"query": "a", "texts": []}), ("/predict", {})):
        status, _, answer = server.ask(path, body)
        assert (status, answer["error_type"]) == (422, "Validation")
        assert '"' in answer["error"]
    status, _, answer = server.ask("/embed", {"inputs": TEXTS, "truncate": False})
    assert (status, answer["error_type"]) == (422, "Tokenizer")


# ---- many at once


def test_concurrent_requests_share_batches_and_get_their_own_bits(server, encoder):
    requests = [TEXTS[index % 5 :][: 1 + index % 3] for index in range(48)]
    gate = threading.Barrier(len(requests))

    def ask(texts):
        gate.wait(LIMIT)
        return embedded(server.get("/v1/embeddings", {"input": texts, "encoding_format": "base64"}))

    with ThreadPoolExecutor(len(requests)) as pool:
        for texts, answer in zip(requests, pool.map(ask, requests), strict=True):
            assert_same_bits(answer, encoder.encode(texts))


def test_a_request_longer_than_a_batch_has_the_same_bits(start, encoder):
    running = start("--max-batch-tokens", "7")
    answer = running.get("/v1/embeddings", {"input": TEXTS * 40, "encoding_format": "base64"})
    running.stop()
    assert_same_bits(embedded(answer), encoder.encode(TEXTS * 40))


def test_more_than_it_can_do_is_refused_in_order_and_the_rest_has_the_right_bits(start, encoder):
    from load import Asker, flood

    texts = [" ".join(words) for words in permutations("abcd")]
    running = start("--max-requests", "4", "--max-queue-tokens", "20", "--quiet")
    asker = Asker(running.port, texts, 3, encoder.encode(texts))
    report = asyncio.run(flood(asker, 2000, seconds=0.5, per_request=3))
    assert set(report["statuses"]) == {200, 429}
    assert (report["wrong"], report["without_retry_after"]) == (0, 0)
    assert running.ask("/embed", {"inputs": texts})[0] == 200


def test_an_asker_leaves_a_connection_that_the_server_has_closed():
    from load import Asker

    async def answer_once(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        content = json.dumps({"data": [{"embedding": ""}]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(content) + content)
        writer.close()

    async def asked():
        async with await asyncio.start_server(answer_once, "127.0.0.1", 0) as server:
            asker = Asker(server.sockets[0].getsockname()[1], ["a"])
            for _ in range(3):
                await asker.ask(0)
                await asker._free[-1][0].read()  # until the server has closed it
            await asker.close()
        return asker.tally

    tally = asyncio.run(asyncio.wait_for(asked(), LIMIT))
    assert (tally.statuses, tally.broken) == ({200: 3}, {})


# ---- where it listens, and who may ask


def test_a_unix_socket_is_asked_by_curl_and_removed_in_the_end(start, tmp_path, encoder):
    path = tmp_path / "socket"
    running = start("--unix-socket", str(path))
    assert running.address == f"unix:{path}"
    answer = curl("--unix-socket", path, "http://localhost/embed", "-d", json.dumps({"inputs": TEXTS}))
    assert_same_bits(np.array(json.loads(answer), np.float32), encoder.encode(TEXTS))
    assert running.stop() == 0
    assert not path.exists()


def test_a_unix_socket_that_nobody_listens_to_is_replaced(start, tmp_path):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    running = start("--unix-socket", str(path))
    with pytest.raises(AssertionError, match=r"--unix-socket: .*in use"):
        start("--unix-socket", str(path))
    assert json.loads(curl("--unix-socket", path, "http://localhost/health")) == {"status": "ok"}
    running.stop()


def test_with_a_file_of_keys_one_of_them_is_needed(start, tmp_path):
    (tmp_path / "keys").write_text("first-key\n\nsecond-key\n")
    running = start("--api-key-file", tmp_path / "keys")
    for key, status in (("first-key", 200), ("second-key", 200), ("third", 401), ("", 401)):
        headers = {"Authorization": f"Bearer {key}"}
        assert running.ask("/v1/embeddings", {"input": "a"}, headers=headers)[0] == status
    status, headers, answer = running.ask("/v1/models")
    assert (status, headers["WWW-Authenticate"], answer["error"]["code"]) == (401, "Bearer", "invalid_api_key")
    for host in ("a/health?", "a/health#", "/health"):  # from which Starlette would make another address
        assert running.ask("/v1/models", headers={"Host": host})[0] in (400, 401)
    assert [running.ask(path)[0] for path in ("/health", "/ready", "/metrics", "/nowhere")] == [200, 200, 401, 401]
    running.stop()
    assert "key" not in "".join(line for line in running.lines() if "Bearer" not in line)


# ---- what it says of itself


def test_metrics_count_what_was_done(start):
    running = start()
    running.get("/embed", {"inputs": TEXTS})
    running.ask("/embed", {})
    running.ask("/nowhere/at/all")
    samples = running.samples()
    expected = {
        'mp_core_requests_total{route="/embed",status="200"}': 1,
        'mp_core_requests_total{route="/embed",status="422"}': 1,
        'mp_core_requests_total{route="other",status="404"}': 1,
        'mp_core_texts_total{model="encoder"}': 5,
        'mp_core_tokens_total{model="encoder"}': 26,
        'mp_core_truncated_texts_total{model="encoder"}': 1,
        'mp_core_batch_tokens_bucket{model="encoder",le="16"}': 0,
        'mp_core_batch_tokens_bucket{model="encoder",le="64"}': 1,
        'mp_core_batch_texts_bucket{model="encoder",le="+Inf"}': 1,
        'mp_core_request_seconds_count{route="/embed"}': 2,
        'mp_core_queue_seconds_count{model="encoder"}': 1,
        "mp_core_queue_tokens": 0,
        "mp_core_requests_in_flight": 1,
    }
    assert {name: samples.get(name) for name in expected} == expected


def test_the_client_of_prometheus_reads_the_metrics(server):
    parser = pytest.importorskip("prometheus_client.parser")
    server.get("/embed", {"inputs": TEXTS})
    status, headers, text = server.ask("/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = {family.name: family for family in parser.text_string_to_metric_families(text.decode())}
    kinds = {name: family.type for name, family in families.items() if family.samples}
    assert (kinds["mp_core_requests"], kinds["mp_core_queue_tokens"], kinds["mp_core_info"]) == (
        "counter",
        "gauge",
        "gauge",
    )
    sizes = [sample for sample in families["mp_core_batch_tokens"].samples if sample.labels["model"] == "encoder"]
    counts = [sample.value for sample in sizes if sample.name.endswith("_bucket")]
    (total,) = (sample.value for sample in sizes if sample.name.endswith("_count"))
    assert counts == sorted(counts)
    assert counts[-1] == total > 0


def test_the_log_has_one_line_a_request(start):
    running = start("--log-format", "json")
    running.get("/embed", {"inputs": TEXTS})
    running.ask("/embed", {"inputs": 1})
    running.ask("/%0a%1b[31m\r\n".strip())
    running.get("/health")
    lines = [json.loads(line) for line in running.lines(4)]
    told = [(line["message"], line["status"], line.get("texts"), line.get("truncated")) for line in lines[1:]]
    assert told[:2] == [("POST /embed", 200, 5, 1), ("POST /embed", 422, None, None)]
    assert (len(told), told[2][1]) == (3, 404)
    assert '"inputs" must be' in lines[2]["error"]
    assert running.stop() == 0
    assert json.loads(running.lines(5)[-1])["message"] == "stopped"


def test_a_client_that_goes_away_is_one_short_line(start):
    running = start()
    head = b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
    for body in (b"", b'{"inputs": '):
        with running.connect() as connection:
            connection.sendall(head + body)
        line = running.lines(2 + bool(body))[-1]
        assert "whose client went away" in line
        assert len(line) < 200
    running.stop()
    assert len(running.lines()) == 4  # of the model, of two clients, of the end


# ---- the end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_was_begun_is_answered_before_the_end_and_new_clients_are_refused(start, encoder, number):
    running = start()
    body = json.dumps({"inputs": "a b c"}).encode()
    with running.connect() as connection, running.connect() as idle:
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        connection.sendall(f"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        connection.sendall(body[:5])
        running.wait_for("mp_core_requests_in_flight", 2)
        running.process.send_signal(number)
        assert idle.makefile("rb").read().endswith(b'{"status":"ok"}')  # and then it is closed
        with pytest.raises(OSError):
            running.connect().close()
        connection.sendall(body[5:])
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert_same_bits(np.array(json.loads(answer.rpartition(b"\r\n")[2]), np.float32), encoder.encode(["a b c"]))
    assert running.stop(None) == 0


def test_what_is_not_answered_in_time_is_told_to_come_back(start):
    running = start("--grace-seconds", "1")
    with running.connect() as connection:
        connection.sendall(b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
        running.wait_for("mp_core_requests_in_flight", 2)
        running.process.send_signal(signal.SIGTERM)
        answer = connection.makefile("rb").read().lower()
    assert answer.startswith(b"http/1.1 503")
    assert b"retry-after: 5" in answer
    assert running.stop(None) == 1  # one was not answered
