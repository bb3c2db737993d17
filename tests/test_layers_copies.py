"""`with_policy`: a copy of a layer under another policy; and copies with the same bits."""

import copy
import pickle

import numpy as np
import pytest
from oracles import UNIT

from mp_core import layers, ops
from mp_core.dtype_policies import DTypePolicyMap

POLICIES = ["float32", "float64", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16"]
rng = np.random.default_rng(0)


def _x(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def _models():
    """Return models of every kind of layer, as a function of their policy, and inputs."""

    def stack(dtype):
        return layers.Sequential(
            [
                layers.Embedding(7, 8, name="table", dtype=dtype),
                layers.LayerNormalization(name="norm", dtype=dtype),
                layers.Dense(6, "gelu", name="dense", dtype=dtype),
                layers.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de", name="einsum", dtype=dtype),
            ],
            name="stack",
            dtype=dtype,
        )

    return [
        (stack, (np.arange(6).reshape(2, 3),)),
        (lambda dtype: layers.MultiHeadAttention(2, 4, name="attention", dtype=dtype), (_x(2, 3, 8), _x(2, 5, 8))),
        (lambda dtype: layers.Conv2D(4, 3, groups=2, name="image", dtype=dtype), (_x(2, 5, 5, 4),)),
    ]


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize(
    "policy",
    [
        *POLICIES,
        DTypePolicyMap("bfloat16", {"stack/dense": "float16", "attention/(query|value)": "float32"}),
        DTypePolicyMap("mixed_float16", {"stack/(norm|table)": "bfloat16"}, match="search"),
    ],
    ids=str,
)
def test_a_copy_under_another_policy_is_as_if_it_had_been_made_so(index, policy):
    make, inputs = _models()[index]
    layer = make("float32")
    before = layer(*inputs)
    received, made = layer.with_policy(policy), make(policy)
    made(*inputs)
    made.set_weights(layer.get_weights())
    np.testing.assert_array_equal(received(*inputs), made(*inputs), strict=True)
    for mine, other in zip(received.weights, made.weights, strict=True):
        assert (mine.true_dtype, mine.autocast, mine.trainable, mine.name) == (
            other.true_dtype, other.autocast, other.trainable, other.name,
        )  # fmt: skip
    assert received.weight_bytes == made.weight_bytes
    np.testing.assert_array_equal(layer(*inputs), before, strict=True)


@pytest.mark.parametrize("source", ["float32", "mixed_bfloat16", "bfloat16"])
def test_a_copy_under_a_quantized_policy_is_as_if_it_had_been_quantized(source):
    make, inputs = _models()[0]
    layer = make("float32")
    layer(*inputs)
    received, made = layer.with_policy(f"int8_from_{source}"), layer.with_policy(source)
    made.quantize("int8")
    received, made = received(*inputs), made(*inputs)  # by scales, or by Keras' reciprocals of them
    assert received.dtype == made.dtype
    np.testing.assert_allclose(received.astype(float), made.astype(float), atol=0.02 if source == "float32" else 0.05)
    one = layer.with_policy(DTypePolicyMap("float32", {"stack/dense": f"int8_from_{source}"}))
    assert [part.quantized for part in one.layers] == [False, False, True, False]
    assert one.layers[2].dtype_policy["stack/dense"].name == f"int8_from_{source}"


def test_a_copy_shares_what_it_stores_alike_and_changes_alone():
    layer = layers.Dense(3)
    layer(_x(2, 4))
    copied = layer.with_policy("mixed_bfloat16")
    assert all(a is not b and a.numpy().base is not None for a, b in zip(copied.weights, layer.weights, strict=True))
    assert all(np.shares_memory(a.numpy(), b.numpy()) for a, b in zip(copied.weights, layer.weights, strict=True))
    copied.kernel.assign(np.zeros((4, 3)))
    assert layer.kernel.numpy().any()


def test_a_copy_needs_weights_that_are_there_and_unquantized():
    with pytest.raises(ValueError, match="needs a built layer with unquantized weights; 'new' is not built"):
        layers.Dense(3, name="new").with_policy("float16")
    layer = layers.Dense(3, name="coarse")
    layer(_x(2, 4))
    layer.quantize("int8")
    with pytest.raises(ValueError, match="needs a built layer with unquantized weights; 'coarse' is quantized"):
        layer.with_policy("float16")


@pytest.mark.parametrize(("query", "value"), [("float16", "bfloat16"), ("bfloat16", "float32"), ("float32", "float16")])
def test_projections_of_attention_may_differ_in_type(query, value):
    policy = DTypePolicyMap("float32", {"attention/query": query, "attention/value": value})
    layer = layers.MultiHeadAttention(2, 4, name="attention")
    x = _x(2, 3, 8)
    expected = layer(x, x)
    received = layer.with_policy(policy)(x, x)
    assert received.dtype == np.float32
    np.testing.assert_allclose(received, expected, atol=8 * UNIT["bfloat16"] * np.abs(expected).max())


class OwnDtype(layers.Layer):
    """A layer with a variable that is float32 under every policy."""

    def build(self, input_shape):
        self.table = self.add_weight((input_shape[-1], 4), "glorot_uniform", dtype="float32", name="table")

    def call(self, inputs):
        return ops.matmul(inputs, self.table.read_value(), out_dtype="float32")


def adapted(policy):
    """Return a Dense beside whose matrix LoRA has learned something."""
    layer = layers.Dense(7, dtype=policy)
    layer.build((None, 44))
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(_x(*layer.lora_kernel_b.shape))
    return layer


@pytest.mark.parametrize("policy", ["bfloat16", "float16", "mixed_bfloat16"])
@pytest.mark.parametrize("make", [lambda policy: OwnDtype(dtype=policy), adapted], ids=["own dtype", "LoRA"])
def test_a_variable_with_a_dtype_of_its_own_is_read_alike_by_copies(make, policy):
    layer, x = make(policy), _x(3, 44)
    expected = layer(x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        np.testing.assert_array_equal(other(x), expected)
    layer.dtype_policy = policy
    np.testing.assert_array_equal(layer(x), expected)
