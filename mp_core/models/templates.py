"""Templates: the prompts by which decoders judge whether a document answers a query, and their answers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.models.folder import read_text
from mp_core.models.settings import choices
from mp_core.models.tokenizer import Tokenizer
from mp_core.utilities.system import is_present

__all__ = ["TEMPLATES", "Template", "template_of"]

_FIELDS = {"instruction", "query", "document"}


@dataclass(frozen=True, slots=True)
class Template:
    """The prompt for a pair of texts, and the answers of a decoder.

    Parameters
    ----------
    pieces : sequence of str
        The parts of the prompt, as in :meth:`str.format`: ``{query}`` and ``{document}`` once each, and optionally
        ``{instruction}``. Each piece is tokenized separately, without added special tokens.
    true : str
        The positive answer, a single token. Its logit is the score.
    false : str or None
        The negative answer, whose logit is subtracted. Default: none.
    instruction : str
        The text for ``{instruction}``.

    Examples
    --------
    >>> Template(("Is {document} about {query}?",), "yes", "no").true
    'yes'
    """

    pieces: tuple[str, ...]
    true: str
    false: str | None = None
    instruction: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", tuple(self.pieces))
        fields = [name for piece in self.pieces for _, name, *_ in Formatter().parse(piece) if name is not None]
        if not {*fields} <= _FIELDS or fields.count("query") != 1 or fields.count("document") != 1:
            raise ValueError(f"`pieces` must have {{query}} and {{document}} once each; received {fields}")

    def filled(self, query: str, document: str) -> list[str]:
        """Return the pieces for a pair of texts."""
        return [piece.format(instruction=self.instruction, query=query, document=document) for piece in self.pieces]

    def check_words(self, path: Path) -> None:
        """Raise ValueError if the chat template at `path` exists and lacks words of the pieces."""
        if not is_present(path):
            return
        text = _bare(read_text(path))
        for words in (words for piece in self.pieces for words, *_ in Formatter().parse(piece)):
            if _bare(words) not in text:
                expected = "expected a template that mp_core knows. mp_core does not run the file: give `template`"
                raise ValueError(f"{path} does not have the words {words[:80]!r}; {expected}")

    def tokens(self, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> tuple[list[Array], list[int]]:
        """Return the tokens of the prompt for each pair, and the indices of truncated pairs.

        The piece with the query is truncated to three quarters of the maximum length. Then the piece with the document
        is truncated at its end until the prompt fits.
        """
        filled = [self.filled(*pair) for pair in pairs]
        texts = list(dict.fromkeys(text for texts in filled for text in texts))
        found, were_cut = tokenizer(texts, special=False)
        rows, cut = dict(zip(texts, found, strict=True)), {texts[place] for place in were_cut}
        longest, cuts = tokenizer.max_length, [place for place, own in enumerate(filled) if not cut.isdisjoint(own)]
        place = next(index for index, piece in enumerate(self.pieces) if "{document}" in piece)
        query_place = next(index for index, piece in enumerate(self.pieces) if "{query}" in piece)
        results = []
        for number, own in enumerate(filled):
            parts = [rows[text] for text in own]
            if query_place != place:
                parts[query_place] = parts[query_place][: longest * 3 // 4]
            room = longest - sum(len(part) for index, part in enumerate(parts) if index != place)
            if room < 1:
                raise ValueError(f"`pairs[{number}]` leaves no token to the document; max_length is {longest}")
            if len(parts[place]) > room and number not in cuts:
                cuts.append(number)
            parts[place] = parts[place][:room]
            results.append(np.concatenate(parts))
        return results, sorted(cuts)


def _bare(text: str) -> str:
    """Return a text without white space, also without its escapes in programs."""
    return re.sub(r"\\n|\s", "", text)


_QWEN3_TASK = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
_MXBAI_TASK = (
    "You are a search relevance expert who evaluates how well documents match search queries. For each query-document "
    "pair, carefully analyze the semantic relationship between them, then provide your binary relevance judgment (0 "
    "for not relevant, 1 for relevant).\nRelevance:"
)
_GEMMA_TASK = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
    "prediction of either 'Yes' or 'No'."
)
TEMPLATES = {
    "qwen3": Template(
        (
            f"<|im_start|>system\n{_QWEN3_TASK}<|im_end|>\n<|im_start|>user\n",
            "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
            "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        true="yes",
        false="no",
        instruction="Given a web search query, retrieve relevant passages that answer the query",
    ),
    "mxbai": Template(
        (
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\n",
            "query: {query}",
            "\n",
            "document: {document}",
            "\n",
            _MXBAI_TASK,
            "<|im_end|>\n<|im_start|>assistant\n",
        ),
        true="1",
        false="0",
    ),
    "gemma": Template(("<bos>", "A: {query}", "\n", "B: {document}", "\n", _GEMMA_TASK), true="Yes"),
}
"""Name -> the template of a published reranker: Qwen3-Reranker, mxbai-rerank v2, bge-reranker-v2-gemma."""
_OF_NETWORKS = {"qwen3": "qwen3", "qwen2": "mxbai", "gemma": "gemma"}
"""``model_type`` of a decoder -> the name of its default template."""


def template_of(given: Any, kind: str) -> Template:
    """Return the given template or the one with the given name; None: the default for a ``model_type``."""
    if given is None and kind not in _OF_NETWORKS:
        raise ValueError(f"`template` must be given for a decoder of model_type {kind!r}: it has no default")
    name = _OF_NETWORKS[kind] if given is None else given
    if isinstance(name, Template):
        return name
    if not isinstance(name, str) or name not in TEMPLATES:
        raise ValueError(f"`template` must be a Template or {choices(TEMPLATES)}; received {given!r}")
    return TEMPLATES[name]
