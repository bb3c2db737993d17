"""The tables of a tokenizer's files: each entry that transformers reads is in one table, and the page shows them."""

import ast
import json
import re
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import random_models
from tokenizers import Tokenizer, models

from mp_core.models.tokenizer_classes import RECIPES, REFUSED
from mp_core.models.tokenizer_keys import FILES

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
RECEIVERS = {"kwargs", "init_kwargs", "local_kwargs", "tokenizer_config", "special_tokens_map"}
# What callers of `from_pretrained` give, and what transformers hands on inside: no file has these.
NO_FILE = {
    "config", "code_revision", "force_download", "cache_dir", "proxies", "revision", "subfolder", "token",
    "mistral_format", "_from_auto", "_from_pipeline",
}  # fmt: skip


def transformers_at(*names):
    library = random_models.library()
    home = Path(library.__file__).parent
    return [home / name for name in names]


def is_read(node):
    """Return the name of an entry that an expression reads of such a mapping, if it does."""
    if isinstance(node, ast.Call) and node.args and getattr(node.func, "attr", None) in ("get", "pop", "setdefault"):
        return getattr(node.args[0], "value", None) if is_receiver(node.func.value) else None
    if isinstance(node, ast.Subscript) and is_receiver(node.value):
        return getattr(node.slice, "value", None)
    if isinstance(node, ast.Compare) and len(node.comparators) == 1 and is_receiver(node.comparators[0]):
        return getattr(node.left, "value", None)
    return None


OPENING = ("__init__", "from_pretrained", "_from_pretrained", "convert_to_native_format", "_patch_mistral_regex",
           "_convert_from_tiktoken", "_convert_from_sentencepiece", "get_tokenizer_config")  # fmt: skip


def is_opening(node):
    return isinstance(node, ast.FunctionDef) and node.name in OPENING


def is_receiver(node):
    return isinstance(node, ast.Name) and node.id in RECEIVERS


def test_every_entry_that_transformers_reads_is_in_the_table():
    files = transformers_at(
        "tokenization_utils_base.py", "tokenization_utils_tokenizers.py", "models/auto/tokenization_auto.py"
    )
    functions = (node for file in files for node in ast.walk(ast.parse(file.read_text())) if is_opening(node))
    found = {is_read(node) for function in functions for node in ast.walk(function)}
    found = {name for name in found if isinstance(name, str)} - NO_FILE
    assert {"added_tokens_decoder", "model_max_length", "truncation_side", "auto_map"} < found
    assert found - FILES["tokenizer_config.json"].keys() == set()


@pytest.mark.parametrize("name", RECIPES)
def test_so_is_every_argument_of_a_class(name):
    auto = import_module("transformers.models.auto.tokenization_auto")
    source = Path(import_module(auto.tokenizer_class_from_name(name).__module__).__file__)
    classes = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.ClassDef)]
    made = next(node for each in classes for node in each.body if getattr(node, "name", "") == "__init__")
    arguments = {argument.arg for argument in (*made.args.args, *made.args.kwonlyargs)} - {"self"}
    assert arguments - FILES["tokenizer_config.json"].keys() == set()


def test_every_class_of_transformers_has_a_recipe_or_is_refused_or_runs_the_file():
    library = random_models.library()
    auto = import_module("transformers.models.auto.tokenization_auto")
    fast = import_module("transformers.tokenization_utils_tokenizers").TokenizersBackend
    names = {str(name).removesuffix("Fast") for name in auto.TOKENIZER_MAPPING_NAMES.values() if name}
    for name in sorted(names | {name for name in dir(library) if name.endswith("Tokenizer")}):
        found = auto.tokenizer_class_from_name(name)
        if not isinstance(found, type) or not issubclass(found, library.PreTrainedTokenizerBase):
            continue  # of another file format, or not to be had without its package
        runs_the_file = issubclass(found, fast) and found.__init__ is fast.__init__
        is_plain = runs_the_file or found.__name__ in ("PythonBackend", "TokenizersBackend")
        assert is_plain != (name in RECIPES or name in REFUSED), name


def entries(effect):
    """Return the file and the entry of each row of the page with an effect."""
    text = PAGE.read_text()
    rows = re.findall(rf"^\| `([\w.]+)` \| {effect} \| (.*) \|$", text, re.M)
    return {(file, name) for file, names in rows for name in re.findall(r"`([\w.*]+)`", names.partition(" - ")[0])}


@pytest.mark.parametrize("effect", ["followed", "refused", "without effect"])
def test_the_page_has_the_rows_of_the_table(effect):
    expected = {(file, name) for file, rows in FILES.items() for name, row in rows.items() if row.effect == effect}
    shown = entries(effect)
    assert {pair for pair in expected if not any(map(partial(covers, *pair), shown))} == set()
    assert {row for row in shown if not any(covers(*pair, row) for pair in expected)} == set()


def covers(file, name, row):
    """Whether a row of the page is about an entry: a star stands for any end."""
    return row[0] == file and fnmatchcase(name, row[1])


def test_the_table_has_every_part_of_a_tokenizer_file():
    tokenizer = Tokenizer(models.Unigram([("a", 0.0)], unk_id=0))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding()
    content = json.loads(tokenizer.to_str())
    parts = {f"{part}.{name}" for part in ("truncation", "padding") for name in content[part]}
    parts |= content.keys() - {"truncation", "padding"}
    assert parts <= FILES["tokenizer.json"].keys()
