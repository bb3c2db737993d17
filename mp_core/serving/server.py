"""Sockets, signals and the end: from an application to a server that ends in order."""

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
_BURST = 16  # of them that are accepted at once
_SPARE = 16  # descriptors that are left for files, and for connections that are accepted and closed at once
_UNUSED_SECONDS = 1  # that a connection has to send a request, before another one may have its place
_SLOW_SECONDS = 5  # that it has for the rest of the request, in the same case
_TELL_SECONDS = 10  # between two lines of the log about the same trouble
_PAUSE = 0.1  # seconds until the next attempt to accept, if no descriptor or place is free
_LATE = 0.8  # seconds after the grace at which the process ends, whatever it waits for
_TICK = 0.02
_SIGNALS = [signal.SIGINT, signal.SIGTERM]
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; clients that connect wait until a server accepts them.

    It listens at once, because two sockets that do not listen yet may be bound to one port.

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
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


@contextmanager
def bound_unix(path: str | Path) -> Iterator[socket.socket]:
    """Yield a Unix socket that listens at a path, in place of one there that nobody listens to any more.

    At the end it is closed, and the path removed, unless another socket has taken its place.

    Raises
    ------
    OSError
        Somebody listens there, something else is there, or the folder cannot be written.
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
    """Whether somebody listens at a path: a socket that refuses is left of a process that ended."""
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
    """Return how many more descriptors this process may open; None if the system does not say."""
    try:
        import resource

        return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(os.listdir("/dev/fd"))
    except ImportError:  # Windows, where an event loop waits for 512 sockets at most
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
    """Answer on a socket until SIGTERM or SIGINT. Then answer what was received, and return.

    Parameters
    ----------
    app : ASGI application
    listener : socket
        One that listens. It is closed in the end.
    log : Log
        Where the server's own warnings go.
    grace : int
        Seconds after the signal; what is not answered by then is answered by 503.
    connections : int
        The most at the same time, and no more than there are descriptors for.
    started : callable
        Called once requests are answered.
    stopping : callable
        Called at the signal, in the event loop.

    Returns
    -------
    int
        0 if all that was received was answered, 1 if the grace was too short for that, and 128 and the number of a
        second signal, which ends everything.
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
    """Accepts connections, not more than may be open; the one that has waited longest for a request makes room.

    Parameters
    ----------
    listener : socket
    most : int
        Connections at the same time.
    log : Log
    """

    def __init__(self, listener: socket.socket, most: int, log: Log) -> None:
        self._listener, self._most, self._log = listener, most, log
        self._open: set[Connection] = set()
        self._opening: set[asyncio.Task[object]] = set()
        self._told = float("-inf")
        self._pause: asyncio.TimerHandle | None = None

    def start(self, connect: Callable[[], Connection], open: set[Connection]) -> None:
        """Begin to accept, in the event loop. `connect` returns a protocol, which adds itself to `open`."""
        self._connect, self._open = connect, open
        self._listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accept no more."""
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self._listener)

    def _resume(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _rest(self) -> None:
        """Accept nothing for a while."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._pause = loop.call_later(_PAUSE, self._resume)

    def _accept(self) -> None:
        """Accept some of the connections that wait: for others the loop calls once more, after what else is due."""
        for _ in range(_BURST):
            if len(self._open) + len(self._opening) >= self._most:
                self._tell(f"{self._most} connections are open, the most that may be")
                if not self._make_room():
                    self._rest()
                return
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._tell(f"no connection can be accepted: {error.strerror}")
                    self._rest()
                return
            client.setblocking(False)
            opening = asyncio.get_running_loop().create_task(self._opened(client))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _opened(self, client: socket.socket) -> None:
        with suppress(OSError):  # of a client that has gone
            await asyncio.get_running_loop().connect_accepted_socket(self._connect, client)

    def _make_room(self) -> bool:
        """Close the connection that waits longest for a request, else for the end of one; return whether one does."""
        now = asyncio.get_running_loop().time()
        waiting = [(begun, since, id(each), each) for each in self._open for begun, since in [each.waits]]
        waiting = [found for found in waiting if now - found[1] >= (_SLOW_SECONDS if found[0] else _UNUSED_SECONDS)]
        for *_, oldest in sorted(waiting)[:1]:
            oldest.transport.abort()
        return bool(waiting)

    def _tell(self, message: str) -> None:
        """Write a warning, unless there has just been one."""
        now = asyncio.get_running_loop().time()
        if now - self._told >= _TELL_SECONDS:
            self._told = now
            self._log.write("warning", message)


class _Server(uvicorn.Server):
    """Ends in order at a signal, and returns: uvicorn's raises the signal once more, which ends the process by it.

    Attributes
    ----------
    code : int
        What :func:`serve` returns.
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
        self._acceptor, self._tell_started, self._tell_stopping = acceptor, started, stopping
        self._last: list[threading.Timer] = []

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:  # others have no `add_reader`
            runner.run(self.serve(sockets))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        connect = partial(Connection, self.config, self.server_state, self.lifespan.state)
        self._acceptor.start(connect, self.server_state.connections)
        self._tell_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what was received, as long as the grace lasts; refuse the rest, and wait for nothing else."""
        self._tell_stopping()
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
        """Begin the end at the first signal; at the second one, break everything off."""
        if self.should_exit:
            self.force_exit, self.code = True, 128 + number
            self._end_within(_LATE)
        else:
            self.should_exit = True
            self._end_within((self.config.timeout_graceful_shutdown or 0) + _LATE)

    def _end_within(self, seconds: float) -> None:
        """End the process after so many seconds, even if the event loop is held up, as by a log that nobody reads."""
        timer = threading.Timer(seconds, lambda: os._exit(self.code or 1))
        timer.daemon = True
        with suppress(RuntimeError):  # of a system that has no room for another thread
            timer.start()
            self._last.append(timer)

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
            for timer in self._last:
                timer.cancel()
