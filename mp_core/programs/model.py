"""The model of a program: its nodes are called one after the other."""

from typing import Any

from mp_core.arrays import Array
from mp_core.files.program import Program
from mp_core.layers import Layer
from mp_core.policies.autocast import AutoCastVariable
from mp_core.programs.building import Step, built, is_weight, run
from mp_core.programs.checks import refusals
from mp_core.programs.expansions import expanded
from mp_core.programs.registry import RefusedError
from mp_core.training.models import Model

__all__ = ["ProgramModel"]


class ProgramModel(Model):
    """A program as a model: call it with arrays, in the order of its inputs or by their names.

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
    """

    _sample_independence = "unknown"

    def __init__(self, program: Program, policy: Any = None, **kwargs: Any) -> None:
        super().__init__(dtype=policy, autocast=policy is not None, **kwargs)
        program = expanded(program)
        refused = refusals(program)
        if refused:
            raise RefusedError(f"{len(refused)} nodes of the program cannot run here:\n" + "\n".join(refused))
        self.program = program
        self.parts: dict[str, Layer] = {}
        self._steps: list[Step] = []
        self._constants: dict[str, Any] = {}
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Create the layers and variables of the program; shapes of inputs do not matter."""
        self._steps, self.parts, constants = built(self.program, self.dtype_policy if self.autocast else None)
        self._constants = {name: self._weight(name, x) if is_weight(x) else x for name, x in constants.items()}

    def _weight(self, name: str, x: Array) -> AutoCastVariable:
        dtype = None if self.autocast else x.dtype.name
        return self.add_weight(x.shape, lambda shape, dtype: x, dtype, name=name)

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs, in the order of the arguments of a call."""
        return [x.name for x in self.program.inputs]

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs."""
        return list(self.program.outputs)

    def call(self, *inputs: Any, **named: Any) -> Any:
        """Return the output, or a dict of several outputs by name."""
        values: dict[str, Any] = dict(zip(self.input_names, inputs, strict=False)) | named

        def constant(name: str) -> Any:
            return read(self._constants[name])

        run(self._steps, values, constant)
        outputs = {name: values[name] if name in values else constant(name) for name in self.program.outputs}
        return outputs if len(outputs) > 1 else outputs[self.program.outputs[0]]


def read(constant: Any) -> Any:
    """Return the value of a constant: variables are read in the compute dtype."""
    return constant.read_value() if isinstance(constant, AutoCastVariable) else constant
