import importlib.util
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import processes
import pytest
from tensors import TENSORS

from mp_core import dtypes
from mp_core.core import cpu
from mp_core.layers.randomness import set_seed
from mp_core.policies.dtype_policies.policy import replace_default


@pytest.fixture(params=[cpu.isa()] if os.environ.get("MP_CORE_ISA") else cpu.available_isas())
def isa(request):
    """Every instruction set of this machine in turn, or the one that MP_CORE_ISA names."""
    before = cpu.isa()
    cpu.set_isa(request.param)
    yield request.param
    cpu.set_isa(before)


@pytest.fixture
def reproducible():
    """The order of sums that all instruction sets have in common, also where the default is that of AMX tiles."""
    before = cpu.is_reproducible()
    cpu.set_reproducible(True)
    yield
    cpu.set_reproducible(before)


@pytest.fixture(autouse=True)
def drawn_weights():
    """Layers draw their initial weights without a seed; here a test draws the same ones in every run."""
    set_seed(0)
    yield
    set_seed(None)


@pytest.fixture(autouse=True)
def default_types():
    """Tests may set the default policy and type of the process."""
    yield
    replace_default(None)
    dtypes.set_floatx("float32")


@pytest.fixture
def rng():
    return np.random.default_rng(20261121)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a small encoder, for the command line."""
    import tiny_bert  # needs packages that the thread sanitizer's environment has not

    return str(tiny_bert.write(tmp_path_factory.mktemp("tiny") / "model"))


@pytest.fixture
def texts(tmp_path):
    """A file of texts, for the command line."""
    from command import TEXTS  # loads the command line

    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def young_process():
    """The process of the tests may have used more memory already than a command gets by default."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mp_core.cli.demo.peak_rss_bytes", lambda: 2**26)
        yield


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    from safetensors.numpy import save_file  # the thread sanitizer's environment has none

    path = tmp_path_factory.mktemp("source") / "model.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt", "author": "ä"})
    return path


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out.safetensors"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel of this checkout, of what was compiled for its editable installation, or else compiled anew."""
    root, folder = Path(__file__).parents[1], tmp_path_factory.mktemp("wheel")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "-w", str(folder)]
    compiled, copy = root / "build/editable", root / f"build/tests{os.environ.get('PYTEST_XDIST_WORKER', '')}"
    if compiled.exists():  # meson-python writes into the modules of a wheel, which this process runs: so into a copy
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(compiled, copy, symlinks=True)  # beside the original, since its paths are relative
        command += [f"--config-settings=build-dir={copy}"]  # pip of Debian 12 has no -C
    processes.run([*command, "."], cwd=root, env=environment, check=True, timeout=processes.LONG)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def keras_folder(tmp_path_factory):
    """What `keras_models.py` writes."""
    path = tmp_path_factory.mktemp("keras")
    run_with_keras("keras_models.py", path, "torch")
    return path


def run_with_keras(script, folder, backend):
    """Run a script of this folder in a process of its own: Keras chooses its backend at its import.

    Without Keras or the backend the test is skipped.
    """
    for library in ("keras", backend):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    command = [sys.executable, "-W", "ignore", Path(__file__).with_name(script), folder]
    environment = os.environ | {"KERAS_BACKEND": backend}
    run = processes.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
