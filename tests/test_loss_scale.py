"""Loss scaling (checklist G): states, optimizers, the search for Inf and NaN."""

import copy
import dataclasses
import math

import ml_dtypes
import numpy as np
import pytest
from oracles import codes

import mp_core as mp
from mp_core.autocast import AutoCastVariable
from mp_core.dtypes import finfo
from mp_core.loss_scale import (
    SGD,
    DynamicLossScale,
    LossScale,
    LossScaleOptimizer,
    Optimizer,
    OptimizerLike,
    all_finite,
    deserialize_optimizer,
    serialize_optimizer,
)
from mp_core.tf_keras.mixed_precision import LossScaleOptimizer as TFLossScaleOptimizer
from mp_core.tf_keras.mixed_precision.experimental import DynamicLossScale as TFDynamicLossScale
from mp_core.tf_keras.mixed_precision.experimental import FixedLossScale as TFFixedLossScale
from mp_core.tf_keras.mixed_precision.experimental.loss_scale import get
from mp_core.tf_keras.mixed_precision.experimental.optimizer import LossScaleOptimizerV1

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
MAX = float(np.finfo(np.float32).max)
INF, NAN = np.float32(np.inf), np.float32(np.nan)

SEQUENCES = [  # initial scale, period, factor, steps (finite or not), the scale after each
    (1, 2, 2, "TTTTTT", [1, 2, 2, 4, 4, 8]),
    (16, 2, 2, "FFFFFF", [8, 4, 2, 1, 1, 1]),
    (1, 2, 2, "TTTFT", [1, 2, 2, 1, 1]),
    (1, 1, 2, "TTTFTT", [2, 4, 8, 4, 8, 16]),
    (4, 2, 3, "TTFTT", [4, 12, 4, 4, 12]),
    (4, 2, 2, "FTTTFTFTTTF", [2, 2, 4, 4, 2, 2, 1, 1, 2, 2, 1]),
    (MAX / 4, 2, 2, "TTTTTT", [MAX / 4, MAX / 2, MAX / 2, MAX, MAX, MAX]),
]


def variable(*value, dtype=np.float32):
    return AutoCastVariable(np.array(value, dtype))


def gradients(finite):
    return [np.array([1.0, 2.0 if finite == "T" else np.nan], np.float32), None]


# ---- states


@pytest.mark.parametrize(("initial", "period", "factor", "steps", "scales"), SEQUENCES)
def test_dynamic_scale_follows_the_tables(initial, period, factor, steps, scales):
    state = DynamicLossScale(initial, period=period, factor=factor)
    mutable = TFDynamicLossScale(initial, increment_period=period, multiplier=factor)
    for finite, scale in zip(steps, scales, strict=True):
        state = state.adjust(finite == "T")
        assert mutable.update(gradients(finite)) == (None, finite == "T")
        assert state.loss_scale == mutable() == scale


SCALARS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int16]


@pytest.mark.parametrize("kind", SCALARS)
@pytest.mark.parametrize(("initial", "steps"), [(2**14, "TTTTTFFT"), (1, "FTF"), (100, "FFFFFFTTT")])
def test_numpy_scalars_are_as_the_numbers_of_python(kind, initial, steps):
    """Those of 16 bits would compute in 16 bits: 32768 * 2 is infinite in float16."""
    numbers = {"loss_scale": float(initial), "factor": 2.0, "min_loss_scale": 1.0, "max_loss_scale": 2.0**14}
    plain = DynamicLossScale(**numbers, period=1)
    state = DynamicLossScale(**{key: kind(value) for key, value in numbers.items()}, period=np.int8(1))
    assert state == plain and repr(state) == repr(plain)
    makers = LossScaleOptimizer, TFLossScaleOptimizer
    optimizer, tensorflow = (make(SGD(), initial_scale=kind(initial), dynamic_growth_steps=1) for make in makers)
    twins = [make(SGD(), initial_scale=initial, dynamic_growth_steps=1) for make in makers]
    weight = variable(1.0, 2.0)
    for finite in steps:
        state, plain = state.adjust(finite == "T"), plain.adjust(finite == "T")
        assert state == plain and type(state.loss_scale) is float
        for own, twin in zip((optimizer, tensorflow), twins, strict=True):
            for each in (own, twin):
                each.apply_gradients([(gradients(finite)[0], weight)])
        assert optimizer.dynamic_scale == twins[0].dynamic_scale and tensorflow.loss_scale == twins[1].loss_scale


@pytest.mark.parametrize("kind", SCALARS)
def test_numpy_scalars_are_as_the_numbers_of_python_in_the_experimental_faces(kind):
    assert TFFixedLossScale(kind(2)).get_config() == {"loss_scale_value": 2.0} == get(kind(2)).get_config()
    dynamic = TFDynamicLossScale(kind(2**14), increment_period=1, multiplier=kind(2))
    for expected in (2.0**15, 2.0**16):
        dynamic.update(np.ones(1, np.float32))
        assert dynamic() == expected
    assert LossScaleOptimizerV1(SGD(), kind(8)).loss_scale == np.float32(8)


def test_a_long_count_of_steps_does_not_overflow_a_narrow_integer():
    state = DynamicLossScale(1.0, counter=np.int8(126), period=np.int16(200))
    for _ in range(10):
        state = state.adjust(True)
    assert state.counter == 136


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_sgd_takes_a_narrow_learning_rate_that_was_set(kind):
    optimizer, given = SGD(loss_scale_factor=2.0**15), variable(1.0)
    optimizer.learning_rate = kind(2.0**-10)
    optimizer.apply([np.full(1, 2.0**15, np.float32)], [given])
    assert given.numpy() == 1 - 2.0**-10


@pytest.mark.parametrize(("steps", "scales"), [(row[3], row[4]) for row in SEQUENCES if row[:3] == (4, 2, 2)])
def test_tf_keras_optimizer_follows_the_tables(steps, scales):
    optimizer = TFLossScaleOptimizer(SGD(), initial_scale=4, dynamic_growth_steps=2)
    weights = [variable(1.0, 1.0), variable(1.0)]
    for finite, scale in zip(steps, scales, strict=True):
        optimizer.get_scaled_loss(1.0)
        unscaled = optimizer.get_unscaled_gradients(gradients(finite))
        optimizer.apply_gradients(zip(unscaled, weights, strict=True))
        assert optimizer.loss_scale == scale


def test_trap_13_edges_of_both_machines():
    capped = DynamicLossScale(MAX, counter=1, period=2).adjust(True)
    assert (capped.loss_scale, capped.counter) == (MAX, 0)  # the count starts again even when the scale cannot grow
    assert DynamicLossScale(1.0, counter=1).adjust(False) == DynamicLossScale(1.0, counter=0)  # the floor

    nonfinite = [(np.array([INF]), variable(1.0))]
    tf = TFLossScaleOptimizer(SGD(), initial_scale=1)
    tf.get_unscaled_gradients([tf.get_scaled_loss(INF)])
    tf.apply_gradients(nonfinite)
    assert (tf.loss_scale, tf.iterations) == (1.0, 1)  # a skipped step counts

    keras = LossScaleOptimizer(SGD(), initial_scale=1, dynamic_growth_steps=1)
    keras.apply_gradients(nonfinite)
    assert (keras.dynamic_scale, keras.iterations) == (0.5, 0)  # no floor, and it does not count
    keras.state = dataclasses.replace(keras.state, loss_scale=MAX)
    keras.apply_gradients([(np.array([1.0], np.float32), nonfinite[0][1])])
    assert keras.dynamic_scale == math.inf  # no cap


def test_scale_is_a_float32_number():
    state = DynamicLossScale(1.0, period=1, factor=1.1)
    expected = np.float32(1.0)
    for _ in range(10):
        state, expected = state.adjust(True), np.float32(float(expected) * 1.1)
        assert state.loss_scale == expected


def test_states_are_immutable_values():
    state = DynamicLossScale(8.0)
    assert state.adjust(True) == DynamicLossScale(8.0, counter=1) and state.counter == 0
    assert hash(state) == hash(DynamicLossScale(8.0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.counter = 1


def test_fixed_scale_never_changes():
    state = LossScale(8.0)
    assert state.adjust(False) is state


@pytest.mark.parametrize("dtype", FLOATS[:4])
def test_scaling_keeps_dtypes(dtype):
    tree = {"loss": np.ones((), dtype), "grads": [np.full(3, 0.5, dtype), None, np.arange(3)], "number": 2.0, "n": 3}
    scaled = LossScale(4.0).scale(tree)
    assert scaled["loss"].dtype == scaled["grads"][0].dtype == np.dtype(dtype)
    np.testing.assert_array_equal(scaled["grads"][0], np.full(3, 2.0, dtype))
    assert scaled["grads"][1] is None and scaled["grads"][2] is tree["grads"][2]
    assert (scaled["number"], scaled["n"]) == (8.0, 3)
    np.testing.assert_array_equal(LossScale(4.0).unscale(scaled)["grads"][0], tree["grads"][0])


def test_a_scale_of_one_returns_the_same_object():
    tree = [np.ones(3)]
    assert LossScale().scale(tree) is LossScale().unscale(tree) is tree


def test_overflow_is_infinite_and_no_warning():
    assert LossScale(2.0**15).scale(np.float16(60000)) == np.inf
    assert LossScale(2.0**17).scale(np.float16(1)) == np.inf


# ---- all_finite


@pytest.mark.parametrize("tree", [None, [], {}, [None, {"a": ()}], 1, 2.5, True, np.arange(3), variable(1.0)])
def test_trees_without_a_bad_number_are_finite(tree):
    assert all_finite(tree) is True


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 15, 16, 17, 1023, 1024, 1025, 5000])
def test_one_bad_element_anywhere_is_found(isa, dtype, n):
    x = np.ones(n, dtype)
    assert all_finite(x) is True
    for position in {0, n // 2, n - 1}:
        for bad in (np.nan, -np.nan) + (() if dtype == "float8_e4m3fn" else (np.inf, -np.inf)):
            x[position] = bad
            assert all_finite(x) is False
        x[position] = 1


@pytest.mark.parametrize("dtype", FLOATS[2:])
def test_every_code_is_told_apart(isa, dtype):
    x = codes(dtype)
    with np.errstate(invalid="ignore"):
        expected = np.isfinite(x.astype(np.float32))
    assert all_finite(x[expected]) is True
    assert [all_finite(x[i : i + 1]) for i in np.flatnonzero(~expected)] == [False] * np.count_nonzero(~expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_largest_and_smallest_numbers_are_finite(isa, dtype):
    limits = finfo(dtype)
    assert all_finite(np.array([limits.max, limits.min, limits.smallest_subnormal, -0.0]).astype(dtype))


LAYOUTS = {
    "fortran": lambda x: np.asfortranarray(x),
    "strided": lambda x: x[::2, 1::3],
    "reversed": lambda x: x[::-1, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "byte-swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "empty": lambda x: x[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(layout):
    x = np.ones((8, 9), np.float32)
    assert all_finite(LAYOUTS[layout](x))
    x[...] = INF
    assert all_finite(LAYOUTS[layout](x)) is (layout == "empty")


def test_elements_between_strides_do_not_count():
    x = np.full((8, 8), NAN)
    x[::2, ::2] = 1
    assert all_finite(x[::2, ::2])


# ---- SGD


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", ml_dtypes.bfloat16])
def test_sgd_updates_in_the_stored_dtype(dtype):
    weight, unused = variable(1.0, 2.0, dtype=dtype), variable(3.0)
    optimizer = SGD(0.5)
    optimizer.apply_gradients([(np.array([1.0, -1.0], np.float16), weight), (None, unused)])
    np.testing.assert_array_equal(weight.numpy(), np.array([0.5, 2.5], dtype))
    assert (weight.true_dtype, unused.version, optimizer.iterations) == (np.dtype(dtype), 0, 1)


def test_sgd_with_a_loss_scale_factor_updates_the_same():
    weight, optimizer = variable(1.0), SGD(0.5, loss_scale_factor=8.0)
    optimizer.apply_gradients([(optimizer.scale_loss(np.ones(1, np.float32)), weight)])
    assert weight.numpy() == 0.5


# ---- Keras 3's optimizer


def test_four_infinite_steps_quarter_twice():
    optimizer = LossScaleOptimizer(SGD(), initial_scale=400.0)
    weight = variable(1.0)
    for _ in range(4):
        optimizer.apply([np.array([INF])], [weight])
    assert optimizer.scale_loss(1.0) == 25.0 and weight.numpy() == 1.0


@pytest.mark.parametrize(("kind", "options"), [
    (LossScaleOptimizer, {"inner_optimizer": SGD(0.5), "initial_scale": 4.0}),
    (TFLossScaleOptimizer, {"inner_optimizer": SGD(0.5), "initial_scale": 4.0}),
    (SGD, {"learning_rate": 0.5, "loss_scale_factor": 4.0}),
])  # fmt: skip
def test_training_scales_the_loss_by_the_method_of_a_subclass(kind, options):
    class Doubled(kind):
        def scale_loss(self, loss):
            return super().scale_loss(loss) * 2

    model = mp.Sequential([mp.Input((1,)), mp.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(Doubled(**options), "mse")
    model.train_on_batch(np.ones((2, 1)), np.ones((2, 1)))
    np.testing.assert_array_equal(model.layers[0].kernel, [[2.0]])  # 0.5 times the gradient, which is 2, twice


class _OfTFKeras:
    """A user's loss scale with the methods of tf.keras' optimizer."""

    def __init__(self, inner, scale):
        self.inner, self.scale, self.seen = inner, scale, []

    iterations = property(lambda self: self.inner.iterations)

    def get_scaled_loss(self, loss):
        return loss * self.scale

    def get_unscaled_gradients(self, grads):
        self.seen += [float(np.abs(g).max()) for g in grads]
        return [g / np.float32(self.scale) for g in grads]

    def apply_gradients(self, grads_and_vars):
        return self.inner.apply_gradients(grads_and_vars)

    def get_config(self):
        return {}


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_training_calls_get_scaled_loss_of_a_users_class(policy):
    model = mp.Sequential([mp.Input((1,)), mp.layers.Dense(1, kernel_initializer="zeros")], dtype=policy)
    optimizer = _OfTFKeras(SGD(0.5), 64.0)
    model.compile(optimizer, "mse", auto_scale_loss=False)
    model.train_on_batch(np.ones((2, 1)), np.ones((2, 1)))
    assert max(optimizer.seen) == 128.0  # the gradient is -2, times 64
    np.testing.assert_array_equal(model.layers[0].kernel, [[1.0]])


def test_a_subclass_may_have_an_attribute_loss_scale():
    class Own(SGD):
        def __init__(self, **options):
            super().__init__(**options)
            self.loss_scale = 64.0

    model = mp.Sequential([mp.Input((1,)), mp.layers.Dense(1, kernel_initializer="zeros")])
    for factor in (None, 8.0):
        optimizer = copy.deepcopy(Own(learning_rate=0.5, loss_scale_factor=factor))
        model.set_weights([np.zeros((1, 1), np.float32), np.zeros(1, np.float32)])
        model.compile(optimizer, "mse")
        model.train_on_batch(np.ones((2, 1)), np.ones((2, 1)))
        assert optimizer.loss_scale == 64.0 and SGD(loss_scale_factor=factor).loss_scale == factor
        assert optimizer.scale_loss(np.float32(1)) == (factor or 1.0)
        np.testing.assert_array_equal(model.layers[0].kernel, [[1.0]])  # the attribute has no effect


def test_eight_finite_steps_double_four_times():
    optimizer = LossScaleOptimizer(SGD(), initial_scale=2.0, dynamic_growth_steps=2)
    weight = variable(1.0)
    for _ in range(8):
        optimizer.apply([np.ones(1, np.float32)], [weight])
    assert optimizer.scale_loss(1.0) == optimizer.dynamic_scale == 32.0
    assert (optimizer.step_counter, optimizer.iterations) == (0, 8)


def test_gradients_are_divided_in_float32_except_those_that_overwrite():
    class Recorder(SGD):
        def apply_gradients(self, grads_and_vars):
            self.seen = [gradient for gradient, _ in grads_and_vars]

    overwritten = variable(1.0)
    overwritten.overwrite_with_gradient = True
    optimizer = LossScaleOptimizer(Recorder(), initial_scale=2.0**20)
    gradient = np.array([6e-5], np.float16)
    optimizer.apply([gradient, gradient, None], [variable(1.0), overwritten, variable(1.0)])
    divided, kept, nothing = optimizer.inner_optimizer.seen
    assert divided.dtype == np.float32 and divided == gradient.astype(np.float32) / 2**20
    assert kept is gradient and nothing is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dynamic": False}, "set `loss_scale_factor`"),
        ({"foo": 1, "bar": 2}, "arguments: `foo`, `bar`"),
        *(
            ({name: 0.5}, "on the `inner_optimizer`")
            for name in (
                "weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema", "ema_momentum",
                "ema_overwrite_frequency", "loss_scale_factor", "gradient_accumulation_steps",
            )
        ),
    ],
)  # fmt: skip
def test_arguments_of_the_inner_optimizer_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LossScaleOptimizer(SGD(), **arguments)


def test_defaults_of_the_base_optimizer_are_accepted():
    optimizer = LossScaleOptimizer(SGD(loss_scale_factor=2.0), dynamic=True, clipnorm=None, ema_momentum=0.99)
    assert optimizer.inner_optimizer.loss_scale_factor is None


def test_configuration_round_trip():
    optimizer = LossScaleOptimizer(SGD(0.25), 8.0, 3, name="scaled")
    config = optimizer.get_config()
    assert config == {
        "name": "scaled",
        "inner_optimizer": serialize_optimizer(SGD(0.25)),
        "initial_scale": 8.0,
        "dynamic_growth_steps": 3,
    }
    assert LossScaleOptimizer.from_config(config).get_config() == config == optimizer.get_config()


def test_an_optimizer_of_ones_own():
    class Sign:
        iterations = 0

        def apply_gradients(self, grads_and_vars):
            for gradient, weight in grads_and_vars:
                weight.assign_sub(np.sign(gradient))
            self.iterations += 1

        def get_config(self):
            return {}

    assert isinstance(Sign(), OptimizerLike) and not isinstance(Sign(), Optimizer)
    weight = variable(1.0)
    optimizer = LossScaleOptimizer(Sign())
    optimizer.apply([np.array([3.0])], [weight])
    assert weight.numpy() == 0.0
    with pytest.raises(ValueError, match=r"Unknown optimizer class_name='Sign'\. Expected one of .*SGD"):
        LossScaleOptimizer.from_config(optimizer.get_config())
    assert LossScaleOptimizer.from_config(optimizer.get_config(), {"Sign": Sign}).iterations == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LossScale(0.0), "`loss_scale` must be"),
        (lambda: DynamicLossScale(float("nan")), "`loss_scale` must be"),
        (lambda: DynamicLossScale("4"), "`loss_scale` must be .* received loss_scale='4'"),
        (lambda: DynamicLossScale(period=0), "`period` must be a positive integer"),
        (lambda: DynamicLossScale(factor=1.0), "`factor` must be above 1"),
        (lambda: LossScale(1e39), "`loss_scale` must be a finite number above 0 in float32"),
        (lambda: LossScale(1e-46), "`loss_scale` must be a finite number above 0 in float32"),
        (lambda: DynamicLossScale(1e39), "`loss_scale` must be a finite number above 0 in float32"),
        (lambda: TFDynamicLossScale(1e39), "`initial_loss_scale` must be a finite number above 0 in float32"),
        (lambda: TFDynamicLossScale(10**400), "`initial_loss_scale` must be a finite number above 0"),
        (lambda: TFLossScaleOptimizer(SGD(), initial_scale=1e39), "`initial_scale` must be .* in float32"),
        (lambda: LossScaleOptimizer(SGD(), initial_scale=1e39), "`initial_scale` must be .* in float32"),
        (lambda: SGD(loss_scale_factor=1e39), "`loss_scale_factor` must be .* in float32"),
        (lambda: SGD().apply([np.ones(1)]), "must already be built on a list of variables"),
        (lambda: LossScaleOptimizer(SGD()).apply([np.ones(1)]), "must already be built on a list of variables"),
        (lambda: SGD().apply([None], [variable(1.0)]), "No gradients provided for any variable"),
        (lambda: TFLossScaleOptimizer(SGD()).apply_gradients([(None, variable(1.0))]), "No gradients provided"),
        (lambda: SGD("a"), "`learning_rate` must be a number"),
        (lambda: SGD(loss_scale_factor=0.0), "`loss_scale_factor` must be"),
        (lambda: LossScaleOptimizer(SGD(), initial_scale=-3.0), "`initial_scale` must be"),
        (lambda: LossScaleOptimizer(SGD(), dynamic_growth_steps=-1), "`dynamic_growth_steps` must be"),
        (lambda: LossScaleOptimizer(SGD()).apply([np.inf], []), "must be equally long; received 1 and 0"),
        (lambda: deserialize_optimizer("SGD"), "A serialized optimizer must be a dictionary"),
        (lambda: deserialize_optimizer({"class_name": "SGD", "config": {"momentum": 2}}), "`momentum` must be"),
    ],
)
def test_wrong_numbers_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD().apply_gradients([(np.ones(1), np.ones(1))]), "SGD updates variables, .* of type ndarray"),
        (
            lambda: LossScaleOptimizer(SGD()).apply_gradients([(np.ones(1), np.ones(1))]),
            "SGD updates variables, .* of type ndarray",
        ),
        (
            lambda: TFLossScaleOptimizer(SGD()).apply_gradients([(np.ones(1), np.ones(1))]),
            "SGD updates variables, .* of type ndarray",
        ),
        (lambda: SGD().apply_gradients([np.ones(2)]), "must hold pairs of gradient and variable"),
        (lambda: LossScaleOptimizer(SGD()).apply_gradients(5), "must hold pairs of gradient and variable; received 5"),
        (lambda: TFLossScaleOptimizer(SGD()).apply_gradients(["ab"]), "pairs of gradient and variable; received 'ab'"),
        (lambda: LossScaleOptimizer(SGD()).scale_loss(3), "`loss` must hold floating-point numbers; received 3"),
        (lambda: SGD(loss_scale_factor=2.0).scale_loss(3), "`loss` must hold floating-point numbers; received 3"),
        (lambda: LossScaleOptimizer(5), '"inner_optimizer" must have `iterations`'),
        (lambda: LossScaleOptimizer(LossScaleOptimizer(SGD())), "cannot wrap another LossScaleOptimizer"),
        (lambda: LossScaleOptimizer(SGD(), name=[1]), "`name` must be a string"),
        (lambda: LossScaleOptimizer.from_config("x"), "must be a dictionary; received 'x'"),
        (lambda: TFLossScaleOptimizer.from_config("loss_scale"), "must be a dictionary; received 'loss_scale'"),
        (lambda: serialize_optimizer("sgd"), '"optimizer" must have `iterations`'),
    ],
)
def test_what_is_of_another_kind_is_named(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize("make", [SGD, lambda: LossScaleOptimizer(SGD()), lambda: TFLossScaleOptimizer(SGD())])
@pytest.mark.parametrize(
    ("gradient", "error", "message"),
    [
        (np.ones(3, np.float32), ValueError, r"The gradient of variable 'variable' must have its shape \(2,\); rec"),
        ("a", TypeError, "`grads_and_vars` must be an array"),
        (object(), TypeError, "`grads_and_vars` must be an array"),
    ],
)
def test_a_wrong_gradient_changes_no_variable(make, gradient, error, message):
    optimizer, first, second = make(), variable(1.0), variable(1.0, 1.0)
    with pytest.raises(error, match=message):
        optimizer.apply_gradients([(np.ones(1, np.float32), first), (gradient, second)])
    assert (first.version, second.version, int(optimizer.iterations)) == (0, 0, 0)


@pytest.mark.parametrize("make", [lambda: SGD(0.5), lambda: LossScaleOptimizer(SGD(0.5))])
def test_an_optimizer_that_is_built_needs_no_variables(make):
    optimizer, weights = make(), [variable(1.0), variable(2.0)]
    optimizer.build(weights)
    gradient = optimizer.scale_loss(np.ones(1, np.float32))
    optimizer.apply([gradient, None])
    assert [weight.numpy().item() for weight in weights] == [0.5, 2.0] and optimizer.iterations == 1
    with pytest.raises(ValueError, match="must be equally long; received 1 and 2"):
        optimizer.apply([gradient])
    assert optimizer.iterations == 1


@pytest.mark.parametrize("make", [SGD, lambda: LossScaleOptimizer(SGD()), lambda: TFLossScaleOptimizer(SGD())])
def test_iterations_are_a_variable(make):
    optimizer = make()
    taken = optimizer.apply_gradients([(np.ones(1, np.float32), variable(1.0))])
    assert taken is optimizer.iterations and isinstance(taken, AutoCastVariable)
    assert (taken.numpy(), taken.dtype, int(taken)) == (1, np.int32, 1)
    taken.assign(7)
    assert optimizer.apply_gradients([]) is taken and optimizer.iterations == 7  # no pair is no step
    if not isinstance(optimizer, LossScaleOptimizer):  # of which Keras' cannot be set either
        optimizer.iterations = 9
        assert taken == 9


def test_configurations_of_keras_optimizers():
    off = {
        "jit_compile": True,
        "is_legacy_optimizer": False,
        "weight_decay": None,
        "use_ema": False,
        "ema_momentum": 0.99,
        "momentum": 0.0,
        "nesterov": False,
    }
    inner = {"class_name": "SGD", "config": {"name": "sgd", "learning_rate": 0.5} | off}
    optimizer = LossScaleOptimizer.from_config({"name": "x", "inner_optimizer": inner, "initial_scale": 4.0})
    assert optimizer.learning_rate == 0.5
    optimizer.learning_rate = 0.1
    assert optimizer.inner_optimizer.learning_rate == 0.1


def test_a_scale_beyond_float16_scales_float16():
    scaled = LossScale(2.0**17).scale(np.array([0.0, 1e-6, 0.5], np.float16))
    assert scaled.dtype == np.float16 and scaled[0] == 0 and scaled[1] == np.float16(float(np.float16(1e-6)) * 2.0**17)
    assert LossScale(2.0**30).unscale(np.float16(65504)) == np.float16(65504 / 2.0**30)
