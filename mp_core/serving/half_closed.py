"""Clients that close their half of a connection once they have asked: they get their answers, those that left none."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["HalfClosedProtocol"]

_FIRST, _LONGEST = 0.1, 5.0  # seconds until the next look whether somebody still reads: twice as many each time


class HalfClosedProtocol(H11Protocol):
    """HTTP by h11 that goes on answering after the end of the requests, and closes the connection then.

    TCP does not tell a client that has closed its half from one that has gone: the end of its data is all there is. So
    such a client is sent ``100 Continue`` now and then, which every client of HTTP/1.1 skips. If it has gone, its
    system resets the connection, and the next of these cannot be sent.
    """

    _ended = False
    _look_again: asyncio.TimerHandle | None = None

    def eof_received(self) -> bool:
        """Return whether the connection stays open: if a whole request of HTTP/1.1 is not answered yet."""
        waits = self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete)
        self._ended = waits and self.conn.their_http_version != b"1.0"  # which has no answers of 100
        if self._ended:
            self._ask(_FIRST)
        return self._ended

    def _ask(self, seconds: float) -> None:
        """Write what nobody needs, until the answer begins."""
        if self.conn.our_state is h11.SEND_RESPONSE and not self.transport.is_closing():
            self.transport.write(self.conn.send(h11.InformationalResponse(status_code=100, headers=[])))
            self._look_again = self.loop.call_later(seconds, self._ask, min(2 * seconds, _LONGEST))

    def on_response_complete(self) -> None:
        """Close the connection after the last answer."""
        super().on_response_complete()
        if self._ended and (self.cycle.response_complete or self.cycle.more_body):
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """End the looks."""
        if self._look_again is not None:
            self._look_again.cancel()
        super().connection_lost(error)
