"""Count the bytes that a call allocates: with tests/c/allocations.c if the process was started with it, or tracemalloc.

The first counts allocations of every library, and costs a small fraction of the time of tracemalloc.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

__all__ = ["counting", "peak"]

SOURCE = Path(__file__).parents[1] / "c/allocations.c"


def counting(folder):
    """Return the environment of a process that counts its allocations, if there is a C compiler for the GNU library."""
    compiler, library = shutil.which("cc"), folder / "allocations.so"
    if sys.platform != "linux" or not compiler or "LD_PRELOAD" in os.environ:
        return dict(os.environ)
    command = [compiler, "-shared", "-fPIC", "-O2", "-fno-builtin", "-Wl,-z,defs", "-o", library, SOURCE]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return dict(os.environ)
    # A traceback of Rust, which tokenizers prints of a damaged file, would read the symbols of Python: 30 MB.
    return os.environ | {"LD_PRELOAD": str(library), "PYTHONMALLOC": "malloc", "RUST_BACKTRACE": "0"}


@contextlib.contextmanager
def peak():
    """Yield a function that returns the most bytes that the block has allocated at a time."""
    library = ctypes.CDLL(None)
    if hasattr(library, "most_allocated"):
        library.most_allocated.restype = ctypes.c_long
        library.watch_allocations()
        yield library.most_allocated
        return
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
