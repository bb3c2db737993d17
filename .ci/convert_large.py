"""Convert a file that is larger than the memory to int8 and report the peak of resident memory.

python .ci/convert_large.py FOLDER [GB]    needs a file system with sparse files, and a quarter of GB of free space
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

LIMIT = 2**30


def write_sparse(path: Path, gigabytes: float) -> int:
    """Write a sparse float32 model: a matrix of three rows with most of the bytes, and matrices of 64 MiB."""
    columns = int(gigabytes * 2**30 / 4 * 0.6 / 3)
    shapes = {"wide.weight": [3, columns]}
    shapes |= {f"layer.{i}.weight": [4096, 4096] for i in range(int(gigabytes * 2**30 * 0.4 / 2**26))}
    shapes |= {f"layer.{i}.bias": [4096] for i in range(len(shapes) - 1)}
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    content = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        file.truncate(8 + len(content) + offset)
    return 8 + len(content) + offset


def main() -> None:
    """Write the file, convert it, print the result, and remove both."""
    folder, gigabytes = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    source, target = folder / "large.safetensors", folder / "large-int8.safetensors"
    try:
        size = write_sparse(source, gigabytes)
        start = time.monotonic()
        command = [sys.executable, "-m", "mp_core", "convert", source, "-o", target, "--policy", "int8", "--quiet"]
        process = subprocess.Popen(command)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        peak = usage.ru_maxrss * 1024
        code = os.waitstatus_to_exitcode(status)
        print(f"exit code {code}, {size / 2**30:.1f} GiB in {seconds:.0f} s, peak RSS {peak / 2**20:.0f} MiB")
        sys.exit(code or peak >= LIMIT)
    finally:
        source.unlink(missing_ok=True)
        target.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
