"""Checkpoints as memory-mapped arrays."""

from os import PathLike

import numpy as np

from mp_core.arguments import path_of
from mp_core.arrays import Array
from mp_core.checkpoint.folder import Shard, open_checkpoint, refuse_tools, unique_tensors
from mp_core.checkpoint.header import Entry
from mp_core.checkpoint.tensors import Tensor
from mp_core.quantization import QuantizedArray

__all__ = ["open_tensors"]


def open_tensors(path: str | PathLike[str]) -> dict[str, Array | QuantizedArray]:
    """Map the tensors of a checkpoint into memory, without reading them.

    A file stays mapped, and so one file handle in use, as long as one of its arrays lives. The arrays are read-only
    views of the map, as aligned as the file has them, which may be to one byte.

    Parameters
    ----------
    path : path
        A safetensors file, the ``.safetensors.index.json`` of a model in several, or the folder of one model.

    Returns
    -------
    dict of str to ndarray or QuantizedArray
        In the order of the header. What :func:`convert_file` has quantized is a :class:`QuantizedArray`, and so is
        float8 with the scales of another tool. Where that tool's blocks span several lines, the scales are repeated,
        because a QuantizedArray has scales for each line.

    Raises
    ------
    TypeError
        `path` is no path, such as bytes.
    OSError
        A file is missing or cannot be read.
    ValueError
        A file is truncated or corrupt, holds codes of another tool that mp_core cannot read, or a tensor has a dtype
        other than float64/32/16, bfloat16, float8_e4m3fn, float8_e5m2, signed or unsigned integers, bool, or those that
        are only kept: float8_e8m0fnu, float8_e4m3fnuz, float8_e5m2fnuz, complex64.

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
    checkpoint = open_checkpoint(path_of(path, "path"))
    refuse_tools(checkpoint)
    maps = {name: np.asarray(np.memmap(shard.path, mode="r")) for name, shard in checkpoint.shards.items()}
    return {
        name: _mapped(maps[shard.name], shard, tensor) for name, (shard, tensor) in unique_tensors(checkpoint).items()
    }


def _mapped(content: Array, shard: Shard, tensor: Tensor) -> Array | QuantizedArray:
    def view(entry: Entry) -> Array:
        return content[entry.start : entry.start + entry.nbytes].view(entry.dtype).reshape(entry.shape)

    values, *others = map(view, tensor.parts.values())
    if tensor.scheme is None:
        return values
    scale = others[0].astype(np.float32, copy=False)
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise ValueError(f"{shard.path}: the scales of {tensor.name!r} must be positive and finite")
    return tensor.scheme.array(values, scale, *others[1:])
