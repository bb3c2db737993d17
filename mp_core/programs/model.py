"""The model of a program: its nodes are called one after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Self

import numpy as np

from mp_core import ops
from mp_core.arrays import Array, imported
from mp_core.arrays.dtypes import dtype_of, is_float
from mp_core.arrays.holding import current_holder
from mp_core.files.program import Input, Program
from mp_core.layers import Layer
from mp_core.layers.symbols import KerasTensor
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.autocast.memory import frozen
from mp_core.policies.dtype_policies import policy_of
from mp_core.programs.building import Step, built, is_weight, run
from mp_core.programs.checks import refusals
from mp_core.programs.expansions import expanded
from mp_core.programs.registry import RefusedError
from mp_core.training.models import Model

__all__ = ["ProgramModel"]


class ProgramModel(Model):
    """A program as a model: call it with arrays in the order of its inputs, by their names, or with a dict.

    ``mp_core.interop.onnx.load`` and ``mp_core.interop.torch.from_exported`` return it, and :meth:`from_folder` opens
    one that was saved. It needs neither onnx nor torch. From the second call with the same shapes on, a plan computes
    the outputs; the plans of the last 8 combinations of shapes are kept. With the argument `training`, and for programs
    that a plan cannot record, operators are called one by one, with the same bits.

    Parameters
    ----------
    program : Program
    policy : str or DTypePolicy, optional
        The policy of the model: all floats of at most 32 bits are computed in its compute dtype, whatever their types
        in the program. None: each value has the type that the program states.
    **kwargs
        Arguments of :class:`~mp_core.layers.Layer`.

    Raises
    ------
    RefusedError
        The program has nodes that mp_core does not run. The message lists all of them.

    Examples
    --------
    >>> from mp_core.files.program import Node, Value
    >>> double = Node("aten.mul.Tensor", (Value("x"), 2.0), ("y",))
    >>> model = ProgramModel(Program((Input("x", "float32", ("n", 2)),), ("y",), [double]))
    >>> model(x=np.ones((1, 2), np.float32))
    array([[2., 2.]], dtype=float32)
    """

    _sample_independence = "unknown"

    def __init__(self, program: Program, policy: Any = None, **kwargs: Any) -> None:
        policy = None if policy is None else policy_of(policy)
        super().__init__(dtype=policy, autocast=policy is not None, **kwargs)
        program = expanded(program)
        refused = refusals(program)
        if refused:
            raise RefusedError(f"{len(refused)} parts of the program cannot run here:\n" + "\n".join(refused))
        self._set_steps(replace(program, constants={}), *built(program, self.dtype_policy if self.autocast else None))

    def _set_steps(
        self, program: Program, steps: Sequence[Step], parts: Mapping[str, Layer], constants: Mapping[str, Any]
    ) -> None:
        """Set what the model is made of; `constants` become its variables, or are read as they are."""
        self.program = program
        self.parts = parts
        self._steps = steps
        self._constants = {name: self._weight(name, x) if is_weight(x) else x for name, x in constants.items()}
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Mark the model as built: its layers and variables do not depend on the shapes of inputs."""

    def _weight(self, name: str, x: Array) -> AutoCastVariable:
        dtype = None if self.autocast else x.dtype.name
        return self.add_weight(x.shape, lambda shape, dtype: frozen(x), dtype, name=name)

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs, in the order of the arguments of a call."""
        return [x.name for x in self.program.inputs]

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs."""
        return list(self.program.outputs)

    def __call__(self, *inputs: Any, training: bool | None = None, **named: Any) -> Any:
        """Return the output, or a dict of several outputs by name.

        Raises
        ------
        TypeError
            An input is missing, has no such name, or has another kind of numbers.
        ValueError
            An input has another number of axes, or another length of an axis that the program fixes.
        """
        values = self._bound(inputs, named)
        is_direct = training is not None or current_holder() is not None
        if is_direct or any(isinstance(x, KerasTensor) for x in values.values()):
            return super().__call__(**values, training=training)
        return self.compute(values)

    def compute(self, values: dict[str, Any]) -> Any:
        """Return the result of a call in inference, for inputs by their names that need no checks."""
        return self._calls()(**values)

    def call(self, **values: Any) -> Any:
        """Return the output, or a dict of several outputs by name, for inputs by their names."""
        run(self._steps, values, self._read)
        outputs = {name: values[name] if name in values else self._read(name) for name in self.program.outputs}
        return outputs if len(outputs) > 1 else outputs[self.program.outputs[0]]

    def _read(self, name: str) -> Any:
        """Return the value of a constant: variables are read in the compute dtype."""
        constant = self._constants[name]
        return constant.read_value() if isinstance(constant, AutoCastVariable) else constant

    # ---- inputs

    def _bound(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of a call by their names, in their order."""
        if len(inputs) == 1 and isinstance(inputs[0], dict) and not named:
            named, inputs = inputs[0], ()
        elif len(inputs) == 1 and isinstance(inputs[0], list | tuple) and len(self.program.inputs) > 1:
            inputs = tuple(inputs[0])
        given = dict(zip(self.input_names, inputs, strict=False)) | named
        known = list(map(repr, self.input_names))
        if len(inputs) > len(known) or given.keys() - self.input_names or len(given) < len(inputs) + len(named):
            received = f"{len(inputs)} by position and {sorted(named)} by name"
            raise TypeError(f"the inputs of '{self.name}' are {', '.join(known)}; received {received}")
        missing = [name for name in self.input_names if name not in given]
        if missing:
            raise TypeError(f"the inputs of '{self.name}' are {', '.join(known)}; {', '.join(missing)} is missing")
        found = {x.name: _checked(x, given[x.name]) for x in self.program.inputs}
        return found if self.autocast else {x.name: _typed(x, found[x.name]) for x in self.program.inputs}

    # ---- files

    def save(self, filepath: str | PathLike[str], overwrite: bool = False, include_optimizer: bool = False) -> None:
        """Write the model as a folder, from which :meth:`from_folder` reads the same bits.

        The folder has the steps as ``program.json`` and the weights as ``model.safetensors``: as the layers hold them,
        with codes of quantized layers. Policies of layers are kept.

        Parameters
        ----------
        filepath : path
            The folder.
        overwrite : bool
            Whether to replace an existing folder. It must contain no other files than those written here.
        include_optimizer : False
            Folders have no optimizer.

        Raises
        ------
        OSError
            A file cannot be written, or the folder exists (:class:`FileExistsError`).
        """
        from mp_core.programs.folders import Content, save  # inference does not load it

        if include_optimizer:
            raise ValueError("`include_optimizer` must be False: the folder of a program has no optimizer")
        content = Content(self.program, self._steps, self.parts, self._constants, self.dtype_policy, self.autocast)
        save(content, filepath, force=overwrite)

    @classmethod
    def from_folder(cls, path: str | PathLike[str], policy: Any = None) -> Self:
        """Open a folder that :meth:`save` has written. Neither torch nor onnx is needed.

        Parameters
        ----------
        path : path
        policy : str or DTypePolicy, optional
            Another policy, if no weight in the folder is quantized. Default: that of the saved model.

        Raises
        ------
        OSError
            A file cannot be read.
        ValueError
            The files are damaged, or not those of a program.
        """
        from mp_core.programs.folders import opened  # a model in memory does not need it

        found = opened(path)
        model = cls.__new__(cls)
        Model.__init__(model, dtype=found.policy, autocast=found.autocast, name=found.program.name or None)
        model._set_steps(found.program, found.steps, found.layers, found.constants)
        if policy is None:
            return model
        model = model.with_policy(policy_of(policy))
        model.autocast = True
        return model


def _checked(wanted: Input, x: Any) -> Any:
    """Return an input as an array; raise if it has other numbers or another shape than the program says."""
    if isinstance(x, KerasTensor):
        return x
    array = x if isinstance(x, np.ndarray) else imported(x, wanted.name)
    if wanted.shape is not None:
        lengths = zip(array.shape, wanted.shape, strict=False)
        if array.ndim != len(wanted.shape) or any(type(n) is int and n != length for length, n in lengths):
            shape = ", ".join("?" if n is None else str(n) for n in wanted.shape)
            raise ValueError(f"input '{wanted.name}' must have shape ({shape}); received {array.shape}")
    if _kind(array.dtype) > _kind(dtype_of(wanted.dtype)):
        raise TypeError(f"input '{wanted.name}' must be of {wanted.dtype}; received {array.dtype}")
    return array


def _typed(wanted: Input, x: Any) -> Any:
    """Return an input in the float type that the program says."""
    dtype = dtype_of(wanted.dtype)
    return ops.cast(x, dtype) if is_float(dtype) and x.dtype != dtype and not isinstance(x, KerasTensor) else x


def _kind(dtype: np.dtype[Any]) -> int:
    """Return 0 for booleans, 1 for integers and 2 for floats: a value of one kind may be one of a later kind."""
    return 0 if dtype == np.bool_ else 2 if is_float(dtype) else 1
