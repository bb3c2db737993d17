"""The Keras 2023 names (checklist A, source 000)."""

import numpy as np
import pytest

from mp_core import dtype_policies, layers, loss_scale, mixed_precision


def test_aliases_are_the_same_objects():
    assert mixed_precision.Policy is mixed_precision.DTypePolicy is dtype_policies.DTypePolicy
    assert mixed_precision.global_policy is mixed_precision.dtype_policy is dtype_policies.dtype_policy
    assert mixed_precision.set_global_policy is mixed_precision.set_dtype_policy is dtype_policies.set_dtype_policy


def test_the_loss_scale_optimizer_is_here_too():
    assert mixed_precision.LossScaleOptimizer is loss_scale.LossScaleOptimizer


def test_example_of_source_000():
    mixed_precision.set_dtype_policy("mixed_float16")
    layer1 = layers.Dense(10)
    assert repr(layer1.dtype_policy) == '<DTypePolicy "mixed_float16">'
    layer2 = layers.Dense(10, dtype="float32")
    assert repr(layer2.dtype_policy) == '<DTypePolicy "float32">'
    mixed_precision.set_dtype_policy("float32")
    assert layers.Dense(10, dtype=mixed_precision.DTypePolicy("float32")).dtype_policy == layer2.dtype_policy


@pytest.mark.parametrize("policy", [12345, None, 1.5, np.float16])
def test_the_default_must_be_a_name_or_a_policy(policy):
    with pytest.raises(ValueError, match=r"Invalid `policy` argument\. Expected the string name of a policy"):
        mixed_precision.set_dtype_policy(policy)


@pytest.mark.parametrize(
    ("identifier", "name"),
    [(None, "float32"), ("int8", "int8"), ("mixed_float16", "mixed_float16"), (np.float16, "float16"),
     ({"class_name": "DTypePolicy", "config": {"name": "bfloat16"}}, "bfloat16")],
)  # fmt: skip
def test_resolve_policy(identifier, name):
    assert mixed_precision.resolve_policy(identifier).name == name


def test_resolve_policy_keeps_policies_and_refuses_the_rest():
    policy = mixed_precision.DTypePolicy("mixed_bfloat16")
    assert mixed_precision.resolve_policy(policy) is policy
    with pytest.raises(ValueError, match="Cannot interpret `dtype` argument"):
        mixed_precision.resolve_policy(123)
