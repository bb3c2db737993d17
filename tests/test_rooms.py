"""The check of the rooms (.ci/lint_rooms.py) finds each kind of problem, and its list only shrinks."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("lint_rooms", ROOT / ".ci" / "lint_rooms.py")
lint_rooms = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lint_rooms)

PLAIN = {
    "layers/__init__.py": "from mp_core.layers.dense import Dense\n",
    "layers/base.py": "class Layer:\n    def __init__(self):\n        self._policy = 1\n",
    "layers/dense.py": "from mp_core.layers.base import Layer\nclass Dense(Layer):\n    pass\n",
    "training.py": "from mp_core.layers import Dense\n",
}


def found(folder, **changes):
    """What the check finds in a package of four files, some of them with more lines."""
    for name, text in PLAIN.items():
        path = folder / "mp_core" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + changes.get(path.stem, ""))
    return lint_rooms.today(folder)


def test_a_plain_package_has_no_knots(tmp_path):
    assert found(tmp_path) == {kind: {} for kind in ("circles", "privates", "late", "untyped", "faces")}


@pytest.mark.parametrize(
    ("file", "lines", "kind", "entry"),
    [
        ("base", "from mp_core.layers import dense\n", "circles", "mp_core.layers.base"),
        ("base", "def f():\n    from mp_core.layers.dense import Dense  # late\n", "circles", "mp_core.layers.dense"),
        ("base", "import mp_core.layers.dense\n", "circles", "mp_core.layers.base"),
        ("training", "def f(x):\n    return x._policy\n", "privates", "mp_core.training _policy"),
        ("training", "from mp_core.layers.base import _find\n", "privates", "mp_core.training _find"),
        ("dense", "def f(x):\n    x._policy = 2\n", "privates", "mp_core.layers.dense _policy"),
        ("training", "def f():\n    from mp_core.layers import Dense\n", "late", "mp_core.training"),
        ("training", "def f(layer: Any):\n    pass\n", "untyped", "mp_core.training"),
        ("dense", "from mp_core.training import fit\n", "faces", "mp_core.layers.dense"),
    ],
)
def test_a_knot_is_found(tmp_path, file, lines, kind, entry):
    assert entry in found(tmp_path, **{file: lines})[kind]


@pytest.mark.parametrize(
    ("file", "lines"),
    [
        ("base", "if TYPE_CHECKING:\n    from mp_core.layers.dense import Dense\n"),
        ("base", "def f(other):\n    return other._policy\n"),
        ("training", "def f(t):\n    return t._replace(a=1), self._own\n"),
        ("training", "def f():\n    from mp_core.layers import Dense  # spares the import of layers\n"),
        (
            "training",
            "def f():\n    # Most need no layers.\n    from mp_core.layers import Dense\n",
        ),
    ],
)
def test_what_is_allowed_is_not_found(tmp_path, file, lines):
    assert not any(found(tmp_path, **{file: lines}).values())


def test_an_entry_may_neither_grow_nor_stay_when_nothing_needs_it():
    def lines(now, listed):
        return list(lint_rooms.differences({"privates": now}, {"privates": listed}))

    assert not lines({"a _x": 2}, {"a _x": 2})
    assert "allowed are 1" in lines({"a _x": 2}, {"a _x": 1})[0]
    assert "allowed are 0" in lines({"a _x": 2}, {})[0]
    assert "write it anew" in lines({"a _x": 1}, {"a _x": 2})[0]
    assert "write it anew" in lines({}, {"a _x": 2})[0]
