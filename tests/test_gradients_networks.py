"""A contrastive step of an encoder, and a step of a convolutional network: all gradients always have the same bits.

For every number of threads and instruction set, call by call and by a plan, in one pass and in passes of 1024 rows.
"""

import functools
import itertools

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import layers, ops
from mp_core.core import cpu
from mp_core.layers.plans.recorded_call import address_of
from mp_core.models.network import TextNetwork

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
BLOCK = 1024  # rows: docs/numerics.md
LENGTH = 32  # tokens of a text
CONFIG = {
    "model_type": "bert", "vocab_size": 50, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 96, "max_position_embeddings": 40, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}  # fmt: skip


def filled(layer):
    rng = np.random.default_rng(0)
    layer.set_weights([0.2 * rng.standard_normal(w.shape) + (w.ndim == 1) * 0.5 for w in layer.get_weights()])
    return layer


def encoder(policy):
    model = TextNetwork(CONFIG, dtype=policy)
    model.build()
    return filled(model)


def texts(count):
    """Token indices of texts of equal length one behind the other, and where these begin."""
    ids = np.random.default_rng(1).integers(0, CONFIG["vocab_size"], count * LENGTH, np.int32)
    return ids, np.arange(0, len(ids) + 1, LENGTH, dtype=np.int32)


def vectors(model, ids, offsets):
    places = np.tile(np.arange(LENGTH, dtype=np.int32), len(ids) // LENGTH)
    return ops.ragged_pool(model(ids, places=places, offsets=offsets), offsets, "mean")


def in_batch_loss(rows):
    """The cross-entropy of the scores of pairs, of which every even row is the question and the next one the answer."""
    rows = ops.normalize(rows)
    scores = mp.matmul(rows[0::2], rows[1::2].swapaxes(0, 1)) * 20.0
    return mp.losses.SparseCategoricalCrossentropy(from_logits=True)(np.arange(len(rows) // 2), scores)


def contrastive(model):
    return lambda ids, offsets: in_batch_loss(vectors(model, ids, offsets))


def convolutional(policy):
    model = layers.Sequential([
        layers.Conv2D(6, 3, padding="same", activation="relu", dtype=policy), layers.MaxPooling2D(2, dtype=policy),
        layers.DepthwiseConv2D(2, dtype=policy), layers.Conv2D(5, 1, activation="gelu", dtype=policy),
        layers.Flatten(dtype=policy), layers.Dense(4, dtype=policy),
    ])  # fmt: skip
    model.build((None, 4, 4, 2))
    return filled(model)


def images(count):
    rng = np.random.default_rng(2)
    return rng.standard_normal((count, 4, 4, 2)).astype(np.float32), rng.integers(0, 4, count)


def classified(model, count):
    """The loss of a batch as a share of that of so many images."""
    loss = mp.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    return lambda x, y: loss(y, ops.cast(model(x), "float32")) * np.float32(1 / count)


def contrastive_case(policy):
    model = encoder(policy)
    return contrastive(model), model.trainable_variables, texts(34)


def convolutional_case(policy):
    model = convolutional(policy)
    return classified(model, 70), model.trainable_variables, images(70)


CASES = {"contrastive": contrastive_case, "convolutional": convolutional_case}


def by_tape(value, variables, inputs):
    with mp.tf_keras.GradientTape() as tape:
        loss = value(*inputs)
    return tape.gradient(loss, variables)


def bits(arrays):
    return [x.tobytes() for x in arrays]


@pytest.mark.usefixtures("reproducible")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", CASES)
def test_bits_depend_neither_on_threads_nor_on_the_instruction_set_nor_on_a_plan(name, policy, isa):
    value, variables, inputs = CASES[name](policy)
    expected = expected_bits(name, policy)
    for threads in (1, 2, 4):
        with mp.config.num_threads(threads):
            assert bits(mp.grad(value, variables)(*inputs)) == expected
    assert bits(by_tape(value, variables, inputs)) == expected


@functools.cache
def expected_bits(name, policy):
    """Those on the least of the instruction sets, by one thread."""
    value, variables, inputs = CASES[name](policy)
    before = cpu.isa()
    cpu.set_isa(cpu.available_isas()[-1])
    try:
        with mp.config.num_threads(1):
            return bits(mp.grad(value, variables)(*inputs))
    finally:
        cpu.set_isa(before)


def added(passes):
    """The sum of the gradients of passes, in their order."""
    return functools.reduce(lambda total, found: [a + b for a, b in zip(total, found, strict=True)], passes)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_contrastive_step_in_passes_of_1024_tokens_has_the_bits_of_one_pass(policy):
    model, (ids, offsets) = encoder(policy), texts(2 * BLOCK // LENGTH)
    variables, own = model.trainable_variables, offsets[: BLOCK // LENGTH + 1]
    _, whole = mp.value_and_grad(contrastive(model), variables)(ids, offsets)
    halves = ids[:BLOCK], ids[BLOCK:]
    embedded = mp.AutoCastVariable(np.concatenate([vectors(model, part, own) for part in halves]), autocast=False)
    _, (d,) = mp.value_and_grad(lambda: in_batch_loss(embedded.value), [embedded])()
    step = mp.value_and_grad(lambda ids, d: mp.sum(vectors(model, ids, own) * d), variables)
    found = added(step(part, own_d)[1] for part, own_d in zip(halves, np.split(d, 2), strict=True))
    assert bits(found) == bits(whole)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_convolutional_step_in_passes_of_whole_blocks_has_the_bits_of_one_pass(policy):
    """The last pass is one block for every layer: the first convolution sees 16 rows of each of its images."""
    model, (x, y) = convolutional(policy), images(BLOCK + 60)
    step = mp.value_and_grad(classified(model, len(x)), model.trainable_variables)
    _, whole = step(x, y)
    ends = itertools.pairwise((0, BLOCK, len(x)))
    assert bits(added(step(x[a:b], y[a:b])[1] for a, b in ends)) == bits(whole)


def test_plans_of_a_step_share_the_floats_of_frozen_codes(rng):
    first, frozen = mp.layers.Dense(32), mp.layers.Dense(64)
    x = rng.standard_normal((8, 16)).astype(np.float32)
    frozen(first(x))
    frozen.quantize("int8")
    frozen.enable_lora(2)
    step = mp.value_and_grad(lambda x: mp.sum(frozen(first(x))), first.trainable_variables)
    for rows in (4, 8):
        step(x[:rows])
    plans = [plan._last[1] for plan in step._plans._kept.values()]
    held = [{address_of(each) for each in plan.constants if each.nbytes > 2000} for plan in plans]
    assert held[0] == held[1]
    assert len(held[0]) == 2  # the codes, and the floats that they stand for, transposed


def test_a_step_sees_new_values_of_a_frozen_matrix(rng):
    first, frozen = mp.layers.Dense(5), mp.layers.Dense(3, trainable=False)
    x = rng.standard_normal((4, 6)).astype(np.float32)
    frozen(first(x))

    def step_of():
        return mp.value_and_grad(lambda x: mp.sum(frozen(first(x))), first.trainable_variables)

    step = step_of()
    step(x)
    frozen.kernel.assign(rng.standard_normal((5, 3)))
    for found, expected in zip(step(x)[1], step_of()(x)[1], strict=True):
        assert_same_bits(found, expected)
