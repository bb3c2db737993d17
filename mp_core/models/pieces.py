"""What a tokenizer made of texts, for people and clients: pieces with their places, and texts of tokens."""

from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Any, NamedTuple

__all__ = ["Piece", "TooManyTokensError", "count_of", "decoded", "last_tokens", "pieces_of"]


class Piece(NamedTuple):
    """A token of a text.

    Attributes
    ----------
    id : int
        Its index in the vocabulary.
    text : str
        What it stands for in the text; of a special token its name.
    special : bool
        Whether it is in no text, but put around each.
    start, stop : int or None
        Where it is in the text, in bytes of UTF-8; None of a special token.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TooManyTokensError(ValueError):
    """Texts with more tokens than are wanted.

    Attributes
    ----------
    count : int
        How many they have.
    """

    def __init__(self, count: int) -> None:
        super().__init__(f"the texts have {count} tokens")
        self.count = count


def last_tokens(encoding: Any, room: int) -> tuple[Any, bool]:
    """Return the last tokens of a text that was encoded without special tokens and cut, and whether it has more."""
    parts = encoding.overflowing
    if not parts and len(encoding) <= room:
        return encoding, False
    # All parts but the last have the same length, so two hold enough. Merging takes a square of what was cut off.
    found = type(encoding).merge([encoding, *parts][-2:], growing_offsets=False)
    found.truncate(room, direction="left")
    return found, True


def count_of(encoding: Any, around: int) -> int:
    """Return how many tokens a text has, those that were cut off included; each part has so many special ones."""
    return len(encoding) + sum(len(part) - around for part in encoding.overflowing)


def pieces_of(text: str, encoding: Any) -> list[Piece]:
    """Return the tokens of a text that was encoded with or without special tokens, those that were cut off included."""
    ends = [0, *accumulate(len(character.encode()) for character in text)]
    parts = [
        _pieces_of_part(text, part, ends) for part in (encoding, *encoding.overflowing)
    ]  # each has special tokens around it
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
    """Return the texts of rows of indices; raise ValueError for one that the vocabulary does not have."""
    for index in sorted({index for row in rows for index in row}):
        if tokenizer.id_to_token(index) is None:
            raise ValueError(f"the model's vocabulary has no token {index}")
    texts: list[str] = tokenizer.decode_batch([list(row) for row in rows], skip_special_tokens=skip_special)
    return texts
