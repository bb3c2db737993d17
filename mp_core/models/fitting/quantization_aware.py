"""Quantization-aware training: train floats that are quantized in every product, and distill a model into codes."""

import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from mp_core.core.changes import undone_if_it_fails
from mp_core.layers.base.contents import contents_of
from mp_core.layers.forms import Codes
from mp_core.layers.forms.trained import TrainedCodes
from mp_core.layers.matrix import MatrixLayer, set_form
from mp_core.models.fitting.calibration import calibrate
from mp_core.models.fitting.running import LayerLike, parts_of
from mp_core.utilities.arguments import boolean, number, positive_integer

__all__ = ["convert_qat", "distill", "prepare_qat"]

M = TypeVar("M", bound=LayerLike)

_EPSILON = 1e-12
"""Adam's epsilon: gradients of a mean over all numbers of all vectors are as small as its default, 1e-8."""
_RATE, _INT8_RATE = 1e-4, 2e-5
"""The default rates of :func:`distill`. A rate of 1e-4 made MiniLM in int8 worse: docs/adapting.md."""


def prepare_qat(model: LayerLike, *, learn_scales: bool = True) -> None:
    """Make the codes of a model trainable, in place; call :func:`convert_qat` after training.

    Each layer whose kernel has int8 or int4 codes gets trainable floats. Every product quantizes the floats
    to codes and multiplies by the dequantized codes; inputs with fixed scales are quantized likewise. The gradient of
    rounding is 1, or 0 if the value was clipped [1]_; the gradients of scales are those of [2]_. At first, codes and
    scales are unchanged.

    Parameters
    ----------
    model : Layer
        Or an object with its methods, such as a :class:`~mp_core.models.TextEncoder`. The scales of inputs must be
        fixed, as :func:`calibrate` makes them, or the inputs floats (weight-only).
    learn_scales : bool
        Whether to train the scales of weights and the fixed scales of inputs too. Zero points are not trained.

    Raises
    ------
    ValueError
        No layer has such codes; or a layer quantizes its inputs dynamically, has LoRA, or is prepared already. Nothing
        has changed.

    Notes
    -----
    Adding 1 to a trained float changes its code by 128, so the usual learning rates change a code after some steps. A
    scale is ``scale * exp(growth)``, and `growth` is trained.

    References
    ----------
    .. [1] Y. Bengio, N. Leonard, A. Courville, "Estimating or Propagating Gradients Through Stochastic Neurons for
       Conditional Computation", 2013, arXiv:1308.3432.
    .. [2] S. K. Esser et al., "Learned Step Size Quantization", ICLR 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from mp_core.layers import Dense
    >>> layer = Dense(2, dtype="int8/weight_only_from_float32")
    >>> layer.build((None, 3))
    >>> layer.set_matrix(np.float32([[1, 2, 3], [4, 5, 6]]))
    >>> prepare_qat(layer)
    >>> [variable.name for variable in layer.trainable_weights]
    ['bias', 'weights', 'growth']
    >>> convert_qat(layer)
    >>> [variable.name for variable in layer.trainable_weights]
    ['bias']
    """
    learn_scales = boolean(learn_scales, "learn_scales")
    layers = [layer for layer in _kernels(model) if layer.quantized]
    if not layers:
        raise ValueError("`model` must have layers whose kernels have codes, but has none: `calibrate` makes them")
    for layer in layers:
        _check(layer)

    def prepare() -> None:
        for layer in layers:
            set_form(layer, TrainedCodes.of(layer.form, layer.add_weight, learn_scales))

    undone_if_it_fails(contents_of(layers), prepare)


def convert_qat(model: LayerLike) -> None:
    """Replace the trained floats of :func:`prepare_qat` by codes and scales, in place.

    Parameters
    ----------
    model : Layer
        Or an object with its methods.

    Examples
    --------
    >>> import numpy as np
    >>> from mp_core.layers import Dense
    >>> layer = Dense(2, dtype="int8/weight_only_from_float32")
    >>> layer.build((None, 4))
    >>> layer.set_matrix(np.float32([[1, 2, 3, 4], [5, 6, 7, 8]]))
    >>> prepare_qat(layer)
    >>> _ = layer.trainable_weights[1].assign(layer.trainable_weights[1] + 0.1)  # as an optimizer does
    >>> before = layer(np.eye(4, dtype=np.float32))
    >>> convert_qat(layer)
    >>> np.array_equal(layer(np.eye(4, dtype=np.float32)), before), layer.form.name
    (True, 'codes')
    """
    layers = [layer for layer in _kernels(model) if layer.form.is_trained]
    if not layers:
        raise ValueError("`model` has no trained codes: call `prepare_qat` first")

    found = [layer.form.current_values() for layer in layers]
    for layer, values in zip(layers, found, strict=True):
        set_form(layer, layer.form.as_codes(values))


def distill(
    encoder: M,
    texts: Sequence[Any],
    policy: Any,
    *,
    epochs: int = 4,
    batch_size: int = 16,
    learning_rate: float | None = None,
    learn_scales: bool = True,
    alpha: float = 0.85,
    seed: int | None = 0,
    callbacks: Any = None,
    verbose: Any = "auto",
) -> M:
    """Return a quantized encoder that is trained to reproduce the vectors of `encoder`; no labels are needed.

    The steps are :func:`calibrate`, :func:`prepare_qat`, ``fit`` with the mean squared difference from the vectors of
    `encoder`, and :func:`convert_qat`. Biases, norms and float tables are trained too. Adam's learning rate falls from
    `learning_rate` to 0 along half a cosine. A reranker is trained on the scores before the activation.

    Parameters
    ----------
    encoder : TextEncoder or Reranker
        The teacher, with float weights. It does not change. If ``fit`` has trained it, save it and open the new folder
        first.
    texts : sequence of str, or of pairs of str for a reranker
        Texts for calibration and training: a few hundred texts like those in use.
    policy : DTypePolicy or str
        As for :func:`calibrate`, with int8 or int4 codes.
    epochs, batch_size : int
    learning_rate : float, optional
        Default: 2e-5 if all codes are int8, otherwise 1e-4.
    learn_scales, alpha
        As for :func:`prepare_qat` and :func:`calibrate`.
    seed : int, optional
        Seed of the order of the texts.
    callbacks, verbose
        As for ``fit``.

    Returns
    -------
    TextEncoder or Reranker

    Examples
    --------
    >>> student = distill(encoder, texts, "int4/64")  # doctest: +SKIP
    >>> student.save("MODEL-int4")  # doctest: +SKIP
    """
    from mp_core.training.optimizers import Adam  # calibration and the choice of policies need no training
    from mp_core.training.optimizers.schedules import CosineDecay  # as above

    if not (isinstance(encoder, LayerLike) and hasattr(encoder, "fit") and hasattr(encoder, "tokenize")):
        raise TypeError(f"`encoder` must be an encoder of texts or a reranker; received {type(encoder).__name__}")
    if isinstance(texts, str):
        raise TypeError("`texts` must be a sequence of texts; received one text")
    texts, epochs = [*texts], positive_integer(epochs, "epochs")
    if not texts:
        raise ValueError("`texts` must have at least one text; received none")
    batch_size = positive_integer(batch_size, "batch_size")
    rate = None if learning_rate is None else number(learning_rate, "learning_rate", 0.0)
    targets, sample = _outputs(encoder, texts)
    student = calibrate(encoder, sample, policy, alpha=alpha)
    prepare_qat(student, learn_scales=learn_scales)
    schedule = CosineDecay(_rate(student) if rate is None else rate, epochs * -(-len(texts) // batch_size))
    rows = [(*([text] if isinstance(text, str) else text), y) for text, y in zip(texts, targets, strict=True)]
    student.fit(
        rows, loss="mse", epochs=epochs, batch_size=batch_size, optimizer=Adam(schedule, epsilon=_EPSILON), dropout=0.0,
        seed=seed, callbacks=callbacks, verbose=verbose,
    )  # fmt: skip
    convert_qat(student)
    return student


def _outputs(model: Any, texts: list[Any]) -> tuple[Any, list[Any]]:
    """Return the vectors of an encoder, or the scores of a reranker before the activation; and a sample of calls."""
    if hasattr(model, "encode"):
        return model.encode(texts, truncate_dim=sys.maxsize), texts
    return model.predict_tokens(model.tokenize(texts), activation="linear"), [[text] for text in texts]


def _rate(student: LayerLike) -> float:
    trained = {layer.form.scheme.codes for layer in _kernels(student) if layer.form.is_trained}
    return _INT8_RATE if trained == {"int8"} else _RATE


def _kernels(model: object) -> list[Any]:
    if not isinstance(model, LayerLike):
        raise TypeError(f"`model` must be a Layer, or have its methods; received {type(model).__name__}")
    return [layer for layer in parts_of(model) if isinstance(layer, MatrixLayer) and layer.multiplies]


def _check(layer: MatrixLayer) -> None:
    """Raise ValueError unless the codes of a layer can be trained."""
    form, where = layer.form, f"layer '{layer.path}'"
    if form.geometry.groups > 1:
        raise ValueError(f"{where} must have one group of channels to be trained; it has {form.geometry.groups}")
    if getattr(layer, "lora_enabled", False):
        raise ValueError(f"{where} has LoRA: `merge_lora` first")
    if form.is_trained:
        raise ValueError(f"{where} is prepared already")
    if not isinstance(form, Codes) or form.scheme.codes not in ("int8", "int4"):
        raise ValueError(
            f"{where} must have int8 or int4 codes, as `calibrate` or `with_policy` makes them; its policy is "
            f"'{form.policy.name}', its form '{form.name}'"
        )
    if form.dynamic:
        raise ValueError(
            f"{where} quantizes its inputs dynamically under '{form.policy.name}': `calibrate` makes fixed scales"
        )
