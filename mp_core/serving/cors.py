"""CORS: which web pages of other origins may send requests and read the answers."""

from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response

from mp_core.serving.errors import RefusedError

__all__ = ["Origins"]

_READABLE = "Retry-After, X-Compute-Tokens, X-Truncated"
_USUAL = "Authorization, Content-Type"
_SECONDS = 7200  # to cache the answer to a preflight; Chromium's maximum


@dataclass(frozen=True, slots=True)
class Origins:
    """The allowed origins. Cookies are never allowed: a page sends its key in ``Authorization``.

    >>> Origins(("https://a",)).headers("https://a")[:2]
    [(b'vary', b'Origin'), (b'access-control-allow-origin', b'https://a')]
    >>> Origins(("https://a",)).headers("https://b")
    [(b'vary', b'Origin')]
    >>> Origins().headers("https://a")
    []
    """

    allowed: tuple[str, ...] = ()  # origins such as ``"https://example.org"``; ``"*"`` alone for all origins; or empty

    def headers(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        """Return the headers that are added to an answer; `origin` is None if the request has none."""
        if not self.allowed:
            return []
        everybody = "*" in self.allowed
        found = {} if everybody else {"vary": "Origin"}  # caches must store an answer for each origin
        if everybody or origin in self.allowed:
            found |= {"access-control-allow-origin": "*" if everybody else str(origin)}
            found |= {"access-control-expose-headers": _READABLE}
        return [(name.encode(), value.encode()) for name, value in found.items()]

    def preflight(self, method: str, headers: Headers) -> Response | None:
        """Return the answer to a preflight request of an allowed origin; None for any other request."""
        if not (self.allowed and method == "OPTIONS" and "access-control-request-method" in headers):
            return None
        origin = headers.get("origin")
        if origin is None:
            return None
        if not {"*", origin} & {*self.allowed}:
            text = f"pages of {origin[:200]} may not send requests: --cors-allow-origin does not list this origin"
            raise RefusedError("origin", text)
        answered = {
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": headers.get("access-control-request-headers", _USUAL),
            "Access-Control-Max-Age": str(_SECONDS),
            "Vary": "Access-Control-Request-Headers",
        }
        return Response(status_code=204, headers=answered)
