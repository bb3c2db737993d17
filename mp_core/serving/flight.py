"""How many bytes requests and answers have, while they are read, computed and written."""

from collections.abc import Iterator
from contextlib import contextmanager

from mp_core.serving.errors import RefusedError

__all__ = ["Flight", "Share"]


class Share:
    """The bytes of one request and its answer.

    Parameters
    ----------
    flight : Flight
        Of which it is a share.
    """

    def __init__(self, flight: "Flight") -> None:
        self.bytes = 0
        self._flight = flight

    @property
    def room(self) -> int:
        """How many bytes can be added now."""
        return self._flight.most - self._flight.bytes

    def add(self, count: int) -> None:
        """Count more bytes; raise RefusedError if there is no room for them."""
        flight = self._flight
        if self.bytes + count > flight.most:
            told = f"a request and its answer may have at most {flight.most} bytes; these would have"
            raise RefusedError("large", f"{told} {self.bytes + count}: send fewer texts at once")
        if flight.bytes + count > flight.most:
            told = f"requests and answers of {flight.bytes} bytes are under way, and at most {flight.most} may be"
            raise RefusedError("busy", f"the server is busy: {told}", headers={"Retry-After": "1"})
        self.bytes += count
        flight.bytes += count


class Flight:
    """The bytes of all requests that are not answered yet.

    Parameters
    ----------
    most : int

    Attributes
    ----------
    bytes : int

    Examples
    --------
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
        """Yield the share of a request, whose bytes are counted until the end of the block."""
        share = Share(self)
        try:
            yield share
        finally:
            self.bytes -= share.bytes
