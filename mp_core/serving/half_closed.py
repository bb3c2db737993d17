"""Clients that half-close the connection after a request get their answer; for clients that are gone, work ends."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["HalfClosedProtocol"]

_FIRST, _LONGEST = 0.1, 5.0  # seconds between checks whether the client still reads: doubled each time


class HalfClosedProtocol(H11Protocol):
    """An h11 protocol that still answers after the client has closed its half, and then closes the connection.

    With TCP, a client that has half-closed the connection looks like one that is gone: both send the end of data. So
    the server sends ``100 Continue`` from time to time, which HTTP/1.1 clients ignore. If the client is gone, its
    system resets the connection, and the next ``100 Continue`` fails.
    """

    _ended = False
    _next_probe: asyncio.TimerHandle | None = None

    def eof_received(self) -> bool:
        """Return whether the connection stays open: if a complete HTTP/1.1 request is not answered yet."""
        waits = self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete)
        self._ended = waits and self.conn.their_http_version != b"1.0"  # HTTP/1.0 has no status 100
        if self._ended:
            self._probe(_FIRST)
        return self._ended

    def _probe(self, seconds: float) -> None:
        """Send ``100 Continue`` repeatedly until the answer begins."""
        if self.conn.our_state is h11.SEND_RESPONSE and not self.transport.is_closing():
            self.transport.write(self.conn.send(h11.InformationalResponse(status_code=100, headers=[])))
            self._next_probe = self.loop.call_later(seconds, self._probe, min(2 * seconds, _LONGEST))

    def on_response_complete(self) -> None:
        """Close the connection after the last answer."""
        super().on_response_complete()
        if self._ended and (self.cycle.response_complete or self.cycle.more_body):
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the timer."""
        if self._next_probe is not None:
            self._next_probe.cancel()
        super().connection_lost(error)
