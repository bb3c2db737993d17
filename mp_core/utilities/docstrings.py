"""Docstrings of families: write sections that several functions or classes share only once."""

import re
import sys
from collections.abc import Callable
from typing import TypeVar

__all__ = ["documented", "shown", "with_sections"]

T = TypeVar("T")

_PARAMETERS, _EXAMPLES, _GAP = "Parameters\n    ----------\n", "Examples\n    --------\n", "\n\n    "


def with_sections(text: str | None, sections: str = "", last: str = "") -> str:
    """Add sections to a docstring: parameters before its own parameters, other sections before its examples.

    Parameters
    ----------
    text : str or None
        The docstring of a top-level class or function: lines after the first are indented by four spaces.
    sections : str
        The sections, beginning with a heading, indented by four spaces.
    last : str
        Parameters to add after the docstring's own parameters.
    """
    text = (text or "").rstrip()
    if sys.version_info >= (3, 13):  # the compiler removes the indentation since 3.13
        text = re.sub(r"\n(?!\n)", "\n    ", text)
    head, _, examples = text.partition(_GAP + _EXAMPLES)
    summary, _, own = head.partition(_GAP + _PARAMETERS)
    own, _, others = own.partition(_GAP)
    sections, first = sections.strip(), ""
    if sections.startswith(_PARAMETERS):
        first, _, sections = sections.removeprefix(_PARAMETERS).partition(_GAP)
    parameters = "\n".join(filter(None, (first, own, last.strip("\n"))))
    found = [_PARAMETERS + parameters if parameters else "", sections, others, _EXAMPLES + examples if examples else ""]
    return _GAP.join([summary, *filter(None, found)]) + "\n    "


def documented(*sections: str, last: str = "") -> Callable[[T], T]:
    """Return a decorator that adds sections to a docstring: see :func:`with_sections`.

    Examples
    --------
    >>> @documented('''
    ...     Parameters
    ...     ----------
    ...     x : float
    ... ''')
    ... def halved(x):
    ...     "Return half of a number."
    ...     return x / 2
    >>> "x : float" in halved.__doc__
    True
    """
    added = "".join(sections)

    def with_added(decorated: T) -> T:
        decorated.__doc__ = with_sections(decorated.__doc__, added, last)
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
