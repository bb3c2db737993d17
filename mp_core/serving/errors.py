"""Errors of requests, as JSON in OpenAI's form at its paths and in that of text-embeddings-inference elsewhere."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from starlette.responses import Response

__all__ = ["RefusedError", "error_response"]


class _Kind(NamedTuple):
    """The response to a kind of error: status, OpenAI's type and code, and the type of text-embeddings-inference."""

    status: int
    type: str
    code: str | None
    tei: str


_KINDS = {
    "malformed": _Kind(400, "invalid_request_error", None, "Validation"),
    "invalid": _Kind(422, "invalid_request_error", "invalid_value", "Validation"),
    "text": _Kind(422, "invalid_request_error", "invalid_value", "Tokenizer"),
    "key": _Kind(401, "invalid_request_error", "invalid_api_key", "Unauthorized"),
    "origin": _Kind(403, "invalid_request_error", "origin_not_allowed", "Unauthorized"),
    "model": _Kind(404, "invalid_request_error", "model_not_found", "Validation"),
    "path": _Kind(404, "invalid_request_error", "unknown_url", "Validation"),
    "method": _Kind(405, "invalid_request_error", "method_not_allowed", "Validation"),
    "slow": _Kind(408, "invalid_request_error", "timeout", "Validation"),
    "large": _Kind(413, "invalid_request_error", "request_too_large", "Validation"),
    "coding": _Kind(415, "invalid_request_error", "unsupported_content_encoding", "Validation"),
    "busy": _Kind(429, "rate_limit_error", "overloaded", "Overloaded"),
    "failed": _Kind(500, "server_error", None, "Backend"),
    "stopping": _Kind(503, "server_error", "stopping", "Unhealthy"),
}
_OPENAI = {422: 400}  # OpenAI answers wrong values with 400


class RefusedError(Exception):
    """A request is refused; `kind` is a key of :data:`_KINDS`.

    The message says what was received, and what is allowed. `param` is the wrong field of the body.
    """

    def __init__(
        self, kind: str, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.kind, self.message, self.param, self.headers = kind, message, param, headers


def error_response(path: str, error: RefusedError) -> Response:
    """Return the response for an error, in the form that clients of this path expect.

    >>> error_response("/embed", RefusedError("busy", "full", headers={"Retry-After": "2"})).body
    b'{"error": "full", "error_type": "Overloaded"}'
    >>> response = error_response("/v1/embeddings", RefusedError("invalid", '"input" is missing', "input"))
    >>> response.status_code, json.loads(response.body)["error"]["param"]
    (400, 'input')
    """
    kind = _KINDS[error.kind]
    status, body = kind.status, {"error": error.message, "error_type": kind.tei}
    if path.startswith("/v1/") or path == "/embeddings":
        content = {"message": error.message, "type": kind.type, "param": error.param, "code": kind.code}
        status, body = _OPENAI.get(status, status), {"error": content}  # type: ignore[dict-item]
    return Response(json.dumps(body), status, error.headers, "application/json")
