"""`mp-core tune` on random files of examples, good or damaged, in environments that may be hostile.

A case ends with the folder that ``encoder.fit`` writes for the same rows, which are read here without mp_core; or with
an error of one line, and then nothing has changed. Good files must end with the folder, hostile environments with the
error.
"""

import contextlib
import csv
import io
import json
import os
import shutil
import stat
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import tiny_bert
from processes import largest_file

from fuzz.damage import damaged
from mp_core import cli
from mp_core.cli import tuned
from mp_core.models import BertEncoder

__all__ = ["make", "run"]

TEXTS = ["a b", "c", "d e f", "h g " * 9, "zebra", "é, è", "中文", "x" * 1000, 'a "b"\nc', "a\r\nb, c", "d\te", " f "]
WRONG = ["", " ", "\x00", "3", 3, None, [], {}, True, float("nan"), "\ud800", ["a"], 10**400]
SCORES = [0.0, 1.0, 0.5, -1, 7]
WRONG_SCORES = [float("nan"), float("inf"), -float("inf"), 10**400, "high", None, [0.1, 0.2], {}, "", 1e39, [[1]]]
NAMES = ["query", "answer", "negative"]
JUNK = [b"", b" ", b"{", b'"', b"[[[", b"null", b"3", b"\x00", b",,,,", b'{"query": 1}', b"[" * 100_000, b"9" * 5000]
LOSSES = {  # columns of texts, and whether there is a score -> the losses that take them
    (2, False): ["multiple_negatives", "multiple_negatives_symmetric"],
    (3, False): ["multiple_negatives", "multiple_negatives_symmetric", "triplet"],
    (2, True): ["cosine", "cosent"],
    (3, True): ["margin_mse"],
}
PROBES = ["a b c", "h", "zebra"]


class Case(NamedTuple):
    """A command, and what must come of it: True the folder, False an error, None either."""

    arguments: list[str]
    must: bool | None


def make(folder):
    """Write a model, and return the folder of all cases."""
    tiny_bert.write(folder / "model", hidden_dropout_prob=0.0)
    return folder


def pick(rng, values):
    """Return one of the values."""
    return values[int(rng.integers(len(values)))]


# ---- files of examples


def rows_of(rng):
    """Return sound rows, and the options with which they are examples."""
    columns, scored = int(rng.integers(2, 4)), bool(rng.random() < 0.4)
    loss, count = pick(rng, LOSSES[columns, scored]), int(rng.integers(2, 9))
    names = [*NAMES[:columns], *(["score"] if scored else [])]
    rows = [{name: pick(rng, SCORES if name == "score" else TEXTS) for name in names} for _ in range(count)]
    if scored:
        rows[0]["score"], rows[1]["score"] = 0.25, 0.75  # what is ordered must differ
    return rows, ["--loss", loss, "--batch-size", str(int(rng.integers(2, 5)))]


def damaged_rows(rng, rows):
    """Return rows of which some are no examples any more, or all are too few or alike."""
    at, name = int(rng.integers(len(rows))), pick(rng, list(rows[0]))
    what = int(rng.integers(8))
    if what == 0:
        rows[at][name] = pick(rng, WRONG_SCORES if name == "score" else WRONG)
    elif what == 1:
        del rows[at][name]
    elif what == 2:
        rows[at]["extra"] = "a"
    elif what == 3:
        rows = rows[: int(rng.integers(2))]
    elif what == 4:
        rows = [dict(rows[0]) for _ in rows]
    elif what == 5:
        rows = [{name: row[name]} for row in rows]
    elif what == 6:
        rows = [row | {"label": 1} for row in rows]
    else:
        rows[at][name] = "a b c " * 170_000
    return rows


def written(rng, rows, kind):
    """Return the bytes of a file of rows, in one of the ways in which programs write it."""
    end = pick(rng, ["\n", "\r\n"])
    if kind == ".jsonl":
        as_lists, plain = rng.random() < 0.2, bool(rng.integers(2))
        values = [list(row.values()) if as_lists else row for row in rows]
        lines = [json.dumps(value, ensure_ascii=plain) for value in values]
        content = end.join([*lines, *pick(rng, [[], [""], ["", " ", ""]])])
    else:
        stream = io.StringIO(newline="")
        quoting = pick(rng, [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
        table = csv.writer(stream, delimiter="\t" if kind == ".tsv" else ",", lineterminator=end, quoting=quoting)
        table.writerow(rows[0] if rows else NAMES)
        table.writerows(row.values() for row in rows)
        content = stream.getvalue() + pick(rng, ["", end, end * 3])
    mark = pick(rng, [b"", b"", b"\xef\xbb\xbf"])
    return mark + content.encode(errors="surrogatepass")


def damaged_bytes(rng, content):
    """Return the bytes of a file that is damaged, or of another kind."""
    what = int(rng.integers(5))
    if what == 0:
        lines = content.split(b"\n")
        lines.insert(int(rng.integers(len(lines) + 1)), pick(rng, JUNK))
        return b"\n".join(lines)
    if what == 1:
        return content.decode(errors="replace").encode(pick(rng, ["utf-16", "utf-32", "latin-1"]), "replace")
    if what == 2:
        return rng.bytes(int(rng.integers(2000)))
    return damaged(rng, content)


def read(path):
    """Return the rows of a file that was accepted."""
    text = path.read_bytes().decode("utf-8-sig")
    csv.field_size_limit(len(text))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    lines = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if path.suffix == ".tsv" else ",")
    header, *table = [line for line in lines if any(cell.strip() for cell in line)]
    rows = [dict(zip((name.strip() for name in header), line, strict=True)) for line in table]
    return [{name: number(cell) if name in ("score", "label") else cell for name, cell in row.items()} for row in rows]


def number(cell):
    """Return what a cell of labels says."""
    return json.loads(cell) if cell.strip().startswith("[") else float(cell)


# ---- surroundings: each changes a command that would end well into one that must be refused


def no_regular_file(rng, folder, command):
    """Put something else in the place of the examples."""
    path = folder / pick(rng, ["there.jsonl", "there.csv"])
    what = int(rng.integers(5))
    if what == 0:
        path.mkdir()
    elif what == 1:
        os.mkfifo(path)
    elif what == 2:
        path.symlink_to("/dev/zero")
    elif what == 3:
        path.symlink_to(folder / "nowhere")
    command[1] = str(path)


def bad_output(rng, folder, command):
    """Put OUT where it may not be, or where it cannot be written."""
    (folder / "file").write_text("x")
    (folder / "full").mkdir()
    (folder / "full" / "mine.txt").write_text("x")
    inside = Path(command[0]) / "inside"
    places = ["file", "full", "no/where", "file/out", inside, command[0], command[1], "/proc/out", "\x00", "x" * 300]
    command[3] = str(folder / pick(rng, places))
    command += pick(rng, [[], ["--force"]])


def bad_option(rng, folder, command):
    """Say something that no run can do."""
    options = [
        ["--loss", "hinge"], ["--batch-size", "0"], ["--seed", "-1"], ["--learning-rate", "nan"], ["--epochs", "1.5"],
        ["--learning-rate", "1e30"], ["--lora", "0"], ["--policy", "int3"], ["--policy", "int4/3"], ["--distill", "1"],
        ["--policy", "int8", "--lora", "2", "--distill", "1"], ["--dask", ""], ["--dask", "a:1"],
        ["--dask", "a:1", "--chunk", "9"], ["--resume", command[0]], ["--resume", command[3]],
        ["--resume", command[1]], ["--eval", command[0]], ["--json", str(folder / "no" / "where.json")],
        ["--plot", str(folder / "no" / "where.svg")],
    ]  # fmt: skip
    command += pick(rng, options)


def bad_model(rng, folder, command):
    """Name a model that is none."""
    (folder / "empty").mkdir()
    (folder / "file").write_text("x")
    command[0] = str(folder / pick(rng, ["empty", "file", "nowhere"]))


SURROUNDINGS = [no_regular_file, bad_output, bad_option, bad_model]


# ---- a case


def drawn(rng, folder, model):
    """Return a case, whose files are in the folder."""
    rows, options = rows_of(rng)
    kind, must = pick(rng, [".jsonl", ".csv", ".tsv"]), True
    is_damaged, surrounded = rng.random() < 0.5, rng.random() < 0.25
    if is_damaged and rng.random() < 0.5:
        rows, must = damaged_rows(rng, rows), None
    content = written(rng, rows, kind)
    if is_damaged and must:
        content, must = damaged_bytes(rng, content), None
    path = folder / f"examples{kind}"
    path.write_bytes(content)
    command = [str(model), str(path), "-o", str(folder / "out"), *options]
    if surrounded:
        pick(rng, SURROUNDINGS)(rng, folder, command)
        must = False
    return Case([*command, "--quiet"], must)


def tuned_by(arguments):
    """Run the command in this process; return its exit code and what it says."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(["tune", *arguments])
        except SystemExit as stopped:
            code = stopped.code
    assert out.getvalue() == ""
    return code, err.getvalue()


def contents(folder):
    """Return the path of all that is in a folder -> the bytes of regular files."""
    return {
        path: path.read_bytes() if stat.S_ISREG(path.lstat().st_mode) else stat.S_IFMT(path.lstat().st_mode)
        for path in sorted(folder.rglob("*"))
    }


@contextlib.contextmanager
def interrupted(batch):
    """Let Ctrl-C come behind a batch."""
    told, count = tuned._Steps.on_train_batch_end, iter(range(batch))

    def stopping(self, *arguments):
        told(self, *arguments)
        if next(count, None) is None:
            raise KeyboardInterrupt

    with mock.patch.object(tuned._Steps, "on_train_batch_end", stopping):
        yield


def check_vectors(arguments, model):
    """Compare the folder with what ``fit`` gives for the rows of the file."""
    loss, size = (arguments[arguments.index(name) + 1] for name in ("--loss", "--batch-size"))
    encoder = BertEncoder.from_folder(model)
    encoder.fit(read(Path(arguments[1])), loss, batch_size=int(size), seed=0, verbose=0)
    found = BertEncoder.from_folder(arguments[3]).encode(PROBES)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, encoder.encode(PROBES))


def check_error(code, error):
    """A refusal is one line, which is an error, and maybe one that names the help."""
    assert code in (2, 3), (code, error)
    assert "took more than" not in error, error
    lines = error.splitlines()
    assert "error: " in lines[0] and len(lines) == (2 if code == 2 else 1), error


def resumed(rng, case, folder):
    """Break the command off, let it be refused with another option, and end it."""
    arguments = [*case.arguments, "--epochs", "3", "--resume", str(folder / "state")]
    with interrupted(int(rng.integers(12))):
        code, error = tuned_by(arguments)
    if code == 130:
        assert error == "" and not (folder / "out").exists()
        if (folder / "state" / "training.state").exists():
            option, value = pick(rng, [("--seed", "1"), ("--epochs", "4"), ("--policy", "int8"), ("--lora", "1")])
            code, error = tuned_by([*arguments, option, value])
            assert code == 2 and "has the state of another run" in error, error
        code, error = tuned_by(arguments)
    assert (code, error) == (0, ""), error
    assert not (folder / "state" / "training.state").exists()
    found = BertEncoder.from_folder(folder / "out").encode(PROBES)
    assert tuned_by([*case.arguments, "--epochs", "3", "--force"]) == (0, "")
    np.testing.assert_array_equal(found, BertEncoder.from_folder(folder / "out").encode(PROBES))


def run(home, rng):
    """Run one case."""
    folder, model = home / "case", home / "model"
    folder.mkdir()
    try:
        case, chance = drawn(rng, folder, model), rng.random()
        if case.must and chance < 0.2:
            resumed(rng, case, folder)
            return
        before = contents(home)
        limit = int(rng.integers(30_000)) if chance > 0.9 else None
        with contextlib.nullcontext() if limit is None else largest_file(limit):
            code, error = tuned_by(case.arguments)
        if limit is None and case.must is not None:
            assert (code == 0) == case.must, (case.arguments, code, error)
        if code == 0:
            assert error == "", error
            check_vectors(case.arguments, model)
            shutil.rmtree(case.arguments[3])
        else:
            check_error(code, error)
        assert contents(home) == before, case.arguments
    finally:
        shutil.rmtree(folder)
