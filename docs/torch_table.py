"""Print the table of operators of docs/torch_operators.md: a row for each function that computes operators of torch."""

from mp_core.programs.registry import OPERATORS, operators_of


def rows() -> list[str]:
    """Return the lines of the table."""
    names: dict[object, list[str]] = {}
    for name in operators_of("aten"):
        names.setdefault(OPERATORS[name][0].function, []).append(name.removeprefix("aten.").removesuffix(".default"))
    lines = ["| operators | result |", "|---|---|"]
    for function, operators in names.items():
        found = [name for name in operators if not name.startswith(("python.", "sym_"))]
        if found:
            lines.append(f"| {', '.join(f'`{name}`' for name in found)} | {_meaning(function)} |")
    return lines


def _meaning(function: object) -> str:
    first = (function.__doc__ or "").strip().partition("\n")[0]
    text = first.removeprefix("Return ").partition(": see ")[0].replace("``", "`").rstrip(".").replace("|", "\\|")
    return text.partition(". ")[0]


if __name__ == "__main__":
    print("\n".join(rows()))
