"""Export arrays: DLPack for every dtype, and tensors of torch and JAX that share memory."""

from typing import Any

from mp_core.arrays import Array, imported
from mp_core.arrays.dtypes import name_of
from mp_core.core.dlpack_export import CODES, Exported
from mp_core.utilities.arguments import boolean
from mp_core.utilities.extras import needed_by

__all__ = ["dlpack", "to_jax", "to_torch"]


def dlpack(x: Any) -> Any:
    """Return an object with ``__dlpack__`` and ``__dlpack_device__`` that shares the memory of `x`.

    NumPy exports its own types. This function also exports those types of ml_dtypes for which DLPack has codes, such as
    bfloat16 and float8. Any library that imports DLPack can read them without a copy.

    Parameters
    ----------
    x : array-like
        Any shape; strides must be whole elements. An :class:`mp_core.AutoCastVariable` exports the value that reading
        it gives in the current scope, read-only. A :class:`mp_core.QuantizedArray` and a :class:`mp_core.PackedMatrix`
        are not arrays: export ``q.values`` and ``q.scale``, or the result of ``dequantize()`` or ``unpack()``.

    Raises
    ------
    TypeError
        DLPack has no code for the type of `x`.

    Examples
    --------
    >>> import ml_dtypes
    >>> import numpy as np
    >>> from mp_core.core.dlpack import from_dlpack
    >>> x = np.array([1.0, 2.0], ml_dtypes.bfloat16)
    >>> y = from_dlpack(dlpack(x), {"bfloat16": x.dtype})
    >>> y[0] = 3
    >>> x
    array([3, 2], dtype=bfloat16)
    """
    array = imported(x, "x")
    if array.dtype.isbuiltin != 2 and array.dtype.kind in "biufc":  # isbuiltin is 2 for types of ml_dtypes
        return array
    if name_of(array.dtype) not in CODES:
        raise TypeError(f"`x` must be of NumPy's numbers or of {', '.join(CODES)}; received {array.dtype}")
    return Exported(array)


def to_torch(x: Any, *, copy: bool | None = None) -> Any:
    """Return a torch tensor on the CPU that shares the memory of `x`, and keeps it alive.

    Parameters
    ----------
    x : array-like
        See :func:`dlpack`.
    copy : bool, optional
        None: copy only what torch cannot share. torch needs writeable memory, and strides that are positive and whole
        elements; so read-only arrays, such as variables and memory-mapped weights, are copied. False: raise instead.
        True: always copy.

    Examples
    --------
    >>> import ml_dtypes
    >>> import numpy as np
    >>> to_torch(np.array([1.0, 2.0], ml_dtypes.bfloat16))
    tensor([1., 2.], dtype=torch.bfloat16)
    """
    with needed_by("to_torch"):
        import torch.utils.dlpack

    array = _shareable(imported(x, "x"), copy, "torch")
    try:
        return torch.utils.dlpack.from_dlpack(dlpack(array))
    except (BufferError, RuntimeError) as error:
        raise TypeError(f"torch has no tensors of {array.dtype}") from error


def to_jax(x: Any, *, copy: bool | None = None) -> Any:
    """Return a JAX array on the CPU that shares the memory of `x`.

    JAX turns 64-bit elements into 32-bit ones unless its option ``jax_enable_x64`` is set.

    Parameters
    ----------
    x : array-like
        See :func:`dlpack`. JAX assumes that its arrays are constant: do not write into `x` while the result is in use.
    copy : bool, optional
        None: copy only what JAX cannot share: arrays that are read-only, not contiguous, or not aligned to 64 bytes.
        False: raise instead. True: always copy.

    Examples
    --------
    >>> import numpy as np
    >>> to_jax(np.array([1.0, 2.0], np.float32))
    Array([1., 2.], dtype=float32)
    """
    with needed_by("to_jax"):
        import jax

    array = _shareable(imported(x, "x"), copy, "JAX", ordered=True)
    try:
        return jax.dlpack.from_dlpack(dlpack(array), copy=False if copy is False else None)
    except (BufferError, RuntimeError) as error:
        raise TypeError(f"JAX has no arrays of {array.dtype}") from error


def _shareable(array: Array, copy: bool | None, library: str, ordered: bool = False) -> Array:
    """Return the array, or a copy if `copy` is True, or if it is None and the library cannot share the memory."""
    if copy is not None:
        copy = boolean(copy, "copy")
    contiguous = array.flags.c_contiguous or array.flags.f_contiguous
    obstacles = {
        "is read-only": not array.flags.writeable,
        "is not in native byte order": not array.dtype.isnative,
        "has negative strides, or parts of elements": any(s < 0 or s % array.itemsize for s in array.strides),
        "is not contiguous": ordered and not contiguous,
    }
    reason = next((reason for reason, holds in obstacles.items() if holds), None)
    if reason is not None and copy is False:
        raise ValueError(f"`copy` must be None or True: {library} cannot share an array that {reason}")
    if copy or reason is not None:
        return array.astype(array.dtype.newbyteorder("="), order="C")
    return array
