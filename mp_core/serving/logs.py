"""The log of a server: one line per event, as plain text or JSON."""

import json
import logging
import re
import sys
import time
import traceback
from contextlib import suppress
from typing import Any, TextIO

__all__ = ["Log"]


class Log:
    """Writes lines with time, level, message and fields to a stream, by default standard error: "plain" or "json".

    `quiet` leaves out requests that did not fail with a server error.

    >>> import sys
    >>> log = Log("json", stream=sys.stdout)
    >>> log.write("info", "POST /embed", status=200, model=None)  # doctest: +ELLIPSIS
    {"time": "...Z", "level": "info", "message": "POST /embed", "status": 200}
    """

    def __init__(self, form: str = "plain", *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.form, self.quiet = form, quiet
        self._stream = sys.stderr if stream is None else stream

    def write(self, level: str, message: str, **fields: Any) -> None:
        """Write a line, without fields that are None.

        No text can break the line, control a terminal or imitate a field: values that are not plain words are quoted.
        The message must not contain text of clients with spaces.
        """
        now = time.time()
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"
        kept = {name: value for name, value in fields.items() if value is not None}
        if self.form == "json":
            line = json.dumps({"time": stamp, "level": level, "message": message} | kept)
        else:
            pairs = "".join(f" {name}={_word(value)}" for name, value in kept.items())
            line = f"{stamp} {level} {message}{pairs}"
            line = line if line.isprintable() else ascii(line)[1:-1]
        with suppress(OSError, ValueError):  # the stream is closed: the server continues
            print(line, file=self._stream, flush=True)

    def exception(self, message: str, error: BaseException) -> None:
        """Write a line about an unexpected error, with the file and line that raised it."""
        place = traceback.extract_tb(error.__traceback__)[-1:]
        where = [f"{frame.filename}:{frame.lineno}" for frame in place]
        self.write("error", message, error=f"{type(error).__name__}: {error}", at=where[0] if where else None)

    def take_over(self) -> None:
        """Log warnings and errors of uvicorn and asyncio in the same form."""
        for name in ("uvicorn.error", "asyncio"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [_Handler(self)], False
            logger.setLevel(logging.WARNING)


def _word(value: Any) -> str:
    """Return a value as one word: quoted as in JSON if it is empty, or has spaces, quotes, ``=`` or controls."""
    text = str(value)
    return text if re.fullmatch(r'[^\s="]+', text) and text.isprintable() else json.dumps(text)


class _Handler(logging.Handler):
    """Writes the records of a logger to a `Log`, exceptions as one line."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        message = " ".join(record.getMessage().split())
        if record.exc_info and record.exc_info[1] is not None:
            self._log.exception(message, record.exc_info[1])
        else:
            self._log.write(record.levelname.lower(), message)
