"""Packages that only some calls need: the errors have one wording, and the command in them works."""

import sys
import tomllib
from pathlib import Path

import processes
import pytest

from mp_core.utilities import extras

ROOT = Path(__file__).parents[1]

# What is run -> the package that is not there, what needs it, what pip installs.
CALLS = {
    "from mp_core.interop import to_torch; to_torch([1.0])": ("torch", "to_torch", "torch"),
    "from mp_core.interop import to_jax; to_jax([1.0])": ("jax", "to_jax", "jax"),
    "import mp_core.interop.torch": ("torch", "mp_core.interop.torch", "torch"),
    "import mp_core.interop.sklearn": ("sklearn", "mp_core.interop.sklearn", "scikit-learn"),
    "import mp_core.interop.threads": ("threadpoolctl", "mp_core.interop.threads", "threadpoolctl"),
    "import mp_core.interop.lm_eval": ("lm_eval", "mp_core.interop.lm_eval", "lm-eval"),
    "import mp_core.interop.dask": ("distributed", "mp_core.interop.dask", "distributed"),
    "from mp_core.interop.keras import accelerate; accelerate()": ("keras", "accelerate", "keras"),
    "from mp_core.benchmark import check_plots; check_plots()": ("matplotlib", "a plot", "matplotlib"),
}

ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_package_is_one_message_with_a_command_that_works(call):
    package, user, name = CALLS[call]
    run = processes.run([sys.executable, "-c", ABSENT.format(package=package) + call], capture_output=True, text=True)
    message = f"ModuleNotFoundError: {user} needs the package {package}: pip install {name}"
    assert run.stderr.splitlines()[-1] == message


def test_a_package_that_is_there_but_broken_says_so_itself():
    with pytest.raises(ModuleNotFoundError, match="No module named 'part_of_it'"), extras.needed_by("a plot"):
        raise ModuleNotFoundError("No module named 'part_of_it'", name="part_of_it")


def test_no_message_or_page_installs_a_package_under_our_name_from_an_index():
    pages = [*(ROOT / "mp_core").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    named = [str(page) for page in pages if "mp-core[" in page.read_text(encoding="utf-8")]
    assert named == []


def test_every_package_of_the_extras_that_users_name_has_its_command():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    users = ("demo", "chat", "serve", "dask", "sklearn", "threads", "lm-eval", "plot")
    packages = {entry.split(">")[0] for user in users for entry in groups[user] if not entry.startswith("mp-core[")}
    commands = {name for command in extras._PACKAGES.values() for name in command.split()}
    assert packages <= commands
