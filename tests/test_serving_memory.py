"""The memory and event loop of the server under hostile bodies and long answers."""

import asyncio
import gc
import json
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
from servers import Lengths, Lines, running, scorer

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from mp_core.serving.front import create_app
from mp_core.serving.limits import Limits
from mp_core.serving.models import open_models
from mp_core.serving.routes import ROUTES
from mp_core.serving.schema import EMBED, checked

LABELS = 400


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """Return a classifier of many labels."""
    return open_models({"many": scorer(tmp_path_factory.mktemp("many") / "classifier", LABELS)})[0]


def answers(model, *calls, **limits):
    """Return the status, headers and body of the answers to some calls, one after the other."""

    async def work():
        async with running(create_app([model], limits=Limits(**limits), log=Lines())) as ask:
            return [await ask(*call) for call in calls]

    return asyncio.run(work())


@pytest.mark.parametrize(("room", "status"), [(3 << 20, 200), (3 << 19, 413)])
def test_answers_are_counted_as_they_are_written(classifier, room, status):
    """An answer of labels has more bytes than the 24 of each number that are counted before."""
    assert 24 * 100 * LABELS < 3 << 19
    ((found, _, content),) = answers(classifier, ("/predict", {"inputs": [["a"]] * 100}), flight_bytes=room)
    assert found == status
    if status == 200:
        assert 3 << 19 < len(json.dumps(content)) < 3 << 20
    else:
        assert "at most 1572864 bytes" in content["error"]


def test_an_answer_of_labels_is_made_text_by_text(classifier):
    """All labels of 2,048 texts at once are gigabytes, and seconds in which nobody else is answered."""
    rows = np.zeros((3, LABELS), np.float32)
    for parameters in (None, {"top_k": 2, "function_to_apply": None}):
        fields = {"inputs": ["a", "b", "c"], "raw_scores": False, "parameters": parameters}
        found = ROUTES["/predict"].answer(classifier, fields, rows, {})
        assert isinstance(found, Iterator)
        assert [len(row) for row in found] == [2 if parameters else LABELS] * 3


@pytest.mark.parametrize(("character", "status"), [("a", 200), ("\U0001f600", 413)])
def test_texts_count_as_many_bytes_as_they_take(character, status):
    """One wide character makes all others of its text as wide."""
    text = character + "a" * 100_000
    body = json.dumps({"inputs": text}, ensure_ascii=False).encode()
    assert len(body) < 150_000 < sys.getsizeof("\U0001f600" + text)
    ((found, *_),) = answers(Lengths(), ("/embed", body), flight_bytes=150_000)
    assert found == status


@pytest.mark.parametrize("fields", [{"precision": "odd"}, {"dimensions": 9}, {}])
def test_bodies_are_freed_at_once(fields):
    """An error that refers to its frames, and they to it, would keep the body until a collection."""
    model, mark = Lengths(), f"mark {fields}"
    if not fields:
        model.error = RuntimeError("odd")
    gc.collect()
    gc.disable()
    try:
        body = json.dumps({"inputs": [mark, "b"], **fields}).encode()
        ((status, *_),) = answers(model, ("/embed", body))
        lists = [found for found in gc.get_objects() if type(found) is list]
        kept = [found for found in lists if any(type(item) is str and item == mark for item in found)]
    finally:
        gc.enable()
    assert status >= 400
    assert not kept


def test_a_body_of_many_objects_is_refused_before_they_are_made():
    body = b'{"inputs":[' + b"{}," * 500_000 + b"{}]}"
    ((status, _, content),) = answers(Lengths(), ("/embed", body))
    assert status == 413
    assert content["error"] == "a body may have at most 2064 objects, as one for each text"


def test_half_surrogates_are_looked_for_in_no_more_time_than_it_takes_to_encode_a_text():
    text = "\xe9" * 1_000_000

    def best(function, *arguments):
        times = []
        for _ in range(5):
            start = time.process_time()
            function(*arguments)
            times.append(time.process_time() - start)
        return min(times)

    assert best(checked, {"inputs": text}, EMBED) < 10 * best(text.encode) + 1e-3


def test_arrays_of_objects_are_checked_for_numbers_that_are_not_finite():
    class Parts(Lengths):
        kinds = ("multi-vector",)

        def compute(self, tokens, options):
            rows = np.empty(len(tokens), object)
            for place, row in enumerate(tokens.rows):
                rows[place] = np.array([[1, np.inf if len(row) > 3 else 2]], np.float32)
            return rows

    calls = [("/embed_all", {"inputs": text}) for text in ("a", "abcd")]
    (good, _, vectors), (bad, _, told) = answers(Parts(), *calls)
    assert (good, vectors) == (200, [[[1.0, 2.0]]])
    assert (bad, told["error"]) == (500, "a text has no finite output: lengths returned Inf or NaN")
