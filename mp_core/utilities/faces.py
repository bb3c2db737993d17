"""Faces: modules with a public name, for a module that is in a room."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["face_of"]


def face_of(home: ModuleType) -> tuple[str | None, list[str], Callable[[], list[str]], Callable[[str], Any]]:
    """Return ``__doc__``, ``__all__``, ``__dir__`` and ``__getattr__`` of a module that has all names of another one.

    >>> from mp_core.training import losses
    >>> _, names, _, find = face_of(losses)
    >>> find("Poisson") is losses.Poisson, "Poisson" in names
    (True, True)
    """
    names: list[str] = home.__all__

    def __getattr__(name: str) -> Any:  # noqa: N807 - absent.py knows such a frame by its name
        if name == "__path__":  # else `import mp_core.losses.classes` would run the files of the home a second time
            raise AttributeError("a module with a public name is not a package")
        return getattr(home, name)

    return home.__doc__, names, lambda: names, __getattr__
