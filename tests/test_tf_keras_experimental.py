"""The experimental policies and loss scales of tf.keras, and its loss scale optimizers (checklists C, D, G1, G3)."""

import numpy as np
import pytest

from mp_core import layers, optimizers, tf_keras
from mp_core.autocast import AutoCastVariable
from mp_core.dtype_policies import DTypePolicy
from mp_core.loss_scale import SGD, serialize_optimizer
from mp_core.loss_scale import LossScaleOptimizer as KerasLossScaleOptimizer
from mp_core.tf_keras.mixed_precision import LossScaleOptimizer, Policy, experimental, set_global_policy
from mp_core.tf_keras.mixed_precision.experimental import (
    DynamicLossScale,
    FixedLossScale,
    LossScale,
    LossScaleOptimizerV1,
    PolicyV1,
    tf22,
    wrap_optimizer,
)
from mp_core.tf_keras.mixed_precision.experimental.loss_scale import get, serialize

DYNAMIC = {"class_name": "DynamicLossScale"}
FIXED = {"class_name": "FixedLossScale", "config": {"loss_scale_value": 2.0}}
GENERATIONS = [(PolicyV1, "auto"), (tf22.Policy, "USE_DEFAULT")]


class OtherScale(LossScale):
    def __call__(self):
        return np.float32(1)

    def update(self, grads):
        return None, True

    def get_config(self):
        return {}


def _config(scale):
    return None if scale is None else scale.get_config()


# ---- C and D: policies


def test_names():
    assert experimental.Policy is PolicyV1 and issubclass(PolicyV1, Policy)
    assert experimental.set_policy is set_global_policy
    assert experimental.LossScaleOptimizer is LossScaleOptimizerV1


@pytest.mark.parametrize(("policy_type", "default"), GENERATIONS)
@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("mixed_float16", DynamicLossScale()),
        ("float16", None),
        ("mixed_bfloat16", None),
        ("float32", None),
        ("_infer", None),
    ],
)
def test_default_loss_scale(policy_type, default, name, scale):
    for policy in (policy_type(name), policy_type(name, default)):
        assert type(policy.loss_scale) is type(scale) and _config(policy.loss_scale) == _config(scale)
        assert policy.get_config() == {"name": name}


@pytest.mark.parametrize("policy_type", [PolicyV1, tf22.Policy])
def test_loss_scale_argument(policy_type):
    scale = FixedLossScale(4)
    assert policy_type("float16", scale).loss_scale is scale
    assert policy_type("float16", 2).loss_scale() == policy_type("float16", FIXED).loss_scale() == 2.0
    assert isinstance(policy_type("float16", "dynamic").loss_scale, DynamicLossScale)
    assert policy_type("mixed_float16", None).loss_scale is None
    with pytest.raises(ValueError, match="Could not interpret loss scale identifier: abc"):
        policy_type("float16", "abc")


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (PolicyV1("float16", 2), '<PolicyV1 "float16", loss_scale=FixedLossScale(2.0)>'),
        (PolicyV1("float32"), '<PolicyV1 "float32", loss_scale=None>'),
        (tf22.Policy("float32"), '<Policy "float32", loss_scale=None>'),
        (tf22.Policy("float16", 2), '<Policy "float16", loss_scale=FixedLossScale(2.0)>'),
    ],
)
def test_repr_of_policies(policy, text):
    assert repr(policy) == str(policy) == text


def test_repr_of_a_dynamic_policy():
    assert repr(PolicyV1("mixed_float16")).startswith('<PolicyV1 "mixed_float16", loss_scale=DynamicLossScale(')


@pytest.mark.parametrize(
    ("name", "scale", "message"),
    [
        ("float32", 2.0, "You passed loss_scale=2.0 for policy float32. Consider not passing any loss_scale instead."),
        ("mixed_bfloat16", "dynamic", "You passed loss_scale='dynamic' for policy mixed_bfloat16. "),
        ("mixed_float16", 2.0, None),
        ("float16", "dynamic", None),
        ("_infer", 2.0, None),
        ("float32", None, None),
    ],
)
def test_a_useless_loss_scale_is_logged_once(caplog, name, scale, message):
    PolicyV1(name, scale)
    assert len(caplog.messages) == (message is not None)
    if message is not None:
        assert caplog.messages[0].startswith(
            f"Creating a Policy with a loss scale is only useful for float16 policies. {message}"
        )


@pytest.mark.parametrize("policy_type", [PolicyV1, tf22.Policy])
@pytest.mark.parametrize("scale", [None, FIXED, DYNAMIC | {"config": DynamicLossScale(4).get_config()}])
def test_configuration_of_policies(policy_type, scale):
    policy = policy_type("float16", scale)
    assert policy.get_config() == {"name": "float16", "loss_scale": scale}
    again = policy_type.from_config(policy.get_config())
    assert again == policy and hash(again) == hash(policy)
    assert again != policy_type("float16", 8) and again != Policy("float16")


@pytest.mark.parametrize(
    ("policy", "config"),
    [
        (PolicyV1("float32"), {"class_name": "PolicyV1", "config": {"name": "float32"}}),
        (PolicyV1("float16", 2), {"class_name": "PolicyV1", "config": {"name": "float16", "loss_scale": FIXED}}),
        (Policy("float32"), "float32"),
        (Policy("_infer"), None),
        (Policy("mixed_float16"), {"class_name": "Policy", "config": {"name": "mixed_float16"}}),
        (tf22.Policy("float32"), "float32"),
        (tf22.Policy("_infer"), None),
        (tf22.Policy("mixed_float16"), {"class_name": "Policy", "config": {"name": "mixed_float16"}}),
        (tf22.Policy("float32", None), {"class_name": "Policy", "config": {"name": "float32", "loss_scale": None}}),
        (tf22.Policy("float16", 2), {"class_name": "Policy", "config": {"name": "float16", "loss_scale": FIXED}}),
    ],
)
def test_serialization_of_both_generations(policy, config):
    assert experimental.serialize(policy) == tf22.serialize(policy) == config
    assert experimental.deserialize(config) == Policy(policy.name)
    if type(policy) is tf22.Policy:
        assert tf22.deserialize(config) == policy


def test_should_cast_variables():
    assert tf22.Policy("mixed_float16").should_cast_variables
    assert not tf22.Policy("float16").should_cast_variables


def test_set_policy_of_the_earlier_generation():
    tf22.set_policy("mixed_float16")
    assert isinstance(tf22.global_policy().loss_scale, DynamicLossScale)
    assert experimental.global_policy() is tf22.global_policy()
    tf22.set_policy(None)
    assert repr(tf22.global_policy()) == '<Policy "float32", loss_scale=None>'


def test_get_layer_policy():
    policy = PolicyV1("mixed_float16")
    assert experimental.get_layer_policy(tf_keras.layers.Dense(1, dtype=policy)) is policy
    assert experimental.get_layer_policy(layers.Dense(1, dtype="float16")) == DTypePolicy("float16")
    with pytest.raises(ValueError, match="get_policy can only be called on a layer, but got: 1"):
        experimental.get_layer_policy(1)


@pytest.mark.parametrize(
    ("policy", "optimizer_type", "scale"),
    [
        (PolicyV1("mixed_float16"), LossScaleOptimizerV1, 2.0**15),
        (PolicyV1("float16", 4), LossScaleOptimizerV1, 4),
        (PolicyV1("mixed_float16", None), SGD, None),
        (Policy("mixed_float16"), LossScaleOptimizer, 2.0**15),
        (Policy("float16"), SGD, None),
        (Policy("mixed_bfloat16"), SGD, None),
    ],
)
def test_which_policies_scale_the_loss(policy, optimizer_type, scale):
    optimizer = wrap_optimizer(SGD(), policy)
    assert type(optimizer) is optimizer_type and getattr(optimizer, "loss_scale", None) == scale
    if optimizer_type is not SGD:
        assert wrap_optimizer(optimizer, policy) is optimizer


@pytest.mark.parametrize(
    ("optimizer", "policy", "message"),
    [
        (SGD(), "mixed_float16", "`policy` must be a policy, .* received 'mixed_float16'"),
        ("sgd", Policy("float32"), '"optimizer" must have `iterations`'),
        (SGD, Policy("mixed_float16"), '"optimizer" must have `iterations`'),
    ],
)
def test_what_no_optimizer_is_made_of(optimizer, policy, message):
    with pytest.raises(TypeError, match=message):
        wrap_optimizer(optimizer, policy)


def test_losses_are_scaled_once():
    keras = KerasLossScaleOptimizer(SGD())
    assert wrap_optimizer(keras, Policy("mixed_float16")) is keras
    with pytest.raises(TypeError, match="cannot wrap another LossScaleOptimizer"):
        LossScaleOptimizer(keras)


# ---- G1: loss scales


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("2", "must be a Python int or float"),
        (None, "must be a Python int or float"),
        (0.5, "must be at least 1"),
        (1e39, "must be at least 1, and finite in float32"),
        (10**400, "must be at least 1, and finite in float32"),
    ],
)
def test_fixed_loss_scale_refuses(value, message):
    with pytest.raises(ValueError, match=f"loss_scale_value {message}"):
        FixedLossScale(value)


def test_fixed_loss_scale():
    scale = FixedLossScale(2)
    update, should_apply = scale.update(np.array([np.nan]))
    assert update is None and should_apply is True
    assert scale() == 2.0 and scale().dtype == np.float32
    assert repr(scale) == "FixedLossScale(2.0)" and scale.get_config() == {"loss_scale_value": 2.0}
    assert FixedLossScale.from_config(scale.get_config())() == 2.0


def test_dynamic_loss_scale():
    scale = DynamicLossScale(4, increment_period=3, multiplier=2)
    assert scale.update([{"a": np.ones(2), "b": None}, ()]) == (None, True)
    assert repr(scale) == (
        "DynamicLossScale(current_loss_scale=4.0, num_good_steps=1, initial_loss_scale=4.0, increment_period=3, "
        "multiplier=2.0)"
    )
    assert scale.get_config() == {"initial_loss_scale": 4.0, "increment_period": 3, "multiplier": 2.0}
    assert scale().dtype == np.float32 and scale.update(np.array(np.inf, np.float16))[1] is False
    assert scale() == 2.0 and DynamicLossScale.from_config(scale.get_config())() == 4.0
    assert [DynamicLossScale()(), DynamicLossScale().increment_period] == [2.0**15, 2000]


def test_a_gradient_that_is_no_array_is_named():
    with pytest.raises(TypeError, match="`grads` must be an array"):
        DynamicLossScale().update([object()])


def test_loss_scale_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        LossScale()


@pytest.mark.parametrize("identifier", [None, 2, 2.5, "dynamic", FIXED, DynamicLossScale(8)])
def test_loss_scales_come_back_from_their_configuration(identifier):
    scale = get(identifier)
    assert serialize(get(serialize(scale))) == serialize(scale)


@pytest.mark.parametrize("identifier", ["fixed", [1], {"class_name": "Other", "config": {}}])
def test_loss_scale_identifiers_that_are_none(identifier):
    with pytest.raises(ValueError, match="Could not interpret loss scale identifier: "):
        get(identifier)


# ---- G3: loss scale optimizers


def test_attributes():
    inner = SGD()
    optimizer = LossScaleOptimizer(inner, initial_scale=4, dynamic_growth_steps=3.0)
    assert (optimizer.dynamic, optimizer.loss_scale, optimizer.dynamic_counter) == (True, 4.0, 0)
    assert (optimizer.initial_scale, optimizer.dynamic_growth_steps) == (4.0, 3)
    assert type(optimizer.initial_scale) is float and type(optimizer.dynamic_growth_steps) is int
    assert optimizer.inner_optimizer is inner and optimizer.loss_scale.dtype == np.float32
    assert LossScaleOptimizer(SGD()).get_config()["initial_scale"] == 2.0**15
    fixed = LossScaleOptimizer(SGD(), dynamic=False, initial_scale=2)
    assert (fixed.dynamic, fixed.loss_scale, fixed.dynamic_counter, fixed.dynamic_growth_steps) == (
        False, 2.0, None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("inner", "arguments", "error", "message"),
    [
        (SGD, {"dynamic": 2.0}, TypeError, '"dynamic" argument to LossScaleOptimizer.__init__ must be a bool'),
        (SGD, {"dynamic": False}, ValueError, '"initial_scale" must be specified if "dynamic" is False'),
        (
            SGD,
            {"dynamic": False, "initial_scale": 2, "dynamic_growth_steps": 2},
            ValueError,
            '"dynamic_growth_steps" must be None if "dynamic" is False, but got: 2',
        ),
        (lambda: LossScaleOptimizer(SGD()), {}, TypeError, "cannot wrap another LossScaleOptimizer"),
        (lambda: "sgd", {}, TypeError, "must have `iterations`, `apply_gradients` and `get_config`, but got: 'sgd'"),
    ],
)
def test_arguments_that_are_refused(inner, arguments, error, message):
    with pytest.raises(error, match=message):
        LossScaleOptimizer(inner(), **arguments)


def test_an_optimizer_is_wrapped_once():
    inner = SGD()
    LossScaleOptimizer(inner)
    with pytest.raises(ValueError, match="already wrapped"):
        LossScaleOptimizer(inner)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_losses_and_gradients_keep_their_dtypes(dtype):
    optimizer = LossScaleOptimizer(SGD(), dynamic=False, initial_scale=8)
    loss = np.array(2.0, dtype)
    for scaled in (optimizer.get_scaled_loss(loss), optimizer.get_scaled_loss(lambda: loss)()):
        assert scaled.dtype == loss.dtype and scaled == 16
    gradient, nothing = optimizer.get_unscaled_gradients([np.full(2, 16.0, dtype), None])
    assert gradient.dtype == loss.dtype and gradient.tolist() == [2.0, 2.0] and nothing is None


NOT_FLOATING = [3, np.int32(3), True, "x", None, object(), 1j, np.arange(3), [1.0, 2], lambda: 3]


@pytest.mark.parametrize("value", NOT_FLOATING, ids=lambda value: type(value).__name__)
def test_what_is_not_floating_point_is_not_scaled(value):
    optimizer = LossScaleOptimizer(SGD())
    with pytest.raises(TypeError, match="`loss` must hold floating-point numbers; received"):
        scaled = optimizer.get_scaled_loss(value)
        scaled()  # of the function
    if value is not None:
        with pytest.raises(TypeError, match="`grads` must hold floating-point numbers; received"):
            optimizer.get_unscaled_gradients([np.ones(2, np.float32), value])
    with pytest.raises(TypeError, match="`grads` must be a list of gradients; received 3"):
        optimizer.get_unscaled_gradients(3.0)


def _step(optimizer, weight, gradient):
    optimizer.get_scaled_loss(1.0)
    gradients = optimizer.get_unscaled_gradients([np.array([gradient], np.float32)])
    optimizer.apply_gradients(zip(gradients, [weight], strict=True))


def test_steps_are_skipped_only_when_the_scale_is_dynamic():
    weight, dynamic = AutoCastVariable([1.0]), LossScaleOptimizer(SGD(0.5), initial_scale=4)
    _step(dynamic, weight, np.inf)
    assert (weight.numpy(), dynamic.loss_scale, dynamic.iterations) == (1.0, 2.0, 1)
    _step(dynamic, weight, 2.0)
    assert (weight.numpy(), dynamic.dynamic_counter, dynamic.iterations) == (0.5, 1, 2)
    fixed = LossScaleOptimizer(SGD(0.5), dynamic=False, initial_scale=4)
    _step(fixed, weight, np.inf)
    assert weight.numpy() == -np.inf


@pytest.mark.parametrize(
    ("calls", "missed"),
    [
        ((), "LossScaleOptimizer.get_scaled_loss() and LossScaleOptimizer.get_unscaled_gradients()"),
        (("get_unscaled_gradients",), "LossScaleOptimizer.get_scaled_loss()"),
        (("get_scaled_loss",), "LossScaleOptimizer.get_unscaled_gradients()"),
        (("get_scaled_loss", "get_unscaled_gradients"), None),
    ],
)
def test_missed_calls_are_logged_once(caplog, calls, missed):
    optimizer = LossScaleOptimizer(SGD())
    for call in calls:
        getattr(optimizer, call)([])
    weight = AutoCastVariable([1.0])
    for _ in range(2):
        optimizer.apply_gradients([(np.ones(1), weight)])
    beginnings = [message.partition(" before calling")[0] for message in caplog.messages]
    assert beginnings == ([] if missed is None else [f"You forgot to call {missed}"])


def test_configuration_of_optimizers():
    optimizer = LossScaleOptimizer(SGD(0.25), initial_scale=4, dynamic_growth_steps=3)
    config = optimizer.get_config()
    assert config == {
        "inner_optimizer": serialize_optimizer(SGD(0.25)),
        "dynamic": True,
        "initial_scale": 4.0,
        "dynamic_growth_steps": 3,
    }
    for optimizer_type in (LossScaleOptimizer, LossScaleOptimizerV1):
        again = optimizer_type.from_config(config)
        assert type(again) is optimizer_type and again.get_config() == config


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (FixedLossScale(2), (False, 2.0, None)),
        (DynamicLossScale(4, 3), (True, 4.0, 3)),
    ],
)
def test_configuration_of_tensorflow_2_3(scale, expected):
    config = {"optimizer": {"class_name": "SGD", "config": {}}, "loss_scale": serialize(scale)}
    for optimizer in (LossScaleOptimizer.from_config(config), LossScaleOptimizerV1(SGD(), scale)):
        assert (optimizer.dynamic, optimizer.initial_scale, optimizer.dynamic_growth_steps) == expected


@pytest.mark.parametrize(
    ("scale", "error", "message"),
    [
        (
            DynamicLossScale(multiplier=4),
            ValueError,
            r'^When passing a DynamicLossScale to "loss_scale", DynamicLossScale\.multiplier must be 2\. Got: Dynamic',
        ),
        (None, ValueError, r'^Invalid value passed to loss_scale\. .* "dynamic" \(recommended\), .* Got value: None$'),
        ("auto", ValueError, "Got value: auto$"),
        (1e39, ValueError, "`initial_scale` must be a finite number above 0 in float32"),
        (
            OtherScale(),
            TypeError,
            "^Passing a LossScale that is not a FixedLossScale or a DynamicLossScale is no longer",
        ),
    ],
)
def test_loss_scales_that_an_optimizer_refuses(scale, error, message):
    with pytest.raises(error, match=message):
        LossScaleOptimizerV1(SGD(), scale)
    if isinstance(scale, DynamicLossScale):
        saved = {"optimizer": {"class_name": "SGD"}, "loss_scale": serialize(scale)}
        with pytest.raises(ValueError, match=r"^Cannot deserialize LossScaleOptimizer .* is not 2\. Got DynamicLoss"):
            LossScaleOptimizerV1.from_config(saved)


def test_an_optimizer_takes_any_fixed_scale():
    optimizer = LossScaleOptimizerV1(SGD(), 0.5)
    assert (optimizer.dynamic, optimizer.loss_scale) == (False, 0.5)


def test_an_optimizer_starts_from_the_initial_scale():
    scale = DynamicLossScale(8)
    scale.update(np.array(np.nan))
    assert scale() == 4.0 and LossScaleOptimizerV1(SGD(), scale).loss_scale == 8.0


# ---- training


@pytest.mark.parametrize("scale", ["dynamic", 8.0])
def test_training_goes_on_with_its_optimizer_and_loss_scale(tmp_path, scale):
    def made():
        start = tf_keras.Input((3,))
        dense = tf_keras.layers.Dense(2, kernel_initializer="ones", dtype="mixed_float16")
        model = tf_keras.Model(start, dense(start), dtype=experimental.Policy("mixed_float16", loss_scale=scale))
        model.compile(optimizers.Adam(0.1), "mse")
        return model

    x, y = np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3), np.zeros((4, 2), np.float32)
    whole, begun, later = made(), made(), made()
    whole.fit(x, y, batch_size=2, epochs=3, shuffle=False, verbose=0)
    begun.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0)
    begun.save_training_state(tmp_path / "state")
    later.load_training_state(tmp_path / "state")
    later.fit(x, y, batch_size=2, epochs=3, initial_epoch=2, shuffle=False, verbose=0)
    assert later.optimizer.state == whole.optimizer.state
    assert int(later.optimizer.iterations) == int(whole.optimizer.iterations) == 6
    for one, other in zip(later.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
