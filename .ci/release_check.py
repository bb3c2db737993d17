"""Check the files that `make sdist wheel` wrote to dist/, as users will install them: `make release-check`.

Every check has a separate environment in a temporary folder; packages come from the index that pip is configured for.
The source archive is built without git, under each Python that is found here; missing Pythons are reported.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
# Each supported Python, and the oldest NumPy with a wheel for it that pyproject.toml allows.
TWINE = (sys.executable, "-m", "twine", "check", "--strict")
OLDEST_NUMPY = {
    "3.11": "numpy==2.0.*",
    "3.12": "numpy==2.0.*",
    "3.13": "numpy==2.1.*",
    "3.13t": "numpy==2.1.*",
    "3.14": "numpy==2.3.*",
    "3.14t": "numpy==2.3.*",
}
USE = """
import importlib.metadata, sys
import ml_dtypes, numpy as np, mp_core as mp
assert "site-packages" in mp.__file__, mp.__file__
x = np.linspace(-3, 3, 12, dtype="float32").reshape(3, 4)
y = mp.matmul(mp.cast(x, "bfloat16"), mp.pack(mp.cast(x.T, "bfloat16")), out_dtype="float32")
assert np.allclose(y, x @ x.T, rtol=2**-7, atol=2**-5), y
assert (mp.cast(x, "float8_e4m3fn") == x.astype(ml_dtypes.float8_e4m3fn)).all()
assert np.abs(mp.dequantize(mp.quantize(x)) - x).max() <= 3 / 127
assert isinstance(mp.layers.Dense(2, dtype="mixed_bfloat16")(x), np.ndarray)
print(importlib.metadata.version("numpy"), mp.config.isa())
"""
TYPED = """
import numpy as np

import mp_core as mp
from mp_core.layers import Dense

x = np.ones((2, 3), "float32")
packed: mp.PackedMatrix = mp.pack(x.T)
quantized: mp.QuantizedArray = mp.quantize(x, axis=0)
product: np.ndarray = mp.matmul(x, packed, activation="relu")
layer = Dense(4, dtype="mixed_bfloat16")
wrong: int = mp.matmul(x, packed)
"""


def run(*command: object, **settings: object) -> str:
    """Run a command and return its output; raise RuntimeError with its last lines if it fails."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MP_CORE", "VIRTUAL"))}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, env=clean, **settings)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout.strip()


def interpreters() -> dict[str, str]:
    """Return the Pythons of OLDEST_NUMPY that exist here: those on the PATH, and pyenv's."""
    found = {}
    for version in OLDEST_NUMPY:
        folders = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin"))
        path = shutil.which(f"python{version}", path=os.pathsep.join([*map(str, folders), os.environ["PATH"]]))
        with contextlib.suppress(RuntimeError):  # pyenv has the name, but not this Python
            if path:
                found[version] = run(path, "-c", "import sys; print(sys.executable)")
    return found


def environment(python: str, folder: Path, *packages: object) -> Path:
    """Create an environment with these packages and return its interpreter."""
    run(python, "-m", "venv", folder)
    inside = folder / "bin" / "python"
    run(inside, "-m", "pip", "install", "--quiet", *packages, cwd=folder)
    return inside


def installs_and_runs(python: str, wheel: Path, numpy: str, folder: Path) -> str:
    """Install the wheel with only numpy and ml_dtypes, compute with it, and call the command."""
    inside = environment(python, folder, wheel, numpy)
    names = {line.split("==")[0].lower().replace("-", "_") for line in run(inside, "-m", "pip", "freeze").splitlines()}
    names = {name.split("_@")[0].split(" ")[0] for name in names}
    assert names == {"mp_core", "numpy", "ml_dtypes"}, names
    run(inside, "-m", "pip", "check")
    said = run(inside, "-W", "error", "-c", USE, cwd=folder)
    assert run(folder / "bin" / "mp-core", "--version").startswith("mp-core "), "no version"
    run(folder / "bin" / "mp-core", "info")
    return f"NumPy and instruction set {said}"


def builds_without_git(python: str, archive: Path, folder: Path) -> Path:
    """Build the wheel of the archive in an isolated environment, as pip does for a user, and return it."""
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    inside = environment(python, folder / "builder", "pip")
    run(inside, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "wheel", source, cwd=folder)
    (wheel,) = (folder / "wheel").glob("*.whl")
    return wheel


def has_the_same_bytes(archive: Path, folder: Path) -> str:
    """Build the wheel of the archive in this environment, and compare it with the wheel of `make wheel`."""
    folder.mkdir()
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps",
        "--wheel-dir", folder / "wheel", source, cwd=folder)  # fmt: skip
    (again,), (first,) = (folder / "wheel").glob("*.whl"), (ROOT / "build/wheel").glob("*.whl")
    digests = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in (first, again)]
    assert digests[0] == digests[1], "\n".join([f"SHA-256 {digests[0]} and {digests[1]}", *differences(first, again)])
    return digests[0]


def differences(first: Path, again: Path) -> list[str]:
    """Return one line for each way in which members of two wheels differ, with up to 20 of their names."""
    members = []
    for wheel in (first, again):
        with zipfile.ZipFile(wheel) as archive:
            members.append({file.filename: file for file in archive.infolist()})
    one, other = members
    names = [name for name in one if name in other]
    ways = {"in one wheel only": sorted(one.keys() ^ other.keys())}
    for way, field in {"bytes": "CRC", "time": "date_time", "mode": "external_attr"}.items():
        ways[way] = [name for name in names if getattr(one[name], field) != getattr(other[name], field)]
    lines = [f"{way}: {len(differ)} members, {', '.join(differ[:20])}" for way, differ in ways.items() if differ]
    if ways["time"]:
        times = [side[ways["time"][0]].date_time for side in members]
        lines.append(f"times {times[0]} and {times[1]}: HEAD, whose time they have, moved while the wheels were built")
    return lines or ["the same members in another order, or packed otherwise"]


def is_typed(wheel: Path, folder: Path) -> str:
    """Check a user's program under mypy --strict: it must find the one wrong line, and nothing else."""
    inside = environment(sys.executable, folder, wheel, "mypy")
    (folder / "program.py").write_text(TYPED)
    command = [inside, "-m", "mypy", "--strict", "--no-error-summary", "program.py"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=folder)
    errors = done.stdout.splitlines()
    assert len(errors) == 1 and errors[0].startswith("program.py:12: error: Incompatible types"), (
        done.stdout + done.stderr
    )
    return "mypy --strict finds the one wrong line"


def check(name: str, what: Callable[[], object]) -> bool:
    """Run one check, print its result, and return whether it passed."""
    try:
        result = what()
    except (AssertionError, RuntimeError) as error:
        print(f"FAILED  {name}: {error}", flush=True)
        return False
    print(f"ok      {name}" + (f": {result.splitlines()[-1]}" if isinstance(result, str) else ""), flush=True)
    return True


def check_python(version: str, python: str, archive: Path, wheels: list[Path], scratch: Path) -> Iterator[bool]:
    """Check the archive under one Python, and the wheels in dist/ for that Python."""
    built = []
    yield check(
        f"Python {version}: the source archive builds without git",
        lambda: built.append(builds_without_git(python, archive, Path(tempfile.mkdtemp(dir=scratch)))),
    )
    tag = "-cp" + version.replace(".", "").rstrip("t")
    ours = [wheel for wheel in wheels if f"{tag}{tag}{'t' * version.endswith('t')}-" in wheel.name]
    for wheel in built + ours:
        for numpy in (OLDEST_NUMPY[version], "numpy"):
            place = Path(tempfile.mkdtemp(dir=scratch))
            where = "dist" if wheel in ours else "the archive"
            yield check(
                f"Python {version}: the wheel of {where} runs beside {numpy}",
                functools.partial(installs_and_runs, python, wheel, numpy, place),
            )


def main() -> int:
    """Run all checks and return the exit code."""
    archives, wheels = sorted(DIST.glob("*.tar.gz")), sorted(DIST.glob("*.whl"))
    if len(archives) != 1 or not wheels:
        print(f"dist/ must hold one source archive and a wheel; it has {[path.name for path in archives + wheels]}")
        return 2
    found = interpreters()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        passed = [check("twine check --strict", lambda: run(*TWINE, *archives, *wheels))]
        for version in OLDEST_NUMPY:
            if version in found:
                passed += check_python(version, found[version], archives[0], wheels, scratch)
            else:
                print(f"absent  Python {version} is not on this machine: not checked")
        passed.append(
            check("two builds give the same bytes", lambda: has_the_same_bytes(archives[0], scratch / "again"))
        )
        passed.append(check("a user's program is typed", lambda: is_typed(wheels[0], scratch / "typed")))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    raise SystemExit(main())
