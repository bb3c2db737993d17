"""Completions over HTTP: OpenAI's client, the bits of a lone run for any mix, clients that vanish, hostile bodies."""

import asyncio
import json
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from chat_templates import TEMPLATES
from generating import END, PROMPTS, written
from servers import LIMIT, Lines, running, serving

from mp_core.models.generation import Generator
from mp_core.models.generation.batch import Run
from mp_core.models.generation.cache import PAGE

pytest.importorskip("jinja2")
front = pytest.importorskip("mp_core.serving.front")

from mp_core.serving.limits import Limits  # noqa: E402  # it and the models need the packages above
from mp_core.serving.models import Decoder  # noqa: E402

MESSAGES = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("completions")
    written(made, max_position_embeddings=2000)
    (made / "chat_template.jinja").write_text(TEMPLATES["phi"])
    return made


@pytest.fixture(scope="module")
def lone(folder):
    """Return a generator that nobody else uses."""
    return Generator.from_folder(folder, "float32")


def decoder(folder, **settings):
    return Decoder("small", Generator.from_folder(folder, "float32", **settings))


@pytest.fixture(scope="module")
def served(folder):
    """Yield a port at which a decoder answers, and the decoder."""
    model = decoder(folder)
    with serving(front.create_app([model], log=Lines())) as (port, _):
        yield port, model


@pytest.fixture(scope="module")
def client(served):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{served[0]}/v1", api_key="none", max_retries=0) as made:
        yield made


def wait_until(condition):
    """Wait until a condition holds."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_openai_reads_completions(client, lone):
    expected = lone.generate(PROMPTS[:2], 20, temperature=1.5, top_p=0.9, seed=3, log_probabilities=2)
    how = {"max_tokens": 20, "temperature": 1.5, "top_p": 0.9, "seed": 3, "logprobs": 2}
    found = client.completions.create(model="small", prompt=PROMPTS[:2], **how)
    assert [choice.text for choice in found.choices] == [each.text for each in expected]
    assert [choice.index for choice in found.choices] == [0, 1]
    for choice, each in zip(found.choices, expected, strict=True):
        assert choice.finish_reason == each.reason
        assert choice.logprobs.token_logprobs == [number for number, _ in each.log_probabilities]
        assert choice.logprobs.tokens == lone.words(each.tokens)
        assert len(choice.logprobs.text_offset) == len(each.tokens)
    assert found.usage.completion_tokens == sum(len(each.tokens) for each in expected)
    assert found.usage.prompt_tokens == sum(len(prompt.encode()) for prompt in PROMPTS[:2])


def test_openai_streams_completions(client, lone):
    options = {"include_usage": True}
    chunks = list(
        client.completions.create(model="small", prompt=PROMPTS[2], stream=True, stream_options=options, temperature=0)
    )
    expected = lone.generate(PROMPTS[2], 16)
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == expected.text
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1] if chunk.choices[0].finish_reason] == [
        expected.reason
    ]
    assert chunks[-1].usage.completion_tokens == len(expected.tokens)
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_openai_reads_chats(client, lone, stream):
    how = {"max_tokens": 12, "temperature": 1.5, "seed": 2}
    expected = lone.generate([lone.chat_tokens(MESSAGES)] * 2, 12, temperature=1.5, seed=2, log_probabilities=1)
    how = {"max_completion_tokens": 12, "temperature": 1.5, "seed": 2, "n": 2, "logprobs": True, "top_logprobs": 1}
    found = client.chat.completions.create(model="small", messages=MESSAGES, stream=stream, **how)
    if not stream:
        assert [choice.message.content for choice in found.choices] == [each.text for each in expected]
        logs = [[entry.logprob for entry in choice.logprobs.content] for choice in found.choices]
    else:
        chunks = [chunk.choices[0] for chunk in found]
        texts, logs = ["", ""], [[], []]
        for chunk in chunks:
            texts[chunk.index] += chunk.delta.content or ""
            logs[chunk.index] += [entry.logprob for entry in chunk.logprobs.content]
        assert texts == [each.text for each in expected]
        assert [chunk.delta.role for chunk in chunks if chunk.delta.role] == ["assistant"] * 2
    assert logs == [[number for number, _ in each.log_probabilities] for each in expected]


def test_stops_and_tokens_as_prompts(client, lone):
    whole = lone.generate(PROMPTS[0], 30, temperature=2.0).text
    found = client.completions.create(model="small", prompt=PROMPTS[0], max_tokens=30, temperature=2, stop=[whole[5:8]])
    assert (found.choices[0].text, found.choices[0].finish_reason) == (whole[: whole.index(whole[5:8])], "stop")
    ids = lone._tokenizer([PROMPTS[0]])[0][0].tolist()
    for prompt in (ids, [ids]):
        again = client.completions.create(model="small", prompt=prompt, max_tokens=30, temperature=2)
        assert again.choices[0].text == whole


def test_content_in_parts_and_variables(client, lone):
    parts = [{"role": "user", "content": [{"type": "text", "text": "the"}, {"type": "text", "text": "cat"}]}]
    found = client.chat.completions.create(
        model="small", messages=parts, max_tokens=5, temperature=0, extra_body={"chat_template_kwargs": {"a": [1]}}
    )
    assert found.choices[0].message.content == lone.chat([{"role": "user", "content": "the\ncat"}], 5).text


def test_penalties_and_biases(client, lone):
    how = {"max_tokens": 30, "temperature": 0, "presence_penalty": 0.5, "frequency_penalty": 1.5}
    found = client.completions.create(model="small", prompt=PROMPTS[0], logit_bias={"7": 3}, **how)
    assert found.choices[0].text == lone.generate(PROMPTS[0], logit_bias={7: 3}, **how).text


def test_models_are_listed(client):
    (model,) = client.models.list().data
    assert (model.id, model.kind) == ("small", "generator")


def test_any_mix_of_requests_has_the_bits_of_lone_runs(client, served, lone):
    rng = np.random.default_rng(5)
    requests = [
        {
            "prompt": PROMPTS[index % len(PROMPTS)] * int(rng.integers(1, 4)),
            "max_tokens": int(rng.integers(1, 40)),
            "temperature": float(rng.choice([0, 1.5])),
            "seed": index,
            "logprobs": 1,
        }
        for index in range(24)
    ]

    def ask(request):
        return client.completions.create(model="small", **request).choices[0]

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(ask, requests))
    for request, choice in zip(requests, found, strict=True):
        how = {"temperature": request["temperature"], "seed": request["seed"], "log_probabilities": 1}
        expected = lone.generate(request["prompt"], request["max_tokens"], **how)
        assert choice.text == expected.text
        assert choice.logprobs.token_logprobs == [number for number, _ in expected.log_probabilities]
    wait_until(lambda: served[1].generator.used_pages == 0)


def started(port, body):
    """Return a socket on which a streamed answer has begun."""
    content = json.dumps(body).encode()
    found = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
    found.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
    return found


@pytest.mark.parametrize("how", ["close", "reset"])
def test_clients_that_vanish_free_their_pages(folder, how):
    model = decoder(folder, cache_tokens=20 * PAGE)
    log = Lines()
    with serving(front.create_app([model], log=log)) as (port, _):
        body = {"prompt": "a" * 100, "max_tokens": 1100, "stream": True, "seed": 1, "temperature": 3}
        streaming = started(port, body)
        assert b"data: " in streaming.recv(1 << 16) + streaming.recv(1 << 16)
        waiting = [started(port, body), started(port, body | {"stream": False})]
        wait_until(lambda: asked(port, "/metrics")[1].count(b"mp_core_queue_texts 2"))
        assert model.generator.used_pages > 0
        for each in (*waiting, streaming):
            if how == "reset":
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()
        wait_until(lambda: b"mp_core_requests_in_flight 1" in asked(port, "/metrics")[1])  # the scrape itself
        wait_until(lambda: model.generator.used_pages == 0)
        metrics = asked(port, "/metrics")[1]
        assert b"mp_core_queue_tokens 0" in metrics
        assert b"mp_core_generating 0" in metrics
    assert [fields["status"] for _, message, fields in log.kept if "went away" in message] == [499] * 3


def asked(port, path, body=None):
    """Return the status and the body of an answer."""
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        connection.request("GET" if body is None else "POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_half_closed_client_gets_its_answer(served, lone):
    with started(served[0], {"prompt": PROMPTS[0], "max_tokens": 9, "temperature": 0, "stream": True}) as client:
        client.shutdown(socket.SHUT_WR)
        content = b""
        while part := client.recv(1 << 16):
            content += part
    events = [line[6:] for line in content.split(b"\n") if line.startswith(b"data: {")]
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == lone.generate(PROMPTS[0], 9).text
    assert b"data: [DONE]" in content


BAD = [
    ({"prompt": ""}, 400, "`prompt[0]` must have a token"),
    ({"prompt": []}, 400, '"prompt" must be a string'),
    ({"prompt": {"a": 1}}, 400, '"prompt" must be a string'),
    ({"prompt": [END + 1]}, 400, "tokens from 0 to 256"),
    ({"prompt": [-1]}, 400, '"prompt"[0] must be the number of a token'),
    ({"prompt": [True]}, 400, '"prompt"[0] must be the number of a token'),
    ({"prompt": [2**40]}, 400, '"prompt"[0] must be the number of a token'),
    ({"prompt": [[1], "a"]}, 400, '"prompt"[1] must be a list'),
    ({"prompt": "a\ud800"}, 400, "half of a surrogate pair"),
    ({"prompt": "a" * 2000}, 400, "`prompt[0]` must have fewer than 2000 tokens"),
    ({"prompt": "a" * 900, "max_tokens": 2**30}, 400, "may have 1024 tokens, those of the cache; these have 2000"),
    ({"prompt": ["a"] * 3000}, 413, "at most 2048 texts"),
    ({"prompt": ["a" * 500] * 10}, 413, "at most 4000 tokens"),
    ({"prompt": "a" * 3_000_000}, 413, "at most"),
    ({"prompt": "a", "temperature": -1}, 400, '"temperature" must be a number from 0 on'),
    ({"prompt": "a", "temperature": "1"}, 400, '"temperature" must be'),
    ({"prompt": "a", "top_p": 1.5}, 400, '"top_p" must be a number from 0 to 1'),
    ({"prompt": "a", "seed": 2**63}, 400, '"seed" must be an integer'),
    ({"prompt": "a", "max_tokens": 0}, 400, '"max_tokens" must be a positive'),
    ({"prompt": "a", "n": 1000}, 400, '"n" must be an integer from 1 to 128'),
    ({"prompt": "a", "stop": [""]}, 400, '"stop" must be a string of 1 to 1024 characters'),
    ({"prompt": "a", "stop": "z" * 1025}, 400, '"stop" must be a string of 1 to 1024 characters'),
    ({"prompt": "a", "stop": ["a"] * 17}, 400, '"stop" must be'),
    ({"prompt": "a", "echo": True}, 400, '"echo" must be false'),
    ({"prompt": "a", "logit_bias": {"a": 2}}, 400, '"logit_bias" must be an object'),
    ({"prompt": "a", "logit_bias": {"1": "2"}}, 400, '"logit_bias"."1" must be a number'),
    ({"prompt": "a", "logit_bias": {"257": 2}}, 400, "`logit_bias` must have tokens from 0 to 256"),
    ({"prompt": "a", "best_of": 2}, 400, '"best_of" must be 1'),
    ({"prompt": "a", "presence_penalty": 1e300}, 400, '"presence_penalty" must be a number'),
    ({"prompt": "a", "logprobs": 21}, 400, '"logprobs" must be'),
    ({"prompt": "a", "stream_options": {"a": 1}}, 400, 'the field "a" of "stream_options" is unknown'),
    ({"prompt": "a", "suffix": "b"}, 400, 'the field "suffix" is unknown'),
    ({"prompt": "a", "model": "other"}, 404, "there is no model of that name"),
    (b'{"prompt": "a", "temperature": NaN}', 400, "NaN is not a JSON number"),
    (b'{"prompt": "a", "temperature": 1e999}', 400, '"temperature" must be'),
    (b'{"prompt": "a", "temperature": 1' + b"0" * 4000 + b"}", 400, '"temperature" must be'),
    (b'{"prompt": "\xff"}', 400, "the body must be JSON"),
    (b"[" * 100_000, 400, "the body must be JSON"),
]
BAD_CHATS = [
    ({"messages": []}, 400, '"messages" must be a list of at least one message'),
    ({"messages": ["a"]}, 400, '"messages"[0] must be an object'),
    ({"messages": [{"content": "a"}]}, 400, '"messages"[0]."role" is missing'),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, '"type" must be "text"'),
    ({"messages": MESSAGES, "tools": []}, 400, 'the field "tools" is unknown'),
    ({"messages": MESSAGES, "top_logprobs": 1}, 400, '"top_logprobs" needs "logprobs"'),
    ({"messages": MESSAGES, "response_format": {"type": "json_object"}}, 400, '"response_format" must be'),
    ({"messages": MESSAGES, "chat_template_kwargs": {"messages": []}}, 400, '"chat_template_kwargs" must be'),
    ({"messages": MESSAGES, "chat_template_kwargs": {"a b": []}}, 400, '"chat_template_kwargs" must be'),
    ({"messages": [{"role": "user", "content": "a" * 2500}]}, 400, "`messages` must have fewer than 2000 tokens"),
]


def test_bad_requests_are_refused_in_the_form_of_openai(folder):
    model = decoder(folder, cache_tokens=1024)
    limits = Limits(tokens=4000)

    async def main():
        async with running(front.create_app([model], limits=limits, log=Lines())) as ask:
            for path, cases in (("/v1/completions", BAD), ("/v1/chat/completions", BAD_CHATS)):
                for body, status, message in cases:
                    found = await ask(path, body)
                    assert found[0] == status, (body, found)
                    assert (found[0], set(found[2]["error"])) == (status, {"message", "type", "param", "code"}), body
                    assert message in found[2]["error"]["message"], (message, found[2])
            assert (await ask("/", {"inputs": "a"}))[0] == (await ask("/embed", {"inputs": "a"}))[0] == 404
            status, _, answer = await ask("/v1/completions", {"prompt": "a", "temperature": 1e-45})
            assert (status, answer["usage"]["completion_tokens"]) == (200, 16)

    asyncio.run(main())
    assert model.generator.used_pages == 0


def test_a_full_queue_is_refused_and_others_are_answered(folder, lone):
    model = decoder(folder, cache_tokens=4 * PAGE)
    body = {"prompt": PROMPTS[0], "max_tokens": 200, "temperature": 0}

    async def main():
        async with running(front.create_app([model], limits=Limits(queue_tokens=300), log=Lines())) as ask:
            tasks = [asyncio.create_task(ask("/v1/completions", body)) for _ in range(4)]
            return await asyncio.gather(*tasks)

    found = asyncio.run(main())
    statuses = [status for status, *_ in found]
    assert sorted(set(statuses)) == [200, 429]
    assert all("retry-after" in headers for status, headers, _ in found if status == 429)
    expected = lone.generate(PROMPTS[0], 200).text
    assert all(answer["choices"][0]["text"] == expected for status, _, answer in found if status == 200)


def test_a_text_whose_logits_are_not_finite_fails_alone(folder, lone, monkeypatch):
    model, add = decoder(folder), Run.add
    monkeypatch.setattr(Run, "add", lambda run, logits: add(run, logits * np.nan if run.prompt == [3, 4] else logits))

    async def main():
        async with running(front.create_app([model], log=Lines())) as ask:
            bodies = [{"prompt": [3, 4], "max_tokens": 30}, {"prompt": [5, 6], "max_tokens": 30, "temperature": 0}]
            bodies.append(bodies[0] | {"stream": True})
            return await asyncio.gather(*(ask("/v1/completions", body) for body in bodies))

    bad, good, streamed = asyncio.run(main())
    assert (bad[0], good[0], streamed[0]) == (500, 200, 500)
    assert "the logits of its next token have Inf or NaN" in bad[2]["error"]["message"]
    assert good[2]["choices"][0]["text"] == lone.generate([[5, 6]], 30)[0].text
    assert model.generator.used_pages == 0


def test_the_server_answers_what_it_has_received_before_it_ends(folder, lone):
    model, found = decoder(folder), []
    with serving(front.create_app([model], log=Lines())) as (port, server):
        body = json.dumps({"prompt": PROMPTS[0], "max_tokens": 300, "temperature": 0})
        thread = threading.Thread(target=lambda: found.append(asked(port, "/v1/completions", body)))
        thread.start()
        wait_until(lambda: model.generator.used_pages)
        server.should_exit = True
        thread.join(LIMIT)
    ((status, answer),) = found
    assert status == 200
    assert json.loads(answer)["choices"][0]["text"] == lone.generate(PROMPTS[0], 300).text
    assert model.generator.used_pages == 0


def test_the_command_serves_generators(folder, tmp_path):
    from servers import Server

    server = Server("--generator", f"small={folder}", "--cache-tokens", "640", log=tmp_path / "log")
    try:
        (model,) = server.get("/v1/models")["data"]
        assert (model["id"], model["cache_tokens"]) == ("small", 640)
        assert server.get("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3})["choices"]
        assert server.get("/tokenize", {"inputs": "ab"})[0][0]["text"] == "a"
    finally:
        assert server.stop() == 0
