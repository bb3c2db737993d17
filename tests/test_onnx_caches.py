"""Decoders as exporters write them: attention with a cache of keys and values, beside onnxruntime, token by token."""

import numpy as np
import pytest

import mp_core as mp

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(3)
MICROSOFT = "com.microsoft"


def numbers(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def networks(folder, kind, inputs, outputs, constants=None, domain=MICROSOFT, **attributes):
    """Return a graph of one node as a function of mp_core, and as one of onnxruntime; "": an absent argument.

    `inputs`: name -> example, of which the lengths of all axes may change.
    """
    types = {name: onnx.helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in inputs.items() if name.strip("_")}
    free = [onnx.helper.make_tensor_value_info(name, kind, [f"{name}{i}" for i in range(inputs[name].ndim)])
            for name, kind in types.items()]  # fmt: skip
    results = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    weights = [onnx.numpy_helper.from_array(x, name) for name, x in (constants or {}).items()]
    names = [name if name.strip("_") else "" for name in (*inputs, *(constants or {}))]
    node = onnx.helper.make_node(kind, names, outputs, domain=domain, **attributes)
    graph = onnx.helper.make_graph([node], "g", free, results, weights)
    versions = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid(MICROSOFT, 1)]
    model = onnx.helper.make_model(graph, opset_imports=versions, ir_version=10)
    onnx.save(model, folder / "a.onnx")
    session = onnxruntime.InferenceSession(str(folder / "a.onnx"), providers=["CPUExecutionProvider"])
    return mp.interop.onnx.load(folder / "a.onnx"), lambda **given: dict(
        zip(outputs, session.run(None, given), strict=True)
    )


def assert_near(found, expected):
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert found[name].shape == x.shape
        np.testing.assert_allclose(found[name], x, 1e-5, 1e-5, err_msg=name)


# ---- attention of heads that share keys

GROUPED = {
    "plain": {},
    "rotated": {"do_rotary": 1},
    "interleaved": {"do_rotary": 1, "rotary_interleaved": 1},
    "window": {"do_rotary": 1, "local_window_size": 3},
    "capped": {"softcap": 2.0, "scale": 0.7},
}


@pytest.fixture(params=GROUPED)
def grouped(request, tmp_path):
    """Return an attention of 4 heads that share 2, in both libraries; the total length is a constant there."""

    def made(total, packed=False):
        options = GROUPED[request.param]
        names = ("q", "_", "__") if packed else ("q", "k", "v")
        inputs = {name: numbers(1, 1, 1) for name in names}
        inputs |= {"past_key": numbers(1, 1, 1, 1), "past_value": numbers(1, 1, 1, 1), "last": np.int32([0])}
        constants = {"total": np.int32([total])}
        if options.get("do_rotary"):
            angles = np.arange(16)[:, np.newaxis] * 0.5 ** np.arange(8)
            constants |= {"cos": np.float32(np.cos(angles)), "sin": np.float32(np.sin(angles))}
        outputs = ["y", "key", "value"]
        common = options | {"num_heads": 4, "kv_num_heads": 2}
        return networks(tmp_path, "GroupQueryAttention", inputs, outputs, constants, **common)

    return made


def tokens(batch, length, packed=False):
    q, k, v = (numbers(batch, length, n) for n in (64, 32, 32))
    return {"q": np.concatenate([q, k, v], -1)} if packed else {"q": q, "k": k, "v": v}


@pytest.mark.parametrize(("batch", "room", "packed"), [(1, 0, True), (1, 12, False), (2, 0, False), (2, 12, True)])
def test_a_decoder_of_shared_heads_computes_what_onnxruntime_computes(grouped, batch, room, packed):
    """`room`: the length of caches that are longer than the text; 0: caches grow with the text."""
    given = tokens(batch, 5, packed) | {
        "past_key": numbers(batch, 2, room, 16),
        "past_value": numbers(batch, 2, room, 16),
    }
    given["last"] = np.full(batch, 4, np.int32)
    for total in (5, 6, 7):
        ours, theirs = grouped(total, packed)
        found, expected = ours(**given), theirs(**given)
        used = {"y": found["y"], **{name: found[name][:, :, :total] for name in ("key", "value")}}
        assert_near(used, {"y": expected["y"], **{name: expected[name][:, :, :total] for name in ("key", "value")}})
        assert found["key"].shape == expected["key"].shape
        if total == 6:
            for _ in range(2):  # by a plan
                np.testing.assert_array_equal(ours(**given)["y"], found["y"])
        given = tokens(batch, 1, packed) | {"past_key": expected["key"], "past_value": expected["value"]}
        given["last"] = np.full(batch, total, np.int32)


def test_sequences_of_other_lengths_have_their_own_places(grouped):
    lengths = np.array([3, 5], np.int32)
    given = tokens(2, 5) | {"past_key": numbers(2, 2, 0, 16), "past_value": numbers(2, 2, 0, 16), "last": lengths - 1}
    for total in (5, 6, 7):
        ours, theirs = grouped(total)
        found, expected = ours(**given), theirs(**given)
        for i, length in enumerate(lengths):
            new = length if total == 5 else 1  # rows behind the text have no meaning
            np.testing.assert_allclose(found["y"][i, :new], expected["y"][i, :new], 1e-5, 1e-5)
            for name in ("key", "value"):
                np.testing.assert_allclose(found[name][i, :, :length], expected[name][i, :, :length], 1e-5, 1e-5)
        lengths = lengths + 1
        given = tokens(2, 1) | {"past_key": expected["key"], "past_value": expected["value"], "last": lengths - 1}


# ---- attention of Microsoft with a past


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_multi_head_attention_continues_a_past(tmp_path, unidirectional):
    given = {name: numbers(2, 3, 32) for name in ("q", "k", "v")}
    given |= {"_": None, "mask": np.int32([[1] * 7, [0, 0] + [1] * 5]), "__": None}
    given |= {"past_key": numbers(2, 4, 4, 8), "past_value": numbers(2, 4, 4, 8)}
    ours, theirs = networks(tmp_path, "MultiHeadAttention", given, ["y", "key", "value"], num_heads=4,
                            unidirectional=unidirectional)  # fmt: skip
    given = {name: x for name, x in given.items() if x is not None}
    assert_near(ours(**given), theirs(**given))


@pytest.mark.parametrize("length", [1, 3])
def test_attention_continues_a_past(tmp_path, length):
    given = {"x": numbers(2, length, 16), "w": numbers(16, 48), "b": numbers(48)}
    given |= {"mask": np.int32([[1] * (4 + length), [0, 0] + [1] * (2 + length)]), "past": numbers(2, 2, 4, 4, 4)}
    ours, theirs = networks(tmp_path, "Attention", given, ["y", "present"], num_heads=4, unidirectional=1)
    assert_near(ours(**given), theirs(**given))


# ---- attention of operator set 23


@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("is_causal", [0, 1])
def test_attention_of_version_23_continues_a_past(tmp_path, is_causal, mask):
    given = {"q": numbers(2, 3, 32), "k": numbers(2, 3, 16), "v": numbers(2, 3, 16), "_": None}
    if mask is not None:
        shape = (2, 1, 3, 7)
        del given["_"]
        given["mask"] = RNG.random(shape) < 0.7 if mask == "bool" else numbers(*shape)
        given["mask"][..., 0] = 1
    given |= {"past_key": numbers(2, 2, 4, 8), "past_value": numbers(2, 2, 4, 8)}
    ours, theirs = networks(tmp_path, "Attention", given, ["y", "key", "value"], domain="", is_causal=is_causal,
                            q_num_heads=4, kv_num_heads=2)  # fmt: skip
    given = {name: x for name, x in given.items() if x is not None}
    assert_near(ours(**given), theirs(**given))
