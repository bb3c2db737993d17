"""Decoders that answer questions about pairs: their scores, templates and folders, compared with transformers."""

import json
import warnings

import numpy as np
import pytest
import random_models
from tokenizers import Tokenizer, models, pre_tokenizers

from mp_core.models import Reranker
from mp_core.models.heads import Head
from mp_core.models.templates import TEMPLATES, Template

torch = pytest.importorskip("torch")
FLOAT32 = 1e-5
WORDS = sorted({word for template in TEMPLATES.values() for piece in template.pieces for word in piece.split()})
SPECIAL = ["<unk>", "<pad>", "<bos>", "<|im_start|>", "<|im_end|>", "\n", "yes", "no", "Yes", "1", "0", *"abcdefgh"]
VOCABULARY = {word: place for place, word in enumerate(dict.fromkeys([*SPECIAL, *WORDS]))}
PAIRS = [("a b", "c d e"), ("", "a"), ("h", ""), ("a b c d e f g h", "b"), ("a b", "h")]
KINDS = {
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
    "mxbai": ("Qwen2", {"num_key_value_heads": 2}),
    "gemma": ("Gemma", {"head_dim": 8, "num_key_value_heads": 2}),
}


def written(folder, name, **settings):
    """Write a random causal network of transformers, and a tokenizer of the words of all templates."""
    transformers = random_models.library()
    start, own = KINDS[name]
    sizes = random_models.SIZES | {"vocab_size": len(VOCABULARY), "max_position_embeddings": 400, "pad_token_id": 1}
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = getattr(transformers, f"{start}Config")(**sizes | own | settings)
        network = getattr(transformers, f"{start}ForCausalLM")(config).eval()
        network.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL[:5])
    tokenizer.save(str(folder / "tokenizer.json"))
    return network, tokenizer


def answered(network, tokenizer, template, pairs):
    """Return the logits of the answer as the cards of these models have them: piece by piece, the last token."""
    scores = []
    for query, document in pairs:
        pieces = [
            piece.format(instruction=template.instruction, query=query, document=document) for piece in template.pieces
        ]
        ids = [token for piece in pieces for token in tokenizer.encode(piece, add_special_tokens=False).ids]
        with torch.no_grad():
            logits = network(input_ids=torch.tensor([ids])).logits[0, -1].double().numpy()
        scores.append(logits[VOCABULARY[template.true]])
        scores[-1] -= logits[VOCABULARY[template.false]] if template.false else 0
    return np.array(scores)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_scores_are_logits_of_answers_of_transformers(tmp_path, name, tied):
    network, tokenizer = written(tmp_path, name, tie_word_embeddings=tied)
    expected = answered(network, tokenizer, TEMPLATES[name], PAIRS)
    reranker = Reranker.from_folder(tmp_path)
    assert reranker.template == TEMPLATES[name]
    assert np.ptp(expected) > 1e-3
    received = reranker.predict(PAIRS, activation="linear")
    np.testing.assert_allclose(received, expected, rtol=0, atol=FLOAT32 * np.abs(expected).max() + FLOAT32)
    probability = reranker.predict(PAIRS)  # as softmax over both answers, or sigmoid of the one
    np.testing.assert_allclose(probability, 1 / (1 + np.exp(-expected)), rtol=0, atol=FLOAT32)
    assert [place for place, _ in reranker.rank("a b", ["c d e", "h"])] == list(
        np.argsort(-answered(network, tokenizer, TEMPLATES[name], [("a b", "c d e"), ("a b", "h")]))
    )
    assert reranker._plans._kept


@pytest.mark.parametrize("said", [{"model_type": "gemma2"}, {"final_logit_softcapping": 30.0}], ids=str)
def test_capped_logits_of_words_are_refused(said):
    with pytest.raises(ValueError, match=r"x: final_logit_softcapping is 30\.0; expected null"):
        Head.of({"model_type": "gemma"} | said | {"architectures": ["Gemma2ForCausalLM"]}, "x")


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "int8", "int4/16"])
def test_a_decoder_is_saved_with_the_same_scores(tmp_path, policy):
    (tmp_path / "first").mkdir()
    written(tmp_path / "first", "qwen3")
    reranker = Reranker.from_folder(tmp_path / "first", policy)
    reranker.save(tmp_path / "again")
    np.testing.assert_array_equal(Reranker.from_folder(tmp_path / "again").predict(PAIRS), reranker.predict(PAIRS))


JINJA = """<|im_start|>system
{task}<|im_end|>
<|im_start|>user
<Instruct>: {instruction}
<Query>: {{{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}}}
<Document>: {{{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}}}<|im_end|>
<|im_start|>assistant
<think>

</think>

{end}"""


@pytest.mark.parametrize("both", [True, False])
def test_a_folder_of_sentence_transformers_that_asks_a_decoder_has_its_scores(tmp_path, both):
    transformers = random_models.library()
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import LogitScore, Transformer

    (tmp_path / "base").mkdir()
    _, tokenizer = written(tmp_path / "base", "qwen3")
    template = TEMPLATES["qwen3"]
    task = template.pieces[0].removeprefix("<|im_start|>system\n").removesuffix("<|im_end|>\n<|im_start|>user\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")
        fast.chat_template = JINJA.format(task=task, instruction=template.instruction, end="{{ '' }}")
        fast.save_pretrained(tmp_path / "base")
        network = Transformer(str(tmp_path / "base"), transformer_task="text-generation", max_seq_length=300)
        yes, no = VOCABULARY["yes"], VOCABULARY["no"]
        library = CrossEncoder(modules=[network, LogitScore(yes, no if both else None)], device="cpu")
        library.save_pretrained(str(tmp_path / "saved"))
        expected = library.predict(PAIRS)
    reranker = Reranker.from_folder(tmp_path / "saved")
    assert reranker.activation == "sigmoid"
    np.testing.assert_allclose(reranker.predict(PAIRS), expected, rtol=0, atol=FLOAT32)
    path = tmp_path / "saved" / "chat_template.jinja"
    path.write_text(path.read_text().replace("Judge", "Guess"))
    with pytest.raises(ValueError, match=r"chat_template\.jinja does not have the words .*give `template`"):
        Reranker.from_folder(tmp_path / "saved")
    np.testing.assert_array_equal(
        Reranker.from_folder(tmp_path / "saved", template="qwen3").predict(PAIRS), reranker.predict(PAIRS)
    )


def test_long_documents_lose_their_ends_and_queries_keep_three_quarters(tmp_path):
    written(tmp_path, "mxbai")
    short = Template(("a {query}", "b", "c {document}", "d"), "yes", "no")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 12}))
    reranker = Reranker.from_folder(tmp_path, template=short)
    tokens = reranker.tokenize([("e", "f " * 30), ("e " * 30, "f"), ("e", "f")])
    name = {place: word for word, place in VOCABULARY.items()}
    texts = [" ".join(name[token] for token in row) for row in tokens.rows]
    assert texts == ["a e b c f f f f f f f d", "a e e e e e e e e b c d", "a e b c f d"]
    assert tokens.cut == [0, 1]


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (("{query}",), "once each"),
        (("{query} {document} {other}",), "once each"),
        (("{query}{query}{document}",), "once"),
    ],
)
def test_templates_without_their_fields_are_refused(pieces, message):
    with pytest.raises(ValueError, match=message):
        Template(pieces, "yes")


def test_a_decoder_is_served_as_a_reranker(tmp_path):
    from mp_core.serving.models import open_models

    written(tmp_path, "qwen3")
    (served,) = open_models({"r": tmp_path})
    assert served.kind == "reranker"
    scores = served.compute(served.tokenize(PAIRS), {})
    np.testing.assert_array_equal(scores, Reranker.from_folder(tmp_path).predict(PAIRS))


def test_what_is_no_question_is_refused_by_name(tmp_path):
    written(tmp_path, "qwen3")
    with pytest.raises(ValueError, match=r"`template` must be a Template or 'qwen3' or 'mxbai'.*received 'yes'"):
        Reranker.from_folder(tmp_path, template="yes")
    with pytest.raises(ValueError, match="the number of tokens of the answer 'a b' is 2; expected 1"):
        Reranker.from_folder(tmp_path, template=Template(("{query}{document}",), "a b"))
    with pytest.raises(ValueError, match=r"`inputs` must be pairs of texts .* received a text"):
        Reranker.from_folder(tmp_path).tokenize(["a"])
    path = tmp_path / "config.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"model_type": "llama"}))
    with pytest.raises(ValueError, match="`template` must be given for a decoder of model_type 'llama'"):
        Reranker.from_folder(tmp_path)
    path.write_text(json.dumps(said | {"true_token_id": 10**6}))
    with pytest.raises(ValueError, match=r"true_token_id, false_token_id is .*; expected tokens of the vocabulary"):
        Reranker.from_folder(tmp_path)
