"""TextNetwork: a network is a layer like any other."""

import copy
import json
import pickle

import numpy as np
import pytest
import tiny_bert

from mp_core import calibrate, layers
from mp_core.dtype_policies import DTypePolicyMap
from mp_core.models import BertEncoder, TextNetwork

IDS = np.array([[2, 4, 5, 6, 3], [2, 7, 3, 0, 0]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
PATHS = [
    "embeddings",
    "embeddings/word",
    "embeddings/position",
    "embeddings/norm",
    "encoder",
    *(
        f"encoder/layer_{index}{part}"
        for index in range(tiny_bert.LAYERS)
        for part in (
            "",
            "/attention",
            *(f"/attention/{name}" for name in ("query", "key", "value", "attention_output")),
            "/attention_norm",
            "/intermediate",
            "/output",
            "/output_norm",
        )
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert.write(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def model(folder):
    return BertEncoder.from_folder(folder).model


def test_a_model_is_a_layer_of_layers_with_paths_below_none(model):
    assert isinstance(model, layers.Layer)
    assert [layer.path for layer in model.flatten()][1:] == PATHS
    assert all("/" not in layer.name for layer in model.flatten())


def test_a_model_in_another_layer_has_the_paths_of_that_layer(model):
    outer = layers.Sequential([TextNetwork.from_config(model.get_config())], name="outer")
    outer(IDS)
    assert [layer.path for layer in outer.flatten()] == ["outer", "outer/model", *(f"outer/{path}" for path in PATHS)]


def test_a_call_gives_the_vectors_of_tokens_and_padding_changes_none(folder, model):
    received = model(IDS, mask=MASK)
    assert received.shape == (2, 5, tiny_bert.WIDTH)
    for row, ids, keep in zip(received, IDS, MASK, strict=True):
        np.testing.assert_allclose(row[keep], tiny_bert.forward(folder, list(ids[keep])), atol=2e-5)
        np.testing.assert_array_equal(row[keep], model(ids[np.newaxis, keep])[0])


@pytest.mark.parametrize(
    "same",
    [
        copy.deepcopy,
        lambda model: pickle.loads(pickle.dumps(model)),
        lambda model: model.with_policy("float32"),
    ],
    ids=["deepcopy", "pickle", "with_policy"],
)
def test_a_copy_gives_the_same_bits_under_the_same_paths(model, same):
    other = same(model)
    assert [layer.path for layer in other.flatten()][1:] == PATHS
    np.testing.assert_array_equal(other(IDS, mask=MASK), model(IDS, mask=MASK))


def test_a_configuration_and_weights_make_the_same_model(model):
    other = TextNetwork.from_config(model.get_config())
    other.build()
    other.set_weights(model.get_weights())
    np.testing.assert_array_equal(other(IDS, mask=MASK), model(IDS, mask=MASK))


@pytest.mark.parametrize("make", ["with_policy", "calibrate", "quantize"])
def test_a_configuration_says_in_which_forms_the_layers_of_a_model_are(model, make):
    if make == "quantize":
        model.quantize("int4/8")
    else:
        model = model.with_policy("int4/8_from_float32") if make == "with_policy" else calibrate(model, IDS, "int8")
    other = TextNetwork.from_config(json.loads(json.dumps(model.get_config())))
    other.build()
    other.set_weights(model.get_weights())
    np.testing.assert_array_equal(other(IDS, mask=MASK), model(IDS, mask=MASK))


@pytest.mark.parametrize("policy", ["int8/fixed_from_float32", "int8_from_mixed_bfloat16"])
def test_a_policy_that_a_later_layer_refuses_changes_no_layer(model, policy):
    kernel = model.encoder.blocks[1].attention.query.kernel
    kernel.assign(np.full(kernel.shape, np.nan))
    with pytest.raises(ValueError, match="layer 'encoder/layer_"):
        model.dtype_policy = policy
    assert {layer.dtype_policy.name for layer in model.flatten() if isinstance(layer, layers.Layer)} == {"float32"}
    assert not any(layer.quantized for layer in model.flatten() if isinstance(layer, layers.Layer))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16", "float16", "int8_from_mixed_bfloat16"])
def test_with_policy_gives_the_bits_of_loading_under_it(folder, model, policy):
    expected = BertEncoder.from_folder(folder, policy).model
    received = model.with_policy(policy)
    np.testing.assert_array_equal(received(IDS, mask=MASK), expected(IDS, mask=MASK))
    assert received.weight_bytes == expected.weight_bytes < model.weight_bytes


@pytest.mark.parametrize(
    "policy", ["mixed_bfloat16", DTypePolicyMap("float32", {"encoder/.*": "mixed_bfloat16"})], ids=["one", "map"]
)
def test_setting_the_policy_reaches_every_layer(folder, model, policy):
    expected = BertEncoder.from_folder(folder, policy).model
    model.dtype_policy = policy
    assert {layer.compute_dtype for layer in [*model.encoder.flatten()][1:]} == {"bfloat16"}
    np.testing.assert_array_equal(model(IDS, mask=MASK), expected(IDS, mask=MASK))


def test_setting_a_quantized_policy_gives_the_bits_of_loading_under_it(folder, model):
    policy = "int8_from_mixed_bfloat16"
    expected = BertEncoder.from_folder(folder, policy).model
    model.dtype_policy = policy
    assert model.dtype_policy == expected.dtype_policy
    np.testing.assert_array_equal(model(IDS, mask=MASK), expected(IDS, mask=MASK))


def test_quantize_quantizes_every_layer_that_can_be(model):
    exact, before = model(IDS), model.weight_bytes
    model.quantize("int8")
    quantized = [layer.path for layer in model.flatten() if isinstance(layer, layers.Dense | layers.Embedding)]
    assert [layer.path for layer in [*model.flatten()][1:] if layer.quantized] == quantized
    assert model.weight_bytes < before / 2
    assert 0 < np.abs(model(IDS) - exact).max() < 0.2
    with pytest.raises(ValueError, match="already quantized"):
        model.dtype_policy = "int4/16_from_float32"


@pytest.mark.parametrize(
    ("ids", "arguments", "error", "message"),
    [
        (IDS * 1.5, {}, TypeError, "`ids` must be integers; received float64"),
        (IDS[0], {}, ValueError, r"`ids` must have shape \(n, 1 to 10\); received \(5,\)"),
        (IDS + 5, {}, ValueError, "`ids` must be from 0 to 11; received 5 to 12"),
        (IDS, {"types": IDS}, ValueError, "`types` must be from 0 to 0; received 0 to 7"),
        (IDS, {"types": IDS[:1] * 0}, ValueError, r"`types` must have the shape of `ids`, \(2, 5\)"),
        (IDS, {"mask": MASK[:, :3]}, ValueError, r"`mask` must have the shape of `ids`, \(2, 5\)"),
        (IDS, {"mask": MASK & False}, ValueError, "`mask` must have a token in every row; received none in row 0"),
    ],
)
def test_a_call_names_the_bad_argument(model, ids, arguments, error, message):
    with pytest.raises(error, match=message):
        model(ids, **arguments)


def test_a_configuration_that_is_not_computed_is_refused_by_entry():
    with pytest.raises(ValueError, match="`config`: model_type is 'gpt2'; expected 'bert'"):
        TextNetwork({"model_type": "gpt2"})
    with pytest.raises(ValueError, match="`config`: vocab_size is None; expected a positive int"):
        TextNetwork({"model_type": "bert", "vocab_size": None})
    with pytest.raises(TypeError, match="`config` must be a dict; received 'bert'"):
        TextNetwork("bert")
