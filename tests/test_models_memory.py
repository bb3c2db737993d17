"""Opened models have their weights in memory once, packed or in the pages of their file; reads return the same bits."""

import ctypes
import mmap
import pickle
import sys
from functools import partial

import numpy as np
import packed_folders
import processes
import pytest
import random_models
import tiny_bert

import mp_core as mp
from mp_core import layers
from mp_core.autocast import AutoCastVariable
from mp_core.checkpoint import open_tensors, save_tensors
from mp_core.core.convert import file_map
from mp_core.models import BertEncoder
from mp_core.policies.autocast.memory import RecomputedArray, drop_pages
from mp_core.tf_keras.mixed_precision import AutoCastVariable as TFVariable

KINDS = ["bert", "qwen3"]
WIDE = {
    "hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8, "vocab_size": 4096,
}  # fmt: skip
POLICIES = ["float32", "mixed_bfloat16", "bfloat16", "int8", "int4/64"]
SCHEMES = [
    "int8_from_float32", "int8/tensor_from_float32", "int8/weight_only_from_mixed_bfloat16",
    "int8/weight_only/16_from_float32", "int4/16_from_float32", "int4/-1_from_mixed_bfloat16",
    "int4/dynamic/16_from_float32", "float8_e4m3fn_from_mixed_bfloat16", "float8_e5m2/8_from_float32",
]  # fmt: skip


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Return the folder of a network with some 20 million weights, which is written when it is first asked for."""
    found = {}

    def folder(kind):
        if kind not in found:
            found[kind] = tmp_path_factory.mktemp(kind)
            random_models.save(random_models.made(kind, **WIDE, **_heads(kind, 128)), found[kind])
        return found[kind]

    return folder


def _heads(kind, size):
    return {"num_key_value_heads": 4, "head_dim": size} if kind == "qwen3" else {}


@pytest.fixture(scope="module", params=KINDS)
def small(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    return random_models.save(random_models.made(request.param), folder)


_GROWTH = """
import sys
import numpy as np
import mp_core as mp
from mp_core.models import BertEncoder

def memory(entry):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(entry)) * 1024

mp.config.set_num_threads(1)
ids = np.zeros((1, 8), np.int32)
BertEncoder.from_folder(sys.argv[1], "int8").embed_tokens(ids)  # what is imported and allocated once
before = memory("VmRSS")
encoder = BertEncoder.from_folder(*sys.argv[2:])
opened = memory("VmHWM")
encoder.embed_tokens(ids)
print(encoder.weight_bytes, memory("VmRSS") - before, opened - before, memory("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count memory otherwise")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_that_of_the_weights(kind, policy, wide, tmp_path):
    """After the first query, within 15 % and 2 MB; two layers in float32 and 5 MB more before, at most."""
    tiny = tiny_bert.write(tmp_path / "tiny")
    command = [sys.executable, "-c", _GROWTH, str(tiny), str(wide(kind)), policy]
    output = processes.run(command, capture_output=True, text=True, check=True).stdout
    weights, resident, opening, peak = map(int, output.split())
    layer = 4 * WIDE["vocab_size"] * WIDE["hidden_size"]  # of float32: the table of words is the largest
    assert resident <= 1.15 * weights + 2e6
    assert opening <= 1.15 * weights + layer + 2e6
    assert peak <= 1.15 * weights + 2 * layer + 5e6


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count memory otherwise")
@pytest.mark.parametrize("layout", ["pack-quantized", "awq"])
def test_memory_of_packed_codes_of_other_programs_is_that_of_the_codes(layout, wide, tmp_path):
    """4 bits stay 4 bits: neither the file's words nor floats stay in memory."""
    tiny = tiny_bert.write(tmp_path / "tiny")
    if layout == "awq":
        config, pack = {"quant_method": "awq", "group_size": 128}, partial(packed_folders.awq, group=128)
    else:
        config = packed_folders.compressed(layout, group=128)
        pack = partial(packed_folders.pack_quantized, group=128)
    packed, _ = packed_folders.packed_copies(wide("qwen3"), tmp_path / "model", config, pack)
    command = [sys.executable, "-c", _GROWTH, str(tiny), str(packed)]
    output = processes.run(command, capture_output=True, text=True, check=True).stdout
    weights, resident, opening, _ = map(int, output.split())
    codes = weights - 4 * WIDE["vocab_size"] * WIDE["hidden_size"]  # the table of words stays in the file
    assert resident <= 1.15 * codes + 3e6
    assert opening <= 1.15 * codes + 4 * WIDE["hidden_size"] * WIDE["intermediate_size"] + 3e6


def _weights(encoder):
    return {weight.path: weight.numpy().copy() for weight in encoder.model.weights}


def _assert_same(received, expected):
    assert received.keys() == expected.keys()
    for path, value in expected.items():
        assert received[path].dtype == value.dtype
        assert received[path].tobytes() == value.tobytes(), path


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16", "float64", *SCHEMES])
def test_weights_are_read_as_if_they_were_not_packed(small, policy, tmp_path):
    ids = np.arange(24).reshape(2, 12)
    encoder = BertEncoder.from_folder(small, policy)
    before = _weights(encoder)
    vectors = encoder.embed_tokens(ids)
    _assert_same(_weights(encoder), before)
    encoder.save(tmp_path / "saved")
    for other in (pickle.loads(pickle.dumps(encoder)), BertEncoder.from_folder(tmp_path / "saved")):
        _assert_same(_weights(other), before)
        np.testing.assert_array_equal(other.embed_tokens(ids), vectors)
        _assert_same(_weights(other), before)
    again = encoder.with_policy("float32").with_policy(policy)
    np.testing.assert_array_equal(again.embed_tokens(ids), vectors)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "int8", "int4/16"])
def test_weights_that_are_assigned_are_those_that_multiply(small, policy):
    ids = np.arange(12)[np.newaxis]
    encoder, other = (BertEncoder.from_folder(small, policy) for _ in range(2))
    before = encoder.embed_tokens(ids)
    for weight, same in zip(encoder.model.weights, other.model.weights, strict=True):
        value = weight.numpy()[::-1].copy()
        weight.assign(value)
        same.assign(value)
    changed = encoder.embed_tokens(ids)
    assert not np.array_equal(changed, before)
    np.testing.assert_array_equal(changed, other.embed_tokens(ids))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "int8", "int4/16"])
def test_a_converted_folder_stays_in_the_pages_of_its_file(small, policy, tmp_path):
    ids = np.arange(12)[np.newaxis]
    BertEncoder.from_folder(small, policy).save(tmp_path / "saved")
    encoder = BertEncoder.from_folder(tmp_path / "saved")
    vectors = encoder.embed_tokens(ids)
    form = next(layer.form for layer in encoder.flatten() if type(layer) is layers.Dense)
    assert drop_pages(next(iter(form.variables.values()))._state[0])
    np.testing.assert_array_equal(encoder.embed_tokens(ids), vectors)
    stored = open_tensors(tmp_path / "saved")
    kernels = {layer.path: layer.matrix for layer in encoder.flatten() if type(layer) is layers.Dense}
    for path, name in encoder.kernel_names.items():
        parts = ("values", "scale") if policy.startswith("int") else ()
        for part in parts:
            np.testing.assert_array_equal(getattr(kernels[path], part), getattr(stored[name], part))


def test_training_after_a_query_has_the_bits_of_training_at_once(small):
    def trained(encoder):
        encoder.fit([("a b", "c d"), ("e", "f g")], batch_size=2, seed=3, verbose=0)
        return _weights(encoder)

    first, second = (BertEncoder.from_folder(small, "mixed_bfloat16") for _ in range(2))
    first.encode(["a b c"])
    _assert_same(trained(first), trained(second))


# ---- variables


def _mapped(tmp_path, array):
    save_tensors(tmp_path / "x.safetensors", {"x": array}, policy="float32")
    return open_tensors(tmp_path / "x.safetensors")["x"]


def test_pages_of_a_file_are_dropped_and_read_again(tmp_path):
    array = np.arange(1 << 16, dtype=np.float32)
    mapped = _mapped(tmp_path, array)
    for part in (mapped, mapped[5:9], mapped[::-1], mapped.reshape(256, 256).T, AutoCastVariable(mapped).numpy()):
        copy = part.copy()
        assert drop_pages(part)
        np.testing.assert_array_equal(part, copy)
    writeable = np.memmap(tmp_path / "x.safetensors", np.uint8, "c")
    for other in (array, writeable, np.zeros(3), None, mp.cast(mapped, "bfloat16")):
        assert not drop_pages(other)


def test_an_array_without_elements_at_the_end_of_a_file_has_no_pages_to_drop(tmp_path):
    path = tmp_path / "page"
    path.write_bytes(bytes(mmap.PAGESIZE))
    assert drop_pages(np.memmap(path, np.uint8, "r")[mmap.PAGESIZE :])


@pytest.mark.skipif(sys.platform != "linux", reason="ctypes finds mlock of Linux here")
def test_pages_that_the_process_has_locked_are_kept(tmp_path):
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    mapped = _mapped(tmp_path, array)
    if ctypes.CDLL(None).mlock(ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(mapped.nbytes)):
        pytest.skip("the system does not let this process lock memory")
    layer = layers.Dense(2)
    layer.build((None, 3))
    layer.set_matrix(mapped)
    np.testing.assert_array_equal(layer.matrix, array)
    assert drop_pages(mapped)


def test_a_variable_gives_back_the_value_of_its_stamp_only():
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    variable = AutoCastVariable(value, name="kernel")
    stamp, made = variable.stamp, []
    variable.assign(value + 1)
    variable.give_back(stamp, partial(made.append, 1))  # of a value that is there no more
    np.testing.assert_array_equal(variable.numpy(), value + 1)
    assert not made
    derived = variable.derived("sum", np.sum)
    variable.give_back(variable.stamp, lambda: made.append(1) or value + 1)
    assert isinstance(variable._state[0], RecomputedArray)
    assert not made
    assert (variable.shape, variable.ndim, variable.size, variable.nbytes) == ((2, 3), 2, 6, 24)
    assert (len(variable), variable.dtype, variable.version) == (2, np.float32, 1)
    assert variable.derived("sum", lambda _: None) == derived
    assert not made
    read = variable.numpy()
    assert len(made) == 1
    assert not read.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        read.flags.writeable = True


def test_every_way_to_read_a_variable_reads_what_lies_elsewhere():
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    variable, plain = TFVariable(value, name="kernel"), TFVariable(value, name="kernel")
    variable.give_back(variable.stamp, lambda: value.copy())
    ways = [
        lambda v: v.value, lambda v: v.value(), lambda v: v.read_value(), lambda v: v[1], list, lambda v: v + 1,
        lambda v: v.gather([1]), lambda v: v.gather_nd([[0, 1]]), np.asarray, lambda v: np.sum(v, axis=0), repr,
        lambda v: v @ np.ones((3, 2), np.float32), lambda v: v.stored_as("float16").numpy(),
        lambda v: v.stored_as().numpy(), lambda v: pickle.loads(pickle.dumps(v)).numpy(),
        lambda v: v.derived("twice", lambda array: array * 2), lambda v: round(v, 1),
    ]  # fmt: skip
    for way in ways:
        np.testing.assert_array_equal(way(variable), way(plain))
        with mp.autocast.autocast_scope("float16"):
            np.testing.assert_array_equal(way(variable), way(plain))
    for write in (lambda v: v.assign_add(value), lambda v: v.scatter_add([0], value[:1]), lambda v: v.assign(value)):
        variable.give_back(variable.stamp, variable.numpy().copy)
        np.testing.assert_array_equal(write(variable).numpy(), write(plain).numpy())


def test_a_kernel_of_another_type_is_cast_out_of_its_file(tmp_path, rng):
    floats = mp.cast(rng.standard_normal((5, 7)), "bfloat16")
    layer = layers.Dense(5)
    layer.build((None, 7))
    layer.set_matrix(_mapped(tmp_path, floats))
    assert isinstance(layer.kernel._state[0], RecomputedArray)
    expected = mp.cast(floats, "float32")
    np.testing.assert_array_equal(layer.matrix, expected)
    np.testing.assert_array_equal(layer(np.eye(7, dtype=np.float32)), expected.T)
    np.testing.assert_array_equal(layer.get_weights()[0], expected.T)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16"])
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_rows_of_a_table_are_read_from_its_file(tmp_path, rng, policy, stored):
    floats, indices = mp.cast(rng.standard_normal((5, 7)), stored), np.array([4, 0, 4])
    layer = layers.Embedding(5, 7, dtype=policy)
    layer.build()
    layer.set_matrix(_mapped(tmp_path, floats))
    assert layer.embeddings.source.dtype == floats.dtype
    assert file_map(layer.embeddings.source) is not None
    expected = mp.cast(mp.cast(floats, layer.variable_dtype), layer.compute_dtype)[indices]
    np.testing.assert_array_equal(layer(indices), expected)
    np.testing.assert_array_equal(mp.compile(layer, indices)(indices), expected)
    np.testing.assert_array_equal(layer.get_weights()[0], mp.cast(floats, layer.variable_dtype))
