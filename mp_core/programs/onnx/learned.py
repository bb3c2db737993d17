"""Operators of ai.onnx.ml that pipelines of scikit-learn use: linear models and scaling. Trees are not supported."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.programs.expansions import Making, expansion
from mp_core.programs.registry import operator

__all__: list[str] = []


@operator("ai.onnx.ml.Scaler")
def scaler(x: Any, *, offset: Sequence[float], scale: Sequence[float]) -> Any:
    """Return ``(x - offset) * scale`` in float32."""
    return ops.multiply(ops.subtract(ops.cast(x, "float32"), np.array(offset, np.float32)), np.array(scale, np.float32))


@operator("ai.onnx.ml.Normalizer")
def normalizer(x: Any, *, norm: Literal["MAX", "L1", "L2"] = "MAX") -> Any:
    """Return rows divided by their norm, in float32; rows of norm 0 as they are."""
    x = ops.cast(x, "float32")
    if norm == "L2":
        size = ops.sqrt(ops.sum(ops.square(x), axis=-1, keepdims=True))
    else:
        size = (ops.max if norm == "MAX" else ops.sum)(ops.abs(x), axis=-1, keepdims=True)
    return ops.divide(x, ops.where(ops.equal(size, 0.0), 1.0, size))


@operator("ai.onnx.ml.ArrayFeatureExtractor")
def array_feature_extractor(x: Any, places: Any) -> Any:
    """Return the elements at places along the last axis."""
    found = ops.take(x, ops.reshape(places, (-1,)), axis=-1)
    return found if x.ndim > 1 else ops.reshape(found, (1, -1))


@expansion("ai.onnx.ml.LinearRegressor")
def linear_regressor(
    make: Making,
    x: Any,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    targets: int = 1,
    post_transform: Literal["NONE"] = "NONE",
) -> None:
    """Return the values of a linear model."""
    del post_transform
    _linear(make, x, coefficients, intercepts, targets)


@expansion("ai.onnx.ml.LinearClassifier")
def linear_classifier(
    make: Making,
    x: Any,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float],
    classlabels_ints: Sequence[int],
    multi_class: int = 0,
    post_transform: Literal["NONE", "LOGISTIC", "SOFTMAX"] = "NONE",
) -> None:
    """Return labels, and scores: of a linear model with one row of coefficients for each class."""
    del multi_class
    scores = _linear(make, x, coefficients, intercepts, len(classlabels_ints))
    name = {"LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax"}.get(post_transform)
    make("mp_core.with_labels", scores if name is None else make(name, scores), labels=tuple(classlabels_ints))


@operator("mp_core.with_labels")
def with_labels(scores: Any, *, labels: Sequence[int]) -> tuple[Any, Any]:
    """Return the label of each row, and the scores."""
    return ops.take(np.array(labels, np.int64), ops.argmax(scores, -1), axis=0), scores


def _linear(make: Making, x: Any, coefficients: Sequence[float], intercepts: Sequence[float], rows: int) -> Any:
    matrix = make.constant(np.array(coefficients, np.float32).reshape(rows, -1))
    bias = make.constant(np.array(intercepts or (0,) * rows, np.float32))
    return make("Gemm", make("Cast", x, to=1), matrix, bias, transB=1)
