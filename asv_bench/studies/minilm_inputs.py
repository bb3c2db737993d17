"""The inputs of `peers.py minilm`: token ids of the demonstration's news items, and the number of operations.

Needs only NumPy and mp_core with the demonstration's packages.
"""

from dataclasses import dataclass

import numpy as np

from mp_core.cli import demo
from mp_core.models import BertEncoder
from mp_core.models.texts import pad

NEWS = "news"
SHAPES = ("32x128", "8x64", "1x32", NEWS)  # documents x tokens, or the 50 news items at their natural lengths
BATCH = 32  # documents per batch
SAMPLE = 200  # other news items, for calibration

LAYERS, WIDTH, INNER = 6, 384, 1536
LINEAR = 2 * LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER)  # multiplications and additions per token
ATTENTION = 2 * LAYERS * 2 * WIDTH  # per token and token of its document: scores and context


@dataclass(frozen=True)
class Inputs:
    """Documents as token ids, the longest first, and the same in padded batches: int64 ids, mask of ones and zeros."""

    rows: list[np.ndarray]
    batches: list[tuple[np.ndarray, np.ndarray]]

    @property
    def linear(self) -> float:
        """Multiplications and additions of the dense layers. Padding is not counted."""
        return float(LINEAR * sum(map(len, self.rows)))

    @property
    def attention(self) -> float:
        return float(ATTENTION * sum(len(row) ** 2 for row in self.rows))


def inputs(shape: str) -> Inputs:
    """Return the news items at their natural lengths, or `documents x tokens` of their words."""
    rows = tokens(demo.documents_and_ratings()[0])
    if shape == NEWS:
        rows.sort(key=len, reverse=True)
    else:
        documents, length = map(int, shape.split("x"))
        first, last = rows[0][:1], rows[0][-1:]  # the special tokens
        words = np.concatenate([row[1:-1] for row in rows])
        if documents * (length - 2) > len(words):
            raise ValueError(f"{shape}: the news items have {len(words)} tokens")
        words = words[: documents * (length - 2)].reshape(documents, length - 2)
        rows = [np.concatenate([first, row, last]) for row in words]
    padded = (pad(batch) for batch in in_batches(rows))
    return Inputs(rows, [(ids.astype(np.int64), mask.astype(np.int64)) for ids, mask in padded])


def in_batches(rows: list[np.ndarray]) -> list[list[np.ndarray]]:
    return [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]


def sample() -> list[np.ndarray]:
    """Return the tokens of other news items, which are not used for evaluation."""
    return tokens(demo.background()[:SAMPLE])


def tokens(texts: list[str]) -> list[np.ndarray]:
    rows, _ = BertEncoder.from_folder(demo.model_folder())._tokenizer(texts)
    return [np.asarray(row) for row in rows]


def min_cosine(embeddings: np.ndarray, expected: np.ndarray) -> float:
    """Return the lowest cosine between two embeddings of a document, computed in float64."""
    x, y = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (embeddings.astype(np.float64), expected))
    return float((x * y).sum(axis=1).min())
