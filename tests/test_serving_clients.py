"""Existing clients: each gets the bits of the models from `mp-core serve`, without special code."""

import os

import numpy as np
import pytest
import tiny_bert
from oracles import assert_same_bits
from servers import LIMIT, Server, scorer

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from mp_core.models import BertEncoder, Reranker
from mp_core.models.precision import unit_codes

TEXTS = tiny_bert.TEXTS
os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")
pytestmark = pytest.mark.filterwarnings("default")  # clients warn of their own names and of each other's versions


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    parent = tmp_path_factory.mktemp("clients")
    return tiny_bert.write(parent / "encoder"), scorer(parent / "classifier", 3), scorer(parent / "reranker", 1)


@pytest.fixture(scope="module")
def server(folders, tmp_path_factory):
    running = Server(*folders, log=tmp_path_factory.mktemp("log") / "log")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def scoring(folders, tmp_path_factory):
    """Start a server of which the first model is the classifier: no client of the hub can name another one."""
    running = Server(*folders[1:], log=tmp_path_factory.mktemp("log") / "log")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def encoder(folders):
    return BertEncoder.from_folder(folders[0])


def client_of(module, name):
    """Return a class of a package, or skip where it cannot be imported."""
    return getattr(pytest.importorskip(module, exc_type=ImportError), name)


def same(rows, expected):
    assert_same_bits(np.array(rows, np.float32), expected)


# ---- huggingface_hub


@pytest.fixture(scope="module")
def hub():
    return client_of("huggingface_hub", "InferenceClient")


def test_feature_extraction_of_the_hub(hub, server, encoder):
    for url in (server.address, f"{server.address}/embed"):
        client = hub(url, timeout=LIMIT)
        same(client.feature_extraction(TEXTS), encoder.encode(TEXTS, normalize=True))
        same(client.feature_extraction(TEXTS[0]), encoder.encode(TEXTS[:1], normalize=True))
    options = {"normalize": False, "prompt_name": "query", "truncate": True, "truncation_direction": "left"}
    tokens = encoder.tokenize(TEXTS, prompt_name="query", from_start=True)
    same(client.feature_extraction(TEXTS, **options), encoder.encode_tokens(tokens, normalize=False))
    same(client.feature_extraction(TEXTS, dimensions=5), encoder.encode(TEXTS, truncate_dim=5, normalize=True))


def test_sentence_similarity_of_the_hub(hub, server, encoder):
    found = hub(server.address, timeout=LIMIT).sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])
    vectors = encoder.encode(TEXTS, normalize=True)
    np.testing.assert_allclose(found, vectors[1:] @ vectors[0], atol=1e-6)


def test_text_classification_of_the_hub(hub, scoring, folders):
    client, classifier = hub(scoring.address, timeout=LIMIT), Reranker.from_folder(folders[1])
    shares = classifier.predict_tokens(classifier.tokenize(["a b"]), activation="softmax")[0]
    found = client.text_classification("a b")
    assert {element.label for element in found} == {"label 0", "label 1", "label 2"}
    same([element.score for element in found], np.sort(shares)[::-1])
    assert len(client.text_classification("a b", top_k=2)) == 2
    for name, function in (("sigmoid", "sigmoid"), ("softmax", "softmax"), ("none", "linear")):
        expected = classifier.predict_tokens(classifier.tokenize(["a b"]), activation=function)[0]
        found = client.text_classification("a b", function_to_apply=name)
        same([element.score for element in found], np.sort(expected)[::-1])


def test_errors_reach_the_client_of_the_hub(hub, server):
    with pytest.raises(client_of("huggingface_hub.errors", "HfHubHTTPError")) as raised:
        hub(server.address, timeout=LIMIT).feature_extraction("a", prompt_name="odd")
    assert raised.value.response.status_code == 422
    assert '"prompt_name" must be one of' in raised.value.response.json()["error"]


# ---- openai


def test_bits_and_codes_by_the_client_of_openai(server, encoder):
    client = client_of("openai", "OpenAI")(base_url=f"{server.address}/v1", api_key="none", timeout=LIMIT)
    with client:
        for precision in ("int8", "uint8", "binary", "ubinary"):
            answer = client.embeddings.create(model="encoder", input=TEXTS, encoding_format=precision)
            expected = unit_codes(encoder.encode(TEXTS, normalize=True), precision)
            assert [row.embedding for row in answer.data] == expected.tolist()


# ---- LangChain


def test_langchain_by_the_hub(hub, server, encoder):
    embeddings = client_of("langchain_huggingface", "HuggingFaceEndpointEmbeddings")()
    embeddings.client = hub(server.address)  # the class takes no address as its model
    same(embeddings.embed_documents(TEXTS), encoder.encode(TEXTS, normalize=True))
    same(embeddings.embed_query(TEXTS[0]), encoder.encode(TEXTS[0], normalize=True))


def test_langchain_of_the_community(server, encoder):
    kind = client_of("langchain_community.embeddings", "InfinityEmbeddings")
    embeddings = kind(model="encoder", infinity_api_url=server.address)
    same(embeddings.embed_documents(TEXTS), encoder.encode(TEXTS))
    same(embeddings.embed_query(TEXTS[0]), encoder.encode(TEXTS[0]))


def test_langchain_by_openai(server, encoder):
    kind = client_of("langchain_openai", "OpenAIEmbeddings")
    place = {"base_url": f"{server.address}/v1", "api_key": "none", "model": "encoder"}
    embeddings = kind(**place, check_embedding_ctx_length=False)
    same(embeddings.embed_documents(TEXTS), encoder.encode(TEXTS))
    same(embeddings.embed_query(TEXTS[0]), encoder.encode(TEXTS[0]))
    shorter = kind(**place, check_embedding_ctx_length=False, dimensions=5)
    same(shorter.embed_documents(TEXTS), encoder.encode(TEXTS, truncate_dim=5, normalize=True))


# ---- LlamaIndex


def test_llama_index(server, encoder):
    module = "llama_index.embeddings.text_embeddings_inference"
    embeddings = client_of(module, "TextEmbeddingsInference")(model_name="encoder", base_url=server.address)
    same(embeddings.get_text_embedding_batch(TEXTS), encoder.encode(TEXTS, normalize=True))
    same(embeddings.get_query_embedding(TEXTS[0]), encoder.encode(TEXTS[0], normalize=True))


# ---- Haystack


def test_haystack_by_openai(server, encoder, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    module, place = "haystack.components.embedders", {"api_base_url": f"{server.address}/v1", "model": "encoder"}
    documents = [client_of("haystack", "Document")(content=text) for text in TEXTS]
    found = client_of(module, "OpenAIDocumentEmbedder")(**place, progress_bar=False).run(documents)["documents"]
    same([document.embedding for document in found], encoder.encode(TEXTS))
    same(client_of(module, "OpenAITextEmbedder")(**place).run(TEXTS[0])["embedding"], encoder.encode(TEXTS[0]))


def test_haystack_by_the_hub(server, encoder):
    module = "haystack_integrations.components.embedders.huggingface_api"
    place = {"api_type": "text_embeddings_inference", "api_params": {"url": server.address}, "token": None}
    documents = [client_of("haystack", "Document")(content=text) for text in TEXTS]
    kind = client_of(module, "HuggingFaceAPIDocumentEmbedder")
    found = kind(**place, truncate=True, normalize=True, progress_bar=False).run(documents)["documents"]
    same([document.embedding for document in found], encoder.encode(TEXTS, normalize=True))
    found = client_of(module, "HuggingFaceAPITextEmbedder")(**place, normalize=True).run(TEXTS[0])["embedding"]
    same(np.ravel(found), encoder.encode(TEXTS[0], normalize=True))


def test_haystack_ranks(server, folders):
    module = "haystack_integrations.components.rankers.huggingface_api"
    ranker = client_of(module, "HuggingFaceTEIRanker")(url=server.address, token=None)
    documents = [client_of("haystack", "Document")(content=text) for text in TEXTS]
    scores = Reranker.from_folder(folders[2]).predict([("a b", text) for text in TEXTS], activation="sigmoid")
    found = ranker.run("a b", documents)["documents"]
    assert [document.content for document in found] == [TEXTS[place] for place in np.argsort(-scores)]
    same([document.score for document in found], np.sort(scores)[::-1])
