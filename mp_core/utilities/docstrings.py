"""Docstrings of classes that share their parameters."""

__all__ = ["with_sections"]


def with_sections(text: str | None, sections: str) -> str:
    """Return the docstring of a class with further sections: before its examples, or else at its end.

    Parameters
    ----------
    text, sections : str
        Both as they stand in a class, indented by four spaces; `sections` from the first heading on.
    """
    head, heading, examples = (text or "").rstrip().partition("\n\n    Examples\n")
    parts = [head.rstrip(), sections.strip(), f"Examples\n{examples}"]
    return "\n\n    ".join(parts if heading else parts[:2]) + "\n    "
