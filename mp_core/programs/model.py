"""The model of a program: its nodes are called one after the other."""

from typing import Any

from mp_core.arrays import Array
from mp_core.files.program import Program, map_values
from mp_core.layers import Layer
from mp_core.policies.autocast import AutoCastVariable
from mp_core.programs.building import Step, built, is_weight
from mp_core.programs.registry import RefusedError, refusals
from mp_core.training.models import Model

__all__ = ["ProgramModel"]


class ProgramModel(Model):
    """A program as a model: call it with arrays, in the order of its inputs or by their names.

    Parameters
    ----------
    program : Program
    policy : str or DTypePolicy, optional
        The policy of the model. Floats of the program are computed in its compute dtype.
    **kwargs
        Arguments of :class:`~mp_core.layers.Layer`.

    Raises
    ------
    RefusedError
        The program has nodes that mp_core does not run. The message lists all of them.
    """

    _sample_independence = "unknown"

    def __init__(self, program: Program, policy: Any = None, **kwargs: Any) -> None:
        super().__init__(dtype=policy, **kwargs)
        refused = refusals(program.nodes)
        if refused:
            raise RefusedError(f"{len(refused)} nodes of the program cannot run here:\n" + "\n".join(refused))
        self.program = program
        self.parts: dict[str, Layer] = {}
        self._steps: list[Step] = []
        self._constants: dict[str, Any] = {}
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Create the layers and variables of the program; shapes of inputs do not matter."""
        self._steps, self.parts, constants = built(self.program, self.dtype_policy)
        self._constants = {name: self._weight(name, x) if is_weight(x) else x for name, x in constants.items()}

    def _weight(self, name: str, x: Array) -> AutoCastVariable:
        return self.add_weight(x.shape, lambda shape, dtype: x, name=name)

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

        def value(name: str) -> Any:
            return values[name] if name in values else read(self._constants[name])

        for step in self._steps:
            arguments, options = map_values(value, (step.arguments, step.options))
            found = step.function(*arguments, **options)
            values.update(zip(step.outputs, found if len(step.outputs) > 1 else (found,), strict=False))
        outputs = {name: value(name) for name in self.program.outputs}
        return outputs if len(outputs) > 1 else outputs[self.program.outputs[0]]


def read(constant: Any) -> Any:
    """Return the value of a constant: variables are read in the compute dtype."""
    return constant.read_value() if isinstance(constant, AutoCastVariable) else constant
