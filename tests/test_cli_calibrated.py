"""`mp-core convert --calibrate`: an encoder fitted to texts, as a folder that `embed` opens; and errors."""

import json

import numpy as np
import pytest
import tiny_bert
from command import usage_error

from mp_core import calibrate, checkpoint, cli
from mp_core.dtype_policies import DTypePolicyMap
from mp_core.models import BertEncoder

TEXTS = ["a b c", "d", "h g f e", "a b c d e f g h"]


@pytest.fixture
def model(tmp_path):
    return str(tiny_bert.write(tmp_path / "model"))


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return str(path)


def embedded(capsys, folder, texts):
    """Return the bits that `mp-core embed` prints."""
    assert cli.main(["embed", str(folder), "--quiet", texts]) == 0
    return np.array([json.loads(line)["embedding"] for line in capsys.readouterr().out.splitlines()], np.float32)


@pytest.mark.parametrize("policy", ["int8", "int4/8", "int8/weight_only_from_float32"])
def test_the_folder_has_the_bits_of_the_encoder_calibrated_in_memory(capsys, model, texts, tmp_path, policy):
    arguments = ["convert", model, "-o", str(tmp_path / "small"), "--policy", policy, "--calibrate", texts]
    assert cli.main([*arguments, "--json", str(tmp_path / "report.json")]) == 0
    capsys.readouterr()
    fitted = calibrate(BertEncoder.from_folder(model), TEXTS, policy)
    np.testing.assert_array_equal(embedded(capsys, tmp_path / "small", texts), fitted.encode(TEXTS))
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["codes"], report["failed"]) == (13, [])
    assert {row["name"] for row in report["tensors"]} == tiny_bert.tensors().keys()
    measured = {row["name"]: row for row in checkpoint.verify(model, tmp_path / "small")["tensors"]}
    assert all(float(row["sqnr"]) == measured[row["name"]]["sqnr"] for row in report["tensors"])


def test_maps_and_what_is_kept_go_by_the_names_of_tensors(capsys, model, texts, tmp_path):
    options = ["--map", "layer.0=int4/8", "--keep", "word_embeddings", "--calibrate", texts]
    assert cli.main(["convert", model, "-o", str(tmp_path / "small"), "--policy", "int8", *options]) == 0
    capsys.readouterr()
    policies = {"embeddings/word": "mixed_bfloat16", "encoder/layer_0/.*": "int4/8_from_mixed_bfloat16"}
    fitted = calibrate(BertEncoder.from_folder(model), TEXTS, DTypePolicyMap("int8_from_mixed_bfloat16", policies))
    np.testing.assert_array_equal(embedded(capsys, tmp_path / "small", texts), fitted.encode(TEXTS))


def test_held_out_texts_choose_the_ranges_as_in_memory(capsys, model, texts, tmp_path):
    (tmp_path / "rare.txt").write_text("h\na a a\n")
    options = ["--calibrate", texts, "--held-out", str(tmp_path / "rare.txt")]
    assert cli.main(["convert", model, "-o", str(tmp_path / "small"), "--policy", "int8", *options]) == 0
    capsys.readouterr()
    fitted = calibrate(BertEncoder.from_folder(model), TEXTS, "int8", held_out=["h", "a a a"])
    np.testing.assert_array_equal(embedded(capsys, tmp_path / "small", texts), fitted.encode(TEXTS))


def test_held_out_texts_without_a_sample_are_refused(capsys, model, texts, tmp_path):
    arguments = ["convert", model, "-o", str(tmp_path / "small"), "--policy", "int8", "--held-out", texts]
    assert "argument --held-out: not allowed without argument --calibrate" in usage_error(capsys, *arguments)


def test_what_is_quantized_already_is_named_with_the_option(capsys, model, texts, tmp_path):
    checkpoint.convert(model, tmp_path / "int8", "int8")
    arguments = ["convert", str(tmp_path / "int8"), "-o", str(tmp_path / "out"), "--policy", "int4/8", "--calibrate"]
    err = usage_error(capsys, *arguments, texts)
    assert "int8 is quantized already, in layer 'embeddings/word'" in err and "--allow-requantize" in err
    assert cli.main([*arguments, texts, "--allow-requantize"]) == 0


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        ("model", "out", ["--map", "nothing=int8"], "the pattern 'nothing' matches the weights of no layer"),
        ("model", "out", ["--dry-run"], "argument --dry-run: not allowed with argument --calibrate"),
        ("model", "out", ["--exclude", "*.txt"], "argument --exclude: not allowed with argument --calibrate"),
        ("model", "out", ["--no-saturate"], "argument --no-saturate: not allowed with argument --calibrate"),
        ("model", "out", ["--max-memory", "1GiB"], "argument --max-memory: not allowed with argument --calibrate"),
        ("model", "out", ["--json={texts}"], "would overwrite"),
        ("model", "out.safetensors", [], "with --calibrate, MODEL and OUT must be folders"),
        ("model/model.safetensors", "out", [], "with --calibrate, MODEL and OUT must be folders"),
        ("model", "model/inside", [], "is inside the folder that is converted"),
        ("model", "model", ["--force"], "it is not replaced"),
        ("model", "there", [], "there exists; use force (--force) to replace it"),
    ],
)
def test_what_cannot_be_written_is_refused(capsys, model, texts, tmp_path, source, target, options, message):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.json").write_text("{}")
    before = set(tmp_path.rglob("*"))
    arguments = ["convert", str(tmp_path / source), "-o", str(tmp_path / target), "--policy", "int8", "--calibrate"]
    options = [option.format(texts=texts) for option in options]
    assert message in usage_error(capsys, *arguments, texts, *options)
    assert set(tmp_path.rglob("*")) == before


def test_a_condition_that_is_met_leaves_nothing(capsys, model, texts, tmp_path):
    arguments = ["convert", model, "-o", str(tmp_path / "out"), "--policy", "int8", "--calibrate", texts]
    assert cli.main([*arguments, "--fail-if", "sqnr<1000"]) == 1
    assert "sqnr < 1000" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_force_replaces_the_folder_that_is_there(capsys, model, texts, tmp_path):
    arguments = ["convert", model, "-o", str(tmp_path / "out"), "--quiet", "--calibrate", texts, "--policy"]
    assert cli.main([*arguments, "int8"]) == 0
    assert cli.main([*arguments, "int4/8", "--force"]) == 0
    assert checkpoint.stored_policies(tmp_path / "out")[0] == "int4/8_from_mixed_bfloat16"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out", "texts.txt"]
