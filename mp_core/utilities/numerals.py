"""Read numbers from users and files: ASCII digits only, without the other forms that Python accepts."""

import re

__all__ = ["integer_of", "number_of"]

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:inf|infinity|nan)", re.IGNORECASE)


def integer_of(text: str, least: int, most: int) -> int | None:
    """Return a text as an integer; None unless it is an integer from `least` to `most`.

    >>> integer_of("12", 0, 99), integer_of("1_2", 0, 99), integer_of("9" * 400, 0, 99)
    (12, None, None)
    """
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if least <= number <= most else None


def number_of(text: str) -> float:
    """Return a text as a float; raise ValueError unless it is a number: ``float`` would read ``1_0`` as 10.

    >>> number_of(" 1.5e3 "), number_of("-inf")
    (1500.0, -inf)
    >>> number_of("1_0")
    Traceback (most recent call last):
    ...
    ValueError: '1_0' is not a number
    """
    if not _NUMBER.fullmatch(text.strip(" \t\r\n")):
        raise ValueError(f"{text[:40]!r} is not a number")
    return float(text)
