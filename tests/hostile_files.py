"""Mutated weight files: ``python hostile_files.py FOLDER FIRST COUNT`` reads COUNT files of each kind, by number.

Bytes, numbers and instructions of torch.save, GGUF and ONNX files are changed. Each file must raise OSError or
ValueError with its path, or be read completely; anything else is printed and ends the process with status 1. Little
memory is allowed, and no file may remain.
"""

import io
import random
import resource
import struct
import sys
import traceback
import zipfile
from pathlib import Path

import numpy as np

from mp_core.files.checkpoint.gguf_file import open_gguf
from mp_core.files.checkpoint.onnx_file import open_onnx
from mp_core.files.checkpoint.torch_file import open_torch
from mp_core.interop.onnx import load

MEMORY = 256 << 20  # bytes of addresses beyond those of the process at its start
NUMBERS = (0, 1, 2, 3, 7, 31, 127, 128, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)
NAMES = (b"os\nsystem\n", b"builtins\neval\n", b"torch._utils\n_rebuild_tensor_v2\n", b"collections\nOrderedDict\n")
CODES = [
    code.encode("latin1")
    for code in "(.012FIJKLMNPQRSTUVXabcdeghijlopqrstu}]\x80\x81\x82\x85\x86\x87\x88\x89\x8a\x8b\x8c\x93\x94"
]


def changed(content, draw):
    """Return bytes with a few of them, or a number in them, changed, or pieces left out, doubled or moved."""
    content = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        place = draw.randrange(len(content) or 1)
        kind = draw.randrange(6)
        if kind == 0:
            content[place : place + 1] = bytes([draw.randrange(256)])
        elif kind == 1:
            width = draw.choice((1, 2, 4, 8))
            content[place : place + width] = struct.pack("<Q", draw.choice(NUMBERS))[:width]
        elif kind == 2:
            del content[place : place + draw.randint(1, 16)]
        elif kind == 3:
            piece = content[place : place + draw.randint(1, 64)]
            at = draw.randrange(len(content) or 1)
            content[at:at] = piece * draw.choice((1, 2, 100))
        elif kind == 4:
            content[place:place] = b"c" + draw.choice(NAMES) if draw.random() < 0.5 else draw.choice(CODES)
        else:
            del content[place:]
    return bytes(content)


def pickled_archive(pickled, members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        for name, content in members.items():
            archive.writestr(f"a/data/{name}", content)
    return stream.getvalue()


def torch_parts(tensors):
    """Return the pickle of float32 tensors as torch.save writes it, and the members of its archive; without torch."""

    def string(value):
        return b"X" + struct.pack("<i", len(value)) + value.encode()

    def numbers(values):
        return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"

    pickled, members = b"\x80\x02}q\x00(", {}
    for key, (name, tensor) in enumerate(tensors.items()):
        pickled += string(name) + b"ctorch._utils\n_rebuild_tensor_v2\n((" + string("storage")
        pickled += b"ctorch\nFloatStorage\n" + string(str(key)) + string("cpu") + b"J" + struct.pack("<i", tensor.size)
        strides = [stride // tensor.itemsize for stride in tensor.strides]
        pickled += b"tQK\x00" + numbers(tensor.shape) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)RtR"
        members[str(key)] = tensor.tobytes()
    return pickled + b"u.", members


def torch_base():
    """Return a pickle of three matrices and its members."""
    return torch_parts({f"weight{number}": np.arange(6, dtype="<f4").reshape(2, 3) for number in range(3)})


def text(value):
    return struct.pack("<Q", len(value)) + value


def gguf_base():
    """Return a file of a few values and tensors; without the package."""
    kinds = ((0, 6, 4), (8, 64, 68), (14, 256, 210), (2, 32, 18))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(kinds), 4)
    head += text(b"general.architecture") + struct.pack("<I", 8) + text(b"qwen3")
    head += text(b"general.alignment") + struct.pack("<II", 4, 32)
    head += text(b"words") + struct.pack("<IIQ", 9, 8, 3) + text(b"a") + text(b"bc") + text(b"")
    head += text(b"numbers") + struct.pack("<IIQ", 9, 6, 5) + bytes(20)
    body = b""
    for number, (kind, count, size) in enumerate(kinds):
        head += text(b"blk.%d.weight" % number) + struct.pack("<IQQIQ", 2, count, 2, kind, len(body))
        body += bytes(range(256))[:1] * (2 * size if kind else 2 * count * size)
        body += bytes(-len(body) % 32)
    return head + bytes(-len(head) % 32) + body


def field(number, content):
    """Return a field of a message: its number, its length, its bytes."""
    assert number < 16
    assert len(content) < 2**14
    length = len(content)
    return bytes([number << 3 | 2, *([length] if length < 128 else [length & 127 | 128, length >> 7])]) + content


def onnx_base():
    """Return a file of three initializers and four nodes; without the package."""
    numbers = np.arange(6, dtype="<f4").tobytes()
    first = b"\x08\x02\x08\x03\x10\x01" + field(8, b"onnx::MatMul_1") + field(9, numbers)
    second = b"\x08\x06\x10\x01" + field(8, b"a.bias") + field(4, numbers)
    product = (
        field(1, b"x") + field(1, b"onnx::MatMul_1") + field(2, b"y") + field(3, b"/a/MatMul") + field(4, b"MatMul")
    )
    scopes = field(9, field(1, b"pkg.torch.onnx.name_scopes") + field(2, b"['', 'c', 'linear']"))
    transposed = field(5, field(1, b"transB") + b"\x18\x01")
    linear = field(1, b"y") + field(1, b"val_1") + field(2, b"z") + field(4, b"Gemm") + transposed + scopes
    turned = field(1, b"val_2") + field(2, b"val_1") + field(4, b"Transpose")
    third = b"\x08\x02\x08\x03\x10\x01" + field(8, b"val_2") + field(9, numbers)
    same = field(1, b"a.bias") + field(2, b"b.bias") + field(4, b"Identity")
    nodes = b"".join(field(1, node) for node in (product, same, turned, linear))
    ends = field(11, field(1, b"x") + field(2, field(1, b"\x08\x01"))) + field(12, field(1, b"z"))
    return b"\x08\x08" + field(7, nodes + ends + field(5, first) + field(5, second) + field(5, third))


def read_torch(path):
    for tensor in open_torch(path).values():
        tensor.astype(np.float64).sum()


def read_gguf(path):
    for tensor in open_gguf(path)[0].values():
        tensor.codes()
        tensor.numbers().astype(np.float32).sum()


def read_onnx(path):
    for tensor in open_onnx(path).values():
        tensor.astype(np.float64).sum()


def read_graph(path):
    load(path)


def main(folder, first, count):
    pickled, members = torch_base()
    bases = {
        "torch": (read_torch, lambda draw: pickled_archive(changed(pickled, draw), members)),
        "archive": (read_torch, lambda draw: changed(pickled_archive(pickled, members), draw)),
        "gguf": (read_gguf, lambda draw: changed(gguf_base(), draw)),
        "onnx": (read_onnx, lambda draw: changed(onnx_base(), draw)),
        "program": (read_graph, lambda draw: changed(onnx_base(), draw)),
    }
    unchanged = {"torch": pickled_archive(pickled, members), "gguf": gguf_base(), "onnx": onnx_base()}
    unchanged |= {"archive": unchanged["torch"], "program": unchanged["onnx"]}
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    before, failed, refused = set(Path(folder).iterdir()), 0, dict.fromkeys(bases, 0)
    np.seterr(all="ignore")
    for name, (read, make) in bases.items():
        path = Path(folder, f"{name}.file")
        path.write_bytes(unchanged[name])
        read(path)
        for number in range(first, first + count):
            path.write_bytes(make(random.Random(f"{name} {number}")))
            try:
                read(path)
            except (OSError, ValueError) as error:
                refused[name] += 1
                if str(path) not in str(error):
                    print(f"{name} {number}: {error!r} without its path", flush=True)
                    failed += 1
            except BaseException:
                print(f"{name} {number}:", traceback.format_exc(), flush=True)
                failed += 1
        path.unlink()
    assert set(Path(folder).iterdir()) == before
    print(", ".join(f"{n} of {count} {name} refused" for name, n in refused.items()) + f"; {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
