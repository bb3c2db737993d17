"""Keep files small enough to read; in mp_core/core also functions, structs and lists of parameters."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = ROOT / "mp_core" / "core"
SUFFIXES = {".c", ".h", ".inc", ".def", ".pyx", ".pxd", ".pxi"}
PYTHON = (".ci", "asv_bench/benchmarks", "asv_bench/lab", "asv_bench/studies", "docs", "mp_core", "tests")
FILE_LINES, PYTHON_LINES, FUNCTION_LINES, FIELDS, PARAMETERS = 450, 600, 60, 20, 8

# A C function: a signature that begins a line and ends in `{`, a body that ends with `}` at the start of a line.
C_FUNCTION = re.compile(
    r"^(?:static|MP_(?:IN|OUT)LINED?|[a-z]\w+)[^;={}#]*?\b(\w+)\(([^;{}]*)\) \{\n(.*?)^\}", re.M | re.S
)
C_STRUCT = re.compile(r"^(?:typedef )?struct[^;{}()]*\{\n(.*?)^\}\s*(\w+)", re.M | re.S)
C_COMMENT = re.compile(r"/\*.*?\*/", re.S)
CY_DEF = re.compile(r"^(\s*)(?:cdef|cpdef|def)\s[^=\n]*?\b(\w+)\(")
CY_STRUCT = re.compile(r"^\s*cdef struct (\w+):[^\n]*\n((?:[ ]+[^\n]*\n|\n)+)", re.M)


def parameters(text: str) -> int:
    """Return the number of parameters in a list: count commas outside brackets."""
    depth = count = 0
    for char in C_COMMENT.sub("", text):
        depth += (char in "([{") - (char in ")]}")
        count += char == "," and depth == 0
    return 0 if text.strip() in ("", "void") else count + 1


def in_c(text: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield (name, kind, found, allowed) for each limit that a C file exceeds."""
    for found in C_FUNCTION.finditer(text):
        name, given, body = found.groups()
        yield name, "lines", body.count("\n") + given.count("\n") + 2, FUNCTION_LINES
        yield name, "parameters", parameters(given), PARAMETERS
    for found in C_STRUCT.finditer(text):
        body = C_COMMENT.sub("", found[1])
        inner = re.sub(r"\{.*?\}", "", re.sub(r"\([^()]*\)", "", re.sub(r"\(\*(\w+)[^)]*\)", r"\1", body)), flags=re.S)
        yield found[2], "fields", sum(1 + line.count(",") for line in inner.split(";") if line.strip()), FIELDS


def in_cython(text: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield the same for a Cython file; docstrings do not count for the length of a function."""
    lines = re.sub(r'"""(?:[^"]|"(?!""))*"""', '""', text).split("\n")
    for start, line in enumerate(lines):
        found = CY_DEF.match(line)
        if not found:
            continue
        indent, name, end = len(found[1]), found[2], start
        head = line[found.end() :]
        while head.count("(") + 1 != head.count(")") and end + 1 < len(lines):
            end += 1
            head += lines[end]
        if not line.rstrip().endswith(":") and not lines[end].rstrip().endswith(":"):
            continue  # a declaration
        yield name, "parameters", parameters(head[: head.rindex(")")].replace("*,", "")), PARAMETERS
        last = end
        for at in range(end + 1, len(lines)):
            if lines[at].strip() and len(lines[at]) - len(lines[at].lstrip()) <= indent:
                break
            last = at if lines[at].strip() else last
        yield name, "lines", last - start + 1, FUNCTION_LINES
    for found in CY_STRUCT.finditer(text):
        fields = [line.split("#")[0] for line in found[2].split("\n")]
        yield found[1], "fields", sum(1 + line.count(",") for line in fields if line.strip()), FIELDS


def in_core() -> Iterator[str]:
    """Yield a line for each limit that a file of the core exceeds."""
    public = CORE / "include"  # a struct there is an argument list of the C API
    for path in sorted(path for path in CORE.rglob("*") if path.suffix in SUFFIXES and path.parent != public):
        text = path.read_text()
        name = path.relative_to(ROOT)
        if text.count("\n") > FILE_LINES:
            yield f"{name}: {text.count(chr(10))} lines, allowed are {FILE_LINES}"
        parts = in_cython(text) if path.suffix.startswith(".p") else in_c(text)
        for part, what, found, allowed in parts:
            if found > allowed:
                yield f"{name}: {part} has {found} {what}, allowed are {allowed}"


def in_python() -> Iterator[str]:
    """Yield a line for every Python file that is too long."""
    for path in sorted(path for folder in PYTHON for path in (ROOT / folder).rglob("*.py")):
        lines = path.read_text().count("\n")
        if lines > PYTHON_LINES:
            yield f"{path.relative_to(ROOT)}: {lines} lines, allowed are {PYTHON_LINES}"


if __name__ == "__main__":
    found = [*in_core(), *in_python()]
    print("\n".join(found))
    sys.exit(bool(found))
