"""Sockets, signals and the protocol: from an application to a server that ends in order."""

import asyncio
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from mp_core.serving.logs import Log

__all__ = ["bound", "bound_unix", "serve"]

_BACKLOG = 1024
_HEAD_SECONDS = 30  # a connection on which no head of a request is complete after so long is closed
_IDLE_SECONDS = 65  # between requests: longer than proxies keep a connection that they may use again
_SIGNALS = [signal.SIGINT, signal.SIGTERM]


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address; clients are refused until a server listens on it.

    Parameters
    ----------
    host : str
        A name or an address of this machine, IPv4 or IPv6.
    port : int
        0 is any port that is free.

    Raises
    ------
    OSError
        The address is none of this machine, or the port is in use.

    Examples
    --------
    >>> with bound("127.0.0.1", 0) as listener:
    ...     listener.getsockname()[0]
    '127.0.0.1'
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    # asyncio switches Nagle's algorithm off only for sockets that name TCP; with it, answers wait 40 ms for the client.
    listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":  # where it would let another process take the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def bound_unix(path: str | Path) -> socket.socket:
    """Return a Unix socket that is bound to a path, in place of one there that nobody listens to any more.

    Raises
    ------
    OSError
        Somebody listens there, something else is there, or the folder cannot be written.
    """
    found = Path(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if found.exists() and stat.S_ISSOCK(found.stat().st_mode) and not _answers(found):
            found.unlink()
        listener.bind(str(found))
    except BaseException:
        listener.close()
        raise
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


def serve(app: ASGIApp, listener: socket.socket, log: Log, *, grace: int = 30, started: Callable[[], None]) -> None:
    """Answer on a socket until SIGTERM or SIGINT. Then answer what was received, and return.

    Parameters
    ----------
    app : ASGI application
    listener : socket
        A bound one. It is closed in the end.
    log : Log
        Where the server's own warnings go.
    grace : int
        Seconds after the signal; what is not answered by then is answered by 503. A second SIGINT ends them.
    started : callable
        Called once requests are answered.
    """
    log.take_over()
    settings = uvicorn.Config(
        app,
        loop="asyncio",
        http=_Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=grace,
    )
    _Server(settings, started).run([listener])


class _Server(uvicorn.Server):
    """Ends in order at a signal, and returns: uvicorn's raises the signal once more, which ends the process by it."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tell()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup has it
        before = {number: signal.signal(number, self.handle_exit) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Protocol(H11Protocol):
    """HTTP by h11, which bounds the head of a request in size; here in time too."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._last: object = self  # no cycle yet
        self._watch = self.loop.call_later(_HEAD_SECONDS, self._look)

    def connection_lost(self, error: Exception | None) -> None:
        self._watch.cancel()
        super().connection_lost(error)

    def _should_upgrade(self) -> bool:
        """Take a request for a WebSocket as any other: uvicorn would warn of packages that are missing."""
        return False

    def _look(self) -> None:
        """Close a connection that has had no request since the last look, and is not in the middle of one."""
        waits = self.conn.their_state is h11.IDLE
        if waits and self.timeout_keep_alive_task is None and self._last is self.cycle:
            self.transport.close()
            return
        self._last = self.cycle
        self._watch = self.loop.call_later(_HEAD_SECONDS, self._look)
