"""mp_core beside the best peers, all in one interleaved run: `make bench-peers`.

A subject is a module that defines `add_options`, `cells` (it yields the rows to measure, see interleaved.py),
`HEADING`, `line` (one measured row as text) and `summary`.
"""

import argparse
import json
import os
from importlib.metadata import version
from pathlib import Path

import peers_casts
import peers_dynamic
import peers_minilm
import peers_products
import peers_quantize
import torch
from interleaved import compare

import mp_core as mp

SUBJECTS = {
    "casts": peers_casts,
    "products": peers_products,
    "quantize": peers_quantize,
    "dynamic": peers_dynamic,
    "minilm": peers_minilm,
}
PACKAGES = ("mp_core", "numpy", "ml_dtypes", "torch", "numkong", "onnxruntime", "openvino")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(metavar="SUBJECT", required=True)
    for name, subject in SUBJECTS.items():
        command = commands.add_parser(name, help=subject.__doc__.splitlines()[0])
        subject.add_options(command)
        command.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
        command.set_defaults(subject=subject)
    options = parser.parse_args()
    mp.config.set_num_threads(1)
    torch.set_num_threads(1)
    about = {name: version(name) for name in PACKAGES}
    about |= {"isa": mp.config.isa(), "load average": f"{os.getloadavg()[0]:.2f}"}
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(options.subject.HEADING)
    rows = []
    with torch.inference_mode():
        for cell in options.subject.cells(options):
            rows.append(compare(cell))
            print(options.subject.line(rows[-1]), flush=True)
    print(options.subject.summary(rows))
    if options.json:
        options.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
