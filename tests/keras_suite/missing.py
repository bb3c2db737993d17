"""A name of Keras that mp_core does not have: a test that uses it is out of scope, and the report counts the name."""

import re
from typing import Any, NoReturn

__all__ = ["SHOWN", "Missing", "NotHere", "running"]

SHOWN = re.compile(r"<mp_core has no ([\w.]+)>")
"""How errors show such a name, if a test compares with it."""

running = False
"""Whether a test runs. While test files are only read, a missing name may be called: by decorators, for parameters."""


class NotHere(Exception):
    """A test has used a name that mp_core does not have."""


class Missing:
    """What stands for the name."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def _fail(self) -> NoReturn:
        raise NotHere(self.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if running:
            self._fail()
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        def __init__(instance: Any, *args: Any, **kwargs: Any) -> None:
            self._fail()

        return (type("Below" + self.__name__.rpartition(".")[2], (), {"__init__": __init__}),)

    def __instancecheck__(self, other: Any) -> bool:
        return False

    def __subclasscheck__(self, other: Any) -> bool:  # NumPy's array API in SciPy asks for jax.Array
        return False

    def __iter__(self) -> Any:
        return self._fail() if running else iter(())

    def __getitem__(self, key: Any) -> Any:
        return self._fail() if running else self

    def __setitem__(self, key: Any, value: Any) -> None:
        self._fail()

    def __enter__(self) -> NoReturn:
        self._fail()

    def __exit__(self, *_: Any) -> None: ...

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<mp_core has no {self.__name__}>"
