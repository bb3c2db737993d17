"""The base of encoders and rerankers: a network with its tokenizer, read from and saved to folders."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from mp_core.arrays import Array
from mp_core.files.checkpoint import save_folder
from mp_core.files.checkpoint.maps import collected_maps
from mp_core.layers import Dense, Layer
from mp_core.models.adapters import AdaptedModel
from mp_core.models.finite import check_outputs
from mp_core.models.modules import Modules
from mp_core.models.network import TextNetwork
from mp_core.models.pieces import Piece
from mp_core.models.ragged import Plans
from mp_core.models.tokenizer import Tokenizer
from mp_core.models.weights import Weights, read_model, tensors_of
from mp_core.policies.dtype_policies import DTypePolicy, policy_of
from mp_core.utilities.arguments import boolean, positive_integer
from mp_core.utilities.extras import needed_by
from mp_core.utilities.html import html_table
from mp_core.utilities.progress import progress
from mp_core.utilities.system import is_present

__all__ = [
    "Text",
    "TextModel",
    "Tokens",
    "as_ragged",
    "encodable",
    "in_order",
    "is_one",
    "list_of_texts",
    "one_text",
    "pad",
]

T = TypeVar("T")
Text = str | Mapping[str, str]
"""A text: a str or, as in sentence-transformers, a mapping with the only key ``"text"``."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokenized texts or pairs of texts."""

    rows: list[Array]  # The vocabulary indices of each text, special tokens included.
    cut: list[int] = field(default_factory=list)  # The indices of truncated texts.
    types: list[Array] | None = None  # The type of each token, if the network has several types.
    skipped: int = 0  # The number of prompt tokens at the start of each text that are attended to, but not pooled.

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, positions: Iterable[int]) -> "Tokens":
        """Return the texts at `positions`, in this order."""
        positions, were_cut = list(positions), set(self.cut)
        rows = [self.rows[index] for index in positions]
        types = None if self.types is None else [self.types[index] for index in positions]
        return Tokens(rows, [place for place, index in enumerate(positions) if index in were_cut], types, self.skipped)

    def cut_to(self, lengths: Sequence[int]) -> "Tokens":
        """Return only the first ``lengths[i]`` tokens of each text i."""
        if list(lengths) == [len(row) for row in self.rows]:
            return self

        def cut(rows: list[Array]) -> list[Array]:
            return [row[:length] for row, length in zip(rows, lengths, strict=True)]

        return replace(self, rows=cut(self.rows), types=None if self.types is None else cut(self.types))

    @staticmethod
    def joined(parts: Sequence["Tokens"]) -> "Tokens":
        """Concatenate texts that were tokenized by the same model with the same prompt."""
        rows: list[Array] = []
        cut: list[int] = []
        types: list[Array] = []
        for part in parts:
            cut += [len(rows) + position for position in part.cut]
            rows += part.rows
            types += part.types or []
        return Tokens(rows, cut, types or None, parts[0].skipped)


class TextModel(AdaptedModel):
    """A network with its tokenizer, read from a folder with the settings `modules`."""

    kind: type[TextNetwork] = TextNetwork
    """The class of the network."""
    vector_kinds: ClassVar[tuple[str, ...]] = ()
    """The kinds of vectors that the model returns, the default first: ``"dense"``, ``"sparse"``, ``"multi-vector"``."""

    _auto_tokenizer: Any = None  # the cached value of `tokenizer`

    def __init__(self, folder: Path, modules: Modules, policy: str | DTypePolicy | None) -> None:
        self._folder = folder
        self._modules = modules
        self._tokenizer = Tokenizer(modules)
        self._read_weights(None if policy is None else _float_policy(policy))

    def __repr__(self) -> str:
        size, policy = f"{self.weight_bytes / 1e6:.1f} MB", self.model.dtype_policy.name
        name, outputs = type(self).__name__, self._outputs
        return f"<{name} {str(self._folder)!r}: {outputs}, policy={policy}, {size} of weights>"

    @property
    def _outputs(self) -> str:
        """The description of the outputs in :func:`repr`."""
        raise NotImplementedError

    def with_policy(self, policy: str | DTypePolicy) -> Self:
        """Return the model under another policy, with weights read from the folder again. LoRA adapters are copied.

        Parameters
        ----------
        policy : str or DTypePolicy
            As in :meth:`from_folder`.

        Raises
        ------
        ValueError
            The files have changed and do not fit, or :meth:`fit` has changed weights: then :meth:`save` the model, and
            open the new folder under the policy.
        """
        if self.model.differs_from_files:
            raise ValueError(
                f"the weights were trained, and {self._folder} has the old ones: `save` the model, then open the new "
                "folder under the policy"
            )
        other = copy(self)
        other._read_weights(_float_policy(policy))
        other._take_lora(self)
        return other

    def _read_weights(self, policy: DTypePolicy | None) -> None:
        self._policy, self.has_told = policy, False
        with collected_maps() as self.maps:
            self.model, weights, layers = read_model(self._modules.network, self._modules.config, policy, self.kind)
        if self._modules.layer_weights is not None:
            self.model.encoder.layer_weights = self._modules.layer_weights
        self._plans = Plans()
        found = {str(layer.path): layer for layer in layers}
        self.tensor_names = {path: f"{weights.starts[path]}." for path in found}
        self.kernel_names = {path: weights.name(path) for path, layer in found.items() if isinstance(layer, Dense)}

    def in_batches(
        self,
        tokens: Tokens,
        batch_size: int,
        show_progress: bool = False,
        on_batch: Callable[[int], object] | None = None,
    ) -> Iterator[tuple[Array, Tokens]]:
        """Yield batches of texts of similar length, the longest first: (indices of the texts, their tokens).

        Parameters
        ----------
        tokens : Tokens
        batch_size : int
        show_progress : bool
            Whether to show a bar on stderr.
        on_batch : callable, optional
            Called after each batch with its number of texts.

        Raises
        ------
        OSError
            A file of the weights has become shorter: to read beyond its end would kill the process.
        """
        size = positive_integer(batch_size, "batch_size")
        longest_first = np.argsort([-len(row) for row in tokens.rows], kind="stable")
        found = [longest_first[start : start + size] for start in range(0, len(tokens), size)]
        for batch in progress(found, show=show_progress, total=len(found), unit="batch"):
            self.maps.check()
            yield batch, tokens.select(batch)
            if on_batch is not None:
                on_batch(len(batch))

    def each(self, compute: Callable[[Tokens, Array], Iterable[T]], tokens: Tokens, *batching: Any) -> list[T]:
        """Call ``compute(tokens, indices)`` for each batch, and return its results for all texts in their order.

        `batching` are the other arguments of :meth:`in_batches`.
        """
        found: dict[int, T] = {}
        for batch, texts in self.in_batches(tokens, *batching):
            found |= zip(batch.tolist(), compute(texts, batch), strict=True)
        return [found[position] for position in range(len(found))]

    def _check(
        self,
        outputs: Array | Sequence[Array | tuple[Array, ...]],
        rows: Sequence[Array],
        positions: Sequence[int] | Array,
        types: Sequence[Array] | None = None,
    ) -> None:
        """Warn or raise if outputs are not finite. `positions` are the indices of the texts in the user's call."""

        def run(model: TextNetwork, place: int) -> None:
            self._run_alone(model, rows[place], None if types is None else types[place])

        check_outputs(self, outputs, positions, run)

    def _run_alone(self, model: TextNetwork, row: Array, types: Array | None) -> None:
        """Run a copy of the network on one text."""
        model(row[np.newaxis], types=None if types is None else types[np.newaxis])

    def save(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Write the model as a folder from which :meth:`from_folder`, without a policy, reads the same bits.

        Weights are written as the layers hold them: floats, codes of any scheme, fixed scales of inputs. Other files of
        the original folder are copied, except weights in other formats. The current policies of the layers are written
        too. A policy that was set after opening did not convert the variables, but opening a folder under it does, so
        bits may differ: to avoid this, open the original folder under that policy.

        Parameters
        ----------
        path : path
            Another folder than the original one.
        force : bool
            Whether to replace an existing folder. It must contain no other files than those written here.

        Raises
        ------
        OSError
            A file cannot be read or written, or the folder exists (:class:`FileExistsError`).
        ValueError
            `path` is the original folder or inside it; that folder has changed and does not fit any more; blocks were
            removed, added or moved; the format cannot store a layer's group size; positions of a network with several
            token types were changed; or a module after the pooling has its weights only in ``pytorch_model.bin``.
        """
        weights = Weights.open(self._modules.network, self.model)
        tensors, policy, policies = tensors_of(self.model, weights)
        home = self._modules.network.relative_to(self._folder).as_posix()
        for file in self._folder.rglob("pytorch_model.bin"):
            if file.parent != self._modules.network and not is_present(file.with_name("model.safetensors")):
                raise ValueError(f"{file} would be left out of the new folder: convert it to safetensors first")
        save_folder(self._folder, path, tensors, policy=policy, policies=policies, force=force, home=home)

    @property
    def max_length(self) -> int:
        """The most tokens of a text. Longer texts are truncated."""
        length: int = self._tokenizer.max_length
        return length

    def pieces(
        self, texts: Text | Iterable[Text], *, special: bool = True, most: int | None = None
    ) -> list[list[Piece]]:
        """Return all tokens of each text with their positions, including tokens beyond `max_length`.

        Parameters
        ----------
        texts : str or iterable of str
        special : bool
            Whether to add special tokens.
        most : int, optional
            The most tokens of all texts together.

        Returns
        -------
        list of list of Piece
            For each token `id`, `text`, `special`, and `start` and `stop` in bytes of UTF-8.
        """
        return self._tokenizer.pieces(list_of_texts(texts, "texts"), boolean(special, "special"), most)

    def decode(self, rows: Iterable[Sequence[int]], *, skip_special: bool = True) -> list[str]:
        """Return the texts for rows of vocabulary indices.

        Parameters
        ----------
        rows : iterable of sequences of int
        skip_special : bool
            Whether to leave out special tokens.
        """
        return self._tokenizer.decode([list(map(int, row)) for row in rows], boolean(skip_special, "skip_special"))

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of transformers for this folder, for code written for sentence-transformers.

        The model does not use it: its settings do not change embeddings or scores. If transformers is not installed,
        use :meth:`tokenize`, :meth:`pieces` and :meth:`decode` instead.
        """
        if self._auto_tokenizer is None:
            with needed_by(f"{type(self).__name__}.tokenizer"):
                from transformers import AutoTokenizer
            length = self.max_length
            self._auto_tokenizer = AutoTokenizer.from_pretrained(self._modules.network, model_max_length=length)
        return self._auto_tokenizer

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights: codes as stored, floats in the dtype in which calls read them."""
        return self.model.weight_bytes

    def _repr_html_(self) -> str:
        rows = [["layer", "kind", "policy", "kB"]]
        for layer in self.flatten():
            if layer.own_variables():
                size = sum(variable.nbytes for variable in layer.own_variables())
                rows.append([str(layer.path), type(layer).__name__, layer.dtype_policy.name, f"{size / 1e3:.1f}"])
        return html_table(rows, repr(self), left=(0, 1, 2))

    def flatten(self) -> Iterator[Layer]:
        """Yield the model and the layers in it."""
        return (part for part in self.model.flatten() if isinstance(part, Layer))


def list_of_texts(texts: Text | Iterable[Text], argument: str) -> list[str]:
    """Return one text or several as a list of str; raise TypeError or ValueError as :func:`one_text`."""
    if is_one(texts):
        return [one_text(texts, argument)]
    several = in_order(texts, argument, "a str or an iterable of str")
    return [one_text(text, f"{argument}[{position}]") for position, text in enumerate(several)]


def is_one(texts: Any) -> bool:
    """Return whether the argument is a single text: a str or a mapping."""
    return isinstance(texts, str | Mapping)


def in_order(several: Any, argument: str, allowed: str) -> Iterable[Any]:
    """Return `several`; raise TypeError unless it is an iterable with a defined order.

    Tables and mappings are refused, since iteration yields column names and keys, which the caller does not mean.
    """
    if not isinstance(several, Iterable) or isinstance(several, str):
        raise TypeError(f"`{argument}` must be {allowed}; received {type(several).__name__}")
    for is_kind, why in _NOT_IN_ORDER:
        if is_kind(several):
            raise TypeError(f"`{argument}` must be {allowed}; received {type(several).__name__}, {why}")
    return several


_NOT_IN_ORDER: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (lambda several: isinstance(several, bytes | bytearray | memoryview), "which is to be decoded first"),
    (lambda several: isinstance(several, Mapping), "which yields its keys: choose its values or one of its entries"),
    (lambda several: isinstance(several, Set), "which has no order of its own: make it a list"),
    (
        lambda several: hasattr(several, "columns") or hasattr(several, "__dataframe__"),
        "a table, which yields its columns: choose one of them, as table['text']",
    ),
    (lambda several: getattr(several, "ndim", 1) == 0, "an array without axes"),
)
"""(test for iterables that are refused, reason in the error)."""


def one_text(text: Any, argument: str) -> str:
    """Return a text as str, also from a ``{"text": ...}``; raise TypeError or ValueError as :func:`encodable`."""
    if isinstance(text, Mapping):
        if text.keys() != {"text"}:
            keys = ", ".join(map(repr, [*text][:5]))
            raise TypeError(f"`{argument}` must be a str or {{'text': str}}; received a dict with the keys {keys}")
        return encodable(text["text"], f"{argument}['text']")
    return encodable(text, argument)


def encodable(text: Any, argument: str) -> str:
    """Return `text`; raise TypeError unless it is a str, and ValueError unless UTF-8 can encode it."""
    if not isinstance(text, str):
        raise TypeError(f"`{argument}` must be a str; received {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"`{argument}` must be text that UTF-8 can encode: {error}") from None
    return text


def as_ragged(rows: list[Array]) -> tuple[Array, Array]:
    """Return the concatenated tokens of ragged texts, and their offsets, int32 of shape (n + 1,)."""
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    return np.concatenate(rows).astype(np.int32, copy=False), offsets


def pad(rows: list[Array]) -> tuple[Array, Array]:
    """Return `rows` as one array, padded with zeros on the right, and the mask of the tokens."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, np.newaxis]
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = np.concatenate(rows)
    return ids, mask


def _float_policy(policy: Any) -> DTypePolicy:
    """Return the policy for a name or another value; raise ValueError unless it computes in floats."""
    found = policy_of(policy)
    if "float" not in found.compute_dtype:
        raise ValueError(f"`policy` must compute in a floating-point dtype; received {policy!r}")
    return found
