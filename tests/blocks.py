"""Run the code blocks of a page in order, in the current folder: `python tests/blocks.py PAGE`.

Python blocks share one namespace, and console blocks share one shell. A comment with a reason above a block skips it:
`<!-- not run: it takes ten minutes -->`.
"""

import contextlib
import doctest
import importlib.util
import io
import os
import re
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import processes

PYTHON, SHELL = ("python", "pycon"), ("console", "bash")
OPTIONAL = {"distributed", "jax", "keras", "sentence_transformers", "sklearn", "tensorflow", "tf_keras", "torch"}
"""Packages without which a page may be built: blocks that import an absent one are skipped."""

_FENCE = re.compile(r"(\s*)(`{3,})(\S*)")
_EXCUSE = re.compile(r"<!-- not run: (.+) -->")
_STATUS = "\x1estatus "
_PROGRESS = re.compile(r"mp_core: \w+ [\d,]+( of [\d,]+)?\n")
"""What commands of more than five seconds say beside their output: on a loaded machine some do."""
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines without the fences, the number of the first one, and an excuse or ''."""

    language: str
    lines: tuple[str, ...]
    number: int
    excuse: str

    @property
    def text(self):
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def lacks(self):
        """The optional packages that a Python block imports and that are absent."""
        names = set(re.findall(r"^(?:>>> |\.\.\. )?\s*(?:import|from) (\w+)", self.text, re.MULTILINE))
        return sorted(name for name in names & OPTIONAL if importlib.util.find_spec(name) is None)


def blocks_of(page):
    """Return the blocks of a page, directives such as `{toctree}` aside."""
    lines = page.read_text(encoding="utf-8").splitlines()
    blocks, above, i = [], "", 0
    while i < len(lines):
        if fence := _FENCE.match(lines[i]):
            indent, ticks, language = fence.groups()
            end = next(j for j in range(i + 1, len(lines)) if lines[j].strip() == ticks)
            excuse = _EXCUSE.fullmatch(above)
            content = tuple(line.removeprefix(indent) for line in lines[i + 1 : end])
            if not language.startswith("{"):
                blocks.append(Block(language, content, i + 2, excuse[1] if excuse else ""))
            i = end
        above = lines[i].strip() or above
        i += 1
    return blocks


def commands_of(block):
    """Return pairs of a command and the output that a console block shows for it, '' where it shows none."""
    if block.language == "bash":
        return [(f"(set -e\n{block.text})", "")]
    pairs = []
    for line in block.lines:
        if line.startswith("$ "):
            pairs.append([line[2:], ""])
        elif pairs[-1][0].endswith("\\") or (line.startswith("> ") and not pairs[-1][1]):
            pairs[-1][0] += f"\n{line.removeprefix('> ')}"
        else:
            pairs[-1][1] += f"{line}\n"
    return [(command, output) for command, output in pairs]


class Shell:
    """One bash for all console blocks of a page: what it starts in the background lives until the page ends."""

    def __enter__(self):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.process = processes.Process(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PATH": path},
            start_new_session=True,
            limit=processes.LONG,
        )
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def run(self, command):
        """Return the exit status of a command and its output."""
        self.process.stdin.write(f"{{ {command}\n}} </dev/null; s=$?; printf '\\n{_STATUS}%d\\n' $s; (exit $s)\n")
        self.process.stdin.flush()
        output = ""
        for line in self.process.stdout:
            if line.startswith(_STATUS):
                return int(line.removeprefix(_STATUS)), output.removesuffix("\n")
            if not _PROGRESS.fullmatch(line):
                output += line
        raise EOFError(f"the shell ended:\n{output}")


def console_report(block, shell):
    """Run a console block and return what failed. A command may fail if the next one is `echo $?`."""
    report = ""
    pairs = commands_of(block)
    for (command, shown), (after, _) in zip(pairs, [*pairs[1:], ("", "")], strict=True):
        status, output = shell.run(command)
        if status and not after.startswith("echo $?"):
            report += f"$ {command}\nexit status {status}:\n{output}\n"
        elif shown and not doctest.OutputChecker().check_output(shown, output, _FLAGS):
            report += f"$ {command}\nexpected:\n{shown}\nreceived:\n{output}\n"
    return report


def python_report(block, name, namespace):
    """Run a Python block in a namespace and return what failed."""
    if ">>> " not in block.text:
        try:
            exec(compile("\n" * (block.number - 1) + block.text, name, "exec"), namespace)
        except Exception:
            return traceback.format_exc()
        return ""
    test = doctest.DocTestParser().get_doctest(block.text, {}, name, name, block.number - 1)
    test.globs = namespace
    report = io.StringIO()
    doctest.DocTestRunner(optionflags=_FLAGS).run(test, out=report.write, clear_globs=False)
    return report.getvalue()


def main(page):
    """Run a page; print what failed and what was skipped, and return 1 if something failed."""
    namespace = {"__name__": "__main__"}
    failed = False
    with Shell() as shell:
        for block in blocks_of(page):
            if block.excuse or block.language not in (*PYTHON, *SHELL):
                continue
            if block.lacks:
                print(f"{page.name}:{block.number}: skipped, without {', '.join(block.lacks)}")
                continue
            is_python = block.language in PYTHON
            with contextlib.redirect_stdout(io.StringIO()):  # what plain Python prints is for the reader
                report = python_report(block, page.name, namespace) if is_python else console_report(block, shell)
            if report:
                failed = True
                print(f"{page.name}:{block.number}: failed\n{report}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
