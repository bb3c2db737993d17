"""``mp-core run``, ``inspect`` and ``profile`` of ONNX files and saved programs."""

import json

import numpy as np
import pytest
from command import usage_error

import mp_core as mp
from mp_core import cli

onnx = pytest.importorskip("onnx")
helper = onnx.helper
RNG = np.random.default_rng(0)
W, B = RNG.standard_normal((8, 4)).astype(np.float32), RNG.standard_normal(4).astype(np.float32)
X = RNG.standard_normal((3, 8)).astype(np.float32)
EXPECTED = np.maximum(X.astype(np.float64) @ W + B, 0)


def written(path, *more):
    """Write the graph of ``relu(x @ w + b)``."""
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", size]) for name, size in (("x", 8), ("y", 4))
    ]
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["h"]), helper.make_node("Relu", ["h"], ["y"]), *more]
    constants = [onnx.numpy_helper.from_array(W, "w"), onnx.numpy_helper.from_array(B, "b")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    return str(path)


@pytest.fixture
def files(tmp_path):
    np.savez(tmp_path / "in.npz", x=X)
    return written(tmp_path / "model.onnx"), str(tmp_path / "in.npz"), str(tmp_path / "out.npz")


def test_run_writes_the_outputs_by_name_and_prints_their_range(files, capsys):
    model, inputs, outputs = files
    assert cli.main(["run", model, inputs, "-o", outputs]) == 0
    np.testing.assert_allclose(np.load(outputs)["y"], EXPECTED, rtol=1e-5, atol=1e-6)
    assert capsys.readouterr().out.startswith("y: float32 (3, 4), min 0, max ")
    assert "use --force" in usage_error(capsys, "run", model, inputs, "-o", outputs)
    assert cli.main(["run", model, inputs, "-o", outputs, "--force", "--quiet"]) == 0


def test_run_opens_the_folder_of_a_saved_graph_and_follows_a_policy(files, tmp_path, capsys):
    model, inputs, _ = files
    mp.interop.onnx.load(model).save(tmp_path / "folder")
    assert cli.main(["run", str(tmp_path / "folder"), inputs, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["dtype"] == "float32"
    assert cli.main(["run", model, inputs, "--policy", "mixed_bfloat16", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["outputs"]
    assert (row["dtype"], row["shape"]) == ("bfloat16", [3, 4])
    assert abs(row["max"] - EXPECTED.max()) < 0.05


def test_inspect_lists_operators_and_what_cannot_run(tmp_path, capsys):
    path = written(tmp_path / "model.onnx", helper.make_node("Nonsense", ["y"], ["z"], name="last"))
    assert cli.main(["inspect", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "input      x: float32 (n, 8)"
    assert lines[-1] == "last (Nonsense): the operator is not supported"
    assert cli.main(["inspect", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["operators"] == {"Gemm": 1, "Relu": 1, "Nonsense": 1}


def test_profile_fills_unknown_lengths(files, capsys):
    assert cli.main(["profile", files[0], "--batch-size", "5"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("x (5, 8), float32, ")
    assert "product 8x4" in out


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04broken"])
def test_files_that_are_no_archives_of_arrays_are_an_error_of_one_line(files, tmp_path, content, capsys):
    (tmp_path / "in.npz").write_bytes(content)
    assert cli.main(["run", files[0], files[1]]) == 3
    assert capsys.readouterr().err == f"mp-core: error: {files[1]} is not an .npz file of arrays\n"


def test_inputs_that_do_not_fit_are_an_error_that_names_them(files, tmp_path, capsys):
    np.savez(tmp_path / "in.npz", z=X)
    assert cli.main(["run", files[0], files[1]]) == 3
    assert f"{files[1]}: the inputs of" in capsys.readouterr().err
    np.savez(tmp_path / "in.npz", x=X[:, :5])
    assert cli.main(["run", files[0], files[1]]) == 3
    assert "input 'x' must have shape (n, 8); received (3, 5)" in capsys.readouterr().err


def test_convert_writes_a_folder_that_runs_and_reports_what_matrices_lost(files, tmp_path, capsys):
    model, inputs, _ = files
    folder = str(tmp_path / "small")
    assert cli.main(["convert", model, "-o", folder, "--policy", "int8_from_float32", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["tensors"]
    assert (row["shape"], row["dtype"], row["new_dtype"]) == ([4, 8], "float32", "int8")
    assert 30 < row["sqnr"] < 60
    assert cli.main(["run", folder, inputs, "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert abs(output["max"] - EXPECTED.max()) < 0.05
    assert "--keep: not allowed" in usage_error(
        capsys, "convert", model, "-o", folder, "--policy", "int8", "--keep", "a"
    )


def test_convert_reports_the_errors_of_outputs_compared_with_float32(files, tmp_path, capsys):
    model, inputs, _ = files
    folder, policy = str(tmp_path / "small"), "int8_from_float32"
    options = ["convert", model, "-o", folder, "--policy", policy, "--inputs", inputs]
    assert cli.main([*options, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["outputs"]
    found = mp.models.ProgramModel.from_folder(folder)(X).astype(np.float64)
    exact = mp.interop.onnx.load(model)(X).astype(np.float64)
    assert row["rmse"] == pytest.approx(np.linalg.norm(found - exact) / np.linalg.norm(exact), rel=1e-6)
    assert (row["name"], row["shape"]) == ("y", [3, 4])
    assert cli.main(["convert", model, "-o", folder, "--policy", policy, "--force"]) == 0
    out = capsys.readouterr().out
    assert "outputs for drawn inputs, compared with those of the graph in float32:" in out
    assert "rel RMSE" in out


def test_verify_compares_weights_and_outputs_of_graphs(files, tmp_path, capsys):
    model, inputs, _ = files
    same, small = str(tmp_path / "same"), str(tmp_path / "small")
    mp.interop.onnx.load(model).save(same)
    mp.interop.onnx.load(model, "int8_from_float32").save(small)
    assert cli.main(["verify", model, same, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in report["tensors"]] == ["h", "h.bias"]
    assert [row["rmse"] for row in report["outputs"]] == [0.0]
    assert cli.main(["verify", model, small, "--inputs", inputs]) == 1
    captured = capsys.readouterr()
    assert f"compared with those of {model}" in captured.out
    assert [line.split(" is ")[0] for line in captured.err.splitlines()] == [
        "mp-core: failed: h: rel_rmse", "mp-core: failed: output y: rel_rmse",
    ]  # fmt: skip
    assert cli.main(["verify", model, small, "--rtol", "0.05"]) == 0
    with np.load(inputs) as given:
        np.savez(tmp_path / "nan.npz", **{name: np.full_like(x, np.nan) for name, x in given.items()})
    assert cli.main(["verify", model, small, "--rtol", "9", "--inputs", str(tmp_path / "nan.npz")]) == 1


def test_verify_names_weights_and_inputs_that_only_one_graph_has(files, tmp_path, capsys):
    model, *_ = files
    nodes = [helper.make_node("Relu", ["z"], ["y"])]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 8]) for name in "zy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), tmp_path / "other.onnx")
    assert cli.main(["verify", model, str(tmp_path / "other.onnx")]) == 3
    assert "the graphs must have the same inputs; they have ['x'] and ['z']" in capsys.readouterr().err


def test_choose_finds_policies_of_a_graph_within_a_budget(files, tmp_path, capsys):
    model, inputs, _ = files
    folder = str(tmp_path / "chosen")
    options = ["--max-error", "0.05", "--metric", "rmse", "--policies", "float16", "int8_from_float32"]
    assert cli.main(["choose", model, "--inputs", inputs, *options, "-o", folder, "--json", "--quiet"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {row["policy"] for row in report["table"]} == {"int8_from_float32"}
    assert cli.main(["verify", model, folder, "--inputs", inputs, "--rtol", "0.05", "--quiet"]) == 0
    assert "required: --texts" in usage_error(capsys, "choose", folder + "-", "--max-error", "1")
    assert "argument --texts: not allowed" in usage_error(
        capsys, "choose", model, "--texts", inputs, "--max-error", "1"
    )


@pytest.mark.parametrize("command", ["choose", "convert", "verify"])
def test_inputs_are_for_graphs_only(files, tmp_path, command, capsys):
    (tmp_path / "folder").mkdir()
    folder, inputs = str(tmp_path / "folder"), files[1]
    more = {"choose": ["--max-error", "1"], "convert": ["--policy", "int8", "-o", "out"], "verify": [folder]}[command]
    assert "argument --inputs: not allowed" in usage_error(capsys, command, folder, *more, "--inputs", inputs)
