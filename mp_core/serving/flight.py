"""The memory limit for requests in flight: the bytes of their bodies and answers."""

from collections.abc import Iterator
from contextlib import contextmanager

from mp_core.serving.errors import RefusedError

__all__ = ["Flight", "Share"]


class Share:
    """The bytes of one request and its answer, a part of the `flight` of all requests."""

    def __init__(self, flight: "Flight") -> None:
        self.bytes = 0
        self._flight = flight

    @property
    def room(self) -> int:
        """The number of bytes that can still be added."""
        return self._flight.most - self._flight.bytes

    def add(self, count: int) -> None:
        """Add bytes; raise RefusedError if they exceed the limit."""
        flight = self._flight
        if self.bytes + count > flight.most:
            large = f"a request and its answer may have at most {flight.most} bytes; these would have"
            raise RefusedError("large", f"{large} {self.bytes + count}: send fewer texts at once")
        if flight.bytes + count > flight.most:
            full = f"requests and answers of {flight.bytes} bytes are under way, and at most {flight.most} may be"
            raise RefusedError("busy", f"the server is busy: {full}", headers={"Retry-After": "1"})
        self.bytes += count
        flight.bytes += count


class Flight:
    """The bytes of all requests in flight, `most` at the same time.

    >>> flight = Flight(100)
    >>> with flight.share() as share:
    ...     share.add(60)
    ...     flight.bytes
    60
    >>> flight.bytes
    0
    """

    def __init__(self, most: int) -> None:
        self.most, self.bytes = most, 0

    @contextmanager
    def share(self) -> Iterator[Share]:
        """Yield the share of one request; its bytes are released at the end of the block."""
        share = Share(self)
        try:
            yield share
        finally:
            self.bytes -= share.bytes
