"""Measure the time from the start of a process to its first result, and sizes on disk, beside onnxruntime.

    python asv_bench/studies/first_result.py [--rounds 7]

A ResNet-50 and a text encoder of 6 layers and 384 columns have random weights. They are written as a folder of mp_core
and as an ONNX file; each process opens one of them and computes one image or one text of 16 tokens. Processes of both
libraries run in turn. Neither imports torch.
"""

import argparse
import importlib.util
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import transformers

from mp_core.interop.torch import from_exported

OURS = """
import sys
sys.modules.update(dict.fromkeys(("torch", "onnx")))  # importing one of them fails
import numpy as np
from mp_core.programs import ProgramModel
print(ProgramModel.from_folder(sys.argv[1])(dict(np.load(sys.argv[2]))).popitem()[1].shape)
"""
THEIRS = """
import sys
import numpy as np
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1] + ".onnx", providers=["CPUExecutionProvider"])
print(session.run(None, dict(np.load(sys.argv[2])))[-1].shape)
"""
IMPORTS = {"mp_core": "from mp_core.programs import ProgramModel", "onnxruntime": "import onnxruntime"}


def networks():
    """Return name -> (module, inputs)."""
    torch.manual_seed(0)
    text = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=30522
    )
    ids = torch.randint(0, 30522, (1, 16))
    return {
        "ResNet-50": (
            transformers.ResNetModel(transformers.ResNetConfig()),
            {"pixel_values": torch.randn(1, 3, 224, 224)},
        ),
        "text encoder": (
            transformers.BertModel(text),
            {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        ),
    }


class Outputs(torch.nn.Module):
    """A module of transformers that returns a tuple, as exporters need it."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args):
        return self.module(*args, return_dict=False)


def write(folder, name, module, inputs):
    """Write a network in both formats, and its inputs."""
    module, path = module.eval(), str(folder / name)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from_exported(torch.export.export(module, (), inputs)).save(path)
        options = {"input_names": [*inputs], "opset_version": 17, "dynamo": False}
        torch.onnx.export(Outputs(module), tuple(inputs.values()), path + ".onnx", **options)
    np.savez(path + ".npz", **{key: x.numpy() for key, x in inputs.items()})
    return path


def seconds(code, *arguments):
    """Return how long a process takes, and how long it computes on all CPUs together."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    computing = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, computing


def megabytes(path):
    """Return the size of a file, or of the files of a folder, without links and what Python compiles."""
    files = [path] if path.is_file() else [x for x in path.rglob("*") if x.is_file() and not x.is_symlink()]
    return sum(x.stat().st_size for x in files if "__pycache__" not in x.parts) / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    for name in IMPORTS:
        found = importlib.util.find_spec(name)
        print(f"package {name}: {megabytes(Path(found.origin).parent):.1f} MB on disk, without its dependencies")
    with TemporaryDirectory() as folder:
        cases = {("import only", name): (code, ()) for name, code in IMPORTS.items()}
        for name, (module, inputs) in networks().items():
            path = write(Path(folder), name, module, inputs)
            cases[name, "mp_core"] = OURS, (path, path + ".npz")
            cases[name, "onnxruntime"] = THEIRS, (path, path + ".npz")
            print(f"{name}: folder {megabytes(Path(path)):.1f} MB, file {megabytes(Path(path + '.onnx')):.1f} MB")
        times = {case: seconds(code, *given) for case, (code, given) in cases.items()}
        for _ in range(rounds):
            for case, (code, given) in cases.items():
                times[case] = tuple(map(min, times[case], seconds(code, *given)))
    for (name, library), (best, computing) in times.items():
        print(f"{name:14} {library:12} {best:.2f} s, of the CPUs {computing:.2f} s")


if __name__ == "__main__":
    main()
