"""Print the table of operators of docs/onnx.md: a row for each module that registers some."""

import sys

from mp_core.programs.expansions import EXPANSIONS
from mp_core.programs.registry import OPERATORS, operators_of

_OURS = "mp_core."
"""How names begin that only patterns of nodes become."""
_MICROSOFT = "com.microsoft."


def rows() -> list[str]:
    """Return the lines of the table."""
    subjects: dict[str, tuple[list[str], list[str]]] = {}
    for name in operators_of("onnx"):
        if not name.startswith(_OURS):
            function = OPERATORS[name][0].function if name in OPERATORS else EXPANSIONS[name]
            module = _module_of(function)
            onnx, microsoft = subjects.setdefault(_subject(module), ([], []))
            (microsoft if name.startswith(_MICROSOFT) else onnx).append(f"`{name.removeprefix(_MICROSOFT)}`")
    lines = ["| subject | operators of ONNX | of `com.microsoft` |", "|---|---|---|"]
    return lines + [f"| {subject} | {' '.join(a)} | {' '.join(b)} |" for subject, (a, b) in sorted(subjects.items())]


def _module_of(function: object) -> str:
    """Return the module that registers an operator; operations of mp_core themselves are functions of elements."""
    name = str(getattr(function, "__module__", ""))
    return name if name.startswith("mp_core.programs.") else "mp_core.programs.onnx.elementwise"


def _subject(module: str) -> str:
    text = (sys.modules[module].__doc__ or "").splitlines()[0].partition(". ")[0].partition(": ")[0]
    return text.removesuffix(".").removesuffix(" of ONNX")


if __name__ == "__main__":
    print("\n".join(rows()))
