"""What encoders and rerankers share: a network with its tokenizer, read from a folder and written to one."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from mp_core.arrays import Array
from mp_core.checkpoint import save_folder
from mp_core.checkpoint.maps import collected_maps
from mp_core.dtype_policies import DTypePolicy, policy_of
from mp_core.layers import Dense, Layer
from mp_core.models.adapters import AdaptedModel
from mp_core.models.finite import check_outputs
from mp_core.models.modules import Modules
from mp_core.models.network import TextNetwork
from mp_core.models.pieces import Piece
from mp_core.models.ragged import Plans
from mp_core.models.tokenizer import Tokenizer
from mp_core.models.weights import Weights, read_model, tensors_of
from mp_core.utilities.arguments import boolean, positive_integer
from mp_core.utilities.extras import needed_by
from mp_core.utilities.html import html_table
from mp_core.utilities.progress import progress
from mp_core.utilities.system import is_present

__all__ = [
    "Text",
    "TextModel",
    "Tokens",
    "encodable",
    "in_a_row",
    "in_order",
    "is_one",
    "list_of_texts",
    "one_text",
    "pad",
]

T = TypeVar("T")
Text = str | Mapping[str, str]
"""A text: a str, or as sentence-transformers has it too a mapping of the one key ``"text"`` to a str."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Texts, or pairs of texts, as a network takes them.

    Attributes
    ----------
    rows : list of ndarray of int32
        The vocabulary indices of each text, special tokens included.
    cut : list of int
        The positions of the texts that were longer than the model takes, and lost their ends or starts.
    types : list of ndarray of int, optional
        The type of each token, if the network has several types.
    skipped : int
        How many tokens at the start of each text belong to a prompt that is attended to, but not pooled.
    """

    rows: list[Array]
    cut: list[int] = field(default_factory=list)
    types: list[Array] | None = None
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def taken(self, positions: Iterable[int]) -> "Tokens":
        """Return the texts at some positions, in this order."""
        positions, were_cut = list(positions), set(self.cut)
        rows = [self.rows[index] for index in positions]
        types = None if self.types is None else [self.types[index] for index in positions]
        return Tokens(rows, [place for place, index in enumerate(positions) if index in were_cut], types, self.skipped)

    def cut_to(self, lengths: Sequence[int]) -> "Tokens":
        """Return the texts with only the first tokens of each, so many."""
        if list(lengths) == [len(row) for row in self.rows]:
            return self

        def cut(rows: list[Array]) -> list[Array]:
            return [row[:length] for row, length in zip(rows, lengths, strict=True)]

        return replace(self, rows=cut(self.rows), types=None if self.types is None else cut(self.types))

    @staticmethod
    def joined(parts: Sequence["Tokens"]) -> "Tokens":
        """Return the texts of several, which come from the same model, and have the same prompt."""
        rows: list[Array] = []
        cut: list[int] = []
        types: list[Array] = []
        for part in parts:
            cut += [len(rows) + position for position in part.cut]
            rows += part.rows
            types += part.types or []
        return Tokens(rows, cut, types or None, parts[0].skipped)


class TextModel(AdaptedModel):
    """A network with its tokenizer, from a folder.

    Parameters
    ----------
    folder : Path
        From which it is read.
    modules : Modules
        What the files of the folder say.
    policy : str or DTypePolicy, optional
        Default: the one under which the files are stored.

    Attributes
    ----------
    model : TextNetwork
        The network.
    tensor_names : dict of str to str
        The path of each layer with weights of its own -> how the names of its tensors in the checkpoint begin.
    kernel_names : dict of str to str
        The path of each layer with a kernel -> the name of its tensor in the checkpoint.
    maps : Maps
        The mapped files of the weights.
    has_told : bool
        Whether a warning has said that outputs were not finite; there is one only.
    """

    kind: type[TextNetwork] = TextNetwork
    """The class of the network."""
    vector_kinds: ClassVar[tuple[str, ...]] = ()
    """The kinds of vectors that it gives, the default first: ``"dense"``, ``"sparse"``, ``"multi-vector"``."""

    _auto_tokenizer: Any = None  # `tokenizer`, once it was asked for

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
        """What :func:`repr` says of the outputs."""
        raise NotImplementedError

    def with_policy(self, policy: str | DTypePolicy) -> Self:
        """Return the same under another policy, with the weights read from the folder once more; LoRA goes along.

        Parameters
        ----------
        policy : str or DTypePolicy
            As in :meth:`from_folder`.

        Returns
        -------
        object of the same class

        Raises
        ------
        OSError
            The folder is not there any more.
        ValueError
            Its files have changed and do not fit, `policy` is not a policy, or :meth:`fit` has trained weights of this
            model, which the files do not have: :meth:`save` it, and read the new folder under the policy.
        """
        if self.model.differs_from_files:
            raise ValueError(
                f"the weights were trained, and {self._folder} has those from before: `save` them, and read the new "
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
        """Yield texts of similar length, `batch_size` at a time, the longest first: their positions and their tokens.

        Parameters
        ----------
        tokens : Tokens
        batch_size : int
        show_progress : bool
            Whether to show a bar on stderr.
        on_batch : callable, optional
            Called with the number of texts of each batch once it is done.

        Raises
        ------
        OSError
            The file of the weights has become shorter: reading behind its end would end the process.
        TypeError, ValueError
            `batch_size` is no positive integer.
        """
        size = positive_integer(batch_size, "batch_size")
        longest_first = np.argsort([-len(row) for row in tokens.rows], kind="stable")
        found = [longest_first[start : start + size] for start in range(0, len(tokens), size)]
        for batch in progress(found, show=show_progress, total=len(found), unit="batch"):
            self.maps.check()
            yield batch, tokens.taken(batch)
            if on_batch is not None:
                on_batch(len(batch))

    def each(self, compute: Callable[[Tokens, Array], Iterable[T]], tokens: Tokens, *batching: Any) -> list[T]:
        """Return what a function of the tokens of a batch, and of their positions, returns for each text, in order.

        The other arguments are those of :meth:`in_batches`.
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
        """Tell, or refuse, outputs that are not finite: of texts with these tokens, at these positions of a call."""

        def run(model: TextNetwork, place: int) -> None:
            self._run_alone(model, rows[place], None if types is None else types[place])

        check_outputs(self, outputs, positions, run)

    def _run_alone(self, model: TextNetwork, row: Array, types: Array | None) -> None:
        """Run a copy of the network on one text."""
        model(row[np.newaxis], types=None if types is None else types[np.newaxis])

    def save(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Write the model as a folder from which :meth:`from_folder`, without a policy, reads the same bits.

        Whatever the layers hold is written as it is: floats, codes of any scheme, fixed scales of inputs. The other
        files of the folder that the model was read from are copied, but no weights in another form. The policies that
        layers have now are written too. One that was set after the model was opened left the variables in their types;
        those of a model that is opened under it have its own, so that bits may differ: open the folder under it first.

        Parameters
        ----------
        path : path
            A folder other than that one.
        force : bool
            Whether to replace a folder that is there, if this would write every file in it.

        Raises
        ------
        OSError
            A file cannot be read or written, or the folder exists (:class:`FileExistsError`).
        ValueError
            `path` is the folder that the model was read from, or lies in it; that folder has changed and does not fit
            any more; blocks were taken out, added or moved; files cannot hold groups of a length that a layer has;
            positions of a network with several types of tokens were changed; or a module behind the pooling has its
            weights in ``pytorch_model.bin`` only.
        """
        weights = Weights.open(self._modules.network, self.model)
        tensors, policy, policies = tensors_of(self.model, weights)
        home = self._modules.network.relative_to(self._folder).as_posix()
        for file in self._folder.rglob("pytorch_model.bin"):
            if file.parent != self._modules.network and not is_present(file.with_name("model.safetensors")):
                raise ValueError(f"{file} would be left out: convert it to safetensors first")
        save_folder(self._folder, path, tensors, policy=policy, policies=policies, force=force, home=home)

    @property
    def max_length(self) -> int:
        """The most tokens that a text may have; longer texts are cut."""
        length: int = self._tokenizer.max_length
        return length

    def pieces(
        self, texts: Text | Iterable[Text], *, special: bool = True, most: int | None = None
    ) -> list[list[Piece]]:
        """Return the tokens of each text as the tokenizer makes them, those beyond `max_length` included.

        Parameters
        ----------
        texts : str or iterable of str
        special : bool
            Whether special tokens are put around each.
        most : int, optional
            How many tokens all texts together may have.

        Returns
        -------
        list of list of Piece
            Of each token `id`, `text`, `special`, and `start` and `stop` in bytes of UTF-8.

        Raises
        ------
        TypeError, ValueError
            A text is not a str, the tokenizer cannot take it, or there are more tokens than `most`
            (:class:`TooManyTokensError`).
        """
        return self._tokenizer.pieces(list_of_texts(texts, "texts"), boolean(special, "special"), most)

    def decode(self, rows: Iterable[Sequence[int]], *, skip_special: bool = True) -> list[str]:
        """Return the texts of rows of vocabulary indices.

        Parameters
        ----------
        rows : iterable of sequences of int
        skip_special : bool
            Whether special tokens are left out.

        Raises
        ------
        ValueError
            The vocabulary has no such index.
        """
        return self._tokenizer.decode([list(map(int, row)) for row in rows], boolean(skip_special, "skip_special"))

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of transformers for this folder, for code that was written for sentence-transformers.

        The model does not use it: nothing that is set there changes embeddings or scores. Without transformers,
        :meth:`tokenize`, :meth:`pieces` and :meth:`decode` do its work.
        """
        if self._auto_tokenizer is None:
            with needed_by(f"{type(self).__name__}.tokenizer"):
                from transformers import AutoTokenizer
            length = self.max_length
            self._auto_tokenizer = AutoTokenizer.from_pretrained(self._modules.network, model_max_length=length)
        return self._auto_tokenizer

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights: codes as they are stored, floats in the dtype in which calls read them."""
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
    """Return one text or several as a list; raise TypeError or ValueError unless all are text that UTF-8 can encode."""
    if is_one(texts):
        return [one_text(texts, argument)]
    several = in_order(texts, argument, "a str or an iterable of str")
    return [one_text(text, f"{argument}[{position}]") for position, text in enumerate(several)]


def is_one(texts: Any) -> bool:
    """Whether this is a single text: a str, or a mapping, which must be one."""
    return isinstance(texts, str | Mapping)


def in_order(several: Any, argument: str, allowed: str) -> Iterable[Any]:
    """Return several things as they are; raise TypeError unless they are an iterable that yields them in an order.

    A table yields the names of its columns and a mapping its keys: neither is what its owner means.
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
"""What is iterable, and yields something else than its owner means, and why."""


def one_text(text: Any, argument: str) -> str:
    """Return a text, out of the mapping that it may be in; raise TypeError or ValueError as :func:`encodable`."""
    if isinstance(text, Mapping):
        if text.keys() != {"text"}:
            keys = ", ".join(map(repr, [*text][:5]))
            raise TypeError(f"`{argument}` must be a str or {{'text': str}}; received a dict with the keys {keys}")
        return encodable(text["text"], f"{argument}['text']")
    return encodable(text, argument)


def encodable(text: Any, argument: str) -> str:
    """Return a str; raise TypeError unless it is one, and ValueError unless UTF-8 can encode it."""
    if not isinstance(text, str):
        raise TypeError(f"`{argument}` must be a str; received {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"`{argument}` must be text that UTF-8 can encode: {error}") from None
    return text


def in_a_row(rows: list[Array]) -> tuple[Array, Array]:
    """Return the tokens of texts one behind the other, and where each text begins and the last one ends."""
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    return np.concatenate(rows).astype(np.int32, copy=False), offsets


def pad(rows: list[Array]) -> tuple[Array, Array]:
    """Return `rows` as one array, padded with zeros on the right, and the mask of their tokens."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, np.newaxis]
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = np.concatenate(rows)
    return ids, mask


def _float_policy(policy: Any) -> DTypePolicy:
    """Return a policy of a name or another value; raise ValueError unless it computes in floats."""
    found = policy_of(policy)
    if "float" not in found.compute_dtype:
        raise ValueError(f"`policy` must compute in a floating-point dtype; received {policy!r}")
    return found
