"""Names of Keras that mp_core does not have: each is in one table, which the errors and a page repeat."""

import importlib
import os
from pathlib import Path

import numpy as np
import pytest

import mp_core as mp
from mp_core.utilities.absent import ABSENT, reason_for

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch and Keras

PAGE = Path(__file__).parents[1] / "docs" / "absent.md"


def _names(module):
    return [name for names in ABSENT[module] for name in names.split()]


@pytest.mark.parametrize("module", ABSENT)
def test_every_public_name_of_keras_is_here_or_in_the_table_with_a_reason(module):
    theirs = {name for name in dir(getattr(keras, module) if module else keras) if not name.startswith("_")}
    ours = importlib.import_module(f"mp_core.{module}" if module else "mp_core")
    assert {name for name in theirs if not hasattr(ours, name)} - set(_names(module)) == set()
    assert set(_names(module)) <= theirs and len(set(_names(module))) == len(_names(module))
    assert [name for name in _names(module) if hasattr(ours, name)] == (["Lambda"] if module == "layers" else [])


@pytest.mark.parametrize("module", ABSENT)
def test_errors_say_why_a_name_is_absent(module):
    path = f"mp_core.{module}" if module else "mp_core"
    ours = importlib.import_module(path)
    for name in set(_names(module)) - {"Lambda"}:
        with pytest.raises(AttributeError, match="has no attribute") as error:
            getattr(ours, name)
        assert reason_for(name, module) in str(error.value)
        with pytest.raises(ImportError, match=f"cannot import name '{name}' from '{path}': ") as error:
            exec(f"from {path} import {name}")
        assert reason_for(name, module) in str(error.value)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        ours.nothing  # noqa: B018


def test_the_page_has_the_table():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    rows = [
        f"| {', '.join(f'`{name}`' for name in names.split())} | {why} |"
        for table in ABSENT.values()
        for names, why in table.items()
    ]
    assert lines == rows


def test_a_lambda_is_refused_when_it_is_made_and_when_a_file_has_one(tmp_path):
    with pytest.raises(NotImplementedError, match="Lambda is not a layer of mp_core: runs code"):
        mp.layers.Lambda(lambda x: x + 1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Lambda(lambda x: x + 1, name="more")])
    model.save(tmp_path / "model.keras")
    refused = r"- 'more' \('Lambda'\): Lambda is not a layer of mp_core: runs code"
    with pytest.raises(NotImplementedError, match=refused):
        mp.saving.load_model(tmp_path / "model.keras")
    entry = {"class_name": "Lambda", "module": "keras.layers", "config": {"name": "more"}}
    with pytest.raises(NotImplementedError, match="runs code"):
        mp.Sequential.from_config({"layers": [entry]})
    with pytest.raises(NotImplementedError, match="runs code"):
        mp.saving.deserialize_keras_object(entry)


def test_loading_says_why_a_layer_is_absent():
    with pytest.raises(ValueError, match="Unknown layer class_name='Hashing': reads strings"):
        mp.Sequential.from_config({"layers": [{"class_name": "Hashing", "config": {"num_bins": 3}}]})
    model = keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Resizing(2, 2)])
    model(np.zeros((1, 4, 4, 3)))
    with pytest.raises(NotImplementedError, match=r"\(module keras.layers\): resamples or equalizes images"):
        mp.interop.keras.from_keras(model)
