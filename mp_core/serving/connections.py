"""One HTTP connection (h11), with limits of bytes and time for heads, bodies and answers."""

import asyncio
from math import inf
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mp_core.serving.half_closed import HalfClosedProtocol

__all__ = ["HEAD_SECONDS", "IDLE_SECONDS", "Connection"]

HEAD_SECONDS = 30  # to send the head of a request; it is checked every HEAD_SECONDS, so closing takes up to twice that
IDLE_SECONDS = 65  # between requests: longer than proxies keep idle connections for reuse
_LINGER_SECONDS = 5  # to read the rest of a request that was answered before its end
_STALL_SECONDS = 30  # in which a client must read 48 KiB of an answer
_LEAST_RATE = 50_000  # bytes per second: a client must read a long answer at this rate, after _STALL_SECONDS
_LONG = 1 << 16  # bytes: longer answers are long
_HEAD_BYTES = 1 << 14  # bytes of a head that are passed to h11 at once
_CHUNK_BYTES = 32  # the least average size of a body's chunks, beyond the first _FREE_CHUNKS
_FREE_CHUNKS = 4096
_CLOSE = (b"connection", b"close")


class _Transport:
    """A transport that delivers written data before it closes, in bounded time.

    Closing a socket with unread data resets the connection, and the client loses its answer. So if a client may still
    be sending (the state of `conn` says so), its data is read and dropped for some seconds (RFC 9112, section 9.6).
    """

    def __init__(self, transport: asyncio.Transport, conn: h11.Connection) -> None:
        self.ending: asyncio.TimerHandle | None = None
        self._transport, self._conn = transport, conn
        self.write = transport.write  # faster than __getattr__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self.ending is not None or self._transport.is_closing()

    def close(self) -> None:
        if self.ending is not None:
            return
        lingers = _is_unread(self._conn) and not self._transport.is_closing()
        seconds = _LINGER_SECONDS if lingers else _STALL_SECONDS
        self.ending = asyncio.get_running_loop().call_later(seconds, self._transport.abort)
        if lingers:
            self._transport.resume_reading()
            self._transport.write_eof()
        else:
            self._transport.close()


def _is_unread(conn: h11.Connection) -> bool:
    """Return whether the end of a request has not arrived."""
    return conn.their_state in (h11.SEND_BODY, h11.ERROR)


class _Reader(h11.Connection):
    """An h11 connection that refuses bodies of many small chunks, since each chunk costs as much as kilobytes."""

    _free = _FREE_CHUNKS * _CHUNK_BYTES

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Data) and event.chunk_start:
            self._free += min(len(event.data), 2 * _CHUNK_BYTES) - _CHUNK_BYTES
            if self._free < 0:
                few = f"{_FREE_CHUNKS} chunks of less than {_CHUNK_BYTES} bytes"
                raise h11.RemoteProtocolError(f"a body has more than {few}")
        elif isinstance(event, h11.Request):
            self._free = _FREE_CHUNKS * _CHUNK_BYTES
        return event


class Connection(HalfClosedProtocol):
    """A connection of uvicorn with additional limits."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Set up the limits, and start to wait for a head."""
        self.conn = _Reader(h11.SERVER)
        self._closing = _Transport(transport, self.conn)
        super().connection_made(self._closing)
        self._app: ASGIApp = self.config.loaded_app
        self.app: ASGIApp = self._answer
        self._since: float = self.loop.time()
        self._stall: asyncio.TimerHandle | None = None
        self._watch = self.loop.call_later(HEAD_SECONDS, self._check_idle)

    def connection_lost(self, error: Exception | None) -> None:
        for timer in (self._watch, self._stall, self._closing.ending, self.timeout_keep_alive_task):
            if timer is not None:
                timer.cancel()
        self.app = self._app  # breaks a reference cycle
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """Parse data, a head in portions of `_HEAD_BYTES`; drop data after the request was answered early."""
        if self._closing.ending is not None:
            return
        while len(data) > _HEAD_BYTES and self.conn.their_state is h11.IDLE:
            super().data_received(data[:_HEAD_BYTES])
            data = data[_HEAD_BYTES:]
        if self._closing.ending is None:
            began = self.conn.their_state is h11.IDLE
            super().data_received(data)
            if began and self.conn.their_state is not h11.IDLE:
                self._since = self.loop.time()

    def pause_writing(self) -> None:
        """Wait for the client to read, for at most `_STALL_SECONDS`."""
        super().pause_writing()
        self._stall = self.loop.call_later(_STALL_SECONDS, self._closing.abort)

    def resume_writing(self) -> None:
        """Continue: the client has read."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()

    def shutdown(self) -> None:
        """Close the connection after the current answer, or at once if there is none."""
        if self._closing.ending is None:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed HTTP, and notify the application that no more data will come."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # in the middle of an answer
            self.transport.close()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    @property
    def waits(self) -> tuple[bool, float]:
        """Whether a request has begun, and the loop time since which the server waits for the client.

        It waits for a head or the end of a body. The time is infinite while a request is answered.
        """
        answered = self._closing.ending is not None
        begun = not answered and self.conn.their_state is h11.SEND_BODY
        lacks = answered or begun or self.conn.their_state is h11.IDLE
        return begun, self._since if lacks and not self._closing.get_write_buffer_size() else inf

    def _should_upgrade(self) -> bool:
        """Treat WebSocket requests as any other; uvicorn would warn of missing packages."""
        return False

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application; limit the time of long answers, and add ``Connection: close`` to early ones."""
        deadline: asyncio.TimerHandle | None = None

        async def sending(message: Message) -> None:
            nonlocal deadline
            if message["type"] == "http.response.start":
                size = int(dict(message["headers"]).get(b"content-length", 0))
                if size > _LONG:
                    deadline = self.loop.call_later(_STALL_SECONDS + size / _LEAST_RATE, self._closing.abort)
                if _is_unread(self.conn):
                    message = {**message, "headers": [*message["headers"], _CLOSE]}
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            if deadline is not None:
                deadline.cancel()

    def _check_idle(self) -> None:
        """Close the connection if it has waited too long for a head."""
        longest = HEAD_SECONDS if self.cycle is None else IDLE_SECONDS
        if self.conn.their_state is h11.IDLE and self.loop.time() - self._since >= longest:
            self.transport.close()
        else:
            self._watch = self.loop.call_later(HEAD_SECONDS, self._check_idle)
