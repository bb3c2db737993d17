"""Outputs that exceed float16: families that compute more in float32; other layers are named with their policy."""

import re
import warnings

import late_models
import numpy as np
import pytest
import random_models

import mp_core as mp
from mp_core import cli
from mp_core.models import BertEncoder, MultiVectorEncoder, Reranker, SparseEncoder, TokenClassifier
from mp_core.models.finite import first_layer
from mp_core.utilities.nonfinite import NonFiniteError, nonfinite

torch = pytest.importorskip("torch")
TEXTS = ["a b c", "d e f g h", "a"]
FLOAT16 = 0.01  # of the length of float32's vectors: 2^-11 for each of some roundings, in two blocks
OVERFLOWING = ["t5", "t5 with gates", "mt5", "umt5", "gemma2", "gemma3_text", "embeddinggemma", "embedding_gemma2_text"]


def magnified(name, factor, *ends, **settings):
    """Return a random network, of which the tensors with such names are that many times as large."""
    network = random_models.made(name, **settings)
    with torch.no_grad():
        for tensor, parameter in network.named_parameters():
            if tensor.endswith(ends):
                parameter *= factor
    return network


def saved(folder, network):
    folder.mkdir(parents=True, exist_ok=True)
    return random_models.save(network, folder)


@pytest.fixture
def overflowing(tmp_path):
    """Return the folder of a network whose perceptron exceeds float16."""
    return saved(tmp_path / "bert", magnified("bert", 300_000, "layer.1.output.dense.weight"))


# ---- families


@pytest.mark.parametrize("policy", ["float16", "mixed_float16", "int8/weight_only_from_mixed_float16"])
@pytest.mark.parametrize("name", OVERFLOWING)
def test_families_whose_layers_exceed_float16_stay_near_float32(tmp_path, name, policy):
    ends = ("wo.weight",) if "t5" in name else ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")
    network = magnified(name, 30_000 if "t5" in name else 1, *ends)
    with torch.no_grad():
        for tensor, parameter in network.named_parameters():
            if tensor.endswith(ends) and "t5" not in name:
                parameter += 40_000
    folder = saved(tmp_path / "model", network)
    expected = BertEncoder.from_folder(folder).encode(TEXTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        received = BertEncoder.from_folder(folder, policy).encode(TEXTS)
    most = 0.1 if policy.startswith("int8") else FLOAT16
    assert np.linalg.norm(received - expected) < most * np.linalg.norm(expected)


def test_t5_in_float16_has_the_vectors_of_transformers_which_keeps_wo_in_float32(tmp_path):
    network = magnified("t5", 30_000, "wo.weight")
    folder = saved(tmp_path / "model", network)
    transformers = random_models.library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        half = transformers.T5EncoderModel.from_pretrained(folder, dtype=torch.float16)
    assert half.encoder.block[0].layer[1].DenseReluDense.wo.weight.dtype == torch.float32
    ids, mask = random_models.ragged(1, (9, 9))
    expected = random_models.outputs(half, ids, mask).astype(np.float32)
    received = BertEncoder.from_folder(folder, "mixed_float16").model(ids).astype(np.float32)
    assert np.linalg.norm(received - expected) < FLOAT16 * np.linalg.norm(expected)


def test_a_layer_that_exceeds_float16_says_in_what_it_computes(tmp_path):
    folder = saved(tmp_path / "model", random_models.made("t5"))
    encoder = BertEncoder.from_folder(folder, "mixed_float16")
    block = encoder.model.encoder.blocks[0]
    assert (block.output.compute_dtype, block.intermediate.compute_dtype) == ("float32", "float16")
    encoder.model.dtype_policy = "float16"
    assert block.output.compute_dtype == "float32"
    encoder.model.dtype_policy = "mixed_bfloat16"
    assert block.output.compute_dtype == "bfloat16"


def test_a_folder_saved_under_float16_has_the_same_bits(tmp_path):
    folder = saved(tmp_path / "model", magnified("t5", 30_000, "wo.weight"))
    encoder = BertEncoder.from_folder(folder, "float16")
    encoder.save(tmp_path / "saved")
    again = BertEncoder.from_folder(tmp_path / "saved")
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))


# ---- what is told


def test_the_first_output_that_is_not_finite_is_told_once_by_layer_and_policy(overflowing):
    encoder = BertEncoder.from_folder(overflowing, "mixed_float16")
    told = (
        "the output of input 1 is not finite: layer 'encoder/layer_1/output' under the policy 'mixed_float16' is the "
        "first to return Inf or NaN: it exceeds the range of float16, and 'mixed_bfloat16' has that of float32"
    )
    with pytest.warns(RuntimeWarning, match=re.escape(told)) as caught:
        encoder.encode(TEXTS)
        encoder.encode(TEXTS)
        encoder.embed_tokens(np.array([[4, 5]]))
    assert len(caught) == 1
    with pytest.warns(RuntimeWarning, match="'encoder/layer_1/output' under the policy 'float16'"):
        encoder.with_policy("float16").encode(TEXTS)


@pytest.mark.parametrize(
    ("name", "tensor", "layer"),
    [
        ("qwen3", "layers.1.mlp.up_proj.weight", "up"),  # computed side by side with the gate
        ("qwen3", "layers.0.self_attn.v_proj.weight", "attention/value"),
        ("modernbert", "layers.1.mlp.Wi.weight", "intermediate"),
        ("deberta-v3", "layer.1.output.dense.weight", "output"),
        ("bert", "embeddings.LayerNorm.weight", "norm"),
    ],
)
def test_the_layer_is_found_in_every_kind_of_block(tmp_path, name, tensor, layer):
    folder = saved(tmp_path / "model", magnified(name, 1e7, tensor))
    with nonfinite("raise"), pytest.raises(NonFiniteError, match=f"/{layer}' under the policy 'mixed_float16'"):
        BertEncoder.from_folder(folder, "mixed_float16").encode(TEXTS)


def test_the_search_changes_neither_the_model_nor_its_bits(overflowing):
    encoder = BertEncoder.from_folder(overflowing)
    expected, kinds = encoder.encode(TEXTS), [type(layer) for layer in encoder.flatten()]
    first_layer(encoder.model, lambda model: model(np.array([[4, 5]])))
    assert [type(layer) for layer in encoder.flatten()] == kinds
    np.testing.assert_array_equal(encoder.encode(TEXTS), expected)


def test_weights_that_are_not_finite_are_named(tmp_path):
    network = random_models.made("bert")
    network.encoder.layer[0].output.dense.bias.data[0] = np.nan
    encoder = BertEncoder.from_folder(saved(tmp_path / "model", network))
    with pytest.warns(RuntimeWarning, match="'encoder/layer_0/output' under the policy 'float32' .*: its weights hold"):
        encoder.encode(TEXTS)


def test_an_error_has_the_position_of_the_text(overflowing):
    encoder = BertEncoder.from_folder(overflowing, "mixed_float16")
    with nonfinite("raise"), pytest.raises(NonFiniteError) as raised:
        encoder.encode(TEXTS)
    assert raised.value.position == 1  # the longest comes first
    with nonfinite("ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not np.isfinite(encoder.encode(TEXTS)).all()


def test_scores_of_texts_and_of_tokens_are_told_too(tmp_path):
    from test_reranker import PAIRS, written

    (tmp_path / "pairs").mkdir()
    written(tmp_path / "pairs")
    reranker = Reranker.from_folder(tmp_path / "pairs", "mixed_float16")
    output = reranker.model.head.output
    output.kernel.assign(output.kernel.numpy() * 1e6)
    with pytest.warns(RuntimeWarning, match="'head/output' under the policy 'mixed_float16'"):
        reranker.predict(PAIRS)
    network = magnified("bert", 1e7, "classifier.weight", head="ForTokenClassification")
    classifier = TokenClassifier.from_folder(saved(tmp_path / "tokens", network), "mixed_float16")
    with pytest.warns(RuntimeWarning, match="'head/output' under the policy 'mixed_float16'"):
        classifier.predict(TEXTS)


# ---- who refuses


def test_policies_whose_outputs_are_not_finite_are_never_chosen(overflowing):
    encoder = BertEncoder.from_folder(overflowing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choice = mp.choose_policy(encoder, [TEXTS], max_error=1.0, policies=["mixed_float16"])
    assert choice.map["encoder/layer_1/output"].name == "float32"
    assert choice.error.max <= 1.0
    assert "inf" in next(row.reason for row in choice.table if row.path == "encoder/layer_1/output")
    assert np.isfinite(encoder.with_policy(choice.map).encode(TEXTS)).all()


def test_convert_verify_fails_where_an_output_of_the_folder_is_not_finite(overflowing, tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    memory = ["--max-memory", "8GiB"]  # of a process that has run other tests
    command = ["convert", str(overflowing), *memory, "--verify", str(texts), "--quiet", "--policy"]
    assert cli.main([*command, "bfloat16", "-o", str(tmp_path / "good")]) == 0
    assert cli.main([*command, "float16", "--no-saturate", "-o", str(tmp_path / "bad")]) == 1
    told = capsys.readouterr().err
    assert (
        "failed: text 2 of --verify has an output that is not finite: layer 'encoder/layer_1/output' under the" in told
    )
    with pytest.raises(SystemExit):
        cli.main([*command, "float16", "--dry-run", "-o", str(tmp_path / "none")])
    assert "argument --verify: not allowed with argument --dry-run" in capsys.readouterr().err


@pytest.mark.parametrize(("write", "kind", "method"), [
    ("colbert", MultiVectorEncoder, "encode_multi"), ("splade", SparseEncoder, "encode_sparse"),
])  # fmt: skip
def test_sparse_and_multi_vectors_are_told_too(tmp_path, write, kind, method):
    pytest.importorskip("sentence_transformers")
    getattr(late_models, write)("bert", tmp_path)
    encoder = kind.from_folder(tmp_path / "model", "mixed_float16")
    kernel = encoder.model.encoder.blocks[1].output.kernel
    kernel.assign(kernel.numpy() * 1e7)
    with pytest.warns(RuntimeWarning, match="'encoder/layer_1/output' under the policy 'mixed_float16'"):
        getattr(encoder, method)(TEXTS)
    with nonfinite("raise"), pytest.raises(NonFiniteError):
        getattr(encoder, method)(TEXTS)
