"""Estimators of scikit-learn: texts in, embeddings or classes out."""

from collections.abc import Iterable
from contextlib import nullcontext
from os import PathLike
from typing import Any, Self

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.interop.threads import register
from mp_core.models import TextEncoder
from mp_core.models.texts import in_order, list_of_texts
from mp_core.policies.config import num_threads
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.utilities.extras import needed_by

with needed_by("mp_core.interop.sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted

__all__ = ["TextClassifier", "TextEmbedder"]

_TEXTS = "an iterable of str"
register()  # scikit-learn limits threads by threadpoolctl


class TextEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A transformer from texts to embeddings, for pipelines and searches of scikit-learn.

    `fit` only opens the model. A pickle of a fitted transformer has the weights.

    Parameters
    ----------
    model : path
        The folder of a model: see :meth:`mp_core.models.TextEncoder.from_folder`.
    policy : str or DTypePolicy, optional
        The policy of the encoder. Default: as the folder is stored.
    batch_size, normalize, prompt_name, truncate_dim
        See :meth:`mp_core.models.TextEncoder.encode`.
    n_threads : int, optional
        The number of threads. Default: :func:`mp_core.config.get_num_threads` when `transform` is called.

    Attributes
    ----------
    encoder_ : TextEncoder
        The model.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> classifier = make_pipeline(TextEmbedder("all-MiniLM-L6-v2", policy="int8"), LogisticRegression())
    >>> classifier.fit(texts, labels)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: str | PathLike[str],
        *,
        policy: str | DTypePolicy | None = None,
        batch_size: int = 32,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        truncate_dim: int | None = None,
        n_threads: int | None = None,
    ) -> None:
        self.model = model
        self.policy = policy
        self.batch_size = batch_size
        self.normalize = normalize
        self.prompt_name = prompt_name
        self.truncate_dim = truncate_dim
        self.n_threads = n_threads

    def fit(self, X: Iterable[str], y: Any = None) -> Self:  # noqa: N803
        """Open the model and check the parameters; the texts and `y` are ignored."""
        in_order(X, "X", _TEXTS)
        self.encoder_ = TextEncoder.from_folder(self.model, self.policy)
        self._n_features_out = self._embed([]).shape[1]
        return self

    def transform(self, X: Iterable[str]) -> Array:  # noqa: N803
        """Return the embeddings of texts: a list, an array of one axis, a column of a table.

        The result is float32 of shape (n, dim), or the container that `set_output` chose.
        """
        check_is_fitted(self)
        return self._embed(list_of_texts(in_order(X, "X", _TEXTS), "X"))

    def _embed(self, texts: list[str]) -> Array:
        with nullcontext() if self.n_threads is None else num_threads(self.n_threads):
            return self.encoder_.encode(
                texts,
                batch_size=self.batch_size,
                normalize=self.normalize,
                prompt_name=self.prompt_name,
                truncate_dim=self.truncate_dim,
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []
        return tags


class TextClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of texts: an encoder, and a layer that computes the scores of classes from embeddings.

    `fit` embeds each text once and trains the layer. With `fine_tune` it then trains the encoder together with the
    layer. The same texts, labels and seed give the same bits.

    Parameters
    ----------
    model : path
        The folder of a model: see :meth:`mp_core.models.TextEncoder.from_folder`.
    policy : str or DTypePolicy, optional
        The policy of the encoder. Default: as the folder is stored.
    fine_tune : bool
        Whether to train the encoder too; this needs float weights.
    epochs, learning_rate
        For `fine_tune`: see :meth:`mp_core.models.TextEncoder.fit`.
    batch_size, prompt_name
        See :meth:`mp_core.models.TextEncoder.encode`. `batch_size` is also the number of texts in a training step.
    seed : int
        The seed of the order of texts and of dropout.

    Attributes
    ----------
    encoder_ : TextEncoder
        The model; ``encoder_.save(folder)`` writes it, fine-tuned or not.
    head_ : Dense
        The layer that computes the scores.
    classes_ : ndarray
        The different labels in ascending order.

    Examples
    --------
    >>> classifier = TextClassifier("all-MiniLM-L6-v2", policy="int8")
    >>> classifier.fit(["It rains.", "We won."], ["weather", "sports"]).predict(["Snow falls."])  # doctest: +SKIP
    array(['weather'], dtype='<U7')
    """

    def __init__(
        self,
        model: str | PathLike[str],
        *,
        policy: str | DTypePolicy | None = None,
        fine_tune: bool = False,
        epochs: int = 1,
        learning_rate: float = 5e-5,
        batch_size: int = 32,
        prompt_name: str | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.policy = policy
        self.fine_tune = fine_tune
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.prompt_name = prompt_name
        self.seed = seed

    def fit(self, X: Iterable[str], y: Any) -> Self:  # noqa: N803
        """Open the model and train the classifier.

        Parameters
        ----------
        X : iterable of str
        y : array-like, shape (n,)
            The label of each text: numbers or strings, at least two different ones.
        """
        from mp_core.models.tuning.fitting import Recipe  # loads training, which embedding does not need
        from mp_core.models.tuning.scoring import fit_classifier, fit_head  # as above

        texts, labels = list_of_texts(in_order(X, "X", _TEXTS), "X"), np.asarray(y)
        if labels.shape != (len(texts),):
            raise ValueError(f"`y` must have shape ({len(texts)},), a label for each text; received {labels.shape}")
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise ValueError("`y` must be finite; received NaN or an infinity")
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"`y` must have at least two classes; received {self.classes_.tolist()}")
        self.encoder_ = TextEncoder.from_folder(self.model, self.policy)
        classes = numbers.astype(np.int32)
        self.head_ = fit_head(self._vectors(texts), classes, len(self.classes_), self.seed)
        if self.fine_tune:
            recipe = Recipe(
                self.epochs, self.batch_size, self.learning_rate, 0.1, 0.0, 1.0, None, None, True, self.seed, None, 0
            )
            tokens = self.encoder_.tokenize(texts, prompt_name=self.prompt_name)
            fit_classifier(self.encoder_, self.head_, tokens, classes, recipe)
        return self

    def decision_function(self, X: Iterable[str]) -> Array:  # noqa: N803
        """Return the scores of classes, shape (n, classes); for two classes score 1 - score 0, shape (n,)."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Iterable[str]) -> Any:  # noqa: N803
        """Return the class of each text; see :meth:`decision_function` for arguments and errors."""
        best = self._scores(X).argmax(axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Iterable[str]) -> Array:  # noqa: N803
        """Return the probability of each class, shape (n, classes); see :meth:`decision_function` for errors."""
        return ops.softmax(self._scores(X))

    def _scores(self, texts: Iterable[str]) -> Array:
        check_is_fitted(self)
        scores: Array = self.head_(self._vectors(list_of_texts(in_order(texts, "X", _TEXTS), "X")))
        return scores

    def _vectors(self, texts: list[str]) -> Array:
        return self.encoder_.encode(texts, self.batch_size, prompt_name=self.prompt_name)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags
