"""Codes of other tools: float8 with scales is read as numbers; all other codes raise an error that names them."""

import json

import ml_dtypes
import numpy as np
import pytest
import tiny_bert
from safetensors.numpy import load_file, save_file
from tensors import LINE, raw, row_of, safetensors

import mp_core as mp
from mp_core import cli
from mp_core.checkpoint import RequestError, convert, inspect, open_tensors, verify
from mp_core.files.checkpoint.header import CODES
from mp_core.models import BertEncoder

RNG = np.random.default_rng(24)
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


def codes(*shape, dtype=E4M3):
    return (RNG.standard_normal(shape) * 30).astype(np.float32).astype(dtype)


def save(path, tensors):
    """Write a file by the letter: the safetensors library's NumPy half lacks types."""
    header, data = {}, b""
    names = {dtype: code for code, dtype in CODES.items()}
    for name, x in tensors.items():
        offsets = [len(data), len(data) + x.nbytes]
        header[name] = {"dtype": names[x.dtype.name], "shape": list(x.shape), "data_offsets": offsets}
        data += x.tobytes()
    path.write_bytes(safetensors(header, data))
    return path


def expanded(scale, shape, blocks):
    """Scales of blocks for every element, by the definition."""
    scale = np.asarray(scale, np.float32)
    for axis, block in enumerate(blocks):
        scale = scale.repeat(block, axis=axis)
    return scale[tuple(slice(n) for n in shape)]


def positive(*shape):
    return (RNG.random(shape) + 0.1).astype(np.float32)


# Shape of the codes, of the scales, and the block that shares one.
LAYOUTS = {
    "DeepSeek": ((300, 260), (3, 3), (128, 128)),
    "DeepSeek, long lines": ((130, LINE + 200), (2, (LINE + 200 + 127) // 128), (128, 128)),
    "DeepSeek, narrow": ((300, 40), (3, 1), (128, 40)),
    "32 along lines": ((5, 96), (5, 3), (1, 32)),
    "a channel": ((70, 40), (70, 1), (1, 40)),
    "a channel, one axis": ((70, 40), (70,), (1, 40)),
    "a tensor": ((70, 40), (), (70, 40)),
    "a tensor, one axis": ((70, 40), (1,), (70, 40)),
    "a vector": ((70,), (), (70,)),
    "experts": ((3, 130, 260), (3, 2, 3), (1, 128, 128)),
    "an expert": ((3, 5, 7), (3,), (1, 5, 7)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_float8_with_scales_is_what_it_stands_for(tmp_path, layout, dtype):
    shape, scales, blocks = LAYOUTS[layout]
    x, scale = codes(*shape, dtype=dtype), positive(*scales)
    # As DeepSeek's fp8_cast_bf16: the codes in float32 times the scales of their blocks.
    full = scale if scale.size == 1 else scale.reshape(*scale.shape, *[1] * (len(shape) - scale.ndim))
    expected = x.astype(np.float32) * (full.reshape(()) if full.size == 1 else expanded(full, shape, blocks))
    path = save(tmp_path / "in.safetensors", {"l.weight": x, "l.weight_scale_inv": scale})
    opened = open_tensors(path)
    assert list(opened) == ["l.weight"]
    np.testing.assert_array_equal(mp.dequantize(opened["l.weight"]), expected)
    convert(path, tmp_path / "out", "float32")
    out = open_tensors(tmp_path / "out")
    assert list(out) == ["l.weight"]
    np.testing.assert_array_equal(out["l.weight"], expected)
    convert(path, tmp_path / "out", "bfloat16", force=True)
    assert open_tensors(tmp_path / "out")["l.weight"].tobytes() == expected.astype(ml_dtypes.bfloat16).tobytes()
    save_file({"l.weight": expected}, tmp_path / "plain.safetensors")
    assert verify(path, tmp_path / "plain.safetensors")["failed"] == []
    assert row_of(inspect(path), "l.weight")["max_abs"] == np.abs(expected).max()


NAMES = [
    ("l.weight", "l.weight_scale_inv"),
    ("l.weight", "l.weight_scale"),
    ("l.weight", "l.weight.scale"),
    ("l.weight", "l.scale"),
    ("l.weight", "l.scale_weight"),
    ("experts.gate_up_proj", "experts.gate_up_proj_scale_inv"),
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e8m0fnu"])
@pytest.mark.parametrize(("name", "scale_name"), NAMES)
def test_names_and_types_of_scales(tmp_path, name, scale_name, dtype):
    x, scale = codes(256, 128), np.array([[0.5], [4]], np.float32).astype(getattr(ml_dtypes, dtype, dtype))
    path = save(tmp_path / "in.safetensors", {name: x, scale_name: scale})
    expected = x.astype(np.float32) * expanded(scale.astype(np.float32), x.shape, (128, 128))
    np.testing.assert_array_equal(mp.dequantize(open_tensors(path)[name]), expected)
    convert(path, tmp_path / "out", "float32")
    np.testing.assert_array_equal(open_tensors(tmp_path / "out")[name], expected)


def test_other_tensors_stay_and_float8_without_scales_is_values(tmp_path):
    x = codes(64, 64)
    path = save(tmp_path / "in.safetensors", {"a.weight": x, "a.input_scale": positive(1), "norm.scale": positive(64)})
    assert open_tensors(path)["a.weight"].tobytes() == x.tobytes()
    convert(path, tmp_path / "out", "float32")
    np.testing.assert_array_equal(open_tensors(tmp_path / "out")["a.weight"], x.astype(np.float32))


def test_codes_of_another_tool_are_kept_whole_or_quantized_anew_by_leave(tmp_path):
    x, scale = codes(256, 256), positive(2, 2)
    path = save(tmp_path / "in.safetensors", {"l.weight": x, "l.weight_scale_inv": scale, "b": positive(64, 64)})
    with pytest.raises(RequestError, match=r"'l\.weight' is quantized already \(float8_e4m3fn\)"):
        convert(path, tmp_path / "out", "int8")
    convert(path, tmp_path / "out", "int8", allow_requantize=True)
    expected = mp.quantize(x.astype(np.float32) * expanded(scale, x.shape, (128, 128)), axis=0, dtype="int8")
    np.testing.assert_array_equal(open_tensors(tmp_path / "out")["l.weight"].values, expected.values)
    convert(path, tmp_path / "out", "int8", keep=["^l"], force=True)
    before, (after, metadata) = raw(path)[0], raw(tmp_path / "out")
    assert {name: after[name] for name in ("l.weight", "l.weight_scale_inv")} == {
        name: before[name] for name in ("l.weight", "l.weight_scale_inv")
    }
    assert json.loads(metadata["mp_core.quantization"]).keys() == {"b"}


INT, PACKED, FLOAT = np.ones((8, 8), np.int8), np.ones((8, 4), np.uint8), positive(8, 8)
REFUSED = {
    "GPTQ": ({"l.g_idx": np.zeros(8, np.int32), "l.qweight": np.ones((1, 8), np.int32), "l.scales": FLOAT}, "of GPTQ"),
    "AWQ": ({"l.qweight": np.ones((8, 1), np.int32), "l.qzeros": np.ones((1, 1), np.int32)}, "of GPTQ or AWQ"),
    "bitsandbytes int8": ({"l.weight": INT, "l.SCB": positive(8)}, "of bitsandbytes"),
    "bitsandbytes 4 bits": ({"l.weight": PACKED, "l.weight.absmax": positive(8)}, "of bitsandbytes"),
    "bitsandbytes, state": ({"l.weight.quant_state.bitsandbytes__nf4": PACKED}, "of bitsandbytes"),
    "bitsandbytes, nested": ({"l.weight.nested_absmax": positive(8)}, "of bitsandbytes"),
    "compressed-tensors": ({"l.weight_packed": PACKED, "l.weight_scale": FLOAT}, "of compressed-tensors"),
    "int8 with scales": ({"l.weight": INT, "l.weight_scale": positive(8, 1)}, "a tool that writes l.weight_scale,"),
    "two scales": (
        {"l.weight": codes(8, 8), "l.weight_scale": positive(1), "l.weight_scale_2": positive(1)},
        "a tool that writes l.weight_scale, l.weight_scale_2,",
    ),
    "scales of another shape": ({"l.weight": codes(8, 8), "l.weight_scale_inv": positive(3, 3)}, "weight_scale_inv"),
    "scales of columns": ({"l.weight": codes(8, 4), "l.weight_scale": positive(4)}, "weight_scale"),
    "a scale of each element": ({"l.weight": codes(8, 4), "l.weight_scale": positive(8, 4)}, "weight_scale"),
    "scales of another type": ({"l.weight": codes(8, 8), "l.weight_scale": np.ones(1)}, "weight_scale"),
    "fnuz": ({"l.weight": codes(8, 8, dtype=ml_dtypes.float8_e4m3fnuz), "l.weight_scale": positive(1)}, "weight_scale"),
    "MXFP4": ({"l.w_blocks": PACKED, "l.w_scales": np.ones((8, 1), np.uint8)}, "of MXFP4"),
    "quanto": ({"l.weight._data": INT, "l.weight._scale": positive(8, 1)}, "of quanto"),
    "HQQ": ({"l.W_q": PACKED}, "of HQQ"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_codes_are_refused_by_name_and_inspected_with_a_word(tmp_path, capsys, case):
    tensors, named = REFUSED[case]
    path = save(tmp_path / "in.safetensors", tensors)
    for call in (lambda: open_tensors(path), lambda: convert(path, tmp_path / "out", "float16")):
        with pytest.raises(
            ValueError, match=r"in\.safetensors: tensor 'l\..*whose codes mp_core cannot read"
        ) as caught:
            call()
        assert named in f"{caught.value},"
    assert not (tmp_path / "out").exists()
    assert cli.main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "whose codes mp_core cannot read" in out and named.removesuffix(",") in out


def test_an_inspection_says_that_scales_of_another_tool_count(tmp_path, capsys):
    path = save(tmp_path / "in.safetensors", {"l.weight": codes(8, 8), "l.weight_scale": positive(8, 1)})
    assert cli.main(["inspect", str(path)]) == 0
    assert "1 tensors are float8 with scales of another tool" in capsys.readouterr().out


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_scales_must_be_positive_and_finite(tmp_path, scale):
    path = save(tmp_path / "in.safetensors", {"l.weight": codes(8, 8), "l.weight_scale": np.array(scale, np.float32)})
    for call in (open_tensors, lambda path: convert(path, tmp_path / "out", "float32")):
        with pytest.raises(ValueError, match="positive and finite"):
            call(path)


def test_scales_in_another_shard_are_refused_by_name(tmp_path):
    save(tmp_path / "a.safetensors", {"l.weight": codes(8, 8)})
    save(tmp_path / "b.safetensors", {"l.weight_scale_inv": positive(1, 1)})
    files = {"l.weight": "a.safetensors", "l.weight_scale_inv": "b.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    with pytest.raises(ValueError, match=r"a tool that writes l\.weight_scale_inv, here into another file"):
        open_tensors(tmp_path)


def test_a_model_in_float8_of_another_tool_loads(tmp_path):
    folder = tiny_bert.write(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    expected = {}
    for name, x in list(tensors.items()):
        if "dense.weight" in name:
            scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(448)
            tensors[name], tensors[f"{name}_scale"] = (x / scale).astype(E4M3), scale
            expected[name] = tensors[name].astype(np.float32) * scale
        else:
            expected[name] = x
    save(folder / "model.safetensors", tensors)
    plain = tiny_bert.write(tmp_path / "plain")
    save_file(expected, plain / "model.safetensors")
    found, wanted = (BertEncoder.from_folder(path).encode(["a b c"]) for path in (folder, plain))
    np.testing.assert_array_equal(found, wanted)
