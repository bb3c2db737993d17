"""Print what each part of a wheel costs: `.ci/wheel_parts.py WHEEL BUILD`, BUILD being the folder of its object files.

Sizes are in kB (10^3 bytes), compressed by zlib: members of the wheel one by one; the library by object file, code and
constants together. The row "the rest of the library" is the remainder of its member, "the rest" that of the wheel.
"""

import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections import Counter
from pathlib import Path

KERNELS = re.compile(r"libmp_(?:small_)?kernels_(\w+)\.a\.p")


def contents(path: Path, scratch: Path) -> bytes:
    """Return the code and the constants of an object file, section after section."""
    found = b""
    for section in (".text", ".rodata"):
        subprocess.run(["objcopy", "-O", "binary", "-j", section, path, scratch], check=True)
        found += scratch.read_bytes()
    return found


def library_parts(build: Path) -> Counter[str]:
    """Return the sizes of the kernels of each set: products, and all others."""
    sizes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(build.glob("**/libmp_*kernels_*.a.p/*.o")):
            isa = KERNELS.fullmatch(path.parent.name)
            family = "products" if path.name.endswith("products.c.o") else "other kernels"
            if isa is not None:
                sizes[f"`{isa[1]}`, {family}"] += len(zlib.compress(contents(path, Path(folder) / "binary")))
    return sizes


def part_of(member: str) -> str:
    """Return the name of the row that counts a member of the wheel."""
    if "libmp_core" in member:
        return "library"
    if member.endswith((".so", ".pyd")):
        return "Cython modules"
    if member.endswith(".py"):
        folder = member.split("/")[1]
        return f"Python, {folder}" if "." not in folder else "Python, other files"
    return "vectors" if "/vectors/" in member else "the rest"


def main(wheel: Path, build: Path) -> None:
    """Print the table, largest parts first, and the whole."""
    sizes: Counter[str] = Counter()
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            sizes[part_of(info.filename)] += info.compress_size
    kernels = library_parts(build)
    sizes["the rest of the library"] = sizes.pop("library") - kernels.total()
    sizes += kernels
    whole = wheel.stat().st_size
    sizes["the rest"] += whole - sizes.total()
    print("| part | kB |", "|---|---|", sep="\n")
    for part, size in sizes.most_common():
        print(f"| {part} | {size / 1e3:.0f} |")
    print(f"| all | {whole / 1e3:.0f} |")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
