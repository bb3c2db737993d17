"""Generators: prompts in, texts out, from folders of transformers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.models.folder import read_optional
from mp_core.models.generation.batch import Batch, Proposer, Run, one_at_a_time
from mp_core.models.generation.cache import PAGE, NoPageError, PagedCache
from mp_core.models.generation.cache import Sequence as Tokens
from mp_core.models.generation.chat import ChatTemplates, Messages
from mp_core.models.generation.network import CausalModel, Steps, decoder_of, heads_of
from mp_core.models.generation.perplexity import Perplexity, perplexity_of
from mp_core.models.generation.sampling import Sampling
from mp_core.models.generation.session import Generated, Session, stops_of
from mp_core.models.generation.speculation import Draft, Lookup
from mp_core.models.modules import Modules, read_network
from mp_core.models.texts import TextModel
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.utilities.arguments import integer, path_of, positive_integer
from mp_core.utilities.nonfinite import NonFiniteError

__all__ = ["Generator"]

_CACHED = 8192
"""The default of `cache_tokens`."""
_SCORED = 128
"""The number of tokens whose logits are in memory at once: 78 MB for a vocabulary of 151,936."""


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
        self,
        folder: Path,
        modules: Modules,
        policy: str | DTypePolicy | None,
        cache_tokens: int | None,
        speculation: "str | Generator | None",
    ) -> None:
        tokens = _CACHED if cache_tokens is None else positive_integer(cache_tokens, "cache_tokens")
        self._pages = -(-tokens // PAGE)
        super().__init__(folder, modules, policy)
        self.ends = _ends_of(modules)
        self._proposer = None if speculation is None else self._proposer_of(speculation)
        self._templates = ChatTemplates(modules.network, self._tokenizer.named)

    @property
    def _outputs(self) -> str:
        return f"vocabulary={self.model.settings.vocab_size}"

    @classmethod
    def from_folder(
        cls,
        path: str | PathLike[str],
        policy: str | DTypePolicy | None = None,
        *,
        cache_tokens: int | None = None,
        speculation: "str | Generator | None" = None,
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
        speculation : "lookup" or Generator, optional
            Proposes next tokens, several of which the network verifies in one step: ``"lookup"`` those that followed
            the last tokens earlier in the text, a smaller generator with the same tokens those that it would generate.
            It changes no bit of an answer.

        Raises
        ------
        ValueError
            The tokens of `speculation` are others.
        """
        folder = path_of(path, "path")
        return cls(folder, read_network(folder), policy, cache_tokens, speculation)

    def _proposer_of(self, speculation: "str | Generator") -> Proposer:
        if not isinstance(speculation, Generator):
            if speculation != "lookup":
                raise ValueError(f"`speculation` must be 'lookup', a Generator or None; received {speculation!r}")
            return Lookup()
        return speculation.draft(self._tokenizer.vocabulary, self.model.settings.vocab_size)

    def draft(self, vocabulary: Mapping[str, int], size: int) -> Draft:
        """Return a draft of this generator for a network with a vocabulary of `size`; see `from_folder`."""
        if self._tokenizer.vocabulary != vocabulary:
            raise ValueError("`speculation` must be a Generator whose tokenizer has the same tokens")
        settings = self.model.settings
        return Draft(self._steps, self._cache, settings.max_length, (settings.vocab_size, size))

    def _read_weights(self, policy: DTypePolicy | None) -> None:
        super()._read_weights(policy)
        if self.kernel_names["lm_head"] == f"{self.tensor_names['embeddings/word']}weight":
            self.model.tie()
        decoder = decoder_of(self.model)
        self._cache = PagedCache(heads_of(decoder.settings), decoder.blocks[0].compute_dtype, self._pages)
        self._steps = Steps(self.model, self._cache)

    @property
    def cache_bytes(self) -> int:
        """The bytes of the cache of keys and values."""
        return self._cache.nbytes

    @property
    def cache_tokens(self) -> int:
        """The number of tokens, of all texts together, whose keys and values are in memory."""
        return self._pages * PAGE

    @property
    def used_pages(self) -> int:
        """The number of pages, of 64 tokens each, that hold texts that are being generated."""
        return self._pages - self._cache.available

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
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        log_probabilities: int | None = None,
    ) -> Any:
        """Generate texts after prompts, several at a time.

        Parameters
        ----------
        prompts : str, or iterable of str or of sequences of int
            Texts, or their tokens as from :meth:`chat_tokens`.
        max_tokens : int
            The most tokens to generate for each prompt.
        temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, seed
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
            A prompt has no token, or is too long for the network or the cache; or logits are not finite.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        sampling = Sampling(
            temperature, top_k, top_p, min_p, repetition_penalty, seed, presence_penalty, frequency_penalty, logit_bias
        )
        runs = self.runs(texts, sampling, max_tokens, log_probabilities)
        found: dict[int, Generated] = {run.number: done for run, _, done in self.steps_of(runs, stop) if done}
        listed = [found[number] for number in range(len(texts))]
        return listed[0] if isinstance(prompts, str) else listed

    def stream(
        self, prompt: str | Sequence[int], max_tokens: int = 128, *, stop: str | Sequence[str] = (), **sampling: Any
    ) -> Iterator[str]:
        """Yield the text after a prompt in pieces, as soon as they are known; arguments as in :meth:`generate`."""
        runs = self.runs([prompt], Sampling(**sampling), max_tokens)
        for _, piece, _ in self.steps_of(runs, stop):
            if piece:
                yield piece

    def chat(
        self,
        messages: Messages,
        max_tokens: int = 128,
        *,
        template: str | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
        **how: Any,
    ) -> Generated:
        """Generate the answer to messages.

        Parameters
        ----------
        messages, template, variables
            See :meth:`apply_template`.
        max_tokens : int
        **how
            Further arguments of :meth:`generate`.

        Returns
        -------
        Generated

        Examples
        --------
        >>> generator = Generator.from_folder("Qwen3-0.6B")  # doctest: +SKIP
        >>> generator.chat([{"role": "user", "content": "Name a colour."}]).text  # doctest: +SKIP
        'Blue.'
        """
        found: Generated
        (found,) = self.generate([self.chat_tokens(messages, template=template, **variables)], max_tokens, **how)
        return found

    def apply_template(
        self, messages: Messages, *, template: str | None = None, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Return messages as one text, by the chat template of the folder. It needs jinja2.

        The template is a program, and runs in jinja2's sandbox with the functions that transformers gives it. It may
        take 2 seconds, and make texts of 4,194,304 characters.

        Parameters
        ----------
        messages : sequence of mapping
            Each has a ``"role"``, such as ``"user"``, and usually ``"content"``; values are of JSON's types.
        template : str, optional
            The name of one of several templates of the folder, or the text of a template. Default: the folder's
            template.
        add_generation_prompt : bool
            Whether the text ends where the answer begins.
        **variables
            Further variables of the template, such as ``enable_thinking=False`` for Qwen 3.

        Returns
        -------
        str

        Raises
        ------
        TypeError
            A value is of another type.
        ValueError
            There is no template, it refuses the messages, it fails, or it exceeds a limit.
        """
        return self._templates.text(messages, template, add_generation_prompt, variables)

    def chat_tokens(
        self, messages: Messages, *, template: str | None = None, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Return messages as tokens; arguments as in :meth:`apply_template`.

        The template writes the special tokens. A text of a message that reads like one becomes one too, as in
        transformers.
        """
        text = self.apply_template(
            messages, template=template, add_generation_prompt=add_generation_prompt, **variables
        )
        (row,), cut = self._tokenizer([text], special=False)
        longest = self.model.settings.max_length
        if cut or len(row) >= longest:
            raise ValueError(f"`messages` must have fewer than {longest} tokens, the network's maximum")
        tokens: list[int] = row.tolist()
        return tokens

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
        return [self._scores(row.tolist()) for row in self._rows(list(texts), "texts")]

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

    def _scores(self, row: list[int]) -> tuple[Array, Array]:
        """Score tokens: each is proposed to follow those before it."""
        sequence, count, pages = Tokens(row), len(row) - 1, -(-len(row) // PAGE)
        if pages > self._pages:
            raise ValueError(f"a text of {len(row)} tokens needs more than the {self._pages * PAGE} of the cache")
        found, best = np.empty(count, F32), np.empty(count, np.bool_)
        with one_at_a_time():
            if not self._cache.reserve(pages):
                raise NoPageError(f"texts that are being generated hold the pages of the cache; {pages} are needed")
        try:
            for first in range(0, count, _SCORED):
                following = row[first + 1 : first + _SCORED + 1]
                part = slice(first, first + len(following))
                with one_at_a_time():
                    self._cache.grow(sequence, part.stop)
                    logits = self._steps([sequence], [1], [following[:-1]])
                    self._cache.note(sequence, part.stop)
                logs = ops.log_softmax(logits)
                found[part] = logs[np.arange(len(following)), following]
                best[part] = found[part] == logs.max(axis=-1)
        finally:
            with one_at_a_time():
                self._cache.release(sequence)
                self._cache.reserve(-pages)
        return found, best

    def _rows(self, prompts: Sequence[str | Sequence[int]], argument: str) -> list[Array]:
        """Return the tokens of prompts, which are texts or tokens; raise ValueError if they do not fit the network."""
        places = [place for place, prompt in enumerate(prompts) if isinstance(prompt, str)]
        found, were_cut = self._tokenizer([str(prompts[place]) for place in places])
        texts, cut = dict(zip(places, found, strict=True)), {places[index] for index in were_cut}
        longest, rows = self.model.settings.max_length, []
        for number, prompt in enumerate(prompts):
            row = texts[number] if number in texts else self._ids(prompt, f"{argument}[{number}]")
            if not len(row):
                raise ValueError(f"`{argument}[{number}]` must have a token; the model's tokenizer gives it none")
            if number in cut or len(row) >= longest:
                raise ValueError(f"`{argument}[{number}]` must have fewer than {longest} tokens, the network's maximum")
            rows.append(row)
        return rows

    def _ids(self, given: Any, argument: str) -> Array:
        """Return a prompt that is given as tokens."""
        size = self.model.settings.vocab_size
        ids = np.asarray(given if isinstance(given, np.ndarray) else list(given))
        if ids.ndim != 1 or (ids.size and (ids.dtype.kind not in "iu" or not 0 <= ids.min() <= ids.max() < size)):
            raise ValueError(f"`{argument}` must be a str, or tokens from 0 to {size - 1}; received {str(given)[:60]}")
        return ids.astype(np.int32)

    def runs(
        self,
        prompts: Sequence[str | Sequence[int]],
        sampling: Sampling,
        most: int,
        alternatives: int | None = None,
        first: int = 0,
    ) -> list[Run]:
        """Return the runs for prompts, the index of the first of which is `first`; see :meth:`generate`."""
        most = positive_integer(most, "max_tokens")
        if alternatives is not None and integer(alternatives, "log_probabilities") < 0:
            raise ValueError(f"`log_probabilities` must be at least 0; received {alternatives}")
        longest, size = self.model.settings.max_length, self.model.settings.vocab_size
        biased = max(sampling.logit_bias or [0])
        if biased >= size:
            raise ValueError(f"`logit_bias` must have tokens from 0 to {size - 1}; received {biased}")
        return [
            Run(row.tolist(), sampling, number, min(most, longest - len(row)), alternatives)
            for number, row in enumerate(self._rows(prompts, "prompts"), first)
        ]

    def words(self, tokens: Sequence[int]) -> list[str]:
        """Return what each token adds to a text; "" for those that the tokenizer lacks."""
        known = [token for token in tokens if self._tokenizer.knows(token)]
        first, second = (self._tokenizer.decode([[token] * n for token in known], False) for n in (1, 2))
        added = dict(zip(known, (two[len(one) :] for one, two in zip(first, second, strict=True)), strict=True))
        return [added.get(token, "") for token in tokens]

    def session(self) -> Session:
        """Return a loop over steps, which runs join and leave."""
        return Session(Batch(self._steps, self._cache, self._pages, self._proposer), self._tokenizer, self.ends)

    def steps_of(
        self, runs: Iterable[Run], stop: str | Sequence[str], at_once: int | None = None
    ) -> Iterator[tuple[Run, str, Generated | None]]:
        """Yield (run, new text, its result if it is done) until all runs are done, at most `at_once` at a time."""
        stops, session, coming = stops_of(stop), self.session(), iter(runs)
        try:
            while True:
                for run in islice(coming, None if at_once is None else at_once - len(session)):
                    session.add(run, stops)
                if not len(session):
                    return
                self.maps.check()
                for run, piece, done in session.step():
                    if not run.is_finite:
                        raise NonFiniteError(run.number, "the logits of the next token have Inf or NaN")
                    yield run, piece, done
        finally:
            session.close()


def _ends_of(modules: Modules) -> frozenset[int]:
    """Return the tokens that end texts."""
    found = read_optional(modules.network / "generation_config.json").get("eos_token_id")
    found = modules.config.get("eos_token_id") if found is None else found
    listed = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(token, int) for token in listed):
        raise ValueError(f"{modules.network}: eos_token_id is {found!r}; expected an integer or a list of integers")
    return frozenset(listed)
