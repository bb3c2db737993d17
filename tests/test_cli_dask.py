"""`mp-core embed --dask`: the workers of a cluster give the same vectors as one process."""

import json

import numpy as np
import pytest
import tiny_bert
from command import usage_error

from mp_core import cli
from mp_core.models import BertEncoder

TEXTS = ["a b c", "", "d e", "h", "a " * 100]


@pytest.fixture(scope="module")
def address():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0", silence_logs=50
    ) as found:
        yield found.scheduler_address


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_bert.write(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def command(address, model, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS))
    return ["embed", "--dask", address, str(model), "--output", str(tmp_path / "out"), str(path)]


def test_vectors_are_in_a_folder_and_are_not_computed_twice(command, model, tmp_path, capsys):
    assert cli.main(command) == 0
    expected = BertEncoder.from_folder(model).encode(TEXTS)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "part-000000.npy"), expected)
    assert capsys.readouterr().err == "mp-core: 1 files written, 0 existed already; 1 of 5 texts were cut off\n"
    assert cli.main([*command, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_options_and_a_map_of_policies_reach_the_workers(command, model, tmp_path):
    from mp_core.dtype_policies import DTypePolicyMap, serialize

    policies = DTypePolicyMap("float32", {"encoder/layer_0/attention/query": "mixed_bfloat16"})
    (tmp_path / "map.json").write_text(json.dumps(serialize(policies)))
    options = ["--map", str(tmp_path / "map.json"), "--no-normalize", "--truncate-dim", "3", "--prompt", "a "]
    assert cli.main([*command, *options, "--format", "parquet"]) == 0
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "out" / "part-000000.parquet")
    expected = BertEncoder.from_folder(model, policies).encode(TEXTS, normalize=False, truncate_dim=3, prompt="a ")
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), np.float32), expected)


def test_the_output_of_another_job_needs_force(command, capsys):
    assert cli.main(command) == 0
    capsys.readouterr()
    assert "use force to replace it" in usage_error(capsys, *command, "--policy", "int8")
    assert cli.main([*command, "--policy", "int8", "--force"]) == 0


def test_a_failed_part_is_one_line(command, tmp_path, capsys):
    (tmp_path / "texts.txt").write_bytes(b"\xff\n")
    assert cli.main(command) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "1 of 1 parts failed" in error and "line 1 is not UTF-8" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "out"], "needs --output, and files"),
        (["--output", "out", "-"], "needs --output, and files"),
        (["texts"], "needs --output, and files"),
        (
            ["--output", "out", "texts", "--format", "tsv"],
            "argument --format: must be npy or parquet with --dask; received tsv",
        ),
    ],
)
def test_wrong_usage_is_one_line_before_anything_is_opened(capsys, arguments, message):
    assert message in usage_error(capsys, "embed", "absent", "--dask", "absent:1", *arguments)


def test_parquet_needs_a_cluster(capsys):
    assert "parquet needs --dask" in usage_error(capsys, "embed", "absent", "--format", "parquet")
