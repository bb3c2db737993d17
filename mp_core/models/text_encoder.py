"""Sentence encoders, from folders of sentence-transformers."""

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import numpy as np

from mp_core.arrays import Array, as_mask, imported
from mp_core.arrays.finite import all_finite
from mp_core.models.modules import Modules, read_modules
from mp_core.models.pooling import pool, unit
from mp_core.models.prompted import ATTRIBUTES, PromptedModel
from mp_core.models.ragged import Plans
from mp_core.models.sentence_transformers import (
    Options,
    SentenceTransformerNames,
    also_named,
    check_options,
    in_format,
)
from mp_core.models.settings import LEAST_TOKENS
from mp_core.models.steps import apply_steps
from mp_core.models.texts import Text, Tokens, is_one, pad
from mp_core.models.tokenizer import Tokenizer
from mp_core.models.weights import Weights
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.utilities.arguments import boolean, path_of, positive_integer
from mp_core.utilities.docstrings import documented

__all__ = ["BertEncoder", "TextEncoder"]


@documented(ATTRIBUTES)
class TextEncoder(SentenceTransformerNames, PromptedModel):
    """A sentence encoder: texts in, one float32 vector for each out. Create it by :meth:`from_folder`.

    It can replace a ``SentenceTransformer``, for example in the evaluators and utilities of that library. Its attribute
    `poolings` has the names of the poolings; the results of several are concatenated.

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
        self._overrides: dict[str, Any] = {}  # fields of modules that the caller has set
        self._use_modules(modules)

    def _use_modules(self, modules: Modules) -> None:
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
            Folder of sentence-transformers, in the current layout or in the one with ``0_Transformer``, with a network
            in :data:`mp_core.models.architectures.ARCHITECTURES`. Files: ``config.json``, ``model.safetensors`` or
            ``pytorch_model.bin``, ``tokenizer.json``, ``1_Pooling/config.json`` and, if they exist, ``modules.json``,
            the folders of later modules, ``config_sentence_transformers.json``, ``sentence_bert_config.json`` and
            ``tokenizer_config.json``. Or a folder of static embeddings, of sentence-transformers or model2vec. Or a
            ``.gguf`` file of llama.cpp with a decoder and a pooling.
        policy : str or DTypePolicy, optional
            Default: the policy under which the files are stored, or float32 if they name none. Under another policy,
            codes of its scheme are not converted; all other weights are converted from their dequantized values. A
            scheme alone, such as ``"int8"``, means ``"int8_from_mixed_bfloat16"``. The keys of a DTypePolicyMap are
            paths such as ``encoder/layer_0/attention/query``.
        truncate_dim : int, optional
            The model's attribute `truncate_dim`. Default: the folder's setting.

        Raises
        ------
        OSError
            A file is missing or unreadable.
        ValueError
            The content of a file is not as expected, or a setting is unknown: the message names the file, the entry or
            tensor, its value and the expected values.
        ImportError
            The tokenizers package is missing.
        """
        folder = path_of(path, "path")
        encoder = cls(folder, read_modules(folder), policy)
        if truncate_dim is not None:
            encoder.truncate_dim = truncate_dim
        return encoder

    def with_task(self, task: str) -> Self:
        """Return the encoder for a task: with an adapter by task (jina-embeddings-v3), or on a route of the ``Router``.

        Encoders share the weights of their network in memory. If routes have separate networks, :meth:`save` writes the
        network of the encoder on which it is called, and copies the files of the others.

        Parameters
        ----------
        task : str
            An entry of ``lora_adaptations`` in ``config.json``; its instruction becomes the default prompt. Or a task
            for which the folder's ``Router`` has a route, such as ``"query"``.

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
        """Return task -> :meth:`with_task` for each of `tasks`; tasks on the same route share an encoder."""
        router, found = self._modules.router, dict[str, Self]()
        if router is None:
            return {}
        for task in self.tasks:
            route = router.route_of(task)
            found[route] = found.get(route) or self.with_task(task)
        return {task: found[router.route_of(task)] for task in self.tasks}

    def _on_route(self, task: str) -> Self:
        modules = replace(read_modules(self._folder, task), **self._overrides)
        mine = self._modules
        if (modules.network, modules.layer_weights) != (mine.network, mine.layer_weights):
            other = type(self)(self._folder, modules, self._policy)
            other._overrides = self._overrides
            return other
        other = copy(self)
        other._use_modules(modules)
        return other

    def _of_task(self, task: str) -> "TextEncoder":
        if self._modules.router is None:
            return self
        found = self._tasks.get(task)
        if found is None or found[0] is not self.model or found[1] is not self._modules:
            found = self.model, self._modules, self.with_task(task)
            self._tasks = {**self._tasks, task: found}  # a new dict: copies of this encoder share the old one
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
            Texts are truncated to `max_length` tokens. An empty text is allowed if the tokenizer adds special tokens.
            A text may also be ``{"text": "..."}``, as in sentence-transformers. Sets, other dicts and tables are
            refused, because they have no order or yield keys or column names.
        batch_size : int
            How many texts of similar length the network computes at once. Results do not depend on it.
        normalize : bool, optional
            Whether to scale each embedding to length 1 after truncation. Default: apply ``Normalize``, before
            truncation, if ``modules.json`` lists it.
        show_progress : bool
            Whether to show a bar on stderr (needs tqdm).
        prompt : str, optional
            The prompt before each text. An empty string means no prompt.
        prompt_name : str, optional
            The name of one of `prompts`, instead of `prompt`. Default: `default_prompt_name`.
        truncate_dim : int, optional
            The number of dimensions to keep, at most all. Default: the model's `truncate_dim`.
        on_cut : callable, optional
            Called with the indices of the truncated texts, if there are any.
        on_batch : callable, optional
            Called after each batch with its number of texts.
        **options
            Arguments of ``SentenceTransformer.encode``: ``show_progress_bar``; ``normalize_embeddings`` (instead of
            `normalize`; False means the folder's setting); ``convert_to_tensor`` and ``convert_to_numpy=False`` for
            torch tensors, which share the memory of the array; ``precision``: ``"float32"``, ``"int8"``, ``"uint8"``,
            ``"binary"`` or ``"ubinary"``. int8 and uint8 map the range of each dimension in these embeddings to 256
            codes; the last two pack the signs of eight numbers into a byte. ``device`` must be ``"cpu"``,
            ``output_value`` ``"sentence_embedding"``, ``pool`` and ``chunk_size`` None. `texts` may be passed as
            ``inputs`` or ``sentences``.

        Returns
        -------
        ndarray of float32, shape (len(texts), dim)
            In the order of `texts`; shape (dim,) for a single str, as in sentence-transformers. Other values of
            ``precision`` have another dtype; ``"binary"`` and ``"ubinary"`` have dim / 8 bytes per text.

        Raises
        ------
        TypeError
            A text is not a str, or `texts` have no defined order.
        ValueError
            A text has no token, or a character that UTF-8 cannot encode; `prompt_name` is unknown; or int8 or uint8 is
            requested for a single text, which has no range.
        """
        check_options(options)
        if "normalize_embeddings" in options:
            if normalize is not None:
                raise ValueError("`normalize` and `normalize_embeddings` exclude each other; received both")
            normalize = options["normalize_embeddings"] or None
        how = self._checked_arguments(batch_size, normalize, truncate_dim)
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
        """Embed tokenized texts: :meth:`encode` after :meth:`tokenize`, with the same bits.

        `batch_size`, `normalize` and `truncate_dim` are those of :meth:`encode`.
        """
        return self._embeddings(tokens, *self._checked_arguments(batch_size, normalize, truncate_dim))

    def _checked_arguments(
        self, batch_size: int, normalize: bool | None, truncate_dim: int | None
    ) -> tuple[int, bool | None, int]:
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
            pooled = apply_steps(self._modules.steps, self._pooled(texts.rows, texts.skipped), normalize)[:, :dim]
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
        """Train the network on texts, and return the History; :meth:`save` writes the trained weights.

        All trainable weights of the network are trained, but not those of modules after the pooling. No padding is
        computed, except by DeBERTa.

        Parameters
        ----------
        data : iterable of rows, mapping of columns, or path of a .jsonl, .csv or .tsv file
            A row is a sequence of texts (a pair, a triplet, ...), optionally followed by a label, or a mapping. A
            column named ``label``, ``labels``, ``score`` or ``scores`` contains labels.
        loss : TextLoss or str
            A loss of :mod:`mp_core.models.tuning`, or a name for one with default arguments: ``"multiple_negatives"``,
            ``"multiple_negatives_symmetric"``, ``"cosine"``, ``"cosent"``, ``"triplet"``, ``"mse"``, ``"margin_mse"``.
        epochs : int
        batch_size : int
            The number of examples in a step.
        learning_rate, warmup, weight_decay, max_norm : float
            The optimizer is AdamW. Its rate rises linearly to `learning_rate` during the first `warmup` steps (below 1:
            a share of all steps), then falls linearly to 0. Weight decay does not apply to biases and norms. If the
            global norm of the gradients exceeds `max_norm`, they are scaled down to it. Weights of 16 bits, as under
            the policy "bfloat16", are rounded stochastically.
        optimizer : Optimizer or str, optional
            Replaces the optimizer that these four arguments describe.
        dropout : float, optional
            One rate for all dropouts, of vectors and attention weights. Default: the rates of the configuration.
        chunk : int, optional
            The number of examples whose activations are kept, rounded up to whole groups. A group has up to 32 examples
            and, if it has several, up to 4096 tokens. The other groups run forward twice: this takes less memory and
            gives the same bits. Default: all examples.
        cluster : mp_core.interop.dask.Workers, optional
            Workers that compute the groups on other machines, with the same bits. It needs a `batch_size` above 32.
        prompts : str or mapping of str to str, optional
            The prompt before each text, or column name -> prompt. Default: as in :meth:`encode`.
        shuffle : bool
            Whether each epoch has a new random order.
        seed : int, optional
            The seed of order and dropout. Default: drawn from the process's seed, see :func:`mp_core.random.set_seed`.
        validation_data : as `data`, optional
            After each epoch its loss is computed as ``val_loss``.
        callbacks : list of Callback, optional
            Those of :mod:`mp_core.callbacks`; :class:`~mp_core.callbacks.BackupAndRestore` resumes a run.
        verbose : {"auto", 0, 1, 2}
            Whether to report progress on stderr.

        Returns
        -------
        History

        Raises
        ------
        TypeError, ValueError
            `data` are damaged or do not fit the loss (the message names the row); a layer holds codes; or the
            architecture has no gradients. Weights have not changed.

        Examples
        --------
        >>> encoder = TextEncoder.from_folder("all-MiniLM-L6-v2")  # doctest: +SKIP
        >>> pairs = [("How tall is it?", "It is 8 m high."), ("Who built it?", "A firm in Ghent did.")]
        >>> encoder.fit(pairs, epochs=3).history["loss"]  # doctest: +SKIP
        [0.041, 0.022, 0.013]
        """
        from mp_core.models.tuning.fitting import Recipe, fit_encoder  # imported here: inference does not need training

        recipe = Recipe(
            epochs, batch_size, learning_rate, warmup, weight_decay, max_norm, optimizer, dropout, shuffle, seed,
            callbacks, verbose,
        )  # fmt: skip
        return fit_encoder(
            self, data, loss, recipe, chunk=chunk, validation_data=validation_data, prompts=prompts, cluster=cluster
        )

    @property
    def max_seq_length(self) -> int:
        """`max_length` under its name in sentence-transformers. It can be set, up to the network's maximum."""
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
        """The number of dimensions that :meth:`encode` keeps by default; None: all. It can be set."""
        return self._modules.truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, dim: int | None) -> None:
        self._change(truncate_dim=None if dim is None else positive_integer(dim, "truncate_dim"))
        self._use_modules(self._modules)

    def set_pooling_include_prompt(self, include_prompt: bool) -> None:
        """Set whether the tokens of a prompt are pooled too. For INSTRUCTOR they must not be."""
        self._change(include_prompt=boolean(include_prompt, "include_prompt"))

    def _change(self, **settings: Any) -> None:
        """Override settings of the folder, on all routes."""
        self._modules, self._overrides = replace(self._modules, **settings), {**self._overrides, **settings}

    def embed_tokens(self, ids: Array, mask: Array | None = None) -> Array:
        """Embed padded texts given as token indices.

        Parameters
        ----------
        ids : ndarray of int, shape (n, length)
            Vocabulary indices, special tokens included.
        mask : ndarray, shape (n, length), optional
            True for tokens, False for padding; at least one token in each row.

        Returns
        -------
        ndarray of float32, shape (n, dim)
            The pooled vectors, neither normalized nor truncated.
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
        """Return the pooled vectors of padded texts, by a plan if possible: padding must be on the right."""
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
        """Return the pooled vectors of tokenized texts, by a plan if possible."""
        texts = self._plans.vectors(self.model, self._modules.poolings, unpooled)
        if texts is None:
            return self._embed(*pad(rows), unpooled)
        return texts(np.concatenate(rows), [len(row) for row in rows])

    def _embed(self, ids: Array, mask: Array, unpooled: int = 0) -> Array:
        """Return the pooled vectors of padded texts. The first `unpooled` tokens are attended to, but not pooled."""
        hidden = self.model(ids, mask=mask)
        kept = mask & (np.arange(mask.shape[1]) >= unpooled)
        return pool(self._modules.poolings, hidden, mask, kept)


BertEncoder = TextEncoder
"""An alias of :class:`TextEncoder`: BERT was the first architecture."""
