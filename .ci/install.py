"""Run pip and print one line per step: `python .ci/install.py [--extra NAME] ARGUMENTS`.

The lines show downloads, the progress of the compiler, and installed packages. If pip or the compiler fails, their full
output follows. `--extra NAME` installs the packages of that extra in pyproject.toml and the requirements of mp_core,
without building mp_core.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPILED = re.compile(r"\[(\d+)/(\d+)\] ")  # ninja has done [first/second] steps
EVERY = 10  # per cent


def packages(extra: str) -> list[str]:
    """Return the packages of an extra in pyproject.toml, with extras named in it, and mp_core's own requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def listed(name: str) -> Iterator[str]:
        for entry in project["optional-dependencies"][name]:
            if others := re.match(r"mp-core\[(.*)\]", entry):
                for other in others[1].split(","):
                    yield from listed(other)
            else:
                yield entry

    return [*project["dependencies"], *listed(extra)]


def steps(lines: Iterable[str], log: list[str]) -> Iterator[str]:
    """Yield the lines to print for the output of pip -v, and append all of its output to `log`."""
    told = -1
    for line in lines:
        log.append(line)
        text = line.strip()
        if compiled := COMPILED.match(text):
            done, total = map(int, compiled.groups())
            share = 100 * done // total // EVERY * EVERY
            if total > 1 and share > told:
                told = share
                yield f"compiling: {done} of {total}"
        elif text.startswith("Downloading ") and "metadata" not in text:
            file, _, size = text.removeprefix("Downloading ").rpartition(" (")
            yield f"downloading {'-'.join(file.split('/')[-1].split('-')[:2])} ({size}"
        elif text.startswith("Installing collected packages: "):
            yield f"installing {text.partition(': ')[2]}"


def main(arguments: list[str]) -> int:
    """Run pip and return its exit status."""
    if arguments[0] == "--extra":
        arguments = [*packages(arguments[1]), *arguments[2:]]
    command = [sys.executable, "-m", "pip", "install", "--verbose", "--progress-bar=off", *arguments]
    log: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for step in steps(pip.stdout, log):
            print(f"  {step:.110}", flush=True)
    if pip.returncode:
        print(*log, sep="", file=sys.stderr)
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
