"""Tokenizer results for people and clients: tokens with their positions in the text, and decoded texts."""

from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Any, NamedTuple

__all__ = ["Piece", "TooManyTokensError", "count_of", "decoded", "last_tokens", "pieces_of"]


class Piece(NamedTuple):
    """A token of a text.

    Attributes
    ----------
    id : int
        The index in the vocabulary.
    text : str
        Its part of the text; the name of a special token.
    special : bool
        Whether the tokenizer added it to the text.
    start, stop : int or None
        Its position in the text, in bytes of UTF-8; None for a special token.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TooManyTokensError(ValueError):
    """Texts have more tokens than allowed.

    Attributes
    ----------
    count : int
        The number of tokens.
    """

    def __init__(self, count: int) -> None:
        super().__init__(f"the texts have {count} tokens")
        self.count = count


def last_tokens(encoding: Any, room: int) -> tuple[Any, bool]:
    """Return the last `room` tokens of a truncated encoding without special tokens, and whether any were dropped."""
    parts = encoding.overflowing
    if not parts and len(encoding) <= room:
        return encoding, False
    # All parts except the last have the same length, so two are enough. Merging all would take quadratic time.
    found = type(encoding).merge([encoding, *parts][-2:], growing_offsets=False)
    found.truncate(room, direction="left")
    return found, True


def count_of(encoding: Any, special: int) -> int:
    """Return the number of tokens of a text, truncated ones included; each part has `special` special tokens."""
    return len(encoding) + sum(len(part) - special for part in encoding.overflowing)


def pieces_of(text: str, encoding: Any) -> list[Piece]:
    """Return all tokens of an encoded text, including the truncated ones."""
    ends = [0, *accumulate(len(character.encode()) for character in text)]
    # Each part repeats the special tokens.
    parts = [_pieces_of_part(text, part, ends) for part in (encoding, *encoding.overflowing)]
    before = [*takewhile(lambda piece: piece.special, parts[0])]
    behind = [*takewhile(lambda piece: piece.special, reversed(parts[0][len(before) :]))]
    return [*before, *(piece for part in parts for piece in part if not piece.special), *reversed(behind)]


def _pieces_of_part(text: str, encoding: Any, ends: Sequence[int]) -> list[Piece]:
    rows = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True)
    return [
        Piece(index, token, True, None, None)
        if special
        else Piece(index, text[start:stop], False, ends[start], ends[stop])
        for index, token, special, (start, stop) in rows
    ]


def decoded(tokenizer: Any, rows: Sequence[Sequence[int]], skip_special: bool) -> list[str]:
    """Return the texts of rows of indices; raise ValueError for an index outside the vocabulary."""
    for index in sorted({index for row in rows for index in row}):
        if tokenizer.id_to_token(index) is None:
            raise ValueError(f"the model's vocabulary has no token {index}")
    texts: list[str] = tokenizer.decode_batch([list(row) for row in rows], skip_special_tokens=skip_special)
    return texts
