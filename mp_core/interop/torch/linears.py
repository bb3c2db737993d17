"""Linears of torch models, computed by mp_core: a module, and the operator of torch that it calls."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
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

__all__ = ["PackedLinear", "TrainableLinear", "replace_linears"]

KINDS = ("float32", "float16", "bfloat16", "int8")
_TENSORS = ("panels", "column_sums", "scale", "bias")
_TRANSPOSED = ("back", "back_sums", "back_scale")
_INPUTS = (torch.float32, torch.bfloat16, torch.float16)
_known: Any = WeakTensorKeyDictionary()  # panels of a module -> what its last call was computed with
_BF16 = ALLOWED["bfloat16"]


def array_of(tensor: Tensor) -> Array:
    """Return an ndarray on the memory of a tensor: what DLPack does, in a tenth of the time."""
    is_bf16 = tensor.dtype is torch.bfloat16
    array: Array = tensor.view(torch.int16).numpy().view(_BF16) if is_bf16 else tensor.numpy()
    return array


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
    """Return ``x @ matrix + bias`` for tensors of the CPU. The transposed matrix is there for the gradient."""
    result = _empty_result(x, shape)
    matrix, offset = _operands(panels, column_sums, scale, bias, shape, dtype)
    a, out = array_of(x.detach()), array_of(result)
    threads = torch.get_num_threads()
    with nullcontext() if get_num_threads() == threads else num_threads(threads):
        if scale is not None:
            ops.dynamic_matmul(a, matrix, out_dtype=out.dtype, out=out, bias=offset)
        else:
            a = a if a.dtype == matrix.dtype else ops.cast(a, matrix.dtype)
            ops.matmul(a, matrix, out_dtype=out.dtype, out=out, bias=offset)
    return result


def _operands(panels: Tensor, *others: Any) -> tuple[PackedMatrix, Array | None]:
    """Return matrix and bias of a call on the memory of its tensors: those of the last call, if that had the same.

    They are views, so they show what is written into the tensors in place. The key is all that makes a view; its memory
    is not freed, and so given to no other tensor, as long as the view is kept.
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


def _led_back(
    d: Tensor,
    back: Tensor,
    back_sums: Tensor | None,
    back_scale: Tensor | None,
    scale: Tensor | None,
    shape: list[int],
    dtype: str,
) -> Tensor:
    """Return ``d @ matrix.T``, the gradient of the inputs, in the type of `d`: with what int8 weights stand for."""
    rows = d.contiguous() if scale is None else (d.float() * scale.reshape(-1)).contiguous()
    matrix, _ = _operands(back, back_sums, back_scale, None, shape[::-1], dtype)
    a, result = array_of(rows.detach()), d.new_empty((*d.shape[:-1], shape[0]))
    out, threads = array_of(result), torch.get_num_threads()
    with nullcontext() if get_num_threads() == threads else num_threads(threads):
        a = a if scale is not None or a.dtype == matrix.dtype else ops.cast(a, matrix.dtype)
        ops.matmul(a, matrix, out_dtype=out.dtype, out=out)
    return result


def _fake_led_back(d: Tensor, back: Tensor, *others: Any) -> Tensor:
    return d.new_empty((*d.shape[:-1], others[-2][0]))


def _fake(
    x: Tensor, panels: Tensor, column_sums: Any, scale: Any, bias: Any, shape: list[int], dtype: str, *back: Any
) -> Tensor:
    """Return what torch.compile has to know of the result: its shape and type.

    torch also comes here if one of the tensors is on the meta device. Then only a result without numbers is right.
    """
    parts = [part for part in (panels, column_sums, scale, bias) if part is not None]
    if x.device.type != "meta" and any(part.device.type == "meta" for part in parts):
        raise ValueError("a PackedLinear on the meta device has no numbers: load its state_dict with assign=True first")
    return _empty_result(x, shape)


def _empty_result(x: Tensor, shape: list[int]) -> Tensor:
    """Return a tensor for the outputs of inputs `x`; raise if a matrix of that shape does not take them."""
    if x.dtype not in _INPUTS:
        raise TypeError(f"inputs must be of {', '.join(map(str, _INPUTS))}; received {x.dtype}")
    if x.dim() == 0 or x.shape[-1] != shape[0]:
        raise ValueError(f"inputs must have shape (..., {shape[0]}); received {tuple(x.shape)}")
    return x.new_empty((*x.shape[:-1], shape[1]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keep what the backward pass needs of the arguments of the operator."""
    _, _, _, scale, _, ctx.shape, ctx.dtype, *back = inputs
    ctx.save_for_backward(scale, *back)


def _backward(ctx: Any, gradient: Tensor) -> Any:
    scale, back, back_sums, back_scale = ctx.saved_tensors
    if back is None:
        raise RuntimeError(
            "PackedLinear has no gradients: its weights are packed for inference. Train the model first, or replace "
            "its linears with trainable=True, for gradients of the inputs"
        )
    led = torch.ops.mp_core.linear_gradient(gradient, back, back_sums, back_scale, scale, ctx.shape, ctx.dtype)
    return led, *[None] * 9


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
torch.library.impl(_GRADIENT, "cpu", _led_back)
torch.library.register_fake(_GRADIENT, _fake_led_back)


class PackedLinear(nn.Module):
    """A linear module for inference whose weights are packed, once, for products of mp_core.

    Parameters
    ----------
    linear : torch.nn.Linear
        On the CPU. It is not changed, and not needed any more.
    dtype : {"int8", "bfloat16", "float16", "float32"}
        What the weights are held in and multiplied as. int8: one scale per output; each row of the inputs is quantized
        by its own scale as it comes. bfloat16 and float16: inputs are rounded to that type, sums are float32.

    Raises
    ------
    TypeError
        `linear` is no :class:`torch.nn.Linear`.
    ValueError
        `dtype` is another, or the weights are not in CPU memory or not finite (int8).

    Notes
    -----
    Inputs are float32, bfloat16 or float16 tensors of the CPU, of any strides; the outputs have their type. No tensor
    is copied, the interpreter lock is released while a product is computed, and threads are as many as torch has
    (``torch.set_num_threads``). It compiles (``torch.compile``), and has no gradients: a backward pass raises.

    The state_dict has `panels`, for int8 `column_sums` and `scale`, and `bias`: the layout of
    :class:`mp_core.PackedMatrix`, the same on every CPU of this byte order. It loads into a model whose linears were
    replaced with the same `dtype`; that of the model before does not. ``.to()``, ``.half()`` and the like leave the
    module as it is.

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
        """What the packed weights stand for, float32, shape (out_features, in_features): a copy, made at every read."""
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
        return self  # in other types or on other devices, the panels would be no panels

    def extra_repr(self) -> str:
        """Return what the representation says of the module."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"dtype={self.dtype}"
        )


class _FixedWeight(Tensor):
    """A copy of what packed weights stand for: nobody may take it for the weights, and write to it."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # results are plain tensors; torch has no public name

    @property
    def data(self) -> Tensor:
        """The copy."""
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, value: Any) -> None:
        raise RuntimeError("the weights of a TrainableLinear are packed: adapters cannot be merged into them")


class TrainableLinear(PackedLinear, nn.Linear):
    """A :class:`PackedLinear` whose inputs have gradients: for adapters, or layers before it, that are trained.

    Its own weights and bias are frozen. It is a :class:`torch.nn.Linear` to others, so that peft puts LoRA beside it;
    adapters cannot be merged into it, and stay beside it.

    Parameters
    ----------
    linear, dtype
        Those of :class:`PackedLinear`.

    Raises
    ------
    TypeError, ValueError
        As :class:`PackedLinear`.

    Notes
    -----
    The gradient is that of the weights that the packed ones stand for, ``d @ W``: exact codes and scales, sums in
    float32; that of int8 inputs passes straight through their rounding. The transposed matrix is packed too, in the
    same type: twice the memory of a :class:`PackedLinear`, in int8 half of the float32 weights.

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
        """As that of :class:`PackedLinear`."""
        return super().weight.as_subclass(_FixedWeight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, shape (..., out_features) for inputs of shape (..., in_features)."""
        outputs: Tensor = torch.ops.mp_core.linear(
            x, self.panels, self.column_sums, self.scale, self.bias, self.shape, self.dtype,
            self.back, self.back_sums, self.back_scale,
        )  # fmt: skip
        return outputs


def _tensor(part: Array | None) -> Tensor | None:
    """Return a buffer of a packed matrix as a tensor of its own: a state_dict may be loaded into it."""
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
        In CPU memory.
    dtype : {"int8", "bfloat16", "float16", "float32"}
        As for :class:`PackedLinear`.
    skip : str or iterable of str
        Names of modules (as ``named_modules`` has them) to leave as they are; ``*`` stands for anything:
        ``["classifier", "*.attention.*"]``.
    trainable : bool
        Whether to replace them by :class:`TrainableLinear`, so that gradients pass through to their inputs: adapters of
        peft beside them, and what lies before them, can be trained.

    Returns
    -------
    torch.nn.Module
        `model` itself; the new module if it is a linear.

    Raises
    ------
    TypeError
        `model` is no module, or `trainable` no bool.
    ValueError
        `dtype` is another, weights cannot be packed, or a name in `skip` matches no linear. Nothing is replaced then.

    Notes
    -----
    A linear that is used in several places stays one module. Classes derived from Linear are left alone: torch's own,
    such as the projection in MultiheadAttention, are read by others. ``nn.TransformerEncoderLayer`` reads the weights
    of its linears itself unless ``torch.backends.mha.set_fastpath_enabled(False)`` is called.

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
