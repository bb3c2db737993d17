"""Variables of 16 bits without masters: stochastic rounding and compensated updates."""

import copy
import os
import pickle

import ml_dtypes
import numpy as np
import pytest
import stochastic
from oracles import assert_same_bits
from test_optimizers import CASES

import mp_core as mp
from mp_core import layers, optimizers
from mp_core.autocast import AutoCastVariable

os.environ.setdefault("KERAS_BACKEND", "torch")

SHAPES = (7, 5), (700,), (9, 3)
NARROW = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
OPTIONS = {
    "nearest": {},
    "stochastic": {"stochastic_rounding": True, "seed": 11},
    "compensated": {"compensated": True},
    "both": {"compensated": True, "stochastic_rounding": True, "seed": 11},
}
EVERY = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
SIMPLE = [name for name in CASES if name not in ("averages", "accumulation")]


def made(case, **options):
    kind, arguments = CASES[case]
    return getattr(optimizers, kind)(**arguments | options)


def variables_of(dtype, seed=1):
    rng = np.random.default_rng(seed)
    return [AutoCastVariable(rng.standard_normal(shape), dtype=dtype) for shape in SHAPES]


def gradients_of(step):
    rng = np.random.default_rng(100 + step)
    return [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def bits_of(optimizer, variables):
    return b"".join(np.asarray(v.numpy()).tobytes() for v in (*variables, *optimizer.variables))


def trained(case, dtype, steps=4, **options):
    optimizer, variables = made(case, **options), variables_of(dtype)
    for step in range(steps):
        optimizer.apply(gradients_of(step), variables)
    return bits_of(optimizer, variables)


def rounded(x, dtype, options, step, place, number):
    """Round float32 as docs/numerics.md states it."""
    if not options.get("stochastic_rounding"):
        return mp.cast(x, dtype)
    random, bits = stochastic.random_bits(x.size, dtype, options["seed"], step, (place, number, 3))
    return stochastic.rounded(x, dtype, random.reshape(x.shape), bits)


def expected_step(case, dtype, optimizer, variables, step, options):
    """Compute a step of a float32 optimizer from the widened state, and round it; {variable: (value, rest), slots}."""
    wide = made(case)
    values = []
    for variable in variables:
        value = variable.numpy().astype(np.float32)
        rest = optimizer._rests.get(id(variable))
        values.append(AutoCastVariable(value if rest is None else value + rest.numpy().astype(np.float32)))
    wide.build(values)
    kept = [v.numpy() for v in optimizer.variables if not v.name.endswith("compensation")]
    wide.set_weights([x.astype(own.true_dtype) for x, own in zip(kept, wide.variables, strict=True)])
    wide.apply(gradients_of(step), values)
    found = []
    for place, value in enumerate(values):
        for number, slot in enumerate(wide._states[id(value)], 1):
            found.append(rounded(slot.numpy(), dtype, options, step + 1, place, number))
        if not options.get("compensated"):
            found.append(rounded(value.numpy(), dtype, options, step + 1, place, 0))
            continue
        new = mp.cast(value.numpy(), dtype)
        found += [rounded(value.numpy() - new.astype(np.float32), dtype, options, step + 1, place, 0), new]
    return found


@NARROW
@EVERY
@pytest.mark.parametrize("case", SIMPLE)
def test_a_step_is_that_of_float32_rounded_as_stated(case, options, dtype):
    optimizer, variables = made(case, **options), variables_of(dtype)
    optimizer.build(variables)
    for step in range(3):
        expected = expected_step(case, dtype, optimizer, variables, step, options)
        optimizer.apply(gradients_of(step), variables)
        found = []
        for variable in variables:
            rest = optimizer._rests.get(id(variable))
            found += [*optimizer._states[id(variable)], *([] if rest is None else [rest]), variable]
        for own, other in zip(found, expected, strict=True):
            # a slot of no axes, of Adafactor, is not used, and float32
            assert own.shape == () or np.array_equal(own.numpy().view(np.uint16), other.view(np.uint16)), own.name


@NARROW
@EVERY
@pytest.mark.parametrize("case", ["adam", "momentum", "rmsprop centered momentum"])
def test_all_paths_and_threads_have_the_same_bits(case, options, dtype, isa):
    expected = trained(case, dtype, **options)
    kind = getattr(optimizers, CASES[case][0])

    class InPython(kind):
        def updated(self, *arguments):
            return super().updated(*arguments)

    optimizer, variables = InPython(**CASES[case][1], **options), variables_of(dtype)
    for step in range(4):
        optimizer.apply(gradients_of(step), variables)
    assert bits_of(optimizer, variables) == expected

    optimizer, variables = made(case, **options), variables_of(dtype)
    optimizer.build(variables)
    for step in range(4):  # not all variables in their order: each is updated on its own
        optimizer.apply(gradients_of(step)[::-1], variables[::-1])
    assert bits_of(optimizer, variables) == expected


@EVERY
def test_large_variables_have_the_same_bits_for_any_threads(options):
    found = []
    for threads in (1, 3):
        rng = np.random.default_rng(1)
        variable = AutoCastVariable(rng.standard_normal(200_001), dtype="bfloat16")
        optimizer = optimizers.AdamW(0.01, **options)
        with mp.config.num_threads(threads):
            for _ in range(2):
                optimizer.apply([rng.standard_normal(200_001).astype(np.float32)], [variable])
        found.append(bits_of(optimizer, [variable]))
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_variables_are_as_without_the_options(dtype, caplog):
    expected = trained("adam", dtype)
    assert trained("adam", dtype, stochastic_rounding=True, compensated=True, seed=5) == expected
    assert "No variable of the model has 16 bits" in caplog.text


@NARROW
def test_the_seed_and_the_step_change_the_random_numbers(dtype):
    one, other = (trained("sgd", dtype, 1, stochastic_rounding=True, seed=seed) for seed in (1, 2))
    assert one != other
    variable = AutoCastVariable(np.ones(999), dtype=dtype)
    optimizer = optimizers.SGD(1.0, stochastic_rounding=True)
    found = []
    for _ in range(2):
        variable.assign(np.ones(999))
        optimizer.apply([np.full(999, 1e-4, np.float32)], [variable])
        found.append(variable.numpy().tobytes())
    assert found[0] != found[1]


# ---- what it is for


@pytest.mark.parametrize(
    "options, least, most",
    [
        ({}, 0.0, 0.0),
        (OPTIONS["stochastic"], 1.66, 1.78),
        (OPTIONS["compensated"], 1.70, 1.74),
        (OPTIONS["both"], 1.71, 1.725),
    ],
    ids=OPTIONS,
)
def test_a_thousand_relative_updates_of_a_thousandth_arrive(options, least, most):
    """1.001^1000 - 1 = 1.7169. Nearest loses each of them: half of the last bit of bfloat16 at 1 is 0.0039."""
    variable = AutoCastVariable(np.ones(512), dtype="bfloat16")
    optimizer = optimizers.SGD(1e-3, **options)
    for _ in range(1000):
        optimizer.apply([-variable.numpy().astype(np.float32)], [variable])
    gained = variable.numpy().astype(np.float64).mean() - 1
    assert least <= gained <= most


def test_averages_and_second_moments_of_bfloat16_follow_too():
    variable = AutoCastVariable(np.ones(4096), dtype="bfloat16")
    optimizer = optimizers.Adam(0.0, stochastic_rounding=True, use_ema=True, ema_momentum=0.999)
    for step in range(300):
        variable.assign(np.full(4096, 1.0 if step == 0 else 2.0))
        optimizer.apply([np.ones(4096, np.float32)], [variable])
    found = {v.name.rpartition("_")[2]: v.numpy().astype(np.float64).mean() for v in optimizer.variables[2:]}
    assert found["velocity"] == pytest.approx(1 - 0.999**300, rel=0.01)
    assert found["average"] == pytest.approx(2 - 0.999**299, rel=0.01)


def network(dtype="bfloat16"):
    mp.random.set_seed(3)
    model = mp.Sequential([mp.Input((8,)), layers.Dense(16, "relu", dtype=dtype), layers.Dense(1, dtype=dtype)])
    rng = np.random.default_rng(0)
    x = rng.standard_normal((96, 8)).astype(np.float32)
    return model, x, x[:, :1] * x[:, 1:2]


def fitted(epochs, options, model=None, **more):
    own, x, y = network()
    model = own if model is None else model
    if not model.compiled:
        model.compile(optimizers.Adam(0.01, **options), "mse")
    model.fit(x, y, epochs=epochs, verbose=0, shuffle=False, **more)
    return model


@EVERY
def test_training_that_is_resumed_has_the_bits_of_training_that_was_not(options, tmp_path):
    whole = fitted(4, options)
    half = fitted(2, options)
    half.save_training_state(tmp_path / "state")
    again, *_ = network()
    again.compile(optimizers.Adam(0.01, **options), "mse")
    again.load_training_state(tmp_path / "state")
    fitted(4, options, again, initial_epoch=2)
    pairs = zip(
        [*again.variables, *again.optimizer.variables], [*whole.variables, *whole.optimizer.variables], strict=True
    )
    for own, other in pairs:
        assert_same_bits(own.numpy(), other.numpy())


@EVERY
def test_models_in_files_go_on_with_the_same_bits(options, tmp_path):
    whole, half = fitted(4, options), fitted(2, options)
    half.save(tmp_path / "model.keras")
    again = mp.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == half.optimizer.get_config()
    fitted(4, options, again, initial_epoch=2)
    for own, other in zip(again.get_weights(), whole.get_weights(), strict=True):
        assert_same_bits(own, other)


@EVERY
def test_copies_and_pickles_go_on_with_the_same_bits(options):
    optimizer, variables = made("adam", **options), variables_of("bfloat16")
    optimizer.apply(gradients_of(0), variables)
    pairs = [copy.deepcopy((optimizer, variables)), pickle.loads(pickle.dumps((optimizer, variables)))]
    for own, values in [(optimizer, variables), *pairs]:
        own.apply(gradients_of(1), values)
    assert len({bits_of(*pair) for pair in [(optimizer, variables), *pairs]}) == 1


def test_keras_opens_files_of_optimizers_with_these_options(tmp_path):
    keras = pytest.importorskip("keras")
    model = fitted(1, OPTIONS["both"])
    model.save(tmp_path / "model.keras")
    theirs = keras.saving.load_model(tmp_path / "model.keras")
    assert type(theirs.optimizer).__name__ == "Adam"
    config = optimizers.serialize(optimizers.SGD(stochastic_rounding=True, seed=3))
    assert config["mp_core_config"] == {"stochastic_rounding": True, "seed": 3}
    assert keras.optimizers.deserialize(config).name == "sgd"
    assert optimizers.deserialize(config).seed == 3


def test_configurations_name_the_options_only_if_they_are_set():
    assert "stochastic_rounding" not in optimizers.Adam().get_config()
    config = optimizers.Adam(**OPTIONS["both"]).get_config()
    assert {name: config[name] for name in OPTIONS["both"]} == OPTIONS["both"]
    assert optimizers.Adam.from_config(config).get_config() == config
    with pytest.raises(ValueError, match="`mp_core_config` of a optimizer must be a dictionary"):
        optimizers.deserialize({"class_name": "SGD", "config": {}, "mp_core_config": 3})


# ---- with other options


@EVERY
def test_a_loss_scale_optimizer_passes_the_options_on(options):
    inner = optimizers.Adam(0.01, **options)
    scaled = optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    variables, plain = variables_of("float16"), variables_of("float16")
    for step in range(3):
        gradients = gradients_of(step)
        if step == 1:
            scaled.apply([np.full_like(g, np.inf) for g in gradients], variables)  # skipped
        scaled.apply([g * float(scaled.loss_scale) for g in gradients], variables)
    other = optimizers.Adam(0.01, **options)
    for step in range(3):
        other.apply(gradients_of(step), plain)
    assert bits_of(inner, variables) == bits_of(other, plain)
    with pytest.raises(ValueError, match="Set `compensated` on the `inner_optimizer`"):
        optimizers.LossScaleOptimizer(inner, compensated=True)


def test_a_constraint_drops_the_rest_of_what_it_changes():
    class AtMostOne(mp.constraints.Constraint):
        def __call__(self, w):
            return np.minimum(w, np.ones_like(w))

    variable = AutoCastVariable(np.array([0.5, 1.0]), dtype="bfloat16")
    variable.constraint = AtMostOne()
    optimizer = optimizers.SGD(1.0, compensated=True)
    optimizer.apply([np.float32([-0.001, -0.1])], [variable])
    rest = optimizer._rests[id(variable)].numpy().astype(np.float32)
    assert variable.numpy().tolist() == [0.5, 1.0]
    assert rest[0] == np.float32(np.float32(0.001).astype(ml_dtypes.bfloat16)) and rest[1] == 0


@NARROW
def test_an_overflow_leaves_no_rest(dtype):
    variable = AutoCastVariable(np.full(2, np.finfo(np.float16).max), dtype="float16")
    optimizer = optimizers.SGD(1.0, compensated=True)
    optimizer.apply([np.float32([-100.0, 0.0])], [variable])
    assert variable.numpy().tolist() == [np.inf, 65504.0]
    assert optimizer._rests[id(variable)].numpy().tolist() == [0.0, 0.0]


@EVERY
def test_averages_and_accumulated_gradients_have_the_same_bits_again(options):
    more = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 2, "gradient_accumulation_steps": 2}
    first, second = (trained("adam", "bfloat16", 8, **options, **more) for _ in range(2))
    assert first == second


def test_optimizers_that_round_themselves_are_refused():
    class Sign(optimizers.Optimizer):
        def update_step(self, gradient, variable, learning_rate):
            self.assign_sub(variable, learning_rate * np.sign(gradient))

    with pytest.raises(TypeError, match="Sign overrides `update_step`"):
        Sign(0.1, stochastic_rounding=True).build(variables_of("bfloat16"))


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"stochastic_rounding": 1}, TypeError, "`stochastic_rounding`"),
        ({"compensated": "yes"}, TypeError, "`compensated`"),
        ({"seed": -1}, ValueError, "`seed` must be an integer from 0"),
        ({"seed": 0.5}, TypeError, "`seed`"),
        ({"stochastic": True}, TypeError, "no argument `stochastic`"),
    ],
)
def test_wrong_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        optimizers.SGD(**options)


@pytest.mark.parametrize(
    "dtype, options, bytes_of_weight",
    [("float32", {}, 12), ("bfloat16", OPTIONS["stochastic"], 6), ("bfloat16", OPTIONS["compensated"], 8)],
)
def test_bytes_of_weights_and_state(dtype, options, bytes_of_weight):
    variable, optimizer = AutoCastVariable(np.zeros((300, 200)), dtype=dtype), optimizers.Adam(**options)
    optimizer.build([variable])
    held = sum(v.numpy().nbytes for v in (variable, *optimizer.variables[2:]))
    assert held == variable.size * bytes_of_weight
