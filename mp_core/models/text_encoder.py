"""Sentence encoders, from a folder as the sentence-transformers library writes it."""

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import numpy as np

from mp_core.arrays import Array, as_mask, imported
from mp_core.arrays.finite import all_finite
from mp_core.dtype_policies import DTypePolicy
from mp_core.models.modules import Modules, read_modules
from mp_core.models.pooling import pool, unit
from mp_core.models.prompted import PromptedModel
from mp_core.models.ragged import Plans
from mp_core.models.sentence_transformers import (
    Options,
    SentenceTransformerNames,
    also_named,
    in_format,
    check_options,
)
from mp_core.models.settings import LEAST_TOKENS
from mp_core.models.steps import applied
from mp_core.models.texts import Text, Tokens, is_one, pad
from mp_core.models.tokenizer import Tokenizer
from mp_core.models.weights import Weights
from mp_core.utilities.arguments import boolean, path_of, positive_integer

__all__ = ["BertEncoder", "TextEncoder"]


class TextEncoder(SentenceTransformerNames, PromptedModel):
    """A sentence encoder: texts in, one float32 vector each out. :meth:`from_folder` builds one.

    It can be handed to code that expects a ``SentenceTransformer``: the evaluators and utilities of that library, for
    example.

    Attributes
    ----------
    model : TextNetwork
        The network.
    dim : int
        Length of an embedding.
    max_length : int
        The most tokens a text may have, its two special tokens included; :meth:`encode` cuts off the rest.
    poolings : tuple of str
        How the vectors of a text's tokens become one; the results of several stand side by side.
    prompts : dict of str to str
        Name -> text to put before a text, as the folder lists them.
    default_prompt_name : str or None
        The name of the prompt that :meth:`encode` uses if the caller names none.
    tensor_names : dict of str to str
        The path of each layer with weights of its own -> how the names of its tensors in the checkpoint begin.
    kernel_names : dict of str to str
        The path of each layer with a kernel -> the name of its tensor in the checkpoint.

    Examples
    --------
    >>> encoder = TextEncoder.from_folder("all-MiniLM-L6-v2", policy="mixed_bfloat16")  # doctest: +SKIP
    >>> encoder.encode(["A man is eating.", "Someone eats."]).shape  # doctest: +SKIP
    (2, 384)
    """

    vector_kinds: ClassVar[tuple[str, ...]] = ("dense",)

    def __init__(self, folder: Path, modules: Modules, policy: str | DTypePolicy | None) -> None:
        super().__init__(folder, modules, policy)
        self.similarity_fn_name = modules.similarity
        self._tasks: dict[str, tuple[Any, Any, TextEncoder]] = {}
        self._set: dict[str, Any] = {}  # what was set instead of what the folder says: fields of modules
        self._take_modules(modules)

    def _take_modules(self, modules: Modules) -> None:
        """Do with the vectors of tokens what modules say."""
        self._modules = modules
        self.poolings = modules.poolings
        widths = [modules.settings.vector_size * len(modules.poolings), *(step.width for step in modules.steps)]
        self._pooled_dim = widths[-1]
        self.dim = min(self._pooled_dim, modules.truncate_dim or self._pooled_dim)

    @classmethod
    def from_folder(
        cls, path: str | PathLike[str], policy: str | DTypePolicy | None = None, *, truncate_dim: int | None = None
    ) -> Self:
        """Load a model.

        Parameters
        ----------
        path : path
            Folder of a network of one of the kinds of :data:`mp_core.models.architectures.ARCHITECTURES` as
            sentence-transformers saves it, in today's layout or in the one with ``0_Transformer``: ``config.json``,
            ``model.safetensors`` or ``pytorch_model.bin``, ``tokenizer.json``, ``1_Pooling/config.json`` and, where
            they exist, ``modules.json``, the folders of the modules behind the pooling,
            ``config_sentence_transformers.json``, ``sentence_bert_config.json`` and ``tokenizer_config.json``. Or a
            folder of static embeddings, of sentence-transformers or model2vec.
        policy : str or DTypePolicy, optional
            Default: the one under which the files are stored, float32 if they name none. Under another one, codes of
            its scheme stay as they are, and all other weights are converted from the numbers that they stand for. A
            scheme alone, such as ``"int8"``, means ``"int8_from_mixed_bfloat16"``. The keys of a DTypePolicyMap are
            paths such as ``encoder/layer_0/attention/query``.
        truncate_dim : int, optional
            `truncate_dim` of the model. Default: as the folder says.

        Raises
        ------
        OSError
            A file is missing or unreadable.
        ValueError
            A file holds something else than expected, or a setting that mp_core does not know; the message names the
            file, the entry or tensor, what it holds and what was expected. Or `truncate_dim` is no positive integer.
        ImportError
            The tokenizers package is missing.
        """
        folder = path_of(path, "path")
        encoder = cls(folder, read_modules(folder), policy)
        if truncate_dim is not None:
            encoder.truncate_dim = truncate_dim
        return encoder

    def with_task(self, task: str) -> Self:
        """Return the encoder for a task: with its adapter, as of jina-embeddings-v3, or on its route through modules.

        All share the weights of one network, and their memory. Where routes have networks of their own, :meth:`save`
        writes that of the encoder that it is called of, and copies the others.

        Parameters
        ----------
        task : str
            One of those that ``config.json`` lists as ``lora_adaptations``, whose instruction is the default prompt. Or
            one for which the ``Router`` of the folder has a route, such as ``"query"``.

        Raises
        ------
        OSError
            The folder is not there any more.
        ValueError
            The folder has no such adapter or route, or one that does not fit.

        Examples
        --------
        >>> queries = encoder.with_task("retrieval.query")  # doctest: +SKIP
        """
        if self._modules.router is not None:
            return self._on_route(task)
        from mp_core.models.tasks import adapted_to, check_task, instruction  # few models have them

        modules, config = self._modules, self._modules.config
        number = check_task(task, config, modules.network / "config.json")
        other = copy(self)
        other.model = adapted_to(self.model, Weights.open(modules.network, self.model), number, config)
        other._plans = Plans()
        other.prompts = self.prompts | instruction(task, config)
        other.default_prompt_name = task if task in other.prompts else self.default_prompt_name
        return other

    def with_each_task(self) -> dict[str, Self]:
        """Return the encoder for each of `tasks`, as :meth:`with_task` does; tasks on one route share one encoder."""
        router, found = self._modules.router, dict[str, Self]()
        if router is None:
            return {}
        for task in self.tasks:
            route = router.route_of(task)
            found[route] = found.get(route) or self.with_task(task)
        return {task: found[router.route_of(task)] for task in self.tasks}

    def _on_route(self, task: str) -> Self:
        modules = replace(read_modules(self._folder, task), **self._set)
        mine = self._modules
        if (modules.network, modules.layer_weights) != (mine.network, mine.layer_weights):
            other = type(self)(self._folder, modules, self._policy)
            other._set = self._set
            return other
        other = copy(self)
        other._take_modules(modules)
        return other

    def _of_task(self, task: str) -> "TextEncoder":
        if self._modules.router is None:
            return self
        found = self._tasks.get(task)
        if found is None or found[0] is not self.model or found[1] is not self._modules:
            found = self.model, self._modules, self.with_task(task)
            self._tasks = {**self._tasks, task: found}  # copies of this encoder keep theirs
        return found[2]

    def __call__(self, texts: Text | Iterable[Text]) -> Array:
        """Return :meth:`encode` of `texts`."""
        return self.encode(texts)

    @also_named("texts")
    def encode(
        self,
        texts: Text | Iterable[Text],
        batch_size: int = 32,
        normalize: bool | None = None,
        show_progress: bool = False,
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        truncate_dim: int | None = None,
        on_cut: Callable[[list[int]], object] | None = None,
        on_batch: Callable[[int], object] | None = None,
        **options: Unpack[Options],
    ) -> Array:
        """Embed texts.

        Parameters
        ----------
        texts : str or iterable of str
            Texts are cut off at `max_length` tokens. An empty text is a text if the tokenizer adds special tokens.
            ``{"text": "..."}`` is a text too, as in sentence-transformers. Whatever has no order of its own, or yields
            its keys or columns, is refused: sets, other dicts, tables.
        batch_size : int
            Texts of similar length that go through the network at once; no result depends on it.
        normalize : bool, optional
            Whether to scale every embedding to length 1. By default as the folder says: if ``modules.json`` lists
            ``Normalize``, before the embedding is truncated.
        show_progress : bool
            Whether to show a bar on stderr (needs tqdm).
        prompt : str, optional
            What is put before each text; an empty one is none.
        prompt_name : str, optional
            The name of one of `prompts`, instead of `prompt`. By default `default_prompt_name`.
        truncate_dim : int, optional
            How many numbers of each embedding to keep, all if there are fewer. By default as the folder says.
        on_cut : callable, optional
            Called with the positions of the texts that were cut off, if there are any.
        on_batch : callable, optional
            Called with the number of texts of each batch once it is done.
        **options
            Arguments of ``SentenceTransformer.encode``: ``show_progress_bar``; ``normalize_embeddings`` (instead of
            `normalize`; False means as the folder says); ``convert_to_tensor`` and ``convert_to_numpy=False`` for
            tensors of torch, which share the memory of the array. ``precision`` is ``"float32"``, ``"int8"``,
            ``"uint8"``, ``"binary"`` or ``"ubinary"``: int8 and uint8 spread the range that each number has in these
            embeddings over 256 codes, the last two pack the signs of eight numbers into a byte. ``device`` may be
            ``"cpu"`` and ``output_value`` ``"sentence_embedding"`` only, ``pool`` and ``chunk_size`` None. `texts` may
            be called ``inputs`` or ``sentences``.

        Returns
        -------
        ndarray of float32, shape (len(texts), dim)
            In the order of `texts`; of shape (dim,) for a single str, as in sentence-transformers. Of another dtype,
            and of bits an eighth as many, if ``precision`` says so.

        Raises
        ------
        TypeError
            A text or the prompt is not a str, `texts` are no texts in an order, a switch is no bool, or an argument
            unknown.
        ValueError
            `batch_size` or `truncate_dim` is no positive integer; there is no prompt of that name, or one beside
            `prompt`; a text has no token, or a character that UTF-8 cannot encode; one of `options` has another value
            than those above, or says what `normalize` says; or one text alone has codes of int8 or uint8.
        """
        check_options(options)
        if "normalize_embeddings" in options:
            if normalize is not None:
                raise ValueError("`normalize` and `normalize_embeddings` exclude each other; received both")
            normalize = options["normalize_embeddings"] or None
        how = self._how(batch_size, normalize, truncate_dim)
        tokens = self.tokenize(texts, prompt=prompt, prompt_name=prompt_name)
        if tokens.cut and on_cut is not None:
            on_cut(tokens.cut)
        show = bool(options.get("show_progress_bar") or show_progress)
        embeddings = self._embeddings(tokens, *how, show, on_batch)
        formatted: Array = in_format(embeddings, options, is_one(texts))
        return formatted

    def encode_tokens(
        self,
        tokens: Tokens,
        batch_size: int = 32,
        normalize: bool | None = None,
        *,
        truncate_dim: int | None = None,
    ) -> Array:
        """Embed texts that :meth:`tokenize` made tokens of: the second half of :meth:`encode`.

        Parameters
        ----------
        tokens : Tokens
        batch_size, normalize, truncate_dim
            Those of :meth:`encode`.

        Returns
        -------
        ndarray of float32, shape (len(tokens), dim)
            The bits of :meth:`encode`.

        Raises
        ------
        TypeError, ValueError
            As :meth:`encode`.
        """
        return self._embeddings(tokens, *self._how(batch_size, normalize, truncate_dim))

    def _how(self, batch_size: int, normalize: bool | None, truncate_dim: int | None) -> tuple[int, bool | None, int]:
        """Return the checked size of batches, whether to scale, and how many numbers of an embedding to keep."""
        batch_size = positive_integer(batch_size, "batch_size")
        dim = (
            self.dim if truncate_dim is None else min(positive_integer(truncate_dim, "truncate_dim"), self._pooled_dim)
        )
        return batch_size, None if normalize is None else boolean(normalize, "normalize"), dim

    def _embeddings(
        self,
        tokens: Tokens,
        batch_size: int,
        normalize: bool | None,
        dim: int,
        show: bool = False,
        on_batch: Callable[[int], object] | None = None,
    ) -> Array:
        embeddings = np.empty((len(tokens), dim), np.float32)
        for batch, texts in self.in_batches(tokens, batch_size, show, on_batch):
            pooled = applied(self._modules.steps, self._pooled(texts.rows, texts.skipped), normalize)[:, :dim]
            pooled = unit(pooled) if normalize else pooled
            self._check(pooled, texts.rows, batch)
            embeddings[batch] = pooled
        return embeddings

    def fit(
        self,
        data: Any,
        loss: Any = "multiple_negatives",
        epochs: int = 1,
        batch_size: int = 32,
        *,
        learning_rate: float = 5e-5,
        warmup: float = 0.1,
        weight_decay: float = 0.0,
        max_norm: float | None = 1.0,
        optimizer: Any = None,
        dropout: float | None = None,
        chunk: int | None = None,
        cluster: Any = None,
        prompts: str | Mapping[str, str] | None = None,
        shuffle: bool = True,
        seed: int | None = None,
        validation_data: Any = None,
        callbacks: Any = None,
        verbose: Any = "auto",
    ) -> Any:
        """Train the network on texts, and return the History of the loss; :meth:`save` writes what it has learned.

        No padding is computed, except by DeBERTa. Trained are the weights of the network that are trainable; those of
        modules behind the pooling stay as they are.

        Parameters
        ----------
        data : iterable of rows, mapping of columns, or path of a .jsonl, .csv or .tsv file
            Pairs, triplets and so on: a row is a sequence of texts, maybe with a label behind them, or a mapping. A
            column named ``label``, ``labels``, ``score`` or ``scores`` has labels.
        loss : TextLoss or str
            One of :mod:`mp_core.models.tuning`, or the name of one with its defaults: ``"multiple_negatives"``,
            ``"multiple_negatives_symmetric"``, ``"cosine"``, ``"cosent"``, ``"triplet"``, ``"mse"``, ``"margin_mse"``.
        epochs : int
        batch_size : int
            Examples in a step.
        learning_rate, warmup, weight_decay, max_norm : float
            AdamW, whose rate rises to `learning_rate` in the first steps, a share of all below 1 or else their number,
            and then falls to 0 along a line; the decay spares biases and norms. Gradients whose norm, all together, is
            above `max_norm` are scaled down to it.
        optimizer : Optimizer or str, optional
            Instead of the one that these four describe.
        dropout : float, optional
            The rate of dropout, of vectors and of the weights of attention, instead of the rates of the configuration.
        chunk : int, optional
            For how many examples activations are kept, rounded up to whole groups: these have 32 examples, or fewer if
            they have more than 4096 tokens. The other groups run forward twice, which takes less memory and gives the
            same bits. Default: for all.
        cluster : mp_core.interop.dask.Workers, optional
            What computes the groups on other machines: `batch_size` is above 32 then. The weights have the same bits.
        prompts : str or mapping of str to str, optional
            What is put before each text, or those of each column. Default: as :meth:`encode`.
        shuffle : bool
            Whether each epoch has an order of its own.
        seed : int, optional
            Of the order and the dropout. Default: the next ones of the process, see :func:`mp_core.random.set_seed`.
        validation_data : as `data`, optional
            Its loss is computed after each epoch: ``val_loss``.
        callbacks : list of Callback, optional
            Those of :mod:`mp_core.callbacks`; :class:`~mp_core.callbacks.BackupAndRestore` resumes a run.
        verbose : {"auto", 0, 1, 2}
            Whether stderr says how far it is.

        Returns
        -------
        History

        Raises
        ------
        OSError
            A file is missing or unreadable.
        TypeError, ValueError
            An argument is not as above, or `data` are damaged or do not fit the loss: the message names the row. Or a
            layer holds codes, or the architecture has no gradients. No weight has changed.

        Examples
        --------
        >>> encoder = TextEncoder.from_folder("all-MiniLM-L6-v2")  # doctest: +SKIP
        >>> pairs = [("How tall is it?", "It is 8 m high."), ("Who built it?", "A firm in Ghent did.")]
        >>> encoder.fit(pairs, epochs=3).history["loss"]  # doctest: +SKIP
        [0.041, 0.022, 0.013]
        """
        from mp_core.models.tuning.fitting import Recipe, fit_encoder  # inference does not load it

        recipe = Recipe(
            epochs, batch_size, learning_rate, warmup, weight_decay, max_norm, optimizer, dropout, shuffle, seed,
            callbacks, verbose,
        )  # fmt: skip
        return fit_encoder(
            self, data, loss, recipe, chunk=chunk, validation_data=validation_data, prompts=prompts, cluster=cluster
        )

    @property
    def max_seq_length(self) -> int:
        """`max_length` under the name of sentence-transformers; it can be set, up to what the network takes."""
        return self.max_length

    @max_seq_length.setter
    def max_seq_length(self, length: int) -> None:
        length = positive_integer(length, "max_seq_length")
        if not LEAST_TOKENS <= length <= self.model.settings.max_length:
            allowed = f"from {LEAST_TOKENS} to {self.model.settings.max_length}"
            raise ValueError(f"`max_seq_length` must be {allowed}; received {length}")
        self._change(max_length=length)
        self._tokenizer, self._auto_tokenizer = Tokenizer(self._modules), None

    @property
    def truncate_dim(self) -> int | None:
        """How many numbers of each embedding :meth:`encode` keeps by default; None: all. It can be set."""
        return self._modules.truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, dim: int | None) -> None:
        self._change(truncate_dim=None if dim is None else positive_integer(dim, "truncate_dim"))
        self._take_modules(self._modules)

    def set_pooling_include_prompt(self, include_prompt: bool) -> None:
        """Say whether the tokens of a prompt are pooled too, instead of the folder: for INSTRUCTOR they must not be.

        Parameters
        ----------
        include_prompt : bool

        Raises
        ------
        TypeError
            It is no bool.
        """
        self._change(include_prompt=boolean(include_prompt, "include_prompt"))

    def _change(self, **settings: Any) -> None:
        """Take settings instead of those of the folder, on other routes too."""
        self._modules, self._set = replace(self._modules, **settings), {**self._set, **settings}

    def embed_tokens(self, ids: Array, mask: Array | None = None) -> Array:
        """Embed texts that are tokens already.

        Parameters
        ----------
        ids : ndarray of int, shape (n, length)
            Vocabulary indices, special tokens included.
        mask : ndarray, shape (n, length), optional
            True where there is a token, False where there is padding; at least one token in a row.

        Returns
        -------
        ndarray of float32, shape (n, dim)
            The pooled embeddings, neither normalized nor truncated.

        Raises
        ------
        TypeError
            `ids` are not integers, or `ids` or `mask` a masked array.
        ValueError
            A shape does not fit, an index is outside the vocabulary, or a row of `mask` has no token.
        """
        ids = imported(ids, "ids")
        if ids.dtype.kind not in "iu":
            raise TypeError(f"`ids` must be integers; received {ids.dtype}")
        keep = None if mask is None else as_mask(mask)
        vectors = self._embedded(ids, keep)
        if not all_finite(vectors):
            rows = list(ids) if keep is None else [row[own] for row, own in zip(ids, keep, strict=True)]
            self._check(vectors, rows, range(len(rows)))
        return vectors

    def _embedded(self, ids: Array, keep: Array | None) -> Array:
        """Return the pooled vectors of padded texts, by a plan if there is one and padding is on the right."""
        texts = self._plans.vectors(self.model, self._modules.poolings, 0)
        if texts is not None and ids.ndim == 2 and 1 <= ids.shape[1] <= self.model.settings.max_length:
            if keep is None:
                return texts(ids.reshape(-1), [ids.shape[1]] * len(ids))
            ids = self.model.checked(ids)
            lengths = keep.sum(axis=1) if keep.shape == ids.shape else np.zeros(1, np.intp)
            if lengths.all() and np.array_equal(keep, np.arange(ids.shape[1]) < lengths[:, np.newaxis]):
                return texts(ids[keep], lengths.tolist())
        return self._embed(ids, np.ones(ids.shape, bool) if keep is None else keep)

    def _pooled(self, rows: list[Array], unpooled: int) -> Array:
        """Return the pooled vectors of the tokens of texts, by a plan if there is one."""
        texts = self._plans.vectors(self.model, self._modules.poolings, unpooled)
        if texts is None:
            return self._embed(*pad(rows), unpooled)
        return texts(np.concatenate(rows), [len(row) for row in rows])

    def _embed(self, ids: Array, mask: Array, unpooled: int = 0) -> Array:
        """Return the pooled vectors of texts. The first `unpooled` tokens are attended to, but not pooled."""
        hidden = self.model(ids, mask=mask)
        kept = mask & (np.arange(mask.shape[1]) >= unpooled)
        return pool(self._modules.poolings, hidden, mask, kept)


BertEncoder = TextEncoder
"""The same class under the name of the first architecture that it computed."""
