"""Folders of compressed-tensors, AutoAWQ and GPTQ: their codes are read bit for bit and run as they are."""

import json
from functools import partial

import ml_dtypes
import numpy as np
import packed_folders as folders
import pytest
from safetensors.numpy import load_file, save_file
from tensors import row_of

import mp_core as mp
from mp_core import cli
from mp_core.checkpoint import convert, inspect, open_tensors, stored_policies, verify
from mp_core.models import TextEncoder
from mp_core.quantization import QuantizedArray

RNG = np.random.default_rng(3)
TEXTS = ["a b c", "d e f g", "h"]
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 8, "sym": True, "desc_act": False}
compressed, pack, elements = folders.compressed, folders.pack_quantized, folders.int_quantized
ASYMMETRIC = {"symmetric": False}


def out_of_order(write, x, rng, **more):
    return write(x, rng, order=folders.shuffled(x.shape[1], 8, rng), **more)


# Name -> the configuration, the function that packs a matrix, and the policy under which the codes run.
FORMATS = {
    "pack, 4 bits": (compressed("pack-quantized"), pack, "int4/8"),
    "pack, 4 bits, zero points": (compressed("pack-quantized", **ASYMMETRIC), partial(pack, **ASYMMETRIC), "int4/8"),
    "pack, 4 bits, channels": (compressed("pack-quantized", group=None), partial(pack, group=None), "int4/-1"),
    "pack, 8 bits": (compressed("pack-quantized", bits=8), partial(pack, bits=8), "int8/weight_only/8"),
    "pack, 8 bits, zero points": (
        compressed("pack-quantized", bits=8, **ASYMMETRIC), partial(pack, bits=8, **ASYMMETRIC), "int8/weight_only/8"
    ),
    "pack, out of order": (compressed("pack-quantized"), partial(out_of_order, pack), None),
    "int8": (compressed("int-quantized", bits=8, group=None), elements, "int8/weight_only"),
    "int8, naive": (compressed("naive-quantized", bits=8, group=None), elements, "int8/weight_only"),
    "int8, zero points": (
        compressed("int-quantized", bits=8, group=None, **ASYMMETRIC), partial(elements, **ASYMMETRIC),
        "int8/weight_only",
    ),
    "awq": (AWQ, folders.awq, "int4/8"),
    "awq, channels": (AWQ | {"group_size": -1}, partial(folders.awq, group=None), "int4/-1"),
    "gptq": (GPTQ, folders.gptq, "int4/8"),
    "gptq, zero points": (GPTQ | {"sym": False}, partial(folders.gptq, **ASYMMETRIC), "int4/8"),
    "gptq, 8 bits": (GPTQ | {"bits": 8}, partial(folders.gptq, bits=8), "int8/weight_only/8"),
    "gptq, version 2": (
        GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"}, partial(folders.gptq, version=2, **ASYMMETRIC), "int4/8"
    ),
    "gptq, out of order": (
        GPTQ | {"desc_act": True, "sym": False}, partial(out_of_order, folders.gptq, **ASYMMETRIC), None
    ),
}  # fmt: skip


@pytest.fixture(params=FORMATS)
def written(request, tmp_path):
    config, write, scheme = FORMATS[request.param]
    return *folders.write(tmp_path / "model", config, write), scheme


def test_the_numbers_are_those_of_the_layout_and_run_as_codes(written, tmp_path):
    packed, floats, scheme = written
    found, expected = open_tensors(packed), open_tensors(floats)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        numbers = mp.dequantize(value) if isinstance(value, QuantizedArray) else value
        np.testing.assert_array_equal(numbers, expected[name], name)
    encoder, plain = TextEncoder.from_folder(packed), TextEncoder.from_folder(floats)
    vectors = encoder.encode(TEXTS)
    np.testing.assert_allclose(vectors, plain.encode(TEXTS), atol=1e-6)
    layer = encoder.model.encoder.blocks[1].output
    policy = "float32" if scheme is None else f"{scheme}_from_float32"
    assert (layer.form.name, layer.form.policy.name) == ("float" if scheme is None else "codes", policy)
    if scheme is not None:
        assert layer.matrix.values.tobytes() == found["encoder.layer.1.output.dense.weight"].values.tobytes()
        assert stored_policies(packed)[0] == policy
    encoder.save(tmp_path / "saved")
    np.testing.assert_array_equal(TextEncoder.from_folder(tmp_path / "saved").encode(TEXTS), vectors)


def test_commands_read_them(written, tmp_path, capsys):
    packed, floats, scheme = written
    assert verify(packed, floats)["failed"] == []
    row = row_of(inspect(packed), "encoder.layer.0.output.dense.weight")
    assert row["dtype"] == ("float32" if scheme is None else scheme.split("/")[0])
    assert row["shape"] == [16, 24] and row["layout"] is not None
    assert cli.main(["inspect", str(packed), "--no-progress"]) == 0
    out = capsys.readouterr().out
    assert f"12 tensors are codes in the layout {row['layout']}, which mp_core reads" in out
    assert ("g_idx is not in order" in out) == (scheme is None)
    for option, target in ((["--keep", "query|key"], "kept"), ([], "floats"), (["--allow-requantize"], "again")):
        policy = "int8" if target == "again" else "float32"
        command = [
            "convert",
            str(packed),
            "-o",
            str(tmp_path / target),
            "--policy",
            policy,
            "--no-progress",
            "--max-memory",
            "16GiB",
            *option,
        ]
        assert cli.main(command) == 0
        assert "quant_method" not in (tmp_path / target / "config.json").read_text()
    for target in ("kept", "floats"):
        assert verify(tmp_path / target, floats)["failed"] == []
    assert verify(tmp_path / "again", floats, rtol=0.02)["failed"] == []
    kept = {name for name, x in open_tensors(tmp_path / "kept").items() if isinstance(x, QuantizedArray)}
    assert len(kept) == (0 if scheme is None else 4)
    vectors = TextEncoder.from_folder(tmp_path / "kept").encode(TEXTS)
    np.testing.assert_allclose(vectors, TextEncoder.from_folder(floats).encode(TEXTS), atol=1e-6)


def test_another_policy_decodes_or_keeps_them(tmp_path):
    packed, floats = folders.write(tmp_path / "model", AWQ, folders.awq)
    expected = TextEncoder.from_folder(floats, policy="mixed_bfloat16").encode(TEXTS)
    np.testing.assert_array_equal(TextEncoder.from_folder(packed, policy="mixed_bfloat16").encode(TEXTS), expected)
    encoder = TextEncoder.from_folder(packed, policy="int4/8_from_mixed_bfloat16")
    name = "encoder.layer.0.output.dense.weight"
    assert encoder.model.encoder.blocks[0].output.matrix.values.tobytes() == open_tensors(packed)[name].values.tobytes()


def test_modules_that_are_not_quantized_stay_floats(tmp_path):
    ignored = compressed("pack-quantized", ignore=["encoder.layer.0.output.dense", "re:.*query$"])
    kept = ("layer.0.output.dense", "query")
    for index, config in enumerate((ignored, GPTQ, AWQ | {"modules_to_not_convert": ["query", "layer.0.output"]})):
        write = (pack, folders.gptq, folders.awq)[index]
        packed, floats = folders.write(tmp_path / str(index), config, write, keep=kept)
        encoder, plain = TextEncoder.from_folder(packed), TextEncoder.from_folder(floats)
        np.testing.assert_allclose(encoder.encode(TEXTS), plain.encode(TEXTS), atol=1e-6)
        blocks = encoder.model.encoder.blocks
        assert [layer.form.name for layer in (blocks[0].attention.query, blocks[0].output, blocks[1].output)] == [
            "float", "float", "codes"
        ]  # fmt: skip


def test_a_module_has_the_scheme_of_its_most_special_target(tmp_path):
    config = compressed("pack-quantized")
    other = compressed("pack-quantized", bits=8, group=None)["config_groups"]["group_0"]
    config["config_groups"]["group_1"] = other | {"targets": ["re:.*intermediate", "encoder.layer.1.output.dense"]}
    second = compressed("int-quantized", bits=8, group=None)["config_groups"]["group_0"]
    config["config_groups"]["group_2"] = second | {"targets": ["re:.*query$"], "format": "int-quantized"}
    config["format"] = "mixed-precision"
    for name in ("group_0", "group_1"):
        config["config_groups"][name]["format"] = "pack-quantized"

    names = iter(f"{layer}.{part}" for layer in range(2) for part in ORDER)

    def write(x, rng):
        name = next(names)
        if "query" in name:
            return elements(x, rng)
        return pack(x, rng, bits=8, group=None) if "intermediate" in name or name == "1.output" else pack(x, rng)

    packed, floats = folders.write(tmp_path / "model", config, write)
    assert verify(packed, floats)["failed"] == []
    encoder = TextEncoder.from_folder(packed)
    np.testing.assert_allclose(encoder.encode(TEXTS), TextEncoder.from_folder(floats).encode(TEXTS), atol=1e-6)
    block = encoder.model.encoder.blocks[1]
    layers = (block.attention.query, block.attention.key, block.intermediate, block.output)
    schemes = [str(layer.form.policy.scheme) for layer in layers]
    assert schemes == ["int8/weight_only", "int4/8", "int8/weight_only", "int8/weight_only"]


ORDER = ["attention.output", "key", "query", "value", "intermediate", "output"]
"""The order of matrices of a block in a file of tiny_bert."""


def test_float8_with_scales_of_tensors_channels_and_blocks(tmp_path):
    for index, (strategy, block, rule) in enumerate(
        (("tensor", None, "/tensor"), ("channel", None, ""), ("block", [4, 8], "/8"))
    ):

        def write(x, rng, strategy=strategy, block=block):
            rows, columns = block or {"tensor": x.shape, "channel": (1, x.shape[1])}[strategy]
            scale = (rng.random((-(-len(x) // rows), x.shape[1] // columns)) + 0.1).astype(np.float32)
            full = scale.repeat(rows, 0).repeat(columns, 1)
            codes = (x / full).astype(ml_dtypes.float8_e4m3fn)
            stored = codes.view(np.int8)  # the library's NumPy half has no float8: see _retyped
            return {"weight": stored, "weight_scale": scale}, codes.astype(np.float32) * full

        weights = {"num_bits": 8, "type": "float", "strategy": strategy, "block_structure": block}
        config = compressed("float-quantized")
        config["config_groups"]["group_0"]["weights"] = weights
        packed, floats = folders.write(tmp_path / str(index), config, write)
        _retyped(packed / "model.safetensors", "I8", "F8_E4M3")
        assert verify(packed, floats)["failed"] == []
        encoder = TextEncoder.from_folder(packed)
        assert str(encoder.model.encoder.blocks[0].output.form.policy.scheme) == f"float8_e4m3fn{rule}"
        np.testing.assert_allclose(encoder.encode(TEXTS), TextEncoder.from_folder(floats).encode(TEXTS), atol=1e-6)


def _retyped(path, before, after):
    """Replace a type in the header of a file by one of the same size."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].rstrip().replace(f'"{before}"'.encode(), f'"{after}"'.encode())
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])


DYNAMIC = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token", "symmetric": True}


def test_int8_inputs_are_quantized_row_by_row(tmp_path):
    packed, floats = folders.write(
        tmp_path / "model", compressed("int-quantized", bits=8, group=None, inputs=DYNAMIC), elements
    )
    encoder = TextEncoder.from_folder(packed)
    layer, x = encoder.model.encoder.blocks[0].output, RNG.standard_normal((3, 24)).astype(np.float32)
    weight = open_tensors(packed)["encoder.layer.0.output.dense.weight"]
    expected = mp.dynamic_matmul(x, mp.pack(weight.T), bias=layer.bias.numpy())
    np.testing.assert_array_equal(layer(x), expected)
    np.testing.assert_allclose(encoder.encode(TEXTS), TextEncoder.from_folder(floats).encode(TEXTS), atol=0.05)
    wide = compressed("pack-quantized", inputs=DYNAMIC)
    encoder = TextEncoder.from_folder(folders.write(tmp_path / "wide", wide, pack)[0])
    assert str(encoder.model.encoder.blocks[0].output.form.policy.scheme) == "int4/dynamic/8"


def test_int8_inputs_with_a_stored_scale(tmp_path):
    def write(x, rng):
        parts, numbers = elements(x, rng)
        return parts | {"input_scale": np.float32([0.05]), "input_zero_point": np.int8([3])}, numbers

    inputs = DYNAMIC | {"dynamic": False, "strategy": "tensor", "symmetric": False}
    config = compressed("int-quantized", bits=8, group=None, inputs=inputs)
    packed, floats = folders.write(tmp_path / "model", config, write)
    assert verify(packed, floats, rtol=1e-6)["failed"] == []
    encoder = TextEncoder.from_folder(packed)
    layer, x = encoder.model.encoder.blocks[0].output, RNG.standard_normal((3, 24)).astype(np.float32)
    codes = np.clip(np.rint(x / np.float32(0.05)) + 3, -128, 127)
    weight = load_file(floats / "model.safetensors")["encoder.layer.0.output.dense.weight"]
    expected = (codes - 3) * np.float32(0.05) @ weight.T + layer.bias.numpy()
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-5)
    encoder.save(tmp_path / "saved")
    again = TextEncoder.from_folder(tmp_path / "saved")
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    convert(packed, tmp_path / "kept", "float32", keep=["encoder"])
    again = TextEncoder.from_folder(tmp_path / "kept")
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))


def test_what_is_asked_for_and_not_computed_is_a_line_of_an_inspection(tmp_path, capsys):
    config = compressed("pack-quantized", bits=8, inputs=DYNAMIC)
    packed, floats = folders.write(tmp_path / "model", config, partial(pack, bits=8))
    encoder = TextEncoder.from_folder(packed)
    np.testing.assert_allclose(encoder.encode(TEXTS), TextEncoder.from_folder(floats).encode(TEXTS), atol=1e-6)
    assert cli.main(["inspect", str(packed), "--no-progress"]) == 0
    assert "12 tensors: the configuration's input_activations is not computed" in capsys.readouterr().out


def test_parts_may_be_in_several_shards(tmp_path):
    packed, floats = folders.write(tmp_path / "model", GPTQ, folders.gptq)
    tensors = load_file(packed / "model.safetensors")
    (packed / "model.safetensors").unlink()
    files = {name: f"model-0000{1 + (index % 2)}-of-00002.safetensors" for index, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        save_file({name: x for name, x in tensors.items() if files[name] == file}, packed / file)
    (packed / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    assert verify(packed, floats)["failed"] == []
    np.testing.assert_allclose(
        TextEncoder.from_folder(packed).encode(TEXTS), TextEncoder.from_folder(floats).encode(TEXTS), atol=1e-6
    )


@pytest.mark.parametrize("group", [6, 12, 24, 48])
def test_groups_of_any_even_length(tmp_path, group):
    x = RNG.standard_normal((8, 48)).astype(np.float32)
    parts, numbers = folders.gptq(x, RNG, group=group)
    save_file({f"l.{part}": value for part, value in parts.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": GPTQ | {"group_size": group}}))
    q = open_tensors(tmp_path)["l.weight"]
    np.testing.assert_array_equal(mp.dequantize(q), numbers)
    convert(tmp_path / "model.safetensors", tmp_path / "out.safetensors", "float32", keep=["l"])
    np.testing.assert_array_equal(mp.dequantize(open_tensors(tmp_path / "out.safetensors")["l.weight"]), numbers)


@pytest.mark.parametrize("length", [1, 3, 9, 17, 31])
def test_lines_that_do_not_fill_their_words(tmp_path, length):
    x = RNG.standard_normal((8, length)).astype(np.float32)
    asymmetric = compressed("pack-quantized", group=None, symmetric=False)
    of_layouts = {
        "pack": (asymmetric, pack(x[:5], RNG, group=None, symmetric=False)),
        "awq": (AWQ | {"group_size": -1}, folders.awq(x, RNG, group=None)),
    }
    for name, (config, (parts, numbers)) in of_layouts.items():
        (tmp_path / name).mkdir()
        save_file({f"l.{part}": value for part, value in parts.items()}, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text(json.dumps({"quantization_config": config}))
        q = open_tensors(tmp_path / name)["l.weight"]
        np.testing.assert_array_equal(mp.dequantize(q), numbers)
        assert length % 2 == 0 or (q.values[:, -1] < 16).all()


def test_long_lines_are_read_in_pieces(tmp_path):
    x = RNG.standard_normal((2, 3 * 2**16)).astype(np.float32)
    for index, (config, write) in enumerate(((compressed("pack-quantized", group=128), pack), (GPTQ, folders.gptq))):
        home = tmp_path / str(index)
        home.mkdir()
        config = config | ({} if index == 0 else {"group_size": 128})
        x = x if index == 0 else np.ascontiguousarray(np.resize(x, (8, x.shape[1])))
        parts, numbers = write(x, RNG, group=128)
        save_file({f"l.{part}": value for part, value in parts.items()}, home / "model.safetensors")
        (home / "config.json").write_text(json.dumps({"quantization_config": config}))
        save_file({"l.weight": numbers}, tmp_path / "plain.safetensors")
        assert verify(home, tmp_path / "plain.safetensors")["failed"] == []
