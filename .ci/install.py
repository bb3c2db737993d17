"""Run pip and print a line a step, so that nobody waits in silence: `python .ci/install.py [--extra NAME] ARGUMENTS`.

What is downloaded, how far the compiler is, what is installed. Everything that pip and the compiler printed follows if
they fail. `--extra NAME` stands for the packages that pyproject.toml lists there and those that mp_core itself needs:
they are installed without building mp_core.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPILED = re.compile(r"\[(\d+)/(\d+)\] ")  # ninja has done the first number of the second one
EVERY = 10  # per cent


def packages(extra: str) -> list[str]:
    """Return what pyproject.toml lists in an extra, with the extras named in it, and what mp_core itself needs."""
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
    """Yield what to tell of the lines that pip prints with -v, and put all of them into `log`."""
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
