"""Docstrings of families: the sections that several functions or classes share are written once."""

import re
import sys
from collections.abc import Callable
from typing import TypeVar

__all__ = ["documented", "with_sections"]

T = TypeVar("T")

_PARAMETERS, _EXAMPLES, _GAP = "Parameters\n    ----------\n", "Examples\n    --------\n", "\n\n    "


def with_sections(text: str | None, sections: str = "", last: str = "") -> str:
    """Return a docstring with further sections: parameters before its own ones, all else before its examples.

    Parameters
    ----------
    text : str or None
        As it stands in a class or function of a module: the lines after the first are indented by four spaces.
    sections : str
        From the first heading on, indented likewise.
    last : str
        Parameters that come after its own ones.
    """
    text = (text or "").rstrip()
    if sys.version_info >= (3, 13):  # where the compiler removes the indentation
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
    """Return a decorator that adds sections to a docstring, when its module is imported: see :func:`with_sections`.

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
