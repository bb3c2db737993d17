"""Fuzzing for seconds: the first cases of a seed have no finding; and failures, hangs and crashes are found."""

import itertools
import re
import sys
from pathlib import Path

import numpy as np
import processes
import pytest
from fuzz import damage, derivatives, growth, hammer, interrupts, limits, networks, operations, reading, soak
from fuzz.arrays import Memory
from fuzz.check import check
from fuzz.held import Held, opened
from fuzz.readers import READERS
from fuzz.subjects import SUBJECTS

from mp_core import layers, ops

TESTS = Path(__file__).parent
API = TESTS.parent / "docs/api.md"
CASES = {
    "operations": 300,
    "folders": 40,
    "gradients": 60,
    "calls": 1000,
    "commands": 10,
    "keras": 30,
    "architectures": 20,
    "tune": 50,
}

PLANTED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from fuzz import __main__ as command, subjects
calls = []
def run(state, rng):
    calls.append(rng.integers(1000))
    if calls[-1] == __import__("numpy").random.default_rng([5, 1]).integers(1000):
        {fault}
subjects.SUBJECTS["planted"] = subjects.Subject(lambda folder: None, run)
command.COMMAND, command.LONGEST = [sys.executable, __file__], 0.2
sys.exit(command.main())
"""


def fuzz(*arguments, code=0):
    command = [sys.executable, "-m", "fuzz", *map(str, arguments)]
    done = processes.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_first_cases_find_nothing(subject):
    if subject == "pickles":
        pytest.importorskip("torch")
    if subject == "requests":
        pytest.importorskip("starlette")
    if subject == "architectures":
        pytest.importorskip("transformers")
    told = fuzz(subject, "--seed", 0, "--cases", CASES.get(subject, 100), "--seconds", 60)
    assert re.search(rf"^{subject} +[1-9]\d* cases .* 0 found$", told, re.M), told


def test_unknown_subjects_are_named():
    fuzz("nothing", code=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise KeyError", "KeyError"),
        ("while True: pass", "took more than 0.2 seconds of CPU time"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the process ended with -11"),
    ],
)
def test_what_fails_hangs_or_crashes_is_found_by_its_number(fault, message, tmp_path):
    """By a subject that has this fault in case 1 of two."""
    script = tmp_path / "planted.py"
    script.write_text(PLANTED.format(tests=str(TESTS), fault=fault))
    done = processes.run(
        [sys.executable, script, "planted", "--seed", "5", "--cases", "3"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "planted, seed 5, case 1:" in done.stdout and message in done.stdout
    assert re.search(r"^planted +3 cases .* 1 found$", done.stdout, re.M), done.stdout


GUIDED = """
import sys
sys.path.insert(0, {tests!r})
from fuzz import guided, readers, reading
def read(path):
    if path.read_bytes()[2:]:
        raise KeyError("planted")
readers.READERS["planted"] = reading.Reader(lambda folder: (folder / "seed").write_bytes(b"(1"), read)
guided.COMMAND = [sys.executable, __file__]
sys.exit(guided.main())
"""


def test_what_fails_is_found_by_coverage_and_kept(tmp_path):
    pytest.importorskip("atheris")
    script = tmp_path / "planted.py"
    script.write_text(GUIDED.format(tests=str(TESTS)))
    command = [sys.executable, script, "planted", "--seconds", "2", "--corpus", tmp_path]
    done = processes.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "KeyError: 'planted'" in done.stdout, done.stdout + done.stderr
    assert re.search(r"^planted +[1-9]\d* inputs .* [1-9]\d* found$", done.stdout, re.M), done.stdout
    assert [path for path in tmp_path.glob("planted-crash-*") if path.read_bytes()[2:]]


@pytest.mark.parametrize("counted", [True, False])
def test_the_most_bytes_that_a_call_allocates_are_known(counted, tmp_path):
    """By a library that counts, where a compiler makes it, and by tracemalloc."""
    environment = limits.counting(tmp_path) if counted else None
    call = "from fuzz.limits import peak\nwith peak() as most: bytes(9 << 20), bytes(5 << 20); print(most() >> 20)"
    done = processes.run([sys.executable, "-c", call], cwd=TESTS, env=environment, capture_output=True, check=False)
    assert done.stdout.split() == [b"14"], done


def public_of(heading):
    """Return the names that a section of docs/api.md lists."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", API.read_text(), re.M | re.S)[1]
    return {name.rpartition(".")[2] for name in re.findall(r"~([\w.]+)", section)}


def test_every_public_operation_is_drawn_or_says_why_not():
    public = public_of("Operations") | public_of("More operations") | set(ops.__all__)
    assert {name.partition(" ")[0] for name in operations.OPERATIONS} == public - set(operations.UNDRAWN)
    assert set(operations.UNDRAWN) <= public


def test_every_operation_without_a_gradient_says_why():
    assert set(derivatives.UNGRADED) < set(operations.OPERATIONS)


def test_every_public_layer_is_drawn_or_says_why_not():
    public = public_of("Layers") | set(layers.__all__)
    assert {name for name, *_ in networks.CASES} == public - set(networks.UNDRAWN)
    assert set(networks.UNDRAWN) <= public


def test_a_wrong_element_is_found(rng):
    case = operations.OPERATIONS["matmul"](rng)
    exact = case.exact + 0
    exact[..., -1] += 1
    with pytest.raises(AssertionError, match="elements; the first at"):
        check(case._replace(exact=exact, out=False), Memory(), rng)


def test_damage_is_repeatable(rng):
    content = b'{"a": [1, 2.5, "b"], "c": {"d": null}}' * 3
    first, again = (damage.damaged(np.random.default_rng(4), content) for _ in range(2))
    assert first == again != content


@pytest.mark.slow
def test_a_short_soak_keeps_the_bits():
    command = [sys.executable, "-W", "ignore", "-m", "fuzz.soak", "--seconds", "3"]
    done = processes.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "every result had its bits" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_a_short_soak_of_completions_returns_all_pages():
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-W", "ignore", "-m", "fuzz.generating", "--seconds", "4"]
    done = processes.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "wrong" not in done.stdout, done.stdout + done.stderr


def test_a_short_hammer_keeps_the_bits():
    command = [sys.executable, "-m", "fuzz.hammer", "--seconds", "1"]
    done = processes.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "every result had its bits" in done.stdout, done.stdout + done.stderr


def test_a_hammer_finds_other_bits():
    numbers = itertools.count()
    made, wrong = hammer.hammered({"counts": lambda: [np.array(next(numbers))]}, threads=2, seconds=0)
    assert made == wrong.total() == 2


def held_while(activities, since=0, **changes):
    """Return samples of a soak in which something changes after so many activities."""
    flat = Held(200_000, 10_000_000, 50_000_000, 90, 7, 1)
    changed = flat._replace(**changes)
    return np.array([(count, *(changed if count > since else flat)) for count in range(0, activities, 10)])


def test_what_grows_in_a_soak_is_named():
    assert soak.grown(held_while(3 * soak.WARM)) == []
    assert soak.grown(held_while(3 * soak.WARM, 2 * soak.WARM, malloc=12_000_000, descriptors=8)) == [
        "malloc from 10000000 to 12000000",
        "descriptors from 7 to 8",
    ]


def test_caches_that_fill_first_are_no_growth():
    assert soak.grown(held_while(3 * soak.WARM, soak.WARM - 1, blocks=300_000, resident=90_000_000)) == []


def test_a_descriptor_that_is_left_open_has_a_name(tmp_path):
    before = opened()
    with open(tmp_path / "left", "w") as stream:
        assert list((opened() - before).elements()) == [stream.name]


@pytest.mark.parametrize("path", [path for name in READERS for path in reading.seeds(name)], ids=lambda path: path.name)
def test_inputs_that_were_found_once_are_refused_or_read(path, tmp_path):
    reading.read_one(READERS[path.parent.name], reading.make(path.parent.name, READERS[path.parent.name], tmp_path),
                     path.read_bytes())  # fmt: skip


@pytest.mark.slow
def test_what_leaks_is_found():
    kept = []
    assert not growth.leaks(growth.growth(lambda: [object()], 50))
    assert growth.leaks(growth.growth(lambda: kept.append([object()]), 50))


@pytest.fixture(scope="module")
def actions(tmp_path_factory):
    return interrupts.actions(tmp_path_factory.mktemp("actions"))


EVERY = {  # of their lines, those that are tried
    "convert": 97, "save": 97, "state": 97, "restore": 197, "folder": 499, "adapter": 299, "load": 997, "encode": 97,
    "calibrate": 1499, "fit": 397, "tune": 1999, "threads": 97, "tensors": 197, "serve": 97,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of streams, loops and coroutines that interrupts leave to the garbage collector
@pytest.mark.parametrize("name", EVERY)
def test_interrupts_leave_nothing_half_done(actions, name):
    """`python -m fuzz.interrupts` tries all lines."""
    if name not in actions:
        pytest.skip("needs the packages of the server")
    assert interrupts.everywhere(actions[name], EVERY[name]) > 1
