"""Generators: prompts in, texts out, from folders of transformers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.models.folder import read_optional
from mp_core.models.generation.batch import Batch, Run
from mp_core.models.generation.cache import PAGE, PagedCache
from mp_core.models.generation.cache import Sequence as Tokens
from mp_core.models.generation.network import CausalModel, Steps, decoder_of, heads_of
from mp_core.models.generation.perplexity import Perplexity, perplexity_of
from mp_core.models.generation.sampling import Sampling
from mp_core.models.modules import Modules, read_network
from mp_core.models.texts import TextModel
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.utilities.arguments import integer, path_of, positive_integer

__all__ = ["Generated", "Generator"]

_CACHED = 8192
"""The default of `cache_tokens`."""
_SCORED = 128
"""The number of tokens whose logits are in memory at once: 78 MB for a vocabulary of 151,936."""


@dataclass(frozen=True)
class Generated:
    """What was generated after a prompt.

    Attributes
    ----------
    text : str
    tokens : list of int
        Without a final token that ends texts.
    reason : str
        Why it ends: ``"stop"`` (a token that ends texts, or a string of `stop`) or ``"length"`` (`max_tokens`).
    log_probabilities : list of (float, dict of int to float), or None
        For each token its log-probability, and those of the most probable tokens.
    """

    text: str
    tokens: list[int]
    reason: str
    log_probabilities: list[tuple[float, dict[int, float]]] | None = None


class Generator(TextModel):
    """A decoder that generates texts. Create it by :meth:`from_folder`.

    A prompt at temperature 0 has one answer: its bits do not depend on other prompts of the batch, on the number of
    threads, on the instruction set, or on whether keys and values were computed before, in one piece or in several.

    Attributes
    ----------
    model : CausalModel
        The network.
    max_length : int
        The most tokens of a prompt and the text after it.
    cache_bytes : int
        The memory for keys and values.
    ends : frozenset of int
        The tokens that end texts.

    Examples
    --------
    >>> generator = Generator.from_folder("Qwen3-0.6B", policy="int8_from_mixed_bfloat16")  # doctest: +SKIP
    >>> generator.generate("The capital of France is", max_tokens=3).text  # doctest: +SKIP
    ' Paris. The'
    """

    kind = CausalModel
    model: CausalModel

    def __init__(
        self, folder: Path, modules: Modules, policy: str | DTypePolicy | None, cache_tokens: int | None
    ) -> None:
        tokens = _CACHED if cache_tokens is None else positive_integer(cache_tokens, "cache_tokens")
        self._pages = -(-tokens // PAGE)
        super().__init__(folder, modules, policy)
        self.ends = _ends_of(modules)

    @property
    def _outputs(self) -> str:
        return f"vocabulary={self.model.settings.vocab_size}"

    @classmethod
    def from_folder(
        cls, path: str | PathLike[str], policy: str | DTypePolicy | None = None, *, cache_tokens: int | None = None
    ) -> "Generator":
        """Load a model.

        Parameters
        ----------
        path : path
            Folder of a causal language model of transformers: ``config.json``, ``model.safetensors`` and
            ``tokenizer.json``. Or a ``.gguf`` file of llama.cpp, of which nothing else is needed.
        policy : str or DTypePolicy, optional
            As in :meth:`mp_core.models.TextEncoder.from_folder`; the path of the product to the vocabulary is
            ``lm_head``. Keys and values are stored in the compute dtype.
        cache_tokens : int, optional
            The number of tokens, of all texts together, whose keys and values are in memory. Default: 8192.
        """
        folder = path_of(path, "path")
        return cls(folder, read_network(folder), policy, cache_tokens)

    def _read_weights(self, policy: DTypePolicy | None) -> None:
        super()._read_weights(policy)
        decoder = decoder_of(self.model)
        self._cache = PagedCache(heads_of(decoder.settings), decoder.blocks[0].compute_dtype, self._pages)
        self._steps = Steps(self.model, self._cache)

    @property
    def cache_bytes(self) -> int:
        """The bytes of the cache of keys and values."""
        return self._cache.nbytes

    def generate(
        self,
        prompts: str | Iterable[str | Sequence[int]],
        max_tokens: int = 128,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        log_probabilities: int | None = None,
    ) -> Any:
        """Generate texts after prompts, several at a time.

        Parameters
        ----------
        prompts : str, or iterable of str or of sequences of int
            Texts, or their tokens.
        max_tokens : int
            The most tokens to generate for each prompt.
        temperature, top_k, top_p, min_p, repetition_penalty, seed
            See :class:`Sampling`. Temperature 0 takes the most probable token.
        stop : str or sequence of str
            Generation ends before the first of these strings.
        log_probabilities : int, optional
            For each generated token, note its log-probability and those of so many tokens with the largest ones.

        Returns
        -------
        Generated, or list of Generated
            A list unless `prompts` is a str.

        Raises
        ------
        ValueError
            A prompt has no token, or is too long for the network or the cache.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
        runs = self._runs(texts, sampling, max_tokens, log_probabilities)
        found: dict[int, Generated] = {run.number: done for run, _, done in self._steps_of(runs, stop) if done}
        listed = [found[number] for number in range(len(texts))]
        return listed[0] if isinstance(prompts, str) else listed

    def stream(
        self, prompt: str, max_tokens: int = 128, *, stop: str | Sequence[str] = (), **sampling: Any
    ) -> Iterator[str]:
        """Yield the text after a prompt in pieces, as soon as they are known; arguments as in :meth:`generate`."""
        runs = self._runs([prompt], Sampling(**sampling), max_tokens, None)
        for _, piece, _ in self._steps_of(runs, stop):
            if piece:
                yield piece

    def __call__(self, texts: str | Iterable[str]) -> Array:
        """Return :meth:`log_probabilities` of all texts one after the other, shape (tokens, 1).

        :func:`~mp_core.calibrate` and :func:`~mp_core.choose_policy` call it.
        """
        found = self.log_probabilities([texts] if isinstance(texts, str) else texts)
        return np.concatenate(found)[:, np.newaxis]

    def log_probabilities(self, texts: Iterable[str | Sequence[int]]) -> list[Array]:
        """Return for each text the log-probabilities of its tokens after the first one, given those before them.

        Parameters
        ----------
        texts : iterable of str or of sequences of int
            Texts, or their tokens.

        Returns
        -------
        list of ndarray of float32, each of shape (tokens - 1,)

        Raises
        ------
        ValueError
            A text has no token, or is too long for the network or the cache.
        """
        return [found for found, _ in self.likelihoods(texts)]

    def likelihoods(self, texts: Iterable[str | Sequence[int]]) -> list[tuple[Array, Array]]:
        """Return :meth:`log_probabilities` of texts, and for each of these tokens whether no other is more probable.

        Returns
        -------
        list of (ndarray of float32, ndarray of bool), each of shape (tokens - 1,)
        """
        steps = Steps(self.model, self._cache, every=True)
        return [self._scores(steps, row) for row in self._rows(list(texts), "texts")]

    def perplexity(
        self, text: str, *, window: int | None = None, stride: int | None = None, show_progress: bool = False
    ) -> Perplexity:
        """Return the perplexity of a text of any length: exp of the mean negative log-probability of its tokens.

        A window moves over the tokens. Each token is scored once, given the tokens before it in the first window that
        contains it; the first token of the text is not scored.

        Parameters
        ----------
        text : str
        window : int, optional
            The tokens of a window. Default: 1024, or the network's maximum or the cache, if they are smaller.
        stride : int, optional
            By how many tokens the window moves: then tokens after the first window have at least ``window - stride``
            before them. If it is `window`, the first token of each window is not scored. Default: half of `window`.
        show_progress : bool
            Whether to show a bar on stderr (needs tqdm).

        Returns
        -------
        Perplexity

        Raises
        ------
        ValueError
            The text has fewer than two tokens, or `window` is more than the network or the cache hold.

        Examples
        --------
        >>> generator.perplexity(Path("wiki.txt").read_text(), window=512).value  # doctest: +SKIP
        21.4
        """
        most = min(self.model.settings.max_length - 1, self._pages * PAGE)
        return perplexity_of(self, text, most, window, stride, show_progress)

    def _scores(self, steps: Steps, row: Array) -> tuple[Array, Array]:
        sequence, found, best = Tokens(row.tolist()), np.empty(len(row), F32), np.empty(len(row), np.bool_)
        if len(row) > self._pages * PAGE:
            raise ValueError(f"a text of {len(row)} tokens needs more than the {self._pages * PAGE} of the cache")
        try:
            self._cache.grow(sequence, len(row))
            for first in range(0, len(row), _SCORED):
                count = min(_SCORED, len(row) - first)
                logs = ops.log_softmax(steps([sequence], [count]))
                following = row[first + 1 : first + count + 1]
                part = slice(first, first + len(following))
                found[part] = logs[np.arange(len(following)), following]
                best[part] = found[part] == logs[: len(following)].max(axis=-1)
        finally:
            self._cache.release(sequence)
        return found[:-1], best[:-1]

    def _rows(self, texts: list[Any], argument: str) -> list[Array]:
        """Return the tokens of texts or of sequences of tokens, which must fit the network."""
        written = [text for text in texts if isinstance(text, str)]
        tokenized, cut = self._tokenizer(written)
        numbers = iter(range(len(written)))
        longest, rows = self.model.settings.max_length, []
        for place, text in enumerate(texts):
            number = next(numbers) if isinstance(text, str) else None
            row = self._ids(text, f"{argument}[{place}]") if number is None else tokenized[number]
            if not len(row):
                raise ValueError(f"`{argument}[{place}]` must have a token; the model's tokenizer gives it none")
            if number in cut or len(row) >= longest:
                raise ValueError(f"`{argument}[{place}]` must have fewer than {longest} tokens, the network's maximum")
            rows.append(row)
        return rows

    def _ids(self, given: Any, argument: str) -> Array:
        ids = np.asarray(given)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise TypeError(f"`{argument}` must be a str or a sequence of int; received {type(given).__name__}")
        if ids.size and not 0 <= ids.min() <= ids.max() < self.model.settings.vocab_size:
            raise ValueError(f"`{argument}` must have tokens from 0 to {self.model.settings.vocab_size - 1}")
        return ids.astype(np.int32)

    def _runs(self, prompts: list[Any], sampling: Sampling, most: int, alternatives: int | None) -> list[Run]:
        most = positive_integer(most, "max_tokens")
        if alternatives is not None and integer(alternatives, "log_probabilities") < 0:
            raise ValueError(f"`log_probabilities` must be at least 0; received {alternatives}")
        return [
            Run(row.tolist(), sampling, number, min(most, self.model.settings.max_length - len(row)), alternatives)
            for number, row in enumerate(self._rows(prompts, "prompts"))
        ]

    def _steps_of(self, runs: list[Run], stop: str | Sequence[str]) -> Iterator[tuple[Run, str, Generated | None]]:
        """Yield (run, new text, its result if it is done) until all runs are done."""
        stops = [stop] if isinstance(stop, str) else list(stop)
        if not all(isinstance(word, str) and word for word in stops):
            raise ValueError(f"`stop` must be strings that are not empty; received {stop!r}")
        batch = Batch(self._steps, self._cache, self._pages)
        texts = {run.number: _Text(self._tokenizer, stops) for run in runs}
        try:
            for run in runs:
                batch.add(run)
            while len(batch):
                self.maps.check()
                for run in batch.step():
                    text = texts[run.number]
                    ends = run.tokens[-1] in self.ends
                    piece = text.read(run.tokens[:-1] if ends else run.tokens, ends or len(run.tokens) == run.most)
                    if not (ends or text.stopped or len(run.tokens) == run.most):
                        yield run, piece, None
                        continue
                    batch.leave(run)
                    yield run, piece, _result(run, text, ends)
        finally:
            for run in runs:
                batch.leave(run)


def _result(run: Run, text: "_Text", ends: bool) -> Generated:
    tokens = run.tokens[:-1] if ends else run.tokens
    noted = run.log_probabilities[: len(tokens)] if run.alternatives is not None else None
    return Generated(text.known, tokens, "stop" if ends or text.stopped else "length", noted)


class _Text:
    """The text of a growing list of tokens. Bytes of a character that is not complete, or of a stop, wait."""

    def __init__(self, tokenizer: Any, stops: list[str]) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._first = self._read = 0  # tokens before `_first` are decoded; those before `_read` give context
        self._text = ""
        self.known, self.stopped = "", False

    def read(self, tokens: list[int], last: bool) -> str:
        """Return the text that is known since the last call; `last` says that no tokens follow."""
        before, now = self._tokenizer.decode([tokens[self._first : self._read], tokens[self._first :]])
        if len(now) > len(before) and (last or not now.endswith("\ufffd")):
            self._text += now[len(before) :]
            self._first, self._read = self._read, len(tokens)
        places = [place for word in self._stops if (place := self._text.find(word)) >= 0]
        self.stopped = bool(places)
        end = min(places) if places else len(self._text) if last else len(self._text) - self._held()
        piece, self.known = self._text[len(self.known) : end], self._text[:end]
        return piece

    def _held(self) -> int:
        """Return how many last characters may be the start of a stop."""
        lengths = (n for word in self._stops for n in range(1, len(word)) if self._text.endswith(word[:n]))
        return max(lengths, default=0)


def _ends_of(modules: Modules) -> frozenset[int]:
    """Return the tokens that end texts."""
    found = read_optional(modules.network / "generation_config.json").get("eos_token_id")
    found = modules.config.get("eos_token_id") if found is None else found
    listed = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(token, int) for token in listed):
        raise ValueError(f"{modules.network}: eos_token_id is {found!r}; expected an integer or a list of integers")
    return frozenset(listed)
