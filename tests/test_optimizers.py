"""Optimizers: values compared with Keras on JAX and with NumPy's expressions; a step is complete or does not happen."""

import math
import os

import ml_dtypes
import numpy as np
import pytest

import mp_core as mp
from mp_core import optimizers
from mp_core.autocast import AutoCastVariable
from mp_core.core import updates
from mp_core.optimizers import schedules
from mp_core.training.optimizers import formulas

os.environ.setdefault("KERAS_BACKEND", "torch")  # on JAX the values are the same, and each new shape takes a second
keras = pytest.importorskip("keras")

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras

CASES = {
    "sgd": ("SGD", {"learning_rate": 0.05}),
    "momentum": ("SGD", {"learning_rate": 0.05, "momentum": 0.9}),
    "nesterov": ("SGD", {"learning_rate": 0.05, "momentum": 0.9, "nesterov": True}),
    "adam": ("Adam", {}),
    "amsgrad": ("Adam", {"amsgrad": True, "beta_2": 0.9}),
    "adamw": ("AdamW", {"learning_rate": 0.01}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop momentum": ("RMSprop", {"momentum": 0.5}),
    "rmsprop centered": ("RMSprop", {"centered": True}),
    "rmsprop centered momentum": ("RMSprop", {"centered": True, "momentum": 0.5, "epsilon": 1e-3}),
    "adagrad": ("Adagrad", {"learning_rate": 0.05}),
    "lion": ("Lion", {}),
    "adafactor": ("Adafactor", {"learning_rate": 0.05}),
    "adafactor thresholds": ("Adafactor", {"clip_threshold": 0.5, "beta_2_decay": -0.5, "relative_step": False}),
    "adadelta": ("Adadelta", {"learning_rate": 0.5}),
    "adamax": ("Adamax", {"learning_rate": 0.01}),
    "ftrl": ("Ftrl", {"learning_rate": 0.05}),
    "ftrl strengths": (
        "Ftrl",
        {
            "learning_rate_power": -0.7,
            "l1_regularization_strength": 0.1,
            "l2_regularization_strength": 0.2,
            "l2_shrinkage_regularization_strength": 0.3,
            "beta": 0.01,
        },
    ),
    "lamb": ("Lamb", {"learning_rate": 0.01}),
    "nadam": ("Nadam", {"learning_rate": 0.01}),
    "muon": ("Muon", {"learning_rate": 0.02}),
    "muon plain": (
        "Muon",
        {"nesterov": False, "rms_rate": None, "ns_steps": 2, "adam_lr_ratio": 0.5, "adam_weight_decay": 0.1},
    ),
    "clipnorm": ("Adam", {"clipnorm": 0.5}),
    "clipvalue": ("SGD", {"clipvalue": 0.25}),
    "global_clipnorm": ("SGD", {"global_clipnorm": 0.75}),
    "decay": ("SGD", {"weight_decay": 0.1, "learning_rate": 0.1}),
    "averages": ("SGD", {"use_ema": True, "ema_momentum": 0.75, "ema_overwrite_frequency": 3}),
    "accumulation": ("Adam", {"gradient_accumulation_steps": 3}),
    "loss scale": ("Adam", {"loss_scale_factor": 3.0}),
}


def start(rng):
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((7, 5), (5,))]


def both(case, **more):
    kind, arguments = CASES[case]
    return getattr(optimizers, kind)(**arguments, **more), getattr(keras.optimizers, kind)(**arguments, **more)


@pytest.mark.parametrize("name", CASES)
def test_values_over_twenty_steps_are_those_of_keras(name):
    rng = np.random.default_rng(1)
    values = start(rng)
    own, other = both(name)
    variables = [AutoCastVariable(value) for value in values]
    references = [keras.Variable(value) for value in values]
    for _ in range(20):
        gradients = [rng.standard_normal(value.shape).astype(np.float32) for value in values]
        own.apply(gradients, variables)
        other.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], references)
    for variable, reference in zip(variables, references, strict=True):
        np.testing.assert_allclose(variable.numpy(), keras.ops.convert_to_numpy(reference), rtol=2e-5, atol=2e-6)
    for mine, theirs in zip(own.variables, other.variables, strict=True):
        np.testing.assert_allclose(
            mine.numpy(), keras.ops.convert_to_numpy(theirs), rtol=1e-4, atol=1e-5, err_msg=mine.name
        )
    assert int(own.iterations) == int(other.iterations)


@pytest.mark.parametrize("name", CASES)
def test_configurations_are_those_of_keras_and_load_in_both(name):
    own, other = both(name, name="it")
    config, theirs = own.get_config(), other.get_config()
    assert config.pop("learning_rate") == pytest.approx(theirs.pop("learning_rate"))
    assert config == theirs
    assert optimizers.deserialize(optimizers.serialize(own)).get_config() == own.get_config()
    assert optimizers.deserialize(keras.optimizers.serialize(other)).name == "it"
    if name != "lamb":  # which Keras 3.15 does not find by its name
        assert keras.optimizers.deserialize(optimizers.serialize(own)).get_config() == other.get_config()


@pytest.mark.parametrize("name", CASES)
def test_variables_have_the_order_and_the_shapes_of_keras(name):
    own, other = both(name)
    values = start(np.random.default_rng(0))
    own.build([AutoCastVariable(value) for value in values])
    other.build([keras.Variable(value) for value in values])
    assert [v.shape for v in own.variables] == [v.shape for v in other.variables]
    store, theirs = {}, {}
    own.save_own_variables(store)
    other.save_own_variables(theirs)
    assert store.keys() == theirs.keys()
    own.load_own_variables({key: np.asarray(value) for key, value in theirs.items()})


# ---- formulas: golden values and the rounding


def replayed_adam(w, gradients, rate=0.001, epsilon=1e-7):
    """The formula in float64, from the paper."""
    w, m, v = w.astype(np.float64), 0.0, 0.0
    for t, g in enumerate(gradients, 1):
        g = g.astype(np.float64)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + epsilon)
    return w


def test_adam_in_float64_follows_the_paper():
    rng = np.random.default_rng(2)
    w, gradients = rng.standard_normal(9), [rng.standard_normal(9) for _ in range(15)]
    variable, optimizer = AutoCastVariable(w), optimizers.Adam()
    for gradient in gradients:
        optimizer.apply([gradient], [variable])
    rates = float(np.float32(0.001))
    np.testing.assert_allclose(variable.numpy(), replayed_adam(w, gradients, rates), rtol=1e-12)


def test_golden_values_of_adam():
    """The table of Keras' own test `test_correctness_with_golden`, of which these are the first steps."""
    golden = [0.999, 0.9982, 0.9974, 0.9965, 0.9955]
    variable, optimizer = AutoCastVariable(np.ones(10, np.float32)), optimizers.Adam(amsgrad=True)
    gradients = [np.full(10, 1.0, np.float32), np.arange(0.1, 1.1, 0.1, dtype=np.float32)]
    optimizer.apply([gradients[0]], [variable])
    np.testing.assert_allclose(variable.numpy(), np.full(10, golden[0]), rtol=5e-4)
    for step in range(1, 5):
        optimizer.apply([np.full(10, 0.5, np.float32)], [variable])
        np.testing.assert_allclose(variable.numpy(), np.full(10, golden[step]), rtol=5e-4)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", [name for name in CASES if "ftrl" not in name])  # 16 bits do not hold its first 0.1
def test_variables_of_16_bits_are_computed_in_float32_and_rounded_once(name, dtype):
    own, _ = both(name)
    values = [value.astype(dtype) for value in start(np.random.default_rng(3))]
    gradients = [np.ones(value.shape, np.float32) for value in values]
    narrow = [AutoCastVariable(value) for value in values]
    wide = [AutoCastVariable(value.astype(np.float32)) for value in values]
    own.apply(gradients, narrow)
    again, _ = both(name)
    again.apply(gradients, wide)
    for variable, reference in zip(narrow, wide, strict=True):
        assert variable.true_dtype == np.dtype(dtype)
        np.testing.assert_array_equal(variable.numpy(), reference.numpy().astype(dtype))


RULE_NUMBERS = {
    "sgd": (0.1,), "momentum": (0.1, 0.9), "nesterov": (0.1, 0.9), "adam": (0.1, 0.001, 0.01, 1e-7),
    "amsgrad": (0.1, 0.001, 0.01, 1e-7), "rmsprop": (0.1, 0.9, 0.1, 1e-7, 0.0),
    "rmsprop_momentum": (0.1, 0.9, 0.1, 1e-7, 0.5), "rmsprop_centered": (0.1, 0.9, 0.1, 1e-7, 0.0),
    "rmsprop_centered_momentum": (0.1, 0.9, 0.1, 1e-7, 0.5), "adagrad": (0.1, 1e-7),
    "lion": (0.1, 0.9, 0.1, 0.99, 0.01),
}  # fmt: skip
PREPARATIONS = [
    formulas.Preparation(),
    formulas.Preparation(divisor=3.0),
    formulas.Preparation(1024.0, 0.3, np.inf, 0.01),
    formulas.Preparation(limit=0.25),
    formulas.Preparation(2.0, 0.7, 0.1, 0.1),
]


def hostile(rng, n):
    """Return numbers of all sizes, zeros of both signs and subnormal numbers, from the fifth on also what is none."""
    x = (rng.standard_normal(n) * 10.0 ** rng.integers(-30, 10, n)).astype(np.float32)
    x[: n // 3] = rng.standard_normal(n // 3)
    x[1:n:17], x[2:n:19], x[3:n:23] = 0.0, -0.0, 1e-42
    return x


@pytest.mark.parametrize("how", PREPARATIONS)
@pytest.mark.parametrize("rule", formulas.RULES)
def test_kernels_have_the_bits_of_numpy(isa, rule, how, rng):
    numbers = tuple(map(np.float32, RULE_NUMBERS[rule]))
    kept = updates.RULES[rule][1]
    for n in (1, 15, 1024, 1500):
        for bad in (None, np.nan, np.inf):
            w, g = hostile(rng, n), hostile(rng, n)
            slots = tuple(np.abs(hostile(rng, n)) for _ in range(kept))
            if bad is not None:
                g[n // 2] = bad
            expected, states, finite = formulas.updated(rule, w, g, slots, numbers, how)
            item = w, g, list(slots), None, how, [[] for _ in range(1 + kept)], 0
            results, are_finite = updates.update_each(rule, [item, item], numbers)
            assert are_finite is finite is (bad is None)
            *outs, new = results[1]
            for found, other in zip((new, *outs), (expected, *states), strict=True):
                np.testing.assert_array_equal(np.isnan(found), np.isnan(other))
                nan = np.isnan(found)
                np.testing.assert_array_equal(found.view(np.uint32)[~nan], other.view(np.uint32)[~nan])


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_bits_do_not_depend_on_threads(rule, rng):
    n, numbers = 200_001, tuple(map(np.float32, RULE_NUMBERS[rule]))
    w, g, *slots = (np.abs(rng.standard_normal(n, np.float32)) for _ in range(2 + updates.RULES[rule][1]))
    found = []
    for threads in (1, 3):
        with mp.config.num_threads(threads):
            item = w, g, slots, None, formulas.Preparation(), [[] for _ in range(1 + len(slots))], 0
            (arrays,), are_finite = updates.update_each(rule, [item], numbers)
            assert are_finite
            last, g[-1] = g[-1], np.nan
            assert not updates.update_each(rule, [item], numbers)[1]
            g[-1] = last
            found.append(b"".join(x.tobytes() for x in arrays))
    assert found[0] == found[1]


def test_memory_is_used_again_but_never_what_somebody_holds():
    blocks = []
    first = updates.block(blocks, (3,), np.float32)
    second = updates.block(blocks, (3,), np.float32)
    assert first is not second and first.ctypes.data != second.ctypes.data
    view, address = second[1:], second.ctypes.data
    del first, second
    assert updates.block(blocks, (3,), np.float32).ctypes.data != address
    del view
    held = [updates.block(blocks, (3,), np.float32) for _ in range(5)]
    assert len({x.ctypes.data for x in held}) == 5 and len(blocks) == 2


def test_updates_refuse_arrays_that_do_not_fit():
    x, how = np.ones(4, np.float32), formulas.Preparation()
    with pytest.raises(TypeError, match="must be of one size and type"):
        updates.update_each("sgd", [(x, np.ones(3, np.float32), [], None, how, [[]], 0)], (0.1,))
    with pytest.raises(TypeError, match="adam keeps 2 arrays of a variable, not 1"):
        updates.update_each("adam", [(x, x, [x], None, how, [[], []], 0)], (0.1,))
    for strided in (np.ones(4), np.ones(8, np.float32)[::2]):
        ((new,),), _ = updates.update_each("sgd", [(x, strided, [], None, how, [[]], 0)], (np.float32(0.5),))
        assert new.tolist() == [0.5] * 4


def test_powers_round_once():
    for base in (0.9, 0.999, 0.5):
        exact = [float(np.float32(base)) ** t for t in range(200)]
        found = [formulas.power(np.float32(base), t) for t in range(200)]
        np.testing.assert_array_equal(found, np.array(exact).astype(np.float32))


# ---- steps


def test_a_step_that_fails_changes_nothing():
    good, bad = AutoCastVariable([1.0, 2.0]), AutoCastVariable([1.0])
    optimizer = optimizers.Adam(use_ema=True)
    optimizer.build([good, bad])
    before = [v.numpy().copy() for v in (*optimizer.variables, good, bad)]
    with pytest.raises(ValueError, match=r"must have its shape \(1,\); received \(3,\)"):
        optimizer.apply([np.ones(2, np.float32), np.ones(3, np.float32)])
    for variable, value in zip((*optimizer.variables, good, bad), before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_an_array_that_was_read_never_changes():
    variable, optimizer = AutoCastVariable(np.ones(1000, np.float32)), optimizers.Adam()
    read = []
    for step in range(6):
        optimizer.apply([np.full(1000, 0.1, np.float32)], [variable])
        if step % 2:
            read += [(variable.numpy(), variable.numpy().copy()), (optimizer.variables[2].numpy(),) * 2]
            read[-1] = read[-1][0], read[-1][0].copy()
    for array, copy in read:
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [name for name in CASES if name != "loss scale"])
def test_a_loss_scale_optimizer_skips_a_step_as_if_it_had_not_been(name, bad):
    own, _ = both(name)
    values = start(np.random.default_rng(4))
    variables = [AutoCastVariable(value) for value in values]
    scaled = optimizers.LossScaleOptimizer(own, initial_scale=8.0)
    scaled.apply([np.ones_like(value) for value in values], variables)
    before = [v.numpy().copy() for v in (*own.variables, *variables)]
    gradients = [np.ones_like(value) for value in values]
    gradients[0][3, 2] = bad
    scaled.apply(gradients)
    assert scaled.dynamic_scale == 4.0
    for variable, value in zip((*own.variables, *variables), before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_a_scaled_step_is_the_step_of_the_divided_gradient():
    values = start(np.random.default_rng(5))
    plain, scaled = optimizers.Adam(), optimizers.LossScaleOptimizer(optimizers.Adam(), initial_scale=1024.0)
    first, second = ([AutoCastVariable(value) for value in values] for _ in range(2))
    gradients = [np.full(value.shape, 0.3, np.float32) for value in values]
    plain.apply(gradients, first)
    scaled.apply([gradient * np.float32(1024) for gradient in gradients], second)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_variables_that_are_overwritten_become_their_gradient():
    scale, weight = AutoCastVariable([1.0]), AutoCastVariable([1.0])
    scale.overwrite_with_gradient = True
    optimizer = optimizers.AdamW(0.1, clipnorm=0.001, loss_scale_factor=8.0)
    optimizer.apply([np.float32([5.0]), np.float32([1.0])], [scale, weight])
    assert scale.numpy() == 5.0 and weight.numpy() < 1.0
    assert len(optimizer.variables) == 4  # nothing is kept of the scale


def test_float8_layers_mark_their_variables():
    from mp_core import layers

    layer = layers.Dense(2, dtype="float8_from_float32")
    layer.build((None, 3))
    marked = [variable.name for variable in layer.trainable_variables if variable.overwrite_with_gradient]
    assert len(marked) == 6 and not any(name == "kernel" or name == "bias" for name in marked)


def test_gradients_that_are_none_are_left_out_and_named_once(caplog):
    used, unused = AutoCastVariable([1.0]), AutoCastVariable([2.0], name="unused")
    optimizer = optimizers.SGD(0.5)
    for _ in range(2):
        optimizer.apply([np.ones(1), None], [used, unused])
    assert unused.version == 0 and used.numpy() == 0.0
    assert [message for message in caplog.messages if "'unused'" in message] == caplog.messages[:1]
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        optimizer.apply([None, None])


def test_an_unknown_variable_is_refused():
    optimizer = optimizers.SGD()
    optimizer.build([AutoCastVariable([1.0])])
    stranger = AutoCastVariable([1.0])
    with pytest.raises(ValueError, match=r"Unknown variable: .* originally built with"):
        optimizer.apply([np.ones(1)], [stranger])
    assert stranger.version == 0


def test_decay_leaves_out_what_is_excluded():
    kernel, bias = AutoCastVariable([1.0], name="kernel"), AutoCastVariable([1.0], name="bias")
    gamma = AutoCastVariable([1.0], name="gamma")
    optimizer = optimizers.SGD(0.5, weight_decay=0.5)
    optimizer.exclude_from_weight_decay([gamma], ["bias"])
    optimizer.apply([np.zeros(1)] * 3, [kernel, bias, gamma])
    assert [float(v.numpy()[0]) for v in (kernel, bias, gamma)] == [0.75, 1.0, 1.0]
    with pytest.raises(ValueError, match="before the optimizer is built"):
        optimizer.exclude_from_weight_decay([kernel])


def test_muon_updates_matrices_and_adam_the_rest():
    stack = mp.Sequential([
        mp.Input((3,), dtype="int32"), mp.layers.Embedding(5, 4, name="embedding"), mp.layers.Flatten(),
        mp.layers.Dense(6, name="hidden"), mp.layers.Dense(2, name="last"),
    ])  # fmt: skip
    optimizer = optimizers.Muon(exclude_layers=["/last/"])
    optimizer.build(stack.trainable_variables)
    by_adam = [v for v in stack.trainable_variables if len(optimizer._states[id(v)]) == 2]
    assert [v.path.partition("/")[2] for v in by_adam] == [
        "embedding/embeddings", "hidden/bias", "last/kernel", "last/bias",
    ]  # fmt: skip


def test_muon_moves_along_orthogonal_matrices_of_any_shape(rng):
    for shape in ((6, 9), (9, 6), (4, 4), (1, 5)):
        variable = AutoCastVariable(np.zeros(shape, np.float32))
        optimizer = optimizers.Muon(1.0, ns_steps=20, muon_a=1.5, muon_b=-0.5, muon_c=0.0, rms_rate=None)
        gradient = rng.standard_normal(shape).astype(np.float32)
        optimizer.apply([gradient], [variable])
        u, _, v = np.linalg.svd(gradient.astype(np.float64), full_matrices=False)
        np.testing.assert_allclose(variable.numpy(), -u @ v, atol=1e-4)
        assert variable.numpy().flags.c_contiguous


def test_averages_become_the_values_at_the_end():
    variable, optimizer = AutoCastVariable([1.0]), optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)
    for _ in range(2):
        optimizer.apply([np.ones(1, np.float32)], [variable])
    assert variable.numpy() == -1.0
    optimizer.finalize_variable_values([variable])
    assert variable.numpy() == -0.5


def test_a_subclass_updates_by_update_step_as_in_keras():
    class Halving(optimizers.Optimizer):
        def build(self, trainable_variables):
            super().build(trainable_variables)
            self.counts = [self.add_variable_from_reference(v, "count") for v in trainable_variables]

        def update_step(self, gradient, variable, learning_rate):
            if np.any(gradient > 100):
                raise RuntimeError("too large")
            self.assign_add(self.counts[0], np.ones(1, np.float32))
            self.assign_sub(variable, variable / 2 * gradient * learning_rate)

    variable, optimizer = AutoCastVariable([8.0]), Halving(1.0, clipvalue=200.0)
    optimizer.apply([np.ones(1, np.float32)], [variable])
    assert variable.numpy() == 4.0 and optimizer.counts[0].numpy() == 1.0
    with pytest.raises(RuntimeError, match="too large"):
        optimizer.apply([np.full(1, 150, np.float32)])
    assert variable.numpy() == 4.0 and optimizer.counts[0].numpy() == 1.0 and int(optimizer.iterations) == 1


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: optimizers.SGD("fast"), ValueError, "`learning_rate` must be .* received learning_rate='fast'"),
        (lambda: optimizers.SGD(np.nan), ValueError, "`learning_rate` must be"),
        (lambda: optimizers.SGD(momentum=2.0), ValueError, "`momentum` must be a number from 0 to 1"),
        (
            lambda: optimizers.Adam(clipnorm=1.0, clipvalue=1.0),
            ValueError,
            "received clipnorm, clipvalue",
        ),
        (lambda: optimizers.Adam(clipnorm=-1.0), ValueError, "`clipnorm` must be a finite number above 0"),
        (lambda: optimizers.Adam(gradient_accumulation_steps=1), ValueError, "must be an integer >= 2"),
        (lambda: optimizers.Adam(use_ema=1), TypeError, "`use_ema` must be True or False"),
        (lambda: optimizers.Adam(ema_momentum=2), ValueError, "`ema_momentum` must be"),
        (lambda: optimizers.AdamW(weight_decay=None), ValueError, "`weight_decay` must be a number"),
        (lambda: optimizers.AdamW(weight_decay=math.inf), ValueError, "`weight_decay` must be finite"),
        (lambda: optimizers.SGD(weight_decay=math.inf), ValueError, "`weight_decay` must be finite"),
        (lambda: optimizers.Muon(adam_weight_decay=math.inf), ValueError, "`adam_weight_decay` must be finite"),
        (lambda: optimizers.Lion(beta_1=0.0), ValueError, "`beta_1` must be above 0"),
        (lambda: optimizers.Muon(exclude_layers="last"), TypeError, "`exclude_layers` must be a list of regular"),
        (lambda: optimizers.Muon(exclude_layers=5), TypeError, "`exclude_layers` must be a list of regular"),
        (lambda: optimizers.Muon(exclude_layers=["("]), ValueError, "`exclude_layers` must be .*unterminated"),
        (lambda: optimizers.Muon(exclude_layers=["(a+)+"]), ValueError, "may take too long"),
        (lambda: optimizers.Muon(ns_steps=0), ValueError, "`ns_steps` must be a positive integer"),
        (lambda: optimizers.Adam(decay=0.5), TypeError, "decay"),
        (lambda: optimizers.get("ada"), ValueError, "Unknown optimizer class_name='ada'"),
        (lambda: optimizers.get(5), ValueError, "Could not interpret optimizer identifier: 5"),
        (lambda: optimizers.SGD().apply([np.ones(1)]), ValueError, "must already be built"),
        (lambda: optimizers.SGD().build([np.ones(1)]), TypeError, "SGD updates variables"),
        (lambda: optimizers.Optimizer().apply([np.ones(1)], [AutoCastVariable([1.0])]), NotImplementedError, "`rule`"),
    ],
)
def test_wrong_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_names_of_optimizers_are_found_in_any_case():
    for name in ("sgd", "Adam", "adamw", "rmsprop", "adagrad", "adafactor", "lion", "RMSprop"):
        assert type(optimizers.get(name)).__name__.lower() == name.lower()
    made = optimizers.SGD()
    assert optimizers.get(made) is made


def test_the_state_of_a_loss_scale_optimizer_is_saved():
    variable = AutoCastVariable([1.0])
    optimizer = optimizers.LossScaleOptimizer(optimizers.Adam(), initial_scale=8.0, dynamic_growth_steps=3)
    for _ in range(4):
        optimizer.apply([np.ones(1, np.float32)], [variable])
    store = {}
    optimizer.save_own_variables(store)
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), initial_scale=1.0)
    theirs.build([keras.Variable(np.ones(1, np.float32))])
    theirs.load_own_variables(store)
    assert float(theirs.dynamic_scale) == 16.0 and int(theirs.inner_optimizer.iterations) == 4
    again = optimizers.LossScaleOptimizer(optimizers.Adam(), dynamic_growth_steps=3)
    again.build([AutoCastVariable([1.0])])
    again.load_own_variables(store)
    assert again.state == optimizer.state and int(again.iterations) == 4


# ---- learning rates

SCHEDULES = {
    "ExponentialDecay": [(0.1, 10, 0.9), (0.1, 10, 0.9, True)],
    "InverseTimeDecay": [(0.1, 10, 0.5), (0.1, 10, 0.5, True)],
    "PiecewiseConstantDecay": [([5, 10], [1.0, 0.5, 0.25])],
    "PolynomialDecay": [(0.1, 10), (0.1, 10, 0.01, 2.0, True)],
    "CosineDecay": [(0.1, 10), (0.0, 10, 0.1, "x", 0.5, 4)],
    "CosineDecayRestarts": [(0.1, 4), (0.1, 4, 1.0, 0.5, 0.1)],
}


@pytest.mark.parametrize(("name", "arguments"), [(name, case) for name, cases in SCHEDULES.items() for case in cases])
def test_schedules_are_those_of_keras(name, arguments):
    own = getattr(schedules, name)(*arguments)
    other = getattr(keras.optimizers.schedules, name)(*arguments)
    assert own.get_config() == other.get_config()
    for step in range(30):
        assert float(own(step)) == pytest.approx(float(other(step)), rel=1e-5, abs=1e-8), step
    assert schedules.deserialize(keras.optimizers.schedules.serialize(other)).get_config() == own.get_config()


def test_a_schedule_gives_the_rate_of_each_step():
    schedule = schedules.PiecewiseConstantDecay([0, 1], [1.0, 0.5, 0.25])
    variable, optimizer = AutoCastVariable([0.0]), optimizers.SGD(schedule)
    seen = []
    for _ in range(3):
        seen.append(float(optimizer.learning_rate))
        optimizer.apply([np.ones(1, np.float32)], [variable])
    assert seen == [1.0, 0.5, 0.25] and variable.numpy() == -1.75
    with pytest.raises(TypeError, match="comes from a schedule"):
        optimizer.learning_rate = 0.5
    again = optimizers.deserialize(optimizers.serialize(optimizer))
    assert again.get_config() == optimizer.get_config()
    optimizer.learning_rate = schedules.ExponentialDecay(0.5, 1, 1.0)
    assert float(optimizer.learning_rate) == 0.5


def test_a_callable_gives_the_rate():
    rates = iter([0.5, 0.25])
    variable, optimizer = AutoCastVariable([0.0]), optimizers.SGD(lambda: next(rates))
    for _ in range(2):
        optimizer.apply([np.ones(1, np.float32)], [variable])
    assert variable.numpy() == -0.75


def test_a_callable_is_asked_once_in_each_step():
    rates = iter([0.5, 0.25, 0.125])
    variables, optimizer = [AutoCastVariable([0.0]), AutoCastVariable([0.0])], optimizers.SGD(lambda: next(rates))
    for second in (np.ones(1, np.float32), None, np.ones(1, np.float32)):  # not one of all variables in one call
        optimizer.apply([np.ones(1, np.float32), second], variables)
    assert variables[0].numpy() == -0.875 and next(rates, None) is None


def test_pairs_are_lists_in_each_step():
    variable, optimizer = AutoCastVariable([0.0]), optimizers.SGD(0.5)
    for _ in range(3):
        optimizer.apply_gradients([[np.ones(1, np.float32), variable]])
    assert variable.numpy() == -1.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.ExponentialDecay(0.1, 0, 0.5), "`decay_steps` must be a finite number above 0"),
        (lambda: schedules.CosineDecay(0.1, -1), "`decay_steps` must be"),
        (lambda: schedules.PiecewiseConstantDecay([1], [1.0]), "`values` must be one more than `boundaries`"),
        (lambda: schedules.deserialize({"class_name": "Cosine"}), "Unknown learning rate schedule"),
    ],
)
def test_wrong_schedules_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Lion"])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "clipvalue": 0.5}])
def test_the_update_of_all_variables_in_one_call_has_the_bits_of_each_on_its_own(name, options):
    """An average of variables (`use_ema`) has them updated one by one."""
    rng, rate = np.random.default_rng(0), mp.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    values = [rng.standard_normal(shape).astype(np.float32) for shape in ((3, 5), (5,), (1, 70_000))]
    both = []
    for extra in ({}, {"use_ema": True}):
        variables = [AutoCastVariable(value) for value in values]
        optimizer = getattr(mp.optimizers, name)(rate, **options, **extra)
        optimizer.build(variables)
        both.append((optimizer, variables))
    for _ in range(4):
        gradients = [rng.standard_normal(value.shape).astype(np.float32) for value in values]
        before = [variable.numpy() for variable in both[0][1]]
        kept = [array.copy() for array in before]
        for optimizer, variables in both:
            optimizer.apply(gradients, variables)
        assert all(np.array_equal(x, y) for x, y in zip(before, kept, strict=True))  # who holds a value keeps it
        for x, y in zip(*(variables for _, variables in both), strict=True):
            assert np.array_equal(x.numpy(), y.numpy())
    assert both[0][0]._updates is not None and both[1][0]._updates is None


def test_one_call_leaves_to_the_other_way_what_kernels_cannot_do():
    rng, kernel = np.random.default_rng(0), AutoCastVariable(np.ones((2, 3), np.float32))
    bias = AutoCastVariable(np.ones(3, np.float32))
    optimizer = mp.optimizers.SGD(0.5)
    optimizer.build([kernel, bias])
    gradient = rng.standard_normal((3, 2)).astype(np.float32).T
    optimizer.apply([gradient, np.float32(2)], [kernel, bias])  # not contiguous; a number for all elements
    np.testing.assert_array_equal(kernel.numpy(), 1 - gradient * np.float32(0.5))
    np.testing.assert_array_equal(bias.numpy(), np.zeros(3, np.float32))
    bias.constraint = mp.constraints.NonNeg()
    ones = np.ones((2, 3), np.float32)
    optimizer.apply([ones, np.ones(3, np.float32)], [kernel, bias])
    np.testing.assert_array_equal(bias.numpy(), np.zeros(3, np.float32))
    optimizer.apply([np.ones(3, np.float32), ones], [bias, kernel])  # in another order
    with pytest.raises(ValueError, match="must have its shape"):
        optimizer.apply([ones, np.ones(4, np.float32)], [kernel, bias])
