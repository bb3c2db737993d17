"""Where a server listens, and how it ends: within its grace, or at once at a second signal; it removes its socket."""

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from servers import LIMIT, Server

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from mp_core import cli
from mp_core.serving import models, server

SLOW = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from mp_core.serving import models
from servers import Lengths

class Slow(Lengths):
    def compute(self, tokens, options):
        time.sleep(max(map(len, tokens.rows)))
        return super().compute(tokens, options)

models.open_models = lambda *arguments: [Slow()]
"""


def asked(running, seconds):
    """Return a connection whose request takes so many seconds."""
    body = json.dumps({"inputs": "x" * seconds}).encode()
    client = running.connect()
    client.sendall(b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    return client


def ended(running, *signals):
    """Return the seconds until a process ends, and its code."""
    start = time.monotonic()
    for number in signals:
        running.process.send_signal(number)
        time.sleep(0.2)
    code = running.stop(None)
    return time.monotonic() - start, code


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ([signal.SIGTERM], 1),
        ([signal.SIGINT, signal.SIGINT], 128 + signal.SIGINT),
        ([signal.SIGINT, signal.SIGTERM], 128 + signal.SIGTERM),
    ],
)
def test_a_text_that_takes_minutes_does_not_hold_the_end_up(signals, code, tmp_path):
    running = Server(tmp_path, "--grace-seconds", "1" if len(signals) == 1 else "60", log=tmp_path / "log", code=SLOW)
    with asked(running, 50) as client:
        running.wait_for("mp_core_requests_in_flight", 2)
        seconds, found = ended(running, *signals)
        assert found == code
        assert seconds < 20
        assert "Traceback" not in running.log.read_text()
        if code == 1:
            assert client.recv(100).startswith(b"HTTP/1.1 503")


def test_a_text_whose_client_went_away_does_not_hold_the_end_up(tmp_path):
    running = Server(tmp_path, log=tmp_path / "log", code=SLOW)
    with asked(running, 50):
        running.wait_for("mp_core_requests_in_flight", 2)
    running.wait_for("mp_core_requests_in_flight", 1)
    seconds, code = ended(running, signal.SIGTERM)
    assert code == 0
    assert seconds < 20


def test_a_log_that_nobody_reads_does_not_hold_the_end_up(tmp_path):
    os.mkfifo(tmp_path / "log")
    read = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    running = Server(tmp_path, "--grace-seconds", "1", log=tmp_path / "log", code=SLOW)
    for _ in range(400):  # lines of more bytes than a pipe has
        try:
            with socket.create_connection(("127.0.0.1", running.port), timeout=0.5) as client:
                client.sendall(b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"x" * 2000))
                client.recv(10)
        except TimeoutError:
            break
    else:
        raise AssertionError("the log was written")
    assert ended(running, signal.SIGTERM)[0] < 20
    os.close(read)


# ---- where it listens


def test_a_socket_is_in_use_from_the_start(tmp_path):
    path = tmp_path / "socket"
    with server.bound_unix(path):
        fails(path)
    assert not path.exists()
    with server.bound("127.0.0.1", 0) as listener, pytest.raises(OSError, match="in use"):
        server.bound("127.0.0.1", listener.getsockname()[1])


def fails(path):
    with pytest.raises(OSError, match="in use"), server.bound_unix(path):
        pass


def test_a_socket_with_a_full_backlog_is_in_use(tmp_path):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        clients = []
        for _ in range(10):
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            clients.append(client)
            try:
                client.connect(str(path))
            except BlockingIOError:
                break
        waiting = threading.Thread(target=fails, args=(path,))
        waiting.start()
        waiting.join(LIMIT)
        assert not waiting.is_alive()
        assert path.exists()
        for client in clients:
            client.close()


def test_only_the_own_socket_is_removed(tmp_path):
    path = tmp_path / "socket"
    with server.bound_unix(path):
        path.unlink()
        with server.bound_unix(path):
            pass
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.is_socket()


@pytest.fixture
def refused(monkeypatch, tmp_path, capfd):
    """Return what `mp-core serve` says with some options, which it refuses before it opens a model."""

    def opened(*arguments):
        raise AssertionError("the models are opened")

    monkeypatch.setattr(models, "open_models", opened)

    def told(*options):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["serve", str(tmp_path), *options])
        assert stopped.value.code == 2
        return capfd.readouterr().err

    return told


def test_a_port_in_use_is_named_before_models_are_opened(refused):
    with server.bound("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert f"argument --port: 127.0.0.1:{port}: Address already in use" in refused("--port", str(port))


@pytest.mark.parametrize("host", ["999.1.1.1", "a..b", "x" * 70, "198.51.100.7"])
def test_a_host_that_cannot_be_is_named(refused, host):
    assert f"argument --host: {host}: " in refused("--host", host, "--port", "0")


@pytest.mark.parametrize("option", ["--grace-seconds", "--max-connections", "--port", "--threads"])
@pytest.mark.parametrize("value", ["9" * 400, "9" * 5000, "nan", "inf", "1e3", "1_0", "-1", "\u0663"])
def test_numbers_that_cannot_be_are_refused_by_their_option(refused, option, value):
    told = refused(option, value)
    assert f"argument {option}: received '{value[:20]}" in told
    assert "it must be an integer" in told
    assert len(told) < 1000
