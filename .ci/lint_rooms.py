"""Find knots between the Python files of mp_core. A room is a package or module directly below mp_core.

- circles: files that import each other inside a room. Imports inside functions count too.
- privates: reads of a name with one leading underscore that the file does not define itself.
- late: imports of mp_core inside functions. A comment on the line, or in the line before, must give the reason.
- untyped: parameters called ``layer`` or ``model`` that are annotated ``Any``.
- faces: imports, by a file of a room, of a module beside the rooms: such a module only has a public name for others.

``.ci/rooms.toml`` lists the remaining cases of each kind. The list only shrinks: a case that is not in it is an error,
and so is an entry without a case. ``--write`` writes the list again.
"""

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ".ci/rooms.toml"
OF_LIBRARIES = {"_replace", "_asdict", "_fields", "_make", "_exit"}
"""Public names of libraries: methods of named tuples, which cannot be fields by their underscore, and `os._exit`."""


def name_of(path: Path, root: Path) -> str:
    """Return the dotted name of the module in a file."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def texts(root: Path = ROOT) -> dict[str, str]:
    """Return module -> its text, for every Python file of the package."""
    return {name_of(path, root): path.read_text() for path in sorted(root.glob("mp_core/**/*.py"))}


def is_for_types(node: ast.stmt) -> bool:
    """Return whether a statement is ``if TYPE_CHECKING:``, which does not run."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree, without code that only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt) and is_for_types(node):
            continue
        yield node
        yield from running(node)


def imported(tree: ast.Module, known: set[str]) -> set[str]:
    """Return the modules of the package that a file imports, in functions too."""
    found: set[str] = set()
    for node in running(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & known or {node.module}
    return found


def room_of(module: str) -> str:
    """Return the room of a module: the first two parts of its name."""
    return ".".join(module.split(".")[:2])


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module, by Tarjan's algorithm."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in sorted(edges[module]):
            if other not in number:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in sorted(edges):
        if module not in number:
            visit(module)
    return found


def circles_in_rooms(files: dict[str, ast.Module], compiled: set[str]) -> set[str]:
    """Return every module in a circle of imports inside its room; compiled modules never are."""
    known = files.keys() | compiled
    edges = {
        module: {other for other in imported(tree, known) & files.keys() if room_of(other) == room_of(module)}
        - {module}
        for module, tree in files.items()
    }
    return {module for circle in circles(edges) for module in circle}


def is_private(name: str) -> bool:
    """Return whether a name begins with one underscore and is more than that."""
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in OF_LIBRARIES


def defined(tree: ast.Module) -> set[str]:
    """Return the private names that a file defines itself."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # an entry of __slots__, or the name for setattr
    return found


def is_own(value: ast.expr) -> bool:
    """Return whether an expression is `self`, `cls` or the like: the object or class of the running method."""
    is_super = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super"
    return is_super or (isinstance(value, ast.Name) and value.id in ("self", "cls"))


def foreign(tree: ast.Module) -> Counter[str]:
    """Return private name -> how often a file reads it from a foreign object or module."""
    own = defined(tree)
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and is_private(node.attr)
            and node.attr not in own
            and not is_own(node.value)
        ):
            found[node.attr] += 1
        elif isinstance(node, ast.ImportFrom):
            found.update(alias.name for alias in node.names if is_private(alias.name))
    return found


def late(tree: ast.Module, text: str) -> int:
    """Return the number of imports of mp_core inside functions without a comment."""
    lines = ["", *text.split("\n")]
    inside = {
        node.lineno
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mp_core")
    }
    return sum("#" not in lines[at] and not lines[at - 1].lstrip().startswith("#") for at in inside)


def untyped(tree: ast.Module) -> int:
    """Return the number of parameters called layer or model that are annotated ``Any``."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.arg) and node.arg in ("layer", "model")]
    return sum(isinstance(node.annotation, ast.Name) and node.annotation.id == "Any" for node in found)


def faces(module: str, tree: ast.Module, known: set[str]) -> int:
    """Return how many modules beside the rooms a file of a room imports."""
    rooms = {room_of(name) for name in known if name.count(".") > 1}
    found = {name for name in imported(tree, known) if name.count(".") == 1} - rooms
    return len(found) if room_of(module) in rooms else 0


def today(root: Path = ROOT) -> dict[str, dict[str, int]]:
    """Return kind -> (module, or "module name" -> count), only with counts above 0."""
    read = texts(root)
    files = {module: ast.parse(text) for module, text in read.items()}
    compiled = {name_of(path, root) for path in root.glob("mp_core/**/*.pyx")}
    lists = {
        "circles": dict.fromkeys(sorted(circles_in_rooms(files, compiled)), 1),
        "privates": {f"{m} {name}": n for m, tree in files.items() for name, n in sorted(foreign(tree).items())},
        "late": {module: late(tree, read[module]) for module, tree in files.items()},
        "untyped": {module: untyped(tree) for module, tree in files.items()},
        "faces": {module: faces(module, tree, set(files)) for module, tree in files.items()},
    }
    return {kind: {entry: n for entry, n in rows.items() if n} for kind, rows in lists.items()}


def differences(found: dict[str, dict[str, int]], allowed: dict[str, dict[str, int]]) -> Iterator[str]:
    """Yield a line for every new case, and one for every entry without a case."""
    for kind, entries in found.items():
        listed = allowed.get(kind, {})
        for entry in sorted(entries.keys() | listed.keys()):
            is_now, was = entries.get(entry, 0), listed.get(entry, 0)
            if is_now > was:
                yield f"{kind}: {entry}: {is_now}, allowed are {was}"
            elif is_now < was:
                yield f"{kind}: {entry}: {is_now}, {LIST} still has {was}: write it anew by --write"


def written(lists: dict[str, dict[str, int]]) -> str:
    """Return the text of the list."""
    head = "# What .ci/lint_rooms.py still allows: it only shrinks. `python .ci/lint_rooms.py --write` writes it.\n"
    tables = [f"\n[{kind}]\n" + "".join(f'"{k}" = {n}\n' for k, n in rows.items()) for kind, rows in lists.items()]
    return head + "".join(tables)


def main() -> int:
    """Compare the source tree with the list; return the exit status."""
    found = today()
    if "--write" in sys.argv[1:]:
        (ROOT / LIST).write_text(written(found))
    wrong = list(differences(found, tomllib.loads((ROOT / LIST).read_text())))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(*(f"{kind}: {sum(rows.values())}" for kind, rows in found.items()), sep=", ")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
