"""``mp-core serve``: answer requests over HTTP, in the formats of OpenAI and of text-embeddings-inference."""

import argparse
import errno
import ipaddress
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from mp_core.cli import options
from mp_core.cli.common import positive, printable
from mp_core.cli.grammar import new_command
from mp_core.files.checkpoint.reading import read_file
from mp_core.policies import config
from mp_core.serving.limits import Limits
from mp_core.utilities.extras import missing
from mp_core.utilities.numerals import integer_of
from mp_core.utilities.suggest import refusal

__all__ = ["add_command"]

_PACKAGES = ("starlette", "uvicorn")
_KEYS = 1 << 16  # most bytes of a file of keys
_LIMITS = {
    "body_bytes": "bytes in the body of a request",
    "texts": "texts in a request",
    "tokens": "tokens in a request",
    "requests": "requests at the same time",
    "queue_tokens": "tokens in the queue",
    "batch_tokens": "tokens in a batch",
    "flight_bytes": "bytes of all unfinished requests and answers",
    "connections": "connections at the same time; fewer if file descriptors run out",
}
"""Limit -> what its option limits."""


def add_command(commands: Any) -> None:
    """Add `serve` to the program."""
    examples = (
        "serve MODEL", "serve MODEL --policy int8 --port 8080 --threads 4", "serve small=MODEL large=OTHER",
        "serve MODEL --adapter legal=FOLDER --adapter news=OTHER", "serve --generator DECODER --policy int8",
    )  # fmt: skip
    serve = new_command(
        commands, "serve", _serve, "answer requests for embeddings, scores and completions over HTTP", examples
    )
    serve.add_argument(
        "models", nargs="*", metavar="MODEL", help="folder of a model (requests use the folder's name), or NAME=FOLDER"
    )
    serve.add_argument(
        "--generator", action="append", default=[], metavar="NAME=FOLDER",
        help="serve this decoder for completions and chats; repeatable; NAME= may be left out",
    )  # fmt: skip
    serve.add_argument(
        "--cache-tokens", type=positive, metavar="N", help="tokens of a generator with keys and values in memory"
    )
    serve.add_argument(
        "--adapter", action="append", default=[], metavar="NAME=FOLDER",
        help="serve MODEL with this peft adapter as NAME too; needs exactly one MODEL, whose weights are shared",
    )  # fmt: skip
    options.add(serve, "policy", help="policy of all models (default: as each folder is stored)")
    options.add(serve, "threads")
    serve.add_argument("--host", metavar="HOST", help="name or address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=_port, metavar="PORT", help="0 picks a free port (default: 8000)")
    serve.add_argument("--unix-socket", metavar="FILE", help="listen on this socket instead of a port")
    serve.add_argument("--api-key-file", metavar="FILE", help="file with one key per line; requests need one of them")
    serve.add_argument(
        "--cors-allow-origin", action="append", type=_origin, default=[], metavar="ORIGIN",
        help="allow pages of this origin, such as https://example.org; may be repeated; * allows all",
    )  # fmt: skip
    for field in fields(Limits):
        if field.name in _LIMITS:
            serve.add_argument(
                f"--max-{field.name.replace('_', '-')}",
                type=positive,
                default=field.default,
                metavar="N",
                help=f"most {_LIMITS[field.name]} (default: %(default)s)",
            )
    serve.add_argument("--grace-seconds", type=positive, default=30, metavar="N", help=_GRACE)
    serve.add_argument(
        "--log-format", choices=("plain", "json"), default="plain", help="format of the log (default: %(default)s)"
    )
    options.add(serve, "quiet", help="log only requests in which the server failed")


_GRACE = "seconds to finish received requests after SIGTERM (default: %(default)s)"


def _serve(arguments: argparse.Namespace) -> int:
    _check_packages()
    # These need starlette and uvicorn, which are checked before.
    from mp_core.serving import front, server
    from mp_core.serving.cors import Origins  # as above
    from mp_core.serving.logs import Log  # as above
    from mp_core.serving.models import open_models  # as above

    folders = _folders(arguments.models, "MODEL")
    adapters = _folders(arguments.adapter, "--adapter")
    generators = _folders(arguments.generator, "--generator")
    origins = tuple(dict.fromkeys(arguments.cors_allow_origin))
    if "*" in origins and len(origins) > 1:
        raise argparse.ArgumentError(None, "argument --cors-allow-origin: * allows all origins; remove the others")
    _check_adapters(adapters, folders)
    _check_generators(generators, folders, adapters)
    keys = _keys(arguments.api_key_file)
    place = _Place.of(arguments)
    if arguments.threads:
        config.set_num_threads(arguments.threads)
    log = Log(arguments.log_format, quiet=arguments.quiet)
    with place.bound() as listener:
        models = open_models(folders, arguments.policy, adapters, generators, arguments.cache_tokens)
        for served in models:
            log.write("info", f"serving {served.name}", **served.describe())
        if not keys and not place.local:
            log.write("warning", f"anybody who reaches {place.host} can send requests; --api-key-file prevents it")
        limits = Limits(**{name: getattr(arguments, f"max_{name}") for name in _LIMITS})
        app = front.create_app(models, limits=limits, keys=keys, log=log, origins=Origins(origins))
        code = server.serve(
            app, listener, log, grace=arguments.grace_seconds, connections=limits.connections,
            started=place.announcer(listener), stopping=app.finish,
        )  # fmt: skip
    log.write("info", "stopped")
    if app.busy:  # a thread still computes, and the interpreter would wait for it
        sys.stdout.flush()
        os._exit(code)
    return code


def _check_packages() -> None:
    for name in _PACKAGES:
        if find_spec(name) is None:
            raise missing(name, "mp-core serve")


def _port(word: str) -> int:
    number = integer_of(word, 0, 65535)
    if number is None:
        raise argparse.ArgumentTypeError(refusal(word, "must be an integer from 0 to 65535"))
    return number


def _origin(word: str) -> str:
    """Check an origin and return it as browsers write it: lower case, without the default port."""
    if word != "*" and not (word.isascii() and re.fullmatch(r"https?://[^\s/?#@*\\,]+", word, re.IGNORECASE)):
        raise argparse.ArgumentTypeError(
            refusal(word, "must be * or an origin such as https://example.org, in ASCII and without a path")
        )
    origin = word.lower()
    return origin.removesuffix(":443" if origin.startswith("https") else ":80")


def _folders(words: list[str], argument: str) -> dict[str, Path]:
    """Read FOLDER or NAME=FOLDER words; return name -> folder."""
    found: dict[str, Path] = {}
    for word in words:
        name, equals, folder = ("", "", word) if Path(word).is_dir() else word.rpartition("=")
        name = name if equals else Path(os.path.abspath(folder)).name
        if not (name and folder and name.isprintable()):
            raise argparse.ArgumentError(None, f"argument {argument}: {refusal(word, 'must be FOLDER or NAME=FOLDER')}")
        if name in found:
            reason = f"two have the name {name}; use NAME=FOLDER to give one of them another name"
            raise argparse.ArgumentError(None, f"argument {argument}: {reason}")
        found[name] = Path(folder)
    return found


def _check_adapters(adapters: dict[str, Path], folders: dict[str, Path]) -> None:
    if adapters and len(folders) != 1:
        raise argparse.ArgumentError(None, f"argument --adapter: needs one MODEL; received {len(folders)}")
    both = sorted(adapters.keys() & folders.keys())
    if both:
        raise argparse.ArgumentError(None, f"argument --adapter: {both[0]} is the name of the model; choose another")


def _check_generators(generators: dict[str, Path], folders: dict[str, Path], adapters: dict[str, Path]) -> None:
    if not folders and not generators:
        raise argparse.ArgumentError(None, "the following arguments are required: MODEL or --generator")
    both = sorted(generators.keys() & (folders.keys() | adapters.keys()))
    if both:
        raise argparse.ArgumentError(None, f"argument --generator: {both[0]} is the name of a model; use NAME=FOLDER")


def _keys(path: str | None) -> list[str]:
    """Return the keys in a file, which has one per line."""
    if path is None:
        return []
    content = read_file(Path(path), _KEYS)
    lines = [line.strip() for line in content.decode("ascii", "replace").splitlines()]
    keys = [line for line in lines if line]
    if not keys or not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
        raise ValueError(f"{path} must have one key per line, of printable ASCII characters without spaces")
    return keys


class _Place(NamedTuple):
    """Where the server listens: a host and port, or the path of a Unix socket."""

    host: str
    port: int
    path: str | None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "_Place":
        """Read --host, --port and --unix-socket."""
        path = arguments.unix_socket
        if path is not None and (arguments.host is not None or arguments.port is not None):
            raise argparse.ArgumentError(None, "argument --unix-socket: not allowed with --host or --port")
        if path is not None and not hasattr(socket, "AF_UNIX"):
            raise argparse.ArgumentError(None, "argument --unix-socket: Python does not support it on this system")
        return cls(arguments.host or "127.0.0.1", 8000 if arguments.port is None else arguments.port, path)

    @property
    def local(self) -> bool:
        """Return whether only programs on this machine can connect."""
        try:
            loopback = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            loopback = self.host == "localhost"
        return self.path is not None or loopback

    @contextmanager
    def bound(self) -> Iterator[socket.socket]:
        """Yield a listening socket; close it, and remove its path, at the end."""
        from mp_core.serving import server  # needs uvicorn, which is checked before

        with ExitStack() as stack:
            try:
                place = server.bound(self.host, self.port) if self.path is None else server.bound_unix(self.path)
                listener = stack.enter_context(place)
            except (OSError, UnicodeError) as error:
                why = getattr(error, "strerror", None) or error
                raise argparse.ArgumentError(None, f"argument {self._option_at_fault(error)}: {why}") from None
            yield listener

    def _option_at_fault(self, error: Exception) -> str:
        """Return the option, with its value, that caused an error."""
        if self.path is not None:
            return f"--unix-socket: {self.path}"
        if isinstance(error, socket.gaierror | UnicodeError) or getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
            return f"--host: {self.host}"
        return f"--port: {self.host}:{self.port}"

    def announcer(self, listener: socket.socket) -> Callable[[], None]:
        """Return a function that prints the address; the server calls it when it is ready."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        address = f"unix:{self.path}" if self.path is not None else f"http://{host}:{listener.getsockname()[1]}"
        return lambda: print(printable(address), flush=True)
