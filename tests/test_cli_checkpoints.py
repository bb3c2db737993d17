"""`mp-core convert`, `inspect` and `verify`: exit codes, output streams, memory."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import processes
import pytest
import tiny_bert
from command import usage_error
from safetensors.numpy import save_file

from mp_core import checkpoint, cli
from mp_core.checkpoint import open_tensors

pytestmark = pytest.mark.usefixtures("young_process")


@pytest.fixture
def model(tmp_path):
    rng = np.random.default_rng(5)
    tensors = {f"layer.{i}.weight": rng.standard_normal((30, 40), np.float32) * 10.0**i for i in range(6)}
    save_file(tensors | {"bias": np.ones(30, np.float32)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return str(tmp_path / "model.safetensors")


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "out.safetensors")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ('{"model_type": "gpt2"}', "gpt2"),
        ('{"model_type": ["bert"]}', "['bert']"),
        ('{"model_type": "a\\nb"}', "'a\\nb'"),
        ('{"model_type": "bert"}', None),
        ("{}", None),
        ("no JSON", None),
    ],
)
def test_a_conversion_says_if_nothing_here_runs_the_network(capsys, model, tmp_path, content, kind):
    folder = tmp_path / "folder"
    folder.mkdir()
    Path(model).rename(folder / "model.safetensors")
    (folder / "config.json").write_text(content)
    assert cli.main(["convert", str(folder), "-o", str(tmp_path / "small"), "--policy", "int8"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "model_type" in line]
    expected = f"mp_core cannot run model_type {kind}; it runs bert, "
    assert [line.startswith(expected) for line in said] == ([] if kind is None else [True])


def test_a_report_replaces_no_model(capsys, model, out, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(model)
    before = Path(model).read_bytes()
    for report in (model, out, str(tmp_path / "link"), str(tmp_path / "folder")):
        err = usage_error(capsys, "convert", model, "-o", out, "--policy", "int8", f"--json={report}")
        assert f"argument --json: {report} would overwrite " in err or f"argument --json: {report} is a folder" in err
    assert Path(model).read_bytes() == before and not Path(out).exists()


def test_a_conversion_lists_what_changed_and_the_five_worst(capsys, model, out):
    arguments = ["convert", model, "-o", out, "--policy", "int8", "--keep", r"layer\.0"]
    assert cli.main(arguments) == 0
    printed, err = capsys.readouterr()
    lines = printed.splitlines()
    assert err == ""
    heads = "tensor, shape, type, MB, new MB, SQNR dB, rel RMSE, max error, cosine, overflow, flushed, NaN"
    assert re.split("  +", lines[0]) == heads.split(", ")
    rows = checkpoint.convert(model, out, "int8", keep=[r"layer\.0"], force=True)["tensors"]
    lossy = sorted((row for row in rows if row["name"] not in ("bias", "layer.0.weight")), key=lambda row: row["sqnr"])
    name, number, of, *rest = lines[
        2
    ].split()  # five tensors that are alike are one row, with the worst of each measure
    assert (name, number, of, rest[:3]) == ("layer.*.weight", "5", "of", ["30", "x", "40"])
    assert float(rest[8]) == round(lossy[0]["sqnr"], 1)
    assert float(rest[10]) == pytest.approx(max(row["max_abs_error"] for row in lossy), rel=0.01)
    assert int(rest[13]) == sum(row["flushed"] for row in lossy)
    assert lines[4:6] == ["7 tensors: 0.0 MB > 0.0 MB", "exact: 2 of float32 (--all lists them)"]
    worst = [line.split()[0] for line in lines[lines.index("worst:") + 3 : -1]]
    assert worst == [row["name"] for row in lossy]
    assert sum("float32 > int8" in line for line in lines) == 6
    assert open_tensors(out)["layer.1.weight"].values.dtype == np.int8
    assert lines[-1] == (
        "5 tensors are stored as codes; other programs cannot read them. Undo with convert --policy float32"
    )


def test_a_conversion_lists_every_tensor_if_asked(capsys, model, out):
    assert cli.main(["convert", model, "-o", out, "--policy", "int8", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = checkpoint.convert(model, out, "int8", force=True)["tensors"]
    assert [line.split()[0] for line in lines[2:9]] == [row["name"] for row in rows]
    assert len({len(line) for line in lines[:9]}) == 1
    assert "7 tensors: 0.0 MB > 0.0 MB" in lines and "worst:" in lines


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_where_nothing_changes_no_table_is_printed(capsys, model, out, options):
    assert cli.main(["convert", model, "-o", out, "--policy", "float32", *options]) == 0
    what = "not converted" if options else "exact"
    assert capsys.readouterr().out == f"7 tensors: 0.0 MB > 0.0 MB\n{what}: 7 of float32 (--all lists them)\n"


@pytest.mark.parametrize("name", ["x.gguf", "x.GGUF", "model.onnx", "model.bin"])
def test_an_output_of_another_form_is_refused_in_one_line(capsys, model, tmp_path, name):
    before = set(tmp_path.iterdir())
    error = usage_error(capsys, "convert", model, "-o", str(tmp_path / name), "--policy", "int8")
    assert "which mp_core does not write; use a folder or a .safetensors file" in error
    assert name in error and set(tmp_path.iterdir()) == before


def test_the_report_is_the_python_twin_s_with_infinity_as_text(capsys, model, out, tmp_path):
    report = tmp_path / "report.json"
    arguments = ["convert", model, "-o", out, "--policy", "int4/16", "--map", "layer=3=float16", "--map", "5=bfloat16"]
    usage_error(capsys, *arguments[:-2], "--map", "5=")
    arguments[7] = "3.weight=float16"
    assert cli.main([*arguments, f"--json={report}", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    twin = checkpoint.convert(model, out, "int4/16", map=[("3.weight", "float16"), ("5", "bfloat16")], force=True)
    loaded = json.loads(report.read_text(), parse_constant=lambda constant: pytest.fail(constant))
    assert next(row for row in loaded["tensors"] if row["name"] == "bias")["sqnr"] == "inf"
    for row in loaded["tensors"]:
        row["sqnr"] = float(row["sqnr"])
    assert loaded == twin


def test_a_threshold_that_fails_is_code_1_and_no_file(capsys, model, out, tmp_path):
    report = tmp_path / "report.json"
    arguments = ["convert", model, "-o", out, "--policy", "int4/64", "--fail-if", "sqnr<25", f"--json={report}"]
    assert cli.main(arguments) == 1
    printed, err = capsys.readouterr()
    assert "worst:" in printed
    assert err.count("\n") == 6
    assert err.startswith("mp-core: failed: layer.0.weight: sqnr is ")
    assert not os.path.exists(out)
    assert len(json.loads(report.read_text())["failed"]) == 6


def test_files_that_are_left_out_are_named(capsys, tmp_path):
    model = tiny_bert.write(tmp_path / "model")
    for name in ("pytorch_model.bin", "notes.txt"):
        (model / name).write_bytes(b"x")
    arguments = ["convert", str(model), "-o", str(tmp_path / "out"), "--policy", "float16", "--exclude", "*.txt"]
    assert cli.main(arguments) == 0
    assert "\nleft out: notes.txt, pytorch_model.bin\n" in capsys.readouterr().out
    assert cli.main(["inspect", str(model)]) == 0
    assert "\nleft out: pytorch_model.bin\n" in capsys.readouterr().out


def test_a_dry_run_prints_sizes(capsys, model, out):
    assert cli.main(["convert", model, "-o", out, "--policy", "float16", "--dry-run"]) == 0
    printed, _ = capsys.readouterr()
    assert printed.splitlines()[0].split() == ["tensor", "shape", "type", "MB", "new", "MB"]
    assert "float32 > float16" in printed
    assert not os.path.exists(out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: MODEL, -o/--output"),
        (["{model}", "-o", "{out}"], "one of the arguments --policy and --map FILE is required"),
        (
            ["{model}", "-o", "{out}", "--policy", "int7"],
            "--policy: received 'int7'; did you mean int8? It must be one of float32, float16, bfloat16, ",
        ),
        (["{model}", "-o", "{out}", "--policy", "int4/3_from_float32"], "powers of two"),
        (["{model}", "-o", "{out}", "--policy", "awq/4/64_from_float32"], "received 'awq/4/64_from_float32'"),
        (
            ["{model}", "-o", "{out}", "--policy", "int8", "--map", "int8"],
            "received 'int8'; it must be REGEX=POLICY or an existing file",
        ),
        (["{model}", "-o", "{out}", "--policy", "int8", "--map", "a=int7"], "--map: received 'int7'; did you mean "),
        (["{model}", "-o", "{out}", "--policy", "int8", "--map", "(=int8"], "argument --map"),
        (["{model}", "-o", "{out}", "--policy", "int8", "--keep", "["], "argument --keep"),
        (["{model}", "-o", "{out}", "--policy", "int8/fixed"], "'int8/fixed' needs scales of inputs"),
        (["{model}", "-o", "{out}", "--policy", "int8", "--fail-if", "speed<3"], "argument --fail-if"),
        (
            ["{model}", "-o", "{out}", "--policy", "int8", "--max-memory", "lots"],
            "received 'lots'; it must be a number of bytes such as 512MiB or 2GB",
        ),
        (["{model}", "-o", "{out}", "--policy", "int8", "--max-memory", "1MiB"], "--max-memory: must be at least"),
        (["{model}", "-o", "{out}", "--policy", "int8", "--keep", "nothing"], "'nothing' matches no tensor"),
        (["{model}", "-o", "{model}", "--policy", "int8"], "is the input"),
        (
            ["{model}", "-o", "{out}", "--policy", "int8", "--json=/absent/r"],
            "--json: the folder /absent does not exist",
        ),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(capsys, model, out, arguments, message):
    arguments = [argument.format(model=model, out=out) for argument in arguments]
    assert message in usage_error(capsys, "convert", *arguments)
    assert not os.path.exists(out)


def test_requantizing_is_wrong_usage_without_leave(capsys, model, out, tmp_path):
    assert cli.main(["convert", model, "-o", out, "--policy", "int8", "--quiet"]) == 0
    again = ["convert", out, "-o", str(tmp_path / "again"), "--policy", "int4/64", "--quiet"]
    assert "--allow-requantize" in usage_error(capsys, *again)
    assert cli.main([*again, "--allow-requantize"]) == 0


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("2kB", 2000), ("3KiB", 3072), ("1gb", 10**9), ("2 GiB", 2**31), ("512M", 512 * 10**6)]
)
def test_sizes_have_units(text, size):
    from mp_core.cli.checkpoints import _size

    assert _size(text) == size


@pytest.mark.parametrize("options", [["convert"], ["inspect"], ["inspect", "--all"]], ids=" ".join)
def test_tables_are_as_wide_as_the_terminal_and_elsewhere_a_line_a_row(capsys, model, tmp_path, monkeypatch, options):
    command, *rest = options
    rest += ["-o", str(tmp_path / "out.safetensors"), "--policy", "int8", "--force"] if command == "convert" else []
    monkeypatch.setenv("COLUMNS", "72")
    cells = []
    for in_terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda in_terminal=in_terminal: in_terminal)
        assert cli.main([command, model, *rest]) == 0
        table = capsys.readouterr().out.partition("\n\n")[0]
        assert (max(map(len, table.splitlines())) <= 72) == in_terminal
        cells.append([line for line in table.splitlines() if set(line) != {"-"}])
    assert len(cells[0]) > len(cells[1])
    assert " ".join(cells[0]).split() == " ".join(cells[1]).split()


def test_progress_is_for_terminals_only(capsys, model, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for number, (options, shown) in enumerate([([], True), (["--quiet"], False), (["--no-progress"], False)]):
        assert cli.main(["convert", model, "-o", str(tmp_path / str(number)), "--policy", "int8", *options]) == 0
        assert ("block" in capsys.readouterr().err) == shown


def test_an_inspection_lists_tensors_and_metadata(capsys, model):
    assert cli.main(["inspect", model]) == 0
    printed, err = capsys.readouterr()
    assert err == ""
    rows = checkpoint.inspect(model)["tensors"]
    largest = max(row["max_abs"] for row in rows)
    row = next(
        line for line in printed.splitlines() if line.startswith("layer.*.weight  6 of 30 x 40  float32  0.029 ")
    )
    assert float(row.split()[8]) == float(f"{largest:.4g}")
    folded = " (* replaces numbers; --all lists every tensor)"
    assert printed.endswith(f"7 tensors: 0.0 MB{folded}\nmodel.safetensors: format = pt\n")
    assert cli.main(["inspect", model, "--all"]) == 0
    printed = capsys.readouterr().out
    assert re.search("^layer.5.weight +30 x 40  float32", printed, re.MULTILINE)
    assert printed.endswith("7 tensors: 0.0 MB\nmodel.safetensors: format = pt\n")
    assert cli.main(["inspect", model, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == checkpoint.inspect(model)


def test_verification_is_code_1_beyond_the_tolerance(capsys, model, out):
    assert cli.main(["convert", model, "-o", out, "--policy", "int8", "--quiet"]) == 0
    assert cli.main(["verify", model, model]) == 0
    assert cli.main(["verify", model, out, "--rtol", "0.02"]) == 0
    capsys.readouterr()
    assert cli.main(["verify", model, out]) == 1
    assert capsys.readouterr().err.count("mp-core: failed: layer.") == 6
    assert cli.main(["verify", model, out, "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["failed"]) == 6
    assert "received 'nan'; it must be a finite number of at least 0" in usage_error(
        capsys, "verify", model, out, "--rtol", "nan"
    )


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak of memory in /proc")
@pytest.mark.parametrize("shape", [(3, 2**24 + 5), (2**19, 96), (2**23, 5)])
def test_memory_stays_below_the_limit(tmp_path, shape):
    path, size = tmp_path / "sparse.safetensors", 4 * shape[0] * shape[1]
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    code = "import sys; from mp_core import cli, demo; assert not cli.main(sys.argv[1:]); print(demo.peak_rss_bytes())"
    arguments = ["convert", path, "-o", tmp_path / "out", "--policy", "int8", "--quiet", "--max-memory", "96MiB"]
    peak = int(processes.run([sys.executable, "-c", code, *arguments], capture_output=True, check=True).stdout)
    assert peak < 96 * 2**20 < size


def run(*arguments, **options):
    command = [sys.executable, "-m", "mp_core", *arguments]
    return processes.run(command, capture_output=True, **options)


def test_a_closed_standard_error_is_no_failure(model):
    command = f"{sys.executable} -m mp_core inspect {model} 2>&-"
    assert processes.run(["sh", "-c", command], stdout=subprocess.DEVNULL).returncode == 0


def test_names_that_standard_output_cannot_show(tmp_path):
    save_file({"gewicht_ä": np.ones((2, 64), np.float32)}, tmp_path / "in.safetensors")
    done = run("inspect", str(tmp_path / "in.safetensors"), env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and rb"gewicht_\xe4" in done.stdout


def test_a_long_name_takes_no_room_in_other_rows(capsys, tmp_path):
    save_file({"x" * 5000: np.ones(2, np.float32), "y": np.ones(2, np.float32)}, tmp_path / "in.safetensors")
    assert cli.main(["inspect", str(tmp_path / "in.safetensors")]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 400


def test_a_report_beside_an_index_is_in_the_model(capsys, tmp_path, model, out):
    index = tmp_path / "model.safetensors.index.json"
    files = dict.fromkeys(open_tensors(model), "model.safetensors")
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    report = str(tmp_path / "new.json")
    err = usage_error(capsys, "convert", str(index), "-o", out, "--policy", "int8", f"--json={report}")
    assert "argument --json: " in err and not Path(out).exists()
