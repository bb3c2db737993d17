"""The classification heads of all architectures: from the vectors of tokens to scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, as_mask
from mp_core.models.blocks import Part, Shape, dropped
from mp_core.models.network import TextNetwork
from mp_core.models.pooling import pool
from mp_core.models.settings import ACTIVATIONS, KINDS, Settings, choices, unexpected
from mp_core.models.slots import Slot, Tensor

if TYPE_CHECKING:
    from mp_core.models.weights import Weights

__all__ = ["SCORED", "Classifier", "Head", "TokenNetwork", "function_of_scores", "label_names"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The layers between a network and its scores, as ``transformers`` writes them."""

    tensors: Mapping[str, str]  # The path of a layer -> the start of its tensor names.
    activation: str = "tanh"  # The activation after the first product.
    pooling: str = "cls"  # The name of the pooling before the head.
    # `dense_bias`, `norm_bias`, `output_bias`: Whether the first product, the norm after it and the last product have a
    # bias.
    dense_bias: bool = True
    norm_bias: bool = False
    output_bias: bool = True
    # Whether the score is the logit of ``true_token_id``, minus that of ``false_token_id`` if the configuration has
    # one.
    uses_token_logit: bool = False
    # Whether the score is computed from the last token that is not ``pad_token_id``, even if the text itself contains
    # that token.
    before_padding: bool = False
    # Attribute of this class -> (its entry in ``config.json``, value of the entry -> value of the attribute). The first
    # value is the default.
    entries: Mapping[str, tuple[str, Mapping[Any, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Mapping[str, Any], path: Any, of_tokens: bool = False) -> "Head":
        """Return the head of a ``config.json``; raise ValueError, naming `path`, if mp_core does not support it."""
        kind, heads = config["model_type"], _HEADS_OF_TOKENS if of_tokens else _HEADS
        if kind not in heads:
            raise ValueError(f"{path}: model_type is {kind!r}, whose scores mp_core lacks; expected {choices(heads)}")
        names = config.get("architectures")
        uses_token_logit = (
            not of_tokens
            and kind in _DECODERS
            and isinstance(names, list)
            and any("ForCausalLM" in str(name) for name in names)
        )
        cap = config.get("final_logit_softcapping", _CAPS.get(kind))
        if uses_token_logit and cap is not None:
            raise unexpected(path, "final_logit_softcapping", cap, "null: mp_core does not cap the logits of tokens")
        head = _TOKEN_LOGIT if uses_token_logit else heads[kind]
        values = {}
        for attribute, (entry, meanings) in head.entries.items():
            value = config.get(entry, next(iter(meanings)))
            if not any(type(value) is type(known) and value == known for known in meanings):
                raise unexpected(path, entry, value, choices(meanings))
            values[attribute] = meanings[value]
        return replace(head, **values)


_SWITCH = {False: False, True: True}
_POOLED_INSIDE = {"head/dense": "classifier.dense", "head/output": "classifier.out_proj"}
_DECODERS = ("qwen3", "qwen2", "llama", "mistral", "phi3", "gemma", "gemma2", "gemma3_text")
_TIED = ("gemma", "gemma2", "gemma3_text")  # the default of tie_word_embeddings is true
_CAPS = {"gemma2": 30.0}
"""``model_type`` -> the default of ``final_logit_softcapping``."""
_TOKEN_LOGIT = Head(tensors={"head": "lm_head"}, pooling="lasttoken", uses_token_logit=True)
_SCORE = Head(tensors={"head/output": "score"}, pooling="lasttoken", output_bias=False, before_padding=True)
_PADDING = {"phi3": 32000, "gemma": 0, "gemma2": 0, "gemma3_text": 0}
"""``model_type`` -> the default of ``pad_token_id`` in transformers; None for all others."""
_HEADS = {
    "bert": Head(tensors={"head/dense": "bert.pooler.dense", "head/output": "classifier"}),
    "ernie": Head(tensors={"head/dense": "ernie.pooler.dense", "head/output": "classifier"}),
    "roberta": Head(tensors=_POOLED_INSIDE),
    "xlm-roberta": Head(tensors=_POOLED_INSIDE),
    "camembert": Head(tensors=_POOLED_INSIDE),
    "mpnet": Head(tensors=_POOLED_INSIDE),
    "deberta-v2": Head(
        tensors={"head/dense": "pooler.dense", "head/output": "classifier"},
        entries={"activation": ("pooler_hidden_act", ACTIVATIONS)},
    ),
    "electra": Head(tensors=_POOLED_INSIDE, activation="gelu"),
    "distilbert": Head(tensors={"head/dense": "pre_classifier", "head/output": "classifier"}, activation="relu"),
    "modernbert": Head(
        tensors={"head/dense": "head.dense", "head/norm": "head.norm", "head/output": "classifier"},
        entries={
            "activation": ("classifier_activation", ACTIVATIONS),
            "pooling": ("classifier_pooling", {"cls": "cls", "mean": "mean"}),
            "dense_bias": ("classifier_bias", _SWITCH),
            "norm_bias": ("norm_bias", _SWITCH),
        },
    ),
    "albert": Head(tensors={"head/dense": "albert.pooler", "head/output": "classifier"}),
    **{
        kind: Head(tensors={"head/dense": f"{kind}.pooler.dense", "head/output": "classifier"})
        for kind in ("gte", "new")
    },
    **dict.fromkeys(_DECODERS, _SCORE),
}
"""``model_type`` in ``config.json`` -> the head of its sequence classification."""
_TOKEN_CLASSIFIERS = (
    "bert",
    "ernie",
    "roberta",
    "xlm-roberta",
    "camembert",
    "mpnet",
    "deberta-v2",
    "electra",
    "distilbert",
    "albert",
)
_HEADS_OF_TOKENS = {
    **dict.fromkeys(_TOKEN_CLASSIFIERS, Head(tensors={"head/output": "classifier"})),
    "modernbert": _HEADS["modernbert"],
}
"""``model_type`` in ``config.json`` -> the head of its token classification."""


SCORED = tuple(_HEADS)
"""Each ``model_type`` that may have a sequence classification head."""


class Scores(Part):
    """A head of two layers with an optional norm between them, or of the second layer alone."""

    def __init__(self, settings: Settings, head: Head, labels: int, **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self.head = head
        self.labels = labels

    def build(self, input_shape: Shape) -> None:
        head, width = self.head, self.settings.hidden_size
        self.inner = None
        if "head/dense" in head.tensors:
            self.inner = self.dense("dense", width, width, head.activation, head.dense_bias)
        self.norm = self.normalization("norm", head.norm_bias) if "head/norm" in head.tensors else None
        self.output = self.dense("output", self.labels, width, bias=head.output_bias)

    def call(self, pooled: Array) -> Array:
        """Return the scores, shape (n, labels), for pooled vectors of shape (n, width)."""
        hidden = pooled if self.inner is None else self.inner(pooled)
        outputs: Array = self.output(dropped(hidden if self.norm is None else self.norm(hidden), "head"))
        return outputs


@dataclass(frozen=True, slots=True)
class _VocabularyRows(Slot):
    """The slot of a head's vector: a row of the vocabulary's matrix, minus a second row if there is one."""

    answers: tuple[int, ...] = ()

    def read(self, weights: "Weights") -> None:
        """Assign the row, or the difference of the two rows."""
        table, _ = weights.find(self.path, self.part, self.rows or 0, self.variable.shape[1])
        rows = ops.take_rows(table, np.array(self.answers), F32)
        self.variable.assign(rows[:1] - rows[1:] if len(rows) > 1 else rows)

    def to_save(self, weights: "Weights") -> dict[str, Tensor | None]:
        """Return nothing: the matrix in the file stays as it is."""
        return {}


class TokenLogit(Part):
    """A head whose score is the logit of one token, or the difference of two, in float32 under every policy.

    `answers` are the token and optionally the one whose logit is subtracted; `tied` says whether the matrix of the
    logits is the word embedding table. `table`, shape (1, width), is the row of the first token minus that of the
    second.
    """

    def __init__(self, settings: Settings, answers: tuple[int, ...], tied: bool, **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self.answers, self.tied = answers, tied

    def build(self, input_shape: Shape) -> None:
        self.table = self.add_weight((1, self.settings.hidden_size), "zeros", autocast=False, name="table")

    def slots(self) -> list[Slot]:
        """Return the slot of the tokens' rows in the matrix of the logits."""
        path = "embeddings/word" if self.tied else str(self.path)
        return [_VocabularyRows(path, "weight", self.table, self.settings.vocab_size, self.answers)]

    def call(self, pooled: Array) -> Array:
        """Return the scores, shape (n, 1), for pooled vectors of shape (n, width)."""
        column = self.table.derived("column", lambda stored: ops.pack(ops.cast(stored, F32).T))
        outputs: Array = ops.matmul(ops.cast(pooled, F32), column)
        return outputs


class Classifier(TextNetwork):
    """A network with a head that scores texts or pairs of texts: one score for each entry of ``id2label`` in `config`.

    The paths of the head's layers are ``head/dense``, ``head/norm`` and ``head/output``; the number of scores is
    `labels`.
    """

    of_tokens: ClassVar[bool] = False
    """Whether the head scores tokens instead of texts."""

    def __init__(self, config: Mapping[str, Any], types: int = 2, **kwargs: Any) -> None:
        super().__init__(config, types, **kwargs)
        self.types = min(self.types, max(1, self.settings.type_vocab_size))
        self._head = Head.of(self.config, "`config`", self.of_tokens)
        self.labels = 1 if self._head.uses_token_logit else _labels(self.config, "`config`")
        self._padding = _padding(self.config, "`config`") if self._head.before_padding else None

    @classmethod
    def check(cls, config: Mapping[str, Any], path: Any) -> None:
        """Raise ValueError, which names `path`, if mp_core does not support the head of a ``config.json``."""
        head = Head.of(config, path, cls.of_tokens)
        if not head.uses_token_logit:
            _labels(config, path)
        if head.before_padding:
            _padding(config, path)

    @property
    def answers(self) -> tuple[int, ...]:
        """The token whose logit is the score of a decoder, and optionally the token whose logit is subtracted."""
        ids = [self.config.get(name) for name in ("true_token_id", "false_token_id")]
        given = tuple(number for number in ids if number is not None)
        if ids[0] is None or not all(type(n) is int and 0 <= n < self.settings.vocab_size for n in given):
            raise unexpected("`config`", "true_token_id, false_token_id", ids, "tokens of the vocabulary")
        return given

    def _build_parts(self, input_shape: Shape) -> None:
        super()._build_parts(input_shape)
        self.head: Any
        if self._head.uses_token_logit:
            tied = self.config.get("tie_word_embeddings", self.config["model_type"] in _TIED) is True
            self.head = TokenLogit(self.settings, self.answers, tied, name="head", dtype=self.dtype_policy)
        else:
            self.head = Scores(self.settings, self._head, self.labels, name="head", dtype=self.dtype_policy)
        self.head.build((None, self.settings.hidden_size))

    def names(self, prefix: str) -> dict[str, str]:
        """Return the path of each layer -> the start of its tensor names; the prefix does not apply to the head."""
        return super().names(prefix) | dict(self._head.tensors)

    def shapes(self) -> dict[str, dict[str, int]]:
        """Return the result of :meth:`TextNetwork.shapes`, and the weight with the number of labels."""
        if self._head.uses_token_logit:
            return super().shapes()
        entry = "id2label" if self.config.get("id2label") is not None else "num_labels"
        return super().shapes() | {"head/output": {entry: self.labels, "hidden_size": self.settings.hidden_size}}

    @property
    def pooling(self) -> str:
        """The name of the pooling before the head."""
        return self._head.pooling

    @property
    def is_causal(self) -> bool:
        """Whether attention is causal."""
        return bool(getattr(self.settings, "is_causal", False))

    def lengths(self, rows: Sequence[Array]) -> list[int]:
        """Return for each text the number of tokens up to the one from which the score is computed, at least 1."""
        if self._padding is None:
            return [len(row) for row in rows]
        return [int(np.flatnonzero(row != self._padding).max(initial=0)) + 1 for row in rows]

    def call(
        self,
        ids: Array,
        mask: Any = None,
        types: Array | None = None,
        places: Array | None = None,
        offsets: Array | None = None,
    ) -> Array:
        """Return the scores before any activation, shape (n, labels); the arguments are those of :class:`TextNetwork`.

        For ragged texts, a score of the last token is that of the last token given: pass only those of :meth:`lengths`.
        """
        if offsets is not None:
            hidden, longest = super().call(ids, places=places, offsets=offsets), self.settings.max_length
            ragged: Array = self.head(ops.ragged_pool(hidden, offsets, self.pooling, longest=longest))
            return ragged
        hidden = super().call(ids, mask=mask, types=types)
        kept = np.ones(ids.shape, bool) if mask is None else as_mask(mask)
        outputs: Array = self.head(pool((self._head.pooling,), hidden, kept, self._readable(ids, kept)))
        return outputs

    def _readable(self, ids: Array, kept: Array) -> Array:
        """Return the mask of tokens without padding tokens; a text of padding tokens alone keeps its first token."""
        if self._padding is None:
            return kept
        found: Array = kept & (ids != self._padding)
        empty = ~found.any(axis=1)
        found[empty, kept[empty].argmax(axis=1)] = True
        return found


class TokenNetwork(Classifier):
    """A network with a head that scores each token."""

    of_tokens = True

    def call(
        self,
        ids: Array,
        mask: Any = None,
        types: Array | None = None,
        places: Array | None = None,
        offsets: Array | None = None,
    ) -> Array:
        """Return the scores before any activation, shape (n, length, labels); arguments as for :class:`TextNetwork`."""
        hidden = TextNetwork.call(self, ids, mask=mask, types=types, places=places, offsets=offsets)
        outputs: Array = self.head(hidden)
        return outputs


def label_names(config: Mapping[str, Any], count: int, path: Any) -> tuple[str, ...]:
    """Return the names of `count` labels: those of ``id2label``, or the default names of transformers."""
    names = config.get("id2label")
    if names is None:
        return tuple(f"LABEL_{number}" for number in range(count))
    found = [names.get(str(number)) for number in range(count)]
    if not all(isinstance(name, str) for name in found):
        raise unexpected(path, "id2label", names, f"names of the labels '0' to '{count - 1}'")
    return tuple(found)


def function_of_scores(config: Mapping[str, Any], labels: int, path: Any) -> str:
    """Return the activation from scores to probabilities, ``"linear"`` for a regression; check the ``problem_type``."""
    problem = config.get("problem_type")
    if not (problem is None or isinstance(problem, str)) or problem not in _PROBLEMS:
        raise unexpected(path, "problem_type", problem, choices(_PROBLEMS))
    found = _PROBLEMS[problem]
    return "sigmoid" if found == "softmax" and labels == 1 else found


_PROBLEMS = {
    None: "softmax",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "linear",
}
"""``problem_type`` -> the activation of several scores. One score gets a sigmoid instead of a softmax."""


def _padding(config: Mapping[str, Any], path: Any) -> int | None:
    """Return ``pad_token_id``, the token from which no score is computed; None if there is none."""
    found = config.get("pad_token_id", _PADDING.get(config["model_type"]))
    if found is not None and type(found) is not int:
        raise unexpected(path, "pad_token_id", found, "an int or null")
    return found


def _labels(config: Mapping[str, Any], path: Any) -> int:
    """Return the number of labels: the length of ``id2label``, or else ``num_labels``, by default 2."""
    names = config.get("id2label")
    if names is not None and not (isinstance(names, dict) and names):
        raise unexpected(path, "id2label", names, "an object with a name for every label")
    count = config.get("num_labels", 2) if names is None else len(names)
    fits, expected = KINDS[int]
    if not fits(count):
        raise unexpected(path, "num_labels", count, expected)
    return int(count)
