"""Pages of other origins: which of them a browser lets ask, and read the answers."""

from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response

from mp_core.serving.errors import RefusedError

__all__ = ["Origins"]

_READABLE = "Retry-After, X-Compute-Tokens, X-Truncated"
_USUAL = "Authorization, Content-Type"
_SECONDS = 7200  # for which a browser may keep the answer to a preflight; Chromium keeps none longer


@dataclass(frozen=True, slots=True)
class Origins:
    """Whose pages may ask. No answer allows cookies: a page sends its key itself, as ``Authorization``.

    Attributes
    ----------
    allowed : tuple of str
        Origins such as ``"https://example.org"``, or ``"*"`` alone for all of them, or none.

    Examples
    --------
    >>> Origins(("https://a",)).headers("https://a")[:2]
    [(b'vary', b'Origin'), (b'access-control-allow-origin', b'https://a')]
    >>> Origins(("https://a",)).headers("https://b")
    [(b'vary', b'Origin')]
    >>> Origins().headers("https://a")
    []
    """

    allowed: tuple[str, ...] = ()

    def headers(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        """Return what is added to each answer to this origin, None for a request that names none."""
        if not self.allowed:
            return []
        everybody = "*" in self.allowed
        found = {} if everybody else {"vary": "Origin"}  # caches keep an answer for each origin
        if everybody or origin in self.allowed:
            found |= {"access-control-allow-origin": "*" if everybody else str(origin)}
            found |= {"access-control-expose-headers": _READABLE}
        return [(name.encode(), value.encode()) for name, value in found.items()]

    def preflight(self, method: str, headers: Headers) -> Response | None:
        """Return the answer to the question of a browser whether a page may ask; None to any other request.

        Raises
        ------
        RefusedError
            The page may not.
        """
        if not (self.allowed and method == "OPTIONS" and "access-control-request-method" in headers):
            return None
        origin = headers.get("origin")
        if origin is None:
            return None
        if not {"*", origin} & {*self.allowed}:
            raise RefusedError("origin", f"pages of {origin[:200]} may not ask: --cors-allow-origin does not list it")
        told = {
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": headers.get("access-control-request-headers", _USUAL),
            "Access-Control-Max-Age": str(_SECONDS),
            "Vary": "Access-Control-Request-Headers",
        }
        return Response(status_code=204, headers=told)
