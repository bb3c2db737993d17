"""Adapters of encoders and rerankers: folders of peft, read by peft and mp_core; one network for several adapters."""

import json
import warnings

import numpy as np
import pytest
import tiny_bert
from safetensors.numpy import load_file, save_file
from servers import Server, scorer

import mp_core as mp
from mp_core.models import BertEncoder, Reranker
from mp_core.serving.models import open_models

TARGETS = ["query", "key", "^value$", "^output$", "word"]
TEXTS = [text for text in tiny_bert.TEXTS if text]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert.write(tmp_path_factory.mktemp("adapters") / "model")


def _adapted(folder, policy=None, targets=TARGETS, rank=2, alpha=3.0, seed=0):
    encoder = BertEncoder.from_folder(folder, policy)
    encoder.enable_lora(rank, alpha, targets)
    rng = np.random.default_rng(seed)
    for layer in encoder._adapted().values():
        for variable in layer._lora_variables:
            variable.assign(rng.standard_normal(variable.shape) * 0.3)
    return encoder


@pytest.fixture(scope="module")
def peft():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("peft")


def _network(folder, config=None):
    """Return the network in the class of transformers, without its pooling, and the tokens of the texts."""
    import torch
    from transformers import BertConfig, BertModel

    network = BertModel(BertConfig(**tiny_bert.CONFIG), add_pooling_layer=False).eval()
    network.load_state_dict({name: torch.from_numpy(x) for name, x in load_file(folder / "model.safetensors").items()})
    return network


def _vectors(network, encoder):
    """Return the mean vectors of the texts by a network of torch, of length 1."""
    import torch

    found = []
    for row in encoder.tokenize(TEXTS).rows:
        with torch.no_grad():
            hidden = network(torch.from_numpy(row[None].astype(np.int64))).last_hidden_state[0].double().mean(0)
        found.append((hidden / hidden.norm()).numpy())
    return np.array(found)


@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
def test_peft_computes_the_same_with_an_adapter_that_was_saved(peft, folder, tmp_path):
    encoder = _adapted(folder)
    encoder.save_adapter(tmp_path / "adapter")
    network = peft.PeftModel.from_pretrained(_network(folder), tmp_path / "adapter")
    np.testing.assert_allclose(encoder.encode(TEXTS), _vectors(network, encoder), atol=2e-6)
    bare = BertEncoder.from_folder(folder).encode(TEXTS)
    assert np.abs(encoder.encode(TEXTS) - bare).max() > 0.01


@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
@pytest.mark.parametrize("options", [
    {}, {"use_rslora": True}, {"rank_pattern": {"encoder.layer.0.attention.self.query": 5}},
    {"alpha_pattern": {"encoder.layer.1.attention.self.value": 9}},
])  # fmt: skip
def test_an_adapter_of_peft_is_read(peft, folder, tmp_path, options):
    import torch

    torch.manual_seed(0)
    targets = ["query", "value", "attention.output.dense"]
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=targets, init_lora_weights=False, **options)
    network = peft.get_peft_model(_network(folder), config).eval()
    network.save_pretrained(tmp_path / "theirs")
    encoder = BertEncoder.from_folder(folder)
    encoder.load_adapter(tmp_path / "theirs")
    np.testing.assert_allclose(encoder.encode(TEXTS), _vectors(network, encoder), atol=2e-6)
    encoder.save_adapter(tmp_path / "ours")
    again = peft.PeftModel.from_pretrained(_network(folder), tmp_path / "ours")
    np.testing.assert_allclose(_vectors(again, encoder), _vectors(network, encoder), atol=2e-6)


@pytest.mark.parametrize("policy", [None, "bfloat16", "int8", "int4/8", "float8_e4m3fn"])
def test_an_adapter_that_is_loaded_gives_the_bits_of_the_one_that_was_saved(folder, tmp_path, policy):
    encoder = _adapted(folder, policy)
    encoder.save_adapter(tmp_path / "adapter")
    want, base = encoder.encode(TEXTS), BertEncoder.from_folder(folder, policy)
    bare = base.encode(TEXTS)
    other = base.with_adapter(tmp_path / "adapter")
    assert other.encode(TEXTS).tobytes() == want.tobytes() != bare.tobytes() == base.encode(TEXTS).tobytes()
    base.load_adapter(tmp_path / "adapter")
    assert base.encode(TEXTS).tobytes() == want.tobytes()


def test_adapters_of_one_network_share_its_memory(folder, tmp_path):
    for seed in (1, 2):
        _adapted(folder, "int8", seed=seed).save_adapter(tmp_path / str(seed))
    base = BertEncoder.from_folder(folder, "int8")
    bare = base.encode(TEXTS)
    first, second = (base.with_adapter(tmp_path / str(seed)) for seed in (1, 2))
    own = {id(variable) for variable in base.model.weights}
    for other in (first, second):
        more = [variable for variable in other.model.weights if id(variable) not in own]
        assert {variable.name.rpartition("_")[0] for variable in more} == {"lora_kernel", "lora_embeddings"}
        assert other.encode(TEXTS).tobytes() != bare.tobytes()
    assert first.encode(TEXTS).tobytes() != second.encode(TEXTS).tobytes()
    first.merge_lora()
    assert base.encode(TEXTS).tobytes() == bare.tobytes()
    third = second.with_adapter(tmp_path / "1")
    assert third.encode(TEXTS).tobytes() == base.with_adapter(tmp_path / "1").encode(TEXTS).tobytes()


@pytest.mark.parametrize("policy", ["float32", "int8", "int4/8"])
def test_a_saved_model_holds_the_sums(folder, tmp_path, policy):
    encoder = _adapted(folder, policy)
    encoder.save(tmp_path / "whole")
    encoder.merge_lora()
    read = BertEncoder.from_folder(tmp_path / "whole")
    assert read.encode(TEXTS).tobytes() == encoder.encode(TEXTS).tobytes()
    with pytest.raises(ValueError, match="has no LoRA"):
        encoder.save_adapter(tmp_path / "adapter")


def test_another_policy_keeps_lora(folder):
    encoder = _adapted(folder, "int8")
    assert encoder.with_policy("float32").encode(TEXTS).tobytes() == _adapted(folder, "float32").encode(TEXTS).tobytes()


def test_only_lora_is_trainable(folder):
    encoder = _adapted(folder)
    assert {v.name[:5] for v in encoder.model.trainable_weights} == {"lora_"}
    encoder = BertEncoder.from_folder(folder)
    encoder.enable_lora(2)
    names = [layer.name for layer in encoder._adapted().values()]
    assert names == ["query", "value"] * tiny_bert.LAYERS


@pytest.mark.parametrize("policy", ["float32", "int8"])
def test_an_adapter_that_is_trained_has_the_same_bytes_for_every_number_of_threads(folder, tmp_path, policy):
    pairs, saved = [("a b c", "d e"), ("f", "g h a"), ("b b", "c d e f"), ("h", "a")], []
    for threads in (1, 2):
        encoder = BertEncoder.from_folder(folder, policy)
        base = [variable.numpy().tobytes() for variable in encoder.model.weights]
        mp.random.set_seed(5)
        encoder.enable_lora(2)
        with mp.config.num_threads(threads):
            encoder.fit(pairs, epochs=5, batch_size=2, learning_rate=1e-2, seed=0, verbose=0)
        encoder.save_adapter(tmp_path / str(threads))
        saved.append((tmp_path / str(threads) / "adapter_model.safetensors").read_bytes())
        thin = {id(variable) for layer in encoder._adapted().values() for variable in layer._lora_variables}
        assert [v.numpy().tobytes() for v in encoder.model.weights if id(v) not in thin] == base
    mp.random.set_seed(None)
    assert saved[0] == saved[1] and all(layer._lora.b.numpy().any() for layer in encoder._adapted().values())


def test_targets_that_choose_nothing_are_refused_with_the_names(folder):
    encoder = BertEncoder.from_folder(folder)
    with pytest.raises(ValueError, match=r"`targets` must choose some of the layers \['attention_output', .*'word'\]"):
        encoder.enable_lora(2, targets="nothing")
    with pytest.raises(ValueError, match="`rank`"):
        encoder.enable_lora(0)
    assert all(variable.trainable for variable in encoder.model.weights)


def _changed(folder, place, config=None, tensors=None):
    """Write the adapter in `folder` to `place` with other settings and tensors."""
    place.mkdir()
    said = json.loads((folder / "adapter_config.json").read_text()) | (config or {})
    (place / "adapter_config.json").write_text(json.dumps(said))
    arrays = load_file(folder / "adapter_model.safetensors") | (tensors or {})
    save_file({name: x for name, x in arrays.items() if x is not None}, place / "adapter_model.safetensors")
    return place


QUERY = "base_model.model.encoder.layer.0.attention.self.query"
HOSTILE = {
    "dora": ({"use_dora": True}, {}, "use_dora"),
    "biases": ({"bias": "all"}, {}, "bias is 'all'"),
    "saved modules": ({"modules_to_save": ["pooler"]}, {}, "modules_to_save"),
    "another kind": ({"peft_type": "IA3"}, {}, "peft_type"),
    "alpha": ({"lora_alpha": -1}, {}, "lora_alpha"),
    "alpha pattern": ({"alpha_pattern": {"query": 3}}, {}, "alpha_pattern"),
    "rank": ({}, {f"{QUERY}.lora_A.weight": np.ones((3, 16), np.float32)}, "expected \\(rank, 16\\)"),
    "missing": ({}, {f"{QUERY}.lora_B.weight": None}, "have shapes"),
    "nan": ({}, {f"{QUERY}.lora_B.weight": np.full((16, 2), np.nan, np.float32)}, "Inf or NaN"),
    "foreign": ({}, {"base_model.model.other.lora_A.weight": np.ones((2, 2), np.float32)}, "belongs to no layer"),
    "integers": ({}, {f"{QUERY}.lora_B.weight": np.ones((16, 2), np.int32)}, "matrix of floats"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_an_adapter_that_says_something_else_is_refused(folder, tmp_path, case):
    config, tensors, error = HOSTILE[case]
    encoder = _adapted(folder)
    encoder.save_adapter(tmp_path / "adapter")
    place, want = _changed(tmp_path / "adapter", tmp_path / "changed", config, tensors), encoder.encode(TEXTS)
    with pytest.raises(ValueError, match=error):
        encoder.load_adapter(place)
    assert encoder.encode(TEXTS).tobytes() == want.tobytes()


def test_a_folder_that_is_there_is_replaced_by_force_only(folder, tmp_path):
    encoder = _adapted(folder)
    encoder.save_adapter(tmp_path / "adapter")
    with pytest.raises(FileExistsError):
        encoder.save_adapter(tmp_path / "adapter")
    encoder.save_adapter(tmp_path / "adapter", force=True)
    with pytest.raises(FileNotFoundError):
        encoder.load_adapter(tmp_path / "nothing")


def test_a_reranker_has_adapters_with_the_names_of_its_library(tmp_path):
    folder, pairs = scorer(tmp_path / "model", 1), [("a b", "c"), ("d", "e f")]
    reranker = Reranker.from_folder(folder)
    reranker.enable_lora(2, targets=lambda layer: layer.path.endswith(("query", "head/output")))
    for layer in reranker._adapted().values():
        layer._lora.b.assign(np.ones(layer._lora.b.shape))
    want, bare = reranker.predict(pairs), Reranker.from_folder(folder).predict(pairs)
    reranker.save_adapter(tmp_path / "adapter")
    names = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {name.removeprefix("base_model.model.").partition(".")[0] for name in names} == {"bert", "classifier"}
    other = Reranker.from_folder(folder).with_adapter(tmp_path / "adapter")
    assert other.predict(pairs).tobytes() == want.tobytes() != bare.tobytes()


def test_a_server_has_one_network_and_an_adapter_for_each_further_name(folder, tmp_path):
    want = [BertEncoder.from_folder(folder, "int8").encode(TEXTS)]
    for seed in (1, 2):
        encoder = _adapted(folder, "int8", seed=seed)
        encoder.save_adapter(tmp_path / str(seed))
        want.append(encoder.encode(TEXTS))
    served = open_models({"base": folder}, "int8", {"one": tmp_path / "1", "two": tmp_path / "2"})
    assert [model.name for model in served] == ["base", "one", "two"]
    for model, vectors in zip(served, want, strict=True):
        assert model.compute(model.tokenize(TEXTS), {}).tobytes() == vectors.tobytes()


def test_the_command_serves_each_adapter_by_its_name(folder, tmp_path):
    want, options = {"model": BertEncoder.from_folder(folder).encode(TEXTS)}, []
    for seed, name in enumerate(("legal", "news")):
        encoder = _adapted(folder, seed=seed)
        encoder.save_adapter(tmp_path / name)
        want[name] = encoder.encode(TEXTS)
        options += ["--adapter", f"{name}={tmp_path / name}"]
    server = Server(folder, *options, log=tmp_path / "log")
    try:
        for name, vectors in want.items():
            rows = server.get("/v1/embeddings", {"model": name, "input": TEXTS})["data"]
            assert np.array([row["embedding"] for row in rows], np.float32).tobytes() == vectors.tobytes()
    finally:
        server.stop()


def test_a_seed_decides_where_adapters_begin(folder):
    def begun(seed):
        encoder = BertEncoder.from_folder(folder)
        encoder.enable_lora(2, seed=seed)
        return [v.numpy().tobytes() for v in encoder.model.trainable_weights if v.name == "lora_kernel_a"]

    assert begun(3) == begun(3) != begun(4)
    assert len(set(begun(3))) == len(begun(3)) > 1
    with pytest.raises(ValueError, match="`seed` must be from 0 to"):
        begun(-1)
