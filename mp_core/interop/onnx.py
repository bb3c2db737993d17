"""Run ONNX files. The package `onnx` is not needed."""

from os import PathLike
from typing import Any

from mp_core.files.onnx.programs import read_program
from mp_core.programs import ProgramModel, RefusedError

__all__ = ["load"]


def load(path: str | PathLike[str], policy: Any = None) -> ProgramModel:
    """Return the graph of an ONNX file as a model.

    The weights are views of the file, and of the files beside it that it names, which are mapped into memory. Constant
    matrices are layers, so that :meth:`~mp_core.layers.Layer.quantize` and policies apply to them. Call the model with
    arrays, in the order of the inputs of the graph or by their names; :func:`mp_core.compile` makes a plan of it.

    Parameters
    ----------
    path : str or path-like
        An ``.onnx`` file with operators of version 13 or later; older ones are read if they have the later form.
    policy : str or DTypePolicy, optional
        All floats of at most 32 bits are computed in its compute dtype, and matrices are stored as it says. None: each
        value has the type that the file states.

    Returns
    -------
    ProgramModel
        Its ``input_names`` and ``output_names`` are those of the graph. It returns an array, or a dict of several.

    Raises
    ------
    ValueError
        The file is not an ONNX file, is damaged, or refers to a file outside of its folder.
    RefusedError
        The graph has nodes that mp_core does not run (docs/onnx.md); the message lists all of them. A ValueError.

    Examples
    --------
    >>> import mp_core as mp
    >>> model = mp.interop.onnx.load("model.onnx", policy="mixed_bfloat16")  # doctest: +SKIP
    >>> plan = mp.compile(model, x)  # doctest: +SKIP
    """
    program = read_program(path)
    try:
        return ProgramModel(program, policy)
    except RefusedError as error:
        raise RefusedError(f"{path}: {error}") from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
