"""Damaged folders of compressed-tensors, AutoAWQ and GPTQ: each error names the file, the tensor and what fits."""

import copy
import json

import numpy as np
import packed_folders as folders
import pytest
from safetensors.numpy import save_file

from mp_core import cli
from mp_core.checkpoint import convert, open_tensors

RNG = np.random.default_rng(3)
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 8, "sym": True, "desc_act": True}
PACK = folders.compressed("pack-quantized", symmetric=False)
INT8 = folders.compressed(
    "int-quantized", bits=8, group=None, symmetric=False,
    inputs={"num_bits": 8, "type": "int", "dynamic": False, "strategy": "tensor"},
)  # fmt: skip
CASES = {
    "pack": (PACK, lambda x: folders.pack_quantized(x, RNG, symmetric=False)[0]),
    "int8": (INT8, lambda x: folders.int_quantized(x, RNG, symmetric=False)[0] | {"input_scale": np.float32([1])}),
    "awq": (AWQ, lambda x: folders.awq(x, RNG)[0]),
    "gptq": (GPTQ, lambda x: folders.gptq(x, RNG, order=folders.shuffled(x.shape[1], 8, RNG))[0]),
}
X = RNG.standard_normal((16, 32)).astype(np.float32)


def write(folder, case, change_config=lambda config: None, change=lambda parts: None):
    """Write a folder with one packed weight, damaged by two functions."""
    config, pack = CASES[case]
    config, parts = copy.deepcopy(config), {f"l.{part}": value for part, value in pack(X).items()}
    change_config(config)
    change(parts)
    folder.mkdir(exist_ok=True)
    save_file(parts, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder


def entry(*path):
    """Return a function that sets an entry of the configuration, or removes it if the value is None."""

    def change(config):
        *parents, key, value = path
        for parent in parents:
            config = config[parent]
        config[key] = value

    return change


GROUP = ("config_groups", "group_0")
WEIGHTS = (*GROUP, "weights")
CONFIGS = [
    ("gptq", entry("bits", 3), r"bits is 3; expected 4 or 8"),
    ("gptq", entry("bits", "4"), r"bits is '4'; expected 4 or 8"),
    ("gptq", entry("bits", None), r"bits is None; expected 4 or 8"),
    ("gptq", entry("bits", True), r"bits is True"),
    ("gptq", entry("group_size", 0), r"group_size is 0; expected -1 or a positive even number"),
    ("gptq", entry("group_size", 2**40), r"group_size is 1099511627776; expected"),
    ("gptq", entry("group_size", 16), r"'l\.qzeros' is int32 of shape \(4, 2\); expected int32 of shape \(2, 2\)"),
    ("gptq", entry("checkpoint_format", "marlin"), r"checkpoint_format is 'marlin'; expected 'gptq' or 'gptq_v2'"),
    ("gptq", entry("dynamic", {"+:l": {"bits": 8}}), r"dynamic has the rule '\+:l'; expected rules that begin"),
    ("gptq", entry("dynamic", {"-:l": {}}), r"tensor 'l\.qweight' has codes, but .* its module is not quantized"),
    ("gptq", entry("dynamic", {"-:(a+)+$": {}}), r"no regular expression that mp_core matches"),
    ("gptq", entry("pack_dtype", "int16"), r"pack_dtype is 'int16'"),
    ("awq", entry("version", "gemv"), r"version is 'gemv'; expected 'gemm'"),
    ("awq", entry("bits", 8), r"bits is 8; expected 4"),
    ("awq", entry("zero_point", False), r"zero_point is False; expected True"),
    ("awq", entry("modules_to_not_convert", ["l"]), r"its module is not quantized"),
    ("awq", entry("modules_to_not_convert", "l"), r"modules_to_not_convert is 'l'; expected a list"),
    ("awq", entry("group_size", 24), r"has 32 inputs; expected a multiple of group_size=24"),
    ("pack", entry("format", "marlin-24"), r"format is 'marlin-24'; expected 'pack-quantized' or"),
    ("pack", entry("format", None), r"format is None; expected 'pack-quantized' or"),
    ("pack", entry("format", ["a"]), r"format is \['a'\]; expected"),
    ("pack", entry("config_groups", None), r"config_groups is None; expected an object"),
    ("pack", entry("config_groups", {"W4A16": ["Linear"]}), r"W4A16 is \['Linear'\]; expected an object"),
    ("pack", entry("transform_config", {"a": 1}), r"mp_core does not compute transforms"),
    ("pack", entry("sparsity_config", {"format": "sparse-24-bitmask"}), r"format is 'sparse-24-bitmask'"),
    ("pack", entry("ignore", ["l"]), r"its module is not quantized"),
    ("pack", entry("ignore", ["re:("]), r"ignore: 're:\(' is no regular expression"),
    ("pack", entry("ignore", [3]), r"ignore is \[3\]; expected a list of"),
    ("pack", entry(*GROUP, "targets", ["re:.*mlp"]), r"its module is not quantized"),
    ("pack", entry(*WEIGHTS, "num_bits", 3), r"group_0: weights: num_bits is 3; expected 4 or 8"),
    ("pack", entry(*WEIGHTS, "type", "float"), r"type is 'float'; expected 'int'"),
    ("pack", entry(*WEIGHTS, "group_size", 7), r"group_size is 7; expected"),
    ("pack", entry(*WEIGHTS, "group_size", None), r"group_size is None; expected a positive number for"),
    ("pack", entry(*WEIGHTS, "group_size", 24), r"has 32 inputs; expected a multiple of group_size=24"),
    ("pack", entry(*WEIGHTS, "strategy", "channel"), r"group_size is 8; expected null or -1 for strategy 'channel'"),
    ("pack", entry(*WEIGHTS, "strategy", "block"), r"block_structure is None; expected two positive numbers"),
    ("pack", entry(*WEIGHTS, "symmetric", "no"), r"symmetric is 'no'; expected True or False"),
    ("pack", entry(*WEIGHTS, "dynamic", True), r"dynamic is True; expected False"),
    ("int8", entry(*WEIGHTS, "num_bits", 4), r"num_bits is 4; expected 8"),
    ("int8", entry(*GROUP, "input_activations", [8]), r"input_activations is \[8\]; expected an object"),
    ("int8", entry(*GROUP, "input_activations", "type", "bf16"), r"type is 'bf16'; expected 'int' or 'float'"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "change", "message"), CONFIGS, ids=range(len(CONFIGS)))
def test_a_configuration_that_contradicts_itself_or_the_tensors(tmp_path, capsys, case, change, message):
    folder = write(tmp_path / "model", case, change_config=change)
    with pytest.raises(ValueError, match=message) as caught:
        open_tensors(folder)
    assert str(folder) in str(caught.value)
    with pytest.raises(ValueError, match=message):
        convert(folder, tmp_path / "out", "float32")
    assert cli.main(["inspect", str(folder), "--no-progress"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def value(name, x):
    return lambda parts: parts.update({name: x})


def gone(name):
    return lambda parts: parts.pop(name)


def filled(name, index, x):
    return lambda parts: parts[name].__setitem__(index, x)


TENSORS = [
    ("gptq", gone("l.scales"), r"tensor 'l\.scales' is missing; 'l\.qweight' needs it"),
    ("gptq", gone("l.qzeros"), r"tensor 'l\.qzeros' is missing"),
    ("gptq", gone("l.qweight"), r"tensor 'l\.\w+' is of GPTQ( or AWQ)?, whose codes mp_core cannot read"),
    ("gptq", value("l.g_idx", np.zeros(31, np.int32)), r"'l\.g_idx' is int32 of shape \(31,\); expected .*\(32,\)"),
    ("gptq", value("l.g_idx", np.zeros(32, np.float32)), r"'l\.g_idx' is float32"),
    ("gptq", filled("l.g_idx", 3, 4), r"'l\.g_idx' has 0 to 4; expected indices of 4 groups"),
    ("gptq", filled("l.g_idx", 3, -1), r"'l\.g_idx' has -1 to 3; expected"),
    ("gptq", filled("l.scales", (0, 0), np.nan), r"'l\.scales': scales must be positive and finite"),
    ("gptq", filled("l.scales", (0, 0), np.inf), r"'l\.scales': scales must be positive and finite"),
    ("gptq", filled("l.scales", (0, 0), -1), r"'l\.scales': scales must be positive and finite"),
    ("gptq", filled("l.scales", (0, 0), 0), r"'l\.scales': scales must be positive and finite"),
    ("gptq", filled("l.qzeros", (0, 0), 0), r"'l\.qzeros' has other zero points than 8; sym is true"),
    ("gptq", value("l.scales", np.ones((3, 16), np.float16)), r"'l\.scales' is float16 of shape \(3, 16\); expected"),
    ("gptq", value("l.scales", np.ones((4, 16), np.int32)), r"'l\.scales' is int32"),
    ("gptq", value("l.qweight", np.zeros((4, 16), np.int64)), r"'l\.qweight' is int64 of shape \(4, 16\); expected"),
    ("gptq", value("l.qweight", np.zeros(64, np.int32)), r"'l\.qweight' is int32 of shape \(64,\); expected two axes"),
    ("gptq", value("l.qweight", np.zeros((4, 15), np.int32)), r"'l\.qweight' .* expected a multiple of 8 columns"),
    ("gptq", value("l.qweight", np.zeros((0, 16), np.int32)), r"expected (no length of 0|.*of shape \(0, 2\))"),
    ("gptq", value("l.weight", X), r"tensor 'l\.weight' is there twice: as numbers and as 'l\.qweight'"),
    ("awq", gone("l.qzeros"), r"tensor 'l\.qzeros' is missing"),
    ("awq", filled("l.scales", (1, 1), np.nan), r"'l\.scales': scales must be positive and finite"),
    ("awq", value("l.qzeros", np.zeros((4, 3), np.int32)), r"'l\.qzeros' is int32 of shape \(4, 3\); .*\(4, 2\)"),
    ("pack", gone("l.weight_shape"), r"tensor 'l\.weight_shape' is missing; 'l\.weight_packed' needs it"),
    ("pack", gone("l.weight_zero_point"), r"tensor 'l\.weight_zero_point' is missing"),
    ("pack", value("l.weight_shape", np.int64([16, 33])), r"'l\.weight_shape' is \[16, 33\]; .* of 16 lines"),
    ("pack", value("l.weight_shape", np.int64([16, -32])), r"'l\.weight_shape' is \[16, -32\]"),
    ("pack", value("l.weight_shape", np.int64([16, 2**62])), r"'l\.weight_shape' is \[16, 4611686018427387904\]"),
    ("pack", value("l.weight_shape", np.int64([16, 32, 1])), r"'l\.weight_shape' is int64 of shape \(3,\)"),
    ("pack", value("l.weight_packed", np.zeros((16, 3), np.int32)), r"'l\.weight_shape' is \[16, 32\]; .* 3 int32"),
    ("pack", value("l.weight_packed", np.zeros((16, 4), np.float32)), r"'l\.weight_packed' is float32"),
    ("pack", value("l.weight_scale", np.ones((16, 3), np.float32)), r"'l\.weight_scale' .* expected shape \(16, 4\)"),
    ("pack", filled("l.weight_scale", (0, 0), np.nan), r"'l\.weight_scale': scales must be positive and finite"),
    ("int8", gone("l.weight_scale"), r"tensor 'l\.weight_scale' is missing; 'l\.weight' needs it"),
    ("int8", gone("l.input_scale"), r"tensor 'l\.input_scale' is missing"),
    ("int8", value("l.input_scale", np.float32([1, 2])), r"'l\.input_scale' .* expected one element"),
    ("int8", value("l.input_scale", np.float32([np.nan])), r"'l\.input_scale': scales must be positive and finite"),
    ("int8", value("l.input_zero_point", np.int32([1])), r"'l\.input_zero_point' .* one element of int8"),
    ("int8", value("l.weight_zero_point", np.zeros((16, 1), np.uint8)), r"'l\.weight_zero_point' is uint8"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "change", "message"), TENSORS, ids=range(len(TENSORS)))
def test_tensors_that_do_not_fit(tmp_path, capsys, case, change, message):
    folder = write(tmp_path / "model", case, change=change)
    for call in (open_tensors, lambda path: convert(path, tmp_path / "out", "float32")):
        with pytest.raises(ValueError, match=message) as caught:
            call(folder)
        assert "model.safetensors" in str(caught.value)
    assert not (tmp_path / "out").exists()
    code = cli.main(["inspect", str(folder), "--no-progress"])
    assert code == 3 or "cannot read" in capsys.readouterr().out


@pytest.mark.parametrize("case", ["pack", "int8"])
def test_zero_points_of_symmetric_codes_are_zeros(tmp_path, case):
    def change(config):
        config["config_groups"]["group_0"]["weights"]["symmetric"] = True

    groups = 4 if case == "pack" else 1
    write(tmp_path / "good", case, change, value("l.weight_zero_point", np.zeros((16, groups), np.int8)))
    assert open_tensors(tmp_path / "good")["l.weight"].zero_point is None
    for index, zeros in enumerate((np.eye(16, groups, dtype=np.int8), np.zeros((2, groups), np.int32))):
        write(tmp_path / str(index), case, change, value("l.weight_zero_point", zeros))
        with pytest.raises(ValueError, match=r"'l\.weight_zero_point' has other zero points than 0 in int8"):
            open_tensors(tmp_path / str(index))


@pytest.mark.parametrize("method", ["quark", None, 3, ["awq"]])
def test_an_unknown_method_is_named(tmp_path, method):
    folder = write(tmp_path / "model", "gptq", change_config=entry("quant_method", method))
    with pytest.raises(ValueError, match=r"is of GPTQ.*quant_method is .*expected compressed-tensors or awq or gptq"):
        open_tensors(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"quantization_config": 3}', b"[" * 100_000])
def test_another_content_of_config_json_explains_no_codes(tmp_path, content):
    folder = write(tmp_path / "model", "awq")
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match="is of GPTQ or AWQ, whose codes mp_core cannot read"):
        open_tensors(folder)


def test_a_truncated_file(tmp_path):
    folder = write(tmp_path / "model", "awq")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="is truncated"):
        open_tensors(folder)


def test_random_entries_never_crash(tmp_path):
    """Values of every kind in every place of the configuration: opened, or refused by one error."""
    values = [None, True, 0, -1, 3, 2**70, 1.5, "", "x", [], [1], {}, {"a": 1}, float("inf")]
    for case in CASES:
        places = list(_places(CASES[case][0]))
        for place in places:
            for other in values:
                folder = write(tmp_path / "model", case, change_config=entry(*place, other))
                try:
                    open_tensors(folder)
                except ValueError as error:
                    assert str(folder) in str(error)


def _places(value, *path):
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, *path, key)
