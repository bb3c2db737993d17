"""`Normalization.adapt`: mean and variance of arrays and of batches, compared with NumPy in float64."""

import itertools
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import pytest

import mp_core as mp
from mp_core.layers import Normalization
from mp_core.utils import PyDataset


class Batches(PyDataset):
    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index % len(self.batches)], np.zeros(3)  # never an IndexError


HOW = {
    "array": np.concatenate, "list": list, "tuple": tuple, "generator": lambda parts: (x for x in parts),
    "pairs": lambda parts: [(x, x) for x in parts], "dataset": Batches,
}  # fmt: skip


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("axis", [-1, None, 1, (1, 2)])
def test_batches_of_any_lengths_have_the_statistics_of_all_data(rng, how, axis):
    parts = [rng.normal(3, 2, (n, 4, 3)).astype(np.float32) for n in (5, 1, 8)]
    whole = np.concatenate(parts).astype(np.float64)
    kept = () if axis is None else tuple(a % 3 for a in np.atleast_1d(axis))
    others = tuple(a for a in range(3) if a not in kept)
    layer = Normalization(axis=axis)
    layer.adapt(HOW[how](parts))
    np.testing.assert_allclose(layer.adapt_mean.numpy(), whole.mean(others), rtol=1e-6)
    np.testing.assert_allclose(layer.adapt_variance.numpy(), whole.var(others), rtol=1e-6)
    out = layer(parts[0])
    assert out.shape == parts[0].shape


def test_data_far_from_zero_and_many_batches_lose_nothing():
    rows = np.arange(2000, dtype=np.float64).reshape(-1, 1) + 1e9
    layer = Normalization(dtype="float64")
    layer.adapt(rows[n : n + 7] for n in range(0, 2000, 7))
    assert layer.adapt_mean.numpy().item() == pytest.approx(1e9 + 999.5, rel=1e-12)
    assert layer.adapt_variance.numpy().item() == pytest.approx((2000**2 - 1) / 12, rel=1e-9)


def test_nested_lists_of_numbers_are_one_array():
    layer = Normalization()
    layer.adapt([[1.0, 2.0], [3.0, 6.0]])
    assert layer.adapt_mean.numpy().tolist() == [2, 4]
    assert layer.adapt_variance.numpy().tolist() == [1, 4]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([], ValueError),
        (iter(()), ValueError),
        (5, TypeError),
        (iter([[1.0]]), TypeError),
        ([np.ones((2, 3)), np.ones((2, 4))], ValueError),
        ([np.ones((2, 3)), np.ones(3)], ValueError),
        (np.ones((2, 4)), ValueError),
        (iter([np.ones((2, 3)), "x"]), TypeError),
    ],
)
def test_what_does_not_fit_changes_nothing(data, error):
    layer = Normalization()
    layer.adapt(np.arange(6.0).reshape(2, 3))
    before = [v.numpy().tolist() for v in layer.weights]
    with pytest.raises(error, match="data"):
        layer.adapt(data)
    assert [v.numpy().tolist() for v in layer.weights] == before


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch
@pytest.mark.parametrize("options, shape", [
    ({"axis": 2, "mean": np.arange(5.0), "variance": np.arange(5.0) + 1}, (2, 4, 5, 3)),
    ({"axis": (1, 2), "mean": np.arange(5.0), "variance": np.arange(5.0) + 1}, (2, 7, 5, 3)),
    ({"mean": 5.0, "variance": 2.0}, (3, 7)), ({"axis": None, "mean": 5.0, "variance": 2.0}, (3, 7)),
    ({}, (3, 7)), ({"axis": 1}, (3, 4, 5)),
])  # fmt: skip
def test_mean_and_variance_have_the_axes_of_inputs_as_in_keras(options, shape):
    mine, other = mp.layers.Normalization(**options), keras.layers.Normalization(**options)
    assert mine.mean is None and mine.variance is None
    if options.keys() & {"mean"}:
        mine.build(shape)
        other.build(shape)
    else:
        data = np.random.default_rng(0).normal(3.0, 2.0, shape).astype(np.float32)
        mine.adapt(data)
        other.adapt(data)
    for name in ("mean", "variance"):
        expected = keras.ops.convert_to_numpy(getattr(other, name))
        assert getattr(mine, name).shape == expected.shape
        np.testing.assert_allclose(getattr(mine, name), expected, rtol=1e-5)
    again = mp.layers.Normalization.from_config(mine.get_config())
    assert again.get_config() == mine.get_config()


@pytest.mark.parametrize("data", [
    np.random.default_rng(1).normal(size=(16, 5)).astype(np.float32), np.arange(8.0), np.float32([0, 1, 5]),
    np.float32([1, 1, 1, 2, 2, 9]), [np.float32([[3, 1], [2, 2]]), np.float32([[8, 7]])],
])  # fmt: skip
@pytest.mark.parametrize("bins", [1, 2, 3, 7])
def test_intervals_of_few_data_are_those_of_keras(data, bins):
    mine, other = mp.layers.Discretization(num_bins=bins), keras.layers.Discretization(num_bins=bins)
    mine.adapt(data)
    for batch in data if isinstance(data, list) else [data]:  # `adapt` of Keras itself needs TensorFlow
        other.update_state(batch)
    other.finalize_state()
    np.testing.assert_allclose(mine.bin_boundaries, other.bin_boundaries, rtol=1e-6)
    again = mp.layers.Discretization.from_config(mine.get_config())
    assert again.bin_boundaries == mine.bin_boundaries and again.num_bins == bins
    assert mp.layers.Discretization.from_config(other.get_config()).bin_boundaries == other.bin_boundaries


def test_intervals_of_many_data_have_equal_shares():
    layer = mp.layers.Discretization(num_bins=5)
    batches = [np.random.default_rng(seed).exponential(size=(1000, 2)) for seed in range(5)]
    layer.adapt(batches)
    np.testing.assert_allclose(np.bincount(layer(np.concatenate(batches)).ravel()), [2000] * 5, atol=1)
    layer.adapt(itertools.repeat(batches[0]), steps=3)
    np.testing.assert_allclose(np.bincount(layer(batches[0]).ravel()), [400] * 5, atol=1)


def test_what_intervals_cannot_be_made_of_is_refused_and_changes_nothing():
    layer = mp.layers.Discretization(num_bins=2, name="bins")
    with pytest.raises(ValueError, match="layer 'bins' has no boundaries yet"):
        layer(np.zeros(3))
    layer.adapt([1.0, 2.0, 3.0, 4.0])
    for data in (np.empty(0), [1.0, np.nan], np.array([1e39]), []):
        with pytest.raises(ValueError, match="`data` must have numbers"):
            layer.adapt(data)
    assert layer.bin_boundaries == [2.0]
    with pytest.raises(ValueError, match="`steps` must be"):
        layer.adapt([1.0], steps=0)
    with pytest.raises(ValueError, match="give `num_bins` for `adapt`"):
        mp.layers.Discretization([0.0]).adapt([1.0])
    for wrong in ({}, {"num_bins": 2, "bin_boundaries": [0.0]}):
        with pytest.raises(ValueError, match="give `bin_boundaries`, or `num_bins`"):
            mp.layers.Discretization(**wrong)


@pytest.mark.parametrize("mode", ["int", "one_hot", "multi_hot", "count"])
@pytest.mark.parametrize("shape", [(4, 1), (4, 3), (2, 3, 4), (2, 3, 1), (5,)])
def test_shapes_of_intervals_are_known_before_adapt_and_are_those_of_calls(mode, shape):
    layer = mp.layers.Discretization(num_bins=3, output_mode=mode)
    stated = layer.compute_output_spec(mp.Input(batch_shape=shape))
    layer.adapt(np.arange(9.0))
    found = layer(np.zeros(shape, np.float32))
    assert (stated.shape, stated.dtype) == (found.shape, found.dtype.name)


def test_keras_opens_a_model_with_intervals_that_adapt_has_found(tmp_path):
    layer = mp.layers.Discretization(num_bins=3)
    layer.adapt(np.arange(9.0))
    x = mp.Input((2,))
    mp.Model(x, layer(x)).save(tmp_path / "model.keras")
    for library in (mp, keras):
        opened = library.saving.load_model(tmp_path / "model.keras").layers[-1]
        assert (opened.bin_boundaries, opened.num_bins) == ([2.0, 5.0], 3)
