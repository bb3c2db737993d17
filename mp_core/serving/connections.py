"""One connection: HTTP by h11, whose head, body and answer are bounded in bytes and in time."""

import asyncio
from math import inf
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mp_core.serving.half_closed import HalfClosedProtocol

__all__ = ["HEAD_SECONDS", "IDLE_SECONDS", "Connection"]

HEAD_SECONDS = 30  # a connection that has had no head of a request after so long is closed, within another so long
IDLE_SECONDS = 65  # between requests: longer than proxies keep a connection that they may use again
_LINGER_SECONDS = 5  # in which a client may end a request that was answered before its end
_STALL_SECONDS = 30  # in which a client must take 48 KiB of an answer
_LEAST_RATE = 50_000  # bytes of a long answer that it must take in each second, after so many
_LONG = 1 << 16  # bytes of an answer
_HEAD_BYTES = 1 << 14  # of a head, about which h11 is asked after so many
_CHUNK_BYTES = 32  # chunks of a body have as many on average, beyond those that are free
_FREE_CHUNKS = 4096
_CLOSE = (b"connection", b"close")


class _Transport:
    """A transport that is closed so that the client gets what was written, and in bounded time.

    To close a socket whose bytes were not read resets the connection, and the client loses its answer. So of a client
    that may still be sending, what comes is read and dropped for a while (RFC 9112, section 9.6).

    Parameters
    ----------
    transport : asyncio.Transport
    conn : h11.Connection
        Its protocol, which knows whether the client may still be sending.
    """

    def __init__(self, transport: asyncio.Transport, conn: h11.Connection) -> None:
        self.ending: asyncio.TimerHandle | None = None
        self._transport, self._conn = transport, conn
        self.write = transport.write  # __getattr__ takes longer

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
    """Whether the end of a request has not come."""
    return conn.their_state in (h11.SEND_BODY, h11.ERROR)


class _Reader(h11.Connection):
    """HTTP that refuses bodies of many small chunks, each of which costs as much as kilobytes do."""

    _free = _FREE_CHUNKS * _CHUNK_BYTES

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Data) and event.chunk_start:
            self._free += min(len(event.data), 2 * _CHUNK_BYTES) - _CHUNK_BYTES
            if self._free < 0:
                raise h11.RemoteProtocolError(f"a body has more than {_FREE_CHUNKS} chunks of few bytes")
        elif isinstance(event, h11.Request):
            self._free = _FREE_CHUNKS * _CHUNK_BYTES
        return event


class Connection(HalfClosedProtocol):
    """A connection of uvicorn, with the bounds that it lacks.

    Attributes
    ----------
    waits : tuple of bool and float
        Whether a request has begun, and since when, in the time of the loop, the client has not sent what is missing:
        the head of a request or the end of its body. Infinite while a request is answered.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for the head of a request."""
        self.conn = _Reader(h11.SERVER)
        self._closing = _Transport(transport, self.conn)
        super().connection_made(self._closing)
        self._app: ASGIApp = self.config.loaded_app
        self.app: ASGIApp = self._answer
        self._since: float = self.loop.time()
        self._stall: asyncio.TimerHandle | None = None
        self._watch = self.loop.call_later(HEAD_SECONDS, self._look)

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the timers."""
        for timer in (self._watch, self._stall, self._closing.ending, self.timeout_keep_alive_task):
            if timer is not None:
                timer.cancel()
        self.app = self._app  # or a cycle of references would be left
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """Read bytes, no more of a head at once than it may have; drop what comes after an answer that was early."""
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
        """Wait for the client to read, but not for ever."""
        super().pause_writing()
        self._stall = self.loop.call_later(_STALL_SECONDS, self._closing.abort)

    def resume_writing(self) -> None:
        """Go on: the client reads."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()

    def shutdown(self) -> None:
        """End after the request that is answered, or at once."""
        if self._closing.ending is None:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, and tell the application that nothing more will come."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # in the middle of an answer
            self.transport.close()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        """Begin to wait for another request."""
        self._since = self.loop.time()
        super().on_response_complete()

    @property
    def waits(self) -> tuple[bool, float]:
        """What the server waits for, and since when."""
        answered = self._closing.ending is not None
        begun = not answered and self.conn.their_state is h11.SEND_BODY
        lacks = answered or begun or self.conn.their_state is h11.IDLE
        return begun, self._since if lacks and not self._closing.get_write_buffer_size() else inf

    def _should_upgrade(self) -> bool:
        """Take a request for a WebSocket as any other: uvicorn would warn of packages that are missing."""
        return False

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application; bound the time of a long answer, and say that one that is early ends the connection."""
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

    def _look(self) -> None:
        """Close a connection that has waited too long for the head of a request."""
        longest = HEAD_SECONDS if self.cycle is None else IDLE_SECONDS
        if self.conn.their_state is h11.IDLE and self.loop.time() - self._since >= longest:
            self.transport.close()
        else:
            self._watch = self.loop.call_later(HEAD_SECONDS, self._look)
