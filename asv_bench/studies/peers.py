"""Compare mp_core with the best peers in one interleaved run: `make bench-peers`.

A subject is a module that defines `add_options`, `cells` (it yields the rows to measure, see interleaved.py),
`HEADING`, `unit` (of the rates, by type), `line` (one measured row as text) and `summary`.
"""

import argparse
import os
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "lab"))  # has the shapes

import peers_casts
import peers_decoder
import peers_dynamic
import peers_gradients
import peers_graphs
import peers_minilm
import peers_policies
import peers_products
import peers_quantize
import peers_training
import torch
from interleaved import compare, records
from threadpoolctl import threadpool_info

import mp_core as mp
from mp_core.benchmark import Report

SUBJECTS = {
    "casts": peers_casts,
    "products": peers_products,
    "quantize": peers_quantize,
    "dynamic": peers_dynamic,
    "minilm": peers_minilm,
    "policies": peers_policies,
    "gradients": peers_gradients,
    "graphs": peers_graphs,
    "training": peers_training,
    "decoder": peers_decoder,
}
FORCED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # some environments set these for an older OpenBLAS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(metavar="SUBJECT", required=True, dest="name")
    for name, subject in SUBJECTS.items():
        command = commands.add_parser(name, help=subject.__doc__.splitlines()[0])
        subject.add_options(command)
        command.add_argument("--json", type=Path, metavar="FILE", help="write a report, and update it after every row")
        command.add_argument("--cpu", metavar="NAME", help="of this machine, for the report, if the system hides it")
        command.set_defaults(subject=subject)
    options = parser.parse_args()
    if forced := [name for name in FORCED if name in os.environ]:
        parser.error(f"{' and '.join(forced)} may slow NumPy: unset what says for which CPU and cache it computes")
    mp.config.set_num_threads(1)
    torch.set_num_threads(1)
    report = Report.here(f"peers.py {' '.join(sys.argv[1:])}", ("NumPy", "torch", "NumKong", "ORT"), options.cpu)
    report.versions["ml_dtypes"] = version("ml_dtypes")  # it does the casts of NumPy
    for blas in threadpool_info():
        if blas["internal_api"] == "openblas" and "numpy" in blas["filepath"]:  # others have one of their own
            report.versions["OpenBLAS"] = f"{blas['version']} {blas['architecture']}"
    print(", ".join(f"{name} {value}" for name, value in report.versions.items()))
    print(f"{report.cpu}, {report.isa}, load average {os.getloadavg()[0]:.2f}")
    print(options.subject.HEADING)
    rows = []
    with torch.inference_mode():
        for cell in options.subject.cells(options):
            rows.append(compare(cell))
            print(options.subject.line(rows[-1]), flush=True)
            for record in records(rows[-1], options.name, options.subject.unit(rows[-1]["dtype"])):
                report.add(record)
            if options.json:
                report.save(options.json)
    print(options.subject.summary(rows))


if __name__ == "__main__":
    main()
