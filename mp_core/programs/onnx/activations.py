"""Activations and softmax."""

from typing import Any, Literal

from mp_core import ops
from mp_core.ops.elementwise import rounded
from mp_core.programs.onnx.arguments import cast_to, flattened, is_float
from mp_core.programs.registry import operator

__all__: list[str] = []

for _name, _function in {
    "Sigmoid": ops.sigmoid, "Softplus": ops.softplus, "Softsign": ops.softsign, "Tanh": ops.tanh,
    "HardSwish": ops.hard_swish, "Elu": ops.elu, "Celu": ops.celu,
}.items():  # fmt: skip
    operator(_name, keeps_type=True)(_function)


@operator("Relu", keeps_type=True)
def relu(x: Any) -> Any:
    """Return the larger of an element and zero."""
    return ops.relu(x) if is_float(x) else ops.maximum(x, 0)


@operator("LeakyRelu")
def leaky_relu(x: Any, *, alpha: float = 0.01) -> Any:
    """Return negative elements times `alpha`, others as they are."""
    return ops.leaky_relu(x, alpha)


@operator("PRelu")
def prelu(x: Any, slope: Any) -> Any:
    """Return negative elements times their slope, others as they are."""
    return ops.where(ops.less(x, 0), ops.multiply(x, slope), x)


@operator("ThresholdedRelu")
def thresholded_relu(x: Any, *, alpha: float = 1.0) -> Any:
    """Return elements that are larger than `alpha`, and zero for others."""
    return ops.threshold(x, alpha, 0.0)


@operator("HardSigmoid")
def hard_sigmoid(x: Any, *, alpha: float = 0.2, beta: float = 0.5) -> Any:
    """Return ``clip(alpha * x + beta, 0, 1)``."""
    return rounded(lambda x: ops.clip(ops.add(ops.multiply(x, alpha), beta), 0, 1), x)


@operator("Selu")
def selu(x: Any, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323) -> Any:
    """Return `gamma` times the elu."""
    if (alpha, gamma) == (1.6732631921768188, 1.0507010221481323):
        return ops.selu(x)
    return rounded(lambda x: ops.multiply(ops.elu(x, alpha), gamma), x)


@operator("Mish")
def mish(x: Any) -> Any:
    """Return ``x * tanh(softplus(x))``."""
    return rounded(lambda x: ops.multiply(x, ops.tanh(ops.softplus(x))), x)


@operator("Shrink")
def shrink(x: Any, *, lambd: float = 0.5, bias: float = 0.0) -> Any:
    """Return elements beyond `lambd`, moved towards zero by `bias`, and zero for others."""

    def computed(x: Any) -> Any:
        inner = ops.where(ops.greater(x, lambd), ops.subtract(x, bias), ops.zeros_like(x))
        return ops.where(ops.less(x, -lambd), ops.add(x, bias), inner)

    return rounded(computed, x)


@operator("Gelu", keeps_type=True)
def gelu(x: Any, *, approximate: Literal["none", "tanh"] = "none") -> Any:
    """Return the gelu."""
    return ops.gelu(x, approximate=approximate == "tanh")


@operator("Softmax", since=13, keeps_type=True)
def softmax(x: Any, *, axis: int = -1) -> Any:
    """Return ``exp(x)`` divided by its sum along an axis."""
    return ops.softmax(x, axis=axis)


@operator("LogSoftmax", since=13)
def log_softmax(x: Any, *, axis: int = -1) -> Any:
    """Return the logarithm of the softmax."""
    return ops.log_softmax(x, axis=axis)


@operator("Hardmax", since=13)
def hardmax(x: Any, *, axis: int = -1) -> Any:
    """Return 1 for the first largest element along an axis, and 0 for others."""
    return cast_to(ops.one_hot(ops.argmax(x, axis), x.shape[axis], axis), x.dtype)


def _of_matrix(name: str, function: Any) -> None:
    """Register the version of an operator that flattens its input to a matrix first."""

    def of_matrix(x: Any, *, axis: int = 1) -> Any:
        return ops.reshape(function(flattened(x, axis % x.ndim)), x.shape)

    operator(name, keeps_type=True)(of_matrix)


_of_matrix("Softmax", softmax)
_of_matrix("LogSoftmax", log_softmax)
_of_matrix("Hardmax", hardmax)
