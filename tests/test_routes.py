"""Folders whose module Router has separate modules for queries and documents, compared with sentence-transformers."""

import json
import shutil
import warnings

import late_models
import numpy as np
import pytest
import random_models
import test_static
from oracles import assert_same_bits
from safetensors.numpy import save_file

from mp_core.models import BertEncoder, SparseEncoder
from mp_core.models.opening import class_of

torch = pytest.importorskip("torch")
st = pytest.importorskip("sentence_transformers")

TEXTS = ["a b c", "d", "e f g h a b c d e", "b b b h"]
WORDS = len(random_models.WORDS)
OLD = "sentence_transformers.sparse_encoder.models."


def saved(folder, modules, kind="SentenceTransformer", **arguments):
    """Return a model of the library of these modules, saved in a folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(st, kind)(modules=modules, device="cpu", **arguments)
        model.save(str(folder))
    return model


def transformer(folder, name="bert", head="Model", **settings):
    from sentence_transformers.base.modules import Transformer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Transformer(str(late_models.network(name, head, folder)), **settings)


def two_networks(room):
    """Return an encoder with a static table for queries and a network for documents."""
    from sentence_transformers.base.modules import Normalize, Router
    from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding

    table = np.random.default_rng(0).standard_normal((len(random_models.WORDS), 32)).astype(np.float32)
    query = [StaticEmbedding(test_static.tokenizer(), table)]
    document = [transformer(room / "network"), Pooling(32, "mean")]
    router = Router.for_query_document(query_modules=query, document_modules=document)
    prompts = {"query": "a ", "document": ""}
    return saved(room / "model", [router, Normalize()], prompts=prompts)


def two_heads(room):
    """Return an encoder with one network and a product each for queries and documents, as Asym was used."""
    from sentence_transformers.base.modules import Dense, Router
    from sentence_transformers.sentence_transformer.modules import Pooling

    torch.manual_seed(2)
    heads = {task: [Dense(32, 8)] for task in ("query", "document")}
    return saved(room / "model", [transformer(room / "network"), Pooling(32, "cls"), Router(heads)])


@pytest.mark.parametrize("make", [two_networks, two_heads])
def test_tasks_go_their_own_ways(make, tmp_path):
    library = make(tmp_path)
    encoder = BertEncoder.from_folder(tmp_path / "model")
    expected = {"query": library.encode_query(TEXTS), "document": library.encode_document(TEXTS)}
    assert np.abs(expected["query"] - expected["document"]).max() > 0.1
    np.testing.assert_allclose(encoder.encode_query(TEXTS), expected["query"], atol=1e-5)
    np.testing.assert_allclose(encoder.encode_document(TEXTS), expected["document"], atol=1e-5)
    np.testing.assert_allclose(encoder.encode(TEXTS), library.encode(TEXTS), atol=1e-5)
    for task in expected:
        prompt = encoder.prompts[task]
        assert_same_bits(
            encoder.with_task(task).encode(TEXTS, prompt=prompt), getattr(encoder, f"encode_{task}")(TEXTS)
        )
    with pytest.raises(ValueError, match=r"`task` must be 'query' or 'document', as .*router_config.json says"):
        encoder.with_task("other")


@pytest.mark.parametrize("make", [two_networks, two_heads])
def test_what_is_set_holds_on_other_routes(make, tmp_path):
    make(tmp_path)
    encoder = BertEncoder.from_folder(tmp_path / "model")
    prompted = {"prompt": "h g "}
    before = encoder.encode_document(TEXTS, **prompted)
    encoder.set_pooling_include_prompt(False)
    assert not encoder.with_task("document")._modules.include_prompt
    encoder.max_seq_length = 4
    assert encoder.with_task("document").max_seq_length == 4
    after = encoder.encode_document(TEXTS, **prompted)
    assert (before != after).any()
    encoder = BertEncoder.from_folder(tmp_path / "model")
    other = encoder.with_task("document")
    other.set_pooling_include_prompt(False)
    other.max_seq_length = 4
    assert_same_bits(other.encode(TEXTS, **prompted), after)


def test_copies_keep_the_networks_of_their_tasks(tmp_path):
    two_networks(tmp_path)
    encoder = BertEncoder.from_folder(tmp_path / "model")
    found, other = encoder._of_task("document"), encoder.with_policy("bfloat16")
    assert other._of_task("document") is not found
    assert encoder._of_task("document") is found


def test_one_network_is_in_memory_once(tmp_path):
    two_heads(tmp_path)
    encoder = BertEncoder.from_folder(tmp_path / "model")
    assert encoder.with_task("query").model is encoder.model
    assert encoder._of_task("query") is encoder._of_task("query")


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "int8"])
@pytest.mark.parametrize("make", [two_networks, two_heads])
def test_a_saved_encoder_has_the_same_bits(make, policy, tmp_path):
    make(tmp_path)
    encoder = BertEncoder.from_folder(tmp_path / "model", policy)
    encoder.save(tmp_path / "again")
    again = BertEncoder.from_folder(tmp_path / "again")
    assert_same_bits(again.encode_document(TEXTS), encoder.encode_document(TEXTS))
    assert again.encode_query(TEXTS).shape == encoder.encode_query(TEXTS).shape


def test_folders_of_before_are_read(tmp_path):
    library = two_heads(tmp_path)
    model = tmp_path / "model"
    home = model / "2_Router"
    (home / "router_config.json").rename(home / "config.json")
    modules = json.loads((model / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.Asym"
    (model / "modules.json").write_text(json.dumps(modules))
    said = json.loads((home / "config.json").read_text())
    said["types"] = dict.fromkeys(said["types"], "sentence_transformers.models.Dense.Dense")
    said["parameters"] = {"allow_empty_key": True}
    (home / "config.json").write_text(json.dumps(said))
    found = BertEncoder.from_folder(model)
    np.testing.assert_allclose(found.encode_query(TEXTS), library.encode_query(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"types": {"a": 1}}, "types is {'a': 1}; expected an object of strings"),
        ({"types": {"../a": "b"}, "structure": {"query": ["../a"]}}, "types is '../a'; expected a path in the folder"),
        ({"structure": {"query": ["none"]}}, r"the route query is \['none'\]; expected some of"),
        ({"structure": {"query": []}}, r"the route query is \[\]; expected some of"),
        ({"structure": {}}, "structure is {}; expected an object of lists"),
        ({"structure": None}, "has no structure"),
        ({"parameters": {"default_route": "other"}}, "names the route 'other'; expected 'query' or 'document'"),
        ({"parameters": {"route_mappings": {"(None)": "query"}}}, r"route_mappings has the entry '\(None\)'"),
        ({"parameters": {"other": 1}}, "setting 'other' is unknown"),
        ({"other": 1}, "setting 'other' is unknown"),
    ],
)
def test_damaged_routes_are_refused_by_name(change, message, tmp_path):
    two_heads(tmp_path)
    late_models.change(tmp_path / "model" / "2_Router" / "router_config.json", **change)
    with pytest.raises(ValueError, match=f"router_config.json.*{message}"):
        BertEncoder.from_folder(tmp_path / "model")


def test_routes_are_found_as_the_library_finds_them(tmp_path):
    library = two_heads(tmp_path)
    path = tmp_path / "model" / "2_Router" / "router_config.json"
    mappings = {"('query', 'text')": "document", "('document', None)": "query", "(None, ('image', 'text'))": "query"}
    late_models.change(path, parameters={"default_route": "query", "route_mappings": mappings})
    library = st.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    found = BertEncoder.from_folder(tmp_path / "model")
    np.testing.assert_allclose(found.encode_query(TEXTS), library.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(found.encode_document(TEXTS), library.encode_document(TEXTS), atol=1e-5)
    np.testing.assert_allclose(found.encode(TEXTS), library.encode(TEXTS), atol=1e-5)


# ---- layers that are mixed


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", ["bert", "albert", "modernbert", "distilbert", "deberta-v3", "qwen3"])
def test_layers_are_mixed_as_the_library_mixes_them(name, first, tmp_path):
    from sentence_transformers.sentence_transformer.modules import Pooling, WeightedLayerPooling

    network = transformer(tmp_path / "network", name, config_kwargs={"output_hidden_states": True})
    blocks = network.model.config.num_hidden_layers
    weights = torch.nn.Parameter(torch.arange(1.0, blocks + 2 - first))
    layers = WeightedLayerPooling(32, blocks, first, weights)
    library = saved(tmp_path / "model", [network, layers, Pooling(32, "mean")])
    expected = library.encode(TEXTS)
    np.testing.assert_allclose(BertEncoder.from_folder(tmp_path / "model").encode(TEXTS), expected, atol=1e-5)
    late_models.change(tmp_path / "model" / "config.json", output_hidden_states=False)  # then they are not
    expected = st.SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(BertEncoder.from_folder(tmp_path / "model").encode(TEXTS), expected, atol=1e-5)


def test_damaged_layers_are_refused_by_name(tmp_path):
    from sentence_transformers.sentence_transformer.modules import Pooling, WeightedLayerPooling

    network = transformer(tmp_path / "network", config_kwargs={"output_hidden_states": True})
    saved(tmp_path / "model", [network, WeightedLayerPooling(32, 2, 1), Pooling(32, "mean")])
    path = tmp_path / "model" / "1_WeightedLayerPooling" / "config.json"
    before = path.read_text()
    for entries, message in (
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3; expected 2, as of the network"),
        ({"layer_start": 3}, "layer_start is 3; expected an int from 0 to 2"),
        ({"layer_start": 0}, r"layer_weights has shape \(2,\); expected \(3,\)"),
        ({"embedding_dimension": 31}, "embedding_dimension is 31; expected 32"),
        ({"other": 1}, "setting 'other' is unknown"),
    ):
        late_models.change(path, **entries)
        with pytest.raises(ValueError, match=message):
            BertEncoder.from_folder(tmp_path / "model")
        path.write_text(before)


# ---- sparse encoders


def idf(folder, vocabulary=40, **settings):
    """Return weights of tokens, with the tokenizer of a folder."""
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding

    tokenizer = random_models.library().AutoTokenizer.from_pretrained(str(folder))
    weights = torch.from_numpy(np.random.default_rng(1).uniform(0, 3, vocabulary).astype(np.float32))
    return SparseStaticEmbedding(tokenizer, weights, **settings)


def inference_free(room, vocabulary=40):
    """Return a sparse encoder whose queries need no network."""
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    document = [transformer(room / "network", head="ForMaskedLM", transformer_task="fill-mask"), SpladePooling()]
    query = [idf(room / "network", vocabulary, frozen=True)]
    router = Router.for_query_document(query_modules=query, document_modules=document)
    return saved(room / "model", [router], "SparseEncoder", prompts={"query": "", "document": "a "})


def test_queries_without_a_network_are_those_of_the_library(tmp_path):
    library = inference_free(tmp_path)
    encoder = SparseEncoder.from_folder(tmp_path / "model")
    for task in ("query", "document"):
        expected = getattr(library, f"encode_{task}")(TEXTS, convert_to_sparse_tensor=False).numpy()
        found = encoder.encode_sparse(TEXTS, task=task)
        np.testing.assert_allclose(found.toarray(), expected, atol=1e-5)
        few = encoder.encode_sparse(TEXTS, task=task, max_active_dims=2)
        assert np.diff(few.offsets).max() == 2
        alone = encoder.encode_sparse(TEXTS[2], task=task)
        assert_same_bits(alone.values, found[2][1])
    expected = library.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    np.testing.assert_allclose(encoder.encode_sparse(TEXTS).toarray(), expected, atol=1e-5)
    with pytest.raises(ValueError, match="`task` must be 'query' or 'document'"):
        encoder.encode_sparse(TEXTS, task="other")
    encoder.save(tmp_path / "again")
    again = SparseEncoder.from_folder(tmp_path / "again")
    for task in ("query", "document"):
        again_values, values = (x.encode_sparse(TEXTS, task=task).values for x in (again, encoder))
        assert_same_bits(again_values, values)


def test_weights_of_another_vocabulary_are_refused(tmp_path):
    inference_free(tmp_path, 41)
    with pytest.raises(ValueError, match="the route query has 41 weights; expected 40"):
        SparseEncoder.from_folder(tmp_path / "model")


def alone(room):
    """Return a sparse encoder that is nothing but weights of tokens."""
    late_models.network("bert", "Model", room / "network")
    weights, prompts = idf(room / "network", WORDS), {"query": "a ", "document": ""}
    return saved(room / "model", [weights], "SparseEncoder", prompts=prompts)


def two_weights(room):
    """Return a sparse encoder with weights of tokens for queries and others for documents."""
    from sentence_transformers.base.modules import Router

    late_models.network("bert", "Model", room / "network")
    query, document = idf(room / "network", WORDS), idf(room / "network", WORDS)
    document.weight.data += 1
    router = Router.for_query_document(query_modules=[query], document_modules=[document])
    return saved(room / "model", [router], "SparseEncoder")


@pytest.mark.parametrize("make", [alone, two_weights])
@pytest.mark.parametrize("policy", [None, "mixed_bfloat16", "int8"])
def test_weights_without_a_network_are_those_of_the_library(make, policy, tmp_path):
    library, texts = make(tmp_path), [*TEXTS, "", "c " * 60]
    encoder = SparseEncoder.from_folder(tmp_path / "model", policy)
    encoder.save(tmp_path / "again")
    again = SparseEncoder.from_folder(tmp_path / "again")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library_again = st.SparseEncoder(str(tmp_path / "again"), device="cpu")
    for task in ("query", "document"):
        expected = getattr(library, f"encode_{task}")(texts, convert_to_sparse_tensor=False).numpy()
        found = encoder.encode_sparse(texts, task=task, batch_size=2)
        assert_same_bits(found.toarray(), expected)
        assert_same_bits(again.encode_sparse(texts, task=task).values, found.values)
        reopened = getattr(library_again, f"encode_{task}")(texts, convert_to_sparse_tensor=False).numpy()
        assert_same_bits(reopened, expected)
    expected = library.encode(texts, convert_to_sparse_tensor=False).numpy()
    assert_same_bits(encoder.encode_sparse(texts).toarray(), expected)
    assert encoder.dim == WORDS and len(encoder.encode_sparse("b b")[0][0]) == 1
    assert class_of(tmp_path / "model") is SparseEncoder


def test_weights_of_tokens_are_a_network(tmp_path):
    library = alone(tmp_path)
    encoder = SparseEncoder.from_folder(tmp_path / "model")
    weights = library[0].weight.detach().numpy()
    ids = np.array([[3, 7, 7]])
    assert_same_bits(encoder.model(ids), weights[ids][..., np.newaxis])
    encoder.model.set_weights([2 * weights])
    assert_same_bits(encoder.encode_sparse("d").values, 2 * weights[[random_models.WORDS.index("d")]])
    assert encoder.weight_bytes == weights.nbytes and f"dim={WORDS}" in repr(encoder)


def test_damaged_weights_of_tokens_are_refused_by_name(tmp_path):
    alone(tmp_path)
    path = tmp_path / "model" / "model.safetensors"
    for tensors, message in (
        ({"weight": np.ones((40, 2), np.float32)}, r"tensor weight has shape \(40, 2\)"),
        ({"weight": np.ones(5, np.float32)}, "expected tokens below vocab_size, 5"),
        ({"weight": np.ones(40, np.int64)}, "int64"),
        ({"weights": np.ones(40, np.float32)}, "tensor weights is left over; expected 'weight'"),
        ({"weight": np.ones(40, np.float32), "other": np.ones(1, np.float32)}, "other"),
    ):
        save_file(tensors, path)
        with pytest.raises(ValueError, match=message):
            SparseEncoder.from_folder(tmp_path / "model")


def test_folders_of_before_with_weights_of_tokens_are_read(tmp_path):
    library = inference_free(tmp_path)
    modules, router = tmp_path / "model" / "modules.json", next((tmp_path / "model").rglob("router_config.json"))
    modules.write_text(modules.read_text().replace("base.modules.router", "models"))
    network = "sentence_transformers.base.modules.transformer.Transformer"
    said = router.read_text().replace(network, f"{OLD}MLMTransformer")
    assert OLD in said
    router.write_text(said.replace("sentence_transformers.sparse_encoder.modules.splade_pooling.", OLD))
    encoder = SparseEncoder.from_folder(tmp_path / "model")
    for task in ("query", "document"):
        expected = getattr(library, f"encode_{task}")(TEXTS, convert_to_sparse_tensor=False).numpy()
        np.testing.assert_allclose(encoder.encode_sparse(TEXTS, task=task).toarray(), expected, atol=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
def test_auto_encoders_are_those_of_the_library(normalize, tmp_path):
    from sentence_transformers.sentence_transformer.modules import Pooling
    from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder

    torch.manual_seed(4)
    end = SparseAutoEncoder(32, hidden_dim=64, k=5, normalize=normalize)
    torch.nn.init.normal_(end.pre_bias)
    torch.nn.init.normal_(end.latent_bias, std=0.1)
    library = saved(tmp_path / "model", [transformer(tmp_path / "network"), Pooling(32, "mean"), end], "SparseEncoder")
    encoder = SparseEncoder.from_folder(tmp_path / "model")
    expected = library.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    np.testing.assert_allclose(encoder.encode_sparse(TEXTS).toarray(), expected, atol=1e-5)
    expected = library.encode(TEXTS, convert_to_sparse_tensor=False, max_active_dims=3).numpy()
    np.testing.assert_allclose(encoder.encode_sparse(TEXTS, max_active_dims=3).toarray(), expected, atol=1e-5)
    assert encoder.dim == 64
    for entries, message in (({"input_dim": 31}, "input_dim is 31; expected 32"), ({"k": 0}, "k is 0; expected")):
        path = tmp_path / "model" / "2_SparseAutoEncoder" / "config.json"
        before = path.read_text()
        late_models.change(path, **entries)
        with pytest.raises(ValueError, match=message):
            SparseEncoder.from_folder(tmp_path / "model")
        path.write_text(before)


def test_a_folder_without_a_list_of_modules_is_refused_by_name(tmp_path):
    inference_free(tmp_path)
    shutil.move(tmp_path / "model" / "modules.json", tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"modules\.json is missing"):
        SparseEncoder.from_folder(tmp_path / "model")


def test_tasks_on_one_route_share_its_network(tmp_path):
    two_networks(tmp_path)
    path = next((tmp_path / "model").rglob("router_config.json"))
    said = json.loads(path.read_text())
    said["parameters"]["route_mappings"] = {"('search', None)": "query", "('passage', 'text')": "document"}
    path.write_text(json.dumps(said))
    encoder = BertEncoder.from_folder(tmp_path / "model")
    found = encoder.with_each_task()
    assert [*found] == ["query", "document", "search", "passage"]
    assert found["search"] is found["query"] and found["passage"] is found["document"]
    assert found["query"].model is not found["document"].model
    for task, each in found.items():
        assert_same_bits(each.encode(TEXTS), encoder.with_task(task).encode(TEXTS))
