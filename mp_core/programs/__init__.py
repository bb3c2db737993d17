"""Programs from outside, as models: ONNX files and modules that torch exports.

It imports training and the rooms below it; models and the rooms above them may import it.

A program (:class:`mp_core.files.program.Program`) is a list of nodes. :class:`ProgramModel` calls for each node the
function of its operator (``onnx/`` and ``aten/``), which calls operations of :mod:`mp_core.ops`. Plans record these
calls, as those of any layer. Constant matrices become layers, so that policies and quantization apply to them.
"""

from mp_core.programs.model import ProgramModel
from mp_core.programs.registry import OPERATORS, RefusedError, operator

__all__ = ["OPERATORS", "ProgramModel", "RefusedError", "operator"]
