"""Batches in passes: the bits of the whole batch, in bounded memory; losses over all samples at once are errors."""

import hashlib
import sys
import textwrap

import numpy as np
import processes
import pytest

import mp_core as mp
from mp_core import layers
from mp_core.layers.plans.parts import PartGradients, unit_of
from mp_core.ops.gradients.parts import SharedSum, Sums
from mp_core.ops.random import dropout, normal, uniform

SAMPLES = 5000


def digest(model):
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()


def dense(policy):
    return (8,), [
        layers.Dense(16, "relu", kernel_regularizer="l2", dtype=policy), layers.Dropout(0.3, seed=3),
        layers.LayerNormalization(dtype=policy),
        layers.Dense(3, "softmax", dtype="float32", activity_regularizer="l2"),
    ]  # fmt: skip


def convolution(policy):
    return (6, 6, 2), [
        layers.Conv2D(4, 3, activation="relu", dtype=policy), layers.SpatialDropout2D(0.2, seed=1), layers.Flatten(),
        layers.GaussianNoise(0.1, seed=4), layers.Dense(3, "softmax", dtype="float32"),
    ]  # fmt: skip


def embedding(policy):
    return (5,), [
        layers.Embedding(20, 8, dtype=policy), layers.Flatten(), layers.AlphaDropout(0.2, seed=3), layers.PReLU(),
        layers.GaussianDropout(0.1, seed=5), layers.Dense(3, "softmax", dtype="float32"),
    ]  # fmt: skip


def trained(make, policy, passes, optimizer="adam", **options):
    mp.random.set_seed(1)
    shape, stack = make(policy)
    state, is_embedding = np.random.default_rng(2), make is embedding
    model = mp.Sequential([mp.Input(shape, dtype="int32" if is_embedding else None), *stack], dtype=policy)
    x = state.integers(0, 20, (SAMPLES, *shape)) if is_embedding else state.standard_normal((SAMPLES, *shape))
    y, weights = state.integers(0, 3, SAMPLES), state.random(SAMPLES).astype(np.float32)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, batch_size=SAMPLES, epochs=2, verbose=0, sample_weight=weights, passes=passes,
                        **options)  # fmt: skip
    return digest(model), history.history, model


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("make", [dense, convolution, embedding])
def test_passes_give_the_weights_losses_and_metrics_of_the_whole_batch(make, policy):
    whole = trained(make, policy, 1)
    for passes in (2, 4):
        digest, history, model = trained(make, policy, passes)
        assert digest == whole[0]
        assert history["accuracy"] == whole[1]["accuracy"]
        np.testing.assert_allclose(history["loss"], whole[1]["loss"], rtol=1e-6)
        assert model._training_state._passes is not None


def test_layers_that_are_shared_and_several_outputs_give_the_bits_of_the_whole_batch():
    def run(passes):
        mp.random.set_seed(2)
        start, once = mp.Input((4, 6)), layers.Dense(6, "tanh")
        inner = layers.MultiHeadAttention(2, 3, dropout=0.1, seed=1)(once(once(start)), once(start))
        first, second = layers.Dense(2, name="a")(inner), layers.Dense(1, name="b")(layers.Flatten()(inner))
        model = mp.Model(start, [first, second])
        model.compile("sgd", ["mse", "mae"], loss_weights=[0.3, 2.0])
        state = np.random.default_rng(0)
        x, y = state.standard_normal((1100, 4, 6)), [state.random((1100, 4, 2)), state.random((1100, 1))]
        return digest(model), model.train_on_batch(x, y, passes=passes, return_dict=True), digest(model)

    assert run(1) == run(4)


def test_a_pass_has_whole_blocks_of_every_sum():
    assert unit_of([SharedSum(100, 1024), SharedSum(100 * 26 * 26, 1024)], 100) == 1024
    assert unit_of([SharedSum(100 * 26 * 26, 1024)], 100) == 256
    assert unit_of([SharedSum(128, 2048)], 128) == 2048
    with pytest.raises(ValueError, match="received 7 rows and 3 samples"):
        unit_of([SharedSum(7, 1024)], 3)


def test_partial_sums_of_single_blocks_can_be_added_elsewhere():
    w = mp.AutoCastVariable(np.random.default_rng(0).random((4, 3)).astype(np.float32))
    parts = PartGradients(lambda before, x: ([mp.matmul(x, w)], None), [w])
    x, d = (np.random.default_rng(1).standard_normal((3000, n)).astype(np.float32) for n in (4, 3))

    def sum_of(start, end, sums, before=None):
        run = parts.start(np.array([start], np.int32), x[start:end], sums=sums, before=before)
        return run.gradients([d[start:end]])[0]

    whole = sum_of(0, 3000, Sums.LAST)
    np.testing.assert_array_equal(whole, mp.matmul(x.T, d))
    first, second = sum_of(0, 1024, Sums.OPEN), sum_of(1024, 2048, Sums.OPEN)
    np.testing.assert_array_equal(sum_of(2048, 3000, Sums.LAST, [first + second]), whole)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(7, 5), (7, 3, 4), (9,)])
def test_random_numbers_of_a_part_are_those_of_the_whole(dtype, shape):
    key, at = np.array([5, 9], np.uint32), np.array([3], np.int32)
    x = mp.cast(np.ones(shape), dtype)
    np.testing.assert_array_equal(dropout(x[3:], key, 0.4, rows_before=at), dropout(x, key, 0.4)[3:])
    for draw in (uniform, normal):
        np.testing.assert_array_equal(draw(key, x[3:].shape, at), draw(key, shape)[3:])
    if len(shape) > 1:
        noise = (None, *[1] * (len(shape) - 1))
        np.testing.assert_array_equal(dropout(x[3:], key, 0.4, noise, at), dropout(x, key, 0.4, noise)[3:])
        np.testing.assert_array_equal(dropout(x[3:], key, 0.4, (1, *shape[1:]), at),
                                      dropout(x, key, 0.4, (1, *shape[1:]))[3:])  # fmt: skip


def test_random_numbers_of_a_part_in_float64_are_those_of_the_whole():
    x, key, at = np.ones((6, 4)), np.array([5, 9], np.uint32), np.array([2], np.int32)
    np.testing.assert_array_equal(dropout(x[2:], key, 0.4, rows_before=at), dropout(x, key, 0.4)[2:])
    with pytest.raises(TypeError, match="`rows_before` must be an ndarray of int32"):
        dropout(x, key, 0.4, rows_before=np.array([2.0]))


class _Adding(layers.Layer):
    def call(self, x):
        self.add_loss(mp.mean(x))
        return x


class _OwnLoss(mp.Model):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


@pytest.mark.parametrize(
    ("stack", "loss", "match"),
    [
        ([layers.BatchNormalization()], "mse", "BatchNormalization '.*' in training needs all samples"),
        ([_Adding()], "mse", "`add_loss` of layer '.*' needs all samples"),
        ([], mp.losses.Dice(), "the loss 'dice' is not a sum over the samples"),
        ([], mp.losses.Circle(), "the loss 'circle' is not a sum over the samples"),
        ([], lambda y, p: mp.mean(p - y), "the loss '.*' is not a sum over the samples"),
    ],
)
def test_what_needs_all_samples_is_refused_and_changes_nothing(stack, loss, match):
    model = mp.Sequential([mp.Input((3,)), layers.Dense(3), *stack])
    model.compile("sgd", loss)
    before = digest(model)
    x = np.ones((8, 3), np.float32)
    with pytest.raises(ValueError, match=match):
        model.fit(x, x[:, 0].astype(int) if "circle" in match else x, verbose=0, passes=2)
    assert digest(model) == before


def test_an_interruption_between_two_passes_changes_nothing(monkeypatch):
    """Neither weights, nor what the optimizer and random numbers have: the step happens as a whole or not."""
    model = mp.Sequential([mp.Input((3,)), layers.Dense(3), layers.Dropout(0.5, seed=1), layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.ones((3000, 3), np.float32)
    model.train_on_batch(x, x[:, :1], passes=3)
    states = [*model.variables, *model.optimizer.variables]
    before = [variable.numpy() for variable in states]
    run = PartGradients.start

    def interrupted(parts, start, *inputs, **options):
        if start[0]:
            raise KeyboardInterrupt
        return run(parts, start, *inputs, **options)

    with monkeypatch.context() as patch:
        patch.setattr(PartGradients, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.fit(x, x[:, :1], batch_size=3000, verbose=0, passes=3)
    assert all(map(np.array_equal, before, [variable.numpy() for variable in states]))
    assert model._training_state.passes == 1
    model.fit(x, x[:, :1], batch_size=3000, verbose=0, passes=3)


def test_steps_and_losses_of_ones_own_are_refused():
    start = mp.Input((3,))
    model = _OwnLoss(start, layers.Dense(1)(start))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="overrides `compute_loss`, so `passes` must be 1"):
        model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0, passes=2)
    with pytest.raises(ValueError, match="passes"):
        model.train_on_batch(np.ones((4, 3)), np.ones((4, 1)), passes=0)


def test_more_passes_need_less_memory():
    script = """
        import sys, numpy as np, mp_core as mp
        from mp_core import layers
        from mp_core.utilities.system import peak_rss_bytes  # that of this process alone
        model = mp.Sequential([mp.Input((8,)), *(layers.Dense(256, "gelu") for _ in range(4)), layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.ones((16384, 8), np.float32)
        before = peak_rss_bytes()
        model.train_on_batch(x, x[:, :1], passes=int(sys.argv[1]))
        print(peak_rss_bytes() - before)
    """

    def growth(passes):
        command = [sys.executable, "-c", textwrap.dedent(script), str(passes)]
        return int(processes.run(command, check=True, capture_output=True, text=True).stdout)

    assert growth(16) < growth(1) / 2
