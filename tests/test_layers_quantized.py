"""Quantized layers (checklist H), compared with their formulas in float64."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
from oracles import UNIT, gamma
from quantized_layers import SOURCES, dense, einsum, normal, wide

from mp_core import dtype_policies, layers
from mp_core.core import cpu
from mp_core.dtype_policies import DTypePolicyMap, Int4DTypePolicy, SchemeDTypePolicy
from mp_core.quantizers import abs_max_quantize_grouped_with_zero_point, unpack_int4

WEIGHT_ONLY = ["int8/weight_only", "int4", "int4/-1", "int4/8", "int4/20", "int4/128"]  # 20: no product has such groups


@pytest.mark.parametrize("mode", ["int8/weight_only", "int4/-1"])
def test_small_weights_stored_in_float16_are_not_lost(mode):
    kernel = np.full((4, 2), 5e-5, np.float16) * np.array([1, 2], np.float16)
    layer = layers.Dense(2, use_bias=False, dtype="float16")
    layer.build((None, 4))
    layer.set_weights([kernel])
    layer.quantize(mode)
    assert np.isfinite(layer.kernel_scale.numpy()).all()
    np.testing.assert_allclose(layer(np.eye(4, dtype=np.float16)), kernel, atol=0.5 / 65504 + 2.0**-24)
    table = layers.Embedding(2, 4, weights=kernel.T, dtype=f"{mode}_from_float16")
    np.testing.assert_allclose(table(np.arange(2)), kernel.T, atol=0.5 / 65504 + 2.0**-24)


@pytest.mark.parametrize("mode", ["int8", "int4/4", "float8"])
def test_a_layer_that_is_used_twice_is_quantized_once(mode):
    shared = layers.Dense(8)
    model = layers.Sequential([shared, shared])
    x = normal(3, 8)
    exact = model(x)
    model.quantize(mode)
    np.testing.assert_allclose(model(x), exact, atol=0.3 * np.abs(exact).max())
    assert len(model.weights) == {"int8": 3, "int4/4": 5, "float8": 8}[mode]


def _matrix(layer, name="kernel", columns=None):
    """What the codes of a layer stand for, by the formulas of Keras, in float64."""
    stored, scale = np.asarray(getattr(layer, name)), wide(getattr(layer, f"{name}_scale"))
    zero, axis = getattr(layer, f"{name}_zero", None), 0 if name == "kernel" else 1
    if layer.quantization_mode == "int8":
        codes = stored.reshape(-1, scale.size) if axis == 0 else stored
    else:
        codes = stored.reshape(-1, columns)
    if zero is None:
        return codes / (scale.reshape(1, -1) if axis == 0 else scale.reshape(-1, 1))
    block = layer.g_idx.numpy().astype(int)
    return (codes.astype(np.float64) - wide(zero).take(block, axis)) * scale.take(block, axis)


def _bound(x, matrix, result, compute):
    """The float32 sums, four roundings of weights, scales and bias; two to the compute dtype (weights, result)."""
    magnitude = np.abs(x) @ np.abs(matrix) + 1
    return (gamma(x.shape[-1] + 8) + (4 * UNIT[compute] if compute != "float64" else 0)) * magnitude


# ---- weights only


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("mode", WEIGHT_ONLY)
@pytest.mark.parametrize("activation", [None, "relu", np.negative])
def test_weight_only_products_are_their_formula(mode, source, activation):
    layer = dense(source, activation=activation)
    x = normal(3, 2, 44).astype(layer.compute_dtype)
    layer.quantize(mode)
    y = layer(x)
    matrix = _matrix(layer, columns=7)
    exact = wide(x) @ matrix + 1
    expected = {"relu": lambda v: np.maximum(v, 0), None: lambda v: v}.get(activation, np.negative)(exact)
    assert y.dtype == layer.compute_dtype
    assert (np.abs(wide(y) - expected) <= _bound(wide(x), matrix, exact, layer.compute_dtype)).all()


@pytest.mark.parametrize("mode", WEIGHT_ONLY)
def test_einsum_products_of_codes_are_their_formula(mode):
    layer = einsum("float32")
    x = normal(2, 3, 4, 11)
    layer.quantize(mode)
    matrix = _matrix(layer, columns=15)
    exact = (wide(x).reshape(2, 3, 44) @ matrix + 1).reshape(2, 3, 3, 5)
    y = layer(x)
    assert y.shape == exact.shape
    bound = _bound(wide(x).reshape(2, 3, 44), matrix, exact, "float32").reshape(exact.shape)
    assert (np.abs(wide(y) - exact) <= bound).all()


ORDERS = [  # equation, input shape, output_shape, kernel shape, the kernel as matrix and back
    ("btd,ndh->btnh", (2, 3, 16), (None, 3, 5)),
    ("abcd,edc->aeb", (2, 3, 4, 8), (5, None)),
    ("abc,cde->aedb", (2, 3, 16), (6, 5, None)),
    ("...ab,bca->...c", (2, 3, 4, 8), 5),
]


def _stored_order(layer):
    """The kernel that the codes of an EinsumDense stand for, in its own order, by the formulas of Keras."""
    inputs, kernel, out = layer.equation.replace("->", ",").split(",")
    scale = wide(layer.kernel_scale)
    if layer.quantization_mode == "int8":
        labels = [label for label in out if label in kernel]
        steps = scale.squeeze().transpose([labels.index(label) for label in kernel if label in labels])
        return wide(layer.kernel) / np.expand_dims(steps, [kernel.index(label) for label in kernel if label in inputs])
    return _matrix(layer, columns=layer.form.geometry.columns).reshape(layer.form.geometry.shape)


@pytest.mark.parametrize("source", ["float32", "mixed_bfloat16", "float64"])
@pytest.mark.parametrize("mode", ["int8", *WEIGHT_ONLY])
@pytest.mark.parametrize(("equation", "shape", "output_shape"), ORDERS)
def test_kernels_in_any_order_of_axes_multiply_as_their_formula(equation, shape, output_shape, mode, source):
    layer = layers.EinsumDense(equation, output_shape, dtype=source)
    x = normal(*shape)
    layer(x)
    layer.quantize(mode)
    x, kernel = wide(x.astype(layer.compute_dtype)), _stored_order(layer)
    exact, magnitude = np.einsum(equation, x, kernel), np.einsum(equation, np.abs(x), np.abs(kernel))
    y = layer(x.astype(layer.compute_dtype))
    # 0.5 / 127 of the largest input for every input of a row that is quantized; 0.02 covers bfloat16, twice.
    bound = (0.02 if layer.compute_dtype == "bfloat16" else 1e-5) * magnitude
    if mode == "int8":
        bound += np.abs(x).max() / 254 * np.einsum(equation, np.ones_like(x), np.abs(kernel))
    assert y.dtype == layer.compute_dtype and y.shape == exact.shape
    assert (np.abs(wide(y) - exact) <= bound).all()


@pytest.mark.parametrize("depth", [0, 1, 5, 44, 300])
@pytest.mark.parametrize("units", [1, 2, 7, 64])
@pytest.mark.parametrize("block", [1, 8, 64, 128, 10**30])
def test_int4_in_blocks_of_every_length_is_its_formula(depth, units, block):
    layer = dense("float32", units, depth=depth)
    kernel = layer.kernel.numpy()
    layer.quantize(f"int4/{block}")
    codes, scale, zero = abs_max_quantize_grouped_with_zero_point(kernel, block)
    np.testing.assert_array_equal(layer.kernel, codes)
    (packed,) = (weight for weight in layer.weights if weight.name == "kernel")
    np.testing.assert_array_equal(unpack_int4(packed.numpy(), units, axis=-1), codes)
    np.testing.assert_array_equal(layer.kernel_scale.numpy(), scale)
    np.testing.assert_array_equal(layer.kernel_zero.numpy(), zero)
    np.testing.assert_array_equal(layer.g_idx.numpy(), [row // block for row in range(depth)])
    matrix, x = _matrix(layer, columns=units), normal(3, depth)
    assert (np.abs(layer(x) - (wide(x) @ matrix + 1)) <= _bound(wide(x), matrix, None, "float32")).all()


def _symmetric(layer):
    layer.kernel_zero.assign(np.zeros(layer.kernel_zero.shape, np.int8))


def _permuted(layer):
    layer.g_idx.assign(np.random.default_rng(1).permutation(layer.g_idx.numpy()))


def _far(layer):
    layer.kernel_zero.assign(np.full(layer.kernel_zero.shape, 127, np.int8))
    layer.kernel_zero.assign(np.where(np.arange(layer.kernel_zero.shape[1]) % 2, layer.kernel_zero.numpy(), -128))


@pytest.mark.parametrize("change", [_symmetric, _permuted, _far])
@pytest.mark.parametrize("source", ["float32", "mixed_bfloat16"])
def test_int4_blocks_multiply_as_they_are_assigned(change, source):
    """Symmetric blocks stay 4 bits wide, others become 8; what fits in neither, or in no blocks, becomes floats."""
    layer, x = dense(source, depth=64), normal(3, 64)
    layer.quantize("int4/16")
    layer(x)
    change(layer)
    x = x.astype(layer.compute_dtype)
    matrix = _matrix(layer, columns=7)
    error = np.abs(wide(layer(x)) - (wide(x) @ matrix + 1))
    assert (error <= _bound(wide(x), matrix, None, layer.compute_dtype)).all()


@pytest.mark.parametrize("wrong", [0.5, -1.0, 4.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("make", [dense, lambda p: layers.Embedding(3, 64, weights=np.ones((3, 64)), dtype=p)])
def test_an_index_that_is_no_block_is_refused(make, wrong):
    layer = make("float32")
    layer.quantize("int4/16")
    index = layer.g_idx.numpy().copy()
    index[3] = wrong
    layer.g_idx.assign(index)
    with pytest.raises(ValueError, match=f"`g_idx` of layer '{layer.name}' must hold integers from 0 to"):
        layer(np.ones((1, 44), np.float32) if isinstance(layer, layers.Dense) else np.array([1]))


def test_int4_scales_follow_assignments():
    layer, x = dense("float32", use_bias=False), normal(2, 44)
    for mode in WEIGHT_ONLY:
        twin = copy.deepcopy(layer)
        twin.quantize(mode)
        y = twin(x)
        twin.kernel_scale.assign(twin.kernel_scale.numpy() * 2)
        np.testing.assert_allclose(twin(x), y * 2 if hasattr(twin, "kernel_zero") else y / 2, rtol=1e-5)


def test_the_policy_decides_whether_int8_layers_quantize_activations():
    layer, x = dense("float32"), normal(2, 44)
    layer.quantize("int8")
    dynamic = layer(x)
    layer.dtype_policy = "int8/weight_only_from_float32"
    matrix = _matrix(layer)
    weights_only = layer(x)
    assert (np.abs(weights_only - (wide(x) @ matrix + 1)) <= _bound(wide(x), matrix, None, "float32")).all()
    layer.dtype_policy = "int8_from_float32"
    np.testing.assert_array_equal(layer(x), dynamic)
    assert not np.array_equal(dynamic, weights_only)


@pytest.mark.parametrize("mode", ["int8", *WEIGHT_ONLY, "float8"])
def test_memory_does_not_wait_for_the_garbage_collector(mode):
    layer = dense("float32")
    layer.quantize(mode)
    layer(normal(1, 44))
    (kernel,) = (weakref.ref(weight._state[0]) for weight in layer.weights if weight.name == "kernel")
    assert kernel() is not None
    gc.disable()
    try:
        del layer
        assert kernel() is None
    finally:
        gc.enable()


# ---- tables


@pytest.mark.parametrize("source", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("mode", ["int8/weight_only", *WEIGHT_ONLY[1:]])
def test_embeddings_are_their_formula(mode, source):
    table = normal(10, 37)
    layer = layers.Embedding(10, 37, weights=table, dtype=source)
    layer.quantize(mode)
    stands_for = _matrix(layer, "embeddings", 37)
    if hasattr(layer, "embeddings_zero"):
        codes, scale, zero = abs_max_quantize_grouped_with_zero_point(table.T, layer.dtype_policy.block_size)
        np.testing.assert_array_equal(layer.embeddings, codes.T)
        np.testing.assert_array_equal(layer.embeddings_scale.numpy(), scale.T)
        np.testing.assert_array_equal(layer.embeddings_zero.numpy(), zero.T)
    for ids in (np.array([[0, 3], [9, 9]]), np.array(4), np.zeros((0, 2), int), np.array([2.0])):
        rows = layer(ids)
        expected = stands_for[ids.astype(int)]
        assert rows.dtype == layer.compute_dtype and rows.shape == (*ids.shape, 37)
        np.testing.assert_allclose(wide(rows), expected, rtol=2 * UNIT[layer.compute_dtype], atol=2.0**-24)
    if hasattr(layer, "g_idx"):
        layer.g_idx.assign(layer.g_idx.numpy()[::-1])
        expected = _matrix(layer, "embeddings", 37)
        np.testing.assert_allclose(wide(layer(np.arange(10))), expected, rtol=2 * UNIT[layer.compute_dtype])
        layer.g_idx.assign(layer.g_idx.numpy()[::-1])
    given = layers.Embedding(10, 37, weights=table, dtype=layer.dtype_policy)
    np.testing.assert_array_equal(given(np.arange(10)), layer(np.arange(10)))


# ---- every form


FORMS = ["int8", "int8/weight_only", "int4/-1", "int4/16", "float8"]
MAKERS = {
    "dense": (dense, normal(2, 44)),
    "einsum": (einsum, normal(1, 2, 4, 11)),
    "embedding": (lambda p: layers.Embedding(5, 44, weights=np.ones((5, 44)), dtype=p), np.array([[0, 4]])),
}
CASES = [(name, mode) for name in MAKERS for mode in FORMS if (name, mode) != ("embedding", "float8")]


@pytest.mark.parametrize(("name", "mode"), CASES)
@pytest.mark.parametrize("source", ["float32", "mixed_bfloat16"])
def test_quantized_set_and_built_layers_are_the_same(name, mode, source):
    make, x = MAKERS[name]
    layer = make(source)
    by_policy = copy.deepcopy(layer)
    layer.quantize(mode)
    by_policy.dtype_policy = f"{mode}_from_{source}"
    built = make(f"{mode}_from_{source}")
    assert layer.dtype_policy == by_policy.dtype_policy == built.dtype_policy
    assert layer.quantized and built.quantized and layer.quantization_mode == mode.partition("/")[0]
    names = [[w.name for w in each.weights] for each in (layer, by_policy, built)]
    assert names[0] == names[1] == names[2]
    built.set_weights(layer.get_weights())
    expected = layer(x)
    for other in (by_policy, built, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        np.testing.assert_array_equal(other(x), expected)
    again = type(layer).from_config(layer.get_config())
    again.build((None, 44) if name == "dense" else (None, None, 4, 11))
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(x), expected)


@pytest.mark.parametrize(
    ("policy", "names", "trainable"),
    [
        ("int8", ["bias", "kernel", "kernel_scale"], 1),
        ("int4", ["bias", "kernel", "kernel_scale", "kernel_zero", "g_idx"], 1),
        ("int4/64", ["bias", "kernel", "kernel_scale", "kernel_zero", "g_idx"], 1),
        ("int4/-1", ["bias", "kernel", "kernel_scale"], 1),
        ("float8", ["kernel", "bias", "inputs_scale", "inputs_amax_history", "kernel_scale", "kernel_amax_history",
                    "outputs_grad_scale", "outputs_grad_amax_history"], 8),
    ],
)  # fmt: skip
def test_a_policy_that_is_set_makes_keras_variables_in_keras_order(policy, names, trainable):
    for make in (dense, einsum):
        layer = make("float32")
        layer.dtype_policy = f"{policy}_from_float32"
        assert [w.name for w in layer.weights] == names
        assert len(layer.trainable_weights) == trainable


@pytest.mark.parametrize("mode", ["int8", *WEIGHT_ONLY, "float8", "gptq/4/8", "awq/4/8", "ternary"])
def test_a_copy_under_a_quantized_policy_is_quantized_where_layers_know_how(mode):
    stack = layers.Sequential([layers.Embedding(9, 24), layers.Dense(4), layers.LayerNormalization()], name="stack")
    ids = np.array([[1, 2]])
    stack(ids)
    twin = copy.deepcopy(stack)
    twin.quantize(mode)
    copied = stack.with_policy(f"{mode}_from_float32")
    exact = stack(ids)  # our formulas for the copy, Keras' for `quantize`
    np.testing.assert_allclose(copied(ids), twin(ids), atol=(0.02 if "t8" in mode else 0.5) * np.abs(exact).max())
    has_table = not mode.startswith(("float8", "gptq", "awq"))
    assert [layer.quantized for layer in copied.layers] == [has_table, True, False]


@pytest.mark.parametrize("mode", ["int8", "float8"])
def test_a_copy_of_a_subclass_is_as_if_it_had_been_made_so(mode):
    class Wider(layers.Dense):
        pass

    layer, x = Wider(4), np.ones((1, 3), np.float32)
    layer(x)
    copied = layer.with_policy(f"{mode}_from_float32")
    assert copied.quantized and copied.dtype_policy.name == f"{mode}_from_float32" and not layer.quantized
    layer.quantize(mode, type_check=False)
    np.testing.assert_allclose(
        copied(x), layer(x), rtol=1e-6, atol=1e-6
    )  # random weights, two formulas: sums may cancel


def test_a_copy_of_a_layer_with_its_own_call_stays_in_floats():
    class Own(layers.Dense):
        def call(self, inputs):
            return inputs @ self.kernel.value() + self.bias.value()

    layer, x = Own(4), np.ones((1, 3), np.float32)
    expected = layer(x)
    np.testing.assert_array_equal(layer.with_policy("int8_from_float32")(x), expected)


def test_plain_int4_quantizes_in_blocks_and_builds_by_channel():
    """As Keras has it: the bare name is that of old files, which know no blocks."""
    quantized, by_policy, built = dense("float32"), dense("float32"), dense("int4_from_float32")
    quantized.quantize("int4")
    by_policy.dtype_policy = "int4_from_float32"
    assert quantized.dtype_policy == by_policy.dtype_policy == Int4DTypePolicy("int4/128", "float32")
    assert built.dtype_policy.name == "int4_from_float32" and len(built.weights) == 3
    by_channel = dense("float32")
    by_channel.quantize("int4/-1")
    built.set_weights(by_channel.get_weights())
    x = normal(1, 44)
    np.testing.assert_array_equal(built(x), by_channel(x))


def test_int8_weights_only_is_a_policy():
    policy = dtype_policies.get("int8/weight_only_from_mixed_float16")
    assert policy == SchemeDTypePolicy("int8/weight_only", "mixed_float16")
    assert (policy.quantization_mode, policy.compute_dtype) == ("int8", "float16")
    assert dtype_policies.deserialize(dtype_policies.serialize(policy)) == policy == pickle.loads(pickle.dumps(policy))
    assert DTypePolicyMap(policy)["anything"] == policy
    with pytest.raises(ValueError, match=r"int8/weight_only, .* received 'int8/weights'"):
        dtype_policies.get("int8/weights_from_float32")
    layer = dense("mixed_float16")
    layer.quantize("int8/weight_only")
    assert layer(normal(1, 44)).dtype == np.float16


@pytest.mark.usefixtures("reproducible")
@pytest.mark.parametrize("mode", ["int8", *WEIGHT_ONLY, "float8"])
@pytest.mark.parametrize("source", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_every_instruction_set_gives_the_same_bits(mode, source):
    if mode == "int8" and source == "mixed_float16":
        return
    layer = dense(source, 33, "gelu", depth=150)
    layer.quantize(mode)
    layer = pickle.loads(pickle.dumps(layer))
    x, before = normal(5, 150), cpu.isa()
    try:
        results = []
        for isa in cpu.available_isas():
            cpu.set_isa(isa)
            results.append(copy.deepcopy(layer)(x))
    finally:
        cpu.set_isa(before)
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.uint8), results[0].view(np.uint8))


# What Keras 3.15 has of each, and the shape of the codes.
@pytest.mark.parametrize(
    ("mode", "attributes"),
    [
        (None, set()),
        ("int8", {"scale"}),
        ("int4", {"scale", "zero", "g_idx"}),
        ("int4/-1", {"scale"}),
        ("float8", {"scale"}),
    ],
)
def test_quantized_layers_have_the_attributes_of_their_form(mode, attributes):
    kernels = [layers.Dense(5), layers.EinsumDense("abc,cde->abde", (None, 2, 5))]
    for layer in [*kernels, *([layers.Embedding(7, 5)] if mode != "float8" else [])]:
        name = "embeddings" if isinstance(layer, layers.Embedding) else "kernel"
        with pytest.raises(AttributeError, match=f"You must build the layer before accessing `{name}`"):
            getattr(layer, name)
        layer.build((None, 3, 6))
        shape = layer.weights[0].shape
        if mode:
            layer.quantize(mode)
        found = {part for part in ("scale", "zero") if hasattr(layer, f"{name}_{part}")}
        assert found | ({"g_idx"} if hasattr(layer, "g_idx") else set()) == attributes
        codes = getattr(layer, name)
        assert codes.shape == shape and codes.dtype == ("int8" if "int" in str(mode) else "float32")
        if "int4" in str(mode):
            assert not codes.flags.writeable and codes.min() < 0 < codes.max() <= 7
            copied = pickle.loads(pickle.dumps(layer))
            np.testing.assert_array_equal(getattr(copied, name), codes)
            (packed,) = (weight for weight in copied.weights if weight.name == name)
            packed.assign(packed.numpy() * 0)
            assert not getattr(copied, name).any()
