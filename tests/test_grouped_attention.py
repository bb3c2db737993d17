"""Attention in groups of heads, compared with Keras' layer of that name."""

import os

import numpy as np
import pytest

import mp_core as mp
from mp_core import layers

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch and Keras

CASES = {
    "plain": ({}, {}),
    "causal": ({}, {"use_causal_mask": True}),
    "window": ({"sliding_window": 2}, {}),
    "causal window": ({"sliding_window": 2, "use_bias": False}, {"use_causal_mask": True}),
    "gate": ({"use_gate": True}, {}),
    "scores": ({"use_gate": True}, {"return_attention_scores": True, "use_causal_mask": True}),
    "masks": ({}, {"value_mask": True}),
    "mask": ({}, {"attention_mask": True}),
    "one head": ({"num_key_value_heads": 1}, {}),
    "as many": ({"num_key_value_heads": 4}, {"return_attention_scores": True}),
}


def _pair(rng, dtype="float32", **options):
    options = {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2} | options
    theirs = keras.layers.GroupQueryAttention(**options, dtype=dtype, name="a")
    ours = layers.GroupedQueryAttention(**options, dtype=dtype, name="a")
    theirs.build((2, 5, 6), (2, 7, 6))
    ours.build((2, 5, 6), (2, 7, 6))
    weights = [rng.standard_normal(w.shape).astype(np.float32) for w in theirs.weights]
    theirs.set_weights(weights)
    ours.set_weights(weights)
    assert [w.path for w in ours.weights] == [w.path for w in theirs.weights]
    return ours, theirs


def _given(rng, options):
    keep = np.ones((2, 7), bool)
    keep[0, 4:], keep[1, 1] = False, False
    masks = {"value_mask": keep, "attention_mask": rng.random((2, 5, 7)) < 0.7}
    masks["attention_mask"][..., 0] = True
    query, value = (rng.standard_normal((2, n, 6)).astype(np.float32) for n in (5, 7))
    return (query, value), {name: masks.get(name, value) for name, value in options.items()}


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_scores_are_those_of_keras(rng, case, dtype):
    ours, theirs = _pair(rng, dtype, **CASES[case][0])
    arrays, options = _given(rng, CASES[case][1])
    got, want = ours(*arrays, **options), theirs(*arrays, **options)
    pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
    for x, y in pairs:
        y = keras.ops.convert_to_numpy(keras.ops.cast(y, "float32"))
        assert x.shape == y.shape and x.dtype.name == ours.compute_dtype
        bound = (2e-6 if dtype == "float32" else 2.0**-5) * np.abs(y).max()
        np.testing.assert_allclose(x.astype(np.float32), y, rtol=0, atol=bound)
    again = layers.GroupedQueryAttention.from_config(theirs.get_config())
    again.build((2, 5, 6), (2, 7, 6))
    again.set_weights(ours.get_weights())
    for x, y in zip(again(*arrays, **options), got, strict=True):
        np.testing.assert_array_equal(x, y)
    assert keras.layers.GroupQueryAttention.from_config(ours.get_config()).num_query_heads == 4


def test_files_and_plans(rng, tmp_path):
    x = rng.standard_normal((2, 5, 6)).astype(np.float32)
    inputs = keras.Input((5, 6))
    outputs = keras.layers.GroupQueryAttention(3, 4, 2, use_gate=True, name="a")(inputs, inputs)
    theirs = keras.Model(inputs, outputs)
    theirs.save(tmp_path / "theirs.keras")
    ours = mp.saving.load_model(tmp_path / "theirs.keras")
    want = keras.ops.convert_to_numpy(theirs(x))
    np.testing.assert_allclose(ours(x), want, rtol=0, atol=2e-6)
    np.testing.assert_array_equal(mp.compile(ours, x)(x), ours(x))
    ours.compile("sgd", "mse")
    ours.fit(x, x, verbose=0)
    ours.save(tmp_path / "ours.keras")
    again = keras.saving.load_model(tmp_path / "ours.keras")
    np.testing.assert_allclose(keras.ops.convert_to_numpy(again(x)), ours(x), rtol=0, atol=2e-6)
    ours.quantize("int8")
    assert np.abs(ours(x) - keras.ops.convert_to_numpy(again(x))).max() < 0.1
    assert layers.GroupQueryAttention is layers.GroupedQueryAttention


def test_dropout_changes_training_alone(rng):
    layer = layers.GroupedQueryAttention(3, 4, 2, dropout=0.5, seed=1)
    x = rng.standard_normal((2, 5, 6)).astype(np.float32)
    layer(x, x)
    assert (layer(x, x, training=True) != layer(x, x)).any()
    np.testing.assert_array_equal(layer(x, x), layer(x, x))


def test_what_does_not_fit_is_refused():
    for options, message in (
        ({"num_key_value_heads": 3}, "`num_query_heads` must be divisible by `num_key_value_heads`; received 4 and 3"),
        ({"head_dim": 0}, "`head_dim` must be a positive integer"),
        ({"sliding_window": 0}, "`sliding_window` must be a positive integer"),
        ({"flash_attention": "yes"}, "`flash_attention` must be a bool or None"),
    ):
        with pytest.raises(ValueError, match=message):
            layers.GroupedQueryAttention(**{"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2} | options)
