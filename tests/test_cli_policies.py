"""Policies on the command line: `choose`, maps in files, and the words that commands accept."""

import json
from pathlib import Path

import numpy as np
import pytest
from command import TEXTS, usage_error

from mp_core import cli, dtype_policies
from mp_core.checkpoint import open_tensors
from mp_core.cli.common import BAD_INPUT
from mp_core.dtype_policies import SPELLINGS
from mp_core.models import BertEncoder


def test_choose_prints_the_table_or_json(capsys, model, texts):
    arguments = ["choose", model, "--texts", texts, "--max-error", "1e-3", "--policies", "float16", "int8"]
    assert cli.main(arguments) == 0
    assert "embeddings/word" in capsys.readouterr().out
    assert cli.main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    policy = dtype_policies.deserialize(report["map"])
    assert {row["path"]: row["policy"] for row in report["table"]} == {
        row["path"]: policy[row["path"]].name for row in report["table"]
    }
    assert report["error"]["max"] <= 1e-3
    assert report["nbytes"] == BertEncoder.from_folder(model, policy).weight_bytes


@pytest.mark.parametrize("budget", ["-1", "nan", "inf", "much"])
def test_choose_needs_a_budget(capsys, model, texts, budget):
    message = usage_error(capsys, "choose", model, "--texts", texts, f"--max-error={budget}")
    assert "it must be a finite number of at least 0" in message


@pytest.mark.usefixtures("young_process")
def test_a_chosen_map_serves_embed_and_convert(capsys, model, texts, tmp_path):
    path, small = tmp_path / "map.json", str(tmp_path / "small")
    arguments = ["choose", model, "--texts", texts, "--max-error", "1e-2", "--policies", "bfloat16", "int8"]
    assert cli.main([*arguments, "--output", str(path)]) == 0
    assert "weights: " in capsys.readouterr().out
    chosen = dtype_policies.deserialize(json.loads(path.read_text()))
    assert len({policy.name for policy in chosen.values()}) > 1
    assert "use force (--force) to replace it" in usage_error(capsys, *arguments, "--output", str(path))
    report = tmp_path / "report.json"
    assert cli.main([*arguments, "--output", str(path), "--force", "--json"]) == 0
    report.write_text(capsys.readouterr().out)
    for file in (path, report):
        out = str(tmp_path / f"{file.stem}.npy")
        assert cli.main(["embed", model, "--map", str(file), "--output", out, texts]) == 0
        np.testing.assert_array_equal(np.load(out), BertEncoder.from_folder(model, chosen).encode(TEXTS))
    assert cli.main(["convert", model, "-o", small, "--map", str(path), "--quiet"]) == 0
    tensors = open_tensors(Path(small, "model.safetensors"))
    names = BertEncoder.from_folder(model).tensor_names
    assert set(chosen) == set(names)
    for layer, start in names.items():
        expected = {"int8_from_mixed_bfloat16": "int8", "bfloat16": "bfloat16", "float32": "float32"}
        own = [
            tensor.dtype.name for name, tensor in tensors.items() if name.startswith(start) and len(tensor.shape) > 1
        ]
        assert set(own) <= {expected[chosen[layer].name]}, layer
    found = BertEncoder.from_folder(small, chosen).encode(TEXTS)
    assert (found * BertEncoder.from_folder(model).encode(TEXTS)).sum(axis=1).min() > 0.98


def test_a_chosen_model_is_a_folder_for_embed(capsys, model, texts, tmp_path):
    folder, out = str(tmp_path / "small"), str(tmp_path / "out.npy")
    arguments = ["choose", model, "--texts", texts, "--max-error", "1e-2", "--policies", "bfloat16", "int8", "--json"]
    assert cli.main([*arguments, "--output", folder]) == 0
    chosen = dtype_policies.deserialize(json.loads(capsys.readouterr().out)["map"])
    assert cli.main(["embed", folder, "--output", out, texts]) == 0
    np.testing.assert_array_equal(np.load(out), BertEncoder.from_folder(model, chosen).encode(TEXTS))
    assert "use force (--force) to replace it" in usage_error(capsys, *arguments, "--output", folder)
    assert cli.main([*arguments, "--output", folder, "--force"]) == 0
    capsys.readouterr()
    (tmp_path / "small" / "mine").touch()
    assert "it is not replaced" in usage_error(capsys, *arguments, "--output", folder, "--force")
    unheld = [*arguments[:-1], "int4/20", "--output", str(tmp_path / "other")]
    assert "must be powers of two from 2 to 32768; received 'int4/20'" in usage_error(capsys, *unheld)
    assert cli.main([*arguments, "--output", str(tmp_path / "none" / "small")]) == BAD_INPUT
    assert "none: No such file or directory" in capsys.readouterr().err


def test_a_map_larger_than_any_is_refused_before_it_is_read(capsys, model, texts, tmp_path):
    path = tmp_path / "map.json"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    assert cli.main(["embed", model, "--map", str(path), texts]) == BAD_INPUT
    assert capsys.readouterr().err == f"mp-core: error: {path} has more than 100000000 bytes\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a map of policies"),
        ("[1]", "is not a map of policies: expected a JSON object"),
        ("{}", "is not a map of policies: "),
        ('{"class_name": "DTypePolicy", "config": {"name": "float16"}}', "it is the policy 'float16'"),
        ('{"class_name": "DTypePolicyMap", "config": {"policy_map": {"(": {}}}}', "is not a map of policies: "),
    ],
)
def test_a_file_that_is_no_map_is_bad_input(capsys, model, texts, tmp_path, content, message):
    path = tmp_path / "map.json"
    path.write_text(content)
    convert = ["convert", model, "-o", str(tmp_path / "out")]
    for command in (["embed", model, texts], convert):
        assert cli.main([*command, "--map", str(path)]) == 3
        err = capsys.readouterr().err
        assert f"{path} {message}" in err or message in err
        assert err.count("\n") == 1
    path.write_text(
        json.dumps(dtype_policies.serialize(dtype_policies.DTypePolicyMap("float32", {"layer_9": "int8_from_float32"})))
    )
    assert cli.main([*convert, "--map", str(path)]) == 3
    assert "has no layer that matches" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["int8", "int8/weight_only", "int8/weight_only/64", "int4/64", "float8_e4m3fn/tensor"])
def test_a_scheme_alone_is_over_mixed_bfloat16_on_the_command_line(model, texts, tmp_path, word):
    out = tmp_path / "out.npy"
    assert cli.main(["embed", model, "--policy", word, "--output", str(out), texts]) == 0
    encoder = BertEncoder.from_folder(model, f"{word}_from_mixed_bfloat16")
    np.testing.assert_array_equal(np.load(out), encoder.encode(TEXTS))


def test_commands_compute_as_the_folder_holds_its_weights_unless_told(model, texts, tmp_path):
    out = tmp_path / "out.npy"
    assert cli.main(["embed", model, "--output", str(out), texts]) == 0
    np.testing.assert_array_equal(np.load(out), BertEncoder.from_folder(model, "float32").encode(TEXTS))


@pytest.mark.parametrize("command", ["embed", "choose", "demo"])
@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("int9", ""),
        ("int8_weight_only", ""),
        ("int8/64", ""),
        ("int4", " (a scheme of int4 must name its groups, as in int4/64; received 'int4')"),
        ("int8_from_float16", " (Quantization mode='int8' doesn't work well with compute_dtype='float16'.)"),
    ],
)
def test_an_error_names_the_policies_that_there_are(capsys, command, word, reason):
    arguments = {
        "embed": ["m", "--policy"],
        "choose": ["m", "--max-error", "1", "--texts", "t", "--policies"],
    }
    err = usage_error(capsys, command, *arguments.get(command, ["--policies"]), word)
    assert f"must be one of float32, float16, bfloat16, mixed_float16, mixed_bfloat16, {', '.join(SPELLINGS)}" in err
    assert (
        err.endswith(f", or SCHEME_from_POLICY such as int8_from_mixed_bfloat16{reason}")
        and f": received {word!r}; " in err
    )


@pytest.mark.parametrize("word", ["gptq/4/64_from_float32", "awq/4/64_from_float32", "ternary_from_float32"])
def test_a_policy_without_a_scheme_is_refused(capsys, word):
    err = usage_error(capsys, "embed", "m", "--policy", word)
    assert f"must be a policy that folders can hold; {word!r} has no scheme" in err
