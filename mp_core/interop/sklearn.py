"""An estimator of scikit-learn: texts in, embeddings out."""

from collections.abc import Iterable
from contextlib import nullcontext
from os import PathLike
from typing import Any, Self

from mp_core.arrays import Array
from mp_core.config import num_threads
from mp_core.dtype_policies import DTypePolicy
from mp_core.interop.threads import register
from mp_core.models import BertEncoder
from mp_core.models.texts import in_order, list_of_texts
from mp_core.utilities.extras import needed_by

with needed_by("mp_core.interop.sklearn"):
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted

__all__ = ["TextEmbedder"]

_TEXTS = "an iterable of str"
register()  # scikit-learn limits threads by threadpoolctl


class TextEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A transformer from texts to embeddings, for pipelines and searches of scikit-learn.

    `fit` opens the model and learns nothing. A pickle of a fitted one holds the weights.

    Parameters
    ----------
    model : path
        A folder, as of :meth:`mp_core.models.BertEncoder.from_folder`.
    policy : str or DTypePolicy, optional
        The policy of the encoder. By default as the folder says.
    batch_size, normalize, prompt_name, truncate_dim
        Those of :meth:`mp_core.models.BertEncoder.encode`.
    n_threads : int, optional
        By default as many as :func:`mp_core.config.get_num_threads` says where `transform` is called.

    Attributes
    ----------
    encoder_ : BertEncoder
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
        """Open the model and check the parameters.

        Parameters
        ----------
        X : iterable of str
            Not looked at, but that it is neither a single text nor a table.
        y : object
            Not looked at.

        Raises
        ------
        OSError, ValueError, TypeError
            As of :meth:`mp_core.models.BertEncoder.from_folder` and :meth:`mp_core.models.BertEncoder.encode`.
        """
        in_order(X, "X", _TEXTS)
        self.encoder_ = BertEncoder.from_folder(self.model, self.policy)
        self._n_features_out = self._embedded([]).shape[1]
        return self

    def transform(self, X: Iterable[str]) -> Array:  # noqa: N803
        """Return the embeddings of texts.

        Parameters
        ----------
        X : iterable of str
            A list, an array of one axis, a column of a table.

        Returns
        -------
        ndarray of float32, shape (n, dim), or what `set_output` says

        Raises
        ------
        sklearn.exceptions.NotFittedError
            `fit` was not called.
        TypeError
            `X` is a single str, or yields no texts in an order, as a table does not; or something in it is no str.
        ValueError
            As of :meth:`mp_core.models.BertEncoder.encode`.
        """
        check_is_fitted(self)
        return self._embedded(list_of_texts(in_order(X, "X", _TEXTS), "X"))

    def _embedded(self, texts: list[str]) -> Array:
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
