"""Checkpoints: safetensors files as memory-mapped arrays."""

from os import PathLike
from typing import Any

import numpy as np

from mp_core import dtypes

__all__ = ["open_tensors"]

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


def open_tensors(path: str | PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Map the tensors of a safetensors file into memory, without reading them.

    The file stays mapped, and so one file handle in use, as long as one of the arrays lives. The arrays are read-only
    views of the map, as aligned as the file has them, which may be to one byte.

    Parameters
    ----------
    path : path
        A file of tensors in float64/32/16, bfloat16, float8_e4m3fn, float8_e5m2, signed and unsigned integers, bool.

    Returns
    -------
    dict of str to ndarray
        In the order in which the file holds them.

    Raises
    ------
    OSError
        The file is missing or cannot be read.
    ValueError
        The file is truncated or corrupt, or a tensor has another dtype.
    ImportError
        The safetensors package is missing.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from safetensors.numpy import save_file
    >>> with TemporaryDirectory() as folder:
    ...     save_file({"x": np.arange(3, dtype="int8")}, Path(folder, "model.safetensors"))
    ...     open_tensors(Path(folder, "model.safetensors"))
    {'x': array([0, 1, 2], dtype=int8)}
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError("reading safetensors files needs safetensors: pip install mp-core[io]") from error
    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
    try:
        with safe_open(path, framework="numpy") as checked:
            headers = [(name, checked.get_slice(name)) for name in checked.offset_keys()]
            entries = [(name, header.get_dtype(), header.get_shape()) for name, header in headers]
    except SafetensorError as error:
        raise ValueError(f"{path} is not a valid safetensors file: {error}") from error
    data = np.asarray(np.memmap(path, mode="r"))
    tensors = {}
    start = 8 + header_bytes
    for name, code, shape in entries:
        if code not in _DTYPES:
            raise ValueError(f"{path}: tensor {name} has dtype {code}; mp_core reads {', '.join(_DTYPES)}")
        dtype = dtypes.parse(_DTYPES[code])
        # safe_open has checked that the tensors fill the file in this order without gaps.
        stop = start + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        tensors[name] = data[start:stop].view(dtype).reshape(shape)
        start = stop
    return tensors
