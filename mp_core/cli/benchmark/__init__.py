"""What operations cost on this machine at this moment, beside NumPy and the peers that are there, and what bounds them.

Contenders take turns, so that noise of the machine hits all alike. Peers that can be imported (PyTorch, NumKong,
onnxruntime with onnx) take part; mp_core needs none of them.
"""

from mp_core.cli.benchmark.machine import Limit, limits, unit_of
from mp_core.cli.benchmark.operations import OPERATIONS, onnxruntime_product, run
from mp_core.cli.benchmark.plots import check_plots, plot
from mp_core.cli.benchmark.records import Record, Report, library, records_of
from mp_core.cli.benchmark.timing import measure, table

__all__ = [
    "OPERATIONS", "Limit", "Record", "Report", "check_plots", "library", "limits", "measure", "onnxruntime_product",
    "plot", "records_of", "run", "table", "unit_of",
]  # fmt: skip
