"""Linear modules of torch that use mp_core: the modules, and the torch operators that they call."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from mp_core import ops
from mp_core.arrays import Array
from mp_core.arrays.dtypes import ALLOWED
from mp_core.arrays.formats import PANEL_DTYPES
from mp_core.arrays.quantization import QuantizedArray, quantize
from mp_core.core.cpu import get_num_threads, num_threads
from mp_core.ops import PackedMatrix
from mp_core.utilities.arguments import boolean

__all__ = ["PackedLinear", "TrainableLinear", "array_of", "replace_linears", "threads_of_torch"]

KINDS = ("float32", "float16", "bfloat16", "int8")
_TENSORS = ("panels", "column_sums", "scale", "bias")
_TRANSPOSED = ("back", "back_sums", "back_scale")
_INPUTS = (torch.float32, torch.bfloat16, torch.float16)
_known: Any = WeakTensorKeyDictionary()  # panels of a module -> key, matrix and bias of its last call
_BF16 = ALLOWED["bfloat16"]


def array_of(tensor: Tensor) -> Array:
    """Return an ndarray that shares the memory of a tensor; this takes a tenth of the time of DLPack."""
    is_bf16 = tensor.dtype is torch.bfloat16
    array: Array = tensor.view(torch.int16).numpy().view(_BF16) if is_bf16 else tensor.numpy()
    return array


def threads_of_torch() -> AbstractContextManager[None]:
    """Return a context in which mp_core computes with as many threads as torch."""
    threads = torch.get_num_threads()
    return nullcontext() if get_num_threads() == threads else num_threads(threads)


def _linear(
    x: Tensor,
    panels: Tensor,
    column_sums: Tensor | None,
    scale: Tensor | None,
    bias: Tensor | None,
    shape: list[int],
    dtype: str,
    back: Tensor | None = None,
    back_sums: Tensor | None = None,
    back_scale: Tensor | None = None,
) -> Tensor:
    """Return ``x @ matrix + bias`` for CPU tensors. The transposed matrix (`back...`) is only for the gradient."""
    result = _empty_result(x, shape)
    matrix, offset = _operands(panels, column_sums, scale, bias, shape, dtype)
    a, out = array_of(x.detach()), array_of(result)
    with threads_of_torch():
        if scale is not None:
            ops.dynamic_matmul(a, matrix, out_dtype=out.dtype, out=out, bias=offset)
        else:
            a = a if a.dtype == matrix.dtype else ops.cast(a, matrix.dtype)
            ops.matmul(a, matrix, out_dtype=out.dtype, out=out, bias=offset)
    return result


def _operands(panels: Tensor, *others: Any) -> tuple[PackedMatrix, Array | None]:
    """Return matrix and bias as views of the tensors; the views of the last call are cached.

    Views see in-place changes of the tensors. The key has everything that defines a view: address, shape, strides and
    type. An address stays valid, because the cached view keeps the memory alive.
    """
    *parts, shape, dtype = panels, *others
    views = [None if x is None else (x.data_ptr(), x.shape, x.stride(), x.dtype) for x in parts]
    key = *shape, dtype, *views
    known = _known.get(panels)
    if known is None or known[0] != key:
        data = array_of(panels.detach())
        sums, scales, offset = (None if part is None else array_of(part.detach()) for part in parts[1:])
        known = key, PackedMatrix(tuple(shape), PANEL_DTYPES[dtype], data, sums, scales), offset
        _known[panels] = known
    return known[1], known[2]


def _input_gradient(
    d: Tensor,
    back: Tensor,
    back_sums: Tensor | None,
    back_scale: Tensor | None,
    scale: Tensor | None,
    shape: list[int],
    dtype: str,
) -> Tensor:
    """Return ``d @ matrix.T``, the gradient of the inputs, in the type of `d`; int8 weights are decoded."""
    rows = d.contiguous() if scale is None else (d.float() * scale.reshape(-1)).contiguous()
    matrix, _ = _operands(back, back_sums, back_scale, None, shape[::-1], dtype)
    a, result = array_of(rows.detach()), d.new_empty((*d.shape[:-1], shape[0]))
    out = array_of(result)
    with threads_of_torch():
        a = a if scale is not None or a.dtype == matrix.dtype else ops.cast(a, matrix.dtype)
        ops.matmul(a, matrix, out_dtype=out.dtype, out=out)
    return result


def _fake_input_gradient(d: Tensor, back: Tensor, *others: Any) -> Tensor:
    return d.new_empty((*d.shape[:-1], others[-2][0]))


def _fake(
    x: Tensor, panels: Tensor, column_sums: Any, scale: Any, bias: Any, shape: list[int], dtype: str, *back: Any
) -> Tensor:
    """Return an empty result, from which torch.compile gets shape and type.

    torch also calls this function if a tensor is on the meta device. That is valid only if `x` is there too.
    """
    parts = [part for part in (panels, column_sums, scale, bias) if part is not None]
    if x.device.type != "meta" and any(part.device.type == "meta" for part in parts):
        raise ValueError("a PackedLinear on the meta device has no numbers: load its state_dict with assign=True first")
    return _empty_result(x, shape)


def _empty_result(x: Tensor, shape: list[int]) -> Tensor:
    """Return an empty tensor for the outputs; raise if `x` does not fit a matrix of this shape."""
    if x.dtype not in _INPUTS:
        raise TypeError(f"inputs must be of {', '.join(map(str, _INPUTS))}; received {x.dtype}")
    if x.dim() == 0 or x.shape[-1] != shape[0]:
        raise ValueError(f"inputs must have shape (..., {shape[0]}); received {tuple(x.shape)}")
    return x.new_empty((*x.shape[:-1], shape[1]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save the arguments that the backward pass needs."""
    _, _, _, scale, _, ctx.shape, ctx.dtype, *back = inputs
    ctx.save_for_backward(scale, *back)


def _backward(ctx: Any, gradient: Tensor) -> Any:
    scale, back, back_sums, back_scale = ctx.saved_tensors
    if back is None:
        raise RuntimeError(
            "PackedLinear has no gradients: its weights are packed for inference. Train the model first, or replace "
            "its linears with trainable=True, for gradients of the inputs"
        )
    d_inputs = torch.ops.mp_core.linear_gradient(gradient, back, back_sums, back_scale, scale, ctx.shape, ctx.dtype)
    return d_inputs, *[None] * 9


_NAME, _GRADIENT = "mp_core::linear", "mp_core::linear_gradient"
torch.library.define(
    _NAME,
    "(Tensor x, Tensor panels, Tensor? column_sums, Tensor? scale, Tensor? bias, int[2] shape, str dtype, "
    "Tensor? back=None, Tensor? back_sums=None, Tensor? back_scale=None) -> Tensor",
)
torch.library.impl(_NAME, "cpu", _linear)
torch.library.register_fake(_NAME, _fake)
torch.library.register_autograd(_NAME, _backward, setup_context=_keep)
torch.library.define(
    _GRADIENT,
    "(Tensor d, Tensor back, Tensor? back_sums, Tensor? back_scale, Tensor? scale, int[2] shape, str dtype) -> Tensor",
)
torch.library.impl(_GRADIENT, "cpu", _input_gradient)
torch.library.register_fake(_GRADIENT, _fake_input_gradient)


class PackedLinear(nn.Module):
    """A linear module for inference whose weights are packed once for products of mp_core.

    Parameters
    ----------
    linear : torch.nn.Linear
        A module on the CPU. It is not changed, and not needed afterwards.
    dtype : {"int8", "bfloat16", "float16", "float32"}
        The type of the weights and of the arithmetic. int8: weights have one scale per output, and each row of the
        inputs is quantized with its own scale. bfloat16 and float16: inputs are rounded to that type, sums are float32.

    Raises
    ------
    ValueError
        The weights are not in CPU memory or (int8) not finite.

    Notes
    -----
    Inputs are float32, bfloat16 or float16 CPU tensors with any strides; outputs have the type of the inputs. No tensor
    is copied, products release the interpreter lock, and the number of threads is torch's (``torch.set_num_threads``).
    ``torch.compile`` works. There are no gradients: a backward pass raises.

    The state_dict has `panels`, `bias` and (int8) `column_sums` and `scale`, in the layout of
    :class:`mp_core.PackedMatrix`, which is the same on every CPU with this byte order. It loads into a model whose
    linears were replaced with the same `dtype`; the state_dict of the original model does not load. ``.to()``,
    ``.half()`` and similar methods do not change the module.

    Examples
    --------
    >>> linear = nn.Linear(3, 2)
    >>> packed = PackedLinear(linear, "float32")
    >>> x = torch.ones(5, 3)
    >>> torch.allclose(packed(x), linear(x))
    True
    """

    panels: Tensor
    column_sums: Tensor | None
    scale: Tensor | None
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, dtype: str) -> None:
        nn.Module.__init__(self)
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"`linear` must be a torch.nn.Linear; received {type(linear).__name__}")
        self.dtype = _kind(dtype)
        weight = linear.weight.detach()
        if weight.device.type != "cpu":
            raise ValueError(f"`linear` must be in CPU memory; received weights on {weight.device}")
        if dtype == "int8" and not weight.isfinite().all():
            raise ValueError("`linear` must have finite weights for int8; some are infinite or NaN")
        columns = array_of(weight).T
        matrix = ops.pack(quantize(columns, axis=1)) if dtype == "int8" else ops.pack(columns, dtype=dtype)
        bias = None if linear.bias is None else linear.bias.detach().float().clone()
        self.shape = list(matrix.shape)
        self.in_features, self.out_features = matrix.shape
        for name in _TENSORS:
            part = bias if name == "bias" else _tensor(matrix.data if name == "panels" else getattr(matrix, name))
            self.register_buffer(name, part)

    @property
    def weight(self) -> Tensor:
        """The weights as float32, shape (out_features, in_features): a copy, unpacked at every read."""
        matrix, _ = _operands(self.panels, self.column_sums, self.scale, None, self.shape, self.dtype)
        floats = ops.cast(matrix.unpack(), "float32")
        return torch.from_numpy(floats if self.scale is None else floats * array_of(self.scale)).T

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, shape (..., out_features) for inputs of shape (..., in_features)."""
        outputs: Tensor = torch.ops.mp_core.linear(
            x, self.panels, self.column_sums, self.scale, self.bias, self.shape, self.dtype
        )
        return outputs

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        return self  # panels are valid only in this type and on the CPU

    def extra_repr(self) -> str:
        """Return the arguments that the representation shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"dtype={self.dtype}"
        )


class _FixedWeight(Tensor):
    """A copy of packed weights. Setting its data raises, because the packed weights would not change."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # results are plain tensors; torch has no public name

    @property
    def data(self) -> Tensor:
        """The copy."""
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, value: Any) -> None:
        raise RuntimeError(
            "the weights of a TrainableLinear are packed: adapters cannot be merged into them. Merge adapters into the "
            "original model"
        )


class TrainableLinear(PackedLinear, nn.Linear):
    """A :class:`PackedLinear` with gradients of its inputs, to train adapters or layers before it.

    Its own weights and bias are frozen. It subclasses :class:`torch.nn.Linear`, so that peft can add LoRA to it; such
    adapters cannot be merged into it.

    Parameters
    ----------
    linear, dtype
        See :class:`PackedLinear`.

    Notes
    -----
    The gradient is ``d @ W`` with the decoded weights W (exact codes and scales) and sums in float32. For int8, the
    rounding of the inputs counts as the identity (straight-through). The transposed matrix is packed too, in the same
    type, so the module takes twice the memory of a :class:`PackedLinear`; in int8 half of the float32 weights.

    Examples
    --------
    >>> x = torch.ones(5, 3, requires_grad=True)
    >>> TrainableLinear(nn.Linear(3, 2), "int8")(x).sum().backward()
    >>> x.grad.shape
    torch.Size([5, 3])
    """

    back: Tensor
    back_sums: Tensor | None
    back_scale: Tensor | None

    def __init__(self, linear: nn.Linear, dtype: str) -> None:
        super().__init__(linear, dtype)
        matrix, _ = _operands(self.panels, self.column_sums, self.scale, None, self.shape, self.dtype)
        lines: Any = np.ascontiguousarray(matrix.unpack().T)
        if dtype == "int8":
            lines = QuantizedArray(lines, np.ones((1, lines.shape[1]), np.float32), None, (1,))
        packed = ops.pack(lines) if dtype == "int8" else ops.pack(lines, dtype=dtype)
        for name, part in zip(_TRANSPOSED, (packed.data, packed.column_sums, packed.scale), strict=True):
            self.register_buffer(name, _tensor(part))

    @property
    def weight(self) -> Tensor:
        """The weights as float32: see :class:`PackedLinear`. They cannot be set."""
        return super().weight.as_subclass(_FixedWeight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, shape (..., out_features) for inputs of shape (..., in_features)."""
        outputs: Tensor = torch.ops.mp_core.linear(
            x, self.panels, self.column_sums, self.scale, self.bias, self.shape, self.dtype,
            self.back, self.back_sums, self.back_scale,
        )  # fmt: skip
        return outputs


def _tensor(part: Array | None) -> Tensor | None:
    """Return a copy of a buffer of a packed matrix as a tensor: loading a state_dict may write into it."""
    return None if part is None else torch.from_numpy(np.array(part))


def _kind(dtype: Any) -> str:
    if dtype not in KINDS:
        raise ValueError(f"`dtype` must be one of {', '.join(KINDS)}; received {dtype!r}")
    return str(dtype)


def replace_linears(
    model: nn.Module, dtype: str = "int8", *, skip: str | Iterable[str] = (), trainable: bool = False
) -> nn.Module:
    """Replace every :class:`torch.nn.Linear` of a model, in place, by a :class:`PackedLinear`.

    Parameters
    ----------
    model : torch.nn.Module
        A model in CPU memory.
    dtype : {"int8", "bfloat16", "float16", "float32"}
        See :class:`PackedLinear`.
    skip : str or iterable of str
        Names of linears to keep, as in ``named_modules``; ``*`` matches anything: ``["classifier", "*.attention.*"]``.
    trainable : bool
        Whether to use :class:`TrainableLinear`, so that peft adapters of the linears, and layers before them, can be
        trained.

    Returns
    -------
    torch.nn.Module
        `model` itself; the new module if `model` is a linear.

    Raises
    ------
    ValueError
        Weights cannot be packed, or a name in `skip` matches no linear. Then nothing is replaced.

    Notes
    -----
    A linear that is used in several places stays a single module. Subclasses of Linear are not replaced, because other
    code reads their weights (such as the projection in MultiheadAttention). ``nn.TransformerEncoderLayer`` also reads
    the weights of its linears; call ``torch.backends.mha.set_fastpath_enabled(False)`` to prevent that.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> replace_linears(model, "bfloat16", skip="2")
    Sequential(
      (0): PackedLinear(in_features=4, out_features=8, bias=True, dtype=bfloat16)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=2, bias=True)
    )
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module; received {type(model).__name__}")
    _kind(dtype)
    kind = TrainableLinear if boolean(trainable, "trainable") else PackedLinear
    patterns = (skip,) if isinstance(skip, str) else tuple(skip)
    linears = {
        name: module for name, module in model.named_modules(remove_duplicate=False) if type(module) is nn.Linear
    }
    unused = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in linears)]
    if unused:
        raise ValueError(
            f"`skip` must name linears of the model; received {unused}, which match none of {list(linears)}"
        )
    chosen = {
        name: linear for name, linear in linears.items() if not any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    packed = {id(linear): kind(linear, dtype).train(linear.training) for linear in chosen.values()}
    if "" in chosen:
        return packed[id(model)]
    for name, linear in chosen.items():
        model.set_submodule(name, packed[id(linear)])
    return model
