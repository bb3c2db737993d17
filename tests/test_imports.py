"""Imports go down only, also in Cython's files (.ci/lint_imports.py finds violations); libraries are imported late."""

import importlib.util
import sys
import textwrap
from pathlib import Path

import processes
import pytest

import mp_core as mp

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("lint_imports", ROOT / ".ci" / "lint_imports.py")
lint_imports = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lint_imports)


def test_no_cython_file_imports_upward():
    files = [*ROOT.glob("mp_core/**/*.pyx"), *ROOT.glob("mp_core/**/*.pxd")]
    assert len(files) > 10
    assert not [line for path in files for line in lint_imports.upward(path)]


@pytest.mark.parametrize(
    "line",
    [
        "from mp_core.ops import matmul",
        "from mp_core.arrays.products.panels cimport PackedMatrix",
        "cimport mp_core.arrays.products.panels",
        "import math, mp_core.quantization as q",
        "def f():\n    from mp_core.arrays.casting import cast\n",
        'import_module("mp_core.ops")',
        "from mp_core import (\n    dtypes,\n    ops,\n)",
        "from mp_core import surprise",
    ],
)
def test_the_check_finds_an_upward_import(tmp_path, line):
    (tmp_path / "mp_core" / "core").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    path = tmp_path / "mp_core" / "core" / "hook.pyx"
    allowed = "from mp_core.core.header cimport (\n    MP_F32,  # a comment\n    MP_I8,\n)\nimport numpy as np\n"
    path.write_text(allowed)
    assert not lint_imports.upward(path, tmp_path)
    path.write_text(allowed + line)
    assert lint_imports.upward(path, tmp_path)


# ---- doors to other programs

DOORS = {
    "arrays": ("numpy", "to_torch"),
    "dask": ("distributed", "embed"),
    "keras": ("keras", "from_keras"),
    "sklearn": ("sklearn", "TextEmbedder"),
    "threads": ("threadpoolctl", "register"),
    "torch": ("torch", "from_torch"),
}
LIBRARIES = {"dask", "distributed", "h5py", "jax", "keras", "sklearn", "threadpoolctl", "torch", "transformers"}


@pytest.mark.parametrize("door", DOORS)
def test_a_door_needs_no_import_of_its_own_and_imports_its_library_at_the_first_use(door):
    library, name = DOORS[door]
    importlib.util.find_spec(library) or pytest.skip(f"{library} is not installed")
    code = f"""if True:
        import sys
        import mp_core as mp
        assert "mp_core.interop" not in sys.modules
        mp.interop
        found = {LIBRARIES} & set(sys.modules)
        assert not found, found
        print(mp.interop.{door}.{name}.__name__, mp.interop.{door} is sys.modules["mp_core.interop.{door}"])
    """
    done = processes.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{name} True\n", "")


def test_who_reads_all_of_the_doors_imports_no_library():
    code = f"""if True:
        import inspect, sys
        import mp_core as mp
        from mp_core.interop import *
        inspect.getmembers(mp.interop)
        print({LIBRARIES} & set(sys.modules))
    """
    assert processes.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"set()\n"


def test_another_name_is_no_door():
    with pytest.raises(AttributeError, match=r"module 'mp_core\.interop' has no attribute 'tensorflow'"):
        mp.interop.tensorflow  # noqa: B018
    assert not hasattr(mp.interop, "tensorflow")


def test_modules_have_the_names_that_keras_gives_them():
    code = """
    import sys, inspect
    from mp_core.activations import gelu
    import mp_core as mp, mp_core.initializers
    assert gelu is mp.layers.activations.gelu
    assert mp.initializers.Zeros is mp.layers.initializers.Zeros
    assert "mp_core.fitting" not in sys.modules and inspect.getmodule(lambda: 0) is not None
    assert "mp_core.fitting" not in sys.modules
    """
    processes.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_a_module_with_a_public_name_is_no_package_so_its_classes_are_not_defined_twice():
    with pytest.raises(ModuleNotFoundError, match=r"'mp_core\.losses' is not a package"):
        importlib.import_module("mp_core.losses.classes")
    assert not hasattr(mp.losses, "__path__")
    assert importlib.import_module("mp_core.optimizers.schedules") is mp.optimizers.schedules


def test_threads_that_first_use_a_package_and_a_name_below_it_at_once_both_get_it():
    """Python locks a module before its package, so without the order of `mp_core.__getattr__` they would collide."""
    code = """if True:
        import sys, threading, time
        import mp_core as mp
        inside = threading.Event()
        class Slow:
            def find_spec(name, path=None, target=None):
                if name == "mp_core.ops.activations":
                    inside.set()
                    time.sleep(0.3)
        sys.meta_path.insert(0, Slow)
        found = []
        first = threading.Thread(target=lambda: found.append(mp.ops.__name__))
        first.start()
        inside.wait()
        found.append(mp.einsum.__name__)
        first.join()
        print(sorted(found))
    """
    done = processes.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("['einsum', 'mp_core.ops']\n", "")
