"""ModernBERT: the vectors of `transformers`, for near and full attention, every option, and every error."""

import json
import warnings

import numpy as np
import pytest
import random_models

import mp_core as mp
from mp_core.dtype_policies import policy_of
from mp_core.models import TextNetwork
from mp_core.models.architectures import architecture_of
from mp_core.models.pooling import pool
from mp_core.models.ragged import RaggedTexts, _Pooled
from mp_core.models.weights import read_model

BIASES = {"norm_bias": True, "attention_bias": True, "mlp_bias": True}
SETTINGS = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "local_attention": 8,
    "max_position_embeddings": 512,
    "global_attn_every_n_layers": 3,
    "initializer_range": 0.2,
    "initializer_cutoff_factor": 3.0,
    **{f"{name}_token_id": place for place, name in enumerate(("pad", "bos", "eos", "cls", "sep"))},
}


@pytest.fixture(scope="module")
def library():
    return random_models.library()


def written(library, folder, **settings):
    """Write a random ModernBERT and return it."""
    import torch

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = library.ModernBertModel(library.ModernBertConfig(**SETTINGS | settings)).eval()
        for parameter in network.parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, 0.5, 0.3)
        network.save_pretrained(folder)
    return network


def read(folder, policy="float32", **entries):
    config = json.loads((folder / "config.json").read_text()) | entries
    kept = {name: value for name, value in config.items() if value != "removed"}
    architecture_of(kept, folder / "config.json").read(kept, folder / "config.json")  # as the modules of a folder do
    model, *_ = read_model(folder, kept, policy_of("float32"), TextNetwork)
    return model if policy == "float32" else model.with_policy(policy)


def texts(length):
    """Return indices, and a mask of texts of three lengths, one of them a single token."""
    ids = np.random.default_rng(0).integers(5, 40, (4, length))
    return ids, np.arange(length) < np.array([length, length // 2, 1, length - 1])[:, np.newaxis]


def vectors(network, ids, mask):
    import torch

    with torch.no_grad():
        given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask).long()}
        return network(**given).last_hidden_state.numpy()


@pytest.mark.parametrize("window", [8, 9, 100, 1000])
@pytest.mark.parametrize("length", [5, 40, 300])
def test_ragged_texts_have_the_vectors_of_transformers(library, tmp_path, length, window):
    network = written(library, tmp_path, local_attention=window)
    ids, mask = texts(length)
    received = read(tmp_path)(ids, mask=mask)
    assert received.dtype == np.float32
    np.testing.assert_allclose(received[mask], vectors(network, ids, mask)[mask], rtol=0, atol=1e-5)


OPTIONS = {
    "biases": BIASES,
    "relu": {"hidden_activation": "relu"},
    "far only": {"global_attn_every_n_layers": 1},
    "kinds": {"layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    "thetas": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 100.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 7.5},
        }
    },
    "epsilon": {"norm_eps": 0.1},
    "a head": {"num_attention_heads": 1},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_option_is_that_of_transformers(library, tmp_path, options):
    network = written(library, tmp_path, **options)
    ids, mask = texts(20)
    np.testing.assert_allclose(read(tmp_path)(ids, mask=mask)[mask], vectors(network, ids, mask)[mask], atol=1e-5)


def test_files_of_before_2026_say_the_same_in_other_words(library, tmp_path):
    network = written(library, tmp_path, global_rope_theta=300.0, local_rope_theta=20.0)
    old = {"layer_types": None, "rope_parameters": None, "global_rope_theta": 300.0, "local_rope_theta": 20.0}
    ids, mask = texts(20)
    received = read(tmp_path, **old, norm_eps="removed", local_attention=8)(ids, mask=mask)
    np.testing.assert_allclose(received[mask], vectors(network, ids, mask)[mask], atol=1e-5)


# Each of 4 blocks rounds some 6 times, by 2^-9 or 2^-12 of a number at most, in directions that are independent: about
# sqrt(24) times that together. int8 rounds inputs and weights of 16 products to 127ths of the largest, which is about 3
# times their size: 3 / 127 / sqrt(12) of it, twice a product, and the sum past the layers takes it in parts.
@pytest.mark.parametrize(
    ("policy", "share"), [("mixed_bfloat16", 2**-7), ("mixed_float16", 2**-10), ("int8_from_mixed_bfloat16", 2**-5)]
)
def test_narrow_policies_stay_near_float32(library, tmp_path, policy, share):
    network = written(library, tmp_path)
    ids, mask = texts(40)
    expected = vectors(network, ids, mask)[mask]
    error = read(tmp_path, policy)(ids, mask=mask)[mask].astype(np.float32) - expected
    assert np.sqrt(np.mean(error**2)) <= share * np.sqrt(np.mean(expected**2))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "int8_from_mixed_bfloat16"])
def test_no_bit_depends_on_the_batch_or_on_padding(library, tmp_path, policy):
    written(library, tmp_path, local_attention=20)
    model = read(tmp_path, policy)
    ids, mask = texts(150)
    together = model(ids, mask=mask)
    for row, text, keep in zip(together, ids, mask, strict=True):
        np.testing.assert_array_equal(model(text[np.newaxis, keep])[0], row[keep])


def test_layers_have_paths_in_the_style_of_bert(library, tmp_path):
    written(library, tmp_path, num_hidden_layers=2)
    paths = [layer.path for layer in read(tmp_path).flatten() if layer.own_variables()]
    block = ["attention/qkv", "attention/attention_output", "intermediate_norm", "intermediate", "output"]
    assert paths == [
        "embeddings/word",
        "embeddings/norm",
        *(f"encoder/layer_0/{name}" for name in block),
        *(f"encoder/layer_1/{name}" for name in ["attention_norm", *block]),
        "encoder/norm",
    ]


def test_near_attention_takes_time_that_is_linear_in_the_length(library, tmp_path):
    written(library, tmp_path)
    model, work = read(tmp_path), {}
    for length in (256, 512):
        plan = mp.compile(model, np.full((8, length), 7))
        work[length] = [step.operations for step in plan.profile(repeat=1) if step.name == "attention"]
    near, far = 128 + 2 * 4, 512  # keys that a query meets: those within 4 tokens of the 128 queries beside it
    assert work[512][1] / work[512][0] == near / far
    assert [long / short for long, short in zip(work[512], work[256], strict=True)] == [4, 2, 2, 4]  # near: the middle


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16", "int8_from_mixed_bfloat16"])
def test_a_plan_of_ragged_texts_has_the_bits_of_padded_ones(library, tmp_path, policy):
    written(library, tmp_path, local_attention=20, **BIASES)
    model, (ids, mask) = read(tmp_path, policy), texts(300)
    lengths = mask.sum(axis=1).tolist()
    expected = pool(("mean",), model(ids, mask=mask), mask, mask)
    ragged = RaggedTexts(model, _Pooled(model, ("mean",), 0), 32)
    assert "attention" in [step.name for step in ragged.plan.profile(repeat=1)]
    for threads in (1, 2, 7):
        with mp.config.num_threads(threads):
            np.testing.assert_array_equal(ragged(ids[mask], lengths), expected)
    np.testing.assert_array_equal(ragged(np.concatenate([ids[mask]] * 9), lengths * 9), np.tile(expected, (9, 1)))


@pytest.mark.usefixtures("reproducible")
def test_no_bit_depends_on_the_instruction_set(library, tmp_path, isa):
    written(library, tmp_path, local_attention=20)
    model, (ids, mask) = read(tmp_path, "mixed_bfloat16"), texts(150)
    found, used = model(ids, mask=mask)[mask], mp.config.isa()
    mp.config.set_isa(mp.config.available_isas()[0])
    np.testing.assert_array_equal(model(ids, mask=mask)[mask], found)
    mp.config.set_isa(used)


def test_float64_is_near_transformers(library, tmp_path):
    network = written(library, tmp_path).double()
    ids, mask = texts(200)
    received = read(tmp_path, "float64")(ids, mask=mask)
    assert received.dtype == np.float64
    np.testing.assert_allclose(received[mask], vectors(network, ids, mask)[mask], rtol=0, atol=1e-6)  # float32 angles


ROPE = "rope_parameters is .*; expected an object of 'full_attention', 'sliding_attention'"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"hidden_activation": "glu"}, "hidden_activation is 'glu'; expected 'gelu' or"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling is {'factor': 2.0}; expected None"),
        ({"head_dim": 8}, "head_dim is 8; expected None"),
        ({"norm_bias": 1}, "norm_bias is 1; expected true or false"),
        ({"local_attention": 0}, "local_attention is 0; expected a positive int"),
        ({"norm_eps": None}, "norm_eps is None; expected a positive, finite float"),
        ({"num_attention_heads": 32}, "hidden_size is 32; expected an even multiple of num_attention_heads, 32"),
        ({"layer_types": ["full_attention"]}, "layer_types is .*; expected a list of 4 of 'full_attention' or"),
        ({"layer_types": ["full_attention"] * 3 + ["chunked_attention"]}, "layer_types is .*; expected a list of 4"),
        ({"layer_types": [["full_attention"]] * 4}, "layer_types is .*; expected a list of 4"),
        (
            {"layer_types": None, "global_attn_every_n_layers": 0},
            "global_attn_every_n_layers is 0; expected a positive",
        ),
        ({"rope_parameters": [1]}, ROPE),
        ({"rope_parameters": {"rope_type": "default"}}, ROPE),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "the factor of full_attention is None; expected a positive, finite number",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "longrope"}}},
            "the short_factor of full_attention is None; expected a list of 8 positive, finite numbers",
        ),
        (
            {"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}},
            "full_attention has the entry 'partial_rotary_factor'; expected 'rope_type' or 'rope_theta'",
        ),
        ({"rope_parameters": {"full_attention": 3}}, ROPE),
        ({"rope_parameters": None, "local_rope_theta": None}, "the rope_theta of sliding_attention is None; expected"),
        (
            {"rope_parameters": None, "global_rope_theta": 0.0},
            "the rope_theta of full_attention is 0.0; expected a pos",
        ),
    ],
)
def test_what_is_not_computed_is_refused_by_name(library, tmp_path, entries, message):
    written(library, tmp_path)
    with pytest.raises(ValueError, match=rf"config\.json: {message}"):
        read(tmp_path, **entries)


def test_a_tensor_that_is_missing_or_left_over_is_named(library, tmp_path):
    written(library, tmp_path)
    with pytest.raises(ValueError, match=r"layers\.0\.attn\.Wqkv\.bias is missing; expected shape \(96,\)"):
        read(tmp_path, attention_bias=True)
    with pytest.raises(ValueError, match=r"layers\.3\..* is left over; expected num_hidden_layers=3"):
        read(tmp_path, num_hidden_layers=3, layer_types=None)
