"""The modules of Keras, made from mp_core: Keras' test files import these as `keras`."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from keras_suite.missing import Missing
from keras_suite.stand_ins import HOMES, PATCHES, SOURCES, STAND_INS

__all__ = ["Finder"]

FOREIGN = ("tensorflow", "grain", "pandas", "torch_xla", "jax")
"""Packages that some tests need and mp_core has nothing to do with: these tests are out of scope."""


class Module(ModuleType):
    """A module of Keras whose names are those of mp_core.

    A name is looked for in the stand-ins, in the home of the module in mp_core, and among the modules below it.
    """

    def __init__(self, name: str, below: Path | None) -> None:
        super().__init__(name)
        self.__path__ = []
        self._below = below

    def __getattr__(self, name: str) -> Any:
        if name.lower().startswith(("__", "pytest_", "setup", "teardown")):  # pytest asks packages for its hooks
            raise AttributeError(name)
        found = self._found(name)
        setattr(self, name, found)
        return found

    def _found(self, name: str) -> Any:
        own = STAND_INS.get(self.__name__, {})
        if name in own:
            return own[name]
        path = self.__name__
        while path:
            if path in STAND_INS and name in STAND_INS[path]:
                return STAND_INS[path][name]
            if path in HOMES:
                for home in HOMES[path]:
                    if self._is_own(home, name):
                        return getattr(home, name)
                break
            path = path.rpartition(".")[0]
        below = f"{self.__name__}.{name}"
        if below in HOMES or below in STAND_INS or self._has_module(name):
            return importlib.import_module(below)
        return Missing(below.replace(".src.", "."))

    def _is_own(self, home: Any, name: str) -> bool:
        is_package = self._below is not None and f"{self.__name__}.{name}" in STAND_INS
        return hasattr(home, name) and not is_package and not isinstance(getattr(home, name), ModuleType)

    def _has_module(self, name: str) -> bool:
        return self._below is not None and ((self._below / name).is_dir() or (self._below / f"{name}.py").is_file())


class Finder:
    """Imports `keras` and what is below it: test files and their helpers from a folder, all else as :class:`Module`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """Return what imports a module, or None if it is none of Keras."""
        if name.startswith("src.") and f"keras.{name}" in SOURCES:  # a source archive has no keras/__init__.py
            return self._file(name, f"keras.{name}")
        top = name.partition(".")[0]
        if top != "keras" and name != "conftest" and top not in FOREIGN:
            return None
        if name.startswith("keras.src.testing") or name.endswith("_test"):
            return self._file(name, name)
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def _file(self, name: str, full_name: str) -> ModuleSpec | None:
        place = self.root.joinpath(*full_name.split("."))
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        loader = Patching(full_name, name, file) if full_name in PATCHES | SOURCES else None
        return importlib.util.spec_from_file_location(name, file, loader=loader)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module whose names are looked up when they are used."""
        folder = self.root.joinpath(*spec.name.split("."))
        if spec.name.partition(".")[0] in FOREIGN:
            return Foreign(spec.name)
        return Module(spec.name, folder if folder.is_dir() else None)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: there is no code."""


class Foreign(ModuleType):
    """A package that these tests do without."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")


class Patching(importlib.machinery.SourceFileLoader):
    """Runs a module of Keras with other lines in it, and then replaces names in it."""

    def __init__(self, full_name: str, name: str, file: Path) -> None:
        super().__init__(name, str(file))
        self.full_name = full_name

    def get_code(self, fullname: str) -> Any:
        """Return the code of the module, without a file of compiled code."""
        text = Path(self.path).read_text(encoding="utf-8")
        for old, new in SOURCES.get(self.full_name, {}).items():
            text = text.replace(old, new)
        return compile(text, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        super().exec_module(module)
        vars(module).update(PATCHES.get(self.full_name, {}))


def install(root: Path) -> None:
    """Let `import keras` find mp_core's objects and the test files below `root` from now on."""
    sys.meta_path.insert(0, Finder(root))  # type: ignore[arg-type]
    sys.modules["conftest"] = Module("conftest", None)  # otherwise pytest finds a file of this name
