"""The cells that the history tracks, and other figures (wheel, imports, lines, shares).

Times are CPU time, not wall time: on one thread both are the same, unless other programs share the core.
"""

import io
import math
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from timeit import Timer

ROOT = Path(__file__).parents[2]

# The cells of builds.py that the history measures for every commit, and that a short comparison times.
CELLS = (
    *("casts 4096 float32:bfloat16", "casts 1048576 float32:bfloat16", "casts 1048576 float8_e4m3fn:float32"),
    *("quantize 1024x1024 axis=1", "quantize 1024x1024 axis=1, group", "quantize 1024x1024 axis=1, back"),
    *("products float32 512x512x512 packed", "products float16 64x768x768 packed"),
    *("products bfloat16 128x768x3072 packed", "products int8 128x768x3072 packed"),
    *("products float8_e4m3fn 8x1024x1024 packed", "products bfloat16@int8 8x1024x1024 packed"),
    *("products bfloat16 1x4096x4096 packed", "products float32 16x4096x4096 kn", "products float32 1x64x64 packed"),
    *("dynamic 64x768x768", "rows 512x384 softmax bfloat16", "rows 512x384 layer_norm float32"),
)
# Cell -> its limit: the multiplications and additions of a type in registers, or a plain copy.
LIMITED = {
    "products float32 512x512x512 packed": "float32",
    "products bfloat16 128x768x3072 packed": "bfloat16",
    "products int8 128x768x3072 packed": "int8",
    "casts 1048576 float32:bfloat16": "copy",
}
LANGUAGES = {
    "Python": ("mp_core/*.py", "mp_core/*.pyi"),
    "Cython": ("mp_core/*.pyx", "mp_core/*.pxd"),
    "C": ("mp_core/*.c", "mp_core/*.h", "mp_core/*.def"),
    "tests": ("tests/*.py", "tests/*.c"),
}
SAMPLE = 4e-4  # seconds for a group of calls


def fastest(call: Callable[[], object], rounds: int = 101) -> float:
    """Return the CPU seconds of a call in the fastest round, which other programs disturbed least."""
    timer = Timer(call, timer=time.process_time)
    timer.timeit(1)
    number = math.ceil(SAMPLE / max(min(timer.repeat(3, 1)), 1e-7))
    return min(timer.repeat(rounds, number)) / number


def share(call: Callable[[], object], cell: str) -> float:
    """Return the share of its limit that a cell reaches, each in its fastest round."""
    from mp_core.benchmark import Limit, measure

    subject, what, rest, *_ = cell.split()
    if subject == "products":
        limit, work = Limit.multiply(LIMITED[cell]), 2 * math.prod(map(int, rest.split("x")))
    else:
        work = int(what) * 6  # bytes: float32 on one side, bfloat16 on the other
        limit = Limit.copy(work)
    timers = {"ours": Timer(call), "limit": limit.timer}
    for timer in timers.values():
        timer.timer = time.process_time
    taken = measure(timers, budget=0.5)
    return work / limit.work * min(taken["limit"]) / min(taken["ours"])


def wheel_bytes() -> int:
    """Return the size of the installed files of mp_core, deflated as they are in a wheel."""
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in distribution("mp_core").files:
            if file.suffix != ".pyc" and file.parts[0].startswith("mp_core"):
                archive.write(file.locate(), str(file))
    return wheel.tell()


def import_seconds(name: str, times: int = 9) -> float:
    """Return the CPU seconds of an import in a fresh interpreter with NumPy, the fewest of some runs."""
    code = f"import numpy, time; start = time.process_time(); import {name}; print(time.process_time() - start)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(times))


def lines(commit: str, language: str) -> int:
    """Return the number of lines of a commit in a language."""
    command = ["git", "-C", str(ROOT), "grep", "--count", "", commit, "--", *LANGUAGES[language]]
    return sum(map(int, re.findall(r":(\d+)$", subprocess.check_output(command, text=True), re.MULTILINE)))


def cpu() -> str:
    """Return the name, family and model number of this CPU, as Linux reports them."""
    text = Path("/proc/cpuinfo").read_text()
    name, family, model = (
        re.search(rf"^{key}\s*: (.*)$", text, re.MULTILINE)[1] for key in ("model name", "cpu family", "model")
    )
    return f"{name} (family {family}, model {model})"
