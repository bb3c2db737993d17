"""Run Jinja templates of chats in jinja2's sandbox, with limits of size and time. It needs jinja2."""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["compiled", "rendered"]

_MOST = 1 << 22
"""The most characters of an output and of any text on the way, and items of a list."""
_SECONDS = 2.0
"""The longest time of an output; the templates of published models take some milliseconds."""
_DIGITS = 4
"""The most digits of a width in a format, and of a number that a method of a text is given."""
_BITS = 4096
"""The most bits of an integer."""
_end: ContextVar[float] = ContextVar("mp_core.template_end", default=float("inf"))
_UNSAFE = {"encode", "expandtabs", "translate"}
"""Methods of texts that no template of a chat needs, whose results may be much longer than the text."""
_UNBOUNDED = {"pprint", "sum", "urlize", "wordwrap", "xmlattr"}
"""Filters that no template of a chat needs, which may take long or make long results on the way."""


def _check_time() -> None:
    if time.monotonic() > _end.get():
        raise SecurityError(f"it takes longer than {_SECONDS:g} seconds")


def _check_size(size: int) -> None:
    if size > _MOST:
        raise SecurityError(f"it makes a text or list of more than {_MOST} characters or items")


def _bounded(value: Any) -> Any:
    """Return a value if it is not too large."""
    if isinstance(value, str | bytes | list | tuple):
        _check_size(len(value))
    elif isinstance(value, int) and value.bit_length() > _BITS:
        raise SecurityError(f"it makes an integer of more than {_BITS} bits")
    return value


def _checked(value: Any) -> Any:
    """Return a value that becomes a text, if all texts in it together are not too long."""
    size, parts = 0, [value]
    while parts:
        part = parts.pop()
        size += len(part) if isinstance(part, str | bytes) else 1
        _check_size(size)
        if isinstance(part, Mapping):
            parts += [*part, *part.values()]
        elif isinstance(part, list | tuple):
            parts += part
    return value


def _steps(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of a loop; check the time before each."""
    for value in values:
        _check_time()
        yield value


def _check_replaced(text: Any, old: Any = "", new: Any = "", *rest: Any) -> None:
    _check_size(len(str(text)) + str(text).count(str(old)) * len(str(new)))


def _check_indented(text: Any, width: Any = 4, *rest: Any) -> None:
    _check_size(len(str(text)) + str(text).count("\n") * (len(width) if isinstance(width, str) else int(width)))


def _check_widths(form: Any, *values: Any) -> None:
    """Check the widths in a format, and integers that may become widths."""
    large = any(isinstance(value, int) and abs(value) >= 10**_DIGITS for value in values)
    if large or (isinstance(form, str) and re.search(rf"\d{{{_DIGITS + 1}}}", form)):
        raise SecurityError(f"it formats a text with a number of more than {_DIGITS} digits")


def _check_numbers(value: Any, *values: Any) -> None:
    _check_widths(None, *values)


def _joined_size(items: list[Any], between: str) -> int:
    sizes = (sum(map(_length, item.values())) if isinstance(item, Mapping) else _length(item) for item in items)
    return sum(sizes) + len(between) * len(items)


def _length(item: Any) -> int:
    return len(item) if isinstance(item, str) else 1


_FILTERS: Mapping[str, Callable[..., None]] = {
    "format": _check_widths,
    "indent": _check_indented,
    "replace": _check_replaced,
}
"""Filter -> the function that checks its arguments; the default is `_check_numbers`."""


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter with limits."""
    check: Callable[..., None] = _FILTERS.get(name, _check_numbers)

    @wraps(function)
    def limited(*arguments: Any, **named: Any) -> Any:
        _check_time()
        place = 1 if hasattr(function, "jinja_pass_arg") else 0
        first, *rest = arguments[place:]
        if name == "join":
            first = list(first)
            _check_size(_joined_size(first, str((*rest, named.get("d", ""))[0])))
        elif name in ("string", "tojson"):
            _checked(first)
        elif not isinstance(first, int | float):
            check(first, *rest, *named.values())
        return _bounded(function(*arguments[:place], first, *rest, **named))

    return limited


def _timed(test: Callable[..., Any]) -> Callable[..., Any]:
    """Return a test that ends a template which has run for too long."""

    @wraps(test)
    def timed(*arguments: Any, **named: Any) -> Any:
        _check_time()
        return test(*arguments, **named)

    return timed


class _Generation(Extension):
    """The block ``{% generation %}``, which marks what a model has written; here its contents only."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        made: Any = nodes.Scope
        return made(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with the functions that transformers gives to templates of chats, and limits."""

    filters: dict[str, Any]
    tests: dict[str, Any]
    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        extensions = [_Generation, loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=_checked)
        self.filters = {
            name: _limited(name, function) for name, function in self.filters.items() if name not in _UNBOUNDED
        }
        self.tests = {name: _timed(test) for name, test in self.tests.items()}
        self.filters |= {
            "tojson": _limited("tojson", _to_json),
            "_steps": _steps,
            "_bounded": _bounded,
            "_checked": _checked,
        }
        self.globals |= {"raise_exception": _raise, "strftime_now": _now}
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
        """Parse a template, and add the limits to its loops, joined texts and captured blocks."""
        tree = super()._parse(source, name, filename)

        def within(node: Any, name: str) -> Any:
            return nodes.Filter(node, name, [], [], None, None)

        for loop in tree.find_all(nodes.For):
            loop.iter = within(loop.iter, "_steps")
        for joined in list(tree.find_all(nodes.Concat)):
            parts = [within(node, "_checked") for node in joined.nodes]
            joined.nodes = [within(nodes.Concat(parts), "_bounded")]
        for block in tree.find_all(nodes.AssignBlock):
            block.filter = within(block.filter, "_bounded")
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and not (isinstance(obj, str) and attr in _UNSAFE)

    def wrap_str_format(self, value: Any) -> Any:
        """Return the methods ``format`` and ``format_map`` of a text with limits; None for other values."""
        function = super().wrap_str_format(value)
        if function is None:
            return None

        def formatted(*values: Any, **named: Any) -> Any:
            for mapping in (named, *(value for value in values if isinstance(value, Mapping))):
                _check_widths(value.__self__, *values, *mapping.values())
            return function(*values, **named)

        return formatted

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute ``left operator right`` within the limits."""
        _check_time()
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, str | bytes | list | tuple) and isinstance(other, int):
                    _check_size(len(one) * other)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > _BITS:
                raise SecurityError(f"it makes an integer of more than {_BITS} bits")
        elif operator == "%" and isinstance(left, str):
            _check_widths(left, *(right if isinstance(right, tuple) else [right]))
        return _bounded(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # as jinja2 does
        """Call a function, macro or method within the limits."""
        _check_time()
        text, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(text, str):
            if name == "replace":
                _check_replaced(text, *args, *kwargs.values())
            elif name == "join":
                args = (list(args[0]), *args[1:])
                _check_size(_joined_size(args[0], text))
            else:
                _check_numbers(text, *args, *kwargs.values())
        return _bounded(super().call(__context, __obj, *args, **kwargs))


def _raise(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    if (isinstance(indent, int) and indent > 16) or (isinstance(indent, str) and len(indent) > 16):
        raise SecurityError("it indents JSON by more than 16 characters")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compiled(source: str) -> Any:
    """Compile a template; raise ValueError if it is malformed."""
    try:
        return _Environment().from_string(source)
    except (TemplateError, RecursionError, SyntaxError) as error:
        raise ValueError(f"it is malformed: {error}") from None


def rendered(template: Any, variables: Mapping[str, Any]) -> str:
    """Return the text of a template; raise ValueError if it raises an exception or exceeds a limit."""
    before = _end.set(time.monotonic() + _SECONDS)
    pieces, size = [], 0
    try:
        for piece in template.generate(**variables):
            _check_time()
            size += len(piece)
            _check_size(size)
            pieces.append(piece)
    except TemplateError as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    finally:
        _end.reset(before)
    return "".join(pieces)
