"""The reference pages are complete: they have everything that the sources read, declare and accept, nothing else."""

import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import processes
import pytest

import mp_core as mp
from mp_core import cli
from mp_core.cli import common

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCES = ("*.py", "*.pyx", "*.pxi", "*.pxd", "*.c", "*.h")


def page(name):
    return (DOCS / f"{name}.md").read_text()


def section(text, heading):
    """Return what stands below a heading, up to the next one of the same or a higher level."""
    level = heading.split(" ")[0]
    return re.split(rf"^#{{1,{len(level)}}} ", text.partition(f"\n{heading}\n")[2], flags=re.MULTILINE)[0]


def first_column(text):
    """Return the names in backticks of the first column of all tables in a text."""
    cells = [row.split(" | ")[0] for row in re.findall(r"^\| (.*)", text, re.MULTILINE)]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


# ---- environment variables


def test_the_page_lists_the_variables_that_the_sources_read():
    reads = re.compile(r"""(?:getenv\(|environ(?:\.get)?[\[(])["'](\w+)["']""")
    files = [path for pattern in SOURCES for path in (ROOT / "mp_core").rglob(pattern)]
    found = {name for path in files for name in reads.findall(path.read_text())}
    text = page("environment")
    assert {"MP_CORE_ISA", "MP_CORE_NUM_THREADS"} <= found
    assert set(first_column(text.partition("\n## ")[0])) == found
    assert not found & set(first_column(text.partition("\n## ")[2]))


def test_every_variable_of_mp_core_that_a_page_names_is_listed():
    known = set(first_column(page("environment")))
    constants = re.findall(r"\bMP_CORE_\w+", (ROOT / "mp_core/core/include/mp_core.h").read_text())
    named = {name for path in DOCS.glob("*.md") for name in re.findall(r"\bMP_CORE_[A-Z_0-9]+\b", path.read_text())}
    assert named - set(constants) - {"MP_CORE_API"} <= known


# ---- the names of mp_core

WITHOUT_EXAMPLE = {  # these are compiled, records that functions with an example return, or a check without a result
    "mp_core.PackedMatrix", "mp_core.benchmark.check_plots", "mp_core.config.isa", "mp_core.fitting.LayerChoice",
    "mp_core.fitting.OutputError", "mp_core.fitting.Sensitivity", "mp_core.models.Generated",
    "mp_core.plans.UnseenError",
}  # fmt: skip


def test_every_public_name_has_an_example():
    names = set(re.findall(r"^   ~(mp_core[.\w]+)$", page("api"), re.MULTILINE))
    assert len(names) > 500
    found = {name: resolve_name(":".join(name.rsplit(".", 1))) for name in names}
    assert {name for name, thing in found.items() if ">>>" not in (thing.__doc__ or "")} == WITHOUT_EXAMPLE


# ---- the C API


def header():
    return (ROOT / "mp_core/core/include/mp_core.h").read_text()


def test_every_function_of_the_header_is_on_the_page_with_its_arguments():
    declared = dict(re.findall(r"^MP_CORE_PUBLIC [^;(]*?(mp_core_\w+)\(([^;]*)\);", header(), re.MULTILINE))
    shown = dict(re.findall(r"`(mp_core_\w+)\(([^)`]*)\)`", page("c_api")))
    assert len(declared) >= 19
    assert shown.keys() == declared.keys()
    for function, arguments in declared.items():
        names = [re.findall(r"\w+", argument)[-1] for argument in arguments.split(",") if argument != "void"]
        assert shown[function] == ", ".join(names), function


def test_every_status_type_and_field_of_the_header_is_on_the_page():
    text = page("c_api")
    values = dict(re.findall(r"^\| `(MP_CORE_\w+)` \| (\d+) \|", text, re.MULTILINE))
    statuses = re.search(r"typedef enum mp_core_status \{(.*?)\}", header(), re.DOTALL)[1]
    assert values == dict(re.findall(r"(MP_CORE_\w+) = (\d+)", statuses))
    words = set(re.findall(r"\w+", text))
    enums = re.findall(r"typedef enum \w+ \{(.*?)\}", header(), re.DOTALL)
    names = {name for enum in enums for name in re.findall(r"MP_CORE_(\w+) =", enum)}
    assert {name for name in names if not {name, f"MP_CORE_{name}"} & words} == set()
    structs = re.findall(r"typedef struct (mp_core_(?!table)\w+) \{(.*?)\n\}", header(), re.DOTALL)
    for struct, body in structs:
        lines = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL).split(";")
        fields = {re.findall(r"\w+", part)[-1] for line in lines if line.strip() for part in line.split(",")}
        assert fields <= words, struct


def test_the_example_in_c_compiles_and_computes(tmp_path):
    compiler = shutil.which("cc") or pytest.skip("needs a C compiler")
    library = find_spec("mp_core.core.libmp_core")
    folder = Path(library.origin).parent if library else Path(mp.__file__).parent / "core"
    (tmp_path / "example.c").write_text(re.search(r"```c\n(.*?)```", page("c_api"), re.DOTALL)[1])
    flags = ["-O2", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{mp.get_include()}", f"-L{folder}", "-lmp_core"]
    command = [compiler, "example.c", "-o", "example", *flags, f"-Wl,-rpath,{folder}"]
    done = processes.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = processes.run([tmp_path / "example"], capture_output=True, text=True, check=True).stdout
    x, w = np.arange(64) % 7 - 3, (np.arange(64 * 32) % 5 - 2).reshape(64, 32)
    assert [float(line) for line in printed.split()] == np.maximum(x @ w + np.arange(32), 0).tolist()
    failed = processes.run(
        [tmp_path / "example"], capture_output=True, text=True, check=False, env=os.environ | {"MP_CORE_ISA": "turbo"}
    )
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "instruction set" in failed.stderr


# ---- the command line


COMMANDS = cli._parser().commands.choices


def options_of(command):
    return set(COMMANDS[command].options) - {"-h", "--help"}


def described(command):
    """Return the text that describes a command: its section, or all of the page on converting."""
    text = page("convert" if command in ("convert", "inspect", "verify") else "cli")
    if command == "convert":
        return text.partition("\n## `mp-core")[0]
    (heading,) = re.findall(rf"^## `mp-core {command}\b.*", text, re.MULTILINE)
    return f"{heading}\n{section(text, heading)}"


def test_every_command_has_a_section_on_the_page():
    headings = re.findall(r"^## (`mp-core .*)", page("cli"), re.MULTILINE)
    assert {name for heading in headings for name in re.findall(r"`mp-core ([\w-]+)", heading)} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_table_of_a_command_has_its_options_and_no_others(command):
    listed = {name for cell in first_column(described(command)) for name in re.findall(r"^--?[a-z][\w-]*", cell)}
    assert listed == options_of(command)


def test_the_exit_codes_of_the_page_are_those_of_the_program():
    text = page("cli")
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    named = {common.DONE, common.FAILED, common.USAGE, common.BAD_INPUT, common.INTERRUPTED, common.CLOSED_PIPE}
    ended = {128 + number for number in common.ENDING}
    assert codes == named | ended


# ---- promises


def test_the_tests_of_each_promise_exist():
    table = section((ROOT / "SECURITY.md").read_text(), "## Threat model")
    named = set(re.findall(r"`(test_\w+)`", table))
    assert len(named) > 10
    assert [name for name in named if not (ROOT / f"tests/{name}.py").is_file()] == []
