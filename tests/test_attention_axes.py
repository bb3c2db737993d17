"""MultiHeadAttention over any axes between batch and features, compared with its formula in float64."""

import numpy as np
import pytest

import mp_core as mp
from mp_core.layers import MultiHeadAttention

# Axes, shapes of queries and of values, shapes of masks, and the scores: k keys, q queries, h heads.
CASES = {
    "both of two": ((1, 2), (2, 3, 4, 6), (2, 5, 2, 6), [(3, 4, 5, 2), (2, 1, 3, 4, 1, 2)], "aijhc,aklhc->ahijkl"),
    "all": (None, (2, 3, 4, 6), (2, 3, 4, 6), [(3, 4, 3, 4)], "aijhc,aklhc->ahijkl"),
    "the second": (2, (2, 3, 4, 6), (2, 3, 5, 6), [(4, 5), (2, 1, 4, 5), (2, 3, 2, 4, 5)], "abihc,abkhc->abhik"),
    "the first": ((-3,), (2, 3, 4, 6), (2, 5, 4, 6), [(3, 5)], "aibhc,akbhc->abhik"),
    "out of order": ((3, 1), (2, 3, 2, 4, 6), (2, 2, 2, 5, 6), [(4, 3, 5, 2)], "aibjhc,akblhc->abhjilk"),
}  # fmt: skip


def made(axes, q, v):
    layer = MultiHeadAttention(2, 3, value_dim=4, attention_axes=axes)
    layer.build(q, v)
    rng = np.random.default_rng(0)
    layer.set_weights([rng.standard_normal(w.shape) for w in layer.weights])
    return layer


def exact(layer, query, value, mask, equation):
    """Return outputs and scores in float64; the mask has the axes of the scores."""
    wq, bq, wk, bk, wv, bv, wo, bo = (w.astype(np.float64) for w in layer.get_weights())
    q, k, v = (np.tensordot(x.astype(np.float64), w, 1) + b for x, w, b in
               [(query, wq, bq), (value, wk, bk), (value, wv, bv)])  # fmt: skip
    labels, found = equation.split("->")
    queries, keys = labels.split(",")
    scores = np.einsum(equation, q, k) / np.sqrt(3)
    over = tuple(place for place, label in enumerate(found) if label not in queries)
    scores = np.exp(scores - scores.max(over, keepdims=True)) * mask
    total = scores.sum(over, keepdims=True)
    scores /= np.where(total == 0, 1, total)  # what may attend to nothing gets zeros
    context = np.einsum(f"{found},{keys[:-1]}d->{queries[:-1]}d", scores, v)
    return np.tensordot(context, wo, 2) + bo, scores


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_scores_are_those_of_the_formula(rng, name):
    axes, q, v, masks, equation = CASES[name]
    layer = made(axes, q, v)
    query, value = (rng.standard_normal(shape).astype(np.float32) for shape in (q, v))
    plan = mp.compile(layer, query, value)
    for shape in [None, *masks]:
        keep = None if shape is None else rng.random(shape) < 0.8
        whole = 1.0
        if shape is not None:
            pairs = 2 * (len(q) - 2 if axes is None else np.size(axes))
            rank = len(equation.split("->")[1])
            given = len(shape) - pairs
            whole = keep.reshape(*shape[:given], *[1] * (rank - len(shape)), *shape[given:])
        outputs, scores = layer(query, value, attention_mask=keep, return_attention_scores=True)
        want = exact(layer, query, value, whole, equation)
        np.testing.assert_allclose(scores, want[1], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(outputs, want[0], rtol=1e-3, atol=1e-4)
        if keep is None:
            np.testing.assert_array_equal(plan(query, value), layer(query, value))


def test_values_and_gradients_have_the_bits_of_the_joined_axes(rng):
    x = rng.standard_normal((2, 3, 4, 6)).astype(np.float32)
    found = []
    for axes, shape in [((1, 2), (2, 12, 6)), (2, (6, 4, 6))]:
        for given, each in [(axes, x), (None, x.reshape(shape))]:
            layer = made(given, each.shape, each.shape)
            step = mp.value_and_grad(lambda x, layer=layer: mp.mean(mp.ops.square(layer(x, x))), layer.weights)
            value, gradients = step(each)
            found.append([value.tobytes(), *(g.tobytes() for g in gradients)])
        assert found[-1] == found[-2]
    assert found[0] != found[2]


def test_it_is_saved_and_loaded(tmp_path):
    x = mp.Input((3, 4, 6))
    model = mp.Model(x, MultiHeadAttention(2, 3, attention_axes=(1, 2))(x, x))
    model.save(tmp_path / "model.keras")
    again = mp.load_model(tmp_path / "model.keras")
    assert again.layers[-1].get_config()["attention_axes"] == [1, 2]
    given = np.ones((2, 3, 4, 6), np.float32)
    np.testing.assert_array_equal(again(given), model(given))


@pytest.mark.parametrize(
    ("axes", "shape", "options", "words"),
    [
        (0, (2, 3, 4, 6), {}, "attention_axes"),
        (3, (2, 3, 4, 6), {}, "attention_axes"),
        ((1, 1), (2, 3, 4, 6), {}, "attention_axes"),
        ("ab", (2, 3, 4, 6), {}, "attention_axes"),
        (2, (2, 3), {}, "3 axes"),
        (2, (2, 3, 4, 6), {"use_causal_mask": True}, "use_causal_mask"),
        (2, (2, 3, 4, 6), {"query_mask": np.ones((2, 3), bool)}, "query_mask"),
        (2, (2, 3, 4, 6), {"attention_mask": np.ones(3, bool)}, "attention_mask"),
        (2, (2, 3, 4, 6), {"key": np.ones((2, 2, 4, 6), np.float32)}, "key"),
    ],
)
def test_what_does_not_fit_is_refused(axes, shape, options, words):
    x = np.ones(shape, np.float32)
    with pytest.raises(ValueError, match=words):
        MultiHeadAttention(2, 3, attention_axes=axes)(x, x, **options)


def test_the_mask_of_attention_is_that_of_its_queries_by_the_name_of_keras():
    x, masks = [np.ones((2, 3, 4), np.float32)] * 2, [np.ones((2, 3), bool), np.zeros((2, 3), bool)]
    for layer in (mp.layers.Attention(), mp.layers.AdditiveAttention()):
        assert layer.compute_mask(x) is None
        assert layer.compute_mask(x, mask=[None, masks[1]]) is None
        assert layer.compute_mask(x, mask=masks) is masks[0]
        with pytest.raises(ValueError, match="mask"):
            layer.compute_mask(x, mask=masks[0])
