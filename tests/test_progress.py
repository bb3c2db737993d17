"""The progress of long calls: bars in terminals and notebooks, lines elsewhere."""

import io
import sys

import numpy as np
import pytest

import mp_core as mp
from mp_core.utilities import progress


class Stream(io.StringIO):
    """Standard error as a terminal, a file or a notebook."""

    def __init__(self, terminal):
        super().__init__()
        self._terminal = terminal

    def isatty(self):
        return self._terminal


@pytest.fixture
def stderr(monkeypatch):
    def put(stream):
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return put


def run(total=3):
    return list(progress.progress(iter("abc"), show=True, total=total, unit="step"))


def test_nothing_is_shown_unless_asked(stderr):
    stream = stderr(Stream(True))
    items = iter("abc")
    assert progress.progress(items, show=False, total=3, unit="step") is items
    assert stream.getvalue() == ""


def test_a_terminal_shows_a_bar_that_is_gone_at_the_end(stderr):
    stream = stderr(Stream(True))
    assert run() == ["a", "b", "c"]
    told = stream.getvalue()
    assert "step" in told and not told.endswith("\n") and told.rsplit("\r", 1)[1].strip() == ""


def test_a_notebook_keeps_its_bar(stderr):
    kind = type("OutStream", (Stream,), {"__module__": "ipykernel.iostream"})
    stream = stderr(kind(False))
    run()
    assert "3/3" in stream.getvalue() and stream.getvalue().endswith("\n")


def test_a_bar_that_a_line_replaces_is_gone_in_a_notebook_too(stderr):
    kind = type("OutStream", (Stream,), {"__module__": "ipykernel.iostream"})
    stream = stderr(kind(False))
    with progress.counting(show=True, total=3, unit="step", stays=False) as done:
        done(3)
    assert "step" in stream.getvalue() and stream.getvalue().rsplit("\r", 1)[1].strip() == ""


@pytest.mark.parametrize("verbose", ["auto", 1, 2])
def test_each_epoch_and_each_evaluation_is_a_line_in_a_pipe(verbose, capsys):
    model = mp.Sequential([mp.Input((1,)), mp.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((4, 1), np.float32)
    model.fit(x, x, epochs=2, validation_data=(x, x), verbose=verbose)
    model.evaluate(x, x, verbose=verbose)
    lines = capsys.readouterr().out.splitlines()
    starts = ["Epoch 1/2 - ", "Epoch 2/2 - ", "Evaluated - "]
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 3
    assert all("loss: " in line for line in lines) and "val_loss: " in lines[0]
    model.fit(x, x, verbose=0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("terminal", "tqdm"), [(False, True), (True, False)])
def test_elsewhere_and_without_tqdm_there_are_lines(stderr, monkeypatch, terminal, tqdm):
    if not tqdm:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    stream = stderr(Stream(terminal))
    run()
    assert stream.getvalue().splitlines() == [f"mp_core: step {n} of 3" for n in (1, 2, 3)]


def test_lines_are_seconds_apart(stderr):
    stream = stderr(Stream(False))
    run(total=None)
    assert stream.getvalue() == ""


def test_a_process_without_standard_error_says_nothing(stderr, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    stderr(None)
    assert run() == ["a", "b", "c"]
    assert capsys.readouterr().out == ""
