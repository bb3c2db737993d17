"""The limits of a server."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a server. Requests beyond them are refused with the status in parentheses."""

    body_bytes: int = 1 << 21  # bytes of a request's body (413)
    texts: int = 2048  # texts, documents or pairs of a request (413)
    tokens: int = 300_000  # tokens of all texts of a request after truncation (413)
    # Requests in progress at the same time (429). A request counts once its body is complete; before, only its
    # connection and its bytes count.
    requests: int = 512
    queue_tokens: int = 1 << 17  # Tokens in the queue (429). A request of any size is accepted if the queue is empty.
    batch_tokens: int = 4096  # Tokens in a batch. A single text with more tokens is a batch by itself.
    # Bytes of all bodies and answers in memory (429). A single request that needs more is refused with 413.
    flight_bytes: int = 1 << 28
    connections: int = 1024  # Open connections, at most as many as file descriptors allow. Others wait to be accepted.
    body_seconds: float = 30.0  # seconds in which a body must arrive (408)
    # Tokens of an answer to a chat that says nothing about it; fewer if the cache has no room for them.
    new_tokens: int = 1024
