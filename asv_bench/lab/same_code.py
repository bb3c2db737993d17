"""List the kernels whose machine code differs between two builds: `python same_code.py OLD NEW`, two build folders.

A function with the same instructions should take the same time on any CPU, also one that you do not have, apart from
the effects of its address. The constants that it reads and the functions that it calls are not compared. The script
compares the disassembly of each object file of kernels, without the addresses of jumps, calls and constants, which the
linker chooses. A function that only moved counts as equal.
"""

import argparse
import re
import subprocess
from pathlib import Path

FUNCTION = re.compile(r"^[0-9a-f]+ <([^>]+)>:\n((?:.+\n)+)", re.M)
ADDRESSES = (
    (re.compile(r"^\s*[0-9a-f]+:\s*", re.M), ""),  # of the instruction itself
    (re.compile(r"\b((?:j\w+|call|b(?:\.\w+)?|bl|cbn?z|tbn?z)\s.*?)(?:0x)?[0-9a-f]+ <[^>]*>"), r"\1TARGET"),
    (re.compile(r"-?0x[0-9a-f]+\(%rip\).*| *# [0-9a-f]+ <.*| *// .*"), " CONSTANT"),
)


def functions(path: Path) -> dict[str, str]:
    """Return the instructions of every function of an object file, by name."""
    command = ["objdump", "-d", "--no-show-raw-insn", path]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(match.groups() for match in FUNCTION.finditer(text))
    for pattern, instead in ADDRESSES:
        found = {name: pattern.sub(instead, body) for name, body in found.items()}
    return found


def objects(build: Path) -> dict[str, Path]:
    """Return the object files of kernels in a build folder, by instruction set and family."""
    paths = sorted(build.glob("**/libmp_kernels_*.a.p/*.o"))
    return {f"{re.search(r'kernels_(.+).a.p', str(path))[1]} {path.name.split('_')[-1][:-4]}": path for path in paths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    options = parser.parse_args()
    old, new = objects(options.old), objects(options.new)
    for name in sorted(old.keys() & new.keys()):
        before, after = functions(old[name]), functions(new[name])
        other = sorted(key for key in before.keys() & after.keys() if before[key] != after[key])
        only = sorted(before.keys() ^ after.keys())
        print(f"{name}: {len(before)} functions; other code: {', '.join(other) or 'none'}", end="")
        print(f"; in one build only: {', '.join(only)}" if only else "")


if __name__ == "__main__":
    main()
