"""Layers, files and conversions under the schemes of microscaling formats."""

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import checkpoint, layers
from mp_core.arrays.quantization.microscaling import MICROSCALING
from mp_core.dtype_policies import SPELLINGS, Scheme, SchemeDTypePolicy

SCHEMES = tuple(word for word in SPELLINGS if word.partition("/")[0] in MICROSCALING)
K, N = 96, 24


def test_every_format_is_a_scheme():
    assert {word.partition("/")[0] for word in SCHEMES} == set(MICROSCALING)
    for word in SCHEMES:
        scheme, policy = Scheme.parse(word), mp.dtype_policies.get(f"{word}_from_mixed_bfloat16")
        assert str(scheme) == word and scheme.group_size == MICROSCALING[scheme.codes].block and scheme.symmetric
        assert type(policy) is SchemeDTypePolicy and policy.scheme == scheme
        assert mp.dtype_policies.policy_of(word) == policy
        assert mp.dtype_policies.deserialize(mp.dtype_policies.serialize(policy)) == policy
    assert Scheme("nvfp4") == Scheme.parse("nvfp4")
    with pytest.raises(ValueError, match="`group_size` must be 32 for mxfp4; received 16"):
        Scheme("mxfp4", group_size=16)
    with pytest.raises(ValueError, match="a scheme must be one of"):
        Scheme.parse("mxfp4/32")
    with pytest.raises(ValueError, match="float16"):
        mp.dtype_policies.get("mxfp4/dynamic_from_mixed_float16")


def test_arrays_are_described_by_their_scheme(rng):
    for word in SCHEMES:
        scheme = Scheme.parse(word)
        q = scheme.quantize(rng.standard_normal((N, K)))
        assert scheme.describes(q) and q.axis == (0,)
    assert str(Scheme.of(Scheme("mxfp4").quantize(np.ones((2, 64))))) == "mxfp4"
    assert str(Scheme.of(Scheme("nvfp4").quantize(np.ones((2, 64))), "dynamic")) == "nvfp4/dynamic"
    assert not Scheme("mxfp4").describes(Scheme("nvfp4").quantize(np.ones((2, 64))))


@pytest.mark.parametrize("source", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("word", SCHEMES)
def test_dense_layers_multiply_their_codes(word, source, isa, rng):
    w, bias = rng.standard_normal((K, N)).astype(np.float32), rng.integers(-9, 9, N).astype(np.float32)
    layer = layers.Dense(N, activation="relu", dtype=source)
    layer.build((None, K))
    layer.set_weights([w, bias])
    built = layers.Dense(N, activation="relu", dtype=f"{word}_from_{source}")
    built.build((None, K))
    layer.quantize(word)
    built.set_matrix(w.T)
    built.bias.assign(bias)
    q = Scheme.parse(word).quantize(w.T)
    assert layer.quantization_mode in (word.partition("_")[0], word.partition("/")[0])
    x = mp.cast(rng.standard_normal((5, K)), layer.compute_dtype)
    multiply = mp.dynamic_matmul if "dynamic" in word else mp.matmul
    expected = multiply(x, mp.pack(q.T), bias=bias, activation="relu")
    for each in (layer, built):
        assert_same_bits(each.matrix.values, q.values)
        assert_same_bits(each.matrix.scale, q.scale)
        assert_same_bits(each(x), expected)
        assert_same_bits(mp.compile(each, x)(x), expected)
        assert_same_bits(each.matrix.values, q.values)  # unpacked again


@pytest.mark.parametrize("word", SCHEMES)
def test_einsum_layers_and_tables(word, rng):
    layer = layers.EinsumDense("abc,cde->abde", (None, 2, 12), dtype=f"{word}_from_float32")
    layer.build((None, None, K))
    w = rng.standard_normal((N, K)).astype(np.float32)
    layer.set_matrix(w)
    x = rng.standard_normal((2, 3, K)).astype(np.float32)
    multiply = mp.dynamic_matmul if "dynamic" in word else mp.matmul
    expected = multiply(x, mp.pack(Scheme.parse(word).quantize(w).T))
    assert_same_bits(layer(x), expected.reshape(2, 3, 2, 12))
    table = layers.Embedding(50, K, dtype=f"{word}_from_mixed_bfloat16")
    table.build()
    rows = rng.standard_normal((50, K)).astype(np.float32)
    table.set_matrix(rows)
    ids = np.array([[0, 49, 7], [7, 3, 3]])
    assert_same_bits(table(ids), mp.dequantize(Scheme.parse(word).quantize(rows), "bfloat16")[ids])


def test_layers_need_whole_blocks():
    with pytest.raises(ValueError, match=r"must have a multiple of 32 inputs for 'mxfp4'; received 40"):
        layers.Dense(3, dtype="mxfp4_from_float32").build((None, 40))
    with pytest.raises(ValueError, match=r"must have a multiple of 16 columns for 'nvfp4'; received 24"):
        layers.Embedding(3, 24, dtype="nvfp4_from_float32").build()
    layer = layers.Dense(3)
    layer.build((None, 40))
    with pytest.raises(ValueError, match="multiple of 32 inputs"):
        layer.quantize("mxfp4")
    assert layer.quantization_mode is None and layer.kernel.shape == (40, 3)


def test_scales_that_are_not_numbers_are_refused(rng):
    layer = layers.Dense(3, dtype="mxfp4_from_float32")
    layer.build((None, 32))
    q = mp.quantize(rng.standard_normal((3, 32)), dtype="mxfp4")
    for wrong in (np.nan, np.inf, 0.0, -1.0):
        bad = mp.QuantizedArray(q.values, np.full_like(q.scale, wrong), None, (0,), 32, q.dtype, q.shape)
        with pytest.raises(ValueError, match="must be positive and finite"):
            layer.set_matrix(bad)


@pytest.mark.parametrize("word", SCHEMES)
def test_models_are_saved_trained_on_top_and_opened(word, tmp_path, rng):
    x, y = rng.standard_normal((16, K)).astype(np.float32), rng.standard_normal((16, 4)).astype(np.float32)
    model = mp.Sequential([layers.Dense(32, activation="relu"), layers.Dense(4)])
    model(x)
    model.layers[0].quantize(word)
    model.compile("adam", "mse")
    codes = np.array(model.layers[0].matrix.values)
    before = model.layers[1].kernel.numpy().copy()
    model.fit(x, y, epochs=1, verbose=0)
    assert_same_bits(model.layers[0].matrix.values, codes)
    assert np.any(model.layers[1].kernel.numpy() != before)
    model.save(tmp_path / "model.keras")
    opened = mp.saving.load_model(tmp_path / "model.keras")
    assert opened.layers[0].dtype_policy == model.layers[0].dtype_policy
    assert_same_bits(opened.layers[0].matrix.values, codes)
    assert_same_bits(opened(x), model(x))


@pytest.mark.parametrize("word", SCHEMES)
def test_a_sample_can_fit_the_codes(word, rng):
    model = mp.layers.Sequential([layers.Dense(64, activation="relu"), layers.Dense(8)])
    x = rng.standard_normal((200, 32)).astype(np.float32)
    exact = model(x)
    fitted, plain = mp.calibrate(model, x, word), model.with_policy(f"{word}_from_mixed_bfloat16")
    assert fitted.layers[0].dtype_policy == plain.layers[0].dtype_policy
    errors = [float(np.square(each(x) - exact).mean()) for each in (fitted, plain)]
    assert errors[0] <= 1.1 * errors[1] < float(np.square(exact).mean()) / 20


@pytest.mark.parametrize("word", SCHEMES)
def test_files_are_converted_and_opened(word, tmp_path, rng):
    scheme = Scheme.parse(word)
    tensors = {"w": rng.standard_normal((70, 2048)).astype(np.float32), "b": np.ones(70, np.float32)}
    tensors["w"][69, 2047] = 30.0  # in the last box: the scales of NVFP4 depend on it
    checkpoint.save_tensors(tmp_path / "a.safetensors", tensors, policy="float32")
    checkpoint.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", policy=word)
    assert checkpoint.stored_policies(tmp_path / "b.safetensors")[0] == f"{word}_from_mixed_bfloat16"
    q, expected = checkpoint.open_tensors(tmp_path / "b.safetensors")["w"], scheme.quantize(tensors["w"])
    assert_same_bits(q.values, expected.values)
    assert_same_bits(q.scale, expected.scale)
    assert q.dtype == expected.dtype and scheme.describes(q)
    checkpoint.convert(tmp_path / "b.safetensors", tmp_path / "c.safetensors", policy="float32")
    assert_same_bits(checkpoint.open_tensors(tmp_path / "c.safetensors")["w"], mp.dequantize(expected))
    checkpoint.save_tensors(tmp_path / "d.safetensors", {"w": q}, policy=f"{word}_from_mixed_bfloat16")
    assert_same_bits(checkpoint.open_tensors(tmp_path / "d.safetensors")["w"].values, expected.values)


def test_files_that_do_not_fit_are_refused_by_name(tmp_path, rng):
    path = tmp_path / "a.safetensors"
    checkpoint.save_tensors(path, {"w": rng.standard_normal((4, 40)).astype(np.float32)}, policy="float32")
    with pytest.raises(checkpoint.RequestError, match=r"tensor 'w' of shape \[4, 40\] does not fit mxfp4"):
        checkpoint.convert(path, tmp_path / "b.safetensors", policy="mxfp4")
    checkpoint.convert(path, tmp_path / "b.safetensors", policy="mxfp4", keep=["w"])
    checkpoint.save_tensors(path, {"w": mp.quantize(np.ones((4, 64)), dtype="mxfp4")}, policy="mxfp4_from_float32")
    content = path.read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(content[:-3])
    with pytest.raises(ValueError, match=r"cut\.safetensors"):
        checkpoint.open_tensors(tmp_path / "cut.safetensors")["w"]
    (tmp_path / "other.safetensors").write_bytes(content.replace(b"float4_e2m1fn", b"float4_e3m0fn"))
    with pytest.raises(ValueError, match=r"dtype must be one of .*float4_e2m1fn.*received 'float4_e3m0fn'"):
        checkpoint.open_tensors(tmp_path / "other.safetensors")
