"""The modules after pooling: the vectors of sentence-transformers, and errors."""

import json
import pickle
import warnings

import numpy as np
import pytest
import random_models
from safetensors.numpy import load_file, save_file

from mp_core import cli
from mp_core.models import BertEncoder

TEXTS = ["a b c", "h g f e d c b a a b", "d"]


@pytest.fixture(scope="module")
def library():
    return random_models.library("sentence_transformers")


def saved(library, folder, *modules, poolings="mean"):
    """Save a random network with modules behind its pooling, and return its embeddings of the texts."""
    import torch
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    (folder / "network").mkdir()
    network = random_models.save(random_models.made("bert"), folder / "network")
    (network / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}'
    )
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformer = Transformer(str(network))
        model = library.SentenceTransformer(modules=[transformer, Pooling(32, poolings), *(make() for make in modules)])
        for name, tensor in model.named_parameters():
            if "norm" in name and not name.startswith("0"):
                torch.nn.init.normal_(tensor, 1.0, 0.5)
        model.save(str(folder / "model"))
        return model.encode(TEXTS)


def dense(*sizes, **options):
    def make():
        from sentence_transformers.base.modules.dense import Dense

        return Dense(*sizes, **options)

    return make


def module(name, *arguments):
    def make():
        from sentence_transformers.sentence_transformer import modules

        return getattr(modules, name)(*arguments)

    return make


def gelu():
    from torch import nn

    return nn.GELU()


CASES = {
    "Dense": [dense(32, 12)],
    "Dense of Identity": [dense(32, 12, bias=False, activation_function=None)],
    "Dense twice and Normalize": [dense(32, 48, bias=False), dense(48, 32), module("Normalize")],
    "Dense with a residual": [dense(32, 12, use_residual=True), dense(12, 12, use_residual=True)],
    "Normalize before Dense": [module("Normalize"), dense(32, 12)],
    "LayerNorm and Dropout": [module("LayerNorm", 32), module("Dropout", 0.2), module("Normalize")],
}


@pytest.mark.parametrize("name", CASES)
def test_embeddings_are_those_of_sentence_transformers(library, tmp_path, name):
    expected = saved(library, tmp_path, *CASES[name])
    encoder = BertEncoder.from_folder(tmp_path / "model")
    received = encoder.encode(TEXTS)
    assert encoder.dim == expected.shape[1]
    errors = np.linalg.norm(received - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert errors.max() < 1e-5
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(encoder)).encode(TEXTS), received)
    narrow = encoder.encode(TEXTS, truncate_dim=5, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(narrow, axis=1), 1, atol=1e-6)


def test_poolings_side_by_side_are_as_wide_as_the_first_dense(library, tmp_path):
    expected = saved(library, tmp_path, dense(64, 8), poolings=["cls", "mean"])
    np.testing.assert_allclose(BertEncoder.from_folder(tmp_path / "model").encode(TEXTS), expected, atol=1e-5)


def test_modules_in_files_of_their_own_are_not_read_after_opening(library, tmp_path):
    """Otherwise a file that becomes shorter would end the process (SIGBUS): these maps are not among the checked."""
    saved(library, tmp_path, dense(32, 12, use_residual=True), module("LayerNorm", 12))
    encoder = BertEncoder.from_folder(tmp_path / "model")
    expected = encoder.encode(TEXTS)
    heads = list((tmp_path / "model").glob("[23]_*/model.safetensors"))
    assert len(heads) == 2
    for file in heads:
        file.write_bytes(b"")
    np.testing.assert_array_equal(encoder.with_policy("float32").encode(TEXTS), expected)


@pytest.mark.parametrize("policy", ["float32", "int8"])
def test_a_folder_that_is_saved_or_converted_keeps_its_modules(library, tmp_path, policy):
    expected = saved(library, tmp_path, module("LayerNorm", 32), dense(32, 12), module("Normalize"))
    encoder = BertEncoder.from_folder(tmp_path / "model", policy)
    encoder.save(tmp_path / "saved")
    np.testing.assert_array_equal(BertEncoder.from_folder(tmp_path / "saved").encode(TEXTS), encoder.encode(TEXTS))
    arguments = ["convert", str(tmp_path / "model"), "-o", str(tmp_path / "converted"), "--policy", policy, "--quiet"]
    arguments += ["--max-memory", "8GiB"]  # this process holds torch and what other tests have left
    assert cli.main(arguments) == 0
    converted = BertEncoder.from_folder(tmp_path / "converted").encode(TEXTS)
    assert (converted * expected).sum(axis=1).min() > 0.98
    if policy == "float32":
        again = library.SentenceTransformer(str(tmp_path / "saved")).encode(TEXTS)
        np.testing.assert_allclose(again, expected, atol=1e-6)


@pytest.fixture(scope="module")
def folder(library, tmp_path_factory):
    parent = tmp_path_factory.mktemp("steps")
    saved(library, parent, dense(32, 12), module("LayerNorm", 12))
    return parent / "model"


@pytest.mark.parametrize(
    ("file", "entries", "message"),
    [
        ("2_Dense", {"in_features": 31}, "in_features is 31; expected 32, the length of the vectors before"),
        ("2_Dense", {"out_features": 0}, "out_features is 0; expected a positive int"),
        ("2_Dense", {"out_features": 13}, r"tensor linear\.weight has shape \(12, 32\); expected \(13, 32\)"),
        ("2_Dense", {"bias": False}, r"tensor linear\.bias is left over; expected 'linear\.weight'"),
        ("2_Dense", {"use_residual": True}, r"tensor residual\.weight is missing; expected shape \(12, 32\)"),
        ("2_Dense", {"bias": 1}, "bias is 1; expected true or false"),
        ("2_Dense", {"activation_function": "os.system"}, "activation_function is 'os.system'; expected 'torch"),
        ("2_Dense", {"activation_function": ["x"]}, "activation_function is .'x'.; expected 'torch"),
        ("2_Dense", {"odd": 1}, "setting 'odd' is unknown; expected 'in_features' or"),
        (
            "2_Dense",
            {"module_input_name": "token_embeddings"},
            "module_input_name is 'token_embeddings'; expected",
        ),
        ("3_LayerNorm", {"dimension": 32}, "dimension is 32; expected 12, the length of the vectors before"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(folder, tmp_path, file, entries, message):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    path = copy / file / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    with pytest.raises(ValueError, match=message):
        BertEncoder.from_folder(copy)


def test_a_tensor_that_is_no_float_is_refused(folder, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    path = copy / "2_Dense" / "model.safetensors"
    save_file(load_file(path) | {"linear.bias": np.zeros(12, np.int32)}, path)
    with pytest.raises(ValueError, match=r"tensor linear\.bias has dtype int32; expected a floating-point type"):
        BertEncoder.from_folder(copy)
