"""How much a server takes: of one request, of all that wait, and at once."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a server takes. What is beyond is refused by the status in parentheses.

    Attributes
    ----------
    body_bytes : int
        Of the body of a request (413).
    texts : int
        Of a request: texts, documents or pairs (413).
    tokens : int
        Of all texts of a request, after they were cut (413).
    requests : int
        That wait or are answered at the same time (429). One whose body is incomplete does not count: it takes a
        connection, and its bytes.
    queue_tokens : int
        Of all texts that wait (429). A request that finds an empty queue is taken whatever its size.
    batch_tokens : int
        That go through a network at once. A single text with more is a batch of its own.
    flight_bytes : int
        Of bodies that are read and answers that are computed or written at the same time (429). A request that would
        have more alone is refused by 413.
    connections : int
        At the same time, and no more than there are descriptors for; others wait until they are accepted.
    body_seconds : float
        Until a body must have arrived (408).
    """

    body_bytes: int = 1 << 21
    texts: int = 2048
    tokens: int = 300_000
    requests: int = 512
    queue_tokens: int = 1 << 17
    batch_tokens: int = 4096
    flight_bytes: int = 1 << 28
    connections: int = 1024
    body_seconds: float = 30.0
