"""Check the C library without compiling it: warnings of compilers, findings of clang's analyzer and cppcheck.

The kernels are not checked: their vectors convert on purpose.
"""

import shutil
import subprocess
import sys
from pathlib import Path

CORE = Path(__file__).resolve().parents[1] / "mp_core" / "core"


def _files_without(*others):
    """Return all C files except those of other systems and CPUs, which their names end with."""
    files = (*CORE.glob("library/*.c"), *CORE.glob("kernels/*.c"))
    return [str(path) for path in files if not path.stem.endswith(("_macos", "_aarch64", "_other", *others))]


FILES, WINDOWS = _files_without("_windows"), _files_without("_posix", "_linux")
INCLUDES = [f"-I{CORE / name}" for name in (".", "kernels", "include", "..")]
DEFINES = ["-DMP_CORE_EXPORTS", '-DMP_CORE_VERSION="0"', '-DMP_LEFT_OUT=""']
# Sizes are compared, as double, with amounts of work in enums: clang warns about that.
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror", "-Wno-enum-float-conversion"]
HEADER = ["-x", "c++", "-Wpedantic", "-Wold-style-cast", str(CORE / "include/mp_core.h")]
ANALYSIS = ["--analyze", "--analyzer-output", "text", "-Xclang", "-analyzer-werror"]
# Suppressed: casts of bytes to their type, `(void)a, (void)b;`, and arrays in a struct without initialized elements.
CHECKS = ["--quiet", "--std=c11", "--enable=warning,portability,performance", "--error-exitcode=1", "--inline-suppr",
          "--suppress=missingIncludeSystem", "--suppress=invalidPointerCast", "--suppress=constStatement",
          "--suppress=uninitvar",
          "-D__linux__", "-D__x86_64__", "-D__GNUC__=12"]  # fmt: skip
COMPILED = ["-std=c17", "-fsyntax-only", *WARNINGS, *DEFINES, *INCLUDES]
COMMANDS = {
    "gcc": [[*COMPILED, *FILES]],
    "x86_64-w64-mingw32-gcc": [[*COMPILED, *WINDOWS]],  # here long has 32 bits
    "clang": [[*COMPILED, *FILES], ["-std=c17", *ANALYSIS, *DEFINES, *INCLUDES, *FILES]],
    "g++": [["-fsyntax-only", *WARNINGS, *HEADER]],
    "cppcheck": [[*CHECKS, *DEFINES, *INCLUDES, *FILES]],
}
NAMES = {"clang": ["clang", *(f"clang-{number}" for number in range(22, 11, -1))]}  # Debian's names have a version


def main() -> int:
    """Run the installed tools, list the missing ones, and return 1 if a tool found something."""
    failed = 0
    for tool, commands in COMMANDS.items():
        path = next(filter(None, map(shutil.which, NAMES.get(tool, [tool]))), None)
        print(f"{tool}: {path or 'not here'}", flush=True)
        for arguments in commands if path else ():
            failed |= subprocess.run([path, *arguments], check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
