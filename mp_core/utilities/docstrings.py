"""Docstrings of families: write sections that several functions or classes share only once."""

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["documented", "parameters_of", "shown", "with_sections"]

T = TypeVar("T")

_HEADING = re.compile(r"(?:\A|\n\n)    ([A-Z]\w+)\n    -{3,}\n")
_ENTRY = re.compile(r"^    (\S.*?)((?: : .*)?(?:\n {5}.*)*)$", re.MULTILINE)
"""An entry of a table of parameters: its names; the type and the description."""


def with_sections(
    text: str | None, sections: str = "", last: str = "", signature: inspect.Signature | None = None
) -> str:
    """Add sections to a docstring: parameters to its own parameters, other sections before its examples.

    A shared parameter is left out if the docstring describes it. An example directly after the summary needs no
    heading in the source; it gets one here, because sections come before it.

    Parameters
    ----------
    text : str or None
        The docstring of a top-level class or function: lines after the first are indented by four spaces.
    sections : str
        The sections, indented by four spaces; text before the first heading is added to the summary.
    last : str
        Entries of parameters to add after the docstring's own ones.
    signature : inspect.Signature, optional
        Determines the order of the parameters. Shared parameters that it lacks are left out, unless it ends with
        ``**kwargs``. Default: those of `sections` come first.
    """
    text = _indented(text)
    if "    Examples\n    ---" not in text:
        text = text.replace("\n\n    >>> ", "\n\n    Examples\n    --------\n    >>> ", 1)
    summary, own = _split(text)
    more, shared = _split("    " + sections.strip())
    parameters = _merged(shared.pop("Parameters", ""), own.pop("Parameters", ""), last, signature)
    examples = own.pop("Examples", "")
    own = {heading: f"{shared[heading]}\n{body}" if heading in shared else body for heading, body in own.items()}
    found = {"Parameters": parameters, **shared, **own, "Examples": examples}
    parts = [f"{heading}\n    {'-' * len(heading)}\n{body}" for heading, body in found.items() if body]
    return "\n\n    ".join(filter(None, [summary, more.strip(), *parts])) + "\n    "


def parameters_of(function: Callable[..., Any]) -> str:
    """Return the section of the parameters of a decorated function, for :func:`with_sections`."""
    return f"    Parameters\n    ----------\n{_split(function.__doc__ or '')[1].get('Parameters', '')}\n"


def _indented(text: str | None) -> str:
    """Restore the indentation of a docstring, which the compiler removes since Python 3.13."""
    text = (text or "").rstrip()
    return re.sub(r"\n(?!\n)", "\n    ", text) if sys.version_info >= (3, 13) else text


def _split(text: str) -> tuple[str, dict[str, str]]:
    """Return what comes before the first section, and heading -> text of its sections."""
    summary, *parts = _HEADING.split(text)
    found: dict[str, str] = {}
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        found[heading] = f"{found[heading]}\n{body.rstrip()}" if heading in found else body.rstrip()
    return summary, found


def _merged(first: str, own: str, last: str, signature: inspect.Signature | None) -> str:
    """Merge three tables of parameters. Entries of `own` replace entries of the same name in `first` and `last`."""
    tables = [[(names.split(", "), rest) for names, rest in _ENTRY.findall(table)] for table in (first, own, last)]
    parameters = signature.parameters if signature else {}
    is_open = not signature or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    taken = {name for names, _ in tables[1] for name in names}
    for shared in tables[::2]:
        for names, _ in shared:
            names[:] = [name for name in names if name not in taken and (is_open or name in parameters)]
    places = {name: place for place, name in enumerate(parameters)}
    entries = [(names, rest) for table in tables for names, rest in table if names]

    def place(entry: tuple[list[str], str]) -> tuple[bool, int]:
        name = entry[0][0]
        return name.startswith("**"), places.get(name, len(places))

    ordered = sorted(entries, key=place) if signature else entries
    return "\n".join(f"    {', '.join(names)}{rest}" for names, rest in ordered)


def documented(*sections: str, last: str = "") -> Callable[[T], T]:
    """Return a decorator that adds sections to a docstring: see :func:`with_sections`.

    It leaves out parameters that the class or function does not have, and puts the others in the order of its own.

    >>> @documented('''
    ...     Parameters
    ...     ----------
    ...     x, y : float
    ... ''')
    ... def halved(x):
    ...     "Return half of a number."
    ...     return x / 2
    >>> "x : float" in halved.__doc__, "y" in halved.__doc__
    (True, False)
    """
    added = "".join(sections)

    def with_added(decorated: T) -> T:
        signature = inspect.signature(decorated)  # type: ignore[arg-type]
        decorated.__doc__ = with_sections(decorated.__doc__, added, last, signature)
        return decorated

    return with_added


def shown(call: str, result: str) -> Callable[[T], T]:
    """Return a decorator that adds an example: a call, in which ``{}`` is the name of the decorated thing, its result.

    Decorators that add sections must come after this one.

    Examples
    --------
    >>> @shown("{}(3.0)", "1.5")
    ... def halved(x):
    ...     "Return half of a number."
    ...     return x / 2
    >>> ">>> halved(3.0)" in halved.__doc__
    True
    """

    def with_example(decorated: T) -> T:
        indent = "" if sys.version_info >= (3, 13) else "    "  # as the compiler leaves docstrings
        shown_call = call.format(getattr(decorated, "__name__", ""))
        section = f"Examples\n--------\n>>> {shown_call}\n{result}\n".replace("\n", f"\n{indent}")
        decorated.__doc__ = f"{(decorated.__doc__ or '').rstrip()}\n\n{indent}{section}"
        return decorated

    return with_example
