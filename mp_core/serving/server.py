"""Run the application as a server: sockets, signals, and an orderly shutdown."""

import asyncio
import errno
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from mp_core.serving.connections import IDLE_SECONDS, Connection
from mp_core.serving.limits import Limits
from mp_core.serving.logs import Log

__all__ = ["bound", "bound_unix", "descriptors", "serve"]

_BACKLOG = 128  # connections that wait to be accepted
_BURST = 16  # connections that are accepted in one go
_SPARE = 16  # descriptors left for files, and for connections that are accepted and closed at once
_UNUSED_SECONDS = 1  # a connection without a request for so long may be closed in favour of a new one
_SLOW_SECONDS = 5  # so may one with an incomplete request after so long
_WARNING_SECONDS = 10  # between two warnings in the log
_PAUSE = 0.1  # seconds until the next attempt to accept, if no descriptor or connection is free
_LATE = 0.8  # seconds after the grace period until the process is ended in any case
_TICK = 0.02  # seconds between two checks during the shutdown
_SIGNALS = [signal.SIGINT, signal.SIGTERM]
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def bound(host: str, port: int) -> socket.socket:
    """Return a listening socket at an address of this machine; clients can connect, and wait to be accepted.

    It listens at once, because two sockets can be bound to the same port as long as neither listens. Port 0 is any free
    port.

    >>> with bound("127.0.0.1", 0) as listener:
    ...     listener.getsockname()[0]
    '127.0.0.1'
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    # asyncio disables Nagle's algorithm only for sockets with an explicit protocol; otherwise answers are 40 ms late.
    listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":  # on Windows it would let another process take over the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


@contextmanager
def bound_unix(path: str | Path) -> Iterator[socket.socket]:
    """Yield a Unix socket that listens at a path; a stale socket there is replaced.

    At the end the socket is closed, and its path removed unless another socket has replaced it.
    """
    found = Path(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        if found.exists() and stat.S_ISSOCK(found.stat().st_mode) and not _answers(found):
            found.unlink()
        listener.bind(str(found))
        own = _identity(found)
        try:
            listener.listen(_BACKLOG)
            yield listener
        finally:
            with suppress(OSError):
                if _identity(found) == own:
                    found.unlink()


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _answers(path: Path) -> bool:
    """Return whether a process listens at a path. A socket that refuses connections is stale."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # its backlog is full
            return True
        return True


def descriptors() -> int | None:
    """Return how many more file descriptors this process may open; None if unknown."""
    try:
        import resource

        return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(os.listdir("/dev/fd"))
    except ImportError:  # Windows, where an event loop handles at most 512 sockets
        return 500
    except OSError:
        return None


def serve(
    app: ASGIApp,
    listener: socket.socket,
    log: Log,
    *,
    grace: int = 30,
    connections: int = Limits().connections,
    started: Callable[[], None],
    stopping: Callable[[], None] = lambda: None,
) -> int:
    """Answer requests on a socket until SIGTERM or SIGINT; then answer those already received, and return.

    The result is 0 if all received requests were answered, 1 if the grace period was too short, 128 + the number of a
    second signal, which ends the server at once.

    Parameters
    ----------
    app : ASGI application
    listener : socket
        A listening socket. It is closed at the end.
    log : Log
        The log for the server's warnings.
    grace : int
        Seconds after the signal; requests that are not answered by then get 503.
    connections : int
        The most open connections, further limited by the available file descriptors.
    started, stopping : callable
        Called when the server is ready, and at the signal, in the event loop.
    """
    log.take_over()
    settings = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=grace,
    )
    free = descriptors()
    most = connections if free is None else max(1, min(connections, free - _SPARE))
    server = _Server(settings, _Acceptor(listener, most, log), started, stopping)
    server.run([listener])
    return server.code


class _Acceptor:
    """Accepts up to `most` open connections. At the limit, the connection that has been idle longest is closed."""

    def __init__(self, listener: socket.socket, most: int, log: Log) -> None:
        self._listener, self._most, self._log = listener, most, log
        self._open: set[Connection] = set()
        self._opening: set[asyncio.Task[object]] = set()
        self._warned_at = float("-inf")
        self._pause: asyncio.TimerHandle | None = None

    def start(self, connect: Callable[[], Connection], open: set[Connection]) -> None:
        """Start to accept, in the event loop. `connect` returns a protocol, which adds itself to `open`."""
        self._connect, self._open = connect, open
        self._listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Stop accepting."""
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self._listener)

    def _resume(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _pause_accepting(self) -> None:
        """Stop accepting for `_PAUSE` seconds."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._pause = loop.call_later(_PAUSE, self._resume)

    def _accept(self) -> None:
        """Accept up to `_BURST` waiting connections. The loop calls this again for others, after other events."""
        for _ in range(_BURST):
            if len(self._open) + len(self._opening) >= self._most:
                self._warn(f"{self._most} connections are open, the most that may be")
                if not self._make_room():
                    self._pause_accepting()
                return
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._warn(f"no connection can be accepted: {error.strerror}")
                    self._pause_accepting()
                return
            client.setblocking(False)
            opening = asyncio.get_running_loop().create_task(self._opened(client))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _opened(self, client: socket.socket) -> None:
        with suppress(OSError):  # the client has gone
            await asyncio.get_running_loop().connect_accepted_socket(self._connect, client)

    def _make_room(self) -> bool:
        """Close the connection idle longest, or else the one with the oldest incomplete request; return if any was."""
        now = asyncio.get_running_loop().time()
        waiting = [(begun, since, id(each), each) for each in self._open for begun, since in [each.waits]]
        waiting = [found for found in waiting if now - found[1] >= (_SLOW_SECONDS if found[0] else _UNUSED_SECONDS)]
        for *_, oldest in sorted(waiting)[:1]:
            oldest.transport.abort()
        return bool(waiting)

    def _warn(self, message: str) -> None:
        """Log a warning, at most one every `_WARNING_SECONDS`."""
        now = asyncio.get_running_loop().time()
        if now - self._warned_at >= _WARNING_SECONDS:
            self._warned_at = now
            self._log.write("warning", message)


class _Server(uvicorn.Server):
    """A uvicorn server that shuts down in order at a signal and returns; uvicorn's would raise the signal again.

    `code` is the return value of :func:`serve`.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        acceptor: _Acceptor,
        started: Callable[[], None],
        stopping: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self.code, self.should_exit = 0, False
        self._acceptor, self._on_started, self._on_stopping = acceptor, started, stopping
        self._end_timers: list[threading.Timer] = []

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:  # other loops lack `add_reader`
            runner.run(self.serve(sockets))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        connect = partial(Connection, self.config, self.server_state, self.lifespan.state)
        self._acceptor.start(connect, self.server_state.connections)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer received requests within the grace period, refuse the rest with 503, and stop."""
        self._on_stopping()
        self._acceptor.close()
        for listener in sockets or []:
            listener.close()
        state, loop = self.server_state, asyncio.get_running_loop()
        for connection in list(state.connections):
            connection.shutdown()
        end = loop.time() + (self.config.timeout_graceful_shutdown or 0)
        while (state.connections or state.tasks) and not self.force_exit and loop.time() < end:
            await asyncio.sleep(_TICK)
        if left := list(state.tasks):
            self.code = self.code or 1
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=_LATE / 4)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.lifespan.shutdown(), _LATE / 4)

    def handle_exit(self, number: int, frame: object) -> None:
        """Start the shutdown at the first signal; abort everything at the second one."""
        if self.should_exit:
            self.force_exit, self.code = True, 128 + number
            self._end_within(_LATE)
        else:
            self.should_exit = True
            self._end_within((self.config.timeout_graceful_shutdown or 0) + _LATE)

    def _end_within(self, seconds: float) -> None:
        """End the process after some seconds even if the event loop is blocked, as by a log that nobody reads."""
        timer = threading.Timer(seconds, lambda: os._exit(self.code or 1))
        timer.daemon = True
        with suppress(RuntimeError):  # the system cannot start another thread
            timer.start()
            self._end_timers.append(timer)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # respects nohup
        before = {number: signal.signal(number, self.handle_exit) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for timer in self._end_timers:
                timer.cancel()
