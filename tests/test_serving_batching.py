"""The queue of the server: batches by tokens, turns, room, clients that disconnect; and the application around it."""

import asyncio
import threading

import numpy as np
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from servers import LIMIT, Lengths, Lines, running

from mp_core.models.texts import Tokens
from mp_core.serving.batching import Batcher
from mp_core.serving.errors import RefusedError
from mp_core.serving.front import create_app
from mp_core.serving.limits import Limits
from mp_core.serving.metrics import Metrics


def tokens_of(*lengths):
    return Tokens([np.zeros(length, np.int32) for length in lengths])


def batcher_of(**limits):
    return Batcher(Limits(**limits), Metrics())


def batched(model, requests, options=(), **limits):
    """Return the answers, or errors, to requests of texts of so many tokens that come at once."""

    async def run():
        batcher = batcher_of(**limits)
        batcher.start()
        each = options or [{}] * len(requests)
        calls = [batcher(model, tokens_of(*lengths), how) for lengths, how in zip(requests, each, strict=True)]
        answers = asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0)  # the requests are in the queue
        await batcher.close()
        assert (batcher.waiting, batcher.texts) == (0, 0)
        return [answer if isinstance(answer, Exception) else answer[0][:, 0].tolist() for answer in await answers]

    return asyncio.run(run())


def test_batches_are_filled_in_order_and_not_beyond_their_tokens():
    model = Lengths()
    requests = [[2], [3, 3], [9], [1, 1], [5]]
    assert batched(model, requests, batch_tokens=8) == requests
    assert model.calls == [[2, 3, 3], [9], [1, 1, 5]]


def test_a_long_request_takes_turns_with_others():
    model = Lengths()
    requests = [[4, 4, 4, 4, 4], [1], [2, 2]]
    assert batched(model, requests, batch_tokens=8) == requests
    assert model.calls == [[4, 4], [1, 2, 2], [4, 4], [4]]


def test_towards_the_end_equal_requests_are_computed_one_after_the_other():
    async def run():
        gate, order = threading.Event(), []
        model, batcher = Lengths(gate), batcher_of(batch_tokens=8)
        batcher.start()

        async def ask(number):
            await batcher(model, tokens_of(4, 4, 4, 4, 4, 4), {"number": number % 2})
            order.append((number, len(model.calls)))

        tasks = [asyncio.create_task(ask(number)) for number in range(4)]
        while not model.calls:
            await asyncio.sleep(0.001)
        batcher.finish()
        gate.set()
        await asyncio.gather(*tasks)
        await batcher.close()
        assert [number for number, _ in order] == [0, 1, 2, 3]
        for number, calls in order:  # the next request may have begun
            assert 0 <= calls - 3 * (number + 1) <= 1

    asyncio.run(run())


def test_the_end_does_not_wait_for_a_batch_that_nobody_waits_for():
    async def run():
        gate = threading.Event()
        model, batcher = Lengths(gate), batcher_of()
        batcher.start()
        task = asyncio.create_task(batcher(model, tokens_of(1), {}))
        while not model.calls:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait_for(batcher.close(), LIMIT)
        assert batcher.busy
        gate.set()

    asyncio.run(run())


def test_only_requests_with_the_same_options_share_a_batch():
    model = Lengths()
    requests, options = [[1], [2], [3], [4]], [{"normalize": True}, {}, {"normalize": True}, {}]
    assert batched(model, requests, options) == requests
    assert model.calls == [[1, 3], [2, 4]]


def test_an_error_fails_its_batch_and_the_next_one_is_computed():
    class Failing(Lengths):
        def compute(self, tokens, options):
            self.error = OSError("disk") if len(tokens.rows[0]) == 5 else None
            return super().compute(tokens, options)

    answers = batched(Failing(), [[5, 9], [5], [2]], batch_tokens=10)
    assert [type(answer) for answer in answers[:2]] == [OSError, OSError]
    assert answers[2] == [2]


def test_a_request_is_refused_when_the_queue_is_full_and_after_the_end():
    async def run():
        gate = threading.Event()
        model, batcher = Lengths(gate), batcher_of(queue_tokens=10, batch_tokens=20)
        with pytest.raises(RefusedError, match="stopping"):  # not started
            await batcher(model, tokens_of(1), {})
        batcher.start()
        taken = [asyncio.create_task(batcher(model, tokens_of(99), {}))]  # the queue is empty
        while not model.calls:
            await asyncio.sleep(0.001)
        taken += [asyncio.create_task(batcher(model, tokens_of(5, 5), {}))]
        await asyncio.sleep(0)
        assert (batcher.waiting, batcher.texts) == (10, 2)
        with pytest.raises(RefusedError, match="10 tokens wait, and at most 10 may") as refused:
            await batcher(model, tokens_of(1), {})
        assert (refused.value.kind, int(refused.value.headers["Retry-After"]) >= 1) == ("busy", True)
        gate.set()
        assert [len((await task)[0]) for task in taken] == [1, 2]
        await batcher.close()
        with pytest.raises(RefusedError, match="stopping"):
            await batcher(model, tokens_of(1), {})

    asyncio.run(run())


def test_texts_that_nobody_waits_for_are_not_computed():
    async def run():
        gate = threading.Event()
        model, batcher = Lengths(gate), batcher_of(batch_tokens=10)
        batcher.start()
        tasks = [asyncio.create_task(batcher(model, tokens_of(10, 7), {}))]
        while not model.calls:
            await asyncio.sleep(0.001)
        tasks += [asyncio.create_task(batcher(model, tokens_of(length), {})) for length in (3, 4)]
        await asyncio.sleep(0)
        for task in tasks[:2]:
            task.cancel()
        await asyncio.gather(*tasks[:2], return_exceptions=True)
        assert batcher.waiting == 4
        gate.set()
        assert (await tasks[2])[0].tolist() == [[4]]
        await batcher.close()
        assert (model.calls, batcher.waiting) == ([[10], [4]], 0)

    asyncio.run(run())


# ---- the application


def asked(model, calls, **limits):
    """Return what the application answers to requests that come at once, and its log."""

    async def run():
        log = Lines()
        async with running(create_app([model], limits=Limits(**limits), log=log)) as ask:
            return await asyncio.gather(*(ask(*call) for call in calls)), log.kept

    return asyncio.run(run())


BODY = {"inputs": ["aa", "bbb"]}


@pytest.mark.parametrize(
    ("limits", "body", "words"),
    [
        ({"texts": 1}, BODY, "at most 1 texts; received 2"),
        ({"tokens": 4}, BODY, "at most 4 tokens; received 5"),
        ({"body_bytes": 10}, BODY, "at most 10 bytes"),
    ],
)
def test_what_is_larger_than_its_limit_is_refused_by_413(limits, body, words):
    (received,), _ = asked(Lengths(), [("/embed", body)], **limits)
    assert received[0] == 413
    assert words in received[2]["error"]


def test_more_requests_than_are_answered_at_once_are_told_to_come_back():
    answers, _ = asked(Lengths(), [("/embed", BODY)] * 5, requests=3)
    assert sorted(answer[0] for answer in answers) == [200, 200, 200, 429, 429]
    for status, headers, body in answers:
        assert body == ([[2], [3]] if status == 200 else {"error": body["error"], "error_type": "Overloaded"})
        assert ("retry-after" in headers) == (status == 429)


def test_a_full_queue_is_told_in_the_form_of_openai_too():
    gate = threading.Event()
    model = Lengths(gate)

    async def run():
        async with running(create_app([model], limits=Limits(queue_tokens=1), log=Lines())) as ask:
            tasks = [asyncio.create_task(ask("/embed", BODY))]
            while not model.calls:
                await asyncio.sleep(0.001)
            tasks += [asyncio.create_task(ask("/v1/embeddings", {"input": "aa"})) for _ in range(2)]
            done, _ = await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
            gate.set()
            await asyncio.gather(*tasks)
            return done.pop().result()

    status, headers, body = asyncio.run(run())
    assert (status, body["error"]["type"]) == (429, "rate_limit_error")
    assert 1 <= int(headers["retry-after"]) <= 60


def test_an_error_of_ours_is_a_500_that_tells_nothing_and_is_logged():
    model = Lengths()
    model.error = OSError("a secret path")
    ((status, _, body),), log = asked(model, [("/embed", BODY)])
    assert (status, body["error_type"]) == (500, "Backend")
    assert "secret" not in body["error"]
    level, _, fields = log[0]
    assert (level, fields["error"]) == ("error", "OSError: a secret path")
    assert "servers.py:" in fields["at"]


def test_a_client_that_goes_away_while_it_waits_is_forgotten():
    async def run():
        gate, gone, log = threading.Event(), asyncio.Event(), Lines()
        model = Lengths(gate)
        async with running(create_app([model], log=log)) as ask:
            first = asyncio.create_task(ask("/embed", BODY))
            while not model.calls:
                await asyncio.sleep(0.001)
            second = asyncio.create_task(ask("/embed", {"inputs": "never"}, None, gone))
            while "mp_core_queue_texts 1" not in (await ask("/metrics"))[2]:
                await asyncio.sleep(0.001)
            gone.set()
            assert await second is None
            gate.set()
            assert (await first)[2] == [[2], [3]]
        assert model.calls == [[2, 3]]
        assert [(message, fields["status"]) for _, message, fields in log.kept] == [
            ("POST /embed, whose client went away", 499),
            ("POST /embed", 200),
        ]

    asyncio.run(run())


def test_a_server_whose_loop_is_broken_off_ends_its_threads():
    app, before = create_app([Lengths()]), threading.active_count()

    async def run():
        async with running(app) as ask:
            await ask("/embed", {"inputs": ["a" * 3000]})
            assert threading.active_count() == before + 2
            raise KeyError("broken off")

    with pytest.raises(KeyError, match="broken off"):
        asyncio.run(run())
    assert threading.active_count() == before


def test_numbers_that_are_not_finite_are_an_error_of_their_request_alone():
    class Overflowing(Lengths):
        def compute(self, tokens, options):
            rows = [[np.nan if len(row) > 3 else 1.5] * 3 for row in tokens.rows]
            return np.array(rows, np.float32)

    bodies = [("/embed", {"inputs": "a" * count}) for count in (1, 2, 9, 3)]
    answers, _ = asked(Overflowing(), [*bodies, ("/v1/embeddings", {"input": "a" * 9})])
    assert [status for status, *_ in answers] == [200, 200, 500, 200, 500]
    assert answers[0][2] == answers[3][2] == [[1.5] * 3]
    told = "a text has no finite output: lengths returned Inf or NaN"
    assert answers[2][2] == {"error": told, "error_type": "Backend"}
    assert answers[4][2]["error"]["message"] == told
